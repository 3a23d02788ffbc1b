//! `plimsoll merge`: a folder and its adapters as one folder.

use std::path::PathBuf;

use plimsoll::hub::{Adapter, merge};

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
pub fn adapter_of(path: &std::path::Path) -> PathBuf {
    let own = path.join("adapter");
    if own.join("adapter_config.json").is_file() { own } else { path.to_path_buf() }
}

pub fn run(args: &Args) -> Result<(), Failure> {
    if std::fs::read_dir(&args.out).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure(format!("{} is not empty; name another folder with --out", args.out.display())));
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
