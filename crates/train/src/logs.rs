//! Logs for other tools: a table of epochs as CSV, curves for TensorBoard.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use plimsoll_formats::tensorboard::EventWriter;

use crate::callback::{Callback, EpochEvent, StepEvent, Verdict};
use crate::error::{Error, Result};

/// Writes a line of CSV an epoch. A run that goes on from a checkpoint goes on in the same file.
pub struct CsvLog {
    path: PathBuf,
    file: Option<File>,
}

impl CsvLog {
    /// A log at a path.
    pub fn new(path: impl Into<PathBuf>) -> CsvLog {
        CsvLog { path: path.into(), file: None }
    }

    fn write(&mut self, epoch: &EpochEvent) -> std::io::Result<()> {
        let columns = |name: &str| format!(",{name}");
        if self.file.is_none() {
            let file = File::options().create(true).append(true).open(&self.path)?;
            let is_new = file.metadata()?.len() == 0;
            let file = self.file.insert(file);
            if is_new {
                let names: String = epoch.metrics.iter().map(|(name, _)| columns(name)).collect();
                writeln!(
                    file,
                    "epoch,step,loss{names},rate,samples_s,waiting,skipped,resident_bytes,resident_peak_bytes,planned_bytes"
                )?;
            }
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let values: String = epoch.metrics.iter().map(|(_, value)| columns(&value.to_string())).collect();
        let EpochEvent { resident_bytes, resident_peak_bytes, planned_bytes, .. } = *epoch;
        let EpochEvent { epoch, step, loss, rate, samples_s, waiting, skipped, .. } = *epoch;
        writeln!(
            file,
            "{epoch},{step},{loss}{values},{rate},{samples_s},{waiting},{skipped},{resident_bytes},{resident_peak_bytes},{planned_bytes}"
        )
    }
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
            writer.scalar(step.step as i64, "step/loss", step.loss as f32)?;
            writer.scalar(step.step as i64, "step/rate", step.rate as f32)
        })
    }

    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        let at = epoch.step as i64;
        self.with(|writer| {
            writer.scalar(at, "epoch/loss", epoch.loss as f32)?;
            for (name, value) in &epoch.metrics {
                writer.scalar(at, &format!("epoch/{name}"), *value as f32)?;
            }
            writer.scalar(at, "memory/resident", epoch.resident_bytes as f32)?;
            writer.scalar(at, "memory/peak", epoch.resident_peak_bytes as f32)?;
            writer.scalar(at, "memory/planned", epoch.planned_bytes as f32)?;
            writer.flush()
        })?;
        Ok(Verdict::GoOn)
    }
}
