//! Who is told what happens in a run, and can have a say in it.

use plimsoll_data::Watch;
use plimsoll_device::Bytes;
use plimsoll_nn::Plateau;
use plimsoll_run::StepInfo;

use crate::error::Result;

/// What a run is about to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// What was planned for a step.
    pub info: &'a StepInfo,
    /// The line, if there is one.
    pub line: Option<Bytes>,
    /// Samples in a batch.
    pub batch: usize,
    /// Trained parameters.
    pub parameters: usize,
    /// Samples of an epoch, where that is known.
    pub samples: Option<u64>,
    /// Epochs to train in all.
    pub epochs: u64,
    /// The epoch to begin or go on with, from 0.
    pub epoch: u64,
    /// Bytes of the input pipeline, at most.
    pub pipeline: Bytes,
}

/// One step that was done.
#[derive(Clone, Copy, Debug)]
pub struct StepEvent {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Updates done in the whole training.
    pub step: u64,
    /// Samples of the batch.
    pub samples: usize,
    /// Samples of the epoch so far.
    pub seen: u64,
    /// The loss of the batch.
    pub loss: f64,
    /// The mean loss of the epoch so far.
    pub mean_loss: f64,
    /// The learning rate.
    pub rate: f64,
    /// Seconds of the epoch so far, and of those, seconds of waiting for input.
    pub seconds: f64,
    /// See above.
    pub waiting: f64,
    /// What the loss is multiplied by, with f16.
    pub loss_scale: Option<f64>,
}

/// One epoch that was done.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EpochEvent {
    /// The epoch, from 1.
    pub epoch: u64,
    /// Updates done in the whole training.
    pub step: u64,
    /// The mean loss of the training data.
    pub loss: f64,
    /// Metrics of the training data, by name; those of the data for validation begin with `val_`, `val_loss` first.
    pub metrics: Vec<(String, f64)>,
    /// Samples a second.
    pub samples_s: f64,
    /// The share of time that was spent waiting for input.
    pub waiting: f64,
    /// The learning rate of the last step.
    pub rate: f64,
    /// Steps that were left out because they were not finite.
    pub skipped: u64,
    /// Samples that were left out because they could not be read.
    pub skipped_samples: u64,
    /// What the process takes now, and took at most, as the system counts it.
    pub resident_bytes: u64,
    /// See above.
    pub resident_peak_bytes: u64,
    /// What the plan has.
    pub planned_bytes: u64,
}

impl EpochEvent {
    /// A metric by name; `loss` is one of them.
    pub fn metric(&self, name: &str) -> Option<f64> {
        if name == "loss" {
            return Some(self.loss);
        }
        self.metrics.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }
}

/// Something out of the ordinary.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A step was left out: the loss or a gradient was not finite.
    Skipped {
        /// Updates done before it.
        step: u64,
        /// The loss scale from now on, with f16.
        loss_scale: Option<f64>,
    },
    /// Memory was refused; the step was planned again and the run goes on.
    Replanned {
        /// Updates done before it.
        step: u64,
        /// What happened.
        why: String,
    },
    /// A checkpoint was written.
    Saved {
        /// Updates done.
        step: u64,
        /// Where.
        path: std::path::PathBuf,
    },
    /// The run goes on from a checkpoint.
    Resumed {
        /// Updates done.
        step: u64,
        /// From where.
        path: std::path::PathBuf,
    },
}

impl Notice {
    /// The notice as a line of a log.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Notice::Skipped { step, loss_scale } => {
                serde_json::json!({ "event": "skipped", "step": step, "loss_scale": loss_scale })
            }
            Notice::Replanned { step, why } => {
                serde_json::json!({ "event": "replanned", "step": step, "why": why })
            }
            Notice::Saved { step, path } => {
                serde_json::json!({ "event": "saved", "step": step, "path": path })
            }
            Notice::Resumed { step, path } => {
                serde_json::json!({ "event": "resumed", "step": step, "path": path })
            }
        }
    }
}

/// What a callback wants after an epoch.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Verdict {
    /// To go on.
    #[default]
    GoOn,
    /// To stop, and why.
    Stop(String),
    /// To go on with the learning rate multiplied by this, beside any schedule.
    Rate(f64),
}

/// Someone who follows a run. Steps must not be slowed down: [`Callback::on_step`] is called after every one.
pub trait Callback: Send {
    /// Before the first step.
    fn on_start(&mut self, _plan: &Plan<'_>) -> Result<()> {
        Ok(())
    }

    /// Once the pipeline of the run is there: a view of it.
    fn on_pipeline(&mut self, _watch: &Watch) -> Result<()> {
        Ok(())
    }

