//! Whether a model that was written to a file of another system computes what it did: what its writer asks before it is done.

use plimsoll_graph::{RandomOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::Param;

/// How far outputs of a file may be from the model's, as a part of the largest of them (and of 1 at least).
const TOLERANCE: f64 = 1e-4;

/// What must be alike of outputs beside their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alike {
    /// Their shapes.
    Shapes,
    /// Their shapes and element types.
    Types,
}

/// Values of parameters from the bytes of each in a file.
pub fn values<E: From<plimsoll_run::Error>>(
    params: &[Param],
    bytes: impl Fn(&str) -> Result<Vec<u8>, E>,
) -> Result<Vec<Tensor>, E> {
    let value = |param: &Param| {
        let mut value = Tensor::zeros(param.ty.clone())?;
        value.set_bytes(&bytes(&param.name)?)?;
        Ok(value)
    };
    params.iter().map(value).collect()
}

/// Inputs to compare by: numbers drawn at random, and indices that any table has, not only the first.
pub fn drawn(inputs: &[Type]) -> Result<Vec<Tensor>> {
    let key = Tensor::from_slice(&[7i64, 0, 0], [3])?;
    let draw = |(i, ty): (usize, &Type)| match ty.dtype.is_float() {
        true => key.random_normal(ty.clone(), i as u32, 0.0, 1.0),
        false => {
            let alternating: Vec<f64> = (0..ty.elements()).map(|i| (i % 2) as f64).collect();
            Tensor::from_f64(&alternating, ty.clone())
        }
    };
    inputs.iter().enumerate().map(draw).collect()
}

/// What is different about what was written, in words; none where it gives what the model does.
pub fn difference(model: &[Tensor], written: &[Tensor], alike: Alike) -> Result<Option<String>> {
    Ok(match distance(model, written, alike)? {
        Ok(far) if far <= TOLERANCE => None,
        Ok(far) => Some(format!("what was written computes something else: outputs differ by {far}")),
        Err(why) => Some(why),
    })
}

/// How far outputs are from the model's, as a part of the largest of them (and of 1 at least), not a number where they give none; the
/// reason where they cannot be compared.
pub fn distance(
    model: &[Tensor],
    written: &[Tensor],
    alike: Alike,
) -> Result<std::result::Result<f64, String>> {
    if model.len() != written.len() {
        let (ours, theirs) = (model.len(), written.len());
        return Ok(Err(format!("the model gives {ours} outputs, what was written {theirs}")));
    }
    let larger = |most: f64, far: f64| if far.is_nan() || far > most { far } else { most };
    let mut most = 0.0;
    for (ours, theirs) in model.iter().zip(written) {
        let is_alike = match alike {
            Alike::Shapes => ours.shape() == theirs.shape(),
            Alike::Types => ours.ty() == theirs.ty(),
        };
        if !is_alike {
            let (ours, theirs) = (ours.ty(), theirs.ty());
            return Ok(Err(format!("the model gives {ours}, but what was written gives {theirs}")));
        }
        let (a, b) = (ours.to_f64()?, theirs.to_f64()?);
        // Of the finite ones: beside an infinity every difference would be small.
        let size = a.iter().filter(|x| x.is_finite()).fold(1.0f64, |most, x| most.max(x.abs()));
        // Infinities that are the same are not apart.
        let apart = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a - b).abs() };
        most = a.iter().zip(&b).map(apart).map(|far| far / size).fold(most, larger);
        if most.is_nan() {
            break;
        }
    }
    Ok(Ok(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_differ_in_number_type_or_value_are_told_from_those_that_do_not() -> Result<()> {
        let of = |values: &[f32]| Tensor::from_slice(values, [values.len()]);
        let ours = [of(&[1.0, f32::INFINITY])?];
        let said = |theirs: &[Tensor], alike| difference(&ours, theirs, alike).map(Option::unwrap_or_default);
        assert_eq!(said(&[of(&[1.0, f32::INFINITY])?], Alike::Types)?, "");
        assert!(said(&[], Alike::Shapes)?.contains("1 outputs, what was written 0"));
        assert!(
            said(&[of(&[1.0])?], Alike::Shapes)?.contains("gives f32[2], but what was written gives f32[1]")
        );
        let double = Tensor::from_slice(&[1.0f64, f64::INFINITY], [2])?;
        assert_eq!(said(std::slice::from_ref(&double), Alike::Shapes)?, "");
        assert!(said(&[double], Alike::Types)?.contains("f64[2]"));
        assert!(said(&[of(&[1.5, f32::INFINITY])?], Alike::Types)?.contains("differ by"));
        assert!(said(&[of(&[f32::NAN, f32::INFINITY])?], Alike::Types)?.contains("differ by NaN"));
        Ok(())
    }
}
