//! `plimsoll runs`: the runs of a folder side by side: what was trained on what, in how much memory, how far it came and how it ended.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use plimsoll::prelude::*;
use serde_json::{Value, json};

use crate::folder::Folder;
use crate::{Failure, named_file};

/// Arguments of `plimsoll runs`.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of runs, or one run.
    #[arg(default_value = "runs")]
    folder: PathBuf,
    /// The metric whose best value is shown, and by which runs are sorted. [default: val_loss, or loss where nothing is held back;
    /// sorted by name]
    #[arg(long, value_name = "METRIC")]
    by: Option<String>,
    /// One JSON line instead of a table.
    #[arg(long)]
    json: bool,
}

/// No more of a table or a log is read: what is longer is no file of a run.
const MOST_BYTES: u64 = 64 << 20;

/// Prints the runs.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut runs =
        found(&args.folder)?.iter().map(|path| Run::read(path, args.by.as_deref())).collect::<Vec<_>>();
    if args.by.is_some() {
        // The best first, and runs that did not measure it last.
        runs.sort_by(|a, b| match (a.best_value(), b.best_value()) {
            (Some(one), Some(other)) if a.is_rising => other.total_cmp(&one),
            (Some(one), Some(other)) => one.total_cmp(&other),
            (one, other) => other.is_some().cmp(&one.is_some()),
        });
    }
    if args.json {
        let rows: Vec<Value> = runs.iter().map(Run::json).collect();
        say!("{}", json!({ "folder": args.folder.display().to_string(), "runs": rows }));
        return Ok(());
    }
    if runs.is_empty() {
        say!("there are no runs in {}", args.folder.display());
        return Ok(());
    }
    table(&runs).iter().for_each(|line| say!("{line}"));
    Ok(())
}

/// The folders of runs: the one that is named, or those in it, by name.
fn found(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    if folder.join("config.toml").is_file() {
        return Ok(vec![folder.to_path_buf()]);
    }
    let shown = folder.display();
    let wanted = "name the folder that runs were written to";
    if !folder.is_dir() {
        let why = if folder.exists() { "is no folder" } else { "is not there" };
        return Err(Failure(format!("{shown} {why}; {wanted}")));
    }
    let entries =
        std::fs::read_dir(folder).map_err(|e| Failure(format!("{shown} cannot be read: {e}; {wanted}")))?;
    let mut runs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("config.toml").is_file())
        .collect();
    // runs/cnn-2 stands before runs/cnn-10.
    runs.sort_by_key(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (stem, number) = name.split_at(name.len() - digits);
        (stem.to_string(), number.parse::<u64>().unwrap_or(0))
    });
    Ok(runs)
}

/// What is known of a run from its files.
struct Run {
    path: PathBuf,
    /// What is wrong with its files, where something is.
    problem: Option<String>,
    model: String,
    data: String,
    memory: Option<String>,
    batch: Option<usize>,
    epochs: u64,
    of_epochs: Option<u64>,
    /// The last epoch's metrics, the loss first.
    last: Vec<(String, f64)>,
    /// The best value of a metric, and its epoch.
    best: Option<(String, f64, u64)>,
    is_rising: bool,
    peak: Option<u64>,
    planned: Option<u64>,
    seconds: f64,
    version: Option<String>,
    ended: String,
}

impl Run {
    fn read(path: &Path, by: Option<&str>) -> Run {
        let folder = Folder::of(path).ok();
        let settings = folder.as_ref().map(Folder::settings);
        let (config, problem) = match settings {
            Some(Ok(config)) => (config, None),
            Some(Err(Failure(why))) => (crate::config::Config::default(), Some(why)),
            None => (crate::config::Config::default(), Some("it is gone".into())),
        };
        let plan = text(&path.join("plan.json")).and_then(|text| serde_json::from_str::<Value>(&text).ok());
        let epochs = Epochs::read(&path.join("metrics.csv"));
        let (ended, version) = ending(path);
        let followed = by.map(String::from).or_else(|| epochs.usual());
        let best = followed.and_then(|metric| epochs.best(&metric));
        Run {
            problem,
            model: config.model.clone().unwrap_or_else(|| "demo".into()),
            data: config.data.clone().unwrap_or_else(|| "digits".into()),
            memory: config.memory.clone(),
            batch: config.samples(),
            epochs: epochs.last_epoch,
            of_epochs: config.epochs,
            is_rising: best.as_ref().is_some_and(|(metric, ..)| rises(metric)),
            last: epochs.last(),
            best,
            peak: epochs.column("device_peak_bytes").map(|bytes| bytes as u64),
            planned: plan.and_then(|plan| plan["planned_bytes"].as_u64()),
            seconds: epochs.seconds,
            version,
            ended,
            path: path.to_path_buf(),
        }
    }

    fn best_value(&self) -> Option<f64> {
        self.best.as_ref().map(|(_, value, _)| *value)
    }

    fn json(&self) -> Value {
        let best = self
            .best
            .as_ref()
            .map(|(metric, value, epoch)| json!({ "metric": metric, "value": value, "epoch": epoch }));
        let last: serde_json::Map<String, Value> =
            self.last.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        json!({
            "run": self.path.display().to_string(), "model": self.model, "data": self.data, "memory": self.memory,
            "batch": self.batch, "epochs": self.epochs, "of_epochs": self.of_epochs, "last": last, "best": best,
            "device_peak_bytes": self.peak, "planned_bytes": self.planned, "seconds": self.seconds,
            "plimsoll": self.version, "ended": self.ended, "problem": self.problem,
        })
    }

