//! Sums, means, extremes and products over axes, and the index of the largest.

use smallvec::{SmallVec, smallvec};

use super::kinds::kinds;
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::reference::{Array, for_each_index};
use crate::trace::Sym;
use crate::{DType, Type, ops};

kinds! {
    /// How elements are reduced to one.
    ReduceKind {
        /// Their sum.
        Sum => "sum",
        /// Their sum over their number.
        Mean => "mean",
        /// The largest.
        Max => "max",
        /// The smallest.
        Min => "min",
        /// Their product.
        Prod => "prod",
    }
}

/// y = the reduction of x over axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reduce {
    /// How.
    pub kind: ReduceKind,
    /// The axes that go, in ascending order.
    pub axes: SmallVec<[usize; 4]>,
    /// Whether they stay with length 1.
    pub keep: bool,
}

/// Checks that axes exist, ascend and are not empty of elements.
fn check_axes(x: &Type, axes: &[usize]) -> Result<(), String> {
    if !axes.is_sorted_by(|a, b| a < b) {
        return Err(format!("axes {axes:?} are not in ascending order"));
    }
    axes.iter().try_for_each(|&axis| ops::axis_of(x, axis).map(|_| ()))
}

impl Reduce {
    /// The number of elements that become one.
    fn folded(&self, x: &Type) -> usize {
        self.axes.iter().map(|&axis| x.shape[axis]).product()
    }
}

impl Rule for Reduce {
    const NAME: &'static str = "reduce";

    fn name(&self) -> &'static str {
        self.kind.label()
    }

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        check_axes(x, &self.axes)?;
        let fits = match self.kind {
            ReduceKind::Mean => x.dtype.is_float(),
            // Nothing overflows.
            ReduceKind::Max | ReduceKind::Min => x.dtype != DType::Bool,
            ReduceKind::Sum | ReduceKind::Prod => x.dtype.is_float() || x.dtype.is_index(),
        };
        if !fits {
            return Err(format!("it does not take {} elements; cast them first", x.dtype));
        }
        if self.folded(x) == 0 && !matches!(self.kind, ReduceKind::Sum | ReduceKind::Prod) {
            return Err(format!("there is no {} of no elements", self.name()));
        }
        Ok(smallvec![x.with_shape(x.shape.reduced(&self.axes, self.keep))])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        !self.axes.contains(&along.axis)
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    fn keep(&self) -> Keep {
        match self.kind {
            ReduceKind::Sum | ReduceKind::Mean => Keep::NOTHING,
            ReduceKind::Max | ReduceKind::Min => Keep::both(1, 1),
            ReduceKind::Prod => Keep::inputs(1),
        }
    }

    /// Sum: dx = dy. Mean: dx = dy / n. Max, min: dy shared by the elements that reach the extreme.
    /// Product: dy times the product of the others.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let x_type = at.input_type(0).clone();
        let kept = x_type.shape.reduced(&self.axes, true);
        let dy = at.grad(0)?.reshape(&kept)?;
        let dx = match self.kind {
            ReduceKind::Sum => dy.broadcast(&x_type.shape)?,
            ReduceKind::Mean => dy.mul_scalar(1.0 / self.folded(&x_type) as f64)?.broadcast(&x_type.shape)?,
            ReduceKind::Max | ReduceKind::Min => {
                let y = at.output(0)?.reshape(&kept)?;
                let reaches = at.input(0)?.equal(&y)?.cast(x_type.dtype)?;
                let count = reaches.reduce(ReduceKind::Sum, &self.axes, true)?;
                reaches.mul(&dy.div(&count)?)?
            }
            ReduceKind::Prod => {
                let op = ProdGrad { axes: self.axes.clone() };
                at.push(op, &[&at.input(0)?, &dy])?.remove(0)
            }
        };
        Ok(vec![Some(dx)])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let x = inputs[0];
        let start = match self.kind {
            ReduceKind::Sum | ReduceKind::Mean => 0.0,
            ReduceKind::Max => f64::NEG_INFINITY,
            ReduceKind::Min => f64::INFINITY,
            ReduceKind::Prod => 1.0,
        };
        let kept = x.shape.reduced(&self.axes, true);
        let mut out = Array::new(kept.clone(), vec![start; kept.elements()]);
        for_each_index(&x.shape, |i| {
            let offset = kept.iter().zip(i).fold(0, |o, (&n, &i)| o * n + if n == 1 { 0 } else { i });
            let (value, slot) = (x.at(i), &mut out.data[offset]);
            *slot = match self.kind {
                ReduceKind::Sum | ReduceKind::Mean => *slot + value,
                ReduceKind::Max | ReduceKind::Min if slot.is_nan() || value.is_nan() => f64::NAN,
                ReduceKind::Max => slot.max(value),
                ReduceKind::Min => slot.min(value),
                ReduceKind::Prod => *slot * value,
            };
        });
        if self.kind == ReduceKind::Mean {
            let n = (x.data.len() / out.data.len().max(1)) as f64;
            out.data.iter_mut().for_each(|y| *y /= n);
        }
        vec![Array::new(outputs[0].shape.clone(), out.data)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for kind in ReduceKind::ALL {
            let domain = match kind {
                ReduceKind::Max | ReduceKind::Min => Domain::Distinct,
                _ => Domain::Normal,
            };
            let axes: [&[usize]; 6] = [&[0], &[1], &[2], &[0, 1], &[1, 2], &[0, 1, 2]];
            for (i, axes) in axes.into_iter().enumerate() {
                let ty = Type::new(DType::F32, [dice.range(1, 4), dice.range(1, 7), dice.range(1, 37)]);
                let op = Reduce { kind, axes: axes.into(), keep: i % 2 == 0 };
                examples.push(Example::new(op, vec![(ty, domain)]));
            }
            if kind != ReduceKind::Mean {
                let op = Reduce { kind, axes: smallvec![1], keep: false };
                examples.push(Example::new(op, vec![(Type::new(DType::I64, [3, 4]), Domain::Index(9))]));
            }
            if matches!(kind, ReduceKind::Max | ReduceKind::Min) {
                for dtype in DType::SMALL_INTEGERS {
                    for axis in 0..2 {
                        let op = Reduce { kind, axes: smallvec![axis], keep: false };
                        let ty = Type::new(dtype, [dice.range(1, 5), dice.range(1, 70)]);
                        examples.push(Example::new(op, vec![(ty, Domain::Index(120))]));
                    }
                }
            }
        }
        examples
    }
}

