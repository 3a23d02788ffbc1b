//! Turns a model and its quantized form into how far apart they are on samples: tensor by tensor, worst first.

use plimsoll_graph::{DType, TensorOps};
use plimsoll_run::Tensor;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::Result;
use crate::lite_model::{LiteModel, LiteOp};
use crate::run::run_watched;

/// So many samples are compared at most: every one runs both models op by op.
const MOST_SAMPLES: usize = 32;

/// How far a tensor of a quantized model is from the same of the model in floating point. What was rounded before it counts too.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorError {
    /// Its name: the layer, the op and its place in the model.
    pub name: String,
    /// The op that makes it.
    pub op: String,
    /// Ten times the logarithm of the squares of what is right over the squares of what is wrong: 20 is an error of a tenth. Infinite where
    /// nothing is wrong, minus infinite where all that should be zero is not.
    pub signal_to_noise: f64,
    /// The mean of how far elements are off.
    pub mean_error: f64,
    /// The largest element of the tensor, without its sign.
    pub largest: f64,
}

/// Sums over all elements that were seen of a tensor.
#[derive(Clone, Copy, Default)]
struct Sums {
    signal: f64,
    noise: f64,
    error: f64,
    largest: f64,
    elements: f64,
}

impl Sums {
    fn add(&mut self, right: &[f32], found: &[f32]) {
        for (&right, &found) in right.iter().zip(found) {
            let (right, error) = (f64::from(right), f64::from(found) - f64::from(right));
            self.signal += right * right;
            self.noise += error * error;
            self.error += error.abs();
            self.largest = self.largest.max(right.abs());
        }
        self.elements += right.len() as f64;
    }

    fn signal_to_noise(&self) -> f64 {
        match (self.signal, self.noise) {
            (_, 0.0) => f64::INFINITY,
            (signal, noise) => 10.0 * (signal / noise).log10(),
        }
    }
}

/// Compares all tensors that both models compute: what is quantized keeps its name.
pub(crate) fn tensor_errors(
    model: &LiteModel,
    quantized: &LiteModel,
    samples: &[Vec<Tensor>],
) -> Result<Vec<TensorError>> {
    let mut found: FxHashMap<String, Sums> = FxHashMap::default();
    for sample in samples.iter().take(MOST_SAMPLES) {
        let mut right: FxHashMap<&str, Vec<f32>> = FxHashMap::default();
        run_watched(model, sample, &mut |at, x| {
            if x.dtype() == DType::F32 {
                right.insert(&model.tensors[at].name, x.to_vec::<f32>()?);
            }
            Ok(())
        })?;
        // A tensor that is turned from bytes into numbers stands there twice; the first is the one that was computed.
        let mut seen: FxHashSet<&str> = FxHashSet::default();
        run_watched(quantized, sample, &mut |at, x| {
            let name = quantized.tensors[at].name.as_str();
            if let Some(right) = right.get(name).filter(|_| x.dtype() == DType::F32)
                && seen.insert(name)
            {
                found.entry(name.into()).or_default().add(right, &x.to_vec::<f32>()?);
            }
            Ok(())
        })?;
    }
    let maker = |op: &LiteOp, name: &str| op.outputs.iter().any(|&at| model.tensors[at].name == name);
    let mut errors: Vec<TensorError> = found
        .into_iter()
        .filter_map(|(name, sums)| {
            let op = model.ops.iter().find(|op| maker(op, &name))?.code.name().to_string();
            let (signal_to_noise, mean_error) = (sums.signal_to_noise(), sums.error / sums.elements.max(1.0));
            Some(TensorError { name, op, signal_to_noise, mean_error, largest: sums.largest })
        })
        .collect();
    let worse = |a: &TensorError, b: &TensorError| {
        a.signal_to_noise.total_cmp(&b.signal_to_noise).then_with(|| a.name.cmp(&b.name))
    };
    errors.sort_by(worse);
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_error_is_twenty_decibels() {
        let mut sums = Sums::default();
        sums.add(&[1.0, -2.0], &[1.1, -1.8]);
        assert!((sums.signal_to_noise() - 20.0).abs() < 1e-5);
        assert!((sums.error / sums.elements - 0.15).abs() < 1e-6 && sums.largest == 2.0);
        let mut exact = Sums::default();
        exact.add(&[0.0, 3.0], &[0.0, 3.0]);
        assert_eq!(exact.signal_to_noise(), f64::INFINITY);
        let mut nothing = Sums::default();
        nothing.add(&[0.0], &[1.0]);
        assert_eq!(nothing.signal_to_noise(), f64::NEG_INFINITY);
    }
}
