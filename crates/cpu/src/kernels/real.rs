//! The types that attention and recurrent layers are stored in, and the two that they are computed in: f32 and f64.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use half::{bf16, f16};
use plimsoll_device::backend::Element;

use super::small_matmul::SmallMatmul;
use crate::math;
use crate::simd::{Float32, Level};

/// A type to compute in.
pub(crate) trait Real:
    Stored<Compute = Self>
    + SmallMatmul
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
{
    const ZERO: Self;
    const ONE: Self;
    const INFINITY: Self;
    fn of(x: f64) -> Self;
    /// e^x
    fn exp<L: Level>(self) -> Self;
    /// ln x
    fn ln<L: Level>(self) -> Self;
    /// tanh x
    fn tanh<L: Level>(self) -> Self;
    /// 1 / (1 + e^-x)
    #[inline(always)]
    fn sigmoid<L: Level>(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp::<L>())
    }
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const INFINITY: f32 = f32::INFINITY;
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn exp<L: Level>(self) -> f32 {
        math::exp::<L>(self)
    }
    #[inline(always)]
    fn ln<L: Level>(self) -> f32 {
        math::log::<L>(self)
    }
    #[inline(always)]
    fn tanh<L: Level>(self) -> f32 {
        math::tanh::<L>(self)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const INFINITY: f64 = f64::INFINITY;
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn exp<L: Level>(self) -> f64 {
        f64::exp(self)
    }
    #[inline(always)]
    fn ln<L: Level>(self) -> f64 {
        f64::ln(self)
    }
    #[inline(always)]
    fn tanh<L: Level>(self) -> f64 {
        f64::tanh(self)
    }
}

/// A type to store, and the one that it is computed in.
pub(crate) trait Stored: Element {
    type Compute: Real;
    fn get(self) -> Self::Compute;
    /// The nearest stored value, ties to even.
    fn put(x: Self::Compute) -> Self;
}

macro_rules! stored {
    ($($t:ty),+) => { $(
        impl Stored for $t {
            type Compute = f32;
            #[inline(always)]
            fn get(self) -> f32 {
                Float32::widen(self)
            }
            #[inline(always)]
            fn put(x: f32) -> $t {
                Float32::narrow(x)
            }
        }
    )+ };
}
stored!(f32, bf16, f16);

impl Stored for f64 {
    type Compute = f64;
    #[inline(always)]
    fn get(self) -> f64 {
        self
    }
    #[inline(always)]
    fn put(x: f64) -> f64 {
        x
    }
}

/// Runs an expression with `$t` as the Rust type of a float element type.
macro_rules! with_stored {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            plimsoll_graph::DType::F64 => {
                type $t = f64;
                $body
            }
            plimsoll_graph::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            plimsoll_graph::DType::F16 => {
                type $t = half::f16;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
pub(crate) use with_stored;

/// Hands out parts of a scratch buffer, each aligned to a cache line; with a null start it only counts.
pub(crate) struct Carver {
    start: *mut u8,
    used: usize,
}

impl Carver {
    /// A buffer that begins at an aligned address, or null to count.
    pub(crate) fn new(start: *mut u8) -> Carver {
        Carver { start, used: 0 }
    }

    /// Room for `n` elements.
    pub(crate) fn take<E>(&mut self, n: usize) -> *mut E {
        let place = self.start.wrapping_add(self.used).cast();
        self.used = (self.used + n * size_of::<E>()).next_multiple_of(64);
        place
    }

    /// Bytes handed out.
    pub(crate) fn used(&self) -> usize {
        self.used
    }
}
