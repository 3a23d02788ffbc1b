//! Turns a module of a running PyTorch, exported, into a training of ours, a step at a time, and its state back into PyTorch's.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use plimsoll::device::process;
use plimsoll::internals::formats::Element;
use plimsoll::internals::run::{MemoryRequest, Precision};
use plimsoll::nn::{Clip, Outcome, Pass, Recipe, Training};
use plimsoll::prelude::{Bytes, DType, Device, Tensor as Value, TensorOps as _, Type};
use plimsoll::torch::{Error, Kind, Program, ProgramLoss, TorchModel, Values};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::array::{self, Array};
use crate::call::{self, held, run_again, run_beside};
use crate::device::device;
use crate::errors::{Failure, plain};
use crate::plan::Shown;
use crate::torch_optim::{Group, optimizer};

/// A parameter's name and the bytes of its gradient, if it has one.
type NamedBytes<'py> = (String, Option<Bound<'py, PyBytes>>);

/// What Python gives of a module's tensors: `read(name)` an array of their bytes.
struct Tensors(Py<PyAny>);

impl Values for Tensors {
    fn read_into(&self, name: &str, buffer: &mut [u8]) -> io::Result<()> {
        array::read_into(&self.0, name, buffer, "when the module was exported")
    }
}

/// A program as PyTorch writes it, second names of tensors, and where their values are.
#[derive(FromPyObject)]
struct Exported {
    #[pyo3(item)]
    json: String,
    #[pyo3(item)]
    tied: BTreeMap<String, String>,
    #[pyo3(item)]
    store: Py<PyAny>,
}

impl Exported {
    fn program(self, name: &str) -> Result<Program, Error> {
        Program::live(name, &self.json, &self.tied, Arc::new(Tensors(self.store)))
    }
}

/// What is asked of a training.
#[derive(FromPyObject)]
struct Settings {
    #[pyo3(item)]
    memory: Option<String>,
    #[pyo3(item)]
    micro_batch: Option<usize>,
    #[pyo3(item)]
    host_memory: Option<String>,
    #[pyo3(item)]
    exact: String,
    #[pyo3(item)]
    name: String,
    #[pyo3(item)]
    device: String,
    #[pyo3(item)]
    clip_norm: Option<f64>,
    #[pyo3(item)]
    clip_value: Option<f64>,
    #[pyo3(item)]
    accumulate: usize,
    /// Whether the loss is scaled, as by a ``GradScaler``.
    #[pyo3(item)]
    scaled: bool,
    #[pyo3(item)]
    seed: u64,
    /// Parameters that are trained in the module and that the optimizer does not move.
    #[pyo3(item)]
    frozen: Vec<String>,
}

/// The ops of PyTorch that are known here.
#[pyfunction]
pub fn torch_ops() -> Vec<&'static str> {
    plimsoll::torch::known_ops()
}

/// A training that has begun, and the tensors in which batches lie.
struct Begun {
    training: Training,
    batch: Vec<Value>,
    /// What labels count for in the batch that lies there, one number a loss.
    shares: Vec<f64>,
    /// What stood beside its memory when it was planned last, and what was resident when that ended.
    last: (Bytes, Bytes),
}

/// A module of PyTorch in training.
#[pyclass(frozen, module = "plimsoll._native")]
pub struct TorchTraining {
    name: String,
    model: TorchModel,
    request: MemoryRequest,
    device: Device,
    clip: Option<Clip>,
    accumulate: usize,
    scaled: bool,
    seed: u64,
    begun: Mutex<Option<Begun>>,
}

/// A tensor of a batch: on the host as NumPy has it, or on the trainer's own card, where it lies.
enum Given {
    Host(Array),
    Card(Value),
}

