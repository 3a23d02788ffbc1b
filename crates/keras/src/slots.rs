//! The optimizer's variables in a file, in Keras's order, and what each of them is in a training.

use std::collections::HashMap;

use plimsoll_formats::Element;
use plimsoll_formats::keras::{Kind, Variable};
use plimsoll_nn::Precision;

use crate::KerasModel;
use crate::bind::{self, Binding};
use crate::compile::optimizer_config;
use crate::error::{Error, Result};
use crate::optimizer::KerasOptimizer;
use crate::optimizer_config::OptimizerConfig;

/// Where a training keeps its number of updates and its rate, its loss scale and the steps since that changed.
pub(crate) const UPDATES: &str = "training.updates";
pub(crate) const RATE: &str = "training.rate";
pub(crate) const SCALE: &str = "training.loss_scale";
pub(crate) const FINITE_STEPS: &str = "training.finite_steps";

/// A variable of an optimizer in a file, and what it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Slot {
    Iterations,
    Rate,
    /// The state of this name in a training, of this shape.
    State(String, Vec<usize>),
    /// The states of these names, all of the same value.
    Shared(Vec<String>),
    /// The iterations and the rate of an optimizer that only scales the loss for another: nobody counts them.
    OuterIterations,
    OuterRate,
    /// A number that Keras keeps where an optimizer has nothing to keep.
    Untouched,
    /// A rate that no training changes.
    FixedRate(f64),
    /// The steps since the loss scale changed.
    FiniteSteps,
    /// The loss scale, and what it starts with.
    Scale(f64),
}

impl Slot {
    /// The variable as a file that has none would have it. `single` is the type of numbers that belong to no parameter.
    pub(crate) fn variable(
        &self,
        path: &str,
        single: Element,
        of_state: Option<Element>,
    ) -> Option<Variable> {
        match self {
            Slot::Iterations | Slot::OuterIterations | Slot::FiniteSteps => {
                Variable::new(path, Element::I64, &[])
            }
            Slot::Rate | Slot::Shared(_) | Slot::OuterRate | Slot::FixedRate(_) => {
                Variable::new(path, single, &[])
            }
            Slot::Untouched => Variable::new(path, Element::I32, &[]),
            Slot::Scale(_) => Variable::new(path, Element::F32, &[]),
            Slot::State(_, shape) => Variable::new(path, of_state.unwrap_or(single), shape),
        }
    }
}

/// Whether a training of these names and shapes keeps what the slots hold.
pub(crate) fn fit(slots: &[(String, Slot)], types: &HashMap<String, Vec<usize>>) -> bool {
    types.contains_key(UPDATES)
        && slots.iter().all(|(_, slot)| match slot {
            Slot::State(name, shape) => types.get(name) == Some(shape),
            Slot::Shared(names) => names.iter().all(|name| types.contains_key(name)),
            _ => true,
        })
}

impl KerasModel {
    /// What the file says of its optimizer; none where it says nothing, or what is not known here.
    pub(crate) fn optimizer_config(&self) -> Option<OptimizerConfig> {
        OptimizerConfig::read(optimizer_config(self.file.compile_config())).ok()
    }

    /// The optimizer's variables by path, as a file of this model holds them. None where the optimizer is not known here, and
    /// where an old file holds others.
    pub(crate) fn slots(&self) -> Option<Vec<(String, Slot)>> {
        let config = self.optimizer_config()?;
        let optimizer = &config.optimizer;
        let mut inner = vec![Slot::Iterations];
        if !config.is_scheduled {
            inner.push(Slot::Rate);
        }
        let trained = || self.bindings.iter().filter(|b| b.trained);
        if optimizer.parts.is_empty() {
            inner.extend(self.states(optimizer, |_| true)?);
        } else {
            inner = vec![Slot::Iterations, Slot::FixedRate(0.0)];
        }
        for part in &optimizer.parts {
            // One that moves nothing does not count.
            inner.push(if part.paths.is_empty() { Slot::OuterIterations } else { Slot::Iterations });
            inner.push(Slot::FixedRate(part.optimizer.lr));
            inner.extend(self.states(&part.optimizer, |binding| part.paths.contains(&binding.path))?);
        }
        if let Some(slot) = optimizer.shared() {
            let names: Vec<String> = trained().map(|b| format!("{}.{slot}", b.name)).collect();
            if names.is_empty() {
                return None;
            }
            inner.push(Slot::Shared(names));
        }
        // One that scales the loss lists its own variables, and then those of the optimizer inside.
        let outer = match config.scale {
            None => Vec::new(),
            Some(scale) => {
                vec![Slot::OuterIterations, Slot::OuterRate, Slot::FiniteSteps, Slot::Scale(scale)]
            }
        };
        let is_scaled = !outer.is_empty();
        let all: Vec<Slot> = outer.into_iter().chain(inner.iter().cloned()).collect();
        if self.file.kind() == Kind::Legacy {
            let stored = self.file.optimizer_variables();
            let paths = stored.iter().map(|v| v.path.clone());
            return (stored.len() == all.len()).then(|| paths.zip(all).collect());
        }
        let under = |folder: &str, slots: Vec<Slot>| -> Vec<(String, Slot)> {
            slots.into_iter().enumerate().map(|(i, slot)| (format!("{folder}/{i}"), slot)).collect()
        };
        let mut slots = under("optimizer/vars", all);
        if is_scaled {
            slots.extend(under("optimizer/inner_optimizer/vars", inner));
        }
        Some(slots)
    }

