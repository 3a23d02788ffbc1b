//! Picking by index and adding back by index: gather (embedding), one-hot, take-along-axis.
//!
//! Indices are i64 or i32 and count from 0; one out of range is refused when the kernel meets it.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Op, Rule, Types, traffic};
use crate::reference::{Array, for_each_index};
use crate::trace::Sym;
use crate::{DType, Shape, Site, Type, ops};

/// y[a.., i.., b..] = x[a.., indices[i..], b..]: the axis is replaced by the indices' shape. Inputs: x, indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    /// The axis that is picked from.
    pub axis: usize,
}

/// y[a.., k, b..] = Σ x[a.., i.., b..] over all i with indices[i..] = k, added in the order of i. Inputs: x, indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScatterAdd {
    /// The first of x's axes that the indices' shape stands for.
    pub axis: usize,
    /// The length of the axis that takes their place.
    pub length: usize,
}

/// y[i.., k] = 1 where indices[i..] = k, else 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OneHot {
    /// The length of the new last axis.
    pub depth: usize,
    /// The element type of the result.
    pub dtype: DType,
}

/// y[a.., i, b..] = x[a.., indices[a.., i, b..], b..]. Inputs: x, indices of the same rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TakeAlong {
    /// The axis that is picked from.
    pub axis: usize,
}

/// y[a.., k, b..] = Σ x[a.., i, b..] over all i with indices[a.., i, b..] = k, in the order of i. Inputs: x, indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PutAlongAdd {
    /// The axis along which indices point.
    pub axis: usize,
    /// Its length in the result.
    pub length: usize,
}

pub(super) fn index(ty: &Type) -> Result<(), String> {
    if ty.dtype.is_index() {
        return Ok(());
    }
    Err(format!("indices must be i64 or i32, not {}; cast them first", ty.dtype))
}

/// Values and their indices.
fn indexed<'a>(inputs: &[&'a Type]) -> Result<[&'a Type; 2], String> {
    let [x, indices] = ops::arity(inputs)?;
    index(indices)?;
    Ok([x, indices])
}

/// Values that can be added, and their indices.
fn summands<'a>(inputs: &[&'a Type]) -> Result<[&'a Type; 2], String> {
    let [x, indices] = ops::arity(inputs)?;
    if x.dtype.is_float() || x.dtype.is_index() {
        return indexed(&[x, indices]);
    }
    Err(format!("it does not add {} elements; cast them first", x.dtype))
}

/// Three parts one after the other.
pub(super) fn joined(before: &[usize], middle: &[usize], after: &[usize]) -> Shape {
    before.iter().chain(middle).chain(after).copied().collect()
}

/// What the op moves, when it does not pass the whole of its first input.
fn moved(inputs: &[&Type], outputs: &[&Type], elements: usize) -> Cost {
    let bytes = (inputs[1].bytes() + outputs[0].bytes() + elements * inputs[0].dtype.bytes()) as f64;
    Cost { flops: elements as f64, bytes }
}

/// What the rules of [`Gather`] and [`TakeAlong`] share, with the op that adds what arrives there back to its place.
macro_rules! picks {
    ($back:ident) => {
        /// Linear in the first input: the gradient goes by the same indices.
        fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
            let op = $back { axis: self.axis, length: at.input_type(0).shape[self.axis] };
            by_the_same_indices(at, op)
        }

        fn keeps_apart(&self, along: &Along<'_>) -> bool {
            along.operand == 1 || along.axis != self.axis
        }

        fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
            moved(inputs, outputs, outputs[0].elements())
        }

        const KEEP: Keep = Keep::inputs(2);
    };
}

/// What the rules of [`ScatterAdd`] and [`PutAlongAdd`] share, with the op that picks what was added.
macro_rules! adds {
    ($back:ident) => {
        /// Linear in the first input: the gradient goes by the same indices.
        fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
            by_the_same_indices(at, $back { axis: self.axis })
        }

        fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
            Cost { flops: inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
        }

        const KEEP: Keep = Keep::inputs(2);
    };
}

/// Examples of an op that picks along an axis: along each by both types of indices, and of elements of every type that is no float.
fn picking<R: Into<Op>>(
    dice: &mut Dice,
    op: impl Fn(usize) -> R,
    indices: impl Fn(&mut Dice, usize, &Shape) -> Shape,
) -> Vec<Example> {
    let example = |axis: usize, x: Type, domain: Domain, dtype: DType, dice: &mut Dice| {
        let indices = (Type::new(dtype, indices(dice, axis, &x.shape)), Domain::Index(x.shape[axis]));
        Example::new(op(axis), vec![(x, domain), indices])
    };
    let mut examples = Vec::new();
    for (axis, dtype) in (0..3).flat_map(|axis| [(axis, DType::I64), (axis, DType::I32)]) {
        let x = Type::new(DType::F32, [dice.range(1, 6), dice.range(1, 7), dice.range(1, 40)]);
        examples.push(example(axis, x, Domain::Normal, dtype, dice));
    }
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_float()) {
        examples.push(example(0, Type::new(dtype, [5, 3]), Domain::Truth, DType::I64, dice));
    }
    examples
}

