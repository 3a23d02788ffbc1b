//! Moves the state of a training out of a Keras file and back into one.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use plimsoll_formats::Element;
use plimsoll_formats::keras::{Contents, Kind, Variable, write_keras, write_weights};
use plimsoll_graph::DType;
use plimsoll_nn::{OwnState, Param, Recipe, Training, WholeSource};
use plimsoll_run::Tensor;

use crate::KerasModel;
use crate::bind::{self, Binding};
use crate::error::{Error, Result};
use crate::layer::WeightKind;
use crate::layers::KEPT_AT;
use crate::optimizer::GROWTH;
use crate::slots::{FINITE_STEPS, RATE, SCALE, Slot, UPDATES, fit};
use crate::written_state::WrittenState;

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
            training.restore_whole(&param.name, &self.value_bytes(param)?)?;
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
        let types = state_types(training);
        if let (Some(scale), true) =
            (self.optimizer_config().and_then(|config| config.scale), types.contains_key(SCALE))
        {
            training.restore(SCALE, &(scale as f32).to_ne_bytes())?;
        }
        let Some(stored) = self.stored_slots() else { return Ok(()) };
        let listed: Vec<(String, Slot)> =
            stored.iter().map(|(v, slot)| (v.path.clone(), slot.clone())).collect();
        if !fit(&listed, &types) {
            return Ok(());
        }
        let dtypes: HashMap<String, DType> =
            training.whole_state().map(|part| (part.name.to_string(), part.whole.dtype)).collect();
        let dtype_of = |name: &str| dtypes.get(name).copied().unwrap_or(DType::F32);
        for (variable, slot) in stored {
            match slot {
                Slot::Iterations => {
                    let updates = self.read_integer(variable)? as f64;
                    training.restore(UPDATES, &updates.to_ne_bytes())?;
                }
                // The rate is in the optimizer that was read: one that the caller changed stands.
                Slot::Rate
                | Slot::OuterIterations
                | Slot::OuterRate
                | Slot::FixedRate(_)
                | Slot::Untouched => {}
                Slot::FiniteSteps if types.contains_key(FINITE_STEPS) => {
                    let steps = self.read_integer(variable)? as f32;
                    training.restore(FINITE_STEPS, &steps.to_ne_bytes())?;
                }
                Slot::Scale(_) if types.contains_key(SCALE) => {
                    let scale = bind::read_number(&self.file, variable)? as f32;
                    training.restore(SCALE, &scale.to_ne_bytes())?;
                }
                Slot::FiniteSteps | Slot::Scale(_) => {}
                Slot::Shared(names) => {
                    for name in names {
                        let bytes = bind::read_as(&self.file, variable, dtype_of(&name))?;
                        training.restore_whole(&name, &bytes)?;
                    }
                }
                Slot::State(name, _) => {
                    let bytes = bind::read_as(&self.file, variable, dtype_of(&name))?;
                    training.restore_whole(&name, &bytes)?;
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
        self.save_from(path, training, &OwnState)
    }

    /// As [`KerasModel::save`], where ranks have parts of the state: `whole` puts together one value at a time, and no other is there beside it.
    ///
    /// # Errors
    /// A value could not be put together, or the file could not be written.
    pub fn save_from(
        &self,
        path: impl AsRef<Path>,
        training: &Training,
        whole: &dyn WholeSource,
    ) -> Result<()> {
        self.save_state(path.as_ref(), &WrittenState::of(training, whole))
    }

    /// As [`KerasModel::save`], with values in the order of [`KerasModel::params`] and no optimizer's state.
    pub fn save_values(&self, path: impl AsRef<Path>, values: &[Tensor]) -> Result<()> {
        let names = self.params().iter().map(|p| p.name.as_str());
        self.save_state(path.as_ref(), &WrittenState::of_values(names.zip(values)))
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
        let state = WrittenState::of(training, &OwnState);
        let weights: Vec<Variable> =
            self.file.variables().iter().filter(|v| !v.path.starts_with("optimizer/")).cloned().collect();
        let fill = |v: &Variable, out: &mut dyn Write| self.fill(v, &state, &HashMap::new(), out);
        Ok(write_weights(path.as_ref(), &weights, &self.file.labels(), fill)?)
    }

    /// What a file of this model is called: Keras tells the two kinds apart by the ending.
    ///
    /// ```
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/legacy.h5");
    /// let model = plimsoll_keras::KerasModel::open(path)?;
    /// assert_eq!(model.saved_name("trained"), "trained.h5");
    /// # Ok::<(), plimsoll_keras::Error>(())
    /// ```
    pub fn saved_name(&self, stem: &str) -> String {
        let ending = if self.file.kind() == Kind::Legacy { "h5" } else { "keras" };
        format!("{stem}.{ending}")
    }

    /// Refuses a name under which Keras would not open what is written.
    fn check_name(&self, path: &Path) -> Result<()> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let fits = match self.file.kind() {
            Kind::Legacy => ["h5", "hdf5"].contains(&ending),
            _ => ending == "keras",
        };
        if fits {
            return Ok(());
        }
        let kind = if self.file.kind() == Kind::Legacy { "a legacy HDF5 file" } else { "a .keras archive" };
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("model");
        let why = format!(
            "the model of {} is written as {kind}, which Keras does not open under this name; call it {}",
            self.name,
            self.saved_name(stem)
        );
        Err(Error::config(path.display().to_string(), why))
    }

    fn save_state(&self, path: &Path, state: &WrittenState<'_>) -> Result<()> {
        self.check_name(path)?;
        let (variables, slots) = self.written(state);
        if self.file.kind() == Kind::Legacy {
            // The file's own list of variables stands.
            return Ok(self.file.save(path, |v, out| self.fill(v, state, &slots, out))?);
        }
        let labels = self.file.labels();
        let contents = Contents {
            config: self.file.config_json(),
            metadata: self.file.metadata_json(),
            variables: &variables,
            labels: &labels,
        };
        Ok(write_keras(path, &contents, |v, out| self.fill(v, state, &slots, out))?)
    }

    /// The variables that a file of this state holds: weights, and where the state is of the file's kind of optimizer, that one's, with
    /// what each of those is.
    fn written(&self, state: &WrittenState<'_>) -> (Vec<Variable>, HashMap<String, Slot>) {
        let slots = self.slots().filter(|slots| fit(slots, &state.shapes())).unwrap_or_default();
        let mut variables: Vec<Variable> =
            self.file.variables().iter().filter(|v| !v.path.starts_with("optimizer/")).cloned().collect();
        for (path, slot) in &slots {
            let element = match slot {
                Slot::State(name, _) => state.dtype(name).map(Element::from),
                _ => None,
            };
            variables.extend(slot.variable(path, self.single(), element));
        }
        (variables, slots.into_iter().collect())
    }

    /// Gives what a training has changed of the model's variables, one after the other, each with its bytes as a file would hold them:
    /// weights, statistics and, where it trains with the model's own optimizer, that one's state. Whether that is among them is returned.
    ///
    /// ```
    /// use plimsoll_graph::{DType, Type};
    /// use plimsoll_keras::KerasModel;
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mlp.keras");
    /// let model = KerasModel::open(path)?;
    /// let training = model.compiled()?.training(4, vec![Type::new(DType::I64, [4])])?;
    /// let mut bytes = 0;
    /// model.each_variable(&training, |variable, value| {
    ///     assert_eq!(variable.bytes, value.len());
    ///     bytes += value.len();
    ///     Ok(())
    /// })?;
    /// assert!(bytes > 0);
    /// # Ok::<(), plimsoll_keras::Error>(())
    /// ```
    ///
    /// # Errors
    /// `take` refused one; those behind it are not given then.
    pub fn each_variable(
        &self,
        training: &Training,
        mut take: impl FnMut(&Variable, &[u8]) -> io::Result<()>,
    ) -> Result<bool> {
        let state = WrittenState::of(training, &OwnState);
        let (variables, slots) = self.written(&state);
        let mut bytes = Vec::new();
        for variable in &variables {
            let stored = || self.file.variable(&variable.path).ok();
            // What is not trained here, and seeds, are as they were.
            let is_weight =
                || self.bindings.iter().any(|b| b.path == variable.path && b.weight.kind != WeightKind::Idle);
            if !slots.contains_key(&variable.path) && !is_weight() {
                continue;
            }
            // Who has the variable already knows its type.
            let variable = stored().unwrap_or(variable);
            bytes.clear();
            let failed = |e: io::Error| Error::variables(&variable.path, e.to_string());
            self.fill(variable, &state, &slots, &mut bytes).map_err(failed)?;
            take(variable, &bytes).map_err(failed)?;
        }
        Ok(!slots.is_empty())
    }

    /// As [`KerasModel::each_variable`], of what layers keep from batch to batch, also where nothing is trained.
    ///
    /// # Errors
    /// `take` refused one.
    pub fn each_kept(
        &self,
        training: &Training,
        mut take: impl FnMut(&Variable, &[u8]) -> io::Result<()>,
    ) -> Result<()> {
        let kept: Vec<&Binding> =
            self.bindings.iter().filter(|binding| binding.weight.holder == KEPT_AT).collect();
        if kept.is_empty() {
            return Ok(());
        }
        let state = WrittenState::of(training, &OwnState);
        for binding in kept {
            let (variable, mut bytes) = (self.file.variable(&binding.path)?, Vec::new());
            let failed = |e: io::Error| Error::variables(&binding.path, e.to_string());
            self.fill(variable, &state, &HashMap::new(), &mut bytes).map_err(failed)?;
            take(variable, &bytes).map_err(failed)?;
        }
        Ok(())
    }

    /// Writes the bytes of a variable: from the state where it is there, else as the file has them.
    fn fill(
        &self,
        variable: &Variable,
        state: &WrittenState<'_>,
        slots: &HashMap<String, Slot>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let of_state = |name: &str| state.write(name, variable);
        let whole = |number: f64| match variable.element {
            Element::I32 | Element::U32 => (number as i32).to_le_bytes().to_vec(),
            _ => (number as i64).to_le_bytes().to_vec(),
        };
        let number = |name: &str| state.number(name);
        let single = |number: f64| {
            let bytes = bind::to_bytes(variable.element, &[number]);
            bytes.ok_or_else(|| io::Error::other(format!("{} is not floating point", variable.path)))
        };
        let growth =
            self.optimizer_config().and_then(|config| config.optimizer.growth).unwrap_or(GROWTH).max(1)
                as f64;
        let bytes = match slots.get(&variable.path) {
            Some(Slot::Iterations) => whole(number(UPDATES)?.unwrap_or(0.0)),
            Some(Slot::Rate) => of_state(RATE)?,
            Some(Slot::OuterIterations) => whole(0.0),
            Some(Slot::OuterRate) => single(0.0)?,
            Some(Slot::FixedRate(rate)) => single(*rate)?,
            // In f32 and f64 nothing is scaled here; Keras counts all the same, and doubles the scale after so many steps.
            Some(Slot::FiniteSteps) => match number(FINITE_STEPS)? {
                Some(steps) => whole(steps),
                None => {
                    let (before, _) = self.stored_progress().map_err(io::Error::other)?;
                    let stored = self.read_integer(variable).unwrap_or(0) as f64;
                    whole((stored + number(UPDATES)?.unwrap_or(0.0) - before as f64).max(0.0) % growth)
                }
            },
            Some(Slot::Scale(start)) => match number(SCALE)? {
                Some(scale) => single(scale)?,
                None => {
                    let (before, _) = self.stored_progress().map_err(io::Error::other)?;
                    let stored = bind::read_number(&self.file, variable).unwrap_or(*start);
                    let times = |updates: f64| (updates / growth).floor();
                    let doubled = times(number(UPDATES)?.unwrap_or(0.0)) - times(before as f64);
                    single(stored * doubled.max(0.0).exp2())?
                }
            },
            Some(Slot::State(name, _)) => of_state(name)?,
            Some(Slot::Shared(names)) => {
                // Parameters without a gradient did not go on; the product of momentums falls from step to step.
                // One after the other: of each, ranks may have to hand it.
                let mut newest: Option<(f64, &str)> = None;
                for name in names {
                    let value = number(name)?.unwrap_or(f64::INFINITY);
                    if newest.is_none_or(|(least, _)| value < least) {
                        newest = Some((value, name));
                    }
                }
                of_state(newest.map_or("", |(_, name)| name))?
            }
            Some(Slot::Untouched) => {
                let mut bytes = vec![0; variable.bytes];
                // Nought, where the file has none yet.
                if self.file.variable(&variable.path).is_ok() {
                    self.file.read_into(&variable.path, &mut bytes).map_err(io::Error::other)?;
                }
                bytes
            }
            None => {
                match self
                    .bindings
                    .iter()
                    .find(|b| b.path == variable.path && b.weight.kind != WeightKind::Idle)
                {
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
}

fn state_types(training: &Training) -> HashMap<String, Vec<usize>> {
    training.whole_state().map(|part| (part.name.to_string(), part.whole.shape.to_vec())).collect()
}
