//! Turns a live model, data and Keras's settings into a run of the trainer: planned, trained, evaluated or used.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::data::{Draw, FieldSpec, Random};
use plimsoll::internals::formats::Element;
use plimsoll::internals::run::MemoryRequest;
use plimsoll::keras::{Compiled, KerasLoss};
use plimsoll::nn::ScheduleShape;
use plimsoll::prelude::*;
use plimsoll::train::Ended;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::call;
use crate::device::device;
use crate::errors::{Failure, plain};
use crate::follower::{Follower, Raised, Wants};
use crate::model::LiveModel;
use crate::plan::Shown;
use crate::source::Data;

/// What is asked of a run.
#[derive(FromPyObject)]
pub struct Asked {
    #[pyo3(item)]
    memory: Option<String>,
    #[pyo3(item)]
    device: String,
    /// How far plans may depart from the bits of an unlimited run.
    #[pyo3(item)]
    exact: String,
    #[pyo3(item)]
    batch_size: usize,
    /// Samples of a batch of the validation, where that is another number.
    #[pyo3(item)]
    validation_batch_size: Option<usize>,
    /// Whether a weight comes with each sample, behind its labels.
    #[pyo3(item)]
    weighted: bool,
    #[pyo3(item)]
    shuffle: bool,
    #[pyo3(item)]
    seed: u64,
}

impl Asked {
    fn request(&self, compiled: &Compiled) -> Result<MemoryRequest, Failure> {
        let limit = self.memory.as_deref().map(str::parse::<Bytes>).transpose().map_err(plain)?;
        let (precision, device) = (compiled.precision, Some(device(&self.device)?));
        let exactness = self.exact.parse::<Exactness>().map_err(plain)?;
        Ok(MemoryRequest { limit, precision, device, exactness, ..MemoryRequest::default() })
    }

    fn trainer(&self, live: &LiveModel, compiled: &Compiled) -> Result<Trainer, Failure> {
        let labels = compiled.labelled.len() + usize::from(self.weighted);
        Ok(Trainer::new(compiled.model.clone(), compiled.loss.clone(), compiled.optimizer.clone())
            .memory_request(&self.request(compiled)?)
            .clip(compiled.clip)
            .metrics(compiled.metrics.clone())
            .schedule(compiled.schedule.clone())
            .labels(labels)
            .seed(self.seed)
            .reserve(live.exchange_bytes()))
    }

    /// Data for validation, in batches.
    fn for_validation(&self, data: &Data) -> Dataset {
        data.dataset.clone().batch(self.validation_batch_size.unwrap_or(self.batch_size))
    }

    /// Data as a training takes it. A stream is in the order in which Python gives it.
    fn for_training(&self, data: &Data) -> Dataset {
        let dataset = data.dataset.clone();
        let dataset =
            if self.shuffle && !data.is_stream { dataset.shuffle(usize::MAX, self.seed) } else { dataset };
        dataset.batch(self.batch_size)
    }
}

/// Data of a model's own sizes, where there is no other.
fn random(live: &LiveModel, compiled: &Compiled, asked: &Asked) -> Result<Dataset, Failure> {
    let model = &live.model;
    let field = |name: &str, dtype: DType, shape: &[usize]| FieldSpec::new(name, dtype, shape);
    let inputs = model.inputs(1).map_err(|e| plain(format!("{e}: give x, whose shape says it")))?;
    let (mut spec, mut draws) = (Vec::new(), Vec::new());
    for (name, ty) in model.input_names().iter().zip(&inputs) {
        spec.push(field(name, ty.dtype, &ty.shape[1..]));
        draws.push(if ty.dtype.is_float() { Draw::Centered } else { Draw::One });
    }
    let are_classes = model.labels_are_classes().map_err(plain)?;
    for &output in &compiled.labelled {
        let (name, shape) = (&model.output_names()[output], &model.outputs()[output].shape[1..]);
        match shape.split_last() {
            Some((&classes, outer)) if are_classes[output] => {
                spec.push(field(name, DType::I64, outer));
                draws.push(Draw::Below(classes));
            }
            _ => {
                spec.push(field(name, DType::F32, shape));
                draws.push(Draw::Unit);
            }
        }
    }
    if asked.weighted {
        spec.push(field("weights", DType::F32, &[]));
        draws.push(Draw::Unit);
    }
    let count = asked.batch_size as u64;
    Ok(Dataset::random(Random { spec, draws, count, seed: asked.seed }).batch(asked.batch_size))
}

