//! Cross-entropy of logits against labels or distributions, and losses composed of elementwise ops.
//!
//! Probabilities are never kept: the forward pass saves one log-sum-exp a sample, from which the gradient makes them
//! again, over the logits' own memory where it may.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::ops::composed::through;
use crate::ops::gather::GatherOps;
use crate::ops::softmax::log_sum_exp;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Shape, Site, Type, ops};

/// loss = log Σ exp(x) - `x[label]` a sample. Inputs: logits x `[.., C]`, labels `[..]`. Outputs: loss, log Σ exp(x).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropy;

/// dx = dloss (exp(x - lse) - one-hot label). Inputs: logits x, labels, lse, dloss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropyGrad;

/// loss = Σ t (log Σ exp(x) - x) a sample. Inputs: logits x `[.., C]`, targets t `[.., C]`. Outputs: loss, log Σ exp(x).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenseCrossEntropy;

/// dx = dloss (exp(x - lse) Σ t - t). Inputs: logits x, targets t, lse, dloss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DenseCrossEntropyGrad;

/// The type of one number a sample, or why logits are none.
fn per_sample(logits: &Type) -> Result<Type, String> {
    ops::float(logits)?;
    match logits.shape.split_last() {
        None => Err("its logits need a last axis of classes, and they are a scalar".into()),
        Some((0, _)) => Err(format!("there are no classes in logits of shape {}", logits.shape)),
        Some((_, samples)) => Ok(Type::new(logits.dtype.accumulator(), samples)),
    }
}

fn check_labels(samples: &Type, labels: &Type) -> Result<(), String> {
    if !labels.dtype.is_index() {
        return Err(format!("labels must be i64 or i32, not {}; cast them first", labels.dtype));
    }
    if labels.shape != samples.shape {
        return Err(format!(
            "labels of shape {} do not fit samples of shape {}",
            labels.shape, samples.shape
        ));
    }
    Ok(())
}

fn check_targets(logits: &Type, targets: &Type) -> Result<(), String> {
    if logits == targets {
        return Ok(());
    }
    Err(format!("the targets {targets} must be of the logits' type {logits}"))
}

fn check_saved(samples: &Type, saved: [&Type; 2]) -> Result<(), String> {
    match saved.into_iter().find(|ty| *ty != samples) {
        Some(other) => Err(format!("the log-sum-exp and its gradient must be {samples}, not {other}")),
        None => Ok(()),
    }
}

/// A number a sample with the axis of classes behind it, to broadcast over the logits.
fn column(x: &Sym) -> Result<Sym> {
    let mut shape = x.shape().clone();
    shape.push(1);
    x.reshape(shape)
}

/// d/dx of log Σ exp(x): what a gradient that arrives at the log-sum-exp itself adds to that of the logits.
fn add_lse_part(at: &Backward<'_>, dx: Sym) -> Result<Sym> {
    let Some(dlse) = at.try_grad(1) else { return Ok(dx) };
    let (x, lse) = (at.input(0)?, at.output(1)?);
    let p = x.cast(lse.dtype())?.sub(&column(&lse)?)?.exp()?;
    dx.add(&p.mul(&column(dlse)?)?.cast(x.dtype())?)
}

fn example_shapes(dice: &mut Dice) -> Vec<Shape> {
    vec![
        [dice.range(1, 6), dice.range(1, 40)].into(),
        [2, dice.range(1, 4), dice.range(1, 9)].into(),
        [dice.range(1, 70)].into(),
        [3, dice.range(65, 90)].into(),
    ]
}

impl Rule for CrossEntropy {
    const NAME: &'static str = "cross_entropy";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [logits, labels] = ops::arity(inputs)?;
        let samples = per_sample(logits)?;
        check_labels(&samples, labels)?;
        Ok(smallvec![samples.clone(), samples])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand > 0 || along.from_end() > 1
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: 10.0 * inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    const KEEP: Keep = Keep::both(3, 2);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let dx = at.push(CrossEntropyGrad, &[&at.input(0)?, &at.input(1)?, &at.output(1)?, &at.grad(0)?])?;
        Ok(vec![Some(add_lse_part(at, dx[0].clone())?), None])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let classes = inputs[0].shape[inputs[0].shape.rank() - 1];
        let rows = inputs[0].data.chunks_exact(classes);
        let lse: Vec<f64> = rows.clone().map(log_sum_exp).collect();
        let loss =
            rows.zip(&lse).zip(&inputs[1].data).map(|((x, lse), &label)| lse - x[label as usize]).collect();
        let shape = &outputs[0].shape;
        vec![Array::new(shape.clone(), loss), Array::new(shape.clone(), lse)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for dtype in [DType::I64, DType::I32] {
            for shape in example_shapes(dice) {
                let (classes, samples) = (shape[shape.rank() - 1], Shape::from(&shape[..shape.rank() - 1]));
                let labels = (Type::new(dtype, samples), Domain::Index(classes));
                examples.push(Example::new(
                    CrossEntropy,
                    vec![(Type::new(DType::F32, shape), Domain::Normal), labels],
                ));
            }
        }
        examples
    }
}

