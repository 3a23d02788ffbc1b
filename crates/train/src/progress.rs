//! What people see of a run: a bar on a terminal, lines elsewhere, JSON for programs.

use std::io::IsTerminal;
use std::path::PathBuf;

use indicatif::{ProgressBar as Bar, ProgressStyle};
use plimsoll_device::{Bytes, process};
use plimsoll_run::{Device, HostAccount};

use crate::callback::{Callback, EpochEvent, Notice, RunPlan, StepEvent, Verdict};
use crate::error::Result;
use crate::eta::Eta;
use crate::stop::{Ended, shown};

/// The bar is redrawn at most every so many seconds.
const REDRAW: f64 = 0.1;

/// Prints a line; where nobody reads any more it is lost, and the run goes on.
fn print_line(text: &str) {
    crate::output::line(format_args!("{text}"));
}

/// A bar with step, loss, samples a second, the share of waiting for input, bytes of the memory limit, and the time that is left of the
/// epoch and of the run. Where the output is no terminal, a line an epoch.
#[derive(Default)]
pub struct ProgressBar {
    bar: Option<Bar>,
    limit: Option<Bytes>,
    planned: Bytes,
    epochs: u64,
    drawn: f64,
    eta: Eta,
    /// Whose memory the limit is of.
    device: Option<Device>,
    /// The account of the host's memory beside a device's own.
    host: Option<HostAccount>,
}

impl ProgressBar {
    /// A bar.
    pub fn new() -> ProgressBar {
        ProgressBar::default()
    }

    fn say(&self, text: String) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => print_line(&text),
        }
    }

    fn load(&self) -> String {
        let now = match &self.device {
            Some(device) => device.counted().now,
            None => process::resident().unwrap_or(Bytes::ZERO),
        };
        let now = match self.limit {
            Some(limit) => format!("{now} of {limit}"),
            None => now.to_string(),
        };
        let host = process::resident().unwrap_or(Bytes::ZERO);
        match self.host.map(|account| account.limit) {
            None => now,
            Some(None) => format!("{now}, host {host}"),
            Some(Some(limit)) => format!("{now}, host {host} of {limit}"),
        }
    }
}

impl Callback for ProgressBar {
    fn on_start(&mut self, plan: &RunPlan<'_>) -> Result<()> {
        let info = plan.info;
        let again = match (info.micro_batches, info.recomputed_ops) {
            (1, 0) => "nothing is recomputed".to_string(),
            (1, 1) => "1 op recomputed instead of kept".into(),
            (1, ops) => format!("{ops} ops recomputed instead of kept"),
            (parts, ops) => {
                format!("batch in {parts} micro-batches, {} recomputed", plimsoll_graph::counted(ops, "op"))
            }
        };
        let again = match info.copies() {
            None => again,
            Some(copies) => format!("{again}, {copies}"),
        };
        let limit = plan.limit.map_or("no memory limit".to_string(), |limit| format!("memory limit {limit}"));
        print_line(&format!(
            "{limit}: {} planned for the whole process, {:.1} ms a step; {again} ({})\n\
             unlimited it would take {:#} and {:.1} ms; the least is {:#}",
            info.planned,
            info.predicted_seconds * 1e3,
            info.exactness,
            info.unlimited,
            info.unlimited_seconds * 1e3,
            info.floor
        ));
        if let Some(host) = &info.host {
            print_line(&host.text());
        }
        (self.limit, self.planned, self.epochs) = (plan.limit, info.planned, plan.epochs);
        self.host = info.host;
        (self.eta, self.device) = (Eta::new(plan), Device::current().ok());
        if std::io::stderr().is_terminal() {
            let style = "{prefix} {wide_bar} {pos}/{len} {msg}";
            let bar = Bar::new(plan.samples.unwrap_or(0));
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        }
        Ok(())
    }

    fn on_step(&mut self, step: &StepEvent) -> Result<()> {
        self.eta.step(step);
        let Some(bar) = &self.bar else { return Ok(()) };
        if step.seconds - self.drawn < REDRAW && step.seconds >= self.drawn {
            return Ok(());
        }
        self.drawn = step.seconds;
        bar.set_prefix(format!("epoch {}/{}", step.epoch + 1, self.epochs));
        bar.set_position(step.seen);
        let seconds = step.seconds.max(1e-9);
        let (speed, waiting) = (step.seen as f64 / seconds, 100.0 * (step.waiting / seconds).min(1.0));
        let load = self.load();
        let left = self.eta.left().map_or(String::new(), |left| format!("  {left}"));
        bar.set_message(format!(
            "loss {:.4}  {speed:.0} samples/s  waiting {waiting:.0}%  {load}{left}",
            step.mean_loss
        ));
        Ok(())
    }

    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        self.drawn = 0.0;
        self.eta.epoch(epoch);
        let metrics: String =
            epoch.metrics.iter().map(|(name, value)| format!("  {name} {value:.4}")).collect();
        let peak = Bytes(epoch.memory.device_peak_bytes);
        let of = self.limit.map_or(String::new(), |line| format!(" of {line}"));
        let host = self.host.map_or(String::new(), |account| {
            let of = account.limit.map_or(String::new(), |limit| format!(" of {limit}"));
            format!("  host peak {}{of}", Bytes(epoch.memory.resident_peak_bytes))
        });
        let left_out = match epoch.skipped_samples {
            0 => String::new(),
            n => format!("  {n} unreadable samples skipped so far"),
        };
        self.say(format!(
            "epoch {:3}  loss {:.4}{metrics}  {:.0} samples/s  waiting {:.0}%  peak {peak}{of}{host}{left_out}",
            epoch.epoch,
            epoch.loss,
            epoch.samples_s,
            100.0 * epoch.waiting
        ));
        Ok(Verdict::GoOn)
    }

    fn on_notice(&mut self, notice: &Notice) -> Result<()> {
        match notice {
            Notice::Skipped { step, loss_scale } => {
                let scale =
                    loss_scale.map_or(String::new(), |scale| format!("; the loss scale is now {scale}"));
                self.say(format!("after step {step}: a batch was left out, it was not finite{scale}"));
            }
            Notice::Replanned { step, why } => {
                self.say(format!("after step {step}: planned again, because {why}"))
            }
            Notice::Resumed { step, path } => {
                self.say(format!("going on after step {step} from {}", path.display()))
            }
            Notice::DamagedCheckpoint { path, why } => self
                .say(format!("the checkpoint {} is damaged, an older one is taken: {why}", path.display())),
            Notice::Remarked { what, .. } => self.say(format!("note: {what}")),
            Notice::Rehearsed { step, what } => self.say(format!("after step {step}: {what}")),
            Notice::Restored { epoch, .. } => {
                self.say(format!("the weights are those of epoch {epoch}, the best"))
            }
            Notice::Saved { .. } | Notice::Best { .. } => {}
        }
        Ok(())
    }

    fn on_end(&mut self, _: &Ended) -> Result<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        Ok(())
    }
}

