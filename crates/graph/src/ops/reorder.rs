//! The elements of one axis in another order that needs no indices: flipped, or rolled.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Rule, Types};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Site, Type, ops};

/// An order of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AxisOrder {
    /// From the last to the first.
    Flip,
    /// Each element this many places further; what falls off the end comes back at the start.
    Roll(usize),
}

/// y = x with the elements of one axis in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reorder {
    /// The axis.
    pub axis: usize,
    /// Its order.
    pub order: AxisOrder,
}

impl Reorder {
    /// The place that element `k` of an axis of `n` comes from.
    pub fn source(&self, k: usize, n: usize) -> usize {
        match self.order {
            AxisOrder::Flip => n - 1 - k,
            AxisOrder::Roll(shift) => (k + n - shift % n) % n,
        }
    }
}

impl Rule for Reorder {
    const NAME: &'static str = "reorder";

    fn name(&self) -> &'static str {
        match self.order {
            AxisOrder::Flip => "flip",
            AxisOrder::Roll(_) => "roll",
        }
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        ops::axis_of(x, self.axis)?;
        Ok(smallvec![(*x).clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis != self.axis
    }

    /// dx = dy in the order that undoes this one.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let n = at.input_type(0).shape[self.axis].max(1);
        let order = match self.order {
            AxisOrder::Flip => AxisOrder::Flip,
            AxisOrder::Roll(shift) => AxisOrder::Roll((n - shift % n) % n),
        };
        Ok(vec![Some(at.push(Reorder { order, ..*self }, &[&at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let n = outputs[0].shape[self.axis];
        vec![Array::from_fn(&outputs[0].shape, |i| {
            let mut from = i.to_vec();
            from[self.axis] = self.source(i[self.axis], n);
            inputs[0].at(&from)
        })]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for axis in 0..3 {
            for order in [AxisOrder::Flip, AxisOrder::Roll(dice.range(0, 9)), AxisOrder::Roll(1)] {
                for dtype in [DType::F32, DType::I64, DType::U16, DType::U8] {
                    let domain = if dtype == DType::F32 { Domain::Normal } else { Domain::Index(90) };
                    let shape = [dice.range(1, 5), dice.range(1, 7), dice.range(1, 40)];
                    examples
                        .push(Example::new(Reorder { axis, order }, vec![(Type::new(dtype, shape), domain)]));
                }
            }
        }
        examples
    }
}

/// Flipping and rolling as methods: one pass over memory an axis.
///
/// ```
/// use plimsoll_graph::{DType, ReorderOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let images = trace.input("images", Type::new(DType::F32, [8, 32, 32, 3]));
/// assert_eq!(images.flip(&[2])?.shape().to_string(), "[8, 32, 32, 3]");
/// assert_eq!(images.roll(-4, 1)?.shape().to_string(), "[8, 32, 32, 3]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait ReorderOps: TensorOps {
    /// The elements from the last to the first along each of some axes (negative: from the last).
    #[track_caller]
    fn flip(&self, axes: &[isize]) -> Result<Self, Self::Error> {
        let site = Site::here();
        axes.iter().try_fold(self.clone(), |x, &axis| {
            let axis = x.axis(axis, "flip", site)?;
            x.emit_one(Reorder { axis, order: AxisOrder::Flip }, &[&x], site)
        })
    }

    /// The elements `shift` places further along an axis, backwards where negative; what falls off one end comes back at the other.
    #[track_caller]
    fn roll(&self, shift: isize, axis: isize) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "roll", site)?;
        let shift = shift.rem_euclid(self.shape()[axis].max(1) as isize) as usize;
        self.emit_one(Reorder { axis, order: AxisOrder::Roll(shift) }, &[self], site)
    }
}

impl<T: TensorOps> ReorderOps for T {}