/// Plans a training step, and runs nothing.
#[pyfunction]
#[pyo3(signature = (live, asked, data=None, validation=None))]
pub fn plan<'py>(
    py: Python<'py>,
    live: &LiveModel,
    asked: Asked,
    data: Option<&Data>,
    validation: Option<&Data>,
) -> PyResult<Bound<'py, PyDict>> {
    let shown = call::run(py, || {
        let compiled = live.model.compiled_with(asked.weighted).map_err(plain)?;
        let mut trainer = asked.trainer(live, &compiled)?;
        if let Some(validation) = validation {
            trainer = trainer.validation(asked.for_validation(validation));
        }
        let (name, dataset) = match data {
            Some(data) => (data.name, asked.for_training(data)),
            None => ("random data", random(live, &compiled, &asked)?),
        };
        shown(live, &trainer, name, &dataset, asked.batch_size)
    })?;
    shown.to_dict(py)
}

fn shown(
    live: &LiveModel,
    trainer: &Trainer,
    name: &str,
    data: &Dataset,
    batch: usize,
) -> Result<Shown, Failure> {
    let plan = trainer.plan(data)?;
    let model = live.model.file_name();
    Shown::new(model, name, batch, &plan)
}

/// Trains. `told` is told of steps and epochs as it `wants`; the state goes back to the model's variables in the end, also where the run
/// is ended early or fails. Returns how it ended, the steps done, and the plan.
#[pyfunction]
#[pyo3(signature = (live, asked, data, epochs, told, wants, validation=None, checkpoints=None))]
pub fn fit(
    py: Python<'_>,
    live: Py<LiveModel>,
    asked: Asked,
    data: &Data,
    epochs: u64,
    told: Py<PyAny>,
    wants: Wants,
    validation: Option<&Data>,
    checkpoints: Option<PathBuf>,
) -> PyResult<(&'static str, Option<PathBuf>, u64)> {
    let live = Arc::new(live);
    let raised = Raised::default();
    call::run(py, || {
        let own = live.get();
        let dataset = asked.for_training(data);
        let prepared = || -> Result<(Compiled, Trainer), Failure> {
            let compiled = own.model.compiled_with(asked.weighted).map_err(plain)?;
            let mut trainer = asked.trainer(own, &compiled)?;
            if let Some(validation) = validation {
                trainer = trainer.validation(asked.for_validation(validation));
            }
            Ok((compiled, trainer))
        };
        // Callbacks are told of a run that there is a plan for, and may then set the learning rate.
        let page = shown(own, &prepared()?.1, data.name, &dataset, asked.batch_size)?;
        let begun = Python::attach(|py| -> PyResult<()> {
            told.bind(py).call_method1("begin", (page.to_dict(py)?,)).map(drop)
        });
        begun.map_err(Failure::Raised)?;
        drop(page);
        let (compiled, mut trainer) = prepared()?;
        if let Some(folder) = checkpoints {
            trainer = trainer.checkpoints(Checkpoints::new(folder));
        }
        let is_scheduled = compiled.schedule.shape != ScheduleShape::Constant;
        let rate = (!is_scheduled).then(|| compiled.optimizer.rate());
        let told = Arc::new(Mutex::new(Some((told, wants))));
        let follower = Follower::new(told, Some(live.clone()), rate, raised.clone());
        trainer = trainer.callback(follower);
        trainer.compile(&dataset)?;
        if let Some(training) = trainer.training_mut() {
            compiled.model.restore(training).map_err(plain)?;
        }
        let result = trainer.fit(&dataset, Epochs(epochs));
        let steps = trainer.progress().step;
        let written = match trainer.training() {
            Some(training) if steps > 0 => own.write_back(training),
            _ => Ok(()),
        };
        let sources = [Some(data), validation];
        let of_data =
            sources.into_iter().flatten().find_map(|data| data.raised.take()).filter(|_| result.is_err());
        if let Some(failure) = raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(failure);
        }
        if let Some(error) = of_data {
            return Err(Failure::Raised(error));
        }
        result?;
        written?;
        let (ended, checkpoint) = ended(&trainer);
        Ok((ended, checkpoint, steps))
    })
}