/// One JSON line an epoch, one for each notice, and one at the end that says how the run ended.
#[derive(Default)]
pub struct JsonLines {
    floor: u64,
    info: Option<serde_json::Value>,
    /// The folder of the run, until it has been told.
    run: Option<PathBuf>,
    ends_later: bool,
}

impl JsonLines {
    /// Lines on the standard output.
    pub fn new() -> JsonLines {
        JsonLines::default()
    }

    /// The folder of the run: it is the first line, before any other.
    #[must_use]
    pub fn run(mut self, folder: impl Into<PathBuf>) -> JsonLines {
        self.run = Some(folder.into());
        self
    }

    /// Leaves the last line to the owner, who prints [`Ended::to_json`] once the model is written.
    #[must_use]
    pub fn ends_later(mut self) -> JsonLines {
        self.ends_later = true;
        self
    }

    fn print(&mut self, line: &serde_json::Value) {
        if let Some(folder) = self.run.take() {
            print_line(&serde_json::json!({ "event": "run", "run": shown(&folder) }).to_string());
        }
        print_line(&line.to_string());
    }
}

impl Callback for JsonLines {
    fn on_start(&mut self, plan: &RunPlan<'_>) -> Result<()> {
        self.floor = plan.info.floor.get();
        let info = plan.info;
        let host = info.host.unwrap_or_default();
        let (host_bytes, disk_bytes) = info.taken_elsewhere();
        let value = serde_json::json!({
            "event": "plan", "memory_limit_bytes": plan.limit.map(Bytes::get), "planned_bytes": info.planned.get(),
            "floor_bytes": info.floor.get(), "unlimited_bytes": info.unlimited.get(),
            "predicted_ms": info.predicted_seconds * 1e3, "unlimited_ms": info.unlimited_seconds * 1e3,
            "micro_batches": info.micro_batches, "recomputed_ops": info.recomputed_ops, "exactness": info.exactness,
            "host_bytes": host_bytes.get(), "disk_bytes": disk_bytes.get(), "hosted_bytes": info.hosted_bytes.get(), "offloaded_bytes": info.offloaded_bytes.get(),
            "offloaded_copies": info.offloaded_copies,
            "host_limit_bytes": host.limit.map(Bytes::get), "host_limit_given": host.is_given, "host_planned_bytes": host.planned().get(),
            "pipeline_bytes": plan.pipeline.get(), "parameters": plan.parameters, "batch": plan.batch,
            "plan_seconds": info.plan_seconds,
        });
        self.print(&value);
        self.info = Some(value);
        Ok(())
    }

    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        let mut line = serde_json::json!({
            "event": "epoch", "epoch": epoch.epoch, "step": epoch.step, "loss": epoch.loss, "rate": epoch.rate,
            "samples_s": epoch.samples_s, "waiting": epoch.waiting, "skipped": epoch.skipped,
            "skipped_samples": epoch.skipped_samples, "seconds": epoch.time.seconds, "step_seconds": epoch.time.step_seconds,
            "waiting_seconds": epoch.time.waiting_seconds, "validation_seconds": epoch.time.validation_seconds,
            "device_bytes": epoch.memory.device_bytes, "device_peak_bytes": epoch.memory.device_peak_bytes,
            "resident_bytes": epoch.memory.resident_bytes, "resident_peak_bytes": epoch.memory.resident_peak_bytes,
            "planned_bytes": epoch.memory.planned_bytes, "loss_scale": epoch.loss_scale,
            "gradient_norm": epoch.gradient_norm, "gradient_norm_max": epoch.gradient_norm_max,
            "floor_bytes": self.floor,
            "uploaded_bytes": epoch.memory.uploaded_bytes, "downloaded_bytes": epoch.memory.downloaded_bytes,
        });
        for (name, value) in &epoch.metrics {
            line[name] = serde_json::json!(value);
        }
        for name in ["micro_batches", "recomputed_ops", "exactness"] {
            line[name] = self.info.as_ref().map_or(serde_json::Value::Null, |info| info[name].clone());
        }
        self.print(&line);
        Ok(Verdict::GoOn)
    }

    fn on_notice(&mut self, notice: &Notice) -> Result<()> {
        self.print(&notice.to_json());
        Ok(())
    }

    fn on_end(&mut self, ended: &Ended) -> Result<()> {
        if !self.ends_later {
            self.print(&ended.to_json(None));
        }
        Ok(())
    }
}
