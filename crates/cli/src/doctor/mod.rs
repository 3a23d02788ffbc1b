//! `plimsoll doctor`: looks at the machine, its limits, its disks and its devices, trains a tiny model on each, and says what is wrong.

mod machine;
mod training;

use serde_json::{Value, json};

use crate::{Failure, Stop, device_args};

use plimsoll::internals::graph::counted;
use plimsoll::prelude::*;

/// Arguments of `plimsoll doctor`.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
    /// The folder that runs will be written to. [default: runs, in this folder]
    #[arg(long, value_name = "FOLDER")]
    runs: Option<std::path::PathBuf>,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok,
    /// It will work, and could be better.
    Warning,
    /// Training will fail.
    Broken,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Broken => "broken",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug)]
struct Check {
    name: String,
    status: Status,
    /// What was found.
    found: String,
    /// What to do about it; none where it is well.
    advice: Option<String>,
}

impl Check {
    fn ok(name: impl Into<String>, found: impl Into<String>) -> Check {
        Check { name: name.into(), status: Status::Ok, found: found.into(), advice: None }
    }

    fn warning(name: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { status: Status::Warning, advice: Some(advice.into()), ..Check::ok(name, found) }
    }

    fn broken(name: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { status: Status::Broken, advice: Some(advice.into()), ..Check::ok(name, found) }
    }

    fn json(&self) -> Value {
        let Check { name, status, found, advice } = self;
        json!({ "name": name, "status": status.name(), "found": found, "advice": advice })
    }
}

/// Checks everything; an error where something is broken.
pub fn run(args: &Args) -> Result<(), Stop> {
    let mut checks = Vec::new();
    let mut put = |check: Check| {
        if !args.json {
            say!("{:<8} {}: {}", check.status.name(), check.name, check.found);
            check.advice.iter().for_each(|advice| say!("{:<8} {advice}", ""));
        }
        checks.push(check);
    };
    // The CPU trains before libraries of cards are loaded, since they are counted with its memory.
    put(training::on("cpu", Device::cpu().map_err(Failure::from)));
    let runs = args.runs.as_deref().unwrap_or(std::path::Path::new("runs"));
    machine::checks(runs, device_args::cache_folder().as_deref()).into_iter().for_each(&mut put);
    let survey = Device::survey(device_args::cache_folder().as_deref())?;
    machine::cards(&survey).into_iter().for_each(&mut put);
    for (ordinal, card) in survey.devices.iter().skip(1).enumerate() {
        put(training::on(&card.name, Device::cuda(ordinal).map_err(Failure::from)));
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let (broken, warnings) = (count(Status::Broken), count(Status::Warning));
    if args.json {
        let checks: Vec<Value> = checks.iter().map(Check::json).collect();
        let version = env!("CARGO_PKG_VERSION");
        say!(
            "{}",
            json!({ "version": version, "healthy": broken == 0, "broken": broken, "warnings": warnings, "checks": checks })
        );
    }
    match (broken, warnings) {
        (0, _) if args.json => Ok(()),
        (0, 0) => {
            say!("all is well");
            Ok(())
        }
        (0, n) => {
            say!("nothing is broken; {} could be better", counted(n, "thing"));
            Ok(())
        }
        (n, _) => {
            let names: Vec<&str> = checks
                .iter()
                .filter(|check| check.status == Status::Broken)
                .map(|check| check.name.as_str())
                .collect();
            Err(Stop::Failed(format!("{} broken: {}", counted(n, "check"), names.join(", "))))
        }
    }
}
