//! Keeps what happens in a run for the reports on it: a bounded table of steps, and a line for each thing out of the ordinary.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_device::process::Meter;
use plimsoll_run::record::{Event, Steps};
use plimsoll_run::{Counted, Device};

use crate::callback::{Callback, EpochEvent, Notice, RunPlan, StepEvent, Verdict};
use crate::error::{Error, Result};
use crate::stop::Ended;

/// A table of steps has no more lines than this; when it is full, every other one is dropped.
const MOST_ROWS: u64 = 4096;
/// So many lines of notices are kept; of checkpoints, a quarter of that.
const MOST_NOTICES: u64 = 8192;

/// Writes a line of CSV for every step, or for every second, fourth, … step of a long run: loss, rate, speed, what the process
/// takes of the host's memory, and what is on the device: on a card what the memory limit counts, else what tensors hold. Steps that
/// are logged allocate nothing. A run that goes on goes on in the same file, in the columns that it has.
pub struct StepLog {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    meter: Option<Meter>,
    device: Option<Device>,
    rows: u64,
    every: u64,
    /// Epoch, samples, seconds and waiting when the line before was written.
    before: (u64, u64, f64, f64),
    /// What was counted of a card, and when.
    counted: Option<(Instant, Counted)>,
    /// Whether the file has a column for the device's peak.
    has_peaks: bool,
}

/// To ask how much of a card's memory is taken is slow, so that it is done no more often than this.
const COUNT: Duration = Duration::from_millis(500);

impl StepLog {
    /// A log at a path.
    pub fn new(path: impl Into<PathBuf>) -> StepLog {
        StepLog {
            path: path.into(),
            file: None,
            meter: None,
            device: None,
            rows: 0,
            every: 1,
            before: (u64::MAX, 0, 0.0, 0.0),
            counted: None,
            has_peaks: true,
        }
    }

    /// What is on the device now, and was at most.
    fn on_device(&mut self) -> (u64, u64) {
        let Some(device) = &self.device else { return (0, 0) };
        if !device.has_own_memory() {
            let tensors = device.memory_info();
            return (tensors.current.get(), tensors.peak.get());
        }
        let counted = match self.counted {
            Some((when, counted)) if when.elapsed() < COUNT => counted,
            _ => {
                let counted = device.counted();
                self.counted = Some((Instant::now(), counted));
                counted
            }
        };
        (counted.now.get(), counted.peak.get())
    }

    fn open(&mut self) -> std::io::Result<()> {
        self.device = Device::current().ok();
        self.meter = Meter::open();
        let known = File::open(&self.path).map(step_numbers).unwrap_or_default();
        (self.rows, self.every) = (known.0, known.1.max(1));
        let file = File::options().create(true).append(true).open(&self.path)?;
        let is_new = file.metadata()?.len() == 0;
        if !is_new {
            let mut heading = String::new();
            BufReader::new(File::open(&self.path)?).read_line(&mut heading)?;
            self.has_peaks = heading.trim_end().split(',').count() >= Steps::HEADING.split(',').count();
        }
        let file = self.file.insert(BufWriter::with_capacity(1 << 13, file));
        if is_new {
            writeln!(file, "{}", Steps::HEADING)?;
        }
        Ok(())
    }

    fn write(&mut self, step: &StepEvent) -> std::io::Result<()> {
        if self.before.0 != step.epoch {
            self.before = (step.epoch, 0, 0.0, 0.0);
        }
        let (_, seen, seconds, waiting) = self.before;
        let elapsed = (step.seconds - seconds).max(1e-9);
        let samples_s = step.seen.saturating_sub(seen) as f64 / elapsed;
        let waiting = ((step.waiting - waiting) / elapsed).clamp(0.0, 1.0);
        self.before = (step.epoch, step.seen, step.seconds, step.waiting);
        let (now, most) = self.meter.as_mut().and_then(Meter::read).unwrap_or_default();
        let (held, held_most) = self.on_device();
        let has_peaks = self.has_peaks;
        let Some(file) = &mut self.file else { return Ok(()) };
        let (epoch, loss, rate) = (step.epoch + 1, step.loss, step.rate);
        let (now, most) = (now.get(), most.get());
        write!(
            file,
            "{},{epoch},{loss},{rate:e},{samples_s:.2},{waiting:.5},{now},{most},{held}",
            step.step
        )?;
        if has_peaks {
            write!(file, ",{held_most}")?;
        }
        writeln!(file)?;
        self.rows += 1;
        if self.rows >= MOST_ROWS {
            self.thin()?;
        }
        Ok(())
    }

