//! Turns the coefficients of a block into samples: of 8 × 8 coefficients the lowest give a block of 1, 2, 4 or 8 in each direction.

/// cos(mπ/16) for m from 0 to 8.
const COSINES: [f64; 9] = [
    1.0,
    0.980_785_280_403_230_4,
    0.923_879_532_511_286_7,
    0.831_469_612_302_545_2,
    std::f64::consts::FRAC_1_SQRT_2,
    0.555_570_233_019_602_2,
    0.382_683_432_365_089_8,
    0.195_090_322_016_128_27,
    0.0,
];

fn cosine(sixteenths: usize) -> f64 {
    match sixteenths % 32 {
        m @ 0..=8 => COSINES[m],
        m @ 9..=16 => -COSINES[16 - m],
        m @ 17..=24 => -COSINES[m - 16],
        m => COSINES[32 - m],
    }
}

/// How much of coefficient k is in sample x of a block of `side`: `weights[x][k]`.
///
/// A block of 8 samples whose frequencies from `side` on are left out, at `side` places.
#[derive(Clone, Copy)]
pub struct Weights {
    pub side: usize,
    weights: [[f32; 8]; 8],
}

impl Weights {
    pub fn new(side: usize) -> Weights {
        let mut weights = [[0.0; 8]; 8];
        for (x, row) in weights.iter_mut().enumerate().take(side) {
            for (k, weight) in row.iter_mut().enumerate().take(side) {
                let mean = if k == 0 { std::f64::consts::FRAC_1_SQRT_2 } else { 1.0 };
                *weight = (mean / 2.0 * cosine((2 * x + 1) * k * (8 / side))) as f32;
            }
        }
        Weights { side, weights }
    }
}

/// A sample of the range that JPEG codes, from −128 on, as a level.
fn level(value: f32) -> u8 {
    (value + 128.5) as u8
}

/// Writes a block of `down.side` rows of `across.side` samples at the front of `out`, whose rows are `stride` apart.
pub fn block(coefficients: &[f32; 64], down: &Weights, across: &Weights, stride: usize, out: &mut [u8]) {
    let mut between = [[0.0f32; 8]; 8];
    for (row, weights) in between.iter_mut().zip(&down.weights).take(down.side) {
        for (k, weight) in weights.iter().enumerate().take(down.side) {
            let from = &coefficients[8 * k..8 * k + across.side];
            row.iter_mut().zip(from).for_each(|(sum, value)| *sum += weight * value);
        }
    }
    for (row, out) in between.iter().zip(out.chunks_mut(stride)).take(down.side) {
        for (level_, weights) in out.iter_mut().zip(&across.weights).take(across.side) {
            let terms = row.iter().zip(weights).take(across.side);
            *level_ = level(terms.map(|(value, weight)| value * weight).sum());
        }
    }
}

/// The same for a block that is its mean alone.
pub fn flat(mean: f32, down: &Weights, across: &Weights, stride: usize, out: &mut [u8]) {
    let mean = level(mean / 8.0);
    out.chunks_mut(stride).take(down.side).for_each(|row| row[..across.side].fill(mean));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_eight_is_the_inverse_transform_of_the_standard() {
        let mut coefficients = [0.0; 64];
        for (at, value) in coefficients.iter_mut().enumerate() {
            *value = ((at * 37 + 11) % 29) as f32 - 14.0;
        }
        let mut out = [0; 64];
        let eight = Weights::new(8);
        block(&coefficients, &eight, &eight, 8, &mut out);
        for y in 0..8 {
            for x in 0..8 {
                // A.3.3 of the standard.
                let mut sum = 0.0;
                for v in 0..8 {
                    for u in 0..8 {
                        let c = |k: usize| if k == 0 { 0.5f64.sqrt() } else { 1.0 };
                        let cos = |x: usize, u: usize| {
                            ((2 * x + 1) as f64 * u as f64 * std::f64::consts::PI / 16.0).cos()
                        };
                        sum += c(u) * c(v) / 4.0 * f64::from(coefficients[8 * v + u]) * cos(x, u) * cos(y, v);
                    }
                }
                let expected = (sum + 128.0).round().clamp(0.0, 255.0);
                assert!((expected - f64::from(out[8 * y + x])).abs() <= 1.0, "{x} {y}");
            }
        }
    }

    #[test]
    fn the_mean_of_a_block_is_its_first_coefficient_at_every_size() {
        for side in [1, 2, 4, 8] {
            let weights = Weights::new(side);
            let mut coefficients = [0.0; 64];
            coefficients[0] = 8.0 * 40.0;
            let (mut out, mut same) = ([0; 64], [0; 64]);
            block(&coefficients, &weights, &weights, 8, &mut out);
            flat(coefficients[0], &weights, &weights, 8, &mut same);
            assert_eq!((out, out[0]), (same, 168), "{side}");
        }
    }
}