/// The gradient of an op that is linear in its first input: its counterpart, with the same indices.
fn by_the_same_indices(at: &Backward<'_>, op: impl Into<Op>) -> Result<Vec<Option<Sym>>> {
    Ok(vec![Some(at.push(op, &[&at.grad(0)?, &at.input(1)?])?.remove(0)), None])
}

impl Rule for Gather {
    const NAME: &'static str = "gather";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, indices] = indexed(inputs)?;
        let axis = ops::axis_of(x, self.axis)?;
        Ok(smallvec![x.with_shape(joined(&x.shape[..axis], &indices.shape, &x.shape[axis + 1..]))])
    }

    picks!(ScatterAdd);

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, indices) = (inputs[0], inputs[1]);
        let middle = self.axis..self.axis + indices.shape.rank();
        vec![Array::from_fn(&outputs[0].shape, |i| {
            let k = indices.at(&i[middle.clone()]) as usize;
            x.at(&joined(&i[..middle.start], &[k], &i[middle.end..]))
        })]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let indices = |dice: &mut Dice, axis: usize, _: &Shape| match axis {
            0 => [2, dice.range(1, 6)].into(),
            1 => Shape::scalar(),
            _ => [dice.range(1, 20)].into(),
        };
        picking(dice, |axis| Gather { axis }, indices)
    }
}

impl ScatterAdd {
    /// The result's shape, or what does not fit.
    fn shape(&self, x: &Shape, indices: &Shape) -> Result<Shape, String> {
        let end = self.axis + indices.rank();
        if end > x.rank() || x[self.axis..end] != **indices {
            return Err(format!("axes {}.. of {x} do not have the indices' shape {indices}", self.axis));
        }
        Ok(joined(&x[..self.axis], &[self.length], &x[end..]))
    }
}

impl Rule for ScatterAdd {
    const NAME: &'static str = "scatter_add";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, indices] = summands(inputs)?;
        Ok(smallvec![x.with_shape(self.shape(&x.shape, &indices.shape)?)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand == 0 && !(self.axis..self.axis + along.inputs[1].shape.rank()).contains(&along.axis)
    }

    adds!(Gather);

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, indices) = (inputs[0], inputs[1]);
        let middle = self.axis..self.axis + indices.shape.rank();
        let mut y = Array::new(outputs[0].shape.clone(), vec![0.0; outputs[0].elements()]);
        for_each_index(&x.shape, |i| {
            let k = indices.at(&i[middle.clone()]) as usize;
            let place = y.offset(&joined(&i[..middle.start], &[k], &i[middle.end..]));
            y.data[place] += x.at(i);
        });
        vec![y]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (axis, dtype) in [(0, DType::I64), (1, DType::I32), (2, DType::I64), (1, DType::I64)] {
            let (outer, inner) = (dice.range(1, 4), dice.range(1, 40));
            let indices: Shape = if axis == 1 { [3, 2].into() } else { [dice.range(1, 12)].into() };
            let before = [outer, 2];
            let x = Type::new(DType::F32, joined(&before[..axis], &indices, &[inner]));
            // Fewer places than indices, so that some meet, and sometimes a place that none meets.
            let length = dice.range(2, 8);
            let inputs = vec![(x, Domain::Normal), (Type::new(dtype, indices), Domain::Index(length))];
            examples.push(Example::new(ScatterAdd { axis, length }, inputs));
        }
        for dtype in [DType::I64, DType::I32] {
            let inputs = vec![
                (Type::new(dtype, [6, 3]), Domain::Index(9)),
                (Type::new(DType::I64, [6]), Domain::Index(4)),
            ];
            examples.push(Example::new(ScatterAdd { axis: 0, length: 4 }, inputs));
        }
        examples
    }
}

impl Rule for OneHot {
    const NAME: &'static str = "one_hot";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [indices] = ops::arity(inputs)?;
        index(indices)?;
        Ok(smallvec![Type::new(self.dtype, joined(&indices.shape, &[self.depth], &[]))])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("its input is an index"))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let rank = inputs[0].shape.rank();
        vec![Array::from_fn(&outputs[0].shape, |i| f64::from(inputs[0].at(&i[..rank]) as usize == i[rank]))]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for dtype in DType::ALL {
            for index in [DType::I64, DType::I32] {
                let depth = dice.range(1, 20);
                let ty = Type::new(index, [dice.range(1, 5), 3]);
                examples.push(Example::new(OneHot { depth, dtype }, vec![(ty, Domain::Index(depth))]));
            }
        }
        examples
    }
}

