//! Turns a model, a loss and settings of Python into a trainer of the engine, which keeps its weights from call to call.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use plimsoll::device::process;
use plimsoll::internals::formats::Element;
use plimsoll::internals::run::MemoryRequest;
use plimsoll::nn::{Clip, Param, Schedule};
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
use crate::net::{PyModel, Thrown};
use crate::plan::Shown;
use crate::recipe::{Named, loss as loss_of, metric, optimizer as optimizer_of, own_schedule, schedule};
use crate::run::{ended, of_data, taken};
use crate::source::Data;

/// What is asked of a trainer.
#[derive(FromPyObject)]
struct Settings<'py> {
    #[pyo3(item)]
    name: String,
    /// An optimizer by name, and settings of it.
    #[pyo3(item)]
    optimizer: (String, Named<'py>),
    #[pyo3(item)]
    learning_rate: f64,
    #[pyo3(item)]
    memory: Option<String>,
    #[pyo3(item)]
    host_memory: Option<String>,
    #[pyo3(item)]
    device: String,
    #[pyo3(item)]
    precision: String,
    #[pyo3(item)]
    exact: String,
    #[pyo3(item)]
    metrics: Vec<Bound<'py, PyAny>>,
    #[pyo3(item)]
    clip_norm: Option<f64>,
    #[pyo3(item)]
    clip_value: Option<f64>,
    #[pyo3(item)]
    seed: u64,
    /// A shape by name and settings of it, or a function from the step to a factor.
    #[pyo3(item)]
    schedule: Option<Scheduled<'py>>,
    #[pyo3(item)]
    state: String,
    #[pyo3(item)]
    micro_batch: Option<usize>,
    /// How many fields of a sample are labels.
    #[pyo3(item)]
    labels: usize,
    #[pyo3(item)]
    checkpoints: Option<PathBuf>,
}

/// How the learning rate changes.
#[derive(FromPyObject)]
enum Scheduled<'py> {
    Named(String, Named<'py>),
    Own(Bound<'py, PyAny>),
}

impl Scheduled<'_> {
    fn read(self, raised: &Raised) -> PyResult<Schedule> {
        match self {
            Scheduled::Named(name, values) => schedule(&name, values),
            Scheduled::Own(function) if function.is_callable() => {
                Ok(own_schedule(function.unbind(), raised.clone()))
            }
            Scheduled::Own(_) => Err(PyTypeError::new_err("a schedule is a plimsoll.Schedule or a function")),
        }
    }
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
        settings: Settings<'_>,
    ) -> PyResult<Trainer> {
        let (thrown, listener, raised) = (Thrown::default(), Listener::default(), Raised::default());
        let loss = loss_of(loss, &thrown)?;
        let metrics =
            settings.metrics.iter().map(|given| metric(given, &thrown)).collect::<PyResult<Vec<_>>>()?;
        let (optimizer, values) = settings.optimizer;
        let optimizer = optimizer_of(&optimizer, settings.learning_rate, values)?;
        let schedule = match settings.schedule {
            Some(given) => given.read(&raised)?,
            None => Schedule::constant(),
        };
        let clip = match (settings.clip_norm, settings.clip_value) {
            (Some(_), Some(_)) => {
                return Err(PyValueError::new_err("clip_norm and clip_value cannot both be given"));
            }
            (norm, value) => norm.map(Clip::Norm).or(value.map(Clip::Value)),
        };
        let name = settings.name;
        let follower = {
            let is_constant = schedule == Schedule::constant();
            let rate = is_constant.then_some(settings.learning_rate);
            Follower::new(listener.clone(), None, rate, raised.clone())
        };
        let model = PyModel { function: model, thrown: thrown.clone() };
        let Settings { memory, host_memory, exact, precision, labels, seed, checkpoints, .. } = settings;
        let (on, state, micro_batch) = (settings.device, settings.state, settings.micro_batch);
        let engine = crate::call::caught(py, || {
            let bytes =
                |given: Option<String>| given.as_deref().map(str::parse::<Bytes>).transpose().map_err(plain);
            let request = MemoryRequest {
                limit: bytes(memory)?,
                host_limit: bytes(host_memory)?,
                device: Some(device(&on)?),
                exactness: exact.parse().map_err(plain)?,
                precision: precision.parse().map_err(plain)?,
                micro_batch,
            };
            let mut engine = Engine::new(model, loss, optimizer)
                .memory_request(&request)
                .metrics(metrics)
                .schedule(schedule)
                .clip(clip)
                .labels(labels)
                .seed(seed)
                .callback(follower);
            engine = engine.state(state.parse().map_err(plain)?)?;
            if let Some(folder) = checkpoints {
                engine = engine.checkpoints(Checkpoints::new(folder));
            }
            Ok(engine)
        })?;
        let (engine, last) = (Mutex::new(Some(engine)), Mutex::default());
        Ok(Trainer { engine, name, listener, raised, thrown, last })
    }

    /// How many epochs and steps are done.
    fn progress(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.run(py, |engine| Ok((engine.progress().epoch, engine.progress().step)))
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
    #[pyo3(signature = (data, epochs, batch, shuffle, told, wants, validation=None, validation_batch=None))]
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
        validation_batch: Option<usize>,
    ) -> PyResult<(&'static str, Option<PathBuf>, u64)> {
        self.listen(Some((told, wants)));
        let result = self.run(py, |engine| {
            let dataset = batched(data, batch, shuffle);
            engine.set_validation(
                validation.map(|data| batched(data, validation_batch.unwrap_or(batch), None)),
            );
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
