//! The gradient of relu, from the output's sign or from one bit an element.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::op::{Along, Keep, Rule, Types};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Scalar, Type, ops};

/// dx = dy where y > 0, else slope · dy. Inputs: y (or anything of its sign), dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReluGrad {
    /// The slope for negative inputs; 0 for relu.
    pub slope: Scalar,
}

impl Rule for ReluGrad {
    const NAME: &'static str = "relu_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [y, dy] = ops::arity(inputs)?;
        ops::float(y)?;
        if y != dy {
            return Err(format!("{y} and {dy} must be of one type"));
        }
        Ok(smallvec![dy.clone()])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 1), (0, 0)];

    const KEEP: Keep = Keep::inputs(1);

    /// Linear in dy; constant in y wherever the derivative exists.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![None, Some(at.push(*self, &[&at.input(0)?, &at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let f = |(&y, &dy): (&f64, &f64)| if y > 0.0 { dy } else { self.slope.0 * dy };
        let data = inputs[0].data.iter().zip(&inputs[1].data).map(f).collect();
        vec![Array::new(inputs[0].shape.clone(), data)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let ty = Type::new(DType::F32, [dice.range(1, 5), dice.range(1, 40)]);
        [0.0, 0.2]
            .map(|slope| {
                let inputs = vec![(ty.clone(), Domain::Normal), (ty.clone(), Domain::Normal)];
                Example::new(ReluGrad { slope: Scalar(slope) }, inputs)
            })
            .into()
    }
}

/// y = max(x, 0) and a bit an element, set where x > 0; element i is bit i mod 8 of byte i / 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReluMask;

impl Rule for ReluMask {
    const NAME: &'static str = "relu_mask";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        ops::float(x)?;
        Ok(smallvec![x.clone(), mask_type(x)])
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    const KEEP: Keep = Keep::outputs(2);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(at.push(ReluMaskGrad, &[&at.output(1)?, &at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut mask = vec![0u8; outputs[1].elements()];
        for (i, &x) in inputs[0].data.iter().enumerate() {
            mask[i / 8] |= u8::from(x > 0.0) << (i % 8);
        }
        let y = inputs[0].data.iter().map(|x| x.max(0.0)).collect();
        let mask = mask.into_iter().map(f64::from).collect();
        vec![Array::new(inputs[0].shape.clone(), y), Array::new(outputs[1].shape.clone(), mask)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let ty = Type::new(DType::F32, [dice.range(1, 5), dice.range(1, 40)]);
        vec![Example::new(ReluMask, vec![(ty, Domain::Normal)])]
    }
}

/// dx = dy where the bit is set, else 0. Inputs: mask, dy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReluMaskGrad;

impl Rule for ReluMaskGrad {
    const NAME: &'static str = "relu_mask_grad";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [mask, dy] = ops::arity(inputs)?;
        ops::float(dy)?;
        if *mask != mask_type(dy) {
            return Err(format!("the mask of {dy} is {}, not {mask}", mask_type(dy)));
        }
        Ok(smallvec![dy.clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.operand == 1
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 1)];

    const KEEP: Keep = Keep::inputs(1);

    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![None, Some(at.push(*self, &[&at.input(0)?, &at.grad(0)?])?.remove(0))])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let bit = |i: usize| inputs[0].data[i / 8] as u8 >> (i % 8) & 1 == 1;
        let data = inputs[1].data.iter().enumerate().map(|(i, &dy)| if bit(i) { dy } else { 0.0 }).collect();
        vec![Array::new(inputs[1].shape.clone(), data)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let ty = Type::new(DType::F32, [dice.range(1, 5), dice.range(1, 40)]);
        vec![Example::new(ReluMaskGrad, vec![(mask_type(&ty), Domain::Byte), (ty, Domain::Normal)])]
    }
}

/// The type of the bit mask of a value.
fn mask_type(ty: &Type) -> Type {
    Type::new(DType::U8, [ty.elements().div_ceil(8)])
}
