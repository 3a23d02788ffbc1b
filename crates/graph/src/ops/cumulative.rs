//! Running sums and products along one axis, and the gradient of a running product.

use smallvec::smallvec;

use super::kinds::kinds;
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::reference::{Array, along};
use crate::trace::Sym;
use crate::{DType, Site, Type, ops};

kinds! {
    /// What runs along a line.
    CumulativeKind {
        /// A sum.
        Sum => "cumsum",
        /// A product.
        Prod => "cumprod",
    }
}

/// `y[k]` = the sum or product of `x[0..=k]` along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cumulative {
    /// Sum or product.
    pub kind: CumulativeKind,
    /// The axis.
    pub axis: usize,
    /// Whether element k itself is left out: x[0..k], which is 0 or 1 at the first place.
    pub exclusive: bool,
    /// Whether it begins at the end of the axis: x[k..].
    pub reverse: bool,
}

/// `dx[j]` = Σ `dy[k]` · the product of all other elements of `y[k]`, over all k that `x[j]` is in. Inputs: x, dy.
///
/// Nothing is divided by, so it is exact where elements are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CumProdGrad {
    /// The axis of the running product.
    pub axis: usize,
    /// Whether element k is left out of `y[k]`.
    pub exclusive: bool,
    /// Whether products begin at the end of the axis.
    pub reverse: bool,
}

/// All ways to run along each of three axes, long and short lines among them.
fn shapes(dice: &mut Dice) -> Vec<(usize, bool, bool, [usize; 3])> {
    let mut shapes = Vec::new();
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        for axis in 0..3 {
            let shape = [dice.range(1, 5), dice.range(1, 9), dice.range(1, 40)];
            shapes.push((axis, exclusive, reverse, shape));
        }
    }
    shapes
}

/// The places of a line in the order in which it is run along.
fn places(n: usize, reverse: bool) -> impl DoubleEndedIterator<Item = usize> {
    (0..n).map(move |k| if reverse { n - 1 - k } else { k })
}

impl Rule for Cumulative {
    const NAME: &'static str = "cumulative";

