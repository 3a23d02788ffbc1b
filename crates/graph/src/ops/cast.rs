//! y = x in another element type.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Rule, Types};
use crate::reference::{Array, settle};
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
        let data = inputs[0].data.iter().map(|&x| settle(x, self.0)).collect();
        vec![Array::new(inputs[0].shape.clone(), data)]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        let is_new = |dtype| matches!(dtype, DType::I16 | DType::I8 | DType::U32 | DType::U16);
        let is_usual = |dtype| matches!(dtype, DType::F32 | DType::I64);
        let pairs = DType::ALL.into_iter().flat_map(|from| DType::ALL.map(|to| (from, to)));
        // Rare types to and from the usual ones; a card compiles a kernel for every pair.
        let pairs = pairs.filter(|&(a, b)| !(is_new(a) || is_new(b)) || is_usual(a) || is_usual(b));
        for (from, to) in pairs {
            let domain = match from {
                DType::Bool => Domain::Truth,
                _ if from.is_float() && to.is_float() => Domain::Normal,
                _ => Domain::Index(100),
            };
            examples.push(Example::new(Cast(to), vec![(Type::new(from, [dice.range(1, 50)]), domain)]));
        }
        examples
    }
}
