//! A linear layer that is not trained and the cross-entropy of its logits as one op, with the gradient of its samples beside the loss.
//!
//! Where the layer has no gradient, that of the samples follows from the logits that the loss is made of: they are made once, a piece of the samples at a
//! time, and the way back only multiplies what is there by the gradient of each loss.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::ops::linear_cross_entropy::sampled;
use crate::ops::{LinearCrossEntropy, LinearCrossEntropyDims, LinearCrossEntropyGrad};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{Shape, Site, Type, ops};

/// loss = log Σ exp(l) - `l[label]` a sample, where l = x wᵀ, and its gradient by x, which is (softmax(l) - one-hot label) w. Inputs: x `[.., C]`, w
/// `[V, C]`, labels `[..]`. Outputs: loss, dx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrozenCrossEntropy;

const LOSS: LinearCrossEntropy = LinearCrossEntropy { cap: None };
const SLOPE: LinearCrossEntropyGrad = LinearCrossEntropyGrad { cap: None, dx: true, dw: false };

impl Rule for FrozenCrossEntropy {
    const NAME: &'static str = "frozen_cross_entropy";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, ..] = ops::arity::<3>(inputs)?;
        let loss = LOSS.infer(inputs)?.remove(0);
        Ok(smallvec![loss, x.clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        LOSS.keeps_apart(along)
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let logits = inputs[1].shape[0] as f64 * inputs[2].elements() as f64;
        let width = inputs[1].shape[1] as f64;
        Cost { flops: logits * (4.0 * width + 20.0), bytes: traffic(inputs, outputs) }
    }

    const KEEP: Keep = Keep::outputs(0b10);

    /// The kept gradient of each sample, times that of its loss.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        if at.wants(1) {
            return Err(at.no_gradient("its layer is not trained; use linear_cross_entropy for one that is"));
        }
        if at.try_grad(1).is_some() {
            return Err(at.no_gradient("its second result is kept for the gradient alone"));
        }
        let (dloss, slope) = (at.grad(0)?, at.output(1)?);
        let mut rows: Shape = dloss.shape().clone();
        rows.push(1);
        let wide = slope.cast(dloss.dtype())?.mul(&dloss.reshape(rows)?)?;
        Ok(vec![Some(wide.cast(slope.dtype())?), None, None])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let kept = [outputs[0].clone(), outputs[0].clone()];
        let made = LOSS.reference(inputs, &kept);
        let ones = Array::from_fn(&outputs[0].shape, |_| 1.0);
        let all = [inputs[0], inputs[1], inputs[2], &made[1], &ones];
        let dx = SLOPE.reference(&all, &outputs[1..]).remove(0);
        vec![made[0].clone(), dx]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for i in 0..5 {
            let classes = [dice.range(1, 40), 7, 96, dice.range(65, 150), 2048][i];
            let width = dice.range(1, 20);
            examples.push(Example::new(FrozenCrossEntropy, sampled(dice, i, classes, width)));
        }
        examples
    }
}

impl LinearCrossEntropyDims {
    /// Samples of a piece, where a piece has about so many logits of all classes: a multiple of 128 where there are so many, at least one.
    pub fn samples(&self, logits: usize) -> usize {
        let most = (logits / self.classes.max(1)).max(1);
        let whole = if most >= 128 { most / 128 * 128 } else { most };
        whole.min(self.rows.max(1))
    }
}

impl<T: TensorOps> FrozenCrossEntropyOps for T {}

/// A linear layer that is not trained, with cross-entropy.
///
/// ```
/// use plimsoll_graph::{DType, FrozenCrossEntropyOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let features = trace.input("features", Type::new(DType::F32, [2, 8, 64]));
/// let words = trace.input("words", Type::new(DType::F32, [50_000, 64]));
/// let next = trace.input("next", Type::new(DType::I64, [2, 8]));
/// assert_eq!(features.frozen_cross_entropy(&words, &next)?.shape().to_string(), "[2, 8]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait FrozenCrossEntropyOps: TensorOps {
    /// As [`linear_cross_entropy`](crate::LinearCrossEntropyOps::linear_cross_entropy) of a layer w that is not trained, for a loss whose gradient will be
    /// asked for: that of the samples is made at once.
    #[track_caller]
    fn frozen_cross_entropy(&self, w: &Self, labels: &Self) -> Result<Self, Self::Error> {
        self.emit_one(FrozenCrossEntropy, &[self, w, labels], Site::here())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_whole_blocks_of_samples() {
        let dims = LinearCrossEntropyDims { rows: 8192, width: 2048, classes: 128_256 };
        assert_eq!(dims.samples(48 << 20), 384);
        assert_eq!(dims.samples(1 << 22), 32);
        assert_eq!(dims.samples(1), 1);
        assert_eq!(LinearCrossEntropyDims { rows: 5, ..dims }.samples(48 << 20), 5);
    }
}
