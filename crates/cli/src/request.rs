//! Turns what somebody wrote (a model, a file of settings, flags) into the settings that `train`, `plan`, `bench` and `inspect` all
//! begin with, so that the same words mean the same model, data and step to each of them.

use std::path::Path;

use crate::config::Config;
use crate::folder::Folder;
use crate::session::Session;
use crate::source::default_data;
use crate::{Failure, Stop, check, model_setup, named_file, sizes};

/// Whether a name is that of a Keras file.
pub fn is_keras(name: &str) -> bool {
    name.ends_with(".keras") || name.ends_with(".h5")
}

/// Whether a name is that of an ONNX file.
pub fn is_onnx(name: &str) -> bool {
    name.ends_with(".onnx")
}

/// Whether a name is that of an exported PyTorch program.
pub fn is_torch(name: &str) -> bool {
    name.ends_with(".pt2")
}

/// Whether a name is that of a TensorFlow Lite file, or of a plan file of one. Such a file runs and is not trained.
pub fn is_tflite(name: &str) -> bool {
    name.ends_with(".tflite") || is_plan_file(name)
}

/// Whether a name is that of a TensorFlow Lite file with the plan of its arena.
pub fn is_plan_file(name: &str) -> bool {
    name.ends_with(".plim")
}

/// Whether a name is that of a file with a model in it, to be trained or used.
pub fn is_model_file(name: &str) -> bool {
    is_keras(name) || is_onnx(name) || is_torch(name)
}

/// A model and its settings, for a command that looks at a training and runs none.
#[derive(clap::Args)]
pub struct Looked {
    /// What would be trained, as of `plimsoll train`: a model by name, a `.keras`, `.h5`, `.onnx` or `.pt2` file, a file of settings (`run.toml`), or
    /// the folder of a run, which means its settings.
    /// All flags of `train` are taken, and mean the same. No run is written.
    #[arg(value_name = "CONFIG.toml | MODEL | RUN")]
    pub model: String,
    #[command(flatten)]
    config: Config,
}

impl Looked {
    /// Its settings with what everybody gets who says nothing.
    pub fn settings(&self) -> Result<Config, Stop> {
        without_training(Some(&self.model), &self.config)
    }

    /// What of them was asked for here, and does not stand in the file of settings or the run that is named.
    pub fn flags(&self) -> &Config {
        &self.config
    }
}

/// The flags over the file of settings or the run that is named, or with the model that is named.
pub fn written(what: Option<&str>, flags: &Config) -> Result<(Config, Session), Failure> {
    let mut flags = flags.clone();
    match what {
        Some(path) if path.ends_with(".toml") => {
            let (file, session) = Config::read_request(Path::new(path))?;
            return Ok((flags.over(file), session));
        }
        Some(folder) if let Some(run) = Folder::of_run(Path::new(folder)) => {
            return Ok((flags.over(run.settings()?), Session::default()));
        }
        Some(model) => flags.model = Some(model.into()),
        None => {}
    }
    Ok((flags, Session::default()))
}

/// Whether nothing is named: then it is the built-in demo.
pub fn is_demo(config: &Config) -> bool {
    config.model.is_none() && config.data.is_none()
}

/// The settings with what everybody gets who says nothing.
///
/// # Errors
/// A value means nothing, or the model is none or has no such sizes.
pub fn completed(mut config: Config) -> Result<Config, Stop> {
    let demo = is_demo(&config);
    config.complete(demo);
    check::check(&config).map_err(Stop::usage)?;
    let name = config.model.as_deref().unwrap_or("demo");
    // A run has a copy of its own.
    if is_model_file(name) && config.model_copy.is_none() {
        named_file::check(Path::new(name), "a .keras, .h5, .onnx or .pt2 file that is there")?;
    }
    let entry = if is_model_file(name) { Ok(None) } else { model_setup::find(name) };
    let entry = entry.map_err(Stop::usage)?;
    sizes::check(&config, name, entry.as_ref()).map_err(Stop::usage)?;
    Ok(config)
}

/// The settings of a command that trains nothing. They are those of `train`; a model that `train` has no data for is looked at with
/// random data of its own sizes.
pub fn without_training(what: Option<&str>, flags: &Config) -> Result<Config, Stop> {
    let mut config = completed(written(what, flags)?.0)?;
    if config.data.is_none() && default_data(config.model.as_deref()).is_none() {
        config.data = Some("random".into());
    }
    Ok(config)
}
