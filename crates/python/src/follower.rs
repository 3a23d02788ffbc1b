//! Turns what happens in a run into calls of Python: callbacks at the ends of steps and epochs, and Ctrl-C.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use plimsoll::internals::train::LiveModel as Training;
use plimsoll::prelude::Callback;
use plimsoll::train::{EpochEvent, Error, Evaluating, Notice, Result, RunPlan, StepEvent, Verdict};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Failure;
use crate::model::LiveModel;

/// Signals are looked for as often while input is waited for.
const OFTEN: Duration = Duration::from_millis(50);

/// What Python raised in a run, or what failed on the way to it.
pub type Raised = Arc<Mutex<Option<Failure>>>;

/// What the Python side wants to be told.
#[derive(Clone, Copy, FromPyObject)]
pub struct Wants {
    /// Of every step.
    #[pyo3(item)]
    steps: bool,
    /// With the weights of that step in the Keras model.
    #[pyo3(item)]
    step_weights: bool,
    /// With the weights of that epoch in the Keras model.
    #[pyo3(item)]
    epoch_weights: bool,
    /// Whether each epoch is to be followed by a validation.
    #[pyo3(item)]
    validates: bool,
    /// Of every evaluation, and its batches.
    #[pyo3(item)]
    tests: bool,
}

/// Who is told of a run, and of what: another one in each run of a trainer.
pub type Listener = Arc<Mutex<Option<(Py<PyAny>, Wants)>>>;

/// Follows a run for Python. `told` has `begin(plan)`, `step(number, logs)`, `epoch(number, logs, samples_s)`, `validates(epoch)`, `test(batches, logs)` and
/// `notice(text)`; `step` and `epoch` return whether to stop and a learning rate, or none to leave it.
pub struct Follower {
    told: Listener,
    /// The Keras model that is trained, where it is one.
    model: Option<Arc<Py<LiveModel>>>,
    /// The learning rate that the optimizer has where nothing multiplies it; none where a schedule sets it.
    rate: Option<f64>,
    raised: Raised,
    is_stopping: bool,
    looked: Instant,
    /// The epoch of the last step, and the steps of it.
    epoch: (u64, u64),
}

impl Follower {
    /// Someone to tell, for the run of a model.
    pub fn new(
        told: Listener,
        model: Option<Arc<Py<LiveModel>>>,
        rate: Option<f64>,
        raised: Raised,
    ) -> Follower {
        Follower { told, model, rate, raised, is_stopping: false, looked: Instant::now(), epoch: (0, 0) }
    }

    /// Looks for Ctrl-C, now and then.
    fn look(&mut self) -> Result<()> {
        if self.looked.elapsed() < OFTEN {
            return Ok(());
        }
        self.looked = Instant::now();
        Python::attach(|py| py.check_signals()).map_err(|error| self.failed(Failure::Raised(error)))
    }

    /// Keeps what went wrong for the caller, and ends the run.
    fn failed(&mut self, failure: Failure) -> Error {
        self.is_stopping = true;
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        Error::Mismatch("Python ended the run".into())
    }

    /// Who is to be told now, if anybody is.
    fn listener(&self) -> Option<(Py<PyAny>, Wants)> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (told, wants) = told.as_ref()?;
        Some((Python::attach(|py| told.clone_ref(py)), *wants))
    }

    /// What Python answers to a step or an epoch: whether to stop, and a learning rate.
    fn ask(
        &mut self,
        told: &Py<PyAny>,
        method: &str,
        number: u64,
        logs: &[(&str, f64)],
        samples_s: Option<f64>,
    ) -> Result<(bool, Option<f64>)> {
        let asked = Python::attach(|py| -> PyResult<(bool, Option<f64>)> {
            py.check_signals()?;
            let dict = PyDict::new(py);
            for (name, value) in logs {
                dict.set_item(name, value)?;
            }
            match samples_s {
                Some(speed) => told.bind(py).call_method1(method, (number, dict, speed))?.extract(),
                None => told.bind(py).call_method1(method, (number, dict))?.extract(),
            }
        });
        self.looked = Instant::now();
        asked.map_err(|error| self.failed(Failure::Raised(error)))
    }

    fn set_rate(&mut self, rate: Option<f64>, training: &mut Training<'_>) -> Result<()> {
        let (Some(base), Some(rate)) = (self.rate, rate) else { return Ok(()) };
        if rate == base * training.rate_factor() {
            return Ok(());
        }
        if base == 0.0 {
            let why = "a callback changed the learning rate of an optimizer that was compiled with 0; compile it with another";
            return Err(self.failed(Failure::Plain(why.into())));
        }
        training.set_rate_factor(rate / base);
        Ok(())
    }

    fn write_back(&mut self, training: &mut Training<'_>) -> Result<()> {
        let Some(model) = self.model.clone() else { return Ok(()) };
        model.get().write_back(training.training()).map_err(|failure| self.failed(failure))
    }

    /// Takes up what a callback has changed of the weights.
    fn take_up(&mut self, training: &mut Training<'_>) -> Result<()> {
        let Some(model) = self.model.clone() else { return Ok(()) };
        let live = model.get();
        if live.is_changed(training.training()).map_err(|failure| self.failed(failure))? {
            live.model.restore(training.training()).map_err(|e| self.failed(crate::errors::plain(e)))?;
        }
        Ok(())
    }
}