/// `dx[i]` = dy · the product of all `x[j]`, j ≠ i, over axes. Inputs: x, dy (axes kept with length 1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProdGrad {
    /// The axes of the product, in ascending order.
    pub axes: SmallVec<[usize; 4]>,
}

impl Rule for ProdGrad {
    const NAME: &'static str = "prod_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, dy] = ops::arity(inputs)?;
        ops::float(x)?;
        ops::same_dtype(x, dy)?;
        check_axes(x, &self.axes)?;
        if dy.shape != x.shape.reduced(&self.axes, true) {
            return Err(format!("the gradient of a product of {x} cannot be {dy}"));
        }
        Ok(smallvec![(*x).clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        !self.axes.contains(&along.axis)
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at
            .no_gradient("the second derivative of a product is not defined here; write it with exp and log"))
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let (x, dy) = (inputs[0], inputs[1]);
        vec![Array::from_fn(&x.shape, |i| {
            let mut product = dy.broadcast_at(i);
            for_each_index(&x.shape, |j| {
                let same_group =
                    i.iter().zip(j).enumerate().all(|(axis, (a, b))| self.axes.contains(&axis) || a == b);
                if same_group && i != j {
                    product *= x.at(j);
                }
            });
            product
        })]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for axes in [&[1][..], &[0], &[0, 1]] {
            let x = Type::new(DType::F32, [dice.range(1, 4), dice.range(1, 6)]);
            let dy = x.with_shape(x.shape.reduced(axes, true));
            // Small integers, so that zeros occur.
            let inputs = vec![(x, Domain::Index(3)), (dy, Domain::Normal)];
            examples.push(Example::new(ProdGrad { axes: axes.into() }, inputs));
        }
        examples
    }
}

/// y = the index of the largest element along an axis, the first of equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArgMax {
    /// The axis.
    pub axis: usize,
}

impl Rule for ArgMax {
    const NAME: &'static str = "argmax";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        let axis = ops::axis_of(x, self.axis)?;
        if x.dtype == DType::Bool {
            return Err("it does not order truth values; cast them first".into());
        }
        if x.shape[axis] == 0 {
            return Err(format!("axis {axis} of {} is empty", x.shape));
        }
        Ok(smallvec![Type::new(DType::I64, x.shape.reduced(&[axis], false))])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis != self.axis
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: inputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Err(at.no_gradient("its result is an index"))
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let x = inputs[0];
        vec![Array::from_fn(&outputs[0].shape, |i| {
            let at = |k: usize| {
                let mut index = i.to_vec();
                index.insert(self.axis, k);
                x.at(&index)
            };
            (1..x.shape[self.axis]).fold(0, |best, k| if at(k) > at(best) { k } else { best }) as f64
        })]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for axis in 0..3 {
            for dtype in [&[DType::F32, DType::I64, DType::I32][..], &DType::SMALL_INTEGERS].concat() {
                let ty = Type::new(dtype, [dice.range(1, 4), dice.range(1, 7), dice.range(1, 37)]);
                // Few values, so that equal ones meet.
                examples.push(Example::new(ArgMax { axis }, vec![(ty, Domain::Index(5))]));
            }
        }
        let long = Type::new(DType::F32, [dice.range(1, 4), dice.range(128, 300)]);
        examples.push(Example::new(ArgMax { axis: 1 }, vec![(long, Domain::Index(90))]));
        examples
    }
}
