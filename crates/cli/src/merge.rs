//! `plimsoll merge`: a folder and its adapters as one folder.

use std::path::{Path, PathBuf};

use plimsoll::hub::{Adapter, base_of_adapter, merge};

use crate::{Failure, decoder_setup};

/// Arguments of `plimsoll merge`.
#[derive(clap::Args)]
pub struct Args {
    /// The Hugging Face folder that the adapters belong to.
    folder: PathBuf,
    /// The adapters: a folder of PEFT's form, or a run of `plimsoll tune`.
    adapter: PathBuf,
    /// The folder to write; nothing must be in it.
    #[arg(long)]
    out: PathBuf,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// A run's adapters, or the folder itself.
pub fn adapter_of(path: &Path) -> PathBuf {
    let own = path.join("adapter");
    if own.join("adapter_config.json").is_file() { own } else { path.to_path_buf() }
}

/// A model's folder and its adapters. Where the folder that is named has adapters and no model, they are those, and the model is what they say
/// that they belong to, if that is a folder here. A run in which all weights were tuned leads to them.
pub fn with_base(folder: &Path, adapter: Option<&Path>) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    let own = adapter_of(folder);
    let Some(base) = base_of_adapter(&own)? else {
        let tuned = folder.join("model");
        let is_run = !folder.join("config.json").is_file() && tuned.join("config.json").is_file();
        let model = if is_run { tuned } else { folder.to_path_buf() };
        return Ok((model, adapter.map(Path::to_path_buf)));
    };
    let (shown, base) = (folder.display(), PathBuf::from(base));
    if let Some(other) = adapter {
        let why = format!(
            "{shown} has adapters and no model; name the folder of their model ({}) before",
            base.display()
        );
        return Err(Failure(format!("{why} --adapter {}", other.display())));
    }
    match base.join("config.json").is_file() {
        true => Ok((base, Some(own))),
        false => Err(Failure(format!(
            "{shown} has adapters of {:?} and no model, and that is no folder here; name the folder of that model, and --adapter {shown}",
            base.display().to_string()
        ))),
    }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    if std::fs::read_dir(&args.out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure(format!("{} is not empty; name another folder with --out", args.out.display())));
    }
    if base_of_adapter(&adapter_of(&args.folder))?.is_some() {
        let why = "has adapters and no model; name the folder of the model first, then that of its adapters";
        return Err(Failure(format!("{} {why}", args.folder.display())));
    }
    let (mut folder, mut adapter) =
        (decoder_setup::open(&args.folder)?, Adapter::open(adapter_of(&args.adapter))?);
    merge(&mut folder, &mut adapter, &args.out)?;
    match args.json {
        true => say!("{}", serde_json::json!({ "model": args.out.to_string_lossy() })),
        false => say!("the merged model is {}", args.out.display()),
    }
    Ok(())
}
