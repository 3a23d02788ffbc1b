//! Turns a model of a running Keras into a model of ours, and what was trained of it back into the variables of that Keras.

use std::io;
use std::sync::Arc;

use plimsoll::internals::formats::keras::{Values, Variable};
use plimsoll::internals::run::Precision;
use plimsoll::keras::KerasModel;
use plimsoll::nn::Training;
use plimsoll::prelude::*;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::array::{self, element};
use crate::call;
use crate::errors::{Failure, plain};

/// An output: its name, its shape for one sample, and whether its labels are numbers of classes.
type Described = (String, Vec<Option<usize>>, bool);

/// What Python gives and takes of a model's variables: `read(path)` an array, `write(path, dtype, shape, bytes)`.
struct Variables(Py<PyAny>);

impl Values for Variables {
    fn read_into(&self, path: &str, buffer: &mut [u8]) -> io::Result<()> {
        array::read_into(&self.0, path, buffer, "when the model was read")
    }
}

/// A model of a running Keras.
#[pyclass(frozen, module = "plimsoll._native")]
pub struct LiveModel {
    pub model: KerasModel,
    variables: Arc<Variables>,
}

#[pymethods]
impl LiveModel {
    /// `config` is what would be `config.json` of the model's file, `listed` its variables by path, type and shape, `store` has `read`
    /// and `write` for their values. `inputs` are shapes of samples, where the model leaves axes open.
    #[new]
    #[pyo3(signature = (name, config, version, listed, store, inputs=None, precision=None))]
    fn new(
        py: Python<'_>,
        name: &str,
        config: &str,
        version: &str,
        listed: Vec<(String, String, Vec<usize>)>,
        store: Py<PyAny>,
        inputs: Option<Vec<Vec<usize>>>,
        precision: Option<&str>,
    ) -> PyResult<LiveModel> {
        let variable = |(path, dtype, shape): (String, String, Vec<usize>)| {
            let too_large = || plain(format!("the variable {path} is too large"));
            Variable::new(&path, element(&dtype).map_err(Failure::Raised)?, &shape).ok_or_else(too_large)
        };
        let variables = Arc::new(Variables(store));
        let open = || -> Result<LiveModel, Failure> {
            let listed: Vec<Variable> = listed.into_iter().map(variable).collect::<Result<_, _>>()?;
            let values: Arc<dyn Values> = variables.clone();
            let open = |inputs: Option<&[Type]>| {
                KerasModel::live(name, config, version, listed.clone(), values.clone(), inputs).map_err(plain)
            };
            let mut model = open(None)?;
            if let Some(shapes) = inputs {
                let types: Vec<Type> = shapes
                    .iter()
                    .zip(model.input_dtypes())
                    .map(|(shape, dtype)| Type::new(dtype, [&[1], &shape[..]].concat()))
                    .collect();
                model = open(Some(&types))?;
            }
            if let Some(precision) = precision {
                let precision = precision.parse::<Precision>().map_err(plain)?;
                if precision == Precision::Bf16 {
                    return Err(plain(
                        "precision bf16 is not for models of Keras, whose weights are kept as it has them; take mixed-bf16",
                    ));
                }
                model = model.with_precision(precision);
            }
            Ok(LiveModel { model, variables: variables.clone() })
        };
        call::caught(py, open)
    }

    /// Names of the inputs, each with whether whole numbers are taken as such.
    fn inputs(&self) -> Vec<(String, bool)> {
        let dtypes = self.model.input_dtypes();
        self.model.input_names().into_iter().zip(dtypes.iter().map(|dtype| !dtype.is_float())).collect()
    }

    /// Of each output its name, its shape for one sample, and whether its labels are numbers of classes; the last only where the model
    /// was compiled. Where labels have a length of their own, the first axis is open.
    fn outputs(&self) -> PyResult<Vec<Described>> {
        let (classes, spelled) = match self.model.is_compiled() {
            true => (
                self.model.labels_are_classes().map_err(raised)?,
                self.model.labels_are_spelled().map_err(raised)?,
            ),
            false => (vec![false; self.model.n_outputs()], vec![false; self.model.n_outputs()]),
        };
        let shape = |ty: &Type, is_open: bool| -> Vec<Option<usize>> {
            ty.shape.iter().skip(1).enumerate().map(|(i, &n)| (i > 0 || !is_open).then_some(n)).collect()
        };
        let names = self.model.output_names().iter().cloned();
        Ok(names
            .zip(self.model.outputs())
            .zip(classes.into_iter().zip(spelled))
            .map(|((name, ty), (own, is_open))| (name, shape(ty, is_open), own))
            .collect())
    }

