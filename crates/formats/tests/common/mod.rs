//! What tests of several file formats share.

use plimsoll_formats::Element;

/// The name that NumPy and Keras have for a kind of number.
pub fn python_name(element: Element) -> &'static str {
    match element {
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
