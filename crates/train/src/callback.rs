//! Who is told what happens in a run, and can have a say in it.

use plimsoll_data::Watch;
use plimsoll_device::Bytes;
use plimsoll_nn::{Measure, Plateau};
use plimsoll_run::PlanFigures;
use plimsoll_run::record::{Event, Ranks};

use crate::error::Result;
use crate::live::LiveModel;
use crate::predict::Evaluation;
use crate::stop::{Ended, shown};
use crate::watched::Watched;

/// What a run is about to do.
#[derive(Clone, Copy, Debug)]
pub struct RunPlan<'a> {
    /// What was planned for a step.
    pub info: &'a PlanFigures,
    /// The memory limit, if there is one.
    pub limit: Option<Bytes>,
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
    /// Updates done before.
    pub step: u64,
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
    /// Seconds of the epoch so far.
    pub seconds: f64,
    /// Of those, seconds in which nothing was computed because the next batch was not there.
    pub waiting: f64,
    /// What the loss is multiplied by, with f16.
    pub loss_scale: Option<f64>,
    /// The norm of all gradients together before they were clipped, where they are clipped by it.
    pub gradient_norm: Option<f64>,
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
    /// Samples a second of training, validation not counted.
    pub samples_s: f64,
    /// The share of the time of training in which nothing was computed, because the next batch was not there.
    pub waiting: f64,
    /// The learning rate of the last step.
    pub rate: f64,
    /// Steps that were left out because they were not finite.
    pub skipped: u64,
    /// What the loss is multiplied by after the last step, with f16.
    pub loss_scale: Option<f64>,
    /// The mean norm of the epoch's gradients before they were clipped, where they are clipped by it.
    pub gradient_norm: Option<f64>,
    /// The largest of those norms.
    pub gradient_norm_max: Option<f64>,
    /// Samples that were left out because they could not be read.
    pub skipped_samples: u64,
    /// Where its time went.
    #[serde(flatten)]
    pub time: EpochTime,
    /// The memory it took.
    #[serde(flatten)]
    pub memory: EpochMemory,
    /// What each rank came to, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Ranks>,
}

/// Where the time of an epoch went.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct EpochTime {
    /// Seconds of the epoch in all: steps, waiting, validation, and what callbacks and checkpoints took between steps.
    pub seconds: f64,
    /// Of those, seconds of steps.
    pub step_seconds: f64,
    /// Of those, seconds of waiting for input.
    pub waiting_seconds: f64,
    /// Of those, seconds of validation.
    pub validation_seconds: f64,
}

/// Memory at the end of an epoch, and the most there was of it.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct EpochMemory {
    /// What the memory limit counts, now: the process's memory on a card, else its resident set. See
    /// [`Device::counted`](plimsoll_run::Device::counted).
    pub device_bytes: u64,
    /// The most there was of it.
    pub device_peak_bytes: u64,
    /// What the process takes of the host's memory now, as the system counts it.
    pub resident_bytes: u64,
    /// The most it took of that.
    pub resident_peak_bytes: u64,
    /// What the plan has.
    pub planned_bytes: u64,
    /// Bytes that went from the host to a card in the epoch's steps: batches, offloaded activations, hosted state. See
    /// [`Device::traffic`](plimsoll_run::Device::traffic).
    pub uploaded_bytes: u64,
    /// Bytes that went from a card to the host in the epoch's steps.
    pub downloaded_bytes: u64,
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
    /// A checkpoint is damaged, and an older one is gone on from.
    DamagedCheckpoint {
        /// Which one.
        path: std::path::PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An epoch is the best so far, and its checkpoint was written.
    Best {
        /// Updates done.
        step: u64,
        /// The epoch, from 1.
        epoch: u64,
        /// What it is the best of.
        metric: String,
        /// The metric's value.
        value: f64,
        /// Where.
        path: std::path::PathBuf,
    },
    /// The run is over, and the weights are those of its best epoch.
    Restored {
        /// Updates done at that epoch's end.
        step: u64,
        /// The epoch, from 1.
        epoch: u64,
        /// From where.
        path: std::path::PathBuf,
    },
    /// Something about the step that is rarely meant, once a run: f64 tensors among narrower ones, by name.
    Remarked {
        /// Updates done before it.
        step: u64,
        /// What it is.
        what: String,
    },
    /// A fault that was asked for came, or never did.
    Rehearsed {
        /// Updates done before it.
        step: u64,
        /// What was done.
        what: String,
    },
}

