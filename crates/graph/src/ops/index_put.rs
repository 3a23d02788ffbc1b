//! Writing by index, and where a mask is set.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::ops::gather::{index, joined};
use crate::ops::{Binary, Gather, ScatterAdd, Select};
use crate::reference::{Array, for_each_index};
use crate::trace::Sym;
use crate::{DType, Shape, Site, Type, ops};

/// y = x but y[a.., indices[i..], b..] = values[a.., i.., b..]; of several values for one place, the last is there.
/// Inputs: x, values, indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexPut {
    /// The axis of x that indices point along; in the values, the indices' shape takes its place.
    pub axis: usize,
}

impl IndexPut {
    /// For every index whether its values are the ones that stay.
    fn stays(at: &Backward<'_>, indices: &Sym, length: usize) -> Result<Sym> {
        let places = Type::new(DType::I32, [indices.shape().elements()]);
        let flat = indices.reshape([places.elements()])?;
        let own = flat.iota_like(places, 0)?;
        let nobody = at.full(&Type::new(DType::I32, [length]), -1.0)?;
        let last = at.push(IndexPut { axis: 0 }, &[&nobody, &own, &flat])?.remove(0);
        let last = at.push(Gather { axis: 0 }, &[&last, &flat])?.remove(0);
        last.equal(&own)
    }
}

impl Rule for IndexPut {
    const NAME: &'static str = "index_put";

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    const KEEP: Keep = Keep::inputs(4);

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, values, indices] = ops::arity(inputs)?;
        index(indices)?;
        ops::same_dtype(x, values)?;
        let axis = ops::axis_of(x, self.axis)?;
        let wanted = joined(&x.shape[..axis], &indices.shape, &x.shape[axis + 1..]);
        if values.shape != wanted {
            return Err(format!(
                "the values for indices {} along axis {axis} of {} must be {wanted}, not {}",
                indices.shape, x.shape, values.shape
            ));
        }
        Ok(smallvec![(*x).clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        match along.operand {
            0 => along.axis != self.axis,
            1 => !(self.axis..self.axis + along.inputs[2].shape.rank()).contains(&along.axis),
            _ => false,
        }
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: inputs[1].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    /// dx = dy but 0 where values were put; dvalues = dy where they are, 0 for those that others were put over.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let (dy, indices) = (at.grad(0)?, at.input(2)?);
        let values = at.input_type(1);
        let dx = if at.wants(0) {
            let zeros = at.full(values, 0.0)?;
            Some(at.push(*self, &[&dy, &zeros, &indices])?.remove(0))
        } else {
            None
        };
        let dvalues = if at.wants(1) {
            let stays = IndexPut::stays(at, &indices, dy.shape()[self.axis])?;
            let after = values.shape.rank() - self.axis - indices.shape().rank();
            let column: Shape = indices.shape().iter().copied().chain(vec![1; after]).collect();
            let there = at.push(Gather { axis: self.axis }, &[&dy, &indices])?.remove(0);
            let zero = at.full(&Type::new(values.dtype, Shape::scalar()), 0.0)?;
            Some(stays.reshape(column)?.select(&there, &zero)?)
        } else {
            None
        };
        Ok(vec![dx, dvalues, None])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let (values, indices) = (inputs[1], inputs[2]);
        let middle = self.axis..self.axis + indices.shape.rank();
        let mut y = inputs[0].clone();
        for_each_index(&values.shape, |i| {
            let k = indices.at(&i[middle.clone()]) as usize;
            let place = y.offset(&joined(&i[..middle.start], &[k], &i[middle.end..]));
            y.data[place] = values.at(i);
        });
        vec![y]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for axis in 0..3 {
            for dtype in [DType::I64, DType::I32] {
                let x = Type::new(DType::F32, [dice.range(1, 4), dice.range(1, 5), dice.range(1, 40)]);
                // More indices than places now and then, so that some meet.
                let indices: Shape = if axis == 1 { [2, 3].into() } else { [dice.range(1, 12)].into() };
                let values = x.with_shape(joined(&x.shape[..axis], &indices, &x.shape[axis + 1..]));
                let limit = Domain::Index(x.shape[axis]);
                let inputs =
                    vec![(x, Domain::Normal), (values, Domain::Normal), (Type::new(dtype, indices), limit)];
                examples.push(Example::new(IndexPut { axis }, inputs));
            }
        }
        for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_float()) {
            let inputs = vec![
                (Type::new(dtype, [5, 3]), Domain::Truth),
                (Type::new(dtype, [4, 3]), Domain::Truth),
                (Type::new(DType::I64, [4]), Domain::Index(5)),
            ];
            examples.push(Example::new(IndexPut { axis: 0 }, inputs));
        }
        examples
    }
}

/// Writing by index and by mask, as methods. They give a new value; a traced step writes over the old one where nobody reads it again.
///
/// ```
/// use plimsoll_graph::{DType, IndexPutOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let table = trace.input("table", Type::new(DType::F32, [1000, 64]));
/// let rows = trace.input("rows", Type::new(DType::I64, [8]));
/// let values = trace.input("values", Type::new(DType::F32, [8, 64]));
/// assert_eq!(table.index_put(&rows, &values, 0)?.shape().to_string(), "[1000, 64]");
/// assert_eq!(table.index_add(&rows, &values, 0)?.shape().to_string(), "[1000, 64]");
/// let negative = table.less(&table.full_like(Type::new(DType::F32, []), 0.0)?)?;
/// assert_eq!(table.masked_fill(&negative, 0.0)?.shape().to_string(), "[1000, 64]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait IndexPutOps: TensorOps {
    /// This with `values` at the places along an axis (negative: from the last) that `indices` name; in the values, the indices' shape
    /// takes the axis's place. Of several values for one place the last stays, on every device, and the others have gradient 0.
    #[track_caller]
    fn index_put(&self, indices: &Self, values: &Self, axis: isize) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "index_put", site)?;
        self.emit_one(IndexPut { axis }, &[self, values, indices], site)
    }

    /// This with `values` added at the places that `indices` name; several for one place are all added.
    #[track_caller]
    fn index_add(&self, indices: &Self, values: &Self, axis: isize) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "index_add", site)?;
        let op = ScatterAdd { axis, length: self.shape()[axis] };
        let sums = self.emit_one(op, &[values, indices], site)?;
        // Broadcasting would hide a shape that does not fit.
        if sums.shape() != self.shape() {
            let why = format!("values {} do not fit {} along axis {axis}", values.shape(), self.shape());
            return Err(ops::refuse("index_add", site, &[self.ty(), values.ty(), indices.ty()], why));
        }
        self.emit_one(Binary::Add, &[self, &sums], site)
    }

    /// This with `value` where `mask` is true; the mask is broadcast. No gradient flows to what was filled.
    #[track_caller]
    fn masked_fill(&self, mask: &Self, value: f64) -> Result<Self, Self::Error> {
        let site = Site::here();
        let op = ops::Full { ty: Type::new(self.dtype(), Shape::scalar()), value: value.into() };
        let filled = self.emit_one(op, &[], site)?;
        let y = self.emit_one(Select, &[mask, &filled, self], site)?;
        if y.shape() != self.shape() {
            let why = format!("a mask {} is larger than {}", mask.shape(), self.shape());
            return Err(ops::refuse("masked_fill", site, &[self.ty(), mask.ty()], why));
        }
        Ok(y)
    }
}

impl<T: TensorOps> IndexPutOps for T {}
