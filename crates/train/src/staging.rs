//! Turns batches of a pipeline into tensors that are written over again and again.

use plimsoll_data::Batch;
use plimsoll_graph::{TensorOps, Type};
use plimsoll_run::Tensor;
use smallvec::SmallVec;

use crate::error::{Error, Result};

/// For how many shapes of a batch tensors are kept: the full one and the last of an epoch.
const SHAPES: usize = 2;

/// Tensors in which batches are handed to a step.
#[derive(Default)]
pub(crate) struct Staging {
    /// The set used last is at the end.
    sets: Vec<Vec<Tensor>>,
}

impl Staging {
    /// The first `fields` fields of a batch as tensors.
    pub(crate) fn stage(&mut self, batch: &Batch, fields: usize) -> Result<&mut [Tensor]> {
        if batch.len() < fields {
            let why = format!("a sample has {} fields where {fields} are needed", batch.len());
            return Err(Error::Mismatch(why));
        }
        let of_type = |tensor: &Tensor, field: &plimsoll_data::Field<'_>| {
            tensor.dtype() == field.dtype && tensor.shape()[..] == field.shape[..]
        };
        let same = |set: &Vec<Tensor>| {
            set.len() == fields
                && set.iter().zip(batch.fields()).all(|(tensor, field)| of_type(tensor, &field))
        };
        match self.sets.iter().position(same) {
            Some(i) => self.sets[i..].rotate_left(1),
            None => {
                if self.sets.len() >= SHAPES {
                    self.sets.remove(0);
                }
                let new =
                    |field: plimsoll_data::Field<'_>| Tensor::zeros(Type::new(field.dtype, &field.shape[..]));
                self.sets.push(batch.fields().take(fields).map(new).collect::<Result<_, _>>()?);
            }
        }
        let last = self.sets.len() - 1;
        let set = &mut self.sets[last];
        for (tensor, field) in set.iter_mut().zip(batch.fields()) {
            tensor.set_bytes(field.bytes)?;
        }
        Ok(set)
    }
}

/// References to tensors, as steps take them.
pub(crate) fn borrowed(tensors: &[Tensor]) -> SmallVec<[&Tensor; 8]> {
    tensors.iter().collect()
}
