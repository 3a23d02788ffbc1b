//! Ops that make or move elements without computing: constants, broadcast, reshape, transpose, slice, pad.

use smallvec::{SmallVec, smallvec};

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Rule, Types};
use crate::reference::{Array, for_each_index};
use crate::trace::Sym;
use crate::{DType, Scalar, Shape, Type, ops};

/// y = value everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Full {
    /// The type of the result.
    pub ty: Type,
    /// The value.
    pub value: Scalar,
}

impl Rule for Full {
    const NAME: &'static str = "full";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [] = ops::arity(inputs)?;
        Ok(smallvec![self.ty.clone()])
    }

    fn reference(&self, _: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![Array::new(self.ty.shape.clone(), vec![self.value.0; self.ty.elements()])]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        DType::ALL
            .map(|d| Example::new(Full { ty: Type::new(d, [dice.range(1, 9)]), value: Scalar(1.0) }, vec![]))
            .into()
    }
}

/// y[.., i, ..] = i along an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Iota {
    /// The type of the result.
    pub ty: Type,
    /// The axis that counts.
    pub axis: usize,
}

impl Rule for Iota {
    const NAME: &'static str = "iota";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [] = ops::arity(inputs)?;
        ops::axis_of(&self.ty, self.axis)?;
        if self.ty.dtype == DType::Bool {
            return Err("it counts in numbers, not in truth values".into());
        }
        Ok(smallvec![self.ty.clone()])
    }

    fn reference(&self, _: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![Array::from_fn(&self.ty.shape, |i| i[self.axis] as f64)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let ty = |d| Type::new(d, [2, dice.clone().range(1, 9), 3]);
        DType::ALL
            .into_iter()
            .filter(|&dtype| dtype != DType::Bool)
            .enumerate()
            .map(|(i, d)| Example::new(Iota { ty: ty(d), axis: i % 3 }, vec![]))
            .collect()
    }
}

/// y = x repeated to a shape it broadcasts to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Broadcast(pub Shape);

impl Rule for Broadcast {
    const NAME: &'static str = "broadcast";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        if x.shape.broadcast(&self.0).as_ref() != Some(&self.0) {
            return Err(format!("shape {} does not broadcast to {}", x.shape, self.0));
        }
        Ok(smallvec![x.with_shape(&self.0)])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    /// dx = the sum of dy over the repeated axes.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(at.grad(0)?.sum_to(&at.input_type(0).shape)?)])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![Array::from_fn(&self.0, |i| inputs[0].broadcast_at(i))]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let (n, c) = (dice.range(1, 5), dice.range(1, 20));
        let f32s = |shape: &[usize]| vec![(Type::new(DType::F32, shape), Domain::Normal)];
        let mut examples: Vec<Example> = [&[c][..], &[1, c], &[n, 1], &[]]
            .map(|from| Example::new(Broadcast([n, c].into()), f32s(from)))
            .into();
        examples.push(Example::new(
            Broadcast([2, n, c].into()),
            vec![(Type::new(DType::I64, [c]), Domain::Index(9))],
        ));
        examples
    }
}

/// The same elements under another shape: no copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reshape(pub Shape);

impl Rule for Reshape {
    const NAME: &'static str = "reshape";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        if x.elements() != self.0.elements() {
            return Err(format!(
                "shape {} has {} elements and {} has {}",
                x.shape,
                x.elements(),
                self.0,
                self.0.elements()
            ));
        }
        Ok(smallvec![x.with_shape(&self.0)])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        let before = |shape: &Shape, axis: usize| shape[..axis].iter().product::<usize>();
        before(&along.input().shape, along.axis) == before(&self.0, along.to)
    }

    fn is_view(&self) -> bool {
        true
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(at.grad(0)?.reshape(&at.input_type(0).shape)?)])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        vec![Array::new(self.0.clone(), inputs[0].data.clone())]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let (n, c) = (dice.range(1, 5), dice.range(1, 9));
        vec![Example::new(
            Reshape([n * c, 2].into()),
            vec![(Type::new(DType::F32, [n, 2, c]), Domain::Normal)],
        )]
    }
}

/// y with axis i of y being axis `self.0[i]` of x.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transpose(pub SmallVec<[usize; 5]>);

impl Rule for Transpose {
    const NAME: &'static str = "transpose";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..x.shape.rank()) {
            return Err(format!(
                "{:?} is not an order of the {} axes of {}",
                self.0.as_slice(),
                x.shape.rank(),
                x.shape
            ));
        }
        Ok(smallvec![x.with_shape(self.0.iter().map(|&axis| x.shape[axis]).collect::<Shape>())])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let mut back = self.0.clone();
        for (to, &from) in self.0.iter().enumerate() {
            back[from] = to;
        }
        Ok(vec![Some(at.grad(0)?.transpose(&back)?)])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut from = vec![0; self.0.len()];
        vec![Array::from_fn(&outputs[0].shape, |to| {
            for (i, &axis) in self.0.iter().enumerate() {
                from[axis] = to[i];
            }
            inputs[0].at(&from)
        })]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut shape = || [dice.range(1, 6), dice.range(1, 20), dice.range(1, 20)];
        let mut examples: Vec<Example> = [[0, 2, 1], [2, 1, 0], [1, 2, 0], [1, 0, 2]]
            .map(|p| {
                Example::new(Transpose(p[..].into()), vec![(Type::new(DType::F32, shape()), Domain::Normal)])
            })
            .into();
        for dtype in [&[DType::I64][..], &DType::SMALL_INTEGERS].concat() {
            let x = (Type::new(dtype, [3, 5]), Domain::Index(90));
            examples.push(Example::new(Transpose(smallvec![1, 0]), vec![x]));
        }
        let x = (Type::new(DType::F32, [2, 3, 4, 5, 2]), Domain::Normal);
        examples.push(Example::new(Transpose(smallvec![2, 0, 3, 1, 4]), vec![x]));
        examples
    }
}

