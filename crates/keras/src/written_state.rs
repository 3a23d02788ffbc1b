//! Turns a training's state into the bytes of a file's variables, one whole value at a time.

use std::collections::HashMap;
use std::io;

use plimsoll_formats::Element;
use plimsoll_formats::keras::Variable;
use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::{OfRanks, OwnState, Training, WholeSource};
use plimsoll_run::Tensor;

use crate::bind;

/// So many elements of another type than the file's are turned into it at once: so a value of any size takes no more than its bytes.
const AT_ONCE: usize = 1 << 13;

/// What is written, by name.
pub(crate) struct WrittenState<'a> {
    parts: HashMap<&'a str, OfRanks<'a>>,
    whole: &'a dyn WholeSource,
}

impl<'a> WrittenState<'a> {
    /// All of a training's state, put together where ranks have parts of it.
    pub(crate) fn of(training: &'a Training, whole: &'a dyn WholeSource) -> WrittenState<'a> {
        WrittenState { parts: training.whole_state().map(|part| (part.name, part)).collect(), whole }
    }

    /// Values that are all here.
    pub(crate) fn of_values(values: impl Iterator<Item = (&'a str, &'a Tensor)>) -> WrittenState<'a> {
        let part =
            |(name, own): (&'a str, &'a Tensor)| (name, OfRanks { name, own, whole: own.ty(), pieces: None });
        WrittenState { parts: values.map(part).collect(), whole: &OwnState }
    }

    /// The shapes that values have on all ranks together.
    pub(crate) fn shapes(&self) -> HashMap<String, Vec<usize>> {
        self.parts.values().map(|part| (part.name.to_string(), part.whole.shape.to_vec())).collect()
    }

    pub(crate) fn dtype(&self, name: &str) -> Option<DType> {
        Some(self.parts.get(name)?.whole.dtype)
    }

    /// A value as a variable of a file has it.
    pub(crate) fn write(&self, name: &str, variable: &Variable) -> io::Result<Vec<u8>> {
        let part = self.parts.get(name);
        let part = part.ok_or_else(|| io::Error::other(format!("there is no value of {name}")))?;
        let (bytes, element) = (self.whole.bytes(part)?, Element::from(part.whole.dtype));
        if cfg!(target_endian = "little") && element == variable.element {
            return Ok(bytes);
        }
        let not_float = || io::Error::other(format!("{} is not floating point", variable.path));
        let mut turned = Vec::with_capacity(part.whole.elements() * variable.element.bytes());
        for some in bytes.chunks(AT_ONCE * element.bytes().max(1)) {
            let numbers: Vec<f64> = bind::own_numbers(part.whole.dtype, some).ok_or_else(not_float)?;
            turned.extend(bind::to_bytes(variable.element, &numbers).ok_or_else(not_float)?);
        }
        Ok(turned)
    }

    /// A single number; none where there is no such value.
    pub(crate) fn number(&self, name: &str) -> io::Result<Option<f64>> {
        let Some(part) = self.parts.get(name) else { return Ok(None) };
        if part.pieces.is_none() {
            return part.own.item().map(Some).map_err(io::Error::other);
        }
        let bytes = self.whole.bytes(part)?;
        let numbers = bind::own_numbers(part.whole.dtype, &bytes);
        match numbers.as_deref() {
            Some([number]) => Ok(Some(*number)),
            _ => Err(io::Error::other(format!("{name} is not one number"))),
        }
    }
}
