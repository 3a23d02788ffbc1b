//! An optimizer's step over state that is kept in bf16: read, moved and rounded again in one pass.
//!
//! A mean that follows slowly moves by less than bf16 tells apart, and rounded to nearest would stand still. So a number between two of bf16
//! becomes either, the nearer one more often, such that on average it is the number itself. The draws are those of a counter
//! ([`crate::philox`]): seed, step, parameter and element say them, and nothing else does. The parameter itself may be bf16 too, and is rounded the
//! same way.

use smallvec::{SmallVec, smallvec};

use super::update::Update;
use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::op::{Cost, Rule, Types, traffic};
use crate::philox::Source;
use crate::reference::Array;
use crate::{DType, Type};

/// A step of an optimizer whose state is bf16, over a parameter in f32 or bf16. Inputs: the parameter, its gradient (of the same type), the scalars of the rule, the key (seed and step), then the
/// state; outputs: the new parameter, then the new state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bf16Update {
    /// What is computed from the parameter, the gradient and the state.
    pub update: Update,
    /// The parameter's own number among those that are drawn for.
    pub stream: u32,
    /// Elements of the parameter before these, where this is a shard of it.
    pub first: usize,
}

/// Elements of a parameter at most: the number of a block of four words has 32 bits.
const MOST: usize = 1 << 34;

impl Bf16Update {
    /// The input that is the key; the state is behind it.
    pub fn key(&self) -> usize {
        self.update.first_state()
    }

    /// The draws of a step.
    pub fn source(&self, key: [i64; 2]) -> Source {
        Source::new([key[0], key[1], 0], self.stream)
    }

    /// The word of an element of the parameter, or of this shard of it.
    fn word(&self, source: &Source, i: usize) -> u32 {
        let element = self.first + i;
        source.block(0, (element / 4) as u32)[element % 4]
    }
}

/// The bits of an element's word that a state is rounded by: the lower half for the first, the upper half for the second.
#[inline(always)]
pub fn dither(word: u32, state: usize) -> u32 {
    if state == 0 { word & 0xffff } else { word >> 16 }
}

/// The bits of an element's word that a parameter in bf16 is rounded by. A word times an odd number is every word once, so that these are as even as the word's
/// own; drawing again would take as long as the step itself.
#[inline(always)]
pub fn value_dither(word: u32) -> u32 {
    word.wrapping_mul(0x9e37_79b9) >> 16
}

/// The upper half of a number's bits, one more as often as its lower half is of 2¹⁶. What is no number stays none.
///
/// ```
/// use plimsoll_graph::ops::rounded;
/// // A quarter of the way between two neighbours: up for one draw in four.
/// let x = f32::from_bits(0x3f80_4000);
/// assert_eq!((rounded(x, 0xbfff), rounded(x, 0xc000)), (0x3f80, 0x3f81));
/// ```
#[inline(always)]
pub fn rounded(x: f32, dither: u32) -> u16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // An infinity has no lower half, and a bit of its own says that what is none is none.
    let quiet = bits | (u32::from(magnitude > 0x7f80_0000) << 22);
    (if magnitude >= 0x7f80_0000 { quiet } else { bits.wrapping_add(dither) } >> 16) as u16
}

impl Rule for Bf16Update {
    const NAME: &'static str = "bf16_update";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let at = self.key();
        let arity = at + 1 + self.update.rule.states();
        let value = self.update.check(inputs, arity, &[DType::F32, DType::BF16])?;
        let key = inputs[at];
        if key.dtype != DType::I64 || *key.shape != [2] {
            return Err(format!("its key is i64[2], the seed and the step, not {key}"));
        }
        let last = self.first.saturating_add(value.elements());
        if last > MOST {
            return Err(format!("element {last} of a parameter is beyond the {MOST} that are drawn for"));
        }
        let kept = value.with_dtype(DType::BF16);
        let mut outputs: Types = smallvec![value.clone()];
        for state in &inputs[at + 1..] {
            if **state != kept {
                return Err(format!("state of {value} is {kept}, not {state}"));
            }
            outputs.push(kept.clone());
        }
        Ok(outputs)
    }

    fn in_place(&self) -> SmallVec<[(usize, usize); 2]> {
        let states = (0..self.update.rule.states()).map(|i| (1 + i, self.key() + 1 + i));
        [(0, 0), (0, 1)].into_iter().chain(states).collect()
    }

    /// A step is about twenty operations, and a word of the generator about as many.
    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        let elements = inputs.first().map_or(0, |ty| ty.elements()) as f64;
        Cost { flops: 40.0 * elements, bytes: traffic(inputs, outputs) }
    }

    fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let all = Update::numbers(inputs);
        let (key, first) = (&inputs[self.key()].data, self.key() + 1);
        let source = self.source([key[0] as i64, key[1] as i64]);
        let (mut values, states) = self.update.reference(&all, |state, i| all[first + state][i]);
        let back = |x: f32, dither: u32| f64::from(f32::from_bits(u32::from(rounded(x, dither)) << 16));
        if outputs.first().is_some_and(|ty| ty.dtype == DType::BF16) {
            for (i, x) in values.iter_mut().enumerate() {
                *x = back(*x as f32, value_dither(self.word(&source, i)));
            }
        }
        let mut results = vec![values];
        for (at, state) in states.iter().enumerate() {
            let kept = |(i, &x): (usize, &f32)| back(x, dither(self.word(&source, i), at));
            results.push(state.iter().enumerate().map(kept).collect());
        }
        results.into_iter().zip(outputs).map(|(data, ty)| Array::new(ty.shape.clone(), data)).collect()
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        // A shard begins anywhere in a block of draws.
        let firsts = [0, 1, 258, 1023];
        let example = |((update, n), first): ((Update, usize), usize), dtype: DType| {
            let ty = Type::new(dtype, [n]);
            let mut inputs = update.example_inputs(&ty);
            inputs.push((Type::new(DType::I64, [2]), Domain::Key));
            for state in 0..update.rule.states() {
                // A mean of squares has no sign.
                let domain = if state == 0 { Domain::Normal } else { Domain::Positive };
                inputs.push((ty.with_dtype(DType::BF16), domain));
            }
            Example::new(Bf16Update { update, stream: 7, first }, inputs)
        };
        let sizes = Update::example_sizes(dice, 256);
        let all = || Update::examples().into_iter().zip(sizes).zip(firsts);
        all().map(|it| example(it, DType::F32)).chain(all().map(|it| example(it, DType::BF16))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_becomes_its_neighbours_as_often_as_it_is_near_them() {
        for x in [1.000_3f32, -0.123_456_7, 3e-39, 8.1e30, -1.0, 0.0] {
            let back = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
            let all: Vec<f64> = (0..=0xffff).map(|dither| back(rounded(x, dither))).collect();
            let mean = all.iter().sum::<f64>() / 65536.0;
            // The mean over every draw there is: exactly the number.
            assert_eq!(mean, f64::from(x));
            let near = back((x.to_bits() >> 16) as u16);
            assert!(all.iter().all(|y| (y - near).abs() <= near.abs() / 128.0 + 1e-40));
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        for dither in [0, 1, 0xffff] {
            assert_eq!(rounded(f32::INFINITY, dither), 0x7f80);
            assert_eq!(rounded(f32::NEG_INFINITY, dither), 0xff80);
            for bits in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001] {
                let found = u32::from(rounded(f32::from_bits(bits), dither)) << 16;
                assert!(f32::from_bits(found).is_nan(), "{bits:x}");
            }
        }
    }
}
