//! `plimsoll pack`: offsets for a file of buffers.

use std::path::PathBuf;

use plimsoll::internals::graph::counted;
use plimsoll::internals::plan::{csv, pack};

use crate::{Failure, named_file, out};

/// Arguments of `plimsoll pack`.
#[derive(clap::Args)]
pub struct Args {
    /// A table with the columns id, lower, upper, size (half-open lifespans) and, if wanted, alignment.
    file: PathBuf,
    /// A height that is good enough, in bytes; without it the lowest is looked for.
    #[arg(long)]
    capacity: Option<u64>,
    /// How long to try.
    #[arg(long, allow_negative_numbers = true)]
    seconds: Option<f64>,
    /// Writes the same table with a column of offsets.
    #[arg(long)]
    out: Option<PathBuf>,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// Packs and prints.
pub fn run(args: &Args) -> Result<(), Failure> {
    let file = args.file.display();
    if args.seconds.is_some_and(|seconds| !(seconds.is_finite() && seconds > 0.0)) {
        return Err(Failure("--seconds is a number above zero: for how long to try".into()));
    }
    args.out.iter().try_for_each(|path| out::check(path, "--out", &args.file))?;
    let text = named_file::text(&args.file, "a CSV table with the columns id, lower, upper, size")?;
    let table = csv::read(&text).map_err(|e| Failure(format!("{file}: {e}")))?;
    let options = args.seconds.map_or_else(pack::Options::default, pack::Options::within);
    let options = pack::Options { capacity: args.capacity, ..options };
    let packing = pack::pack(&table.buffers, &options).map_err(|e| Failure(format!("{file}: {e}")))?;
    if let Some(out) = &args.out {
        out::write(out, &csv::write(&table, &packing.offsets), "--out", &args.file)?;
    }
    let fits = args.capacity.is_none_or(|capacity| packing.fits(capacity));
    if args.json {
        let line = serde_json::json!({
            "buffers": table.buffers.len(), "height": packing.height, "lower_bound": packing.lower_bound,
            "gap": packing.gap(), "seconds": packing.seconds, "fits": fits,
        });
        say!("{line}");
    } else {
        let verdict = match (args.capacity, fits) {
            (None, _) => String::new(),
            (Some(capacity), true) => format!(", inside {capacity}"),
            (Some(capacity), false) => format!(", over {capacity}"),
        };
        say!(
            "{} in {}{verdict}; no packing is under {} ({:+.3} %); {:.2} s",
            counted(table.buffers.len(), "buffer"),
            counted(packing.height, "byte"),
            packing.lower_bound,
            100.0 * packing.gap(),
            packing.seconds
        );
    }
    Ok(())
}