    fn cells(&self) -> Vec<String> {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned();
        if let Some(problem) = &self.problem {
            // A parser draws a picture of the place below its first line; a row of a table has no room for it.
            let first = problem.lines().next().unwrap_or_default();
            return vec![name, format!("cannot be read: {first}")];
        }
        let number = |value: f64| format!("{value:.4}");
        let last = self.last.first().map_or("-".into(), |(_, loss)| number(*loss));
        let best = self.best.as_ref().map_or("-".into(), |(metric, value, epoch)| {
            format!("{metric} {} (epoch {epoch})", number(*value))
        });
        vec![
            name,
            self.model.clone(),
            self.data.clone(),
            self.memory.clone().unwrap_or_else(|| "-".into()),
            self.batch.map_or("-".into(), |n| n.to_string()),
            format!("{}/{}", self.epochs, self.of_epochs.map_or("?".into(), |n| n.to_string())),
            last,
            best,
            self.peak.map_or("-".into(), |bytes| Bytes(bytes).to_string()),
            self.ended.clone(),
        ]
    }
}

/// Whether a metric is better the larger it is.
fn rises(metric: &str) -> bool {
    plimsoll::train::EarlyStopping::new(metric, 1).larger_is_better()
}

/// The epochs of a run: its `metrics.csv`.
#[derive(Default)]
struct Epochs {
    heading: Vec<String>,
    rows: Vec<Vec<Option<f64>>>,
    last_epoch: u64,
    seconds: f64,
}

impl Epochs {
    fn read(path: &Path) -> Epochs {
        let Ok(file) = File::open(path) else { return Epochs::default() };
        let mut lines = BufReader::new(file.take(MOST_BYTES)).lines().map_while(Result::ok);
        let heading: Vec<String> = lines.next().unwrap_or_default().split(',').map(String::from).collect();
        let row = |line: String| line.split(',').map(|cell| cell.parse().ok()).collect::<Vec<Option<f64>>>();
        let rows: Vec<Vec<Option<f64>>> = lines.map(row).collect();
        let mut epochs = Epochs { heading, rows, ..Epochs::default() };
        epochs.last_epoch = epochs.column("epoch").map_or(0, |epoch| epoch as u64);
        let at = epochs.at("seconds");
        epochs.seconds = epochs.rows.iter().filter_map(|row| at.and_then(|at| *row.get(at)?)).sum();
        epochs
    }

    fn at(&self, name: &str) -> Option<usize> {
        self.heading.iter().position(|known| known == name)
    }

    /// A column of the last epoch.
    fn column(&self, name: &str) -> Option<f64> {
        *self.rows.last()?.get(self.at(name)?)?
    }

    /// What is measured: the columns from the loss to the learning rate, which stands behind them.
    fn metrics(&self) -> &[String] {
        let (from, to) = (self.at("loss").unwrap_or(0), self.at("rate").unwrap_or(0));
        self.heading.get(from..to).unwrap_or_default()
    }

    fn last(&self) -> Vec<(String, f64)> {
        self.metrics().iter().filter_map(|name| Some((name.clone(), self.column(name)?))).collect()
    }

    /// What is followed where nothing is named.
    fn usual(&self) -> Option<String> {
        ["val_loss", "loss"].into_iter().find(|name| self.at(name).is_some()).map(String::from)
    }

    /// The best value of a metric, and its epoch.
    fn best(&self, metric: &str) -> Option<(String, f64, u64)> {
        let (at, epoch) = (self.at(metric)?, self.at("epoch")?);
        let value = |row: &Vec<Option<f64>>| Some(((*row.get(at)?)?, (*row.get(epoch)?)? as u64));
        let values = self.rows.iter().filter_map(value).filter(|(value, _)| !value.is_nan());
        let best = match rises(metric) {
            true => values.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))),
            false => values.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))),
        };
        best.map(|(value, epoch)| (metric.to_string(), value, epoch))
    }
}

/// How a run ended, and with which version of this program: from its events, and from whether somebody holds its lock.
fn ending(path: &Path) -> (String, Option<String>) {
    let is_held = File::open(path.join("lock"))
        .is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)));
    let (mut ended, mut version) = (None, None);
    for line in text(&path.join("events.jsonl")).unwrap_or_default().lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        match event["event"].as_str() {
            Some("started") => {
                ended = None;
                version = event["plimsoll"].as_str().map(String::from);
            }
            Some("ended") => ended = event["how"].as_str().map(String::from),
            Some("fault") => {
                let why = event["why"].as_str().unwrap_or_default();
                ended = Some(format!("failed: {}", why.lines().next().unwrap_or_default()));
            }
            _ => {}
        }
    }
    let ended = match (is_held, ended) {
        (true, _) => "running".into(),
        (false, Some(how)) => how,
        (false, None) => "cut off".into(),
    };
    (ended, version)
}

fn text(path: &Path) -> Option<String> {
    let is_small = path.metadata().is_ok_and(|about| about.len() <= MOST_BYTES);
    is_small.then(|| named_file::text(path, "a file of a run").ok()).flatten()
}

/// Runs as a table.
fn table(runs: &[Run]) -> Vec<String> {
    let heading = ["run", "model", "data", "limit", "batch", "epochs", "loss", "best", "peak", "ended"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    rows.extend(runs.iter().map(Run::cells));
    // A run that cannot be read has one long cell, which is no column's.
    let whole = rows.iter().filter(|row| row.len() == heading.len());
    let width = |column: usize| whole.clone().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect()
}
