//! `plimsoll export`: the model of a run, or of a Keras file, as an ONNX file.

use std::path::{Path, PathBuf};

use plimsoll::internals::graph::{Shape, Type};
use plimsoll::internals::run::Tensor;
use plimsoll::keras::KerasModel;
use plimsoll::onnx::write_model;

use crate::Failure;
use crate::config::Config;
use crate::model_setup::Purpose;
use crate::request::{is_keras, is_onnx};
use crate::trained::Trained;

/// Arguments of `plimsoll export`.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a run, or a `.keras` or `.h5` file.
    #[arg(value_name = "RUN | FILE")]
    what: PathBuf,
    /// The file to write: its name ends in `.onnx`.
    #[arg(long)]
    to: PathBuf,
    /// Write over a file that is there.
    #[arg(long)]
    overwrite: bool,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// Writes the model as it predicts. What is written is read back first and compared with the model.
pub fn run(args: &Args) -> Result<(), Failure> {
    let shown = args.to.display();
    if args.to.extension().is_none_or(|end| end != "onnx") {
        return Err(Failure(format!(
            "{shown} does not end in .onnx, which is the kind of file that is written"
        )));
    }
    if args.to.is_dir() {
        return Err(Failure(format!("{shown} is a folder; name a file with --to")));
    }
    if args.to.exists() && !args.overwrite {
        return Err(Failure(format!(
            "{shown} is there already; name another file, or write over it with --overwrite"
        )));
    }
    let name = match args.what.to_str() {
        Some(path) if is_keras(path) => of_keras(path, &args.to)?,
        Some(path) if is_onnx(path) => {
            return Err(Failure(format!("{path} is an ONNX file already")));
        }
        _ => of_run(&args.what, &args.to)?,
    };
    match args.json {
        true => say!("{}", serde_json::json!({ "model": name, "to": args.to.display().to_string() })),
        false => say!("{shown} is {name} as ONNX"),
    }
    Ok(())
}

fn of_keras(path: &str, to: &Path) -> Result<String, Failure> {
    let model = KerasModel::open(path)?;
    let inputs: Vec<(String, Type)> = model.input_names().into_iter().zip(model.inputs(1)?).collect();
    let name = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or("model").to_string();
    write_model(to, &name, &model, &inputs, model.params(), &model.values()?)?;
    Ok(name)
}

fn of_run(run: &Path, to: &Path) -> Result<String, Failure> {
    let Trained { model_setup, trainer, form, .. } = Trained::run(run, Config::default(), Purpose::Predict)?;
    let training = trainer.training().ok_or_else(|| Failure("the run's model is not loaded".into()))?;
    // A model that came as ONNX goes back as it came.
    if let Some(model) = &model_setup.onnx {
        model.save(to, training)?;
        return Ok(model_setup.name);
    }
    let spec = form.spec()?;
    let names = match &model_setup.keras {
        Some(compiled) => compiled.model.input_names(),
        None => spec.iter().take(1).map(|field| field.name.clone()).collect(),
    };
    let typed = |(name, field): (String, &plimsoll::data::FieldSpec)| {
        let shape: Shape = std::iter::once(1).chain(field.shape.iter().copied()).collect();
        (name, Type::new(field.dtype, shape))
    };
    let inputs: Vec<(String, Type)> = names.into_iter().zip(&spec).map(typed).collect();
    let (params, values) = (training.params(), training.values());
    let write = || write_model(to, &model_setup.name, &model_setup.model, &inputs, params, values);
    // What is written is compared where the weights are.
    match values.first().and_then(Tensor::device) {
        Some(device) => device.scope(write)?,
        None => write()?,
    }
    Ok(model_setup.name)
}