/// How a run ended, and its last checkpoint where it was stopped.
pub fn ended(trainer: &Trainer) -> (&'static str, Option<PathBuf>) {
    match trainer.ended() {
        Some(Ended::Stopped { checkpoint }) => ("stopped", checkpoint.clone()),
        Some(ended) => (ended.name(), None),
        None => ("complete", None),
    }
}

/// The loss and the metrics over data, by name. `told` is told of batches where it `wants` to be.
#[pyfunction]
#[pyo3(signature = (live, asked, data, told, wants))]
pub fn evaluate(
    py: Python<'_>,
    live: &LiveModel,
    asked: Asked,
    data: &Data,
    told: Py<PyAny>,
    wants: Wants,
) -> PyResult<Vec<(String, f64)>> {
    let raised = Raised::default();
    call::run(py, || {
        let compiled = live.model.measured_with(asked.weighted).map_err(plain)?;
        let dataset = data.dataset.clone().batch(asked.batch_size);
        let told = Arc::new(Mutex::new(Some((told, wants))));
        let follower = Follower::new(told, None, None, raised.clone());
        let mut trainer = ready(live, &compiled, &asked, &dataset)?.callback(follower);
        let found = trainer.evaluate(&dataset);
        if let Some(failure) = raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(failure);
        }
        let found = found.map_err(|error| of_data(data, error))?;
        live.write_kept(trainer.training())?;
        Ok([("loss".to_string(), found.loss)].into_iter().chain(found.metrics).collect())
    })
}

/// What the model makes of data: `take` is given the outputs of each batch in turn, as type, shape and bytes.
#[pyfunction]
pub fn predict(
    py: Python<'_>,
    live: &LiveModel,
    asked: Asked,
    data: &Data,
    take: Py<PyAny>,
) -> PyResult<u64> {
    call::run(py, || {
        let compiled = Compiled::measuring(&live.model, KerasLoss::none(live.model.n_outputs()));
        let dataset = data.dataset.clone().batch(asked.batch_size);
        let mut trainer = ready(live, &compiled, &asked, &dataset)?;
        let seen = taken(&mut trainer, data, &dataset, &take)?;
        live.write_kept(trainer.training())?;
        Ok(seen)
    })
}

/// Gives `take` the outputs of each batch in turn.
pub fn taken(
    trainer: &mut Trainer,
    data: &Data,
    dataset: &Dataset,
    take: &Py<PyAny>,
) -> Result<u64, Failure> {
    let mut raised = None;
    let seen = trainer.predict(dataset, |prediction| {
        let given = Python::attach(|py| -> PyResult<()> {
            py.check_signals()?;
            let mut outputs = Vec::new();
            for tensor in prediction.outputs {
                let bytes = tensor.to_bytes().map_err(|e| plain(e).raised(py))?;
                let shape: Vec<usize> = tensor.shape().iter().copied().collect();
                outputs.push((Element::from(tensor.dtype()).numpy_name(), shape, PyBytes::new(py, &bytes)));
            }
            take.bind(py).call1((outputs,)).map(drop)
        });
        given.map_err(|error| {
            raised = Some(error);
            plimsoll::train::Error::Mismatch("Python ended the prediction".into())
        })
    });
    match (seen, raised) {
        (_, Some(error)) => Err(Failure::Raised(error)),
        (seen, None) => seen.map_err(|error| of_data(data, error)),
    }
}

/// A trainer with the model's weights, to use and not to train it.
fn ready(live: &LiveModel, compiled: &Compiled, asked: &Asked, data: &Dataset) -> Result<Trainer, Failure> {
    let mut trainer = asked.trainer(live, compiled)?;
    trainer.prepare_blank(data)?;
    if let Some(training) = trainer.training_mut() {
        compiled.model.restore_weights(training).map_err(plain)?;
    }
    Ok(trainer)
}

/// What Python raised while it made a batch, or else the error itself.
pub fn of_data(data: &Data, error: plimsoll::train::Error) -> Failure {
    data.raised.take().map_or_else(|| error.into(), Failure::Raised)
}
