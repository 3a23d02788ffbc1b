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
    /// Signed 16-bit integer: samples of sound.
    I16,
    /// Signed byte: quantized values.
    I8,
    /// Unsigned 32-bit integer: identifiers.
    U32,
    /// Unsigned 16-bit integer: deep pixels, tokens.
    U16,
    /// Unsigned byte: pixels, masks packed in bits, window indices.
    U8,
    /// A truth value, one byte each, 0 or 1.
    Bool,
}

impl DType {
    /// All of them, in declaration order.
    pub const ALL: [DType; 12] = [
        DType::F32,
        DType::F64,
        DType::BF16,
        DType::F16,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U32,
        DType::U16,
        DType::U8,
        DType::Bool,
    ];
    /// The whole numbers that are stored, moved, compared and converted, but not computed with.
    pub const SMALL_INTEGERS: [DType; 5] = [DType::I16, DType::I8, DType::U32, DType::U16, DType::U8];
    /// The floating-point ones: those that have gradients.
    pub const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::BF16, DType::F16];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::BF16 | DType::F16 | DType::I16 | DType::U16 => 2,
            DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether values of this type have gradients.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::BF16 | DType::F16)
    }

    /// Whether values of this type are whole numbers.
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, DType::Bool)
    }

    /// The smallest and the largest number of an integer type of up to 32 bits.
    pub const fn range(self) -> Option<(i64, i64)> {
        match self {
            DType::I32 => Some((i32::MIN as i64, i32::MAX as i64)),
            DType::I16 => Some((i16::MIN as i64, i16::MAX as i64)),
            DType::I8 => Some((i8::MIN as i64, i8::MAX as i64)),
            DType::U32 => Some((0, u32::MAX as i64)),
            DType::U16 => Some((0, u16::MAX as i64)),
            DType::U8 => Some((0, u8::MAX as i64)),
            _ => None,
        }
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
            DType::I16 => "i16",
            DType::I8 => "i8",
            DType::U32 => "u32",
            DType::U16 => "u16",
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
