//! `plimsoll tune`: a language model of a Hugging Face folder, texts and a memory limit in; adapters or a folder of weights out.

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::decoder_setup::{self, DecoderSetup};
use crate::folder::Folder;
use crate::lora_args::LoraArgs;
use crate::session::Session;
use crate::tune_run::{self, Kept, TuneRun};
use crate::{Failure, Stop, check, device_args, resume};

/// Arguments of `plimsoll tune`.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Texts are lines of a .jsonl file: {\"text\": …}, {\"prompt\": …, \"completion\": …} or {\"messages\": [{\"role\": …, \"content\": …}, …]}."
)]
pub struct Args {
    /// A folder with config.json, model.safetensors (or its index and parts) and tokenizer.json. With --resume it may be left out.
    #[arg(value_name = "FOLDER", required_unless_present = "resume")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    lora: LoraArgs,
    /// Begin with the adapters of this folder (PEFT's form); their rank, scale and layers are its own.
    #[arg(long, value_name = "FOLDER", conflicts_with = "lora", help_heading = "Adapters")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    config: Config,
    #[command(flatten)]
    session: Session,
}

/// Tunes.
pub fn run(args: &Args) -> Result<(), Stop> {
    let session = args.session.clone();
    session.check().map_err(Stop::usage)?;
    if session.tui {
        return Err(Stop::Usage("--tui is not for plimsoll tune; leave it out".into()));
    }
    let mut asked = args.config.clone();
    asked.data = asked.data.as_deref().map(absolute).transpose()?;
    asked.model = args.folder.as_deref().map(|folder| absolute(&folder.to_string_lossy())).transpose()?;
    if let Some(parallel) = &asked.parallel {
        let why = "plimsoll tune is one rank's; plimsoll plan says what several would take";
        return Err(Stop::Usage(format!("--parallel {parallel}: {why}")));
    }
    decoder_setup::check(&asked).map_err(Stop::usage)?;
    check::check(&asked).map_err(Stop::usage)?;
    let (config, kept) = match &session.out {
        Some(out) if session.resume => {
            let folder = Folder::of(out)?;
            let kept = Kept::read(&folder)?;
            if args.lora.is_asked() && args.lora != kept.lora || args.adapter.is_some() {
                let why = "it was begun with other adapters; leave their flags out to go on";
                return Err(Stop::Usage(format!("{}: {why}", out.display())));
            }
            (resume::settings(asked, folder.settings()?, out)?, kept)
        }
        _ => (asked, Kept { lora: args.lora.clone(), adapter: args.adapter.clone(), packed: None }),
    };
    let model = PathBuf::from(config.model.clone().unwrap_or_default());
    if config.data.is_none() {
        return Err(Stop::Usage("there is nothing to learn from; name a .jsonl file with --data".into()));
    }
    let device = device_args::device(&config)?;
    let decoder = kept.lora.based(decoder_setup::described(&model, kept.tuning()?)?).map_err(Stop::usage)?;
    let setup = DecoderSetup::new(&config, decoder).map_err(Stop::usage)?;
    let (folder, lock) = match &session.out {
        Some(out) if session.resume => {
            let folder = Folder::of(out)?;
            let lock = folder.lock()?;
            (folder, Some(lock))
        }
        out => Folder::to_begin(out.as_deref(), &decoder_setup::short_name(&model))?,
    };
    let is_named = session.out.is_some();
    let run = TuneRun { session: &session, config: &config, folder: &folder, model: &model, device: &device };
    let ended = device.scope(|| tune_run::tune(&run, setup, kept, lock));
    if ended.is_err() && !is_named {
        folder.abandon();
    }
    ended
}

/// A path that means the same from every folder.
fn absolute(path: &str) -> Result<String, Failure> {
    let whole = std::path::absolute(Path::new(path)).map_err(|e| Failure(format!("{path}: {e}")))?;
    Ok(whole.to_string_lossy().into_owned())
}