    /// What an optimizer keeps for the parameters that it moves, in the file's order.
    fn states(&self, optimizer: &KerasOptimizer, is_own: impl Fn(&Binding) -> bool) -> Option<Vec<Slot>> {
        let mut found = Vec::new();
        for group in optimizer.file_order() {
            for Binding { name, path, .. } in self.bindings.iter().filter(|b| b.trained && is_own(b)) {
                let shape = &self.file.variable(path).ok()?.shape;
                let own = |slot: &&str| match optimizer.slot_shape(slot, name, shape) {
                    Some(shape) => Some(Slot::State(format!("{name}.{slot}"), shape)),
                    None => optimizer.fills_up().then_some(Slot::Untouched),
                };
                found.extend(group.iter().filter_map(own));
            }
        }
        Some(found)
    }

    /// The optimizer's variables that the file holds, where they are all that there should be.
    pub(crate) fn stored_slots(&self) -> Option<Vec<(&Variable, Slot)>> {
        let slots = self.slots()?;
        if slots.len() != self.file.optimizer_variables().len() {
            return None;
        }
        let stored = |(path, slot): (String, Slot)| Some((self.file.variable(&path).ok()?, slot));
        slots.into_iter().map(stored).collect()
    }

    /// The number of updates and the learning rate that the file's optimizer has come to.
    pub(crate) fn stored_progress(&self) -> Result<(u64, Option<f64>)> {
        let (mut updates, mut rate) = (0, None);
        for (variable, slot) in self.stored_slots().unwrap_or_default() {
            match slot {
                Slot::Iterations => updates = u64::try_from(self.read_integer(variable)?).unwrap_or(0),
                Slot::Rate => rate = Some(bind::read_number(&self.file, variable)?).filter(|x| x.is_finite()),
                _ => {}
            }
        }
        Ok((updates, rate))
    }

    /// That the file holds an optimizer's state which cannot be taken up, if it does.
    pub(crate) fn state_left(&self) -> Option<String> {
        let stored = self.file.optimizer_variables();
        // Without slots there is nothing but a count and a rate.
        let is_state = stored.iter().any(|variable| !variable.shape.is_empty());
        if !is_state || self.stored_slots().is_some() {
            return None;
        }
        let n = stored.len();
        Some(format!(
            "the state of the optimizer in {} is not taken up, so that it starts afresh: its {n} variables are not in today's order",
            self.name
        ))
    }

    pub(crate) fn read_integer(&self, variable: &Variable) -> Result<i64> {
        let mut bytes = vec![0; variable.bytes];
        self.file.read_into(&variable.path, &mut bytes)?;
        let wrong = || Error::variables(&variable.path, "it should be one whole number");
        match (variable.element, bytes.len()) {
            (Element::I64 | Element::U64, 8) => bytes.try_into().map(i64::from_le_bytes).map_err(|_| wrong()),
            (Element::I32 | Element::U32, 4) => {
                bytes.try_into().map(|b| i64::from(i32::from_le_bytes(b))).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }

    /// The type of numbers that belong to no one parameter: Keras's own, which is that of the whole model.
    pub(crate) fn single(&self) -> Element {
        if self.precision() == Precision::F64 { Element::F64 } else { Element::F32 }
    }
}