/// Checks that two shapes agree but for one axis.
fn same_but(axis: usize, a: &Type, b: &Type) -> Result<(), String> {
    ops::axis_of(a, axis)?;
    let fits = a.shape.rank() == b.shape.rank() && a.shape.with(axis, 0) == b.shape.with(axis, 0);
    if fits {
        return Ok(());
    }
    Err(format!("shapes {} and {} differ in more than axis {axis}", a.shape, b.shape))
}

impl Rule for TakeAlong {
    const NAME: &'static str = "take_along";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, indices] = indexed(inputs)?;
        same_but(self.axis, x, indices)?;
        Ok(smallvec![x.with_shape(&indices.shape)])
    }

    picks!(PutAlongAdd);

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, indices) = (inputs[0], inputs[1]);
        vec![Array::from_fn(&outputs[0].shape, |i| {
            x.at(&joined(&i[..self.axis], &[indices.at(i) as usize], &i[self.axis + 1..]))
        })]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let indices = |dice: &mut Dice, axis: usize, x: &Shape| x.with(axis, dice.range(1, 7));
        picking(dice, |axis| TakeAlong { axis }, indices)
    }
}

impl Rule for PutAlongAdd {
    const NAME: &'static str = "put_along_add";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, indices] = summands(inputs)?;
        ops::axis_of(x, self.axis)?;
        if x.shape != indices.shape {
            return Err(format!(
                "the values {} and their indices {} must have one shape",
                x.shape, indices.shape
            ));
        }
        Ok(smallvec![x.with_shape(x.shape.with(self.axis, self.length))])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis != self.axis
    }

    adds!(TakeAlong);

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, indices) = (inputs[0], inputs[1]);
        let mut y = Array::new(outputs[0].shape.clone(), vec![0.0; outputs[0].elements()]);
        for_each_index(&x.shape, |i| {
            let place = y.offset(&joined(&i[..self.axis], &[indices.at(i) as usize], &i[self.axis + 1..]));
            y.data[place] += x.at(i);
        });
        vec![y]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for axis in 0..3 {
            for (dtype, indices) in
                [(DType::F32, DType::I64), (DType::F32, DType::I32), (DType::I64, DType::I64)]
            {
                let x = Type::new(dtype, [dice.range(1, 4), dice.range(1, 5), dice.range(1, 40)]);
                let length = dice.range(1, 5);
                let domain = if dtype.is_float() { Domain::Normal } else { Domain::Index(9) };
                let inputs = vec![(x.clone(), domain), (x.with_dtype(indices), Domain::Index(length))];
                examples.push(Example::new(PutAlongAdd { axis, length }, inputs));
            }
        }
        examples
    }
}

/// Picking by index, as methods.
///
/// ```
/// use plimsoll_graph::{DType, GatherOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let table = trace.input("table", Type::new(DType::F32, [1000, 64]));
/// let tokens = trace.input("tokens", Type::new(DType::I64, [8, 16]));
/// assert_eq!(table.embedding(&tokens)?.shape().to_string(), "[8, 16, 64]");
/// assert_eq!(tokens.one_hot(1000, DType::F32)?.shape().to_string(), "[8, 16, 1000]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait GatherOps: TensorOps {
    /// The slices of an axis (negative: from the last) that `indices` name; their shape takes the axis's place.
    #[track_caller]
    fn gather(&self, indices: &Self, axis: isize) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "gather", site)?;
        self.emit_one(Gather { axis }, &[self, indices], site)
    }

    /// The rows of this table that `indices` name: `[rows, d]` and `[..]` give `[.., d]`.
    #[track_caller]
    fn embedding(&self, indices: &Self) -> Result<Self, Self::Error> {
        self.emit_one(Gather { axis: 0 }, &[self, indices], Site::here())
    }

    /// 1 at the place each index names on a new last axis of length `depth`, 0 elsewhere.
    #[track_caller]
    fn one_hot(&self, depth: usize, dtype: DType) -> Result<Self, Self::Error> {
        self.emit_one(OneHot { depth, dtype }, &[self], Site::here())
    }

    /// Along an axis (negative: from the last), the elements that `indices`, of the same rank, name.
    #[track_caller]
    fn take_along(&self, indices: &Self, axis: isize) -> Result<Self, Self::Error> {
        let site = Site::here();
        let axis = self.axis(axis, "take_along", site)?;
        self.emit_one(TakeAlong { axis }, &[self, indices], site)
    }
}

impl<T: TensorOps> GatherOps for T {}