    /// After every step.
    fn on_step(&mut self, _step: &StepEvent) -> Result<()> {
        Ok(())
    }

    /// Whether to end the run after this step. A checkpoint is written where there is a place for one, so that the rest of
    /// the epoch can be done later.
    fn wants_to_stop(&mut self) -> bool {
        false
    }

    /// After every epoch.
    fn on_epoch(&mut self, _epoch: &EpochEvent) -> Result<Verdict> {
        Ok(Verdict::GoOn)
    }

    /// When something out of the ordinary happens.
    fn on_notice(&mut self, _notice: &Notice) -> Result<()> {
        Ok(())
    }

    /// After the last epoch.
    fn on_end(&mut self) -> Result<()> {
        Ok(())
    }

    /// What must be in a checkpoint for it to go on as if nothing had happened.
    fn state(&self) -> Option<serde_json::Value> {
        None
    }

    /// Takes up what [`Callback::state`] gave.
    fn restore(&mut self, _state: &serde_json::Value) {}
}

/// Stops when a metric has not become better for some epochs.
///
/// ```
/// use plimsoll_train::EarlyStopping;
/// let stop = EarlyStopping::new("val_loss", 3);
/// assert!(!stop.larger_is_better());
/// ```
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    metric: String,
    patience: u64,
    best: f64,
    waited: u64,
}

impl EarlyStopping {
    /// Waits for so many epochs without progress in a metric. Losses and errors fall, everything else rises.
    pub fn new(metric: &str, patience: u64) -> EarlyStopping {
        EarlyStopping { metric: metric.into(), patience, best: f64::NAN, waited: 0 }
    }

    /// Whether progress is up.
    pub fn larger_is_better(&self) -> bool {
        ![
            "loss",
            "mae",
            "mse",
            "mape",
            "msle",
            "rmse",
            "error",
            "entropy",
            "crossentropy",
            "perplexity",
            "divergence",
            "poisson",
        ]
        .iter()
        .any(|down| self.metric.ends_with(down))
    }
}

impl Callback for EarlyStopping {
    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        let Some(value) = epoch.metric(&self.metric) else {
            let names: Vec<&str> = epoch.metrics.iter().map(|(name, _)| name.as_str()).collect();
            let why = format!(
                "early stopping waits for {}, but there are only loss, {}",
                self.metric,
                names.join(", ")
            );
            return Err(crate::Error::Mismatch(why));
        };
        let better = if self.larger_is_better() { value > self.best } else { value < self.best };
        if better || self.best.is_nan() {
            (self.best, self.waited) = (value, 0);
            return Ok(Verdict::GoOn);
        }
        self.waited += 1;
        if self.waited < self.patience {
            return Ok(Verdict::GoOn);
        }
        Ok(Verdict::Stop(format!(
            "{} has not become better than {} for {} epochs",
            self.metric, self.best, self.waited
        )))
    }

    fn state(&self) -> Option<serde_json::Value> {
        Some(serde_json::json!({ "best": self.best, "waited": self.waited }))
    }

    fn restore(&mut self, state: &serde_json::Value) {
        self.best = state["best"].as_f64().unwrap_or(f64::NAN);
        self.waited = state["waited"].as_u64().unwrap_or(0);
    }
}

/// Lowers the learning rate when a metric has stopped falling.
#[derive(Clone, Debug)]
pub struct ReduceOnPlateau {
    metric: String,
    plateau: Plateau,
}

impl ReduceOnPlateau {
    /// Follows a metric; `plateau` says when and by how much.
    pub fn new(metric: &str, plateau: Plateau) -> ReduceOnPlateau {
        ReduceOnPlateau { metric: metric.into(), plateau }
    }
}

impl Callback for ReduceOnPlateau {
    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        let before = self.plateau.current;
        let after = self.plateau.observe(epoch.metric(&self.metric).unwrap_or(epoch.loss));
        Ok(if after == before { Verdict::GoOn } else { Verdict::Rate(after / before) })
    }

    fn state(&self) -> Option<serde_json::Value> {
        let Plateau { best, waited, current, .. } = self.plateau;
        Some(serde_json::json!({ "best": best, "waited": waited, "current": current }))
    }

    fn restore(&mut self, state: &serde_json::Value) {
        self.plateau.best = state["best"].as_f64().unwrap_or(f64::INFINITY);
        self.plateau.waited = state["waited"].as_u64().unwrap_or(0);
        self.plateau.current = state["current"].as_f64().unwrap_or(1.0);
    }
}
