//! Turns bytes, wherever they lie, into numbers and back. Files and arenas promise no alignment, so that numbers are read as chunks of bytes,
//! which compiles to the same loads.

/// Bytes as chunks of one number each; a rest that is no whole number is left out.
pub fn chunks<const N: usize>(bytes: &[u8]) -> &[[u8; N]] {
    bytes.as_chunks().0
}

/// The same to write to.
pub fn chunks_mut<const N: usize>(bytes: &mut [u8]) -> &mut [[u8; N]] {
    bytes.as_chunks_mut().0
}

/// An `f32`.
#[inline(always)]
pub fn f(bytes: [u8; 4]) -> f32 {
    f32::from_le_bytes(bytes)
}

/// An `i32`.
#[inline(always)]
pub fn i(bytes: [u8; 4]) -> i32 {
    i32::from_le_bytes(bytes)
}

/// A byte as the signed number that it is.
#[inline(always)]
pub fn s(byte: u8) -> i32 {
    i32::from(byte as i8)
}

/// A signed number in a byte's range as a byte.
#[inline(always)]
pub fn b(value: i32) -> u8 {
    value as i8 as u8
}

/// A half-precision float as an `f32`.
pub fn half(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let sign = (bits & 0x8000) << 16;
    let (exponent, fraction) = ((bits >> 10) & 31, bits & 0x3ff);
    match exponent {
        0 => {
            // A fraction of 2^-24; exact in f32.
            let value = fraction as f32 * f32::from_bits(0x3380_0000);
            f32::from_bits(value.to_bits() | sign)
        }
        31 => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

#[cfg(test)]
mod tests {
    use super::half;

    #[test]
    fn halves_become_the_same_numbers() {
        let of = |bits: u16| half(bits.to_le_bytes());
        assert_eq!(of(0x3c00), 1.0);
        assert_eq!(of(0xc000), -2.0);
        assert_eq!(of(0x7bff), 65504.0);
        assert_eq!(of(0x0001), 5.960_464_5e-8);
        assert_eq!(of(0x03ff), 6.097_555e-5);
        assert_eq!(of(0x8000).to_bits(), (-0.0f32).to_bits());
        assert_eq!(of(0x7c00), f32::INFINITY);
        assert!(of(0x7e00).is_nan());
    }
}
