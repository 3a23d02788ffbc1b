//! Moves the state of a training out of a Keras file and back into one.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use plimsoll_formats::Element;
use plimsoll_formats::keras::{Contents, KerasFile, Kind, Variable, write_keras, write_weights};
use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::{Param, Precision, Recipe, Training};
use plimsoll_run::Tensor;
use serde_json::Value;

use crate::KerasModel;
use crate::bind::{self, Binding};
use crate::compile::optimizer_config;
use crate::error::{Error, Result};
use crate::layer::WeightKind;
use crate::optimizer::KerasOptimizer;

/// Where a training keeps its number of updates and its rate.
const UPDATES: &str = "training.updates";
const RATE: &str = "training.rate";

/// A variable of an optimizer in a file, and what it is.
#[derive(Clone, Debug, PartialEq)]
enum Slot {
    Iterations,
    Rate,
    /// The state of this name in a training.
    State(String),
    /// The states of these names, all of the same value.
    Shared(Vec<String>),
}

impl KerasModel {
    /// A training of this model from the file's weights; the optimizer goes on where it was, if the file holds its
    /// state and the recipe's optimizer keeps the same.
    pub fn training(&self, recipe: Recipe) -> Result<Training> {
        let mut training =
            Training::with_values(self.clone(), recipe, self.params().to_vec(), self.values()?)?;
        self.restore_optimizer(&mut training)?;
        Ok(training)
    }

    /// Sets the weights of a training of this model, and its optimizer's state, to what the file holds: for trainings
    /// that start from a seed.
    pub fn restore(&self, training: &mut Training) -> Result<()> {
        self.restore_weights(training)?;
        self.restore_optimizer(training)
    }

    /// Sets the weights of a training of this model to what the file holds, one after the other: beside the training there
    /// are never more than [`KerasModel::restoring_bytes`].
    pub fn restore_weights(&self, training: &mut Training) -> Result<()> {
        for param in self.params() {
            training.restore(&param.name, &self.value_bytes(param)?)?;
        }
        Ok(())
    }

    /// The most bytes that [`KerasModel::restore`] holds beside the training.
    pub fn restoring_bytes(&self) -> plimsoll_device::Bytes {
        let of = |param: &Param| {
            let stored = self.binding(&param.name).and_then(|b| Ok(self.file.variable(&b.path)?.element));
            // Other types than the parameter's own are read and then turned into its bytes.
            let own = param.ty.bytes() as u64;
            match stored {
                Ok(element) if element.dtype() == Some(param.ty.dtype) => own,
                Ok(element) => own + (param.ty.elements() * element.bytes()) as u64,
                Err(_) => own,
            }
        };
        plimsoll_device::Bytes(self.params().iter().map(of).max().unwrap_or(0))
    }

