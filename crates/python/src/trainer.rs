//! Turns a model, a loss and settings of Python into a trainer of the engine, which keeps its weights from call to call.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::device::process;
use plimsoll::internals::formats::Element;
use plimsoll::internals::run::MemoryRequest;
use plimsoll::nn::{
    Clip, Loss, Metric, Param, Schedule, binary_cross_entropy, huber, mae, mse, optimizer,
    softmax_cross_entropy,
};
use plimsoll::prelude::{
    Bytes, Checkpoints, Dataset, Epochs, Tensor as Value, TensorOps as _, Trainer as Engine,
};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};

use crate::call::{held, run_beside};
use crate::device::device;
use crate::errors::{Failure, plain};
use crate::follower::{Follower, Listener, Raised, Wants};
use crate::net::{PyLoss, PyModel, Thrown};
use crate::plan::Shown;
use crate::run::{ended, of_data, taken};
use crate::source::Data;

/// What is asked of a trainer.
#[derive(FromPyObject)]
struct Settings {
    #[pyo3(item)]
    name: String,
    #[pyo3(item)]
    optimizer: String,
    #[pyo3(item)]
    learning_rate: f64,
    #[pyo3(item)]
    memory: Option<String>,
    #[pyo3(item)]
    device: String,
    #[pyo3(item)]
    precision: String,
    #[pyo3(item)]
    exact: String,
    #[pyo3(item)]
    metrics: Vec<String>,
    #[pyo3(item)]
    clip_norm: Option<f64>,
    #[pyo3(item)]
    seed: u64,
    /// `cosine` over so many steps, and so many steps before it in which the rate rises.
    #[pyo3(item)]
    cosine_steps: Option<u64>,
    #[pyo3(item)]
    warm_up_steps: u64,
    /// How many fields of a sample are labels.
    #[pyo3(item)]
    labels: usize,
    #[pyo3(item)]
    checkpoints: Option<PathBuf>,
}

/// A loss by name.
fn named_loss(name: &str) -> PyResult<Arc<dyn Loss>> {
    Ok(match name {
        "softmax_cross_entropy" => Arc::new(softmax_cross_entropy),
        "binary_cross_entropy" => Arc::new(binary_cross_entropy),
        "mse" => Arc::new(mse),
        "mae" => Arc::new(mae),
        "huber" => Arc::new(huber(1.0)),
        other => {
            let why = format!(
                "there is no loss {other}; name softmax_cross_entropy, binary_cross_entropy, mse, mae or huber, or give a function"
            );
            return Err(PyValueError::new_err(why));
        }
    })
}

/// A metric by name.
fn metric(name: &str) -> PyResult<Metric> {
    Ok(match name {
        "accuracy" => Metric::Accuracy,
        "top5" => Metric::TopK(5),
        "binary_accuracy" => Metric::BinaryAccuracy,
        "mean_iou" => Metric::MeanIou,
        "perplexity" => Metric::Perplexity,
        "mae" => Metric::Mae,
        "mse" => Metric::Mse,
        "rmse" => Metric::Rmse,
        "r2" => Metric::R2,
        other => {
            let why = format!(
                "there is no metric {other}; name accuracy, top5, binary_accuracy, mean_iou, perplexity, mae, mse, rmse or r2"
            );
            return Err(PyValueError::new_err(why));
        }
    })
}

/// Name, type, shape and bytes.
type Parameter<'py> = (String, &'static str, Vec<usize>, Bound<'py, PyByteArray>);

/// A trainer of the engine, between its runs.
#[pyclass(frozen, module = "plimsoll._native")]
pub struct Trainer {
    engine: Mutex<Option<Engine>>,
    name: String,
    listener: Listener,
    raised: Raised,
    thrown: Thrown,
    /// What stood beside its memory in its last run, and what was resident when that ended.
    last: Mutex<Option<(Bytes, Bytes)>>,
}

