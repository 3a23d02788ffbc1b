//! Turns numbers as files store them into numbers as tensors hold them.
//!
//! Files know types that tensors do not (`u64`, big-endian floats). The pair is chosen once for a file and the
//! loop over elements is compiled for each pair, so that the common one, pixels to floats, runs at memory speed.

use half::{bf16, f16};
use plimsoll_graph::DType;

use crate::Element;

/// A number as a file stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// What kind of number.
    pub element: Element,
    /// Whether its most significant byte comes first.
    pub big_endian: bool,
}

impl Element {
    /// Whether it is a whole number.
    pub const fn is_integer(self) -> bool {
        !matches!(self, Element::Bool | Element::F16 | Element::BF16 | Element::F32 | Element::F64)
    }

    /// The type of a tensor that holds every value and that ops compute with; `u64` is held as `i64`, at most its largest.
    pub const fn widened(self) -> DType {
        match self {
            Element::Bool => DType::Bool,
            Element::U8 => DType::U8,
            Element::I8 | Element::I16 | Element::U16 | Element::I32 => DType::I32,
            Element::U32 | Element::U64 | Element::I64 => DType::I64,
            Element::F16 => DType::F16,
            Element::BF16 => DType::BF16,
            Element::F32 => DType::F32,
            Element::F64 => DType::F64,
        }
    }
}

impl From<Element> for Stored {
    fn from(element: Element) -> Stored {
        Stored { element, big_endian: false }
    }
}

impl Stored {
    /// Whether the bytes in the file are the bytes of a tensor's element as they are.
    pub fn is(self, dtype: DType) -> bool {
        let native = self.big_endian == cfg!(target_endian = "big") || self.element.bytes() == 1;
        // A file's truth values may be any byte.
        native && self.element.dtype() == Some(dtype) && self.element != Element::Bool
    }

    /// Converts the whole elements of `from` into elements of type `to`, each divided by `divisor`.
    ///
    /// Stops at the end of the shorter side. Integers go to integers without a detour over floats while the
    /// divisor is 1; values that do not fit are held at the ends of the range.
    ///
    /// ```
    /// use plimsoll_formats::{Stored, Element};
    /// use plimsoll_graph::DType;
    ///
    /// let mut out = [0; 8];
    /// Stored::from(Element::U8).convert(&[0, 255], DType::F32, 255.0, &mut out);
    /// assert_eq!(out, [0.0f32.to_ne_bytes(), 1.0f32.to_ne_bytes()].concat()[..]);
    /// ```
    pub fn convert(self, from: &[u8], to: DType, divisor: f32, out: &mut [u8]) {
        if divisor == 1.0 && self.is(to) {
            let n = from.len().min(out.len());
            out[..n].copy_from_slice(&from[..n]);
            return;
        }
        if self.element == Element::U8 && to == DType::F32 {
            for (slot, &byte) in out.chunks_exact_mut(4).zip(from) {
                slot.copy_from_slice(&(f32::from(byte) / divisor).to_ne_bytes());
            }
            return;
        }
        macro_rules! from_kind {
            ($($kind:ident => $type:ty),*) => {
                match self.element { $(Element::$kind => to_dtype::<$type>(from, self.big_endian, to, divisor, out)),* }
            };
        }
        from_kind!(Bool => Truth, U8 => u8, I8 => i8, U16 => u16, I16 => i16, U32 => u32, I32 => i32, U64 => u64,
            I64 => i64, F16 => f16, BF16 => bf16, F32 => f32, F64 => f64);
    }
}

fn to_dtype<S: Load>(from: &[u8], big_endian: bool, to: DType, divisor: f32, out: &mut [u8]) {
    macro_rules! to_dtype {
        ($($dtype:ident => $stored:ty),+) => {
            match to { $( DType::$dtype => each::<S, $stored>(from, big_endian, divisor, out), )+ }
        };
    }
    to_dtype!(F32 => f32, F64 => f64, BF16 => bf16, F16 => f16, I64 => i64, I32 => i32, I16 => i16, I8 => i8, U32 => u32,
        U16 => u16, U8 => u8, Bool => Truth);
}

fn each<S: Load, D: Store>(from: &[u8], big_endian: bool, divisor: f32, out: &mut [u8]) {
    let whole = S::INTEGER && D::INTEGER && divisor == 1.0;
    let pairs = from.chunks_exact(size_of::<S>()).zip(out.chunks_exact_mut(size_of::<D>()));
    for (bytes, slot) in pairs {
        let value = S::load(bytes, big_endian);
        let stored = match whole {
            true => D::from_i64(value.to_i64()),
            false => D::from_f64(value.to_f64() / f64::from(divisor)),
        };
        stored.store(slot);
    }
}

/// A number that can be read from a file's bytes.
trait Load: Copy {
    const INTEGER: bool;
    fn load(bytes: &[u8], big_endian: bool) -> Self;
    fn to_f64(self) -> f64;
    fn to_i64(self) -> i64;
}

/// A number that can be written into a tensor's bytes.
trait Store: Copy {
    const INTEGER: bool;
    fn from_f64(x: f64) -> Self;
    fn from_i64(x: i64) -> Self;
    fn store(self, slot: &mut [u8]);
}

/// A truth value in one byte.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Truth(u8);

macro_rules! load {
    ($($type:ty, $integer:literal, $f64:expr, $i64:expr;)*) => {$(
        impl Load for $type {
            const INTEGER: bool = $integer;

            fn load(bytes: &[u8], big_endian: bool) -> Self {
                let mut array = [0; size_of::<$type>()];
                array.copy_from_slice(bytes);
                if big_endian { <$type>::from_be_bytes(array) } else { <$type>::from_le_bytes(array) }
            }

            fn to_f64(self) -> f64 {
                ($f64)(self)
            }

            fn to_i64(self) -> i64 {
                ($i64)(self)
            }
        }
    )*};
}

