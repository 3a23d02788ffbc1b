//! A linear layer and the cross-entropy of its logits as one op, from which no backend need ever hold all logits.
//!
//! Of a language model the logits are by far the largest value: tokens times words. Here they exist a piece of the vocabulary at a
//! time, forward and backward, and the gradient makes each piece again from the log-sum-exp that the forward pass keeps.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::ops::softmax::log_sum_exp;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Shape, Site, Type, ops};

/// loss = log Σ exp(l) - `l[label]` a sample, where l = x wᵀ, or c · tanh(x wᵀ / c) with a cap c. Inputs: x `[.., C]`, w `[V, C]`, labels
/// `[..]`. Outputs: loss, log Σ exp(l).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearCrossEntropy {
    /// c, where logits are capped.
    pub cap: Option<Scalar>,
}

/// With p = dloss (exp(l - lse) - one-hot label), times 1 - (l / c)² with a cap: dx = p w and dw = pᵀ x. Inputs: x, w, labels, lse,
/// dloss. Outputs: dx and dw, as far as they are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinearCrossEntropyGrad {
    /// c, where logits are capped.
    pub cap: Option<Scalar>,
    /// Whether dx is wanted.
    pub dx: bool,
    /// Whether dw is wanted.
    pub dw: bool,
}

/// The sizes of a linear layer with cross-entropy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearCrossEntropyDims {
    /// Samples.
    pub rows: usize,
    /// Features of a sample.
    pub width: usize,
    /// Classes.
    pub classes: usize,
}

impl LinearCrossEntropyDims {
    /// The sizes for given operands, or what does not fit.
    pub fn new(x: &Type, w: &Type, labels: &Type) -> Result<LinearCrossEntropyDims, String> {
        ops::float(x)?;
        ops::same_dtype(x, w)?;
        let Some((&width, samples)) = x.shape.split_last() else {
            return Err("its samples need a last axis of features, and they are a scalar".into());
        };
        let [classes, own] = w.shape[..] else {
            return Err(format!("the layer is [classes, features], not {}", w.shape));
        };
        if own != width {
            return Err(format!("a layer of {} does not fit samples of {}", w.shape, x.shape));
        }
        if classes == 0 || width == 0 {
            return Err(format!("there are no logits of {} and {}", x.shape, w.shape));
        }
        if !labels.dtype.is_index() {
            return Err(format!("labels must be i64 or i32, not {}; cast them first", labels.dtype));
        }
        if labels.shape[..] != *samples {
            return Err(format!("labels of shape {} do not fit samples of {}", labels.shape, x.shape));
        }
        Ok(LinearCrossEntropyDims { rows: labels.elements(), width, classes })
    }

    /// Classes of a piece, where a piece has about so many logits: a multiple of 64, but for a vocabulary that is smaller.
    pub fn piece(&self, logits: usize) -> usize {
        (logits / self.rows.max(1) / 64 * 64).max(64).min(self.classes)
    }
}

fn per_sample(x: &Type) -> Type {
    Type::new(x.dtype.accumulator(), &x.shape[..x.shape.rank() - 1])
}

/// The logits of a row, as they are capped.
fn logits(x: &[f64], w: &Array, cap: Option<Scalar>) -> Vec<f64> {
    let dot = |row: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>();
    let capped = |l: f64| cap.map_or(l, |Scalar(c)| c * (l / c).tanh());
    w.data.chunks_exact(x.len()).map(|row| capped(dot(row))).collect()
}