    fn name(&self) -> &'static str {
        self.kind.label()
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        ops::axis_of(x, self.axis)?;
        if !(x.dtype.is_float() || x.dtype.is_index()) {
            return Err(format!("it does not take {} elements; cast them first", x.dtype));
        }
        Ok(smallvec![(*x).clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis != self.axis
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    fn keep(&self) -> Keep {
        match self.kind {
            CumulativeKind::Sum => Keep::NOTHING,
            CumulativeKind::Prod => Keep::inputs(1),
        }
    }

    /// Sum: dx = the sum of dy, run the other way. Product: an op of its own.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let dy = at.grad(0)?;
        let Cumulative { kind, axis, exclusive, reverse } = *self;
        let dx = match kind {
            CumulativeKind::Sum => at.push(Cumulative { reverse: !reverse, ..*self }, &[&dy])?,
            CumulativeKind::Prod => {
                at.push(CumProdGrad { axis, exclusive, reverse }, &[&at.input(0)?, &dy])?
            }
        };
        Ok(dx.into_iter().map(Some).collect())
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        along(self.axis, inputs, |lines| {
            let line = &mut lines[0];
            let mut total = match self.kind {
                CumulativeKind::Sum => 0.0,
                CumulativeKind::Prod => 1.0,
            };
            for k in places(line.len(), self.reverse) {
                let before = total;
                match self.kind {
                    CumulativeKind::Sum => total += line[k],
                    CumulativeKind::Prod => total *= line[k],
                }
                line[k] = if self.exclusive { before } else { total };
            }
        })
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for kind in [CumulativeKind::Sum, CumulativeKind::Prod] {
            for (axis, exclusive, reverse, shape) in shapes(dice) {
                let op = Cumulative { kind, axis, exclusive, reverse };
                let domain = if kind == CumulativeKind::Sum { Domain::Normal } else { Domain::Positive };
                examples.push(Example::new(op, vec![(Type::new(DType::F32, shape), domain)]));
            }
            for dtype in [DType::I64, DType::I32] {
                let op = Cumulative { kind, axis: 1, exclusive: false, reverse: false };
                let ty = Type::new(dtype, [3, dice.range(1, 9), 2]);
                examples.push(Example::new(op, vec![(ty, Domain::Index(4))]));
            }
        }
        // Lines that a block of threads runs along together, in more than one piece.
        let long = Type::new(DType::F32, [2, dice.range(1000, 1400)]);
        for (exclusive, reverse) in [(false, false), (true, true)] {
            let op = Cumulative { kind: CumulativeKind::Sum, axis: 1, exclusive, reverse };
            examples.push(Example::new(op, vec![(long.clone(), Domain::Index(3))]));
        }
        examples
    }
}

impl Rule for CumProdGrad {
    const NAME: &'static str = "cumprod_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, dy] = ops::arity(inputs)?;
        ops::float(x)?;
        ops::axis_of(x, self.axis)?;
        if x != dy {
            return Err(format!("the gradient of a running product of {x} cannot be {dy}"));
        }
        Ok(smallvec![(*x).clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis != self.axis
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: 4.0 * outputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let why = "the second derivative of a running product is not defined here; write it with exp, cumsum and log";
        Err(at.no_gradient(why))
    }

    /// The product of what is before `x[j]`, times Σ `dy[k]` · what is between j and k: a sum that the next place's leads to.
    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        along(self.axis, inputs, |lines| {
            let n = lines[0].len();
            let order: Vec<usize> = places(n, self.reverse).collect();
            let in_product = |i: usize, k: usize| if self.exclusive { i < k } else { i <= k };
            let value = |j: usize| -> f64 {
                let terms = (0..n).filter(|&k| in_product(j, k)).map(|k| {
                    let others = (0..n).filter(|&i| in_product(i, k) && i != j);
                    lines[1][order[k]] * others.map(|i| lines[0][order[i]]).product::<f64>()
                });
                terms.sum()
            };
            let dx: Vec<f64> = (0..n).map(value).collect();
            order.iter().zip(dx).for_each(|(&place, dx)| lines[0][place] = dx);
        })
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |(axis, exclusive, reverse, shape): (usize, bool, bool, [usize; 3])| {
            let ty = Type::new(DType::F32, [shape[0], shape[1], shape[2].min(9)]);
            // Small integers, so that zeros occur.
            let inputs = vec![(ty.clone(), Domain::Index(3)), (ty, Domain::Normal)];
            Example::new(CumProdGrad { axis, exclusive, reverse }, inputs)
        };
        shapes(dice).into_iter().map(example).collect()
    }
}

/// Methods for a running value: plainly, and with all that can be said of it.
macro_rules! running {
    ($( $(#[$doc:meta])+ $plain:ident, $(#[$doc_with:meta])+ $with:ident => $kind:expr; )+) => {
        $( $(#[$doc])+ #[track_caller]
        fn $plain(&self, axis: isize) -> Result<Self, Self::Error> {
            self.$with(axis, false, false)
        }

        $(#[$doc_with])+ #[track_caller]
        fn $with(&self, axis: isize, exclusive: bool, reverse: bool) -> Result<Self, Self::Error> {
            let site = Site::here();
            let axis = self.axis(axis, $kind.label(), site)?;
            self.emit_one(Cumulative { kind: $kind, axis, exclusive, reverse }, &[self], site)
        } )+
    };
}

/// Running sums and products as methods.
///
/// ```
/// use plimsoll_graph::{CumulativeOps, DType, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [8, 10]));
/// assert_eq!(x.cumsum(-1)?.shape().to_string(), "[8, 10]");
/// // What is before each place, 1 at the first: light that gets through layers.
/// assert_eq!(x.cumprod_with(1, true, false)?.shape().to_string(), "[8, 10]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait CumulativeOps: TensorOps {
    running! {
        /// The sum of all elements up to each one along an axis (negative: from the last).
        cumsum,
        /// [`cumsum`](CumulativeOps::cumsum), where `exclusive` leaves each element out of its own sum, and `reverse` begins at the end.
        cumsum_with => CumulativeKind::Sum;
        /// The product of all elements up to each one along an axis (negative: from the last). Its gradient is exact at zeros.
        cumprod,
        /// [`cumprod`](CumulativeOps::cumprod), where `exclusive` leaves each element out of its own product, and `reverse` begins at
        /// the end.
        cumprod_with => CumulativeKind::Prod;
    }
}

impl<T: TensorOps> CumulativeOps for T {}
