//! `plimsoll report`: the records of a run or a plan in; a page, a trace or one JSON document out.

use std::path::{Path, PathBuf};

use plimsoll::internals::run::record::{Frontier, Plan};
use plimsoll::prelude::*;
use plimsoll_report::{page, read, trace};

use crate::Failure;
use crate::folder::Folder;
use crate::out;
use crate::records;
use crate::setup::Setup;

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
    let mut record = read(&args.what)?;
    let is_run = args.what.is_dir();
    let page_at = match (&args.out, &args.perfetto) {
        _ if args.json => None,
        (Some(path), _) => Some(path.clone()),
        (None, Some(_)) => None,
        (None, None) if is_run => Some(args.what.join("report.html")),
        (None, None) => Some(args.what.with_extension("html")),
    };
    // Before anything is planned or written.
    args.perfetto.iter().try_for_each(|path| out::check(path, "--perfetto", &args.what))?;
    page_at.iter().try_for_each(|path| out::check(path, "--out", &args.what))?;
    if page_at.as_ref().is_some_and(|page| args.perfetto.as_ref().is_some_and(|trace| page == trace)) {
        return Err(Failure("the page and the trace cannot be one file; name two".into()));
    }
    if is_run && record.frontier.is_none() {
        match frontier(&args.what, &record.plan) {
            Ok(found) => record.frontier = Some(found),
            // Nothing else of the report needs the model or its data.
            Err(Failure(why)) => eprintln!("plimsoll: the report has no other plans beside this one: {why}"),
        }
    }
    if args.json {
        say!("{}", serde_json::to_string(&record)?);
    }
    if let Some(path) = &args.perfetto {
        out::write(path, &trace(&record).to_string(), "--perfetto", &args.what)?;
        say!("{} opens in ui.perfetto.dev", path.display());
    }
    if let Some(path) = page_at {
        out::write(&path, &page(&record)?, "--out", &args.what)?;
        say!("{} opens in any browser", path.display());
    }
    Ok(())
}

/// Plans the run's step again for other memory limits, and keeps what is found beside the run's other records. It is planned with the
/// times and for the process that the run had, so that the run's own plan is one of those that are found; where it is not
/// (another machine, another version), nothing is found, rather than something that contradicts the run.
fn frontier(folder: &Path, plan: &Plan) -> Result<Frontier, Failure> {
    let Some(outside) = plan.outside_bytes.map(Bytes) else {
        return Err(Failure("the run is of a version that did not keep what they need".into()));
    };
    let folder = Folder::of(folder)?;
    let config = folder.settings()?;
    let device = crate::device_args::device(&config)?;
    if !device.has_times_in(&folder.times()) {
        return Err(Failure(format!("{} has no kernel times of this machine", folder.path().display())));
    }
    device.recall_times(&folder.times());
    let Setup { trainer, train, .. } = device.scope(|| Setup::new(&config, &device))?;
    let trainer = trainer.memory_limit_bytes(plan.memory_limit_bytes.map(Bytes));
    let (own, found) =
        trainer.frontier_outside(&train, outside, records::FRONTIER_LINES, Some(records::FRONTIER_TIME))?;
    let is_same_time = (own.predicted_seconds * 1e3 - plan.predicted_ms).abs() <= 1e-6 * plan.predicted_ms;
    if own.planned.get() != plan.planned_bytes || !is_same_time {
        let why =
            "its step is planned otherwise today; other plans would not compare with the one that was run";
        return Err(Failure(why.into()));
    }
    let found = records::frontier_of_run(&found, &own, Bytes(plan.floor_bytes));
    if !found.agrees_with(plan) {
        return Err(Failure("what is found today contradicts what was planned then".into()));
    }
    // A folder that cannot be written to costs the next report its time and nothing else.
    folder.record(&folder.path().join("frontier.json"), &found).ok();
    Ok(found)
}