impl Notice {
    /// The notice as JSON, as a run's record has it.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!(self.to_event())
    }

    /// The notice as an event of the run's record.
    pub fn to_event(&self) -> Event {
        match self {
            Notice::Skipped { step, loss_scale } => {
                Event::new("skipped").at(*step).with("loss_scale", *loss_scale)
            }
            Notice::Replanned { step, why } => Event::new("replanned").at(*step).because(why.clone()),
            Notice::Saved { step, path } => Event::new("saved").at(*step).with("path", shown(path)),
            Notice::Resumed { step, path } => Event::new("resumed").at(*step).with("path", shown(path)),
            Notice::DamagedCheckpoint { path, why } => {
                Event::new("damaged").because(why.clone()).with("path", shown(path))
            }
            Notice::Best { step, epoch, metric, value, path } => Event::new("best")
                .at(*step)
                .with("epoch", *epoch)
                .with("metric", metric.as_str())
                .with("value", *value)
                .with("path", shown(path)),
            Notice::Restored { step, epoch, path } => {
                Event::new("restored").at(*step).with("epoch", *epoch).with("path", shown(path))
            }
            Notice::Remarked { step, what } => Event::new("remarked").at(*step).because(what.clone()),
            Notice::Rehearsed { step, what } => Event::new("rehearsed").at(*step).because(what.clone()),
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

/// What happens in an evaluation: of the data for validation, or in [`Trainer::evaluate`](crate::Trainer::evaluate).
#[derive(Clone, Copy)]
pub enum Evaluating<'a> {
    /// It begins.
    Begun,
    /// So many batches were evaluated, with this mean loss of all samples so far.
    Batch {
        /// Batches so far.
        done: u64,
        /// The mean loss so far.
        loss: f64,
        /// What is counted beside it, and the sums so far.
        counted: (&'a [Measure], &'a [Vec<f64>]),
    },
    /// It is over.
    Ended(&'a Evaluation),
}

impl Evaluating<'_> {
    /// The loss and the metrics so far, by name; none at the beginning.
    pub fn figures(&self) -> Vec<(String, f64)> {
        let named = |loss: f64| ("loss".to_string(), loss);
        match self {
            Evaluating::Begun => Vec::new(),
            Evaluating::Batch { loss, counted: (measures, sums), .. } => {
                let value =
                    |(measure, sums): (&Measure, &Vec<f64>)| (measure.name.clone(), measure.finish(sums));
                [named(*loss)].into_iter().chain(measures.iter().zip(*sums).map(value)).collect()
            }
            Evaluating::Ended(found) => {
                [named(found.loss)].into_iter().chain(found.metrics.iter().cloned()).collect()
            }
        }
    }
}

/// Someone who follows a run. Steps must not be slowed down: [`Callback::on_step`] is called after every one.
pub trait Callback: Send {
    /// What tells it from other kinds of callbacks, so that it finds what it kept in a checkpoint.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }

    /// Before the first step.
    fn on_start(&mut self, _plan: &RunPlan<'_>) -> Result<()> {
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

    /// Whether to end the run after this step, or instead of the rest of a validation. A checkpoint is written where there is a
    /// place for one, so that the rest of the epoch can be done later. It is asked often, also while input is waited for.
    fn wants_to_stop(&mut self) -> bool {
        false
    }

    /// After every epoch.
    fn on_epoch(&mut self, _epoch: &EpochEvent) -> Result<Verdict> {
        Ok(Verdict::GoOn)
    }

    /// Whether the model is to be evaluated on the data for validation after an epoch, from 1. Where one says no, it is not.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Sequential, Sgd, softmax_cross_entropy};
    /// use plimsoll_train::{Callback, Epochs, Trainer};
    /// struct EverySecond;
    /// impl Callback for EverySecond {
    ///     fn wants_validation(&mut self, epoch: u64) -> plimsoll_train::Result<bool> {
    ///         Ok(epoch % 2 == 0)
    ///     }
    /// }
    /// # let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
    /// # let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
    /// # let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(20);
    /// let model = Sequential::new([2]).dense(8).relu().dense(2);
    /// let mut trainer = Trainer::new(model, softmax_cross_entropy, Sgd::new(0.5)).callback(EverySecond).validation(data.clone());
    /// let history = trainer.fit(&data, Epochs(2))?;
    /// assert_eq!((history[0].metric("val_loss"), history[1].metric("val_loss").is_some()), (None, true));
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    fn wants_validation(&mut self, _epoch: u64) -> Result<bool> {
        Ok(true)
    }

    /// As an evaluation begins, after each of its batches, and when it is over.
    fn on_evaluation(&mut self, _event: &Evaluating<'_>) -> Result<()> {
        Ok(())
    }

    /// After every step, with the model itself: to look at weights or change them, or the learning rate. Reading weights of a card waits for
    /// it, so look seldom.
    fn on_step_model(&mut self, _step: &StepEvent, _model: &mut LiveModel<'_>) -> Result<()> {
        Ok(())
    }

    /// After every epoch, with the model itself.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Sequential, Sgd, softmax_cross_entropy};
    /// use plimsoll_train::{Callback, EpochEvent, Epochs, LiveModel, Result, Trainer};
    /// // Keeps weights between -0.1 and 0.1, and halves the learning rate after every epoch.
    /// struct Bounded;
    /// impl Callback for Bounded {
    ///     fn on_epoch_model(&mut self, _: &EpochEvent, model: &mut LiveModel<'_>) -> Result<()> {
    ///         let names: Vec<String> = model.parameters().map(|(param, _)| param.name.clone()).collect();
    ///         for name in names {
    ///             let values: Vec<f64> = model.values(&name)?.iter().map(|w| w.clamp(-0.1, 0.1)).collect();
    ///             model.set_values(&name, &values)?;
    ///         }
    ///         model.set_rate_factor(model.rate_factor() / 2.0);
    ///         Ok(())
    ///     }
    /// }
    /// # let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
    /// # let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
    /// # let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(20);
    /// let model = Sequential::new([2]).dense(8).relu().dense(2);
    /// let mut trainer = Trainer::new(model, softmax_cross_entropy, Sgd::new(0.5)).callback(Bounded);
    /// let history = trainer.fit(&data, Epochs(2))?;
    /// assert_eq!(history[1].rate, history[0].rate / 2.0);
    /// for (_, tensor) in trainer.parameters() {
    ///     assert!(tensor.to_vec::<f32>()?.iter().all(|w| w.abs() <= 0.1));
    /// }
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    fn on_epoch_model(&mut self, _epoch: &EpochEvent, _model: &mut LiveModel<'_>) -> Result<()> {
        Ok(())
    }

    /// When something out of the ordinary happens.
    fn on_notice(&mut self, _notice: &Notice) -> Result<()> {
        Ok(())
    }

    /// When the run is over, however it ended: also where it failed, before [`Callback::on_start`] even.
    fn on_end(&mut self, _ended: &Ended) -> Result<()> {
        Ok(())
    }

    /// What must be in a checkpoint for it to go on as if nothing had happened.
    fn state(&self) -> Option<serde_json::Value> {
        None
    }

    /// Takes up what [`Callback::state`] gave.
    fn restore(&mut self, _state: &serde_json::Value) {}
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
    fn name(&self) -> &str {
        "reduce-on-plateau"
    }

    fn on_start(&mut self, plan: &RunPlan<'_>) -> Result<()> {
        if plan.step == 0 {
            let Plateau { best, waited, current, .. } = &mut self.plateau;
            (*best, *waited, *current) = (f64::INFINITY, 0, 1.0);
        }
        Ok(())
    }

    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        let before = self.plateau.current;
        let after = self.plateau.observe(Watched::new(&self.metric).value(epoch, "the learning rate")?);
        Ok(if after == before { Verdict::GoOn } else { Verdict::Rate(after / before) })
    }

    fn state(&self) -> Option<serde_json::Value> {
        let Plateau { best, waited, current, .. } = self.plateau;
        let metric = &self.metric;
        Some(serde_json::json!({ "metric": metric, "best": best, "waited": waited, "current": current }))
    }

    fn restore(&mut self, state: &serde_json::Value) {
        if state["metric"].as_str().is_some_and(|metric| metric != self.metric) {
            return;
        }
        self.plateau.best = state["best"].as_f64().unwrap_or(f64::INFINITY);
        self.plateau.waited = state["waited"].as_u64().unwrap_or(0);
        self.plateau.current = state["current"].as_f64().unwrap_or(1.0);
    }
}
