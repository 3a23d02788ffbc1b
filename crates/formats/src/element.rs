//! The element types that files hold: those of the engine, and one integer that it has to convert.
//!
//! How a format spells them stands with the format (`safetensors`, `stored`).

use plimsoll_graph::DType;
use std::fmt;

/// The type of the elements of a tensor in a file, little endian.
///
/// A superset of [`DType`], because a file may hold unsigned 64-bit integers, which the engine does not.
///
/// ```
/// use plimsoll_formats::Element;
/// use plimsoll_graph::DType;
/// assert_eq!(Element::from(DType::BF16).bytes(), 2);
/// assert_eq!(Element::I16.dtype(), Some(DType::I16));
/// assert_eq!(Element::U64.dtype(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// IEEE double precision.
    F64,
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    BF16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 16-bit integer.
    I16,
    /// Signed byte.
    I8,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned byte.
    U8,
    /// A truth value, one byte each, 0 or 1.
    Bool,
}

impl Element {
    /// All of them, in declaration order.
    pub const ALL: [Element; 13] = [
        Element::F64,
        Element::F32,
        Element::F16,
        Element::BF16,
        Element::I64,
        Element::I32,
        Element::I16,
        Element::I8,
        Element::U64,
        Element::U32,
        Element::U16,
        Element::U8,
        Element::Bool,
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Element::F64 | Element::I64 | Element::U64 => 8,
            Element::F32 | Element::I32 | Element::U32 => 4,
            Element::F16 | Element::BF16 | Element::I16 | Element::U16 => 2,
            Element::I8 | Element::U8 | Element::Bool => 1,
        }
    }

    /// The name that NumPy and Keras have for it: `float32`.
    pub const fn numpy_name(self) -> &'static str {
        match self {
            Element::F64 => "float64",
            Element::F32 => "float32",
            Element::F16 => "float16",
            Element::BF16 => "bfloat16",
            Element::I64 => "int64",
            Element::I32 => "int32",
            Element::I16 => "int16",
            Element::I8 => "int8",
            Element::U64 => "uint64",
            Element::U32 => "uint32",
            Element::U16 => "uint16",
            Element::U8 => "uint8",
            Element::Bool => "bool",
        }
    }

    /// The one that NumPy and Keras call so, if there is one.
    pub fn from_numpy(name: &str) -> Option<Element> {
        Element::ALL.into_iter().find(|element| element.numpy_name() == name)
    }

    /// The engine's type with the same bits, if it has one.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Element::F64 => Some(DType::F64),
            Element::F32 => Some(DType::F32),
            Element::F16 => Some(DType::F16),
            Element::BF16 => Some(DType::BF16),
            Element::I64 => Some(DType::I64),
            Element::I32 => Some(DType::I32),
            Element::I16 => Some(DType::I16),
            Element::I8 => Some(DType::I8),
            Element::U32 => Some(DType::U32),
            Element::U16 => Some(DType::U16),
            Element::U8 => Some(DType::U8),
            Element::Bool => Some(DType::Bool),
            Element::U64 => None,
        }
    }

    /// The name people write: `f32`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            Element::F64 => "f64",
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::BF16 => "bf16",
            Element::I64 => "i64",
            Element::I32 => "i32",
            Element::I16 => "i16",
            Element::I8 => "i8",
            Element::U64 => "u64",
            Element::U32 => "u32",
            Element::U16 => "u16",
            Element::U8 => "u8",
            Element::Bool => "bool",
        }
    }

    /// Bytes of a tensor of this type and shape, or `None` where that number does not fit.
    pub fn bytes_of(self, shape: &[usize]) -> Option<usize> {
        // A zero anywhere makes the tensor empty, also beside a dimension that would overflow.
        if shape.contains(&0) {
            return Some(0);
        }
        shape.iter().try_fold(self.bytes(), |bytes, dim| bytes.checked_mul(*dim))
    }
}

impl From<DType> for Element {
    fn from(dtype: DType) -> Element {
        match dtype {
            DType::F64 => Element::F64,
            DType::F32 => Element::F32,
            DType::F16 => Element::F16,
            DType::BF16 => Element::BF16,
            DType::I64 => Element::I64,
            DType::I32 => Element::I32,
            DType::I16 => Element::I16,
            DType::I8 => Element::I8,
            DType::U32 => Element::U32,
            DType::U16 => Element::U16,
            DType::U8 => Element::U8,
            DType::Bool => Element::Bool,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_the_engine_survives_the_way_through_a_file_type() {
        for dtype in DType::ALL {
            let element = Element::from(dtype);
            assert_eq!(element.dtype(), Some(dtype));
            assert_eq!(element.bytes(), dtype.bytes());
            assert_eq!(element.name(), dtype.name());
        }
    }

    #[test]
    fn a_shape_that_overflows_has_no_size() {
        assert_eq!(Element::F32.bytes_of(&[usize::MAX / 4, 2]), None);
        assert_eq!(Element::F32.bytes_of(&[usize::MAX, 0]), Some(0));
        assert_eq!(Element::F32.bytes_of(&[]), Some(4));
        assert_eq!(Element::I16.bytes_of(&[2, 3]), Some(12));
    }
}