    fn restore_optimizer(&self, training: &mut Training) -> Result<()> {
        let Some(slots) = self.slots(&state_types(training)) else { return Ok(()) };
        let variables = self.stored_optimizer();
        // Without a rate of its own (a schedule's) the file has one variable less.
        if variables.len() != slots.len() {
            return Ok(());
        }
        let dtypes: HashMap<String, DType> =
            training.state().map(|(name, t)| (name.to_string(), t.dtype())).collect();
        let dtype_of = |name: &str| dtypes.get(name).copied().unwrap_or(DType::F32);
        for (slot, variable) in slots.iter().zip(variables) {
            match slot {
                Slot::Iterations => {
                    let updates = read_integer(&self.file, variable)? as f64;
                    training.restore(UPDATES, &updates.to_ne_bytes())?;
                }
                Slot::Rate => {
                    let rate = bind::read_number(&self.file, variable)?;
                    let configured = self.configured().map_or(0.0, |(o, _)| o.lr);
                    // A rate that the caller changed stands.
                    let own = training
                        .state()
                        .find(|(name, _)| *name == RATE)
                        .map(|(_, t)| t.item())
                        .transpose()?;
                    if own == Some(configured) {
                        training.restore(RATE, &rate.to_ne_bytes())?;
                    }
                }
                Slot::Shared(names) => {
                    for name in names {
                        let bytes = bind::read_as(&self.file, variable, dtype_of(name))?;
                        training.restore(name, &bytes)?;
                    }
                }
                Slot::State(name) => {
                    let bytes = bind::read_as(&self.file, variable, dtype_of(name))?;
                    training.restore(name, &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the same file with a training's weights and, where it trains with the file's kind of optimizer, the
    /// optimizer's state, for `keras.models.load_model` and `fit` to go on. Whole or not at all. A legacy file keeps the
    /// variables it has: there the optimizer's state is written only if it was in the file before.
    ///
    /// ```
    /// use plimsoll_graph::{DType, Type};
    /// use plimsoll_keras::KerasModel;
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mlp.keras");
    /// # let written = std::env::temp_dir().join(format!("plimsoll-keras-doc-{}.keras", std::process::id()));
    /// let model = KerasModel::open(path)?;
    /// let training = model.compiled()?.training(4, vec![Type::new(DType::I64, [4])])?;
    /// model.save(&written, &training)?;
    /// assert_eq!(KerasModel::open(&written)?.params().len(), model.params().len());
    /// # std::fs::remove_file(&written).expect("removing what was written");
    /// # Ok::<(), plimsoll_keras::Error>(())
    /// ```
    pub fn save(&self, path: impl AsRef<Path>, training: &Training) -> Result<()> {
        let state: HashMap<&str, &Tensor> = training.state().collect();
        self.save_state(path.as_ref(), &state)
    }

    /// As [`KerasModel::save`], with values in the order of [`KerasModel::params`] and no optimizer's state.
    pub fn save_values(&self, path: impl AsRef<Path>, values: &[Tensor]) -> Result<()> {
        let state = self.params().iter().map(|p| p.name.as_str()).zip(values).collect();
        self.save_state(path.as_ref(), &state)
    }

    /// Writes a training's weights as a `.weights.h5` file, for `model.load_weights`.
    ///
    /// # Errors
    /// The model came from a legacy file, whose weights have other places.
    pub fn save_weights(&self, path: impl AsRef<Path>, training: &Training) -> Result<()> {
        if self.file.kind() == Kind::Legacy {
            let why = "a legacy file's model is written whole; use save";
            return Err(Error::variables(&self.name, why));
        }
        let state: HashMap<&str, &Tensor> = training.state().collect();
        let weights: Vec<Variable> =
            self.file.variables().iter().filter(|v| !v.path.starts_with("optimizer/")).cloned().collect();
        let fill = |v: &Variable, out: &mut dyn Write| self.fill(v, &state, &HashMap::new(), out);
        Ok(write_weights(path.as_ref(), &weights, &self.file.labels(), fill)?)
    }

    fn save_state(&self, path: &Path, state: &HashMap<&str, &Tensor>) -> Result<()> {
        let types = state.iter().map(|(name, t)| (name.to_string(), shape_of(t))).collect();
        let slots = self.slots(&types);
        let kept: Vec<Variable> =
            self.file.variables().iter().filter(|v| !v.path.starts_with("optimizer/")).cloned().collect();
        if self.file.kind() == Kind::Legacy {
            // The file's own list of variables stands; the optimizer's are filled where there are as many.
            let stored = self.stored_optimizer();
            let slots = slots.filter(|slots| slots.len() == stored.len()).unwrap_or_default();
            let by_path = stored.into_iter().map(|v| v.path.clone()).zip(slots).collect();
            return Ok(self.file.save(path, |v, out| self.fill(v, state, &by_path, out))?);
        }
        let mut variables = kept;
        let mut by_path = HashMap::new();
        // Numbers that belong to no one parameter are of Keras's own type, which is that of the whole model.
        let single = if self.precision() == Precision::F64 { Element::F64 } else { Element::F32 };
        for (i, slot) in slots.into_iter().flatten().enumerate() {
            let path = format!("optimizer/vars/{i}");
            let variable = match &slot {
                Slot::Iterations => Variable::new(&path, Element::I64, &[]),
                Slot::Rate | Slot::Shared(_) => Variable::new(&path, single, &[]),
                Slot::State(name) => {
                    let of = state.get(name.as_str());
                    let shape = of.map(|t| shape_of(t)).unwrap_or_default();
                    Variable::new(&path, of.map_or(single, |t| Element::from(t.dtype())), &shape)
                }
            };
            variables.extend(variable);
            by_path.insert(path, slot);
        }
        let labels = self.file.labels();
        let contents = Contents {
            config: self.file.config_json(),
            metadata: self.file.metadata_json(),
            variables: &variables,
            labels: &labels,
        };
        Ok(write_keras(path, &contents, |v, out| self.fill(v, state, &by_path, out))?)
    }

    /// Writes the bytes of a variable: from the state where it is there, else as the file has them.
    fn fill(
        &self,
        variable: &Variable,
        state: &HashMap<&str, &Tensor>,
        slots: &HashMap<String, Slot>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let of_state = |name: &str| {
            let tensor =
                state.get(name).ok_or_else(|| io::Error::other(format!("there is no value of {name}")))?;
            let values = tensor.to_f64().map_err(io::Error::other)?;
            bind::to_bytes(variable.element, &values)
                .ok_or_else(|| io::Error::other(format!("{} is not floating point", variable.path)))
        };
        let bytes = match slots.get(&variable.path) {
            Some(Slot::Iterations) => {
                let updates = state.get(UPDATES).map(|t| t.item()).transpose().map_err(io::Error::other)?;
                let updates = updates.unwrap_or(0.0) as i64;
                match variable.element {
                    Element::I32 => (updates as i32).to_le_bytes().to_vec(),
                    _ => updates.to_le_bytes().to_vec(),
                }
            }
            Some(Slot::Rate) => of_state(RATE)?,
            Some(Slot::State(name)) => of_state(name)?,
            Some(Slot::Shared(names)) => {
                // Parameters without a gradient did not go on; the product of momentums falls from step to step.
                let value = |name: &String| state.get(name.as_str()).and_then(|t| t.item().ok());
                let newest = names.iter().min_by(|a, b| {
                    let of = |name| value(name).unwrap_or(f64::INFINITY);
                    of(a).total_cmp(&of(b))
                });
                of_state(newest.map_or("", String::as_str))?
            }
            None => {
                match self.bindings.iter().find(|b| b.path == variable.path && b.kind != WeightKind::Idle) {
                    Some(binding) => of_state(&binding.name)?,
                    None => {
                        let mut bytes = vec![0; variable.bytes];
                        self.file.read_into(&variable.path, &mut bytes).map_err(io::Error::other)?;
                        bytes
                    }
                }
            }
        };
        out.write_all(&bytes)
    }

    /// The file's optimizer, and whether its rate is a variable; none where it is not known here.
    fn configured(&self) -> Option<(KerasOptimizer, bool)> {
        let config = optimizer_config(self.file.compile_config());
        // A wrapper for half precision keeps variables of its own.
        if config.get("class_name").is_some_and(|c| c == "LossScaleOptimizer") {
            return None;
        }
        let (optimizer, ..) = KerasOptimizer::read(config).ok()?;
        let scheduled =
            config.get("config").and_then(|c| c.get("learning_rate")).is_some_and(Value::is_object);
        Some((optimizer, !scheduled))
    }

    /// The optimizer's variables in the file's order; none if a training does not keep the same.
    fn slots(&self, types: &HashMap<String, Vec<usize>>) -> Option<Vec<Slot>> {
        let (optimizer, has_rate) = self.configured()?;
        let mut slots = vec![Slot::Iterations];
        if has_rate {
            slots.push(Slot::Rate);
        }
        if !types.contains_key(UPDATES) {
            return None;
        }
        for group in optimizer.file_order() {
            for Binding { name, path, .. } in self.bindings.iter().filter(|b| b.trained) {
                let shape = &self.file.variable(path).ok()?.shape;
                for slot in &group {
                    let name = format!("{name}.{slot}");
                    if types.get(&name)? != shape {
                        return None;
                    }
                    slots.push(Slot::State(name));
                }
            }
        }
        if let Some(slot) = optimizer.shared() {
            let names = self.bindings.iter().filter(|b| b.trained).map(|b| format!("{}.{slot}", b.name));
            let names: Vec<String> = names.collect();
            if names.is_empty() || !names.iter().all(|name| types.contains_key(name)) {
                return None;
            }
            slots.push(Slot::Shared(names));
        }
        Some(slots)
    }

    fn stored_optimizer(&self) -> Vec<&Variable> {
        self.file.optimizer_variables()
    }
}

fn shape_of(t: &Tensor) -> Vec<usize> {
    t.shape().to_vec()
}

fn state_types(training: &Training) -> HashMap<String, Vec<usize>> {
    training.state().map(|(name, t)| (name.to_string(), shape_of(t))).collect()
}

fn read_integer(file: &KerasFile, variable: &Variable) -> Result<i64> {
    let mut bytes = vec![0; variable.bytes];
    file.read_into(&variable.path, &mut bytes)?;
    let wrong = || Error::variables(&variable.path, "it should be one whole number");
    match (variable.element, bytes.len()) {
        (Element::I64 | Element::U64, 8) => bytes.try_into().map(i64::from_le_bytes).map_err(|_| wrong()),
        (Element::I32, 4) => bytes.try_into().map(|b| i64::from(i32::from_le_bytes(b))).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}