impl Rule for CrossEntropyGrad {
    const NAME: &'static str = "cross_entropy_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [logits, labels, lse, dloss] = ops::arity(inputs)?;
        let samples = per_sample(logits)?;
        check_labels(&samples, labels)?;
        check_saved(&samples, [lse, dloss])?;
        Ok(smallvec![logits.clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand > 0 || along.from_end() > 1
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: 10.0 * inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    const KEEP: Keep = Keep::inputs(15);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        through(at, |i| {
            let (x, labels, lse, dloss) = (&i[0], &i[1], &i[2], &i[3]);
            let p = x.cast(lse.dtype())?.sub(&column(lse)?)?.exp()?;
            let hot = labels.one_hot(x.shape()[x.shape().rank() - 1], lse.dtype())?;
            Ok(vec![p.sub(&hot)?.mul(&column(dloss)?)?.cast(x.dtype())?])
        })
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let x = inputs[0];
        let classes = x.shape[x.shape.rank() - 1];
        let dx = |(i, &x): (usize, &f64)| {
            let (row, class) = (i / classes, i % classes);
            let hot = f64::from(inputs[1].data[row] as usize == class);
            inputs[3].data[row] * ((x - inputs[2].data[row]).exp() - hot)
        };
        vec![Array::new(x.shape.clone(), x.data.iter().enumerate().map(dx).collect())]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for mut example in CrossEntropy::examples(dice) {
            let samples = example.inputs[1].0.with_dtype(DType::F32);
            example.inputs.extend([(samples.clone(), Domain::Positive), (samples, Domain::Normal)]);
            examples.push(Example::new(CrossEntropyGrad, example.inputs).wide(0b1100));
        }
        examples
    }
}

impl Rule for DenseCrossEntropy {
    const NAME: &'static str = "dense_cross_entropy";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [logits, targets] = ops::arity(inputs)?;
        let samples = per_sample(logits)?;
        check_targets(logits, targets)?;
        Ok(smallvec![samples.clone(), samples])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.from_end() > 1
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: 12.0 * inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    const KEEP: Keep = Keep::both(3, 2);

