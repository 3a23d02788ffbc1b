//! y = x in another element type.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Rule, Types};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Type, ops};

/// Conversion to an element type: floats round to nearest even, floats to integers truncate and saturate, anything
/// to bool asks whether it is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cast(pub DType);

impl Rule for Cast {
    const NAME: &'static str = "cast";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x] = ops::arity(inputs)?;
        Ok(smallvec![x.with_dtype(self.0)])
    }

    fn keeps_apart(&self, _: &Along<'_>) -> bool {
        true
    }

    /// dx = dy in the type of x, between float types.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        Ok(vec![Some(at.grad(0)?.cast(at.input_type(0).dtype)?)])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let settle = |x: &f64| match self.0 {
            DType::Bool => f64::from(*x != 0.0),
            DType::U8 => x.trunc().clamp(0.0, 255.0),
            DType::I64 | DType::I32 => x.trunc(),
            _ => *x,
        };
        vec![Array::new(inputs[0].shape.clone(), inputs[0].data.iter().map(settle).collect())]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for from in DType::ALL {
            for to in DType::ALL {
                let domain = match from {
                    DType::Bool => Domain::Truth,
                    _ if from.is_float() && to.is_float() => Domain::Normal,
                    _ => Domain::Index(100),
                };
                examples.push(Example::new(Cast(to), vec![(Type::new(from, [dice.range(1, 50)]), domain)]));
            }
        }
        examples
    }
}
