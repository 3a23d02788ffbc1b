//! Turns Python's words for optimizers, schedules, losses and metrics into those of the engine; what is not known is refused by name.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use plimsoll::internals::graph::{DType, Type};
use plimsoll::internals::run::Error;
use plimsoll::nn::{
    Adafactor, Adagrad, Adam, Auc, Decay, Ftrl, Lion, Loss, Measure, Metric, Optimizer, OwnMetric, RmsProp,
    Schedule, ScheduleShape as Shape, Sgd, View, binary_cross_entropy, huber, mae, mse,
    softmax_cross_entropy,
};
use plimsoll::prelude::{Tensor as Value, TensorOps as _};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::errors::Failure;
use crate::follower::Raised;
use crate::net::{PyLoss, Thrown};

/// Settings of an optimizer or a schedule, by name: each is taken once, and what is left over is refused.
struct Given<'a> {
    what: &'a str,
    values: BTreeMap<String, Bound<'a, PyAny>>,
    known: Vec<&'static str>,
}

impl Given<'_> {
    fn number(&mut self, name: &'static str, usual: f64) -> PyResult<f64> {
        self.known.push(name);
        let Some(value) = self.values.remove(name) else { return Ok(usual) };
        value.extract::<f64>().map_err(|_| self.wrong(name, "a number", &value))
    }

    fn flag(&mut self, name: &'static str) -> PyResult<bool> {
        self.known.push(name);
        let Some(value) = self.values.remove(name) else { return Ok(false) };
        value.extract::<bool>().map_err(|_| self.wrong(name, "True or False", &value))
    }

    fn numbers(&mut self, name: &'static str) -> PyResult<Vec<f64>> {
        self.known.push(name);
        let Some(value) = self.values.remove(name) else { return Ok(Vec::new()) };
        value.extract::<Vec<f64>>().map_err(|_| self.wrong(name, "a list of numbers", &value))
    }

    /// A number that must be given.
    fn steps(&mut self, name: &'static str) -> PyResult<f64> {
        let steps = self.number(name, f64::NAN)?;
        match steps > 0.0 {
            true => Ok(steps),
            false => Err(PyValueError::new_err(format!("{} wants {name}, a number above 0", self.what))),
        }
    }

    fn wrong(&self, name: &str, wanted: &str, value: &Bound<'_, PyAny>) -> PyErr {
        PyTypeError::new_err(format!("{name} of {} is {wanted}, not {value}", self.what))
    }

    fn decay(&mut self, usual: f64, is_decoupled: bool) -> PyResult<Decay> {
        let rate = self.number("weight_decay", usual)?;
        let decay = if is_decoupled { Decay::decoupled(rate) } else { Decay::l2(rate) };
        Ok(if self.flag("decay_matrices_only")? { decay.matrices_only() } else { decay })
    }

    fn end(self) -> PyResult<()> {
        let Some(other) = self.values.keys().next() else { return Ok(()) };
        let known = self.known.join(", ");
        Err(PyValueError::new_err(format!("{} has no setting {other}; it has {known}", self.what)))
    }
}

/// Settings by name.
pub type Named<'py> = BTreeMap<String, Bound<'py, PyAny>>;

/// A rule with those of its numbers that are given, by the names of their fields.
macro_rules! with_numbers {
    ($given:ident, $usual:expr; $($field:ident),*) => {{
        let mut rule = $usual;
        $(rule.$field = $given.number(stringify!($field), rule.$field)?;)*
        rule
    }};
}