impl Rule for LinearCrossEntropy {
    const NAME: &'static str = "linear_cross_entropy";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, labels] = ops::arity(inputs)?;
        LinearCrossEntropyDims::new(x, w, labels)?;
        Ok(smallvec![per_sample(x), per_sample(x)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        match along.operand {
            0 => along.from_end() > 1 && along.axis == along.to,
            1 => false,
            _ => along.axis == along.to,
        }
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let flops = (2.0 * inputs[1].elements() as f64 + 10.0 * inputs[1].shape[0] as f64)
            * inputs[2].elements() as f64;
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    const KEEP: Keep = Keep::both(0b111, 0b10);

    /// See [`LinearCrossEntropyGrad`].
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        if at.try_grad(1).is_some() {
            return Err(at.no_gradient(
                "its log-sum-exp is kept for the gradient alone; compute it with matmul and exp",
            ));
        }
        let op = LinearCrossEntropyGrad { cap: self.cap, dx: at.wants(0), dw: at.wants(1) };
        let inputs = [at.input(0)?, at.input(1)?, at.input(2)?, at.output(1)?, at.grad(0)?];
        let mut grads = at.push(op, &inputs.iter().collect::<Vec<_>>())?.into_iter();
        Ok(vec![op.dx.then(|| grads.next()).flatten(), op.dw.then(|| grads.next()).flatten(), None])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let width = inputs[1].shape[1];
        let rows: Vec<Vec<f64>> =
            inputs[0].data.chunks_exact(width).map(|x| logits(x, inputs[1], self.cap)).collect();
        let lse: Vec<f64> = rows.iter().map(|row| log_sum_exp(row)).collect();
        let loss =
            rows.iter().zip(&lse).zip(&inputs[2].data).map(|((row, lse), label)| lse - row[*label as usize]);
        let shape = &outputs[0].shape;
        vec![Array::new(shape.clone(), loss.collect()), Array::new(shape.clone(), lse)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        cases(dice)
            .into_iter()
            .map(|(cap, inputs)| Example::new(LinearCrossEntropy { cap }, inputs))
            .collect()
    }
}

/// A cap with inputs.
pub(super) type Case = (Option<Scalar>, Vec<(Type, Domain)>);

/// One sample and many, few classes and more than a piece.
pub(super) fn cases(dice: &mut Dice) -> Vec<Case> {
    let mut cases = Vec::new();
    for i in 0..4 {
        let classes = if i == 3 { dice.range(65, 150) } else { dice.range(1, 40) };
        let width = dice.range(1, 6);
        cases.push(((i % 2 == 1).then_some(Scalar(2.5)), sampled(dice, i, classes, width)));
    }
    cases
}

/// Samples, a layer and labels: the first case has one sample, the second several axes of them.
pub(super) fn sampled(dice: &mut Dice, case: usize, classes: usize, width: usize) -> Vec<(Type, Domain)> {
    let samples: Shape = match case {
        0 => [1].into(),
        1 => [2, dice.range(1, 5)].into(),
        _ => [dice.range(2, 9)].into(),
    };
    let dtype = if case == 1 { DType::I32 } else { DType::I64 };
    let mut x = samples.clone();
    x.push(width);
    vec![
        (Type::new(DType::F32, x), Domain::Normal),
        (Type::new(DType::F32, [classes, width]), Domain::Normal),
        (Type::new(dtype, samples), Domain::Index(classes)),
    ]
}

impl Rule for LinearCrossEntropyGrad {
    const NAME: &'static str = "linear_cross_entropy_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, w, labels, lse, dloss] = ops::arity(inputs)?;
        LinearCrossEntropyDims::new(x, w, labels)?;
        let saved = per_sample(x);
        if let Some(other) = [lse, dloss].into_iter().find(|ty| **ty != saved) {
            return Err(format!("the log-sum-exp and its gradient must be {saved}, not {other}"));
        }
        let both = [self.dx.then(|| (*x).clone()), self.dw.then(|| (*w).clone())];
        match both.iter().flatten().count() {
            0 => Err("neither of its gradients is wanted".into()),
            _ => Ok(both.into_iter().flatten().collect()),
        }
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        match along.operand {
            0 => self.dx && along.from_end() > 1 && along.axis == along.to,
            1 => false,
            _ => self.dx && along.axis == along.to,
        }
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let products = 1.0 + f64::from(u8::from(self.dx)) + f64::from(u8::from(self.dw));
        let weights = inputs[1].elements() as f64;
        let flops =
            (2.0 * products * weights + 10.0 * inputs[1].shape[0] as f64) * inputs[2].elements() as f64;
        Cost { flops, bytes: traffic(inputs, outputs) }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient(
            "a linear layer with cross-entropy is differentiated once only; write it with matmul and softmax_cross_entropy for a second time",
        ))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, w) = (inputs[0], inputs[1]);
        let width = w.shape[1];
        let (mut dx, mut dw) = (vec![0.0; x.data.len()], vec![0.0; w.data.len()]);
        for (r, row) in x.data.chunks_exact(width).enumerate() {
            for (class, l) in logits(row, w, self.cap).into_iter().enumerate() {
                let hot = f64::from(inputs[2].data[r] as usize == class);
                let slope = self.cap.map_or(1.0, |Scalar(c)| 1.0 - (l / c).powi(2));
                let p = inputs[4].data[r] * ((l - inputs[3].data[r]).exp() - hot) * slope;
                for f in 0..width {
                    dx[r * width + f] += p * w.data[class * width + f];
                    dw[class * width + f] += p * row[f];
                }
            }
        }
        let both = [self.dx.then_some(dx), self.dw.then_some(dw)];
        both.into_iter().flatten().zip(outputs).map(|(g, ty)| Array::new(ty.shape.clone(), g)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (i, (cap, mut inputs)) in cases(dice).into_iter().enumerate() {
            let saved = per_sample(&inputs[0].0);
            inputs.extend([(saved.clone(), Domain::Positive), (saved, Domain::Normal)]);
            let op = LinearCrossEntropyGrad { cap, dx: i != 2, dw: i != 1 };
            examples.push(Example::new(op, inputs).wide(0b11000));
        }
        examples
    }
}

