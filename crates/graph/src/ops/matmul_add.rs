//! y = s · op(a) · op(b) + c: a matrix product that is scaled, and added to what is there.

use smallvec::{SmallVec, smallvec};

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Op, Rule, Types, traffic};
use crate::ops::MatMul;
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Shape, Site, Type};

/// A product of matrices as [`MatMul`] has them, times a number, and the sum of that and a value of the result's shape where one is added. It is
/// rounded once, behind the sum. Inputs: a, b, and with `add` c.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatMulAdd {
    /// Whether a is transposed.
    pub ta: bool,
    /// Whether b is transposed.
    pub tb: bool,
    /// What the product is multiplied by.
    pub scale: Scalar,
    /// Whether a value is added.
    pub add: bool,
}

impl MatMulAdd {
    /// The product itself.
    pub fn product(&self) -> MatMul {
        MatMul { ta: self.ta, tb: self.tb, bias: false, act: None }
    }

    /// A product of an op, where it is nothing but that, as one to which a value is added.
    pub(crate) fn adding(op: &Op) -> Option<MatMulAdd> {
        match *op {
            Op::MatMul(MatMul { ta, tb, bias: false, act: None }) => {
                Some(MatMulAdd { ta, tb, scale: Scalar(1.0), add: true })
            }
            Op::MatMulAdd(product) if !product.add => Some(MatMulAdd { add: true, ..product }),
            _ => None,
        }
    }

    fn has(&self, inputs: usize) -> Result<(), String> {
        let wanted = 2 + usize::from(self.add);
        match inputs == wanted {
            true => Ok(()),
            false => Err(format!("it takes {wanted} inputs and was given {inputs}")),
        }
    }
}

impl Rule for MatMulAdd {
    const NAME: &'static str = "matmul_add";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        self.has(inputs.len())?;
        let made = self.product().infer(&inputs[..2])?;
        match inputs.get(2) {
            Some(c) if **c != made[0] => Err(format!("{c} cannot be added to a product of {}", made[0])),
            _ => Ok(made),
        }
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        match along.operand {
            2 => along.axis == along.to,
            _ => self.product().keeps_apart(along),
        }
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        if self.add { smallvec![(0, 2)] } else { smallvec![] }
    }

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { bytes: traffic(inputs, outputs), ..self.product().cost(&inputs[..2], outputs) }
    }

    const KEEP: Keep = Keep::inputs(3);

    /// As of the product, with the same scale; what is added has the gradient of the sum.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        let dy = at.grad(0)?;
        let scaled = |product: MatMul, x: &Sym, y: &Sym| {
            let op = MatMulAdd { ta: product.ta, tb: product.tb, scale: self.scale, add: false };
            Ok(at.push(op, &[x, y])?.remove(0))
        };
        let mut grads = self.product().products(at, &dy, scaled)?;
        if self.add {
            grads.push(at.wants(2).then_some(dy));
        }
        Ok(grads)
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut made = self.product().reference(&inputs[..2], outputs);
        for (i, y) in made[0].data.iter_mut().enumerate() {
            *y = *y * self.scale.0 + inputs.get(2).map_or(0.0, |c| c.data[i]);
        }
        made
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for flags in 0..16 {
            let (ta, tb) = (flags & 1 == 1, flags & 2 == 2);
            let (batch_a, batch_b) = (flags & 4 == 4, flags & 8 == 8);
            let (m, n, k) = (dice.range(1, 20), dice.range(1, 40), dice.range(1, 20));
            let shaped = |sizes: [usize; 2], batch: bool| -> Shape {
                if batch { [2, 3, sizes[0], sizes[1]].into() } else { sizes.into() }
            };
            let of = |shape: Shape| (Type::new(DType::F32, shape), Domain::Normal);
            let mut inputs = vec![
                of(shaped(if ta { [k, m] } else { [m, k] }, batch_a)),
                of(shaped(if tb { [n, k] } else { [k, n] }, batch_b)),
            ];
            let add = flags % 3 != 0;
            if add {
                inputs.push(of(shaped([m, n], batch_a || batch_b)));
            }
            let scale = Scalar([1.0, 2.0, -0.75][flags % 3]);
            examples.push(Example::new(MatMulAdd { ta, tb, scale, add }, inputs));
        }
        examples
    }
}

impl<T: TensorOps> MatMulAddOps for T {}

/// Products that are added to something.
///
/// ```
/// use plimsoll_graph::{DType, MatMulAddOps, Trace, TensorOps, Type};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [4, 2]));
/// let w = trace.input("w", Type::new(DType::F32, [8, 2]));
/// let y = trace.input("y", Type::new(DType::F32, [4, 8]));
/// assert_eq!(x.matmul_onto(&w, false, true, 0.5, &y)?.shape().to_string(), "[4, 8]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait MatMulAddOps: TensorOps {
    /// scale · op(self) · op(other) + onto, rounded once.
    #[track_caller]
    fn matmul_onto(
        &self,
        other: &Self,
        ta: bool,
        tb: bool,
        scale: f64,
        onto: &Self,
    ) -> Result<Self, Self::Error> {
        let op = MatMulAdd { ta, tb, scale: Scalar(scale), add: true };
        self.emit_one(op, &[self, other, onto], Site::here())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_has_the_shape_of_the_product() {
        let f = |shape: &[usize]| Type::new(DType::F32, shape);
        let op = MatMulAdd { ta: false, tb: false, scale: Scalar(1.0), add: true };
        let why = op.infer(&[&f(&[2, 3]), &f(&[3, 4]), &f(&[4])]).unwrap_err();
        assert!(why.contains("f32[4]") && why.contains("f32[2, 4]"), "{why}");
        assert!(op.infer(&[&f(&[2, 3]), &f(&[3, 4])]).unwrap_err().contains("3 inputs"));
        assert_eq!(op.infer(&[&f(&[2, 3]), &f(&[3, 4]), &f(&[2, 4])]).unwrap()[0], f(&[2, 4]));
    }
}