/// An optimizer by name, with settings by name.
pub fn optimizer(name: &str, lr: f64, values: Named<'_>) -> PyResult<Arc<dyn Optimizer>> {
    if !(lr.is_finite() && lr >= 0.0) {
        return Err(PyValueError::new_err(format!("the learning rate is {lr}; it must be 0 or more")));
    }
    let mut given = Given { what: name, values, known: Vec::new() };
    let made: Arc<dyn Optimizer> = match name {
        "sgd" | "momentum" | "nesterov" => {
            let momentum = given.number("momentum", if name == "sgd" { 0.0 } else { 0.9 })?;
            let is_nesterov = given.flag("nesterov")? || name == "nesterov";
            Arc::new(Sgd { lr, momentum, is_nesterov, decay: given.decay(0.0, false)? })
        }
        "adam" | "adamw" => {
            let rule = with_numbers!(given, Adam::new(lr); beta1, beta2, eps);
            let decay = if name == "adamw" { given.decay(0.01, true)? } else { given.decay(0.0, false)? };
            Arc::new(Adam { decay, ..rule })
        }
        "rmsprop" => {
            let rule = with_numbers!(given, RmsProp::new(lr); alpha, eps, momentum);
            let is_centered = given.flag("centered")?;
            Arc::new(RmsProp { is_centered, decay: given.decay(0.0, false)?, ..rule })
        }
        "adagrad" => {
            let rule = with_numbers!(given, Adagrad::new(lr); lr_decay, start, eps);
            Arc::new(Adagrad { decay: given.decay(0.0, false)?, ..rule })
        }
        "ftrl" => Arc::new(with_numbers!(given, Ftrl::new(lr); power, start, l1, l2, shrinkage, beta)),
        "lion" => {
            let rule = with_numbers!(given, Lion::new(lr); beta1, beta2);
            Arc::new(Lion { decay: given.decay(0.0, true)?, ..rule })
        }
        "adafactor" => {
            let rule = with_numbers!(given, Adafactor::new(lr); beta2_decay, eps1, eps2, clip);
            Arc::new(Adafactor { decay: given.decay(0.0, true)?, ..rule })
        }
        other => {
            return Err(PyValueError::new_err(format!(
                "there is no optimizer {other}; name sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, ftrl, lion or adafactor"
            )));
        }
    };
    given.end()?;
    Ok(made)
}

/// A schedule by the name of its shape, with settings by name.
pub fn schedule(name: &str, values: Named<'_>) -> PyResult<Schedule> {
    let mut given = Given { what: name, values, known: Vec::new() };
    let shape = match name {
        "constant" => Shape::Constant,
        "step" => {
            Shape::Step { every: given.steps("every")?.round() as u64, factor: given.number("factor", 0.1)? }
        }
        "exponential" => Shape::Exponential { factor: given.steps("factor")? },
        "cosine" => {
            Shape::Cosine { total: given.steps("steps")?.round() as u64, floor: given.number("floor", 0.0)? }
        }
        "polynomial" => Shape::Polynomial {
            total: given.steps("steps")?.round() as u64,
            power: given.number("power", 1.0)?,
            floor: given.number("floor", 0.0)?,
        },
        "one_cycle" => Shape::OneCycle {
            total: given.steps("steps")?.round() as u64,
            rise: given.number("rise", 0.3)?,
            start_divisor: given.number("start_divisor", 25.0)?,
            end_divisor: given.number("end_divisor", 1e4)?,
        },
        "inverse" => Shape::Inverse {
            every: given.steps("every")?,
            decay: given.number("decay", 1.0)?,
            stairs: given.flag("stairs")?,
        },
        "pieces" => {
            let (ends, factors) = (given.numbers("ends")?, given.numbers("factors")?);
            if factors.len() != ends.len() + 1 || !ends.is_sorted() {
                return Err(PyValueError::new_err(
                    "pieces wants ends in rising order, and one factor more than those",
                ));
            }
            Shape::Pieces { ends, factors }
        }
        "restarts" => Shape::Restarts {
            first: given.steps("first")?,
            longer: given.number("longer", 1.0)?,
            lower: given.number("lower", 1.0)?,
            floor: given.number("floor", 0.0)?,
        },
        other => {
            return Err(PyValueError::new_err(format!(
                "there is no schedule {other}; name constant, step, exponential, cosine, polynomial, one_cycle, inverse, pieces or restarts"
            )));
        }
    };
    let warm_up = given.number("warm_up", 0.0)?;
    if warm_up.is_nan() || warm_up < 0.0 {
        return Err(PyValueError::new_err(format!("warm_up is {warm_up}; it must be 0 or more")));
    }
    given.end()?;
    Ok(Schedule { shape, warm_up: warm_up.round() as u64, done: 0 })
}