impl Given {
    fn all(batch: &[Bound<'_, PyAny>]) -> PyResult<Vec<Given>> {
        batch.iter().map(Given::new).collect()
    }

    fn new(value: &Bound<'_, PyAny>) -> PyResult<Given> {
        match value.cast::<crate::tensor::Tensor>() {
            Ok(tensor) => Ok(Given::Card(tensor.get().0.clone())),
            Err(_) => Ok(Given::Host(Array::new(value)?)),
        }
    }

    fn shape(&self) -> Vec<usize> {
        match self {
            Given::Host(array) => array.shape.clone(),
            Given::Card(tensor) => tensor.shape().to_vec(),
        }
    }

    fn write_to(&self, tensor: &mut Value) -> plimsoll::internals::run::Result<()> {
        match self {
            Given::Host(array) => tensor.set_bytes(array.as_ref()),
            Given::Card(given) => tensor.set_from(given),
        }
    }
}

/// An output of a prediction: type, shape, bytes.
type Predicted<'py> = (&'static str, Vec<usize>, Bound<'py, PyBytes>);

/// What is behind a lock. It is not waited for: whoever has it may wait for the interpreter that the caller holds.
fn taken_from<T>(held: &Mutex<T>) -> PyResult<MutexGuard<'_, T>> {
    match held.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
        Err(TryLockError::WouldBlock) => {
            Err(PyRuntimeError::new_err("this trainer is at work in another thread"))
        }
    }
}

fn wrong(error: Error) -> Failure {
    match error {
        Error::Run(error) => error.into(),
        other => plain(other),
    }
}

impl TorchTraining {
    fn recipe(&self, groups: &[Group], types: &[Type]) -> Result<Recipe, Failure> {
        let first =
            types.first().cloned().ok_or_else(|| plain("a batch without tensors cannot be trained on"))?;
        let mut recipe = Recipe::new(ProgramLoss, optimizer(groups)?, first.clone(), first);
        (recipe.inputs, recipe.labels) = (types.to_vec(), Vec::new());
        recipe.request = self.request.clone();
        (recipe.clip, recipe.accumulate, recipe.scales_loss) = (self.clip, self.accumulate, self.scaled);
        Ok(recipe)
    }

    /// The types of what a step is given for a batch of such shapes.
    fn step_types(&self, shapes: &[Vec<usize>]) -> Result<Vec<Type>, Failure> {
        let mut types = types(self.model.program(), shapes)?;
        let samples = types.first().and_then(|ty| ty.shape.first()).copied();
        types.extend(samples.map(|samples| self.model.share_types(samples)).unwrap_or_default());
        Ok(types)
    }

    /// What stands beside the limit: all that is resident but what the training took.
    fn beside(last: Option<(Bytes, Bytes)>) -> impl FnOnce(Bytes) -> Bytes + Send {
        move |resident| match last {
            None => resident,
            Some((held, end)) => (held + resident).saturating_sub(end),
        }
    }

    /// Runs something over the training with a batch in its tensors. Where that is of other shapes than the last, memory is counted anew.
    fn with_batch<T: Send>(
        &self,
        py: Python<'_>,
        arrays: Vec<Given>,
        program: &Program,
        body: impl FnOnce(&mut Training, &[&Value]) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let mut begun = taken_from(&self.begun)?;
        let Some(begun) = begun.as_mut() else {
            return Err(PyValueError::new_err("the training has not begun"));
        };
        let shapes: Vec<Vec<usize>> = arrays.iter().map(Given::shape).collect();
        let is_own = std::ptr::eq(program, self.model.program());
        let types = if is_own { self.step_types(&shapes) } else { types(program, &shapes) };
        let types = types.map_err(|failure| failure.raised(py))?;
        let is_same = begun.batch.iter().map(|x| x.ty()).eq(types.iter());
        let run = move |begun: &mut Begun| {
            let is_fresh = !is_same;
            if is_fresh {
                (begun.batch, begun.shares) = (Vec::new(), Vec::new());
                begun.batch = types.into_iter().map(Value::zeros).collect::<Result<_, _>>()?;
            }
            for (tensor, array) in begun.batch.iter_mut().zip(&arrays) {
                array.write_to(tensor)?;
            }
            if is_own {
                let (given, counted) = begun.batch.split_at_mut(arrays.len());
                let shares = self.model.shares(given)?;
                // Mostly all labels count, at every step: then there is nothing to write.
                if is_fresh || shares != begun.shares {
                    for (tensor, share) in counted.iter_mut().zip(&shares) {
                        tensor.set_bytes(&repeated(*share, tensor.ty()))?;
                    }
                    begun.shares = shares;
                }
            }
            let batch: Vec<&Value> = begun.batch.iter().collect();
            body(&mut begun.training, &batch)
        };
        if is_same {
            return run_again(py, || self.device.scope(|| run(begun)));
        }
        run_beside(py, TorchTraining::beside(Some(begun.last)), || {
            let done = self.device.scope(|| run(&mut *begun));
            begun.last = (held(), process::resident().unwrap_or(Bytes::ZERO));
            done
        })
    }
}

