//! Turns the weights of a folder into the magnitudes with which adapters begin that have some (DoRA): the norm of each output's weights.

use plimsoll_graph::{DType, Type};
use plimsoll_nn::Param;

use crate::adapter::floats;
use crate::base;
use crate::error::{Error, Result};
use crate::folder::{Described, Folder};

/// The end of a parameter that holds the magnitudes of a layer's outputs.
pub(crate) const MAGNITUDE: &str = "/lora_magnitude_vector";

/// The sum of squares of each output of a weight `[out, in]` (turned, as GPT-2's, `[in, out]`), of which pieces come one after the other.
pub(crate) struct Squares {
    pub(crate) sums: Vec<f64>,
    columns: usize,
    is_turned: bool,
    seen: usize,
}

impl Squares {
    pub(crate) fn new([rows, columns]: [usize; 2], is_turned: bool) -> Squares {
        Squares { sums: vec![0.0; if is_turned { columns } else { rows }], columns, is_turned, seen: 0 }
    }

    pub(crate) fn add(&mut self, piece: &[f32]) {
        for (i, x) in (self.seen..).zip(piece) {
            let output = if self.is_turned { i % self.columns } else { i / self.columns };
            self.sums[output] += f64::from(*x) * f64::from(*x);
        }
        self.seen += piece.len();
    }
}

/// The norm of each output of a weight.
pub(crate) fn norms(weight: &[f32], shape: [usize; 2], is_turned: bool) -> Vec<f32> {
    let mut squares = Squares::new(shape, is_turned);
    squares.add(weight);
    squares.sums.into_iter().map(|sum| sum.sqrt() as f32).collect()
}

impl Folder {
    /// Gives every magnitude among a model's parameters the norm that it begins with, so that at first an adapter changes nothing: of a weight
    /// that is kept in few bits, the norm of what those stand for. One weight is in memory at a time.
    ///
    /// # Errors
    /// A layer has no weight in the folder, or a file is damaged.
    pub fn magnitudes(
        &mut self,
        params: &[Param],
        mut give: impl FnMut(&Param, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let is_turned = self.config.is_turned();
        for param in params {
            let Some(layer) = param.name.strip_suffix(MAGNITUDE) else { continue };
            let weight = format!("{layer}/weight");
            let codes = format!("{weight}/codes");
            let found = params.iter().find(|other| other.name == weight || other.name == codes);
            let found = found.ok_or_else(|| Error::Asked(format!("{layer} has magnitudes and no weight")))?;
            if found.name == codes {
                give(param, &self.norms_of_bits(found, &weight, params, param.ty.dtype)?)?;
                continue;
            }
            let (Some(tensor), [rows, columns]) = (self.tensor_of(found)?, &found.ty.shape[..]) else {
                return Err(Error::Asked(format!("{weight} is no matrix of the folder")));
            };
            let shape = [*rows, *columns];
            let numbers = floats(&self.weights.read(&tensor, &Type::new(DType::F32, shape))?);
            give(param, &bytes_of(&norms(&numbers, shape, is_turned), param.ty.dtype))?;
        }
        Ok(())
    }

    /// The norms of a weight that is kept in few bits, by the squares that come with those.
    fn norms_of_bits(
        &mut self,
        codes: &Param,
        weight: &str,
        params: &[Param],
        dtype: DType,
    ) -> Result<Vec<u8>> {
        let none = || Error::Asked(format!("{weight} is no matrix of the folder"));
        let tensor = self.tensor_of(codes)?.ok_or_else(none)?;
        let parts = base::packed(&mut self.weights, &tensor, weight, params, self.config.is_turned())?;
        let squares = parts.into_iter().find(|(param, _)| base::is_squares(&param.name)).ok_or_else(none)?.1;
        let norms: Vec<f32> = floats(&squares).iter().map(|square| square.sqrt()).collect();
        Ok(bytes_of(&norms, dtype))
    }
}

/// Numbers in the type of a parameter.
fn bytes_of(numbers: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F64 => numbers.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}
