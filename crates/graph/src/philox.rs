//! Turns (seed, step, stream, sample, block) into random words: the counter-based generator Philox4x32-10.
//!
//! A word depends on its coordinates alone, never on what was drawn before it. So a mask that is computed again is the
//! same mask, and a batch that is cut in pieces draws, sample for sample, what the whole batch draws.
//!
//! The coordinates enter the generator as follows, where `low` and `high` are the halves of 64 bits:
//!
//! | word | holds |
//! | --- | --- |
//! | counter 0 | the block inside the sample; a block is four words |
//! | counter 1 | low(sample index) |
//! | counter 2 | low(step) |
//! | counter 3 | the stream: the op's own number |
//! | key | seed xor [`mix`]\(high(step) · 2³² + high(sample index)\), low half first |
//!
//! [`mix`] maps 0 to 0 and is one-to-one: below 2³² samples and steps the key is the plain seed, and above no bit is
//! lost.
//!
//! The algorithm is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).

/// Multipliers of the two halves of a round.
pub const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What is added to the key after each round: the golden ratio and √3 - 1, as fractions of 2³².
pub const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// Rounds of the generator.
pub const ROUNDS: usize = 10;

/// Four random words from a counter and a key.
///
/// ```
/// use plimsoll_graph::philox::philox4x32;
/// assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
/// ```
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let product = |i: usize, word: u32| u64::from(MULTIPLIERS[i]) * u64::from(word);
        let (p0, p1) = (product(0, counter[0]), product(1, counter[2]));
        let high = |p: u64| (p >> 32) as u32;
        counter = [high(p1) ^ counter[1] ^ key[0], p1 as u32, high(p0) ^ counter[3] ^ key[1], p0 as u32];
    }
    counter
}

/// Spreads 64 bits over 64 bits, one-to-one, with 0 at 0 (the finalizer of MurmurHash3).
pub fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    bits = (bits ^ (bits >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    bits ^ (bits >> 33)
}

/// The random words of one op at one step.
///
/// ```
/// use plimsoll_graph::philox::Source;
/// let (whole, rest) = (Source::new([42, 7, 0], 1), Source::new([42, 7, 4], 1));
/// // Sample 5 of the whole batch is sample 1 of the piece that begins at 4.
/// assert_eq!(whole.block(5, 0), rest.block(1, 0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    seed: u64,
    step: u64,
    first_sample: u64,
    stream: u32,
}

impl Source {
    /// The source of an op with number `stream`, from a key tensor's (seed, step, first sample index).
    pub fn new(key: [i64; 3], stream: u32) -> Source {
        let [seed, step, first_sample] = key.map(|word| word as u64);
        Source { seed, step, first_sample, stream }
    }

    /// The generator's counter (of block 0) and key for the sample at this index of axis 0.
    pub fn sample(&self, index: usize) -> ([u32; 4], [u32; 2]) {
        let sample = self.first_sample.wrapping_add(index as u64);
        let key = self.seed ^ mix((self.step >> 32) << 32 | sample >> 32);
        ([0, sample as u32, self.step as u32, self.stream], [key as u32, (key >> 32) as u32])
    }

    /// Four words of a sample: elements `4 · block` and the next three.
    pub fn block(&self, index: usize, block: u32) -> [u32; 4] {
        let ([_, sample, step, stream], key) = self.sample(index);
        philox4x32([block, sample, step, stream], key)
    }
}

/// A word as a number in [0, 1): its upper 24 bits, which every float type of 32 bits or more holds exactly.
pub fn unit(word: u32) -> f64 {
    f64::from(word >> 8) / f64::from(1 << 24)
}

/// Two words as two independent standard normal numbers, by Box and Muller's transform.
pub fn normal_pair(words: [u32; 2]) -> [f64; 2] {
    // 1 - u lies in (0, 1], so the logarithm is finite.
    let radius = (-2.0 * (1.0 - unit(words[0])).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * unit(words[1])).sin_cos();
    [radius * cos, radius * sin]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_answers_of_the_algorithms_authors_are_met() {
        let ones = u32::MAX;
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox4x32([ones; 4], [ones; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let pi = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
        assert_eq!(
            philox4x32(pi, [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn nothing_above_32_bits_of_a_coordinate_is_lost() {
        let block = |key: [i64; 3]| Source::new(key, 3).block(0, 0);
        let keys =
            [[1, 2, 3], [1 + (1 << 40), 2, 3], [1, 2 + (1 << 32), 3], [1, 2, 3 + (1 << 32)], [-1, 2, 3]];
        for (i, &a) in keys.iter().enumerate() {
            for &b in &keys[i + 1..] {
                assert_ne!(block(a), block(b), "{a:?} {b:?}");
            }
        }
        assert_eq!(mix(0), 0);
    }

    #[test]
    fn a_sample_index_that_passes_32_bits_counts_on() {
        let far = Source::new([9, 0, (1 << 32) - 1], 0);
        assert_eq!(far.block(1, 0), Source::new([9, 0, 1 << 32], 0).block(0, 0));
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let source = Source::new([5, 0, 0], 0);
        let mut numbers = Vec::new();
        for block in 0..5000 {
            let w = source.block(0, block);
            numbers.extend(normal_pair([w[0], w[1]]));
            numbers.extend(normal_pair([w[2], w[3]]));
        }
        let n = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / n;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