/// A linear layer with cross-entropy.
///
/// ```
/// use plimsoll_graph::{DType, LinearCrossEntropyOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let features = trace.input("features", Type::new(DType::F32, [2, 8, 64]));
/// let words = trace.input("words", Type::new(DType::F32, [50_000, 64]));
/// let next = trace.input("next", Type::new(DType::I64, [2, 8]));
/// assert_eq!(features.linear_cross_entropy(&words, &next, None)?.shape().to_string(), "[2, 8]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait LinearCrossEntropyOps: TensorOps {
    /// -log of the softmax at the label of the logits x wᵀ, a sample: x `[.., C]`, w `[V, C]` and integer labels `[..]` give `[..]`, in
    /// f32 for 16-bit x. With a cap c the logits are c · tanh(x wᵀ / c). All logits are never there at once.
    #[track_caller]
    fn linear_cross_entropy(&self, w: &Self, labels: &Self, cap: Option<f64>) -> Result<Self, Self::Error> {
        self.emit_one(LinearCrossEntropy { cap: cap.map(Scalar) }, &[self, w, labels], Site::here())
    }
}

impl<T: TensorOps> LinearCrossEntropyOps for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_do_not_fit_are_named() {
        let f = |shape: &[usize]| Type::new(DType::F32, shape);
        let op = LinearCrossEntropy { cap: None };
        let refuse = |x: &Type, w: &Type, labels: &Type| op.infer(&[x, w, labels]).unwrap_err();
        let labels = Type::new(DType::I64, [3]);
        assert!(refuse(&f(&[3, 4]), &f(&[9, 5]), &labels).contains("[9, 5]"));
        assert!(refuse(&f(&[2, 4]), &f(&[9, 4]), &labels).contains("labels of shape [3]"));
        assert!(refuse(&f(&[3, 4]), &f(&[9, 4]), &f(&[3])).contains("i64 or i32"));
    }

    #[test]
    fn a_piece_is_a_part_of_the_vocabulary() {
        let dims = LinearCrossEntropyDims { rows: 8192, width: 2048, classes: 128_256 };
        assert_eq!(dims.piece(1 << 22), 512);
        assert_eq!(LinearCrossEntropyDims { rows: 1, ..dims }.piece(1 << 22), 128_256);
        assert_eq!(dims.piece(1), 64);
    }
}
