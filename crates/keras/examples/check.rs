//! Compares a Keras model with what Keras computed with it: `check MODEL NUMBERS.npz [WRITTEN]`.
//!
//! Prints the largest distances of outputs, gradients, the losses of 20 steps and outputs after them; with a third argument
//! writes the trained model there. Fails where they are too large, unless the numbers say how far Keras is from itself.

#[path = "../tests/common/mod.rs"]
mod common;

use std::path::Path;

use common::{Arrays, compare, distance, gradient_distance, losses_distance, types};
use plimsoll_keras::KerasModel;

fn main() -> Result<(), plimsoll_keras::Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, numbers, ..] = &args[..] else {
        eprintln!("check MODEL NUMBERS.npz [WRITTEN]");
        std::process::exit(2);
    };
    let model = KerasModel::open(model)?;
    let arrays = Arrays::open(Path::new(numbers));
    let found = compare(&model, &arrays);
    println!(
        "{model:?}: forward {:.2e}, gradient {:.2e} ({}), losses {:.2e}, after {:.2e}",
        found.forward, found.gradient, found.worst, found.losses, found.after
    );
    let shaken: Vec<_> = arrays.list("h").iter().map(|g| g.to_f64().ok()).collect();
    if !shaken.is_empty() {
        let names: Vec<&str> = model.trained().collect();
        let (gradient, worst) = gradient_distance(&names, &shaken, &arrays.list("g"));
        println!(
            "Keras from itself, inputs shaken by a rounding: gradient {gradient:.2e} ({worst}), losses {:.2e}, after {:.2e}",
            losses_distance(&arrays.get("shaken"), &arrays.get("losses")),
            distance(&arrays.get("w0"), &arrays.get("z0"))
        );
    }
    let agrees = found.forward <= 1e-5 && found.gradient <= 1e-4 && found.losses <= 1e-4;
    if shaken.is_empty() && !agrees {
        eprintln!("they should be at most 1e-5, 1e-4 and 1e-4");
        std::process::exit(1);
    }
    if let Some(path) = args.get(2) {
        let compiled = model.compiled()?;
        let (inputs, labels) = (arrays.list("x"), arrays.list("t"));
        let mut training = model.training(compiled.recipe(types(&inputs), types(&labels)))?;
        // Trained as the loss wants it, written as the file has it.
        let mut on_logits = compiled.model.training(compiled.recipe(types(&inputs), types(&labels)))?;
        let batch: Vec<_> = inputs.iter().chain(&labels).collect();
        for _ in arrays.get("losses") {
            on_logits.run(&batch)?;
        }
        let state: Vec<_> = on_logits.state().map(|(name, t)| (name.to_string(), t.to_bytes())).collect();
        for (name, bytes) in state {
            training.restore(&name, &bytes?)?;
        }
        model.save(path, &training)?;
        println!("written to {path}");
    }
    Ok(())
}
