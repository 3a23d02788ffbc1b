//! Rotary positions: pairs of features turned by the angle of their position.

use smallvec::smallvec;

use crate::error::Result;
use crate::example::{Dice, Domain, Example};
use crate::gradient::Backward;
use crate::methods::TensorOps;
use crate::op::{Along, Cost, Keep, Rule, Types, traffic};
use crate::reference::Array;
use crate::trace::Sym;
use crate::{DType, Site, Type, ops};

/// With P pairs, features f and f + P of every head become (a cos - b sin, b cos + a sin); features from 2 P on stay. Back, the sine has the
/// other sign. Inputs: x `[B, T, H, D]`, sin and cos `[B or 1, T, 1, P]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rotary {
    /// Whether it is turned back.
    pub back: bool,
}

/// The sizes of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotaryDims {
    /// Positions of all sequences.
    pub positions: usize,
    /// Positions after which the angles begin anew.
    pub period: usize,
    /// Heads of a position.
    pub heads: usize,
    /// Features of a head.
    pub features: usize,
    /// Pairs that are turned.
    pub pairs: usize,
}

impl RotaryDims {
    /// The sizes for given operands, or what does not fit.
    pub fn new(x: &Type, sin: &Type, cos: &Type) -> Result<RotaryDims, String> {
        if sin != cos {
            return Err(format!("the sines are {sin} and the cosines {cos}; they must be alike"));
        }
        ops::float(x).and(ops::same_dtype(x, sin))?;
        let ([batch, length, heads, features], [rows, own, 1, pairs]) = (&x.shape[..], &sin.shape[..]) else {
            return Err(format!("it turns [B, T, H, D] by [B or 1, T, 1, pairs], not {x} by {sin}"));
        };
        if own != length || (rows != batch && *rows != 1) {
            return Err(format!("angles of {sin} do not fit positions of {x}"));
        }
        if 2 * pairs > *features {
            return Err(format!("{pairs} pairs are more than {features} features have"));
        }
        let period = rows * own;
        Ok(RotaryDims {
            positions: batch * length,
            period,
            heads: *heads,
            features: *features,
            pairs: *pairs,
        })
    }
}

impl Rule for Rotary {
    const NAME: &'static str = "rotary";

    fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
        let [x, sin, cos] = ops::arity(inputs)?;
        RotaryDims::new(x, sin, cos)?;
        Ok(smallvec![(*x).clone()])
    }

    fn keeps_apart(&self, along: &Along<'_>) -> bool {
        along.axis == along.to && (along.axis < 2 || along.operand == 0 && along.axis == 2)
    }

    const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

    fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
        Cost { flops: 3.0 * outputs[0].elements() as f64, bytes: traffic(inputs, outputs) }
    }

    const KEEP: Keep = Keep::inputs(0b110);

    /// A turn back by the same angles.
    fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
        if at.wants(1) || at.wants(2) {
            return Err(
                at.no_gradient("its angles are constant; write it with split, mul and concat to learn them")
            );
        }
        let turned = Rotary { back: !self.back };
        Ok(vec![Some(at.push(turned, &[&at.grad(0)?, &at.input(1)?, &at.input(2)?])?.remove(0)), None, None])
    }

    fn reference(&self, inputs: &[&Array], _: &[Type]) -> Vec<Array> {
        let (x, sin, cos) = (inputs[0], inputs[1], inputs[2]);
        let (heads, features, pairs) = (x.shape[2], x.shape[3], sin.shape[3]);
        let period = sin.shape[0] * sin.shape[1];
        let mut y = x.clone();
        for (row, head) in y.data.chunks_exact_mut(features).enumerate() {
            let at = row / heads % period * pairs;
            for f in 0..pairs {
                let (a, b) = (head[f], head[f + pairs]);
                let (s, c) = (if self.back { -sin.data[at + f] } else { sin.data[at + f] }, cos.data[at + f]);
                head[f] = a * c - b * s;
                head[f + pairs] = b * c + a * s;
            }
        }
        vec![y]
    }

    fn examples(dice: &mut Dice) -> Vec<Example> {
        let mut examples = Vec::new();
        for (i, rest) in [0, 3, 0, 8].into_iter().enumerate() {
            let pairs = if i < 2 { dice.range(1, 7) } else { 8 };
            let (batch, length, heads) = (dice.range(1, 4), dice.range(1, 6), dice.range(1, 5));
            let x = Type::new(DType::F32, [batch, length, heads, 2 * pairs + rest]);
            let angles = Type::new(DType::F32, [if i % 2 == 0 { 1 } else { batch }, length, 1, pairs]);
            let inputs =
                vec![(x, Domain::Normal), (angles.clone(), Domain::Normal), (angles, Domain::Normal)];
            examples.push(Example::new(Rotary { back: i % 2 == 1 }, inputs));
        }
        examples
    }
}

impl<T: TensorOps> RotaryOps for T {}

/// Rotary positions as methods.
///
/// ```
/// use plimsoll_graph::{DType, RotaryOps, TensorOps, Trace, Type};
/// let trace = Trace::new();
/// let queries = trace.input("queries", Type::new(DType::F32, [2, 16, 4, 64]));
/// let sin = trace.input("sin", Type::new(DType::F32, [1, 16, 1, 32]));
/// let cos = trace.input("cos", Type::new(DType::F32, [1, 16, 1, 32]));
/// assert_eq!(queries.rotary(&sin, &cos)?.shape().to_string(), "[2, 16, 4, 64]");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub trait RotaryOps: TensorOps {
    /// Heads `[B, T, H, D]` turned by angles with these sines and cosines `[B or 1, T, 1, P]`: feature f with feature f + P.
    #[track_caller]
    fn rotary(&self, sin: &Self, cos: &Self) -> Result<Self, Self::Error> {
        self.emit_one(Rotary { back: false }, &[self, sin, cos], Site::here())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_that_do_not_fit_are_named() {
        let f = |shape: &[usize]| Type::new(DType::F32, shape);
        let refuse = |x: &[usize], angles: &[usize]| {
            Rotary { back: false }.infer(&[&f(x), &f(angles), &f(angles)]).unwrap_err()
        };
        assert!(refuse(&[2, 3, 4, 8], &[1, 4, 1, 4]).contains("[1, 4, 1, 4]"));
        assert!(refuse(&[2, 3, 4, 8], &[3, 3, 1, 4]).contains("do not fit"));
        assert!(refuse(&[2, 3, 4, 8], &[1, 3, 1, 5]).contains("5 pairs"));
        assert!(refuse(&[2, 3, 8], &[1, 3, 1, 4]).contains("[B, T, H, D]"));
    }
}
