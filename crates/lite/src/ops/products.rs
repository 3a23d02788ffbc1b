//! Operands times weights, summed and turned into results: floats by weights of any type, or bytes by bytes. A kernel that multiplies is
//! written once, over any [`Products`].

use super::conv::{Bytes, Floats, Numbers, dot, dot_bytes};
use super::layer::Work;
use super::{Store, fast};
use crate::bytes::{chunks, chunks_mut, f, half, s};
use crate::error::Result;
use crate::model::Operand;
use crate::schema::Type;

/// How many channels of a result are summed at once.
pub const BLOCK: usize = 16;

/// What an operator with weights reads.
#[derive(Clone, Copy)]
pub struct Operands<'r> {
    pub store: &'r Store,
    pub x: &'r [u8],
    pub weights: &'r [u8],
    pub bias: Option<&'r [u8]>,
}

impl<'r> Operands<'r> {
    /// Those of an operator, by their roles.
    pub fn new(store: &'r Store, x: Operand<'r>, weights: Operand<'r>, bias: Operand<'r>) -> Result<Self> {
        Ok(Self { store, x: x.bytes()?, weights: weights.bytes()?, bias: bias.optional()? })
    }
}

/// One way to multiply, to add, and to make a result of a sum.
pub trait Products {
    /// An element of the operand, and of the result.
    type X: Copy;
    type Weight: Copy;
    type Sum: Sum;

    fn product(&self, x: Self::X, weight: Self::Weight) -> Self::Sum;
    fn dot(&self, x: &[Self::X], weights: &[Self::Weight]) -> Self::Sum;
    /// The sum of a channel of the result: scaled, with its bias, within the activation's range.
    fn finish(&self, sum: Self::Sum, channel: usize) -> Self::X;
}

/// What products are added up in.
pub trait Sum: Copy + Default {
    fn plus(self, other: Self) -> Self;
}

impl Sum for f32 {
    #[inline(always)]
    fn plus(self, other: f32) -> f32 {
        self + other
    }
}

impl Sum for i32 {
    #[inline(always)]
    fn plus(self, other: i32) -> i32 {
        self.wrapping_add(other)
    }
}

/// What goes through operand and weights and writes results.
pub trait Kernel {
    fn run<P: Products>(&self, products: &P, x: &[P::X], weights: &[P::Weight], out: &mut [P::X]);
}

impl Numbers {
    /// Runs a kernel with the products of these numbers, with the widest vectors there are.
    pub fn run(&self, kernel: &impl Kernel, operands: Operands<'_>, out: &mut [u8]) {
        fast::widest(Weighted { numbers: self, kernel, operands, out });
    }
}

/// A kernel with what it reads and writes.
struct Weighted<'r, K> {
    numbers: &'r Numbers,
    kernel: &'r K,
    operands: Operands<'r>,
    out: &'r mut [u8],
}

impl<K: Kernel> Work for Weighted<'_, K> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { numbers, kernel, operands, out } = self;
        let Operands { store, x, weights, bias } = operands;
        match numbers {
            Numbers::Floats(floats) => {
                let (x, out) = (chunks::<4>(x), chunks_mut::<4>(out));
                match floats.weights {
                    Type::F32 => {
                        let products = FloatProducts::<4, _> { floats, store, bias, get: f };
                        kernel.run(&products, x, chunks::<4>(weights), out);
                    }
                    Type::F16 => {
                        let products = FloatProducts::<2, _> { floats, store, bias, get: half };
                        kernel.run(&products, x, chunks::<2>(weights), out);
                    }
                    _ => {
                        let get = |w: [u8; 1]| s(w[0]) as f32;
                        let products = FloatProducts::<1, _> { floats, store, bias, get };
                        kernel.run(&products, x, chunks::<1>(weights), out);
                    }
                }
            }
            Numbers::Bytes(bytes) => kernel.run(&ByteProducts { bytes, store, bias }, x, weights, out),
        }
    }
}

/// Floats by weights of `N` bytes, which `get` reads.
struct FloatProducts<'r, const N: usize, G> {
    floats: &'r Floats,
    store: &'r Store,
    bias: Option<&'r [u8]>,
    get: G,
}

impl<const N: usize, G: Fn([u8; N]) -> f32 + Copy> Products for FloatProducts<'_, N, G> {
    type X = [u8; 4];
    type Weight = [u8; N];
    type Sum = f32;

    #[inline(always)]
    fn product(&self, x: [u8; 4], weight: [u8; N]) -> f32 {
        f(x) * (self.get)(weight)
    }

    #[inline(always)]
    fn dot(&self, x: &[[u8; 4]], weights: &[[u8; N]]) -> f32 {
        dot(x, weights, self.get)
    }

    #[inline(always)]
    fn finish(&self, sum: f32, channel: usize) -> [u8; 4] {
        self.floats.finish(self.store, sum, self.bias, channel)
    }
}

/// Bytes by bytes, in whole numbers.
struct ByteProducts<'r> {
    bytes: &'r Bytes,
    store: &'r Store,
    bias: Option<&'r [u8]>,
}

impl Products for ByteProducts<'_> {
    type X = u8;
    type Weight = u8;
    type Sum = i32;

    #[inline(always)]
    fn product(&self, x: u8, weight: u8) -> i32 {
        (s(x) - self.bytes.in_zero) * s(weight)
    }

    #[inline(always)]
    fn dot(&self, x: &[u8], weights: &[u8]) -> i32 {
        dot_bytes(x, weights, self.bytes.in_zero)
    }

    #[inline(always)]
    fn finish(&self, sum: i32, channel: usize) -> u8 {
        self.bytes.finish(self.store, sum, self.bias, channel)
    }
}
