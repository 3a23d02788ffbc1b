//! Turns real multipliers into whole numbers, and whole numbers into quantized ones, rounded as TensorFlow Lite's reference kernels round.

use crate::math;

/// A positive real number as `multiplier * 2^(shift - 31)`, with 31 bits of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// Between 2^30 and 2^31, or zero.
    pub multiplier: i32,
    /// To the left; to the right if negative.
    pub shift: i32,
}

impl Scale {
    /// The nearest such number; nothing for what is not finite, negative or too large to shift.
    pub fn new(real: f64) -> Option<Self> {
        if !real.is_finite() || real < 0.0 {
            return None;
        }
        if real == 0.0 || real < 1e-300 {
            return Some(Self::default());
        }
        let mut shift = ((real.to_bits() >> 52) & 0x7ff) as i32 - 1022;
        let fraction = f64::from_bits((real.to_bits() & ((1 << 52) - 1)) | (1022 << 52));
        let mut fixed = math::round(fraction * 2_147_483_648.0) as i64;
        if fixed == 1 << 31 {
            fixed /= 2;
            shift += 1;
        }
        if shift < -31 {
            return Some(Self::default());
        }
        if shift > 30 {
            return None;
        }
        Some(Self { multiplier: fixed as i32, shift })
    }

    /// `value` times the number: the product's high half rounded, halves up, then the shift to the right rounded
    /// once more, halves away from zero.
    #[inline(always)]
    pub fn apply(self, value: i32) -> i32 {
        let (left, right) = if self.shift > 0 { (self.shift, 0) } else { (0, -self.shift) };
        let product = i64::from(value.wrapping_shl(left as u32)) * i64::from(self.multiplier);
        // Dividing by 2^31 after adding a half that has the product's sign is this shift.
        let high = ((product + (1 << 30)) >> 31) as i32;
        let mask = ((1i64 << right) - 1) as i32;
        let threshold = (mask >> 1) + i32::from(high < 0);
        (high >> right) + i32::from((high & mask) > threshold)
    }
}

/// How bytes are made of numbers that are of a result's scale already.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    /// The least and the most, less the zero point.
    pub low: f32,
    pub high: f32,
    pub zero: i32,
}

impl Rounding {
    /// Within `low..=high`, of a result whose zero is that byte.
    pub fn new(low: i32, high: i32, zero: i32) -> Self {
        Self { low: (low - zero) as f32, high: (high.max(low) - zero) as f32, zero }
    }

    /// The nearest byte, halves to even, as vector instructions round.
    #[inline(always)]
    pub fn byte(self, value: f32) -> u8 {
        // At this size floats are whole numbers, so that a sum is rounded to one.
        const WHOLE: f32 = 12_582_912.0;
        let value = value.max(self.low).min(self.high) + WHOLE;
        (value.to_bits().wrapping_sub(WHOLE.to_bits()) as i32 + self.zero) as i8 as u8
    }
}

/// A sum of two bytes, each times a number of its own, in whole numbers, as XNNPACK adds them: halves up, not to even.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    factors: [i32; 2],
    start: i32,
    shift: u32,
    low: i32,
    high: i32,
    zero: i32,
}

impl Sum {
    /// Of bytes with these zero points, within `low..=high`, of a result whose zero is that byte. Nothing where the larger factor is none that 20 bits
    /// are kept of.
    pub fn new(factors: [f32; 2], zeros: [i32; 2], [low, high, zero]: [i32; 3]) -> Option<Self> {
        let largest = factors[0].abs().max(factors[1].abs());
        if !(1.0 / 1024.0..256.0).contains(&largest) {
            return None;
        }
        let shift = (20 + 127 - (largest.to_bits() >> 23) as i32) as u32;
        // At this size doubles are whole numbers, so that a sum is rounded to one, halves to even.
        const WHOLE: f64 = 6_755_399_441_055_744.0;
        let whole = |factor: f32| (f64::from(factor) * (1u64 << shift) as f64 + WHOLE - WHOLE) as i32;
        let factors = factors.map(whole);
        let start = (1 << (shift - 1)) - factors[0] * zeros[0] - factors[1] * zeros[1];
        Some(Self { factors, start, shift, low: low - zero, high: high.max(low) - zero, zero })
    }

    /// The byte of two bytes.
    #[inline(always)]
    pub fn byte(&self, x: i32, y: i32) -> u8 {
        // Factors are less than 2^21 and bytes less zero points less than 2^8, so that both products and the start are within 32 bits.
        let sum = self
            .start
            .wrapping_add(x.wrapping_mul(self.factors[0]))
            .wrapping_add(y.wrapping_mul(self.factors[1]));
        ((sum >> self.shift).max(self.low).min(self.high) + self.zero) as i8 as u8
    }
}

/// How a tensor's bytes are numbers: `scale * (byte - zero)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// The size of a quantum.
    pub scale: f32,
    /// The byte that means zero.
    pub zero: i32,
}

