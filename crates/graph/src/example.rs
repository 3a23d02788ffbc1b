//! Turns an op's own description of how it may be called into test inputs.
//!
//! Every op lists examples of itself; the property tests of this crate (gradients against finite differences) and of
//! every backend (values against the reference) draw from them, so an op cannot be added untested.

use crate::reference::Array;
use crate::{DType, Op, Type};

/// A small deterministic generator for test values: SplitMix64.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// A generator with the given seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `low..high`.
    pub fn range(&mut self, low: usize, high: usize) -> usize {
        low + (self.bits() % (high - low).max(1) as u64) as usize
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal number.
    pub fn normal(&mut self) -> f64 {
        let u = 1.0 - self.unit();
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Where an example's input values are drawn from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Domain {
    /// Standard normal, kept a little away from 0 where functions have kinks.
    Normal,
    /// Strictly positive, about 0.3 to 2.3.
    Positive,
    /// Integers from 0 up to and without this number.
    Index(usize),
    /// 0 or 1.
    Truth,
    /// Normal values, all different by far more than a finite-difference step: for max, min and pooling.
    Distinct,
    /// A random key: seed, step and, where it has a third, first sample.
    Key,
    /// Packed bits: any byte.
    Byte,
}

impl Domain {
    /// Values for a type.
    pub fn fill(self, ty: &Type, dice: &mut Dice) -> Array {
        let n = ty.elements();
        let mut data: Vec<f64> = match self {
            Domain::Normal => (0..n)
                .map(|_| {
                    let x = dice.normal();
                    x + 0.05f64.copysign(x)
                })
                .collect(),
            Domain::Positive => (0..n).map(|_| 0.3 + 2.0 * dice.unit()).collect(),
            Domain::Index(limit) => (0..n).map(|_| dice.range(0, limit) as f64).collect(),
            Domain::Truth => (0..n).map(|_| dice.range(0, 2) as f64).collect(),
            Domain::Byte => (0..n).map(|_| dice.range(0, 256) as f64).collect(),
            Domain::Key => vec![42.0, 7.0, 3.0][..n].to_vec(),
            Domain::Distinct => {
                let mut v: Vec<f64> =
                    (0..n).map(|i| (i as f64 + 0.5 - n as f64 / 2.0) * 4.0 / n as f64).collect();
                for i in (1..n).rev() {
                    v.swap(i, dice.range(0, i + 1));
                }
                v
            }
        };
        // What a narrow type cannot hold must not be part of the question.
        match ty.dtype {
            DType::F32 => data.iter_mut().for_each(|x| *x = f64::from(*x as f32)),
            DType::BF16 => data.iter_mut().for_each(|x| *x = round_to_bits(*x, 8)),
            DType::F16 => data.iter_mut().for_each(|x| *x = round_to_bits(*x, 11)),
            _ => {}
        }
        Array::new(ty.shape.clone(), data)
    }
}

/// Rounds to a number of significant bits, as a float type with that mantissa would.
fn round_to_bits(x: f64, bits: i32) -> f64 {
    if x == 0.0 {
        return x;
    }
    let scale = 2f64.powi(bits - 1 - x.abs().log2().floor() as i32);
    (x * scale).round() / scale
}

/// One way to call an op: attributes, input types and where their values come from.
#[derive(Clone, Debug)]
pub struct Example {
    /// The op with its attributes.
    pub op: Op,
    /// Each input's type and domain.
    pub inputs: Vec<(Type, Domain)>,
    /// Bit i is set where input i stays in the accumulator's type when the others are 16-bit: statistics, scales.
    pub wide: u32,
}

impl Example {
    /// An example of an op on the given inputs.
    pub fn new(op: impl Into<Op>, inputs: Vec<(Type, Domain)>) -> Example {
        Example { op: op.into(), inputs, wide: 0 }
    }

    /// Marks the inputs that are statistics or scales: f32 where the data is 16-bit.
    pub fn wide(mut self, bits: u32) -> Example {
        self.wide = bits;
        self
    }

    /// Values for its inputs.
    pub fn fill(&self, dice: &mut Dice) -> Vec<Array> {
        self.inputs.iter().map(|(ty, domain)| domain.fill(ty, dice)).collect()
    }

    /// The same call with its float inputs in another float type.
    pub fn with_float(&self, dtype: DType) -> Example {
        let change = |(i, (ty, domain)): (usize, &(Type, Domain))| {
            let dtype = if self.wide >> i & 1 == 1 { dtype.accumulator() } else { dtype };
            (if ty.dtype.is_float() { ty.with_dtype(dtype) } else { ty.clone() }, *domain)
        };
        Example {
            op: self.op.clone(),
            inputs: self.inputs.iter().enumerate().map(change).collect(),
            wide: self.wide,
        }
    }
}
