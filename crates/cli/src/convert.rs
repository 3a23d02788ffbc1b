//! `plimsoll convert`: the model of a run as a Keras file.

use std::path::PathBuf;

use plimsoll::internals::graph::{Shape, Type};
use plimsoll::internals::run::Tensor;
use plimsoll::keras::write_model;

use crate::Failure;
use crate::config::Config;
use crate::model_setup::Purpose;
use crate::trained::Trained;

/// Arguments of `plimsoll convert`.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a run.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The file to write: its name ends in `.keras`, or in `.h5` where the run's model came from such a file.
    #[arg(long)]
    out: PathBuf,
    /// Write over a file that is there.
    #[arg(long)]
    overwrite: bool,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// Writes the trained model for `keras.models.load_model`. The file is read back first and compared with the model.
pub fn run(args: &Args) -> Result<(), Failure> {
    let ends = |ending: &str| args.out.extension().is_some_and(|end| end == ending);
    let other = || {
        let shown = args.out.display();
        Failure(format!("{shown} does not end in .keras, which is the only kind of file that is written"))
    };
    // A model from a legacy file is one again; which of the two it is, is known when the run is open.
    if !ends("keras") && !ends("h5") {
        return Err(other());
    }
    let shown = args.out.display();
    if args.out.is_dir() {
        return Err(Failure(format!("{shown} is a folder; name a file with --out")));
    }
    // A run that came from a Keras file reads it from beside its other files.
    let is_own = args.out.parent().is_some_and(|folder| crate::out::is_same(folder, &args.run));
    if args.out.exists() && is_own {
        return Err(Failure(format!("{shown} is a file of the run itself; name another one with --out")));
    }
    if args.out.exists() && !args.overwrite {
        return Err(Failure(format!(
            "{shown} is there already; name another file, or write over it with --overwrite"
        )));
    }
    let Trained { model_setup, trainer, form, .. } =
        Trained::run(&args.run, Config::default(), Purpose::Predict)?;
    let training = trainer.training().ok_or_else(|| Failure("the run's model is not loaded".into()))?;
    match &model_setup.keras {
        // A model that came from Keras goes back as it came.
        Some(compiled) => compiled.model.save(&args.out, training)?,
        None if !ends("keras") => return Err(other()),
        None => {
            let input = form.input()?;
            let shape: Shape = std::iter::once(1).chain(input.shape.iter().copied()).collect();
            let inputs = [Type::new(input.dtype, shape)];
            let (params, values) = model_setup.to_write(training)?;
            let write =
                || write_model(&args.out, &model_setup.name, &model_setup.model, &inputs, &params, &values);
            // What is written is compared where the weights are.
            match values.first().and_then(Tensor::device) {
                Some(device) => device.scope(write)?,
                None => write()?,
            }
        }
    }
    match args.json {
        true => {
            say!(
                "{}",
                serde_json::json!({ "model": model_setup.name, "out": args.out.display().to_string() })
            )
        }
        false => say!("{} is {} for Keras", args.out.display(), model_setup.name),
    }
    Ok(())
}
