//! A model that learns with the rounding of int8 in it: what its dense layers and convolutions read, and their weights, are rounded to the
//! numbers that eight bits can say, and gradients go through as if they were not.
//!
//! Weights are rounded symmetrically with a scale for each channel of the result, what is read asymmetrically with one range, as
//! `.tflite` files have it. Ranges follow the batches by a moving average and are statistics of the layer, `input_low` and `input_high`.
//! A scale for each channel makes it the same whether a norm behind the layer is folded into it before or after rounding.

use plimsoll_graph::ops::ReduceKind;
use plimsoll_graph::{DType, GradientOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;
use crate::{Init, Model, Net, Outputs};

/// The share of a new batch in the ranges.
const MOMENTUM: f64 = 0.01;

/// A model whose dense layers and convolutions compute with numbers of eight bits.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_nn::{Net, QuantizeAware, model};
/// let aware = QuantizeAware::new(model(|net, x| net.dense("out", &x[0], 2, true)));
/// let found = Net::discover(&[Type::new(DType::F32, [4, 3])], &aware)?;
/// let names: Vec<&str> = found.iter().map(|param| param.name.as_str()).collect();
/// assert_eq!(names, ["out/weight", "out/bias", "out/input_low", "out/input_high"]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QuantizeAware<M> {
    model: M,
}

impl<M: Model> QuantizeAware<M> {
    /// The model with its rounding.
    pub fn new(model: M) -> QuantizeAware<M> {
        QuantizeAware { model }
    }
}

impl<M: Model> Model for QuantizeAware<M> {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        net.rounds = Some(0);
        let outputs = self.model.forward(net, inputs)?;
        match net.rounds.take() {
            Some(0) => Err(refuse(
                "is to be trained with the rounding of int8, and has no dense layer and no convolution of its own",
            )),
            _ => Ok(outputs),
        }
    }
}

impl Net {
    /// What a layer reads and its weight, as eight bits hold them where the model is trained so.
    #[track_caller]
    pub(crate) fn rounded(&mut self, x: &Tensor, weight: &Tensor) -> Result<(Tensor, Tensor)> {
        let Some(layers) = self.rounds else { return Ok((x.clone(), weight.clone())) };
        if x.dtype() != DType::F32 || weight.dtype() != DType::F32 {
            return Err(refuse(format!(
                "is to be trained with the rounding of int8, which is for f32 and not {}",
                x.dtype()
            )));
        }
        self.rounds = Some(layers + 1);
        Ok((self.rounded_input(x)?, rounded_weight(weight)?))
    }

    fn rounded_input(&mut self, x: &Tensor) -> Result<Tensor> {
        let names = ["input_low", "input_high"];
        let mut ends = Vec::new();
        for (name, kind) in names.into_iter().zip([ReduceKind::Min, ReduceKind::Max]) {
            let old = self.state(name, [], Init::Constant(0.0))?;
            if !self.is_training() {
                ends.push(old);
                continue;
            }
            let axes: Vec<usize> = (0..x.shape().rank()).collect();
            let zero = old.full_like(old.ty().clone(), 0.0)?;
            let of_batch = x.stop_gradient()?.reduce(kind, &axes, false)?;
            // Zero is one of the numbers: padding and what a relu cuts off are exact.
            let of_batch = match kind {
                ReduceKind::Min => of_batch.minimum(&zero)?,
                _ => of_batch.maximum(&zero)?,
            };
            let moved = old.add(&of_batch.sub(&old)?.mul_scalar(MOMENTUM)?)?;
            // The first batch is all that is known.
            let new = old.equal(&zero)?.select(&of_batch, &moved)?;
            self.update(name, new.clone())?;
            ends.push(new);
        }
        let (low, high) = (&ends[0], &ends[1]);
        let scale = high.sub(low)?.mul_scalar(1.0 / 255.0)?.clamp(f64::from(f32::MIN_POSITIVE), f64::MAX)?;
        let inside = x.maximum(low)?.minimum(high)?;
        // Whole steps from the number that stands for zero.
        let steps = nearest(&inside.div(&scale)?)?;
        through(&inside, &steps.mul(&scale)?)
    }
}

