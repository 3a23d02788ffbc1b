//! An optimizer's step over state that is kept as bytes with a scale a block: read, moved and written again in one pass.
//!
//! For each block of 256 numbers: s = value[code] · scale; the step in f32; scale' = the largest |s'|; code' = the nearest to s' / scale'.

use smallvec::{SmallVec, smallvec};

use super::update::{Update, UpdateRule};
use crate::eight_bit::{BLOCK, Codes};
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::op::{Cost, Rule, Types, traffic};
use crate::reference::Array;
use crate::{DType, Type};

/// A step of an optimizer whose state is bytes. Inputs: the parameter, its gradient, the scalars of the rule, then codes and scales of each
/// state; outputs: the new parameter, then new codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EightBitUpdate(
    /// What is computed from the parameter, the gradient and the state.
    pub Update,
);

impl EightBitUpdate {
    /// What each state's codes stand for.
    pub fn codes(&self) -> &'static [Codes] {
        match self.0.rule {
            UpdateRule::Adam { .. } => &[Codes::Signed, Codes::Unsigned],
            UpdateRule::Momentum { .. } | UpdateRule::Lion { .. } => &[Codes::Signed],
        }
    }
}

/// The types of the codes and the scales of a tensor.
pub fn coded(ty: &Type) -> [Type; 2] {
    [ty.with_dtype(DType::U8), Type::new(DType::F32, [ty.elements().div_ceil(BLOCK)])]
}

impl Rule for EightBitUpdate {
    const NAME: &'static str = "eight_bit_update";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let first = self.0.first_state();
        let value = self.0.check(inputs, first + 2 * self.codes().len(), &[DType::F32])?;
        let [codes, scales] = coded(value);
        let mut outputs: Types = smallvec![value.clone()];
        for pair in inputs[first..].chunks_exact(2) {
            if *pair[0] != codes || *pair[1] != scales {
                let (a, b) = (pair[0], pair[1]);
                return Err(format!("state of {value} is {codes} and {scales}, not {a} and {b}"));
            }
            outputs.extend([codes.clone(), scales.clone()]);
        }
        Ok(outputs)
    }

    /// A scale is of a block, wherever that begins in a sample.
    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        let first = self.0.first_state();
        let states = (0..2 * self.codes().len()).map(|i| (1 + i, first + i));
        [(0, 0), (0, 1)].into_iter().chain(states).collect()
    }

    /// A step is about twenty operations, and a code is found among 256.
    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let elements = inputs.first().map_or(0, |ty| ty.elements()) as f64;
        let work = 20.0 + 12.0 * self.codes().len() as f64;
        Cost { flops: work * elements, bytes: traffic(inputs, outputs) }
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let all = Update::numbers(inputs);
        let (first, maps) = (self.0.first_state(), self.codes());
        let (values, states) = self.0.reference(&all, |state, i| {
            let code = all[first + 2 * state][i] as usize;
            maps[state].values()[code] * all[first + 2 * state + 1][i / BLOCK]
        });
        let mut results = vec![values];
        for (map, state) in maps.iter().zip(&states) {
            let (codes, scales) = map.pack(state);
            results.push(codes.into_iter().map(f64::from).collect());
            results.push(scales.into_iter().map(f64::from).collect());
        }
        results.into_iter().zip(outputs).map(|(data, ty)| Array::new(ty.shape.clone(), data)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let example = |(update, n): (Update, usize)| {
            let (op, ty) = (EightBitUpdate(update), Type::new(DType::F32, [n]));
            let mut inputs = update.example_inputs(&ty);
            for _ in op.codes() {
                let [codes, scales] = coded(&ty);
                inputs.extend([(codes, Domain::Byte), (scales, Domain::Positive)]);
            }
            Example::new(op, inputs)
        };
        Update::examples().into_iter().zip(Update::example_sizes(dice, BLOCK)).map(example).collect()
    }
}
