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
    ($types:ident, $inputs:literal, $flops:literal) => {
        fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
            $types(self.axis, inputs)
        }

        fn examples(dice: &mut Dice) -> Vec<Example> {
            examples(dice, $inputs, |axis| Self { axis })
        }

        fn keeps_apart(&self, along: &Along<'_>) -> bool {
            along.axis != self.axis
        }

        fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
            Cost { flops: $flops * inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
        }
    };
}

/// The rule of softmax or of its logarithm, by the value of an element from itself and log Σ exp.
macro_rules! forward {
    ($op:ident = $name:literal, $grad:ident, $value:expr) => {
        impl Rule for $op {
            const NAME: &'static str = $name;

            along_an_axis!(forward_type, 1, 12.0);

            const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

            const KEEP: Keep = Keep::outputs(1);

            fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
                let op = $grad { axis: self.axis };
                Ok(vec![Some(at.push(op, &[&at.output(0)?, &at.grad(0)?])?.remove(0))])
            }

            fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
                let value: fn(f64, f64) -> f64 = $value;
                along(self.axis, inputs, |lines| {
                    let lse = log_sum_exp(&lines[0]);
                    lines[0].iter_mut().for_each(|v| *v = value(*v, lse));
                })
            }
        }
    };
}

forward!(Softmax = "softmax", SoftmaxGrad, |x, lse| (x - lse).exp());
forward!(LogSoftmax = "log_softmax", LogSoftmaxGrad, |x, lse| x - lse);

/// The rule of a gradient, by dx from y and dy along the axis: as ops, and as a line in place of y.
macro_rules! backward {
    ($op:ident = $name:literal, $flops:literal, $ops:expr, $line:expr) => {
        impl Rule for $op {
            const NAME: &'static str = $name;

            along_an_axis!(backward_type, 2, $flops);

            const IN_PLACE: &'static [(usize, usize)] = &[(0, 1), (0, 0)];

            const KEEP: Keep = Keep::inputs(3);

            fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
                let dx: fn(&Sym, &Sym, usize) -> Result<Sym> = $ops;
                through(at, |x| Ok(vec![dx(&x[0], &x[1], self.axis)?]))
            }

            fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
                let dx: fn(&mut [f64], &[f64]) = $line;
                along(self.axis, inputs, |lines| {
                    let (y, dy) = lines.split_at_mut(1);
                    dx(&mut y[0], &dy[0]);
                })
            }
        }
    };
}

backward!(
    SoftmaxGrad = "softmax_grad",
    4.0,
    |y, dy, axis| y.mul(&dy.sub(&y.mul(dy)?.sum(&[axis], true)?)?),
    |y, dy| {
        let sum: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
        y.iter_mut().zip(dy).for_each(|(y, dy)| *y *= dy - sum);
    }
);

backward!(
    LogSoftmaxGrad = "log_softmax_grad",
    12.0,
    |y, dy, axis| dy.sub(&y.exp()?.mul(&dy.sum(&[axis], true)?)?),
    |y, dy| {
        let sum: f64 = dy.iter().sum();
        y.iter_mut().zip(dy).for_each(|(y, dy)| *y = dy - y.exp() * sum);
    }
);

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
