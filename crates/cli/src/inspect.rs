//! `plimsoll inspect`: what a model is made of, be it of the zoo or in a Keras, ONNX, PyTorch or TensorFlow Lite file.

use std::path::Path;

use plimsoll::keras::Inspection;
use plimsoll::nn::zoo;
use plimsoll::prelude::*;

use crate::config::{BatchSize, Config};
use crate::setup::Setup;
use crate::{Failure, Stop, device_args, layers, model_setup, onnx_file, request, tflite_file, torch_file};

/// Arguments of `plimsoll inspect`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = model_setup::help())]
pub struct Args {
    /// A model by name, a `.keras`, `.h5`, `.weights.h5`, `.onnx`, `.pt2` or `.tflite` file, a file of settings (`run.toml`), or the folder of a run. A
    /// model by name is that which `train`, `plan` and `bench` mean with the same flags: its sizes are those of its data.
    #[arg(value_name = "CONFIG.toml | MODEL | FILE | RUN")]
    what: String,
    #[command(flatten)]
    config: Config,
    /// One JSON line instead of a table.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Prints layers, shapes, parameters and bytes by kind.
pub fn run(args: &Args) -> Result<(), Stop> {
    let (written, _) = request::written(Some(&args.what), &args.config)?;
    let name = written.model.as_deref().unwrap_or("demo");
    let found = match name == "demo" || zoo::find(name).is_some() {
        true => {
            let config = request::without_training(Some(&args.what), &args.config)?;
            if config.batch == Some(BatchSize::Auto) {
                let why =
                    "--batch auto is for train, plan and bench; inspect shows a model at a number of samples";
                return Err(Stop::Usage(why.into()));
            }
            let device = device_args::device(&config)?;
            device.scope(|| layers::inspect(&config, &Setup::new(&config, &device)?))?
        }
        false if request::is_onnx(name) => {
            let file = written.model_copy.clone().unwrap_or_else(|| name.into());
            let found =
                plimsoll::onnx::inspect(&file, &onnx_file::lengths(&written)?).map_err(Failure::from)?;
            match args.json {
                true => say!("{}", serde_json::json!(found)),
                false => onnx_file::print(name, &found),
            }
            return Ok(());
        }
        false if request::is_torch(name) => {
            let file = written.model_copy.clone().unwrap_or_else(|| name.into());
            let found = torch_file::inspect(&file)?;
            match args.json {
                true => say!("{found}"),
                false => torch_file::print(name, &found),
            }
            return Ok(());
        }
        false if request::is_tflite(name) => {
            let found = tflite_file::inspect(Path::new(name))?;
            match args.json {
                true => say!("{}", serde_json::json!(found)),
                false => tflite_file::print(&found),
            }
            return Ok(());
        }
        false => of_file(&written.model_copy.unwrap_or_else(|| name.into()))?,
    };
    match args.json {
        true => say!("{}", serde_json::json!(found)),
        false => print(&found),
    }
    Ok(())
}

fn of_file(file: &Path) -> Result<Inspection, Failure> {
    let name = file.display();
    if file.is_dir() {
        return Err(Failure(format!("{name} is a folder; name a run, or a .keras, .h5 or .weights.h5 file")));
    }
    if !file.exists() && !request::is_keras(&name.to_string()) {
        return Err(Failure(format!("there is no model and no file {name}; {}", model_setup::help())));
    }
    Ok(plimsoll::keras::inspect(file)?)
}

fn print(found: &Inspection) {
    let (inputs, outputs) = (found.model.inputs.join(", "), found.model.outputs.join(", "));
    match found.keras_version.is_empty() {
        true => say!("{}, {inputs} -> {outputs}", found.model.name),
        false => {
            say!(
                "{} {} (Keras {}), {inputs} -> {outputs}",
                found.model.class,
                found.model.name,
                found.keras_version
            )
        }
    }
    let places = found.layers.iter().map(|layer| layer.place.chars().count());
    let width = places.chain(["statistics".len()]).max().unwrap_or(0);
    for layer in &found.layers {
        let shapes: Vec<String> =
            layer.outputs.iter().map(|shape| format!("{:?}", shape.get(1..).unwrap_or(&[]))).collect();
        let frozen = if layer.trainable { "" } else { "  frozen" };
        let policy = layer.dtype.as_ref().filter(|policy| *policy != "float32" && layer.elements > 0);
        let policy = policy.map_or(String::new(), |policy| format!("  {policy}"));
        say!(
            "{:<width$}  {:<24} {:>12} {:>10}  {}{policy}{frozen}",
            layer.place,
            layer.class,
            layer.elements,
            Bytes(layer.bytes).to_string(),
            shapes.join(" ")
        );
    }
    let rows = [
        ("trained", found.elements.trained, found.bytes.trained),
        ("frozen", found.elements.frozen, found.bytes.frozen),
        ("statistics", found.elements.statistics, found.bytes.statistics),
        ("optimizer", found.elements.optimizer, found.bytes.optimizer),
        ("other", found.elements.other, found.bytes.other),
    ];
    for (kind, elements, bytes) in rows.into_iter().filter(|row| row.1 > 0) {
        say!("{kind:<width$}  {:<24} {elements:>12} {:>10}", "", Bytes(bytes).to_string());
    }
    if let Some(optimizer) = &found.compiled.optimizer {
        let rate = found.compiled.learning_rate.map_or(String::new(), |rate| format!(" at {rate}"));
        let made = if found.kind == "zoo" { "trained" } else { "compiled" };
        say!("{made} with {optimizer}{rate}");
    }
    if let Some(problem) = &found.model.problem {
        say!("it cannot be trained here: {problem}");
    }
}
