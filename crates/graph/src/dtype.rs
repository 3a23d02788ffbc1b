//! The element types a tensor can have, and what is known of each.

use std::fmt;

/// The type of a tensor's elements.
///
/// ```
/// use plimsoll_graph::DType;
/// assert_eq!(DType::BF16.bytes(), 2);
/// assert!(DType::F16.is_float() && !DType::I64.is_float());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// The upper half of an f32: 8 bits of exponent, 7 of mantissa.
    BF16,
    /// IEEE half precision.
    F16,
    /// Signed 64-bit integer: labels and indices.
    I64,
    /// Signed 32-bit integer: labels and indices.
    I32,
    /// Unsigned byte: pixels, masks packed in bits, window indices.
    U8,
    /// A truth value, one byte each, 0 or 1.
    Bool,
}

impl DType {
    /// All of them, in declaration order.
    pub const ALL: [DType; 8] =
        [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I64, DType::I32, DType::U8, DType::Bool];
    /// The floating-point ones: those that have gradients.
    pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether values of this type have gradients.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::BF16 | DType::F16)
    }

    /// Whether values of this type can index something.
    pub const fn is_index(self) -> bool {
        matches!(self, DType::I64 | DType::I32)
    }

    /// The type in which statistics and accumulators of this type are kept.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::BF16 | DType::F16 => DType::F32,
            other => other,
        }
    }

    /// The name people write: `f32`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
