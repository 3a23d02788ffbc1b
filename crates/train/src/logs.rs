//! Logs for other tools: a table of epochs as CSV, curves for TensorBoard.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use plimsoll_formats::tensorboard::EventWriter;

use crate::callback::{Callback, EpochEvent, StepEvent, Verdict};
use crate::error::{Error, Result};

/// Writes a line of CSV an epoch. A run that goes on from a checkpoint goes on in the same file, in the columns that it has:
/// what was not measured then has none, and what is not measured any more is left empty.
pub struct CsvLog {
    path: PathBuf,
    file: Option<(File, Vec<String>)>,
}

impl CsvLog {
    /// A log at a path.
    pub fn new(path: impl Into<PathBuf>) -> CsvLog {
        CsvLog { path: path.into(), file: None }
    }

    fn write(&mut self, epoch: &EpochEvent) -> std::io::Result<()> {
        let cells = cells(epoch);
        if self.file.is_none() {
            let mut columns = Vec::new();
            if let Ok(file) = File::open(&self.path) {
                let mut heading = String::new();
                // A heading of names is short; what has none in so many bytes is no log of ours.
                BufReader::new(file).take(1 << 16).read_line(&mut heading)?;
                columns = heading.split_terminator([',', '\n', '\r']).map(String::from).collect();
            }
            let mut file = File::options().create(true).append(true).open(&self.path)?;
            if columns.is_empty() {
                columns = cells.iter().map(|(name, _)| name.clone()).collect();
                writeln!(file, "{}", columns.join(","))?;
            }
            self.file = Some((file, columns));
        }
        let Some((file, columns)) = &mut self.file else { return Ok(()) };
        let cell = |column: &String| {
            cells.iter().find(|(name, _)| name == column).map_or("", |(_, value)| value.as_str())
        };
        writeln!(file, "{}", columns.iter().map(cell).collect::<Vec<&str>>().join(","))
    }
}

/// An epoch by columns.
fn cells(epoch: &EpochEvent) -> Vec<(String, String)> {
    let cell = |name: &str, value: &dyn std::fmt::Display| (name.to_string(), value.to_string());
    let known =
        |name: &str, value: Option<f64>| (name.to_string(), value.map_or(String::new(), |v| v.to_string()));
    let mut cells = vec![cell("epoch", &epoch.epoch), cell("step", &epoch.step), cell("loss", &epoch.loss)];
    cells.extend(epoch.metrics.iter().map(|(name, value)| cell(name, value)));
    cells.extend([
        cell("rate", &epoch.rate),
        cell("samples_s", &epoch.samples_s),
        cell("waiting", &epoch.waiting),
        cell("skipped", &epoch.skipped),
        known("loss_scale", epoch.loss_scale),
        known("gradient_norm", epoch.gradient_norm),
        known("gradient_norm_max", epoch.gradient_norm_max),
        cell("resident_bytes", &epoch.memory.resident_bytes),
        cell("resident_peak_bytes", &epoch.memory.resident_peak_bytes),
        cell("planned_bytes", &epoch.memory.planned_bytes),
        cell("device_bytes", &epoch.memory.device_bytes),
        cell("device_peak_bytes", &epoch.memory.device_peak_bytes),
        cell("seconds", &epoch.time.seconds),
        cell("step_seconds", &epoch.time.step_seconds),
        cell("waiting_seconds", &epoch.time.waiting_seconds),
        cell("validation_seconds", &epoch.time.validation_seconds),
        cell("uploaded_bytes", &epoch.memory.uploaded_bytes),
        cell("downloaded_bytes", &epoch.memory.downloaded_bytes),
    ]);
    cells
}

impl Callback for CsvLog {
    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        self.write(epoch).map_err(Error::file(&self.path.clone()))?;
        Ok(Verdict::GoOn)
    }
}

/// Writes curves of loss, rate, metrics and memory for TensorBoard.
pub struct TensorBoardLog {
    folder: PathBuf,
    writer: Option<EventWriter<BufWriter<File>>>,
    /// A point of the loss is written every so many steps.
    every: u64,
}

impl TensorBoardLog {
    /// Curves in a folder, which TensorBoard shows as one run.
    pub fn new(folder: impl Into<PathBuf>) -> TensorBoardLog {
        TensorBoardLog { folder: folder.into(), writer: None, every: 10 }
    }

    fn with(
        &mut self,
        write: impl FnOnce(&mut EventWriter<BufWriter<File>>) -> std::io::Result<()>,
    ) -> Result<()> {
        let folder: &Path = &self.folder;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(EventWriter::create(folder).map_err(Error::file(folder))?),
        };
        write(writer).map_err(Error::file(folder))
    }
}

impl Callback for TensorBoardLog {
    fn on_step(&mut self, step: &StepEvent) -> Result<()> {
        if !step.step.is_multiple_of(self.every) {
            return Ok(());
        }
        self.with(|writer| {
            let at = step.step as i64;
            writer.scalar(at, "step/loss", step.loss as f32)?;
            writer.scalar(at, "step/rate", step.rate as f32)?;
            for (name, value) in
                [("step/loss_scale", step.loss_scale), ("step/gradient_norm", step.gradient_norm)]
            {
                if let Some(value) = value {
                    writer.scalar(at, name, value as f32)?;
                }
            }
            Ok(())
        })
    }

    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        let at = epoch.step as i64;
        self.with(|writer| {
            writer.scalar(at, "epoch/loss", epoch.loss as f32)?;
            for (name, value) in &epoch.metrics {
                writer.scalar(at, &format!("epoch/{name}"), *value as f32)?;
            }
            writer.scalar(at, "epoch/skipped", epoch.skipped as f32)?;
            let known =
                [("gradient_norm", epoch.gradient_norm), ("gradient_norm_max", epoch.gradient_norm_max)];
            for (name, value) in known.into_iter().chain([("loss_scale", epoch.loss_scale)]) {
                if let Some(value) = value {
                    writer.scalar(at, &format!("epoch/{name}"), value as f32)?;
                }
            }
            // What the memory limit counts, and what the process takes of the host's memory beside a card's.
            writer.scalar(at, "memory/now", epoch.memory.device_bytes as f32)?;
            writer.scalar(at, "memory/peak", epoch.memory.device_peak_bytes as f32)?;
            writer.scalar(at, "memory/resident", epoch.memory.resident_bytes as f32)?;
            writer.scalar(at, "memory/planned", epoch.memory.planned_bytes as f32)?;
            // On the CPU nothing is copied to a device.
            if epoch.memory.uploaded_bytes + epoch.memory.downloaded_bytes > 0 {
                writer.scalar(at, "copies/uploaded", epoch.memory.uploaded_bytes as f32)?;
                writer.scalar(at, "copies/downloaded", epoch.memory.downloaded_bytes as f32)?;
            }
            writer.flush()
        })?;
        Ok(Verdict::GoOn)
    }
}
