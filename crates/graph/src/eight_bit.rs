//! Turns numbers into bytes and back, by blocks: what an optimizer keeps, in a quarter of its memory.
//!
//! After Dettmers and others, "8-bit Optimizers via Block-wise Quantization" (2022): a block of 256 numbers has one scale, the largest
//! magnitude in it, and each number is a byte that names the nearest of 256 values between -1 and 1 (or 0 and 1). The values are those of
//! the paper's dynamic tree: seven decades below 1, each with twice as many values as the one below it.

/// Numbers that share a scale.
pub const BLOCK: usize = 256;
/// Tensors of fewer numbers are kept as they are: they take little, and are often those that must be exact (biases, norms).
pub const LEAST: usize = 4096;

/// The values that bytes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// From -1 to 1: a mean of gradients.
    Signed,
    /// From 0 to 1: a mean of squares. What is not zero is never rounded to zero, because it is divided by.
    Unsigned,
}

/// 10^-6 to 10^0.
const DECADES: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];

/// Decade i of values from 0.1 to 1 is cut into `first` · 2^i pieces, whose middles are the values; with 0 and 1 there are 256 of them.
const fn values(signed: bool) -> [f32; 256] {
    let mut all = [0.0f32; 256];
    let zero = if signed { 127 } else { 0 };
    let mut at = zero + 1;
    let mut decade = 0;
    while decade < 7 {
        let pieces = (if signed { 1 } else { 2 }) << decade;
        let mut k = 0;
        while k < pieces {
            let middle = 0.1 + 0.9 * (k as f64 + 0.5) / pieces as f64;
            let value = (DECADES[decade] * middle) as f32;
            all[at] = value;
            if signed {
                all[2 * zero - at] = -value;
            }
            at += 1;
            k += 1;
        }
        decade += 1;
    }
    all[255] = 1.0;
    all
}

/// Halfway between neighbours: what is above bound i has a code above i.
const fn bounds(values: &[f32; 256], signed: bool) -> [f32; 255] {
    let mut all = [0.0f32; 255];
    let mut at = 0;
    while at < 255 {
        all[at] = ((values[at] as f64 + values[at + 1] as f64) / 2.0) as f32;
        at += 1;
    }
    if !signed {
        all[0] = 0.0;
    }
    all
}

const SIGNED: [f32; 256] = values(true);
const UNSIGNED: [f32; 256] = values(false);
const SIGNED_BOUNDS: [f32; 255] = bounds(&SIGNED, true);
const UNSIGNED_BOUNDS: [f32; 255] = bounds(&UNSIGNED, false);

impl Codes {
    /// The value of each code, from the least to the largest.
    pub const fn values(self) -> &'static [f32; 256] {
        match self {
            Codes::Signed => &SIGNED,
            Codes::Unsigned => &UNSIGNED,
        }
    }

    /// What lies between the codes: the code of x is the number of bounds that are less than x.
    pub const fn bounds(self) -> &'static [f32; 255] {
        match self {
            Codes::Signed => &SIGNED_BOUNDS,
            Codes::Unsigned => &UNSIGNED_BOUNDS,
        }
    }

    /// The code of 0.
    pub const fn zero(self) -> u8 {
        if matches!(self, Codes::Signed) { 127 } else { 0 }
    }

    /// The code of a number that was divided by the scale of its block.
    pub fn encode(self, x: f32) -> u8 {
        self.bounds().partition_point(|&bound| bound < x) as u8
    }

    /// Numbers as codes and scales, block after block.
    ///
    /// ```
    /// use plimsoll_graph::eight_bit::Codes;
    /// let (codes, scales) = Codes::Signed.pack(&[0.0, -4.0, 2.0]);
    /// assert_eq!((codes.len(), scales[0]), (3, 4.0));
    /// let back = Codes::Signed.unpack(&codes, &scales);
    /// assert_eq!(back[0], 0.0);
    /// assert!((back[1] + 4.0).abs() < 0.04 && (back[2] - 2.0).abs() < 0.04);
    /// ```
    pub fn pack(self, numbers: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let mut codes = Vec::with_capacity(numbers.len());
        let mut scales = Vec::with_capacity(numbers.len().div_ceil(BLOCK));
        for block in numbers.chunks(BLOCK) {
            let scale = scale(block);
            codes.extend(block.iter().map(|&x| self.encode(divided(x, scale))));
            scales.push(scale);
        }
        (codes, scales)
    }

    /// The numbers that codes and scales stand for.
    pub fn unpack(self, codes: &[u8], scales: &[f32]) -> Vec<f32> {
        let block = |(codes, &scale): (&[u8], &f32)| -> Vec<f32> {
            codes.iter().map(|&code| self.values()[usize::from(code)] * scale).collect()
        };
        codes.chunks(BLOCK).zip(scales).flat_map(block).collect()
    }
}

/// The largest magnitude of a block. What is no number is larger than all others, so that it does not vanish: a scale that is none makes
/// every number of its block none.
pub fn scale(block: &[f32]) -> f32 {
    f32::from_bits(block.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0))
}

/// x over the scale of its block.
#[inline(always)]
pub fn divided(x: f32, scale: f32) -> f32 {
    if scale > 0.0 { x / scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_rise_and_a_value_is_its_own_code() {
        for codes in [Codes::Signed, Codes::Unsigned] {
            let values = codes.values();
            assert!(values.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!((values[usize::from(codes.zero())], values[255]), (0.0, 1.0));
            for (code, &value) in values.iter().enumerate() {
                assert_eq!(usize::from(codes.encode(value)), code);
            }
        }
        assert_eq!(Codes::Unsigned.encode(1e-30), 1);
        assert_eq!(Codes::Signed.encode(1e-30), 127);
    }

    #[test]
    fn what_is_no_number_stays_none_and_zeros_stay_zero() {
        for bad in [f32::NAN, f32::INFINITY] {
            let (codes, scales) = Codes::Signed.pack(&[1.0, bad, 0.0]);
            assert!(Codes::Signed.unpack(&codes, &scales).iter().all(|x| !x.is_finite()));
        }
        for map in [Codes::Signed, Codes::Unsigned] {
            let (codes, scales) = map.pack(&[0.0; 300]);
            assert_eq!((scales, map.unpack(&codes, &[0.0; 2])), (vec![0.0; 2], vec![0.0; 300]));
        }
    }
}
