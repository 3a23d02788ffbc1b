//! Softmax and its logarithm along one axis.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::ops::composed::through;
use crate::reference::{Array, along};
use crate::trace::Sym;
use crate::{DType, Site, Type, ops};

/// y = exp(x - max x) / Σ exp(x - max x) along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    /// The axis.
    pub axis: usize,
}

/// y = x - log Σ exp(x) along an axis, computed around the largest x.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogSoftmax {
    /// The axis.
    pub axis: usize,
}

/// dx = y (dy - Σ y dy) along an axis. Inputs: y (softmax's output), dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoftmaxGrad {
    /// The axis.
    pub axis: usize,
}

/// dx = dy - exp(y) Σ dy along an axis. Inputs: y (log-softmax's output), dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogSoftmaxGrad {
    /// The axis.
    pub axis: usize,
}

fn forward_type(axis: usize, inputs: &[&Type]) -> Result<Types, String> {
    let [x] = ops::arity(inputs)?;
    ops::float(x)?;
    ops::axis_of(x, axis)?;
    Ok(smallvec![x.clone()])
}

fn backward_type(axis: usize, inputs: &[&Type]) -> Result<Types, String> {
    let [y, dy] = ops::arity(inputs)?;
    ops::float(y)?;
    ops::axis_of(y, axis)?;
    if y != dy {
        return Err(format!("the result {y} and its gradient {dy} must be of one type"));
    }
    Ok(smallvec![dy.clone()])
}

/// log Σ exp(x), around the largest x.
pub(crate) fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    max + x.iter().map(|v| (v - max).exp()).sum::<f64>().ln()
}

/// Three-axis shapes for every axis, long and short lines among them, with so many inputs of that shape.
fn examples<R: Into<crate::Op>>(dice: &mut Dice, inputs: usize, op: impl Fn(usize) -> R) -> Vec<Example> {
    let mut shapes = Vec::new();
    for axis in 0..3 {
        shapes.push((axis, Type::new(DType::F32, [dice.range(1, 5), dice.range(1, 9), dice.range(1, 40)])));
    }
    shapes.push((0, Type::new(DType::F32, [dice.range(1, 70)])));
    shapes.push((1, Type::new(DType::F32, [2, dice.range(100, 140)])));
    let example = |(axis, ty)| Example::new(op(axis), vec![(ty, Domain::Normal); inputs]);
    shapes.into_iter().map(example).collect()
}

/// What all four have of their axis: a line along it belongs together, and every element costs so many operations.
macro_rules! along_an_axis {
    ($types:ident, $flops:literal) => {
        fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
            $types(self.axis, inputs)
        }

        fn keeps_apart(&self, along: &Along<'_>) -> bool {
            along.axis != self.axis
        }

        fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
            Cost { flops: $flops * inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
        }
    };
}

impl Rule for Softmax {
    const NAME: &'static str = "softmax";

    along_an_axis!(forward_type, 12.0);

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    const KEEP: Keep = Keep::outputs(1);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(at.push(SoftmaxGrad { axis: self.axis }, &[&at.output(0)?, &at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        along(self.axis, inputs, |lines| {
            let lse = log_sum_exp(&lines[0]);
            lines[0].iter_mut().for_each(|v| *v = (*v - lse).exp());
        })
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        examples(dice, 1, |axis| Softmax { axis })
    }
}

impl Rule for SoftmaxGrad {
    const NAME: &'static str = "softmax_grad";

    along_an_axis!(backward_type, 4.0);

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 1), (0, 0)];

    const KEEP: Keep = Keep::inputs(3);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        through(at, |x| {
            let (y, dy) = (&x[0], &x[1]);
            let sum = y.mul(dy)?.sum(&[self.axis], true)?;
            Ok(vec![y.mul(&dy.sub(&sum)?)?])
        })
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        along(self.axis, inputs, |lines| {
            let sum: f64 = lines[0].iter().zip(&lines[1]).map(|(y, dy)| y * dy).sum();
            for k in 0..lines[0].len() {
                lines[0][k] *= lines[1][k] - sum;
            }
        })
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        examples(dice, 2, |axis| SoftmaxGrad { axis })
    }
}

impl Rule for LogSoftmax {
    const NAME: &'static str = "log_softmax";

    along_an_axis!(forward_type, 12.0);

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    const KEEP: Keep = Keep::outputs(1);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(
            at.push(LogSoftmaxGrad { axis: self.axis }, &[&at.output(0)?, &at.grad(0)?])?.remove(0),
        )])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        along(self.axis, inputs, |lines| {
            let lse = log_sum_exp(&lines[0]);
            lines[0].iter_mut().for_each(|v| *v -= lse);
        })
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        examples(dice, 1, |axis| LogSoftmax { axis })
    }
}

impl Rule for LogSoftmaxGrad {
    const NAME: &'static str = "log_softmax_grad";

    along_an_axis!(backward_type, 12.0);

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 1), (0, 0)];

    const KEEP: Keep = Keep::inputs(3);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        through(at, |x| {
            let (y, dy) = (&x[0], &x[1]);
            Ok(vec![dy.sub(&y.exp()?.mul(&dy.sum(&[self.axis], true)?)?)?])
        })
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        along(self.axis, inputs, |lines| {
            let sum: f64 = lines[1].iter().sum();
            for k in 0..lines[0].len() {
                lines[0][k] = lines[1][k] - lines[0][k].exp() * sum;
            }
        })
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        examples(dice, 2, |axis| LogSoftmaxGrad { axis })
    }
}

/// Softmax as methods.
///
/// ```
/// use plimsoll_graph::{DType, SoftmaxOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let scores = trace.input("scores", Type::new(DType::F32, [8, 10]));
/// assert_eq!(scores.softmax(-1)?.shape().to_string(), "[8, 10]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait SoftmaxOps: TensorOps {
    /// exp(x) / Σ exp(x) along an axis (negative: from the last).
    #[track_caller]
    fn softmax(&self, axis: isize) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "softmax", site)?;
        self.emit_one(Softmax { axis }, &[self], site)
    }

    /// x - log Σ exp(x) along an axis (negative: from the last).
    #[track_caller]
    fn log_softmax(&self, axis: isize) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "log_softmax", site)?;
        self.emit_one(LogSoftmax { axis }, &[self], site)
    }
}

impl<T: TensorOps> SoftmaxOps for T {}