#[pymethods]
impl TorchTraining {
    /// A module with its loss, as it is while it trains.
    #[new]
    fn new(py: Python<'_>, trained: Exported, settings: Settings) -> PyResult<TorchTraining> {
        call::caught(py, || {
            let bytes =
                |given: Option<String>| given.as_deref().map(str::parse::<Bytes>).transpose().map_err(plain);
            let clip = match (settings.clip_norm, settings.clip_value) {
                (Some(_), Some(_)) => {
                    return Err(plain("gradients are clipped by their norm or by value, not both"));
                }
                (norm, value) => norm.map(Clip::Norm).or(value.map(Clip::Value)),
            };
            let device = device(&settings.device)?;
            let request = MemoryRequest {
                limit: bytes(settings.memory)?,
                host_limit: bytes(settings.host_memory)?,
                device: Some(device.clone()),
                exactness: settings.exact.parse().map_err(plain)?,
                precision: Precision::F32,
                micro_batch: settings.micro_batch,
            };
            let program = trained.program(&settings.name).map_err(wrong)?;
            let program = program.frozen(settings.frozen.iter().map(String::as_str)).map_err(wrong)?;
            let model = TorchModel::new(program).and_then(TorchModel::on_loss).map_err(wrong)?;
            let (accumulate, scaled) = (settings.accumulate.max(1), settings.scaled);
            let (seed, name) = (settings.seed, settings.name);
            let begun = Mutex::default();
            Ok(TorchTraining { name, model, request, device, clip, accumulate, scaled, seed, begun })
        })
    }

    /// Names of the parameters that are trained, of the other tensors that it keeps, and of those that change by themselves.
    fn names(&self) -> (Vec<String>, Vec<String>, Vec<String>) {
        let of = |wanted: &dyn Fn(&plimsoll::torch::Held) -> bool| {
            let held =
                self.model.program().held().iter().filter(|held| held.ty.elements() > 0 && wanted(held));
            held.map(|held| held.name.clone()).collect()
        };
        (
            of(&|held| held.kind == Kind::Trained),
            of(&|held| held.kind != Kind::Trained),
            of(&|held| held.is_changed),
        )
    }

    /// Gives it the module as it is in eval mode, with its loss.
    fn set_evaluation(&self, py: Python<'_>, evaluated: Exported) -> PyResult<()> {
        call::caught(py, || {
            let program = evaluated.program(&self.name).map_err(wrong)?;
            self.model.set_evaluation(program).map_err(wrong)
        })
    }

    /// Gives it the module as it is in eval mode, without a loss.
    fn set_prediction(&self, py: Python<'_>, predicted: Exported) -> PyResult<()> {
        call::caught(py, || {
            let program = predicted.program(&self.name).map_err(wrong)?;
            self.model.set_prediction(program).map_err(wrong)
        })
    }

    /// The loss of a batch and the gradient of every trained parameter, by an eager pass that keeps everything.
    fn gradients<'py>(
        &self,
        py: Python<'py>,
        batch: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<(f64, Vec<NamedBytes<'py>>)> {
        let arrays = Given::all(&batch)?;
        let (loss, found) = call::run(py, || {
            self.device.scope(|| {
                let shapes: Vec<Vec<usize>> = arrays.iter().map(Given::shape).collect();
                let mut inputs = Vec::new();
                for (ty, array) in types(self.model.program(), &shapes)?.into_iter().zip(&arrays) {
                    let mut tensor = Value::zeros(ty)?;
                    array.write_to(&mut tensor)?;
                    inputs.push(tensor);
                }
                let model = &self.model;
                let (params, values) = (model.params(), model.values().map_err(wrong)?);
                let (loss, seed) = (&ProgramLoss, self.seed);
                let pass = Pass::run(model, loss, Precision::F32, params, &values, &inputs, &[], seed)?;
                let given = |(name, gradient): (String, Option<Value>)| -> Result<_, Failure> {
                    let bytes = match gradient {
                        Some(gradient) => Some(model.in_order(&name, gradient.to_bytes()?).map_err(wrong)?),
                        None => None,
                    };
                    Ok((name, bytes))
                };
                let found = pass.gradients.into_iter().map(given).collect::<Result<Vec<_>, Failure>>()?;
                Ok((pass.loss, found))
            })
        })?;
        let given =
            |(name, bytes): (String, Option<Vec<u8>>)| (name, bytes.map(|bytes| PyBytes::new(py, &bytes)));
        Ok((loss, found.into_iter().map(given).collect()))
    }

