//! `plimsoll report`: the records of a run or a plan in; a page, a trace or one JSON document out.

use std::path::{Path, PathBuf};

use plimsoll_report::{Record, page, trace};

use crate::Failure;
use crate::chosen::{Chosen, Purpose};
use crate::config::Config;
use crate::folder::Folder;
use crate::records;
use crate::source::Source;

/// Arguments of `plimsoll report`.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a run (`plimsoll train`), or a plan (`plimsoll plan --out`).
    #[arg(value_name = "RUN | PLAN")]
    what: PathBuf,
    /// Where the page goes; by default `report.html` in the run's folder, or beside the plan.
    #[arg(short, long)]
    out: Option<PathBuf>,
    /// Writes the step as a Chrome trace with memory counters, which ui.perfetto.dev opens; the page too only where --out asks for it.
    #[arg(long, value_name = "TRACE.json")]
    perfetto: Option<PathBuf>,
    /// Prints the whole record as JSON instead of writing a page.
    #[arg(long, conflicts_with_all = ["out", "perfetto"])]
    json: bool,
}

/// Reads the record and writes what is asked for.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut record = Record::read(&args.what)?;
    if args.what.is_dir() && record.frontier.is_none() {
        match frontier(&args.what) {
            Ok(found) => record.frontier = Some(serde_json::from_value(found)?),
            // Nothing else of the report needs the model or its data.
            Err(Failure(why)) => eprintln!("plimsoll: the report has no other plans beside this one: {why}"),
        }
    }
    if args.json {
        say!("{}", serde_json::to_string(&record)?);
        return Ok(());
    }
    if let Some(path) = &args.perfetto {
        write(path, &trace(&record).to_string())?;
        say!("{} opens in ui.perfetto.dev", path.display());
        if args.out.is_none() {
            return Ok(());
        }
    }
    let out = match &args.out {
        Some(path) => path.clone(),
        None if args.what.is_dir() => args.what.join("report.html"),
        None => args.what.with_extension("html"),
    };
    write(&out, &page(&record)?)?;
    say!("{} opens in any browser", out.display());
    Ok(())
}

/// Plans the run's step again for other lines, and keeps what is found beside the run's other records.
fn frontier(folder: &Path) -> Result<serde_json::Value, Failure> {
    let folder = Folder::of(folder)?;
    let config = Config::read(&folder.config())?;
    let source = Source::open(&config, Purpose::Train)?;
    let chosen = Chosen::new(&config, source.model, &source.train, source.classes, Purpose::Train)?;
    let batch = config.batch.unwrap_or(1);
    let mut trainer = chosen.trainer(&config, &source.train, crate::train::device(&config, None)?)?;
    if let Some(test) = source.test {
        trainer = trainer.validation(test.batch(batch));
    }
    let train = source.train.shuffle(1 << 14, config.seed.unwrap_or(42)).batch(batch);
    let found = trainer.frontier(&train, records::FRONTIER_LINES, Some(records::FRONTIER_TIME))?;
    let found = records::frontier(&found);
    folder.write(&folder.path().join("frontier.json"), &found.to_string())?;
    Ok(found)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let written = plimsoll::formats::durable::write_file(path, |out| out.write_all(text.as_bytes()));
    written.map_err(|e| Failure(format!("{}: {e}", path.display())))
}
