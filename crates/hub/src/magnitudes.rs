//! Turns the weights of a folder into the magnitudes with which adapters begin that have some (DoRA): the norm of each output's weights.

use plimsoll_graph::{DType, Type};
use plimsoll_nn::Param;

use crate::adapter::floats;
use crate::config::Family;
use crate::error::{Error, Result};
use crate::folder::Folder;

/// The end of a parameter that holds the magnitudes of a layer's outputs.
pub(crate) const MAGNITUDE: &str = "/lora_magnitude_vector";

/// The norm of each output of a weight `[out, in]` (GPT-2's `[in, out]`).
pub(crate) fn norms(weight: &[f32], [rows, columns]: [usize; 2], is_turned: bool) -> Vec<f32> {
    let mut squares = vec![0.0f64; if is_turned { columns } else { rows }];
    for (i, x) in weight.iter().enumerate() {
        squares[if is_turned { i % columns } else { i / columns }] += f64::from(*x) * f64::from(*x);
    }
    squares.into_iter().map(|sum| sum.sqrt() as f32).collect()
}

impl Folder {
    /// Gives every magnitude among a model's parameters the norm that it begins with, so that at first an adapter changes nothing. One weight
    /// is in memory at a time.
    ///
    /// # Errors
    /// A layer has no weight in the folder, or a file is damaged.
    pub fn magnitudes(
        &mut self,
        params: &[Param],
        mut give: impl FnMut(&Param, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let is_turned = self.config.family == Family::Gpt2;
        for param in params {
            let Some(layer) = param.name.strip_suffix(MAGNITUDE) else { continue };
            let weight = format!("{layer}/weight");
            let found = params.iter().find(|other| other.name == weight);
            let found = found.ok_or_else(|| Error::Asked(format!("{layer} has magnitudes and no weight")))?;
            let (Some(tensor), [rows, columns]) = (self.tensor_of(found)?, &found.ty.shape[..]) else {
                return Err(Error::Asked(format!("{weight} is no matrix of the folder")));
            };
            let shape = [*rows, *columns];
            let numbers = floats(&self.weights.read(&tensor, &Type::new(DType::F32, shape))?);
            let norms = norms(&numbers, shape, is_turned);
            let bytes: Vec<u8> = match param.ty.dtype {
                DType::F64 => norms.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect(),
                _ => norms.iter().flat_map(|x| x.to_le_bytes()).collect(),
            };
            give(param, &bytes)?;
        }
        Ok(())
    }
}
