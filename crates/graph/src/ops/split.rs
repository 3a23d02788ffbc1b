//! Joining values along an axis, and its opposite.

use smallvec::{SmallVec, smallvec};

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Rule, Types};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Type, ops};

/// y = the inputs one after the other along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concat {
    /// The axis.
    pub axis: usize,
}

impl Rule for Concat {
    const NAME: &'static str = "concat";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let Some(first) = inputs.first() else { return Err("it takes at least one input".into()) };
        let axis = ops::axis_of(first, self.axis)?;
        for x in &inputs[1..] {
            ops::same_dtype(first, x)?;
            if x.shape.rank() != first.shape.rank() || x.shape.with(axis, 0) != first.shape.with(axis, 0) {
                return Err(format!("shapes {} and {} differ outside axis {axis}", first.shape, x.shape));
            }
        }
        let length = inputs.iter().map(|x| x.shape[axis]).sum();
        Ok(smallvec![first.with_shape(first.shape.with(axis, length))])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis != self.axis
    }

    /// Each input takes its piece of dy.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let sizes = (0..at.n_inputs()).map(|i| at.input_type(i).shape[self.axis]).collect();
        let pieces = at.push(Split { axis: self.axis, sizes }, &[&at.grad(0)?])?;
        Ok(pieces.into_iter().map(Some).collect())
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        vec![Array::from_fn(&outputs[0].shape, |i| {
            let mut index = i.to_vec();
            let mut which = 0;
            while index[self.axis] >= inputs[which].shape[self.axis] {
                index[self.axis] -= inputs[which].shape[self.axis];
                which += 1;
            }
            inputs[which].at(&index)
        })]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for axis in 0..3 {
            for (dtype, domain) in [(DType::F32, Domain::Normal), (DType::I64, Domain::Index(9))] {
                let x = |n| (Type::new(dtype, crate::Shape::from([2, 3, 4]).with(axis, n)), domain);
                let inputs = (0..3).map(|_| x(dice.range(1, 9))).collect();
                examples.push(Example::new(Concat { axis }, inputs));
            }
        }
        examples
    }
}

/// The pieces of x along an axis, of the given lengths.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// The axis.
    pub axis: usize,
    /// The lengths of the pieces; they add up to the axis.
    pub sizes: SmallVec<[usize; 4]>,
}

impl Rule for Split {
    const NAME: &'static str = "split";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        let axis = ops::axis_of(x, self.axis)?;
        if self.sizes.iter().sum::<usize>() != x.shape[axis] {
            let sizes = self.sizes.as_slice();
            return Err(format!("pieces of {sizes:?} do not add up to the {} of axis {axis}", x.shape[axis]));
        }
        Ok(self.sizes.iter().map(|&n| x.with_shape(x.shape.with(axis, n))).collect())
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis != self.axis
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let grads = (0..self.sizes.len()).map(|i| at.grad(i)).collect::<Result<Vec<Sym>>>()?;
        let grads: Vec<&Sym> = grads.iter().collect();
        Ok(vec![Some(at.push(Concat { axis: self.axis }, &grads)?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut start = 0;
        let mut pieces = Vec::new();
        for ty in outputs {
            pieces.push(Array::from_fn(&ty.shape, |i| {
                let mut index = i.to_vec();
                index[self.axis] += start;
                inputs[0].at(&index)
            }));
            start += ty.shape[self.axis];
        }
        pieces
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for axis in 0..3 {
            let sizes: SmallVec<[usize; 4]> = smallvec![dice.range(1, 4), dice.range(1, 9), dice.range(1, 4)];
            for (dtype, domain) in [(DType::F32, Domain::Normal), (DType::I64, Domain::Index(9))] {
                let ty = Type::new(dtype, crate::Shape::from([2, 3, 4]).with(axis, sizes.iter().sum()));
                examples.push(Example::new(Split { axis, sizes: sizes.clone() }, vec![(ty, domain)]));
            }
        }
        examples
    }
}
