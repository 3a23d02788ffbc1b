//! The different values of an integer tensor and how often each is there, in results of a size that is known before.

use crate::methods::TensorOps;
use crate::ops::{
    Compare, Concat, Cumulative, CumulativeKind, Full, IndexPut, Reshape, ScatterAdd, Slice, SliceAxis,
    SortOps,
};
use crate::{DType, Site, Type, ops};

/// Different values as a method.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Trace, Type, UniqueOps};
/// let trace = Trace::new();
/// let labels = trace.input("labels", Type::new(DType::I64, [8, 16]));
/// let (values, counts) = labels.unique(10, -1)?;
/// assert_eq!((values.ty().to_string(), counts.ty().to_string()), ("i64[10]".into(), "i64[10]".into()));
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait UniqueOps: TensorOps {
    /// The different values of all elements in ascending order, and how many of each there are (i64). Both results have `size`
    /// places; those behind the last value hold `fill` and 0. Where there are more than `size` different values the call is refused
    /// when it runs, as an index out of the range of `scatter_add`. Integers only; there is no gradient.
    #[track_caller]
    fn unique(&self, size: usize, fill: i32) -> Result<(Self, Self), Self::Error> {
        let site = Site::here();
        if !self.dtype().is_index() {
            let why = format!("it takes i64 or i32 elements, not {}; cast them first", self.dtype());
            return Err(ops::refuse("unique", site, &[self.ty()], why));
        }
        let n = self.shape().elements();
        let full = |dtype: DType, length: usize, value: i32| {
            let op = Full { ty: Type::new(dtype, [length]), value: f64::from(value).into() };
            self.emit_one(op, &[], site)
        };
        let empty = full(self.dtype(), size, fill)?;
        if n == 0 {
            return Ok((empty, full(DType::I64, size, 0)?));
        }
        let sorted = self.emit_one(Reshape([n].into()), &[self], site)?.sort(0, false)?;
        // A value is new where it is not the one before; the first is compared with itself, so that counting starts at 0.
        let part = |start: usize, stop: usize| {
            let range = SliceAxis { start, stop, step: 1 };
            self.emit_one(Slice(smallvec::smallvec![range]), &[&sorted], site)
        };
        let before = self.emit_one(Concat { axis: 0 }, &[&part(0, 1)?, &part(0, n - 1)?], site)?;
        let new = self.emit_one(Compare::Ne, &[&sorted, &before], site)?;
        let new = self.emit_one(ops::Cast(DType::I64), &[&new], site)?;
        let run = Cumulative { kind: CumulativeKind::Sum, axis: 0, exclusive: false, reverse: false };
        let number = self.emit_one(run, &[&new], site)?;
        let ones = full(DType::I64, n, 1)?;
        let counts = self.emit_one(ScatterAdd { axis: 0, length: size }, &[&ones, &number], site)?;
        let values = self.emit_one(IndexPut { axis: 0 }, &[&empty, &sorted, &number], site)?;
        Ok((values, counts))
    }
}

impl<T: TensorOps> UniqueOps for T {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Trace;
    use crate::reference::{Array, interpret};

    fn input(dtype: DType, shape: impl Into<crate::Shape>) -> (Trace, crate::Sym) {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(dtype, shape));
        (trace, x)
    }

    #[test]
    fn values_are_counted_and_the_rest_is_filled() {
        let (trace, x) = input(DType::I32, [2, 4]);
        let (values, counts) = x.unique(5, -1).unwrap();
        let graph = trace.finish(&[&values, &counts]).unwrap();
        let x = Array::new([2, 4], vec![7.0, 3.0, 7.0, 7.0, -2.0, 3.0, 7.0, 7.0]);
        let found = interpret(&graph, &[x]);
        assert_eq!(found[0].data, [-2.0, 3.0, 7.0, -1.0, -1.0]);
        assert_eq!(found[1].data, [1.0, 2.0, 5.0, 0.0, 0.0]);
    }

    #[test]
    fn fractions_are_refused_by_name() {
        let (_trace, x) = input(DType::F32, [4]);
        let why = x.unique(3, 0).unwrap_err().to_string();
        assert!(why.contains("unique") && why.contains("f32"), "{why}");
    }
}