    /// dx by the op above; dt = dloss (lse - x).
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let (x, lse, dloss) = (at.input(0)?, at.output(1)?, at.grad(0)?);
        let mut grads = vec![None, None];
        if at.wants(0) {
            let dx = at.push(DenseCrossEntropyGrad, &[&x, &at.input(1)?, &lse, &dloss])?;
            grads[0] = Some(add_lse_part(at, dx[0].clone())?);
        }
        if at.wants(1) {
            let distance = column(&lse)?.sub(&x.cast(lse.dtype())?)?;
            grads[1] = Some(distance.mul(&column(&dloss)?)?.cast(x.dtype())?);
        }
        Ok(grads)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let classes = inputs[0].shape[inputs[0].shape.rank() - 1];
        let rows = inputs[0].data.chunks_exact(classes);
        let lse: Vec<f64> = rows.clone().map(log_sum_exp).collect();
        let loss = rows
            .zip(inputs[1].data.chunks_exact(classes))
            .zip(&lse)
            .map(|((x, t), lse)| x.iter().zip(t).map(|(x, t)| t * (lse - x)).sum())
            .collect();
        let shape = &outputs[0].shape;
        vec![Array::new(shape.clone(), loss), Array::new(shape.clone(), lse)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |shape: Shape| {
            let ty = Type::new(DType::F32, shape);
            Example::new(DenseCrossEntropy, vec![(ty.clone(), Domain::Normal), (ty, Domain::Positive)])
        };
        example_shapes(dice).into_iter().map(example).collect()
    }
}

impl Rule for DenseCrossEntropyGrad {
    const NAME: &'static str = "dense_cross_entropy_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [logits, targets, lse, dloss] = ops::arity(inputs)?;
        let samples = per_sample(logits)?;
        check_targets(logits, targets)?;
        check_saved(&samples, [lse, dloss])?;
        Ok(smallvec![logits.clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand > 1 || along.from_end() > 1
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0), (0, 1)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: 12.0 * inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    const KEEP: Keep = Keep::inputs(15);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        through(at, |i| {
            let (x, lse, dloss) = (&i[0], &i[2], &i[3]);
            let t = i[1].cast(lse.dtype())?;
            let p = x.cast(lse.dtype())?.sub(&column(lse)?)?.exp()?;
            let total = t.sum(&[t.shape().rank() - 1], true)?;
            Ok(vec![p.mul(&total)?.sub(&t)?.mul(&column(dloss)?)?.cast(x.dtype())?])
        })
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let (x, t) = (inputs[0], inputs[1]);
        let classes = x.shape[x.shape.rank() - 1];
        let dx = |(i, &x): (usize, &f64)| {
            let row = i / classes;
            let total: f64 = t.data[row * classes..(row + 1) * classes].iter().sum();
            inputs[3].data[row] * ((x - inputs[2].data[row]).exp() * total - t.data[i])
        };
        vec![Array::new(x.shape.clone(), x.data.iter().enumerate().map(dx).collect())]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |shape: Shape| {
            let samples = Type::new(DType::F32, &shape[..shape.rank() - 1]);
            let ty = Type::new(DType::F32, shape);
            let inputs = vec![
                (ty.clone(), Domain::Normal),
                (ty, Domain::Positive),
                (samples.clone(), Domain::Positive),
                (samples, Domain::Normal),
            ];
            Example::new(DenseCrossEntropyGrad, inputs).wide(0b1100)
        };
        example_shapes(dice).into_iter().map(example).collect()
    }
}

/// Losses as methods, on the logits or predictions.
///
/// ```
/// use plimsoll_graph::{DType, LossOps, TensorOps, Trace, Type, gradient};
/// let trace = Trace::new();
/// let logits = trace.input("logits", Type::new(DType::F32, [32, 10]));
/// let labels = trace.input("labels", Type::new(DType::I64, [32]));
/// let loss = logits.softmax_cross_entropy(&labels)?.mean(&[], false)?;
/// assert_eq!(gradient(&loss, None, &[&logits])?[0].as_ref().map(|g| g.ty().to_string()), Some("f32[32, 10]".into()));
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait LossOps: TensorOps {
    /// -log of the softmax at the label, a sample: logits `[.., C]` and integer labels `[..]` give `[..]`, in f32 for 16-bit logits.
    #[track_caller]
    fn softmax_cross_entropy(&self, labels: &Self) -> Result<Self, Self::Error> {
        self.emit_one(CrossEntropy, &[self, labels], Site::here())
    }

    /// -Σ t log softmax(x) a sample: logits and target distributions `[.., C]` give `[..]`, in f32 for 16-bit logits.
    #[track_caller]
    fn dense_softmax_cross_entropy(&self, targets: &Self) -> Result<Self, Self::Error> {
        self.emit_one(DenseCrossEntropy, &[self, targets], Site::here())
    }

    /// -t log σ(x) - (1-t) log(1-σ(x)) an element, as max(x, 0) - x t + log(1 + e^-|x|), which no x overflows.
    #[track_caller]
    fn sigmoid_cross_entropy(&self, targets: &Self) -> Result<Self, Self::Error> {
        // The maximum, not relu: at x = 0 its derivative is ½ on either side, and the sum's is σ(0) - t as it should
        // be. Layers that start at zero stand exactly there.
        let zero = self.full_like(Type::new(self.dtype(), Shape::scalar()), 0.0)?;
        let hinge = self.maximum(&zero)?.sub(&self.mul(targets)?)?;
        hinge.add(&self.abs()?.neg()?.softplus()?)
    }

    /// The mean of (x - t)² over all elements: a scalar.
    #[track_caller]
    fn mse(&self, targets: &Self) -> Result<Self, Self::Error> {
        self.sub(targets)?.square()?.mean(&[], false)
    }
}

impl<T: TensorOps> LossOps for T {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::gradient;
    use crate::reference::interpret;
    use crate::trace::Trace;

    #[test]
    fn the_sigmoid_loss_has_the_right_slope_even_at_zero() -> Result<()> {
        let trace = Trace::new();
        let ty = Type::new(DType::F64, [4]);
        let (x, t) = (trace.input("x", ty.clone()), trace.input("t", ty.clone()));
        let loss = x.sigmoid_cross_entropy(&t)?;
        let dx = gradient(&loss, None, &[&x])?.remove(0).expect("x has a gradient");
        let graph = trace.finish(&[&loss, &dx])?;
        let (xs, ts) = ([0.0, 0.0, 800.0, -3.0], [0.25, 1.0, 1.0, 0.0]);
        let out = interpret(&graph, &[Array::new([4], xs.to_vec()), Array::new([4], ts.to_vec())]);
        for i in 0..4 {
            let sigma = 1.0 / (1.0 + (-xs[i]).exp());
            assert!(
                (out[1].data[i] - (sigma - ts[i])).abs() < 1e-12,
                "slope {} at {}",
                out[1].data[i],
                xs[i]
            );
        }
        assert!((out[0].data[0] - 2f64.ln()).abs() < 1e-12);
        assert_eq!(out[0].data[2], 0.0);
        Ok(())
    }

    #[test]
    fn labels_of_another_shape_are_refused_with_both_shapes() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [4, 3]));
        let labels = trace.input("labels", Type::new(DType::I64, [4, 1]));
        let error = x.softmax_cross_entropy(&labels).unwrap_err().to_string();
        assert!(error.contains("[4, 1]") && error.contains("[4]"), "{error}");
    }
}