impl Trainer {
    /// Runs something with the engine's trainer, whose memory from earlier runs is within the limit.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Engine) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let Some(mut engine) = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Err(PyRuntimeError::new_err(
                "this trainer is at work in another thread, or broke off with an internal error",
            ));
        };
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // What Python took or gave back since the last run is its own; the rest that is resident is the trainer's.
        let beside = |resident: Bytes| match last {
            None => resident,
            Some((held, end)) => (held + resident).saturating_sub(end),
        };
        let done = run_beside(py, beside, || {
            let result = body(&mut engine);
            let end = process::resident().unwrap_or(Bytes::ZERO);
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((held(), end));
            *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
            Ok(result)
        })?;
        // A model is traced in ways that are only tried (another precision, a smaller batch): what fails there is no failure of the call.
        let thrown = self.thrown.take().filter(|_| done.as_ref().is_err_and(Failure::is_internal));
        let raised = thrown.map(Failure::Raised);
        let raised = raised.or_else(|| self.raised.lock().unwrap_or_else(PoisonError::into_inner).take());
        match (raised, done) {
            (Some(failure), _) => Err(failure.raised(py)),
            (None, done) => done.map_err(|failure| failure.raised(py)),
        }
    }

    fn listen(&self, told: Option<(Py<PyAny>, Wants)>) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = told;
    }
}

/// Data in batches, in another order in every pass where that is asked for.
fn batched(data: &Data, batch: usize, shuffle: Option<u64>) -> Dataset {
    let dataset = data.dataset.clone();
    match shuffle {
        Some(seed) if !data.is_stream => dataset.shuffle(usize::MAX, seed).batch(batch),
        _ => dataset.batch(batch),
    }
}

#[pymethods]
impl Trainer {
    #[new]
    fn new(
        py: Python<'_>,
        model: Py<PyAny>,
        loss: &Bound<'_, PyAny>,
        settings: Settings,
    ) -> PyResult<Trainer> {
        let thrown = Thrown::default();
        let loss: Arc<dyn Loss> = match loss.extract::<&str>() {
            Ok(name) => named_loss(name)?,
            Err(_) if loss.is_callable() => {
                Arc::new(PyLoss { function: loss.clone().unbind(), thrown: thrown.clone() })
            }
            Err(_) => return Err(PyTypeError::new_err("a loss is a name or a function")),
        };
        let metrics = settings.metrics.iter().map(|name| metric(name)).collect::<PyResult<Vec<_>>>()?;
        let (listener, raised) = (Listener::default(), Raised::default());
        let name = settings.name.clone();
        let follower = {
            let is_constant = settings.cosine_steps.is_none() && settings.warm_up_steps == 0;
            let rate = is_constant.then_some(settings.learning_rate);
            Follower::new(listener.clone(), None, rate, raised.clone())
        };
        let model = PyModel { function: model, thrown: thrown.clone() };
        let engine = crate::call::caught(py, || {
            let limit = settings.memory.as_deref().map(str::parse::<Bytes>).transpose().map_err(plain)?;
            let Some(optimizer) = optimizer(&settings.optimizer, settings.learning_rate) else {
                return Err(plain(format!(
                    "there is no optimizer {}; name sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, ftrl, lion or adafactor",
                    settings.optimizer
                )));
            };
            let request = MemoryRequest {
                limit,
                device: Some(device(&settings.device)?),
                exactness: settings.exact.parse().map_err(plain)?,
                precision: settings.precision.parse().map_err(plain)?,
                ..MemoryRequest::default()
            };
            let schedule = settings.cosine_steps.map_or(Schedule::constant(), Schedule::cosine);
            let mut engine = Engine::new(model, loss, optimizer)
                .memory_request(&request)
                .metrics(metrics)
                .schedule(schedule.warm_up(settings.warm_up_steps))
                .clip(settings.clip_norm.map(Clip::Norm))
                .labels(settings.labels)
                .seed(settings.seed)
                .callback(follower);
            if let Some(folder) = settings.checkpoints {
                engine = engine.checkpoints(Checkpoints::new(folder));
            }
            Ok(engine)
        })?;
        let (engine, last) = (Mutex::new(Some(engine)), Mutex::default());
        Ok(Trainer { engine, name, listener, raised, thrown, last })
    }