impl Affine {
    /// The nearest byte, halves away from zero, within `low..=high`.
    #[inline(always)]
    pub fn quantize(&self, value: f32, low: i32, high: i32) -> i32 {
        // At this size floats are whole numbers, so that a sum is rounded to one, halves to even.
        const WHOLE: f32 = 12_582_912.0;
        // No byte is as far from a zero point.
        const FAR: f32 = 1024.0;
        let steps = value / self.scale;
        // Of a number that is none, zero.
        let steps = if steps.is_nan() { 0.0 } else { steps };
        let steps = if steps > FAR { FAR } else { steps };
        let steps = if steps < -FAR { -FAR } else { steps };
        let even = steps + WHOLE - WHOLE;
        // A half that was rounded towards zero. The difference is exact.
        let rest = steps - even;
        let up = if rest == 0.5 && steps > 0.0 { 1.0 } else { 0.0 };
        let down = if rest == -0.5 && steps < 0.0 { 1.0 } else { 0.0 };
        let near = even + up - down + WHOLE;
        let steps = near.to_bits().wrapping_sub(WHOLE.to_bits()) as i32;
        (steps + self.zero).max(low).min(high)
    }

    /// The number that a byte means.
    pub fn real(&self, byte: i32) -> f32 {
        self.scale * (byte - self.zero) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounding as the published kernels define it, in their steps.
    fn by_definition(value: i32, scale: Scale) -> i32 {
        let left = scale.shift.max(0);
        let right = (-scale.shift).max(0);
        let ab = i64::from(value.wrapping_shl(left as u32)) * i64::from(scale.multiplier);
        let nudge = if ab >= 0 { 1i64 << 30 } else { 1 - (1i64 << 30) };
        let high = ((ab + nudge) / (1i64 << 31)) as i32;
        // To the nearest, halves away from zero.
        let exact = i64::from(high);
        let half = if right == 0 { 0 } else { 1i64 << (right - 1) };
        if exact >= 0 { ((exact + half) >> right) as i32 } else { -(((-exact + half) >> right) as i32) }
    }

    #[test]
    fn products_are_rounded_as_defined() {
        let mut state = 1u64;
        let mut dice = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as i32
        };
        for _ in 0..20_000 {
            let real = f64::from(dice() % 100_000 + 1) / f64::from(1u32 << (dice() % 24));
            let scale = Scale::new(real).unwrap();
            let value = (dice() % 2_000_001 - 1_000_000) >> scale.shift.clamp(0, 20);
            assert_eq!(scale.apply(value), by_definition(value, scale), "{value} {scale:?}");
        }
    }

    #[test]
    fn sums_of_bytes_are_rounded_halves_up() {
        let sum = Sum::new([0.5, 0.25], [0, 0], [-128, 127, 0]).unwrap();
        let all = [(1, 0), (-1, 0), (0, 2), (3, 0), (1, 2), (-3, 0)].map(|(x, y)| sum.byte(x, y) as i8);
        assert_eq!(all, [1, 0, 1, 2, 1, -1]);
        // A difference, within an activation's range, with zeros that are not zero.
        let less = Sum::new([2.0, -1.0], [3, -4], [5, 127, 5]).unwrap();
        assert_eq!(
            [(3, -4), (4, -4), (3, 0), (127, -128)].map(|(x, y)| less.byte(x, y) as i8),
            [5, 7, 5, 127]
        );
        // The largest factors there are, of bytes at their ends.
        let large = Sum::new([255.99; 2], [-128, -128], [-128, 127, -128]).unwrap();
        assert_eq!([(127, 127), (-128, -128)].map(|(x, y)| large.byte(x, y) as i8), [127, -128]);
        assert_eq!(Sum::new([256.0, 1.0], [0, 0], [-128, 127, 0]), None);
        assert_eq!(Sum::new([0.0001, f32::NAN], [0, 0], [-128, 127, 0]), None);
    }

    #[test]
    fn floats_become_the_nearest_byte_with_halves_away_from_zero() {
        let by_definition = |affine: Affine, value: f32, low: i64, high: i64| {
            let steps = math::round(f64::from(value / affine.scale)) as i64;
            steps.saturating_add(i64::from(affine.zero)).clamp(low, high) as i32
        };
        let mut state = 1u64;
        let check = |affine: Affine, value: f32| {
            for (low, high) in [(-128, 127), (0, 255)] {
                let wanted = by_definition(affine, value, low.into(), high.into());
                assert_eq!(affine.quantize(value, low, high), wanted, "{value} {affine:?}");
            }
        };
        for step in -3000..3000 {
            let half = step as f32 / 2.0;
            for value in [half, half.next_up(), half.next_down(), half * 0.3, half * 1e6] {
                for zero in [-128, -5, 0, 127, 255] {
                    check(Affine { scale: 1.0, zero }, value);
                    check(Affine { scale: 0.037, zero }, value);
                }
            }
        }
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Any bits at all: numbers that are none, infinite or too small among them.
            check(Affine { scale: 0.25, zero: -3 }, f32::from_bits((state >> 32) as u32));
        }
    }

    #[test]
    fn scales_are_the_numbers_they_stand_for() {
        assert_eq!(Scale::new(1.0), Some(Scale { multiplier: 1 << 30, shift: 1 }));
        assert_eq!(Scale::new(0.25), Some(Scale { multiplier: 1 << 30, shift: -1 }));
        assert_eq!(Scale::new(1e-20), Some(Scale::default()));
        assert_eq!(Scale::new(f64::NAN), None);
        assert_eq!(Scale::new(1e20), None);
        // The high half of a product is rounded up where it is a half.
        assert_eq!(Scale::new(0.5).unwrap().apply(-3), -1);
        assert_eq!(Scale::new(0.5).unwrap().apply(3), 2);
    }
}
