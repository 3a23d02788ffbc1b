//! The order of elements along one axis: sort, argsort and the largest or smallest few.
//!
//! A sort is an order and a pick by it, so that its gradient is that of the pick, and what it keeps is the order: four bytes an element.

use std::cmp::Ordering;

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Rule, Types, traffic};
use crate::ops::TakeAlong;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Site, Type, ops};

/// y = the places of the elements of x along an axis, in the order of the elements.
///
/// Equal elements keep their order; +0 and -0 are equal. A not-a-number is larger than every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArgSort {
    /// The axis.
    pub axis: usize,
    /// Whether the largest come first.
    pub descending: bool,
    /// How many of the first places are wanted; all where it is not said.
    pub first: Option<usize>,
    /// The type of the places: i64 or i32.
    pub dtype: DType,
}

impl ArgSort {
    /// The number of places that are wanted of an axis.
    pub fn wanted(&self, x: &Type) -> usize {
        self.first.unwrap_or(x.shape[self.axis])
    }
}

/// The order of two elements: a not-a-number last, zeros alike.
fn compare(a: f64, b: f64) -> Ordering {
    a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(&b).unwrap_or(Ordering::Equal))
}

impl Rule for ArgSort {
    const NAME: &'static str = "argsort";

    fn name(&self) -> &'static str {
        if self.first.is_some() { "top_k" } else { Self::NAME }
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        let axis = ops::axis_of(x, self.axis)?;
        let length = x.shape[axis];
        if x.dtype == DType::Bool {
            return Err("it does not order truth values; cast them first".into());
        }
        if !self.dtype.is_index() {
            return Err(format!("places are i64 or i32, not {}", self.dtype));
        }
        if i32::try_from(length).is_err() {
            return Err(format!("axis {axis} of {} is longer than {} elements", x.shape, i32::MAX));
        }
        if self.wanted(x) > length {
            return Err(format!("axis {axis} of {} has no {} elements", x.shape, self.wanted(x)));
        }
        Ok(smallvec![Type::new(self.dtype, x.shape.with(axis, self.wanted(x)))])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis != self.axis
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let comparisons = (inputs[0].shape[self.axis].max(2) as f64).log2();
        Cost { flops: comparisons * inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("its result is an index"))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, shape) = (inputs[0], &outputs[0].shape);
        let inner: usize = shape[self.axis + 1..].iter().product();
        let (length, first) = (x.shape[self.axis], shape[self.axis]);
        let mut y = Array::new(shape.clone(), vec![0.0; shape.elements()]);
        for line in 0..x.data.len() / length.max(1) {
            let (outer, i) = (line / inner, line % inner);
            let at = |k: usize| x.data[(outer * length + k) * inner + i];
            let mut order: Vec<usize> = (0..length).collect();
            order.sort_by(
                |&a, &b| {
                    if self.descending { compare(at(b), at(a)) } else { compare(at(a), at(b)) }
                },
            );
            for (k, place) in order.into_iter().take(first).enumerate() {
                y.data[(outer * first + k) * inner + i] = place as f64;
            }
        }
        vec![y]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        let mut add = |op: ArgSort, dtype: DType, shape: &[usize], domain: Domain| {
            examples.push(Example::new(op, vec![(Type::new(dtype, shape), domain)]));
        };
        for axis in 0..3 {
            for descending in [false, true] {
                let shape = [dice.range(1, 5), dice.range(1, 9), dice.range(1, 40)];
                let op = ArgSort { axis, descending, first: None, dtype: DType::I64 };
                add(op, DType::F32, &shape, Domain::Normal);
                let first = Some(dice.range(0, shape[axis] + 1));
                add(ArgSort { first, dtype: DType::I32, ..op }, DType::F32, &shape, Domain::Distinct);
                for dtype in [&[DType::F32, DType::I64, DType::I32][..], &DType::SMALL_INTEGERS].concat() {
                    // Few values, so that equal ones meet.
                    add(op, dtype, &shape, Domain::Index(5));
                }
            }
        }
        // Lines that take several blocks of threads on a card, and few of many.
        for (descending, first) in [(false, None), (true, None), (true, Some(7)), (false, Some(600))] {
            let op = ArgSort { axis: 0, descending, first, dtype: DType::I32 };
            add(op, DType::F32, &[dice.range(2100, 3100), 2], Domain::Index(400));
        }
        examples
    }
}

/// Orders as methods. Everywhere equal elements keep their order, and a not-a-number is larger than every number.
///
/// ```
/// use plimsoll_graph::{DType, SortOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let scores = trace.input("scores", Type::new(DType::F32, [8, 1000]));
/// assert_eq!(scores.sort(-1, false)?.shape().to_string(), "[8, 1000]");
/// let (best, which) = scores.top_k(5, -1, true)?;
/// assert_eq!((best.ty().to_string(), which.ty().to_string()), ("f32[8, 5]".into(), "i64[8, 5]".into()));
/// let error = scores.top_k(2000, -1, true).unwrap_err().to_string();
/// assert!(error.contains("has no 2000 elements"), "{error}");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait SortOps: TensorOps {
    /// The elements along an axis (negative: from the last) in order, the smallest first or, where `descending`, the largest.
    #[track_caller]
    fn sort(&self, axis: isize, descending: bool) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "sort", site)?;
        let op = ArgSort { axis, descending, first: None, dtype: DType::I32 };
        let order = self.emit_one(op, &[self], site)?;
        self.emit_one(TakeAlong { axis }, &[self, &order], site)
    }

    /// The places of the elements along an axis in the order of [`sort`](SortOps::sort), as i64.
    #[track_caller]
    fn argsort(&self, axis: isize, descending: bool) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "argsort", site)?;
        self.emit_one(ArgSort { axis, descending, first: None, dtype: DType::I64 }, &[self], site)
    }

    /// The `k` largest elements along an axis, or the smallest where not `largest`, and their places as i64. The first is the
    /// most extreme; of equals the one with the lower place comes first.
    #[track_caller]
    fn top_k(&self, k: usize, axis: isize, largest: bool) -> Result<(Self, Self), Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "top_k", site)?;
        let op = ArgSort { axis, descending: largest, first: Some(k), dtype: DType::I64 };
        let places = self.emit_one(op, &[self], site)?;
        Ok((self.emit_one(TakeAlong { axis }, &[self, &places], site)?, places))
    }
}

impl<T: TensorOps> SortOps for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_before_what_is_none() {
        let x = Array::new([5], vec![f64::NAN, 1.0, f64::INFINITY, -0.0, 0.0]);
        let order = |descending: bool| {
            let op = ArgSort { axis: 0, descending, first: None, dtype: DType::I64 };
            op.reference(&[&x], &[Type::new(DType::I64, [5])]).remove(0).data
        };
        assert_eq!(order(false), [3.0, 4.0, 1.0, 2.0, 0.0]);
        assert_eq!(order(true), [0.0, 2.0, 1.0, 3.0, 4.0]);
    }
}
