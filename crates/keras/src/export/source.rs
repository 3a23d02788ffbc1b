//! Where the weights of a Keras layer come from: parameters of ours, cut or joined as Keras has them.

use std::collections::HashMap;

use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::Param;
use plimsoll_run::Tensor;

use crate::error::{Error, Result};

/// Where a Keras weight comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Param(String),
    /// A matrix with its axes exchanged.
    Transposed(String),
    /// The sum of two: Keras has one bias where we have two.
    Sum(String, String),
    /// The first two of three gates in the other order.
    Swapped(String),
    /// Two of them, one above the other.
    SwappedPair(String, String),
    /// One of so many equal parts along the last axis.
    Part(String, usize, usize),
}

impl Source {
    fn names(&self) -> Vec<&str> {
        match self {
            Source::Sum(a, b) | Source::SwappedPair(a, b) => vec![a, b],
            Source::Param(a) | Source::Transposed(a) | Source::Swapped(a) | Source::Part(a, ..) => vec![a],
        }
    }
}

/// Parameters and their values, by name.
pub(super) struct Values<'a> {
    params: &'a [Param],
    tensors: &'a [Tensor],
    by_name: HashMap<&'a str, &'a Tensor>,
    dtype: DType,
}

impl<'a> Values<'a> {
    pub(super) fn new(params: &'a [Param], tensors: &'a [Tensor]) -> Result<Values<'a>> {
        if params.len() != tensors.len() {
            let why = format!("{} values are given for {} parameters", tensors.len(), params.len());
            return Err(Error::variables("the model", why));
        }
        let by_name = params.iter().map(|p| p.name.as_str()).zip(tensors).collect();
        let is_f64 = !tensors.is_empty() && tensors.iter().all(|t| t.dtype() == DType::F64);
        Ok(Values { params, tensors, by_name, dtype: if is_f64 { DType::F64 } else { DType::F32 } })
    }

    /// The type in which they are written.
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn all(&self) -> (&'a [Param], &'a [Tensor]) {
        (self.params, self.tensors)
    }

    /// Every parameter is in one weight of the file: one that is in none would be lost, one in several trained apart.
    pub(super) fn check_used<'s>(&self, sources: impl Iterator<Item = &'s Source>) -> Result<()> {
        let mut seen: HashMap<&str, Vec<&Source>> = HashMap::new();
        for source in sources {
            for name in source.names() {
                if !self.by_name.contains_key(name) {
                    return Err(Error::variables(
                        name,
                        "the model has this parameter, but no value was given",
                    ));
                }
                seen.entry(name).or_default().push(source);
            }
        }
        for param in self.params {
            let export = |why: &str| Err(Error::export(param.name.clone(), why));
            match seen.get(param.name.as_str()).map(Vec::as_slice) {
                None => return export("the outputs do not depend on this parameter"),
                Some([_]) | Some([Source::Part(..), ..]) => {}
                Some(_) => return export("several layers share this parameter; give each its own"),
            }
        }
        Ok(())
    }

    pub(super) fn get(&self, source: &Source) -> Result<Vec<f64>> {
        let read = |name: &str| -> Result<(usize, Vec<f64>)> {
            let missing = || Error::variables(name, "the model has this parameter, but no value was given");
            let tensor = self.by_name.get(name).ok_or_else(missing)?;
            Ok((tensor.shape().last().copied().unwrap_or(1).max(1), tensor.to_f64()?))
        };
        Ok(match source {
            Source::Param(name) => read(name)?.1,
            Source::Transposed(name) => {
                let (columns, data) = read(name)?;
                (0..columns).flat_map(|j| data.iter().skip(j).step_by(columns).copied()).collect()
            }
            Source::Sum(a, b) => {
                let ((_, a), (_, b)) = (read(a)?, read(b)?);
                // As the layer adds them: in the type of the parameters.
                let add = |(a, b): (&f64, &f64)| {
                    if self.dtype == DType::F64 { a + b } else { f64::from(*a as f32 + *b as f32) }
                };
                a.iter().zip(&b).map(add).collect()
            }
            Source::Swapped(name) => {
                let (columns, data) = read(name)?;
                swapped(columns, data)
            }
            Source::SwappedPair(a, b) => {
                let ((columns, a), (_, b)) = (read(a)?, read(b)?);
                [swapped(columns, a), swapped(columns, b)].concat()
            }
            Source::Part(name, part, parts) => {
                let (columns, data) = read(name)?;
                let width = columns / (*parts).max(1);
                data.chunks_exact(columns)
                    .flat_map(|row| row[part * width..(part + 1) * width].to_vec())
                    .collect()
            }
        })
    }
}

/// The first two thirds of every row in the other order.
fn swapped(columns: usize, mut data: Vec<f64>) -> Vec<f64> {
    let units = columns / 3;
    for row in data.chunks_exact_mut(columns) {
        let (first, rest) = row.split_at_mut(units);
        first.swap_with_slice(&mut rest[..units]);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_change_places_and_parts_are_cut_from_rows() {
        assert_eq!(swapped(3, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), [2.0, 1.0, 3.0, 5.0, 4.0, 6.0]);
        let ty = plimsoll_graph::Type::new(DType::F32, [2, 4]);
        let param = Param { name: "w".into(), ty, init: plimsoll_nn::Init::Constant(0.0), trained: true };
        let value = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [2, 4]).unwrap();
        let (params, tensors) = ([param], [value]);
        let values = Values::new(&params, &tensors).unwrap();
        assert_eq!(values.get(&Source::Part("w".into(), 1, 2)).unwrap(), [3.0, 4.0, 7.0, 8.0]);
        let turned = values.get(&Source::Transposed("w".into())).unwrap();
        assert_eq!(turned, [1.0, 5.0, 2.0, 6.0, 3.0, 7.0, 4.0, 8.0]);
        let twice = [Source::Param("w".into()), Source::Transposed("w".into())];
        assert!(values.check_used(twice.iter()).unwrap_err().to_string().contains("share"));
        assert!(values.check_used([].iter()).is_err());
    }
}
