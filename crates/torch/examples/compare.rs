//! Runs an exported program as a training step would and writes what it gave, for `python/coverage_torch` to compare with PyTorch.
//!
//! `compare QUESTION.json` reads which program and which inputs, runs one pass with gradients and a few steps of plain descent, and
//! prints the losses as JSON; gradients go to files, in the order of PyTorch's axes.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_graph::{TensorOps, Type};
use plimsoll_nn::{Pass, Recipe, Sgd, Training};
use plimsoll_run::{Precision, Tensor};
use plimsoll_torch::{ProgramLoss, TorchModel};
use serde::Deserialize;

#[derive(Deserialize)]
struct Question {
    model: PathBuf,
    /// Raw elements in a file, and a shape, for each input.
    inputs: Vec<(PathBuf, Vec<usize>)>,
    steps: usize,
    rate: f64,
    /// Where gradients are written.
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("name a file with a question")?;
    let question: Question = serde_json::from_str(&fs::read_to_string(path)?)?;
    let model = TorchModel::open(&question.model)?.on_loss()?;
    let inputs = inputs(&model, &question.inputs)?;
    let (params, values) = (model.params().to_vec(), model.values()?);
    let pass = Pass::run(&model, &ProgramLoss, Precision::F32, &params, &values, &inputs, &[], 1)?;
    let mut files: BTreeMap<&str, Option<String>> = BTreeMap::new();
    for (i, (name, gradient)) in pass.gradients.iter().enumerate() {
        let file = gradient.as_ref().map(|gradient| -> Result<String, Box<dyn Error>> {
            let bytes = model.in_order(name, gradient.to_bytes()?)?;
            let file = format!("gradient_{i}");
            fs::write(Path::new(&question.out).join(&file), bytes)?;
            Ok(file)
        });
        files.insert(name, file.transpose()?);
    }
    let types: Vec<Type> = inputs.iter().map(|x| x.ty().clone()).collect();
    let first = types.first().cloned().ok_or("the program takes nothing")?;
    let mut recipe = Recipe::new(ProgramLoss, Sgd::new(question.rate), first.clone(), first);
    (recipe.inputs, recipe.labels) = (types, Vec::new());
    let mut losses = Vec::new();
    if question.steps > 0 {
        let mut training = Training::with_values(model.clone(), recipe, params, values)?;
        let batch: Vec<&Tensor> = inputs.iter().collect();
        for _ in 0..question.steps {
            losses.push(training.run(&batch)?.loss);
        }
    }
    println!("{}", serde_json::json!({ "loss": pass.loss, "losses": losses, "gradients": files }));
    Ok(())
}

fn inputs(model: &TorchModel, given: &[(PathBuf, Vec<usize>)]) -> Result<Vec<Tensor>, Box<dyn Error>> {
    let all = model.program().inputs().iter().zip(given);
    let read = |(input, (file, shape)): (&plimsoll_torch::Input, &(PathBuf, Vec<usize>))| {
        let mut tensor = Tensor::zeros(Type::new(input.dtype, &shape[..]))?;
        tensor.set_bytes(&fs::read(file)?)?;
        Ok(tensor)
    };
    all.map(read).collect()
}
