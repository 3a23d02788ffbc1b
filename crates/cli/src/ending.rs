//! How a run of training or tuning ended, as its last line of JSON, and how to go on where a signal ended it.

use std::path::Path;

use plimsoll::prelude::*;
use plimsoll::train::Ended;
use serde_json::Value;

use crate::Stop;
use crate::folder::Folder;

/// The last line of a run in JSON, with the model where there is one.
pub fn line(trainer: &Trainer, folder: &Folder, model: Option<&Path>) -> Value {
    let mut line = trainer.ended().unwrap_or(&Ended::Complete).to_json(model);
    line["step"] = trainer.progress().step.into();
    line["run"] = folder.path().to_string_lossy().into();
    line
}

/// An end by a signal, which a command with `--resume` goes on from; nothing where the run ended by itself.
pub fn interrupted(
    trainer: &Trainer,
    folder: &Folder,
    signal: Option<u8>,
    command: &str,
    is_json: bool,
) -> Result<(), Stop> {
    let (Some(signal), Some(Ended::Stopped { .. })) = (signal, trainer.ended()) else { return Ok(()) };
    if is_json {
        say!("{}", line(trainer, folder, None));
    }
    let go_on = format!("plimsoll {command} --resume --out {}", folder.path().display());
    let step = trainer.progress().step;
    let why = format!("stopped after step {step}, with a checkpoint; go on with: {go_on}");
    Err(Stop::Interrupted { signal, why })
}