    /// Drops every other line. The file is read a line at a time: a tight run has no room for all of it.
    fn thin(&mut self) -> std::io::Result<()> {
        self.flush()?;
        let thinner = self.path.with_extension("csv.tmp");
        let mut to = BufWriter::new(File::create(&thinner)?);
        let (mut from, mut line) = (BufReader::new(File::open(&self.path)?), String::new());
        let (mut n, mut rows) = (0u64, 0);
        while from.read_line(&mut line)? > 0 {
            // The heading, then the lines of every second step from the second on.
            if n == 0 || n.is_multiple_of(2) {
                to.write_all(line.as_bytes())?;
                rows += u64::from(n > 0);
            }
            line.clear();
            n += 1;
        }
        to.flush()?;
        std::fs::rename(&thinner, &self.path)?;
        let file = File::options().append(true).open(&self.path)?;
        self.file = Some(BufWriter::with_capacity(1 << 13, file));
        (self.rows, self.every) = (rows, self.every * 2);
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// How many lines of steps a log has, and how far apart the last two are.
fn step_numbers(file: File) -> (u64, u64) {
    let (mut rows, mut last, mut apart) = (0, 0, 1);
    let (mut from, mut line) = (BufReader::new(file), String::new());
    while from.read_line(&mut line).is_ok_and(|n| n > 0) {
        if let Some(step) = line.split(',').next().and_then(|step| step.parse::<u64>().ok()) {
            (apart, last, rows) = (step.saturating_sub(last), step, rows + 1);
        }
        line.clear();
    }
    (rows, apart)
}

impl Callback for StepLog {
    fn on_start(&mut self, _: &RunPlan<'_>) -> Result<()> {
        self.open().map_err(Error::file(&self.path))
    }

    fn on_step(&mut self, step: &StepEvent) -> Result<()> {
        if !step.step.is_multiple_of(self.every) {
            return Ok(());
        }
        self.write(step).map_err(Error::file(&self.path))
    }

    fn on_epoch(&mut self, _: &EpochEvent) -> Result<Verdict> {
        self.flush().map_err(Error::file(&self.path))?;
        Ok(Verdict::GoOn)
    }
}

/// Writes a JSON line for each notice: re-plans, steps that were left out, checkpoints, the start and the end.
pub struct NoticeLog {
    path: PathBuf,
    lines: u64,
}

impl NoticeLog {
    /// A log at a path. A run that goes on goes on in the same file.
    pub fn new(path: impl Into<PathBuf>) -> NoticeLog {
        NoticeLog { path: path.into(), lines: 0 }
    }

    /// Adds a line that is no notice: what ended a run, say.
    pub fn add(path: &Path, event: &Event) -> Result<()> {
        let write = || {
            let line = serde_json::to_string(event)?;
            writeln!(File::options().create(true).append(true).open(path)?, "{line}")
        };
        write().map_err(Error::file(path))
    }
}

impl Callback for NoticeLog {
    fn on_start(&mut self, plan: &RunPlan<'_>) -> Result<()> {
        if let Ok(file) = File::open(&self.path) {
            self.lines = BufReader::new(file).split(b'\n').count() as u64;
        }
        let (line, planned) = (plan.limit.map(|line| line.get()), plan.info.planned.get());
        let event = Event::started()
            .with("plimsoll", env!("CARGO_PKG_VERSION"))
            .with("memory_limit_bytes", line)
            .with("planned_bytes", planned);
        NoticeLog::add(&self.path, &event)
    }

    fn on_notice(&mut self, notice: &Notice) -> Result<()> {
        let is_saved = matches!(notice, Notice::Saved { .. });
        if self.lines >= if is_saved { MOST_NOTICES / 4 } else { MOST_NOTICES } {
            return Ok(());
        }
        self.lines += 1;
        NoticeLog::add(&self.path, &notice.to_event())
    }

    fn on_end(&mut self, ended: &Ended) -> Result<()> {
        // What failed is its owner's to tell, who knows more of it.
        if matches!(ended, Ended::Failed { .. }) {
            return Ok(());
        }
        NoticeLog::add(&self.path, &Event::new("ended").with("how", ended.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(step: u64) -> StepEvent {
        let seconds = step as f64 * 0.5;
        StepEvent {
            epoch: 0,
            step,
            samples: 4,
            seen: step * 4,
            loss: 1.0 / step as f64,
            mean_loss: 0.5,
            rate: 1e-3,
            seconds,
            waiting: seconds / 10.0,
            loss_scale: None,
            gradient_norm: None,
        }
    }

    fn steps_in(path: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().skip(1).map(|line| line.split(',').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn a_long_run_is_thinned_out_and_goes_on_as_thin_after_a_stop() {
        let path = std::env::temp_dir().join(format!("plimsoll-steps-{}.csv", std::process::id()));
        std::fs::remove_file(&path).ok();
        let mut log = StepLog::new(&path);
        log.open().unwrap();
        for step in 1..=10_000 {
            log.on_step(&event(step)).unwrap();
        }
        log.flush().unwrap();
        let kept = steps_in(&path);
        assert!((MOST_ROWS / 2..MOST_ROWS).contains(&(kept.len() as u64)), "{}", kept.len());
        assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == 4), "{:?}", &kept[..10]);
        let mut again = StepLog::new(&path);
        again.open().unwrap();
        assert_eq!((again.rows, again.every), (kept.len() as u64, 4));
        let text = std::fs::read_to_string(&path).unwrap();
        let line: Vec<&str> = text.lines().nth(5).unwrap().split(',').collect();
        assert_eq!((line[0], line[4], line[5]), ("20", "8.00", "0.10000"));
        std::fs::remove_file(&path).ok();
    }

    #[test]
    fn notices_are_lines_of_json() {
        let path = std::env::temp_dir().join(format!("plimsoll-notices-{}.jsonl", std::process::id()));
        std::fs::remove_file(&path).ok();
        let mut log = NoticeLog::new(&path);
        log.on_notice(&Notice::Skipped { step: 3, loss_scale: None }).unwrap();
        log.on_end(&Ended::Complete).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["event"], &lines[0]["step"]), (&"skipped".into(), &3.into()));
        assert_eq!((&lines[1]["event"], &lines[1]["how"]), (&"ended".into(), &"complete".into()));
        std::fs::remove_file(&path).ok();
    }
}