load! {
    u8, true, |x| x as f64, |x| x as i64;
    i8, true, |x| x as f64, |x| x as i64;
    u16, true, |x| x as f64, |x| x as i64;
    i16, true, |x| x as f64, |x| x as i64;
    u32, true, |x| x as f64, |x| x as i64;
    i32, true, |x| x as f64, |x| x as i64;
    u64, true, |x| x as f64, |x| i64::try_from(x).unwrap_or(i64::MAX);
    i64, true, |x| x as f64, |x| x;
    f16, false, f16::to_f64, |x| f16::to_f64(x) as i64;
    bf16, false, bf16::to_f64, |x| bf16::to_f64(x) as i64;
    f32, false, |x| x as f64, |x| x as i64;
    f64, false, |x| x, |x| x as i64;
}

impl Load for Truth {
    const INTEGER: bool = true;

    fn load(bytes: &[u8], _: bool) -> Truth {
        Truth(u8::from(bytes[0] != 0))
    }

    fn to_f64(self) -> f64 {
        f64::from(self.0)
    }

    fn to_i64(self) -> i64 {
        i64::from(self.0)
    }
}

macro_rules! store {
    ($($type:ty, $integer:literal, $f64:expr, $i64:expr;)*) => {$(
        impl Store for $type {
            const INTEGER: bool = $integer;

            fn from_f64(x: f64) -> Self {
                ($f64)(x)
            }

            fn from_i64(x: i64) -> Self {
                ($i64)(x)
            }

            fn store(self, slot: &mut [u8]) {
                slot.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

store! {
    u8, true, |x| x as u8, |x: i64| x.clamp(0, 255) as u8;
    i8, true, |x| x as i8, |x: i64| x.clamp(i8::MIN.into(), i8::MAX.into()) as i8;
    u16, true, |x| x as u16, |x: i64| x.clamp(0, u16::MAX.into()) as u16;
    i16, true, |x| x as i16, |x: i64| x.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
    u32, true, |x| x as u32, |x: i64| x.clamp(0, u32::MAX.into()) as u32;
    i32, true, |x| x as i32, |x: i64| x.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    i64, true, |x| x as i64, |x| x;
    f16, false, f16::from_f64, |x| f16::from_f64(x as f64);
    bf16, false, bf16::from_f64, |x| bf16::from_f64(x as f64);
    f32, false, |x| x as f32, |x| x as f32;
    f64, false, |x| x, |x| x as f64;
}

impl Store for Truth {
    const INTEGER: bool = true;

    fn from_f64(x: f64) -> Truth {
        Truth(u8::from(x != 0.0))
    }

    fn from_i64(x: i64) -> Truth {
        Truth(u8::from(x != 0))
    }

    fn store(self, slot: &mut [u8]) {
        slot[0] = self.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(element: Element, big_endian: bool, from: &[u8], to: DType, divisor: f32) -> Vec<u8> {
        let mut out = vec![0; from.len() / element.bytes() * to.bytes()];
        Stored { element, big_endian }.convert(from, to, divisor, &mut out);
        out
    }

    #[test]
    fn large_integers_do_not_pass_through_floats() {
        let x = (1i64 << 53) + 1;
        assert_eq!(convert(Element::I64, true, &x.to_be_bytes(), DType::I64, 1.0), x.to_ne_bytes());
        let most = convert(Element::U64, false, &u64::MAX.to_le_bytes(), DType::I64, 1.0);
        assert_eq!(most, i64::MAX.to_ne_bytes());
    }

    #[test]
    fn every_pair_of_types_keeps_a_small_number() {
        let kinds = [
            (Element::U8, 3u8.to_be_bytes().to_vec()),
            (Element::I8, 3i8.to_be_bytes().to_vec()),
            (Element::U16, 3u16.to_be_bytes().to_vec()),
            (Element::I16, 3i16.to_be_bytes().to_vec()),
            (Element::U32, 3u32.to_be_bytes().to_vec()),
            (Element::I32, 3i32.to_be_bytes().to_vec()),
            (Element::U64, 3u64.to_be_bytes().to_vec()),
            (Element::I64, 3i64.to_be_bytes().to_vec()),
            (Element::F16, f16::from_f32(3.0).to_be_bytes().to_vec()),
            (Element::F32, 3f32.to_be_bytes().to_vec()),
            (Element::F64, 3f64.to_be_bytes().to_vec()),
        ];
        for (kind, bytes) in kinds {
            for to in DType::ALL {
                let expected = match to {
                    DType::F32 => 3f32.to_ne_bytes().to_vec(),
                    DType::F64 => 3f64.to_ne_bytes().to_vec(),
                    DType::BF16 => bf16::from_f32(3.0).to_ne_bytes().to_vec(),
                    DType::F16 => f16::from_f32(3.0).to_ne_bytes().to_vec(),
                    DType::I64 => 3i64.to_ne_bytes().to_vec(),
                    DType::I32 => 3i32.to_ne_bytes().to_vec(),
                    DType::I16 | DType::U16 => 3u16.to_ne_bytes().to_vec(),
                    DType::U32 => 3u32.to_ne_bytes().to_vec(),
                    DType::I8 | DType::U8 => vec![3],
                    DType::Bool => vec![1],
                };
                assert_eq!(convert(kind, true, &bytes, to, 1.0), expected, "{kind:?} to {to}");
            }
        }
    }
}
