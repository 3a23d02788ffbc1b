//! Stops a run when a metric has not become better for some epochs.

use crate::callback::{Callback, EpochEvent, RunPlan, Verdict};
use crate::error::Result;
use crate::watched::Watched;

/// Stops when a metric has not become better for some epochs.
///
/// ```
/// use plimsoll_train::EarlyStopping;
/// let stop = EarlyStopping::new("val_loss", 3).min_delta(1e-3);
/// assert!(!stop.larger_is_better());
/// ```
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    watched: Watched,
    patience: u64,
    best: f64,
    waited: u64,
}

impl EarlyStopping {
    /// Waits for so many epochs without progress in a metric. Losses and errors fall, everything else rises.
    pub fn new(metric: &str, patience: u64) -> EarlyStopping {
        EarlyStopping { watched: Watched::new(metric), patience, best: f64::NAN, waited: 0 }
    }

    /// Only what is better by more than this counts as progress.
    #[must_use]
    pub fn min_delta(mut self, delta: f64) -> EarlyStopping {
        self.watched.min_delta = delta.abs();
        self
    }

    /// Whether progress is up.
    pub fn larger_is_better(&self) -> bool {
        self.watched.larger_is_better()
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> &str {
        "early-stopping"
    }

    fn on_start(&mut self, plan: &RunPlan<'_>) -> Result<()> {
        if plan.step == 0 {
            (self.best, self.waited) = (f64::NAN, 0);
        }
        Ok(())
    }

    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        let value = self.watched.value(epoch, "early stopping")?;
        if self.watched.is_better(value, Some(self.best)) {
            (self.best, self.waited) = (value, 0);
            return Ok(Verdict::GoOn);
        }
        self.waited += 1;
        if self.waited < self.patience {
            return Ok(Verdict::GoOn);
        }
        let by = match self.watched.min_delta {
            0.0 => String::new(),
            delta => format!(" by more than {delta}"),
        };
        Ok(Verdict::Stop(format!(
            "{} has not become better than {}{by} for {}",
            self.watched.metric,
            self.best,
            plimsoll_graph::counted(self.waited, "epoch")
        )))
    }

    fn state(&self) -> Option<serde_json::Value> {
        let metric = &self.watched.metric;
        Some(serde_json::json!({ "metric": metric, "best": self.best, "waited": self.waited }))
    }

    fn restore(&mut self, state: &serde_json::Value) {
        // What was best of another metric says nothing.
        if state["metric"].as_str().is_some_and(|metric| metric != self.watched.metric) {
            return;
        }
        self.best = state["best"].as_f64().unwrap_or(f64::NAN);
        self.waited = state["waited"].as_u64().unwrap_or(0);
    }
}
