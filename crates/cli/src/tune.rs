//! `plimsoll tune`: a language model of a Hugging Face folder, texts and a memory limit in; adapters or a folder of weights out.

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::decoder_setup;
use crate::encoder_setup::EncoderArgs;
use crate::folder::Folder;
use crate::lora_args::LoraArgs;
use crate::ranks::{self, World};
use crate::session::Session;
use crate::train::last_checkpoint;
use crate::tune_run::{self, Kept, TuneRun};
use crate::tuned_model::TunedModel;
use crate::{Failure, Stop, check, merge, resume};

/// Arguments of `plimsoll tune`.
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Texts are lines of a .jsonl file: {\"text\": …}, {\"prompt\": …, \"completion\": …} or {\"messages\": [{\"role\": …, \"content\": …}, …]}; for encoders {\"text\": …}, {\"text\": …, \"label\": …} or {\"tokens\": […], \"labels\": […]}. A .txt file has an empty line between texts. Pictures lie in a folder, a sub-folder a label."
)]
pub struct Args {
    /// A folder with config.json, model.safetensors (or its index and parts) and tokenizer.json; or adapters (PEFT's form) whose base is in
    /// the folder that they name. With --resume it may be left out.
    #[arg(value_name = "FOLDER", required_unless_present = "resume")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    lora: LoraArgs,
    /// Begin with the adapters of this folder (PEFT's form); their rank, scale and layers are its own.
    #[arg(long, value_name = "FOLDER", conflicts_with = "lora", help_heading = "Adapters")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    encoder: EncoderArgs,
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
    asked.from = asked.from.as_deref().map(absolute).transpose()?;
    let named =
        args.folder.as_deref().map(|folder| merge::with_base(folder, args.adapter.as_deref())).transpose()?;
    let (folder, adapter) =
        named.map_or((None, args.adapter.clone()), |(folder, adapter)| (Some(folder), adapter));
    if adapter.is_some() && args.lora.lora.is_some() {
        let why = "--lora begins adapters, and the folder has some; leave one out";
        return Err(Stop::Usage(why.into()));
    }
    asked.model = folder.as_deref().map(|folder| absolute(&folder.to_string_lossy())).transpose()?;
    if asked.parallel.as_deref() == Some("auto") {
        let why = "--parallel auto is not for plimsoll tune; name a way (plimsoll plan FOLDER --ranks N compares them)";
        return Err(Stop::Usage(why.into()));
    }
    decoder_setup::check(&asked).map_err(Stop::usage)?;
    check::check(&asked).map_err(Stop::usage)?;
    let (mut config, kept) = match &session.out {
        Some(out) if session.resume => {
            let folder = Folder::of(out)?;
            let kept = Kept::read(&folder)?;
            if args.lora.is_asked() && args.lora != kept.lora || adapter.is_some() {
                let why = "it was begun with other adapters; leave their flags out to go on";
                return Err(Stop::Usage(format!("{}: {why}", out.display())));
            }
            if args.encoder.is_asked() && args.encoder != kept.encoder {
                let why = "it was begun with another task or other labels; leave their flags out to go on";
                return Err(Stop::Usage(format!("{}: {why}", out.display())));
            }
            (resume::settings(asked, folder.settings()?, out)?, kept)
        }
        _ => {
            let (lora, encoder) = (args.lora.clone(), args.encoder.clone());
            (asked, Kept { lora, adapter, encoder, packed: None })
        }
    };
    let model = PathBuf::from(config.model.clone().unwrap_or_default());
    if config.data.is_none() {
        let why = "there is nothing to learn from; name a .jsonl file, or a folder of pictures, with --data";
        return Err(Stop::Usage(why.into()));
    }
    let world = World::join(&mut config, &session).map_err(|Failure(why)| match &session.out {
        Some(out) if session.resume => {
            Failure(format!("{why}; {}", last_checkpoint(&Folder::at(out.clone()), "tune")))
        }
        _ => Failure(why),
    })?;
    let done = joined(&session, &config, kept, &model, &world);
    world.end(done)
}

/// Tunes as one of several ranks, or as the only one.
fn joined(session: &Session, config: &Config, kept: Kept, model: &Path, world: &World) -> Result<(), Stop> {
    let device = world.on(world.open(config)?, config)?;
    let tuned = TunedModel::open(model, &kept, config)?;
    tuned.check_parallel(ranks::parallel(config)).map_err(Stop::usage)?;
    if !world.is_first() {
        return device.scope(|| tune_run::follow(session, config, world, &device, tuned));
    }
    let (folder, lock) = match &session.out {
        Some(out) if session.resume => {
            let folder = Folder::of(out)?;
            let lock = folder.lock()?;
            (folder, Some(lock))
        }
        out => Folder::to_begin(out.as_deref(), &decoder_setup::short_name(model))?,
    };
    let is_named = session.out.is_some();
    let run = TuneRun { session, config, folder: &folder, model, device: &device, world };
    let ended = device.scope(|| tune_run::tune(&run, tuned, kept, lock));
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