/// A range of an axis: `start`, `start + step`, … below `stop`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceAxis {
    /// The first index.
    pub start: usize,
    /// The index before which it ends.
    pub stop: usize,
    /// The distance of two indices, at least 1.
    pub step: usize,
}

impl SliceAxis {
    /// The number of indices.
    pub fn length(self) -> usize {
        self.stop.saturating_sub(self.start).div_ceil(self.step.max(1))
    }
}

/// y = `x[ranges]`, one range an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice(pub SmallVec<[SliceAxis; 4]>);

impl Rule for Slice {
    const NAME: &'static str = "slice";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        if self.0.len() != x.shape.rank() {
            return Err(format!(
                "{} ranges were given for the {} axes of {}",
                self.0.len(),
                x.shape.rank(),
                x.shape
            ));
        }
        for (axis, r) in self.0.iter().enumerate() {
            if r.start > r.stop || r.stop > x.shape[axis] || r.step == 0 {
                let (start, stop, step) = (r.start, r.stop, r.step);
                return Err(format!(
                    "{start}..{stop} step {step} is not a range of axis {axis} of {}",
                    x.shape
                ));
            }
        }
        Ok(smallvec![x.with_shape(self.0.iter().map(|r| r.length()).collect::<Shape>())])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        self.0[along.axis] == SliceAxis { start: 0, stop: along.input().shape[along.axis], step: 1 }
    }

    /// dx = dy at the indices taken, 0 elsewhere.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let axes = self.0.iter().zip(at.input_type(0).shape.iter()).map(|(r, &n)| {
            let length = r.length();
            let taken = if length == 0 { 0 } else { (length - 1) * r.step + 1 };
            PadAxis { low: r.start, high: n - r.start - taken, inner: r.step - 1 }
        });
        let pad = Pad { axes: axes.collect(), value: Scalar(0.0) };
        Ok(vec![Some(at.push(pad, &[&at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        vec![Array::from_fn(&outputs[0].shape, |i| {
            let from: Vec<usize> = i.iter().zip(&self.0).map(|(&i, r)| r.start + i * r.step).collect();
            inputs[0].at(&from)
        })]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let range = |dice: &mut Dice, n: usize, step: usize| {
            let start = dice.range(0, n);
            SliceAxis { start, stop: dice.range(start + 1, n + 1), step }
        };
        let mut examples = Vec::new();
        for (dtype, domain) in
            [(DType::F32, Domain::Normal), (DType::F32, Domain::Normal), (DType::I64, Domain::Index(9))]
        {
            let ranges = smallvec![range(dice, 5, 2), range(dice, 9, 3), range(dice, 12, 1)];
            examples.push(Example::new(Slice(ranges), vec![(Type::new(dtype, [5, 9, 12]), domain)]));
        }
        examples
    }
}

/// What is added to an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct PadAxis {
    /// Elements before.
    pub low: usize,
    /// Elements after.
    pub high: usize,
    /// Elements between two neighbours.
    pub inner: usize,
}

/// y = x with a value around and between its elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pad {
    /// What is added to each axis.
    pub axes: SmallVec<[PadAxis; 4]>,
    /// The value of what is added.
    pub value: Scalar,
}

impl Rule for Pad {
    const NAME: &'static str = "pad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        if self.axes.len() != x.shape.rank() {
            return Err(format!(
                "{} paddings were given for the {} axes of {}",
                self.axes.len(),
                x.shape.rank(),
                x.shape
            ));
        }
        let length = |(p, &n): (&PadAxis, &usize)| p.low + n + n.saturating_sub(1) * p.inner + p.high;
        Ok(smallvec![x.with_shape(self.axes.iter().zip(x.shape.iter()).map(length).collect::<Shape>())])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        self.axes[along.axis] == PadAxis::default()
    }

    /// dx = dy where x was.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let range = |(p, &n): (&PadAxis, &usize)| SliceAxis {
            start: p.low,
            stop: if n == 0 { p.low } else { p.low + (n - 1) * (p.inner + 1) + 1 },
            step: p.inner + 1,
        };
        let slice = Slice(self.axes.iter().zip(at.input_type(0).shape.iter()).map(range).collect());
        Ok(vec![Some(at.push(slice, &[&at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut out = Array::new(outputs[0].shape.clone(), vec![self.value.0; outputs[0].elements()]);
        for_each_index(&inputs[0].shape, |i| {
            let to: Vec<usize> = i.iter().zip(&self.axes).map(|(&i, p)| p.low + i * (p.inner + 1)).collect();
            let offset = out.offset(&to);
            out.data[offset] = inputs[0].at(i);
        });
        vec![out]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (dtype, domain, inner) in [
            (DType::F32, Domain::Normal, 0),
            (DType::F32, Domain::Normal, 2),
            (DType::I32, Domain::Index(9), 1),
        ] {
            let mut axis = |inner| PadAxis { low: dice.range(0, 3), high: dice.range(0, 3), inner };
            let axes = smallvec![axis(0), axis(inner), axis(inner)];
            examples.push(Example::new(
                Pad { axes, value: Scalar(2.0) },
                vec![(Type::new(dtype, [2, 3, 5]), domain)],
            ));
        }
        examples
    }
}