    /// Plans a step on batches of such shapes, and runs nothing.
    fn plan<'py>(
        &self,
        py: Python<'py>,
        groups: Vec<Group>,
        shapes: Vec<Vec<usize>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let mut begun = taken_from(&self.begun)?;
        let begun = begun.as_mut();
        let last = begun.as_ref().map(|begun| begun.last);
        let shown = run_beside(py, TorchTraining::beside(last), || {
            let batch = shapes.iter().find_map(|shape| shape.first()).copied().unwrap_or(1);
            let types = self.step_types(&shapes)?;
            self.device.scope(|| {
                let recipe = self.recipe(&groups, &types)?;
                let mut planner = match begun {
                    Some(begun) => begun.training.planner_of(self.model.clone(), recipe)?,
                    None => Training::planner(self.model.clone(), recipe)?,
                };
                let plan = planner.plan(self.request.limit)?;
                Shown::new(&self.name, "batches of PyTorch", batch, &plan)
            })
        })?;
        shown.to_dict(py)
    }

    /// Plans a step on batches of such shapes, takes its memory and the module's tensors.
    fn begin(&self, py: Python<'_>, groups: Vec<Group>, shapes: Vec<Vec<usize>>) -> PyResult<()> {
        let mut begun = taken_from(&self.begun)?;
        if begun.is_some() {
            return Err(PyValueError::new_err("the training has begun already"));
        }
        *begun = Some(run_beside(
            py,
            |resident| resident,
            || {
                let types = self.step_types(&shapes)?;
                let training = self.device.scope(|| -> Result<Training, Failure> {
                    let (recipe, params) = (self.recipe(&groups, &types)?, self.model.params().to_vec());
                    let values = params.iter().map(|param| Value::zeros(param.ty.clone()));
                    let values = values.collect::<Result<Vec<Value>, _>>()?;
                    let mut training = Training::with_values(self.model.clone(), recipe, params, values)?;
                    training.restart(self.seed)?;
                    self.model.restore(&mut training).map_err(wrong)?;
                    Ok(training)
                })?;
                let last = (held(), process::resident().unwrap_or(Bytes::ZERO));
                Ok(Begun { training, batch: Vec::new(), shares: Vec::new(), last })
            },
        )?);
        Ok(())
    }

    /// Gives back all that the training holds, so that it can begin anew with what the module has then.
    fn end(&self) -> PyResult<()> {
        *taken_from(&self.begun)? = None;
        Ok(())
    }

    /// One step on a batch at such learning rates, one a group and behind it the momentum where that is cycled: its loss, the norm of the gradients where they are clipped by it, and where the loss is
    /// scaled the next scale and whether the update was left out.
    fn step(
        &self,
        py: Python<'_>,
        batch: Vec<Bound<'_, PyAny>>,
        rates: Vec<f64>,
    ) -> PyResult<(f64, Option<f64>, Option<f64>, bool)> {
        let arrays = Given::all(&batch)?;
        self.with_batch(py, arrays, self.model.program(), |training, batch| {
            training.set_rates(&rates)?;
            let Outcome { loss, gradient_norm, loss_scale, skipped, .. } = training.run(batch)?;
            Ok((loss, gradient_norm, loss_scale, skipped))
        })
    }

    /// The loss of a batch, by the program that [`TorchTraining::set_evaluation`] gave.
    fn evaluate(&self, py: Python<'_>, batch: Vec<Bound<'_, PyAny>>) -> PyResult<f64> {
        let arrays = Given::all(&batch)?;
        self.with_batch(py, arrays, self.model.program(), |training, batch| {
            Ok(training.evaluate(batch)?.loss)
        })
    }

    /// What the program that [`TorchTraining::set_prediction`] gave makes of a batch.
    fn predict<'py>(&self, py: Python<'py>, batch: Vec<Bound<'py, PyAny>>) -> PyResult<Vec<Predicted<'py>>> {
        let arrays = Given::all(&batch)?;
        let Some(predicted) = self.model.prediction() else {
            return Err(PyValueError::new_err("no program for predictions was given"));
        };
        let found = self.with_batch(py, arrays, predicted.program(), |training, batch| {
            let given = |x: &Value| -> Result<_, Failure> {
                let shape: Vec<usize> = x.shape().iter().copied().collect();
                Ok((Element::from(x.dtype()).numpy_name(), shape, x.to_bytes()?))
            };
            training.predict(batch)?.iter().map(given).collect::<Result<Vec<_>, Failure>>()
        })?;
        let given = |(dtype, shape, bytes): (_, _, Vec<u8>)| (dtype, shape, PyBytes::new(py, &bytes));
        Ok(found.into_iter().map(given).collect())
    }

    /// The bytes of a part of the state: of a tensor of the module, of what the optimizer keeps for it, or of the training itself
    /// (`training.updates`). Axes are in PyTorch's order.
    #[pyo3(signature = (name, slot=None))]
    fn read<'py>(&self, py: Python<'py>, name: &str, slot: Option<&str>) -> PyResult<Bound<'py, PyBytes>> {
        let (mut begun, model) = (taken_from(&self.begun)?, &self.model);
        // Alone, so that it may be looked at without the interpreter's lock.
        let begun = begun.as_mut();
        let bytes = call::caught(py, move || {
            let begun = begun.ok_or_else(|| plain("the training has not begun"))?;
            let wanted = slot.map_or(name.to_string(), |slot| format!("{name}.{slot}"));
            let found = begun.training.state().find(|(known, _)| *known == wanted);
            let (_, value) = found.ok_or_else(|| plain(format!("the training keeps no {wanted}")))?;
            let bytes = value.to_bytes()?;
            match is_of(model, name, value.ty().elements()) {
                true => model.in_order(name, bytes).map_err(wrong),
                false => Ok(bytes),
            }
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Sets a part of the state from its bytes, as [`TorchTraining::read`] gives them.
    #[pyo3(signature = (name, bytes, slot=None))]
    fn write(
        &self,
        py: Python<'_>,
        name: &str,
        bytes: &Bound<'_, PyAny>,
        slot: Option<&str>,
    ) -> PyResult<()> {
        let bytes = Array::new(bytes)?;
        let (mut begun, model) = (taken_from(&self.begun)?, &self.model);
        let begun = begun.as_mut();
        call::caught(py, move || {
            let begun = begun.ok_or_else(|| plain("the training has not begun"))?;
            let wanted = slot.map_or(name.to_string(), |slot| format!("{name}.{slot}"));
            let elements: usize = bytes.shape.iter().product();
            let bytes = bytes.as_ref().to_vec();
            let bytes = match is_of(model, name, elements) {
                true => model.as_stored(name, bytes).map_err(wrong)?,
                false => bytes,
            };
            Ok(begun.training.restore(&wanted, &bytes)?)
        })
    }

    /// What should be told of the training since the last call: that it was planned anew, say.
    fn notices(&self) -> PyResult<Vec<String>> {
        let mut begun = taken_from(&self.begun)?;
        let told = |begun: &mut Begun| [begun.training.take_notice(), begun.training.take_remark()];
        Ok(begun.as_mut().map(told).into_iter().flatten().flatten().collect())
    }
}

/// A number as the bytes of all elements of a type.
fn repeated(value: f64, ty: &Type) -> Vec<u8> {
    match ty.dtype {
        DType::F64 => value.to_le_bytes().repeat(ty.elements()),
        _ => (value as f32).to_le_bytes().repeat(ty.elements()),
    }
}

/// The types of a batch's tensors: element types are the program's.
fn types(program: &Program, shapes: &[Vec<usize>]) -> Result<Vec<Type>, Failure> {
    let inputs = program.inputs();
    if inputs.len() != shapes.len() {
        let (given, wanted) = (shapes.len(), inputs.len());
        return Err(plain(format!("a batch has {given} tensors, and the module was exported with {wanted}")));
    }
    Ok(inputs.iter().zip(shapes).map(|(input, shape)| Type::new(input.dtype, &shape[..])).collect())
}

/// Whether so many elements are those of a tensor of the module, whose axes may be in another order here.
fn is_of(model: &TorchModel, name: &str, elements: usize) -> bool {
    model.program().held().iter().any(|held| held.name == name && held.ty.elements() == elements)
}
