//! Turns stored numbers (f32, bf16, f16) into the f32 that the kernels compute with, and back.

use half::{bf16, f16};

/// How a [`Scalar`] is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// IEEE single precision.
    F32,
    /// The upper half of a single.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl Kind {
    /// Bytes of one stored number.
    pub const fn bytes(self) -> usize {
        match self {
            Kind::F32 => 4,
            Kind::Bf16 | Kind::F16 => 2,
        }
    }
}

/// A stored number type of which products are summed in f32. Implemented for `f32`, `bf16` and `f16` alone: the
/// kernels look at [`Scalar::KIND`] and then read the memory as that type.
pub trait Scalar: Copy + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static {
    /// How it is stored.
    const KIND: Kind;
    /// The value in single precision.
    fn to_f32(self) -> f32;
    /// The nearest stored value, ties to even.
    fn from_f32(value: f32) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
}

impl Scalar for f32 {
    const KIND: Kind = Kind::F32;
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(value: f32) -> f32 {
        value
    }
}

macro_rules! half {
    ($($t:ident, $kind:ident;)+) => { $(
        impl Scalar for $t {
            const KIND: Kind = Kind::$kind;
            fn to_f32(self) -> f32 {
                $t::to_f32(self)
            }
            fn from_f32(value: f32) -> $t {
                $t::from_f32(value)
            }
        }
    )+ };
}
half!(bf16, Bf16; f16, F16;);
