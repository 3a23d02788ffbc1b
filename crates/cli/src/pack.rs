//! `plimsoll pack`: offsets for a file of buffers.

use std::path::PathBuf;

use plimsoll::plan::{csv, pack};

use crate::Failure;

/// Arguments of `plimsoll pack`.
#[derive(clap::Args)]
pub struct Args {
    /// A table with the columns id, lower, upper, size (half-open lifespans) and, if wanted, alignment.
    file: PathBuf,
    /// A height that is good enough, in bytes; without it the lowest is looked for.
    #[arg(long)]
    capacity: Option<u64>,
    /// How long to try.
    #[arg(long)]
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
    let text = std::fs::read_to_string(&args.file).map_err(|e| Failure(format!("{file}: {e}")))?;
    let table = csv::read(&text).map_err(|e| Failure(format!("{file}: {e}")))?;
    let options = args.seconds.map_or_else(pack::Options::default, pack::Options::within);
    let options = pack::Options { capacity: args.capacity, ..options };
    let packing = pack::pack(&table.buffers, &options).map_err(|e| Failure(format!("{file}: {e}")))?;
    if let Some(out) = &args.out {
        let written = std::fs::write(out, csv::write(&table, &packing.offsets));
        written.map_err(|e| Failure(format!("{}: {e}", out.display())))?;
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
            "{} buffers in {} bytes{verdict}; no packing is under {} ({:+.3} %); {:.2} s",
            table.buffers.len(),
            packing.height,
            packing.lower_bound,
            100.0 * packing.gap(),
            packing.seconds
        );
    }
    Ok(())
}