impl Callback for Follower {
    fn name(&self) -> &str {
        "python"
    }

    fn on_start(&mut self, _: &RunPlan<'_>) -> Result<()> {
        (self.is_stopping, self.epoch) = (false, (0, 0));
        // Planning may have taken long.
        let looked = Python::attach(|py| py.check_signals());
        looked.map_err(|error| self.failed(Failure::Raised(error)))
    }

    fn wants_to_stop(&mut self) -> bool {
        if !self.is_stopping && self.looked.elapsed() >= OFTEN {
            self.looked = Instant::now();
            if let Err(error) = Python::attach(|py| py.check_signals()) {
                self.failed(Failure::Raised(error));
            }
        }
        self.is_stopping
    }

    fn wants_validation(&mut self, epoch: u64) -> Result<bool> {
        let Some((told, _)) = self.listener().filter(|(_, wants)| wants.validates) else { return Ok(true) };
        let asked = Python::attach(|py| told.bind(py).call_method1("validates", (epoch - 1,))?.extract());
        asked.map_err(|error| self.failed(Failure::Raised(error)))
    }

    fn on_evaluation(&mut self, event: &Evaluating<'_>) -> Result<()> {
        self.look()?;
        let Some((told, _)) = self.listener().filter(|(_, wants)| wants.tests) else { return Ok(()) };
        // Nothing before the first, and how many there were after the last.
        let batches = match event {
            Evaluating::Begun => Some(0),
            Evaluating::Batch { done, .. } => Some(*done),
            Evaluating::Ended(_) => None,
        };
        let logs = event.figures();
        let asked = Python::attach(|py| -> PyResult<()> {
            let dict = PyDict::new(py);
            for (name, value) in &logs {
                dict.set_item(name, value)?;
            }
            told.bind(py).call_method1("test", (batches, dict)).map(drop)
        });
        asked.map_err(|error| self.failed(Failure::Raised(error)))
    }

    fn on_step_model(&mut self, step: &StepEvent, training: &mut Training<'_>) -> Result<()> {
        let number = if self.epoch.0 == step.epoch { self.epoch.1 } else { 0 };
        self.epoch = (step.epoch, number + 1);
        let Some((told, wants)) = self.listener().filter(|(_, wants)| wants.steps) else { return Ok(()) };
        if wants.step_weights {
            self.write_back(training)?;
        }
        let mut logs = vec![("loss".to_string(), step.mean_loss)];
        logs.extend(training.metrics().map(|(name, value)| (name.to_string(), value)));
        let logs: Vec<(&str, f64)> = logs.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let (stops, rate) = self.ask(&told, "step", number, &logs, None)?;
        if wants.step_weights {
            self.take_up(training)?;
        }
        self.is_stopping |= stops;
        self.set_rate(rate, training)
    }

    fn on_epoch_model(&mut self, event: &EpochEvent, training: &mut Training<'_>) -> Result<()> {
        let Some((told, wants)) = self.listener() else { return Ok(()) };
        if wants.epoch_weights {
            self.write_back(training)?;
        }
        let mut logs = vec![("loss", event.loss)];
        logs.extend(event.metrics.iter().map(|(name, value)| (name.as_str(), *value)));
        let (stops, rate) = self.ask(&told, "epoch", event.epoch - 1, &logs, Some(event.samples_s))?;
        if wants.epoch_weights {
            self.take_up(training)?;
        }
        self.is_stopping |= stops;
        self.set_rate(rate, training)
    }

    fn on_epoch(&mut self, _: &EpochEvent) -> Result<Verdict> {
        Ok(if self.is_stopping {
            Verdict::Stop("a callback of Python asked for it".into())
        } else {
            Verdict::GoOn
        })
    }

    fn on_notice(&mut self, notice: &Notice) -> Result<()> {
        let json = notice.to_json().to_string();
        let Some((told, _)) = self.listener() else { return Ok(()) };
        let said = Python::attach(|py| told.bind(py).call_method1("notice", (json,)).map(drop));
        said.map_err(|error| self.failed(Failure::Raised(error)))
    }
}
