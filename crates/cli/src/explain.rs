//! `plimsoll explain`: what another system's out-of-memory report says, in plain words.

use std::path::PathBuf;

use crate::{Failure, named_file};

/// Arguments of `plimsoll explain`.
#[derive(clap::Args)]
pub struct Args {
    /// A log, a message or a memory snapshot of TensorFlow, PyTorch or JAX; `-` reads standard input.
    file: PathBuf,
    /// One JSON line instead of text (docs/explain.md says what is in it).
    #[arg(long, conflicts_with = "html")]
    json: bool,
    /// A page of HTML instead of text.
    #[arg(long)]
    html: bool,
    /// Where the page goes; `-` is standard output.
    #[arg(short, long, default_value = "explain.html", requires = "html")]
    out: PathBuf,
}

/// Reads and explains.
pub fn run(args: &Args) -> Result<(), Failure> {
    let name = args.file.display().to_string();
    let told = if name == "-" {
        plimsoll_explain::explain(std::io::stdin().lock(), "standard input")?
    } else {
        let wanted = "a log, a message or a memory snapshot, or - for standard input";
        plimsoll_explain::explain(named_file::open(&args.file, wanted)?, &name)?
    };
    if args.json {
        say!("{}", serde_json::to_string(&told)?);
    } else if !args.html {
        say!("{}", told.to_string().trim_end());
    } else if args.out.as_os_str() == "-" {
        say!("{}", told.to_html().trim_end());
    } else {
        let out = args.out.display();
        crate::out::write(&args.out, &told.to_html(), "--out", &args.file)?;
        say!("{out}: {}", told.verdict.words());
    }
    Ok(())
}
