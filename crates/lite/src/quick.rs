//! The functions of `math` that whole tensors of floats are put through, in `f32` alone: a few units of the last place off, for a third of the time
//! and less. Of sums and products alone too, so that every processor gives the same bits.

use core::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use crate::bytes::f;
use crate::math;

/// `e^x`; zero where that is smaller than normal numbers are, which processors take long for, and no more than the largest power of two from there on.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // The logarithms of the least normal number and of one that is a little more than the largest power.
    const LEAST: f32 = -87.3;
    const MOST: f32 = 88.3;
    // What is no number stays none.
    let within = if x > MOST { MOST } else { x };
    let (sum, n) = math::exp_parts(if within < LEAST { LEAST } else { within });
    if x < LEAST { 0.0 } else { sum * math::power(n) }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // Near zero Taylor's series, of which the first term left out is below 3e-8 of the result; there a difference from one would cancel.
    let square = x * x;
    let mut sum = -929_569.0 / 638_512_875.0;
    sum = sum * square + 21_844.0 / 6_081_075.0;
    sum = sum * square - 1_382.0 / 155_925.0;
    sum = sum * square + 62.0 / 2_835.0;
    sum = sum * square - 17.0 / 315.0;
    sum = sum * square + 2.0 / 15.0;
    sum = sum * square - 1.0 / 3.0;
    let near = sum * square * x + x;
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    let far = if x < 0.0 { -far } else { far };
    if x.abs() < 0.55 { near } else { far }
}

/// The error function, as `x` times a quotient of polynomials of `x^2`: it is one from 3.92 on.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    // Fitted to erf(x) / x on that range by least squares, with weights that make the largest relative difference small: 1.9e-8.
    const ABOVE: [f32; 5] = [0.000_284_850_05, 0.003_771_593_8, 0.052_766_465, 0.190_567_78, FRAC_2_SQRT_PI];
    const BELOW: [f32; 5] = [0.001_163_677_4, 0.014_981_269, 0.114_172_53, 0.502_219, 1.0];
    // What is no number stays none.
    let within = if x > 3.92 { 3.92 } else { x };
    let within = if within < -3.92 { -3.92 } else { within };
    let square = within * within;
    let (mut above, mut below) = (2.046_603_2e-6, 3.805_405_4e-5);
    let mut power = 0;
    while power < ABOVE.len() {
        above = above * square + ABOVE[power];
        below = below * square + BELOW[power];
        power += 1;
    }
    let value = within * above / below;
    let value = if x > 3.92 { 1.0 } else { value };
    if x < -3.92 { -1.0 } else { value }
}

/// The Gaussian error linear unit by its formula with a hyperbolic tangent: half of one plus that of `u` is the logistic function of `2u`.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    // Twice the square root of 2/pi.
    let twice = 1.595_769 * (x + 0.044_715 * x * x * x);
    x / (1.0 + exp(-twice))
}

/// The Gaussian error linear unit.
#[inline(always)]
pub fn gelu_erf(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2))
}

/// As many floats as the widest vectors hold.
pub const LANES: usize = 16;

/// The largest of some floats; those that are no numbers are left out.
#[inline(always)]
pub fn largest(numbers: &[[u8; 4]]) -> f32 {
    let larger = |most: f32, x: f32| if x > most { x } else { most };
    let (lines, rest) = numbers.as_chunks::<LANES>();
    let mut most = [f32::NEG_INFINITY; LANES];
    for line in lines {
        for lane in 0..LANES {
            most[lane] = larger(most[lane], f(line[lane]));
        }
    }
    for (lane, x) in rest.iter().enumerate() {
        most[lane] = larger(most[lane], f(*x));
    }
    halves(most, larger)
}