    /// Plans a step, and runs nothing.
    fn plan<'py>(&self, py: Python<'py>, data: &Data, batch: usize) -> PyResult<Bound<'py, PyDict>> {
        let shown = self.run(py, |engine| {
            let plan = engine.plan(batched(data, batch, None))?;
            Shown::new(&self.name, data.name, batch, &plan)
        })?;
        shown.to_dict(py)
    }

    /// Trains for so many epochs more. Returns how it ended, a checkpoint where it was stopped, and the steps done in all.
    #[pyo3(signature = (data, epochs, batch, shuffle, told, wants, validation=None))]
    fn fit(
        &self,
        py: Python<'_>,
        data: &Data,
        epochs: u64,
        batch: usize,
        shuffle: Option<u64>,
        told: Py<PyAny>,
        wants: Wants,
        validation: Option<&Data>,
    ) -> PyResult<(&'static str, Option<PathBuf>, u64)> {
        self.listen(Some((told, wants)));
        let result = self.run(py, |engine| {
            let dataset = batched(data, batch, shuffle);
            engine.set_validation(validation.map(|data| batched(data, batch, None)));
            // The engine counts epochs from the beginning of the training.
            let epochs = Epochs(engine.progress().epoch + epochs);
            engine.fit(&dataset, epochs).map_err(|error| of_data(data, error))?;
            let (ended, checkpoint) = ended(engine);
            Ok((ended, checkpoint, engine.progress().step))
        });
        self.listen(None);
        result
    }

    /// The loss and the metrics over data, by name.
    fn evaluate(&self, py: Python<'_>, data: &Data, batch: usize) -> PyResult<Vec<(String, f64)>> {
        self.run(py, |engine| {
            let found = engine.evaluate(&batched(data, batch, None)).map_err(|error| of_data(data, error))?;
            Ok([("loss".to_string(), found.loss)].into_iter().chain(found.metrics).collect())
        })
    }

    /// Gives `take` what the model makes of each batch.
    fn predict(&self, py: Python<'_>, data: &Data, batch: usize, take: Py<PyAny>) -> PyResult<u64> {
        self.run(py, |engine| taken(engine, data, &batched(data, batch, None), &take))
    }

    /// Writes the parameters as safetensors.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.run(py, |engine| Ok(engine.save(path)?))
    }

    /// Reads parameters, for data like this.
    fn load(&self, py: Python<'_>, path: PathBuf, data: &Data, batch: usize) -> PyResult<()> {
        self.run(py, |engine| Ok(engine.load(path, &batched(data, batch, None))?))
    }

    /// Goes on where the last checkpoint is; whether there was one.
    fn resume(
        &self,
        py: Python<'_>,
        folder: PathBuf,
        data: &Data,
        batch: usize,
        shuffle: Option<u64>,
    ) -> PyResult<bool> {
        self.run(py, |engine| Ok(engine.resume(&folder, &batched(data, batch, shuffle))?))
    }

    /// Copies of the parameters, once data was seen: they change in place while it trains.
    fn parameters<'py>(&self, py: Python<'py>) -> PyResult<Vec<Parameter<'py>>> {
        let copied = self.run(py, |engine| {
            let copied = |(param, value): (&Param, &Value)| -> Result<_, Failure> {
                let shape: Vec<usize> = value.shape().iter().copied().collect();
                Ok((param.name.clone(), Element::from(value.dtype()).numpy_name(), shape, value.to_bytes()?))
            };
            engine.parameters().map(copied).collect::<Result<Vec<_>, Failure>>()
        })?;
        let given = |(name, dtype, shape, bytes): (String, _, _, Vec<u8>)| {
            (name, dtype, shape, PyByteArray::new(py, &bytes))
        };
        Ok(copied.into_iter().map(given).collect())
    }
}