/// The nearest whole number.
fn nearest(x: &Tensor) -> Result<Tensor> {
    x.add_scalar(0.5)?.floor()
}

/// A rounded value with the gradient of the value before it was rounded.
fn through(x: &Tensor, rounded: &Tensor) -> Result<Tensor> {
    x.add(&rounded.sub(x)?.stop_gradient()?)
}

fn rounded_weight(weight: &Tensor) -> Result<Tensor> {
    let axes: Vec<usize> = (0..weight.shape().rank() - 1).collect();
    let largest = weight.stop_gradient()?.abs()?.reduce(ReduceKind::Max, &axes, true)?;
    let scale = largest.mul_scalar(1.0 / 127.0)?.clamp(f64::from(f32::MIN_POSITIVE), f64::MAX)?;
    through(weight, &nearest(&weight.div(&scale)?)?.mul(&scale)?)
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Type;
    use plimsoll_run::Tape;

    use super::*;
    use crate::model;

    #[test]
    fn weights_are_the_nearest_of_255_numbers_and_gradients_go_through() -> Result<()> {
        let weight = Tensor::from_slice(&[1.27f32, -0.5, 0.634, 0.004, 0.0, 0.25], [3, 2])?;
        let tape = Tape::new();
        tape.watch(&weight)?;
        let rounded = rounded_weight(&weight)?;
        let slope = tape.gradient(&rounded.sum(&[], false)?, &[&weight])?.remove(0);
        assert_eq!(slope.to_vec::<f32>()?, [1.0; 6]);
        for (i, (found, given)) in rounded.to_vec::<f32>()?.iter().zip(weight.to_vec::<f32>()?).enumerate() {
            let scale = if i % 2 == 0 { 0.01 } else { 0.5 / 127.0 };
            let wanted = (given / scale).round() * scale;
            assert!((found - wanted).abs() < 1e-6, "{found} for {wanted}");
        }
        Ok(())
    }

    #[test]
    fn what_is_read_is_held_in_the_range_of_the_first_batch_and_then_follows() -> Result<()> {
        let aware = QuantizeAware::new(model(|net, x| net.dense("out", &x[0], 1, false)));
        let params = Net::discover(&[Type::new(DType::F32, [1, 3])], &aware)?;
        let one = |x: f32| Tensor::from_slice(&[x], []);
        let weight = Tensor::from_slice(&[1.0f32, 1.0, 1.0], [3, 1])?;
        let run = |x: [f32; 3], low: f32, high: f32, training: bool| -> Result<(f32, Vec<f32>)> {
            let values = [weight.clone(), one(low)?, one(high)?];
            let mut net = Net::bound(&params, &values, training);
            let y = aware.forward(&mut net, &[Tensor::from_slice(&x, [1, 3])?])?;
            let ranges = net.updates().into_iter().flatten().map(|x| Ok(x.to_vec::<f32>()?[0]));
            Ok((y[0].to_vec::<f32>()?[0], ranges.collect::<Result<Vec<f32>>>()?))
        };
        // Ranges of the first batch, with zero in them.
        let (y, ranges) = run([0.5, 2.55, 1.004], 0.0, 0.0, true)?;
        assert_eq!(ranges, [0.0, 2.55]);
        assert!((y - 4.05).abs() < 1e-5, "{y}");
        let (_, ranges) = run([-1.0, 0.0, 12.55], 0.0, 2.55, true)?;
        assert!((ranges[1] - 2.65).abs() < 1e-5, "{ranges:?}");
        // Beyond the range they are cut off; nothing is followed where nothing is trained.
        let (y, ranges) = run([-1.0, 0.0, 12.55], 0.0, 2.55, false)?;
        assert!((y - 2.55).abs() < 1e-5 && ranges.is_empty(), "{y}");
        Ok(())
    }

    #[test]
    fn a_model_without_such_layers_is_refused() {
        let plain = QuantizeAware::new(model(|_, x| x[0].relu()));
        let error = Net::discover(&[Type::new(DType::F32, [1, 3])], &plain).unwrap_err().to_string();
        assert!(error.contains("no dense layer"), "{error}");
    }
}