/// The sum of some floats, in as many sums as a few vectors have lanes.
#[inline(always)]
pub fn sum(numbers: &[[u8; 4]]) -> f32 {
    let (fours, rest) = numbers.as_chunks::<{ 4 * LANES }>();
    let (lines, rest) = rest.as_chunks::<LANES>();
    let (mut a, mut b, mut c, mut d) = ([0.0; LANES], [0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for four in fours {
        for lane in 0..LANES {
            a[lane] += f(four[lane]);
            b[lane] += f(four[LANES + lane]);
            c[lane] += f(four[2 * LANES + lane]);
            d[lane] += f(four[3 * LANES + lane]);
        }
    }
    for line in lines {
        for lane in 0..LANES {
            a[lane] += f(line[lane]);
        }
    }
    for lane in 0..LANES {
        a[lane] = (a[lane] + b[lane]) + (c[lane] + d[lane]);
    }
    for (lane, x) in rest.iter().enumerate() {
        a[lane] += f(*x);
    }
    halves(a, |x, y| x + y)
}

/// One number of all lanes, by halves.
#[inline(always)]
pub fn halves(all: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for lane in 0..8 {
        eight[lane] = join(all[lane], all[lane + 8]);
    }
    for lane in 0..4 {
        four[lane] = join(eight[lane], eight[lane + 4]);
    }
    join(join(four[0], four[2]), join(four[1], four[3]))
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::math;

    #[test]
    fn functions_of_tensors_are_those_of_single_numbers() {
        for step in -40_000..40_000 {
            let x = step as f32 * 0.000_37;
            let close = |ours: f32, theirs: f32, by: f32, name: &str| {
                assert!((ours - theirs).abs() <= by, "{name}({x}): {ours} {theirs}");
            };
            let wanted = math::exp(x);
            close(exp(x), wanted, 2e-7 * wanted, "exp");
            close(logistic(x), math::logistic(x), 2e-7 * math::logistic(x), "logistic");
            let wanted = math::tanh(x);
            close(tanh(x), wanted, 3e-7 * wanted.abs(), "tanh");
            let wanted = math::erf(x);
            close(erf(x), wanted, 5e-7 * wanted.abs(), "erf");
            let u = 0.797_884_6 * (x + 0.044_715 * x * x * x);
            close(gelu_tanh(x), 0.5 * x * (1.0 + math::tanh(u)), 4e-7 * x.abs(), "gelu_tanh");
            let wanted = 0.5 * x * (1.0 + math::erf(x * FRAC_1_SQRT_2));
            close(gelu_erf(x), wanted, 4e-7 * x.abs(), "gelu_erf");
        }
        assert_eq!((tanh(100.0), tanh(-100.0), tanh(0.0)), (1.0, -1.0, 0.0));
        assert_eq!((erf(9.0), erf(f32::NEG_INFINITY), erf(0.0)), (1.0, -1.0, 0.0));
        assert_eq!((gelu_tanh(50.0), gelu_erf(50.0)), (50.0, 50.0));
        assert!(gelu_tanh(-50.0).abs() < 1e-30 && gelu_erf(-50.0) == 0.0);
        assert_eq!((exp(-100.0), exp(f32::NEG_INFINITY), exp(0.0)), (0.0, 0.0, 1.0));
        assert!(exp(f32::INFINITY) > 2e38 && exp(-87.0) > f32::MIN_POSITIVE);
        assert!(
            [exp, logistic, tanh, erf, gelu_tanh, gelu_erf]
                .iter()
                .all(|function| function(f32::NAN).is_nan())
        );
    }

    #[test]
    fn rows_of_any_length_are_summed_and_searched() {
        for length in [1, 2, 15, 16, 17, 63, 64, 65, 128, 200] {
            let numbers: Vec<f32> = (0..length).map(|at| ((at * 37) % 101) as f32 - 200.0).collect();
            let bytes: Vec<[u8; 4]> = numbers.iter().map(|x| x.to_le_bytes()).collect();
            // Whole numbers of this size are added exactly in any order.
            assert_eq!(sum(&bytes), numbers.iter().sum::<f32>());
            assert_eq!(largest(&bytes), numbers.iter().fold(f32::NEG_INFINITY, |most, x| most.max(*x)));
        }
        assert_eq!(largest(&[f32::NAN.to_le_bytes(), 3.0f32.to_le_bytes()]), 3.0);
    }
}