/// A schedule that is a function of Python: the factor on the learning rate at a step.
pub fn own_schedule(function: Py<PyAny>, raised: Raised) -> Schedule {
    Schedule::from_fn(move |step| {
        let asked = Python::attach(|py| function.bind(py).call1((step,))?.extract::<f64>());
        // What is no number ends the run at that step.
        asked.unwrap_or_else(|error| {
            raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(Failure::Raised(error));
            f64::NAN
        })
    })
}

/// A loss: a name, or a function of Python.
pub fn loss(given: &Bound<'_, PyAny>, thrown: &Thrown) -> PyResult<Arc<dyn Loss>> {
    Ok(match given.extract::<&str>() {
        Ok("softmax_cross_entropy") => Arc::new(softmax_cross_entropy),
        Ok("binary_cross_entropy") => Arc::new(binary_cross_entropy),
        Ok("mse") => Arc::new(mse),
        Ok("mae") => Arc::new(mae),
        Ok("huber") => Arc::new(huber(1.0)),
        Ok(other) => {
            return Err(PyValueError::new_err(format!(
                "there is no loss {other}; name softmax_cross_entropy, binary_cross_entropy, mse, mae or huber, or give a function"
            )));
        }
        Err(_) if given.is_callable() => {
            Arc::new(PyLoss { function: given.clone().unbind(), thrown: thrown.clone() })
        }
        Err(_) => return Err(PyTypeError::new_err("a loss is a name or a function")),
    })
}

/// A metric: a name, or a function of Python.
pub fn metric(given: &Bound<'_, PyAny>, thrown: &Thrown) -> PyResult<Measure> {
    let Ok(name) = given.extract::<&str>() else {
        if !given.is_callable() {
            return Err(PyTypeError::new_err("a metric is a name or a function"));
        }
        let name: String =
            given.getattr("__name__").and_then(|name| name.extract()).unwrap_or("metric".into());
        return Ok(Measure::own(
            &name,
            PyMetric { function: given.clone().unbind(), thrown: thrown.clone() },
        ));
    };
    let of_logits = |metric: Metric| Measure { view: View::Sigmoid, ..metric.into() };
    Ok(match name {
        "accuracy" => Metric::Accuracy.into(),
        "binary_accuracy" => Metric::BinaryAccuracy.into(),
        "precision" => of_logits(Metric::Precision { threshold: 0.5, class: None }),
        "recall" => of_logits(Metric::Recall { threshold: 0.5, class: None }),
        "auc" => of_logits(Metric::Auc(Auc::default())),
        "mean_iou" => Metric::MeanIou.into(),
        "cross_entropy" => Metric::CrossEntropy.into(),
        "perplexity" => Metric::Perplexity.into(),
        "mae" => Metric::Mae.into(),
        "mse" => Metric::Mse.into(),
        "rmse" => Metric::Rmse.into(),
        "r2" => Metric::R2.into(),
        other => match other.strip_prefix("top").and_then(|k| k.parse().ok()).filter(|k| *k > 0) {
            Some(k) => Metric::TopK(k).into(),
            None => {
                return Err(PyValueError::new_err(format!(
                    "there is no metric {other}; name accuracy, top5, binary_accuracy, precision, recall, auc, mean_iou, cross_entropy, perplexity, \
                     mae, mse, rmse or r2, or give a function"
                )));
            }
        },
    })
}

/// A metric that is a function of Python, `metric(output, label)`: the mean of the elements that it gives.
struct PyMetric {
    function: Py<PyAny>,
    thrown: Thrown,
}

impl OwnMetric for PyMetric {
    fn sums(&self, output: &Value, label: &Value) -> Result<Value, Error> {
        let loss = PyLoss {
            function: Python::attach(|py| self.function.clone_ref(py)),
            thrown: self.thrown.clone(),
        };
        let each = loss.loss(std::slice::from_ref(output), std::slice::from_ref(label))?.cast(DType::F32)?;
        let count = each.full_like(Type::new(DType::F32, [1]), each.ty().elements() as f64)?;
        let axes: Vec<usize> = (0..each.shape().rank()).collect();
        let total = if axes.is_empty() { each } else { each.sum(&axes, false)? };
        Value::concat(&[&total.reshape([1])?, &count], 0)
    }

    fn finish(&self, sums: &[f64]) -> f64 {
        match sums {
            [total, count] => total / count,
            _ => f64::NAN,
        }
    }
}