    /// The outputs that have a loss or a metric, by number: labels are given for these.
    fn labelled(&self) -> PyResult<Vec<usize>> {
        Ok(self.model.measured().map_err(raised)?.labelled)
    }

    /// What the model was compiled with and is not followed here, in sentences; `weighted` where samples bring weights,
    /// `trained` where it is to be trained and not only measured.
    fn notices(&self, weighted: bool, trained: bool) -> PyResult<Vec<String>> {
        let compiled = match trained {
            true => self.model.compiled_with(weighted),
            false => self.model.measured_with(weighted),
        };
        let compiled = compiled.map_err(raised)?;
        let others = compiled.other_metrics.iter().map(|metric| format!("a metric is not counted: {metric}"));
        Ok(others.chain(compiled.notices.clone()).collect())
    }
}

fn raised(error: plimsoll::keras::Error) -> PyErr {
    Python::attach(|py| plain(error).raised(py))
}

impl LiveModel {
    /// Room for the largest variable on its way out: its bytes here, those handed to Python, and what its Keras makes of them.
    pub fn exchange_bytes(&self) -> Bytes {
        Bytes(self.model.restoring_bytes().get() * 4)
    }

    /// Gives Keras what was trained.
    pub fn write_back(&self, training: &Training) -> Result<(), Failure> {
        self.written(|take| self.model.each_variable(training, take).map(drop))
    }

    /// Gives Keras what its layers keep from batch to batch, also where nothing was trained.
    pub fn write_kept(&self, training: Option<&Training>) -> Result<(), Failure> {
        training.map_or(Ok(()), |training| self.written(|take| self.model.each_kept(training, take)))
    }

    fn written(
        &self,
        each: impl FnOnce(
            &mut dyn FnMut(&Variable, &[u8]) -> io::Result<()>,
        ) -> Result<(), plimsoll::keras::Error>,
    ) -> Result<(), Failure> {
        let mut raised = None;
        let written = each(&mut |variable, bytes| {
            Python::attach(|py| self.write(py, variable, bytes)).map_err(|error| {
                let told = io::Error::other(error.to_string());
                raised = Some(error);
                told
            })
        });
        match (written, raised) {
            (Ok(()), _) => Ok(()),
            (Err(_), Some(error)) => Err(Failure::Raised(error)),
            (Err(error), None) => Err(plain(error)),
        }
    }

    fn write(&self, py: Python<'_>, variable: &Variable, bytes: &[u8]) -> PyResult<()> {
        let arguments = (
            variable.path.as_str(),
            variable.element.numpy_name(),
            variable.shape.clone(),
            PyBytes::new(py, bytes),
        );
        self.variables.0.bind(py).call_method1("write", arguments).map(drop)
    }

    /// Whether Keras holds other values than the training: somebody changed them.
    pub fn is_changed(&self, training: &Training) -> Result<bool, Failure> {
        let (mut held, mut changed) = (Vec::new(), false);
        self.model
            .each_variable(training, |variable, bytes| {
                if !changed && !self.is_rate(variable)? {
                    held.resize(bytes.len(), 0);
                    self.variables.read_into(&variable.path, &mut held)?;
                    changed = held != bytes;
                }
                Ok(())
            })
            .map_err(plain)?;
        Ok(changed)
    }

    /// Whether a variable is the learning rate, which is Keras's own to say.
    fn is_rate(&self, variable: &Variable) -> io::Result<bool> {
        let asked = Python::attach(|py| {
            self.variables.0.bind(py).call_method1("is_rate", (variable.path.as_str(),))?.extract::<bool>()
        });
        asked.map_err(array::kept)
    }
}
