//! Functions of one number that `core` does not have, of sums and products alone, so that every processor gives the same bits.

/// `e^x` by `2^n e^r`, with `|r| <= ln 2 / 2`, without a branch: at most two units of the last place off.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // What is no number stays none.
    let within = if x > 89.0 { 89.0 } else { x };
    let (sum, n) = exp_parts(if within < -104.0 { -104.0 } else { within });
    // In two steps: one alone would leave the range.
    sum * power(n >> 1) * power(n.wrapping_sub(n >> 1))
}

/// Two to the power of `n`, where that is a normal number.
#[inline(always)]
pub fn power(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `e^r` and `n` of `e^x = 2^n e^r`, of a number that is not as far from zero as floats reach.
#[inline(always)]
pub fn exp_parts(x: f32) -> (f32, i32) {
    // At this size floats are whole numbers, so that a sum is rounded to one.
    const WHOLE: f32 = 12_582_912.0;
    let n = x * core::f32::consts::LOG2_E + WHOLE;
    // The logarithm of two in two parts, of which the first has so few bits that its product is exact.
    let r = x - (n - WHOLE) * 0.693_145_75 - (n - WHOLE) * 1.428_606_8e-6;
    // Taylor's series; the first term left out is below 6e-9.
    let mut sum = 1.0 / 5040.0;
    sum = sum * r + 1.0 / 720.0;
    sum = sum * r + 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 0.5;
    sum = sum * r * r + r + 1.0;
    (sum, n.to_bits().wrapping_sub(WHOLE.to_bits()) as i32)
}

/// `e^x` by `2^n e^r`, with `|r| <= ln 2 / 2`, without a branch.
#[inline(always)]
fn exp64(x: f64) -> f64 {
    // At this size floats are whole numbers, so that a sum is rounded to one.
    const WHOLE: f64 = 6_755_399_441_055_744.0;
    // Floats end well before. What is no number stays none.
    let within = if x > 200.0 { 200.0 } else { x };
    let within = if within < -200.0 { -200.0 } else { within };
    let n = within * core::f64::consts::LOG2_E + WHOLE;
    let r = within - (n - WHOLE) * core::f64::consts::LN_2;
    // Taylor's series; the first term left out is below 3e-12.
    let mut sum = 1.0 / 3_628_800.0;
    sum = sum * r + 1.0 / 362_880.0;
    sum = sum * r + 1.0 / 40_320.0;
    sum = sum * r + 1.0 / 5_040.0;
    sum = sum * r + 1.0 / 720.0;
    sum = sum * r + 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    let power = n.to_bits().wrapping_sub(WHOLE.to_bits()).wrapping_add(1023) << 52;
    sum * f64::from_bits(power)
}

/// The nearest whole number, halves away from zero.
pub fn round(x: f64) -> f64 {
    const WHOLE: f64 = 4_503_599_627_370_496.0;
    if !(-WHOLE..=WHOLE).contains(&x) {
        return x;
    }
    let cut = x as i64 as f64;
    let rest = x - cut;
    if rest >= 0.5 {
        cut + 1.0
    } else if rest <= -0.5 {
        cut - 1.0
    } else {
        cut
    }
}

/// The largest whole number that is not above `x`.
pub fn floor(x: f32) -> f32 {
    if !(-8_388_608.0..=8_388_608.0).contains(&x) {
        return x;
    }
    let cut = x as i32 as f32;
    if cut > x { cut - 1.0 } else { cut }
}

/// The natural logarithm.
pub fn ln(x: f32) -> f32 {
    ln64(f64::from(x)) as f32
}

fn ln64(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x == f64::INFINITY {
        return x;
    }
    // Numbers of f32 are normal in f64.
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if m > core::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    // ln m = 2 atanh((m-1)/(m+1)), whose argument is at most 0.172.
    let t = (m - 1.0) / (m + 1.0);
    let t2 = t * t;
    let mut sum = 0.0;
    for k in (0..=9).rev() {
        sum = sum * t2 + 1.0 / f64::from(2 * k + 1);
    }
    2.0 * t * sum + f64::from(exponent) * core::f64::consts::LN_2
}

/// The square root.
pub fn sqrt(x: f32) -> f32 {
    #[cfg(feature = "std")]
    return x.sqrt();
    #[cfg(not(feature = "std"))]
    return sqrt64(f64::from(x)) as f32;
}

/// By Newton's steps from half the exponent.
#[cfg(any(test, not(feature = "std")))]
fn sqrt64(x: f64) -> f64 {
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 || x == f64::INFINITY {
        return x;
    }
    let mut root = f64::from_bits((x.to_bits() >> 1) + (511 << 52));
    for _ in 0..5 {
        root = 0.5 * (root + x / root);
    }
    root
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let x = f64::from(x);
    let e = exp64(2.0 * x);
    let t = (e - 1.0) / (e + 1.0);
    let small = x - x * x * x / 3.0;
    (if x.abs() < 1e-4 { small } else { t }) as f32
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The error function, as `x` times a polynomial of `x^2 / 8 - 1`, without a branch: it is one from four on.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    // Chebyshev's series on that range, by powers; the first term left out is below 1e-12.
    const POWERS: [f64; 23] = [
        0.353_530_995_643_387_4,
        -0.176_576_233_303_980_87,
        0.131_675_116_899_731_7,
        -0.107_710_442_299_996_17,
        0.090_208_993_873_340_5,
        -0.074_727_871_655_255_52,
        0.059_886_909_416_901_52,
        -0.045_765_039_973_586_09,
        0.033_060_590_165_233_654,
        -0.022_474_034_182_490_357,
        0.014_349_838_940_480_222,
        -0.008_604_344_362_825_008,
        0.004_852_694_673_049_7,
        -0.002_583_060_913_961_789,
        0.001_294_616_320_753_228_4,
        -0.000_604_821_823_508_543_4,
        0.000_272_430_448_741_109_26,
        -0.000_126_527_064_235_504,
        5.100_616_593_367_808_6e-5,
        -1.262_066_974_685_413_3e-5,
        4.863_194_987_977_7e-6,
        -4.589_225_207_791_306e-6,
        1.525_878_040_046_957_2e-6,
    ];
    let x = f64::from(x);
    // What is no number stays none.
    let within = if x > 4.0 { 4.0 } else { x };
    let within = if within < -4.0 { -4.0 } else { within };
    let u = within * within / 8.0 - 1.0;
    let mut sum = 0.0;
    let mut power = POWERS.len();
    while power > 0 {
        power -= 1;
        sum = sum * u + POWERS[power];
    }
    (within * sum) as f32
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    /// The error function by its series near zero, by Lentz's continued fraction of the complement beyond.
    fn erf_by_series(x: f64) -> f64 {
        let a = x.abs();
        let value = if a < 2.5 {
            let (mut term, mut sum) = (a, a);
            for k in 1..60 {
                term *= -a * a / f64::from(k);
                sum += term / f64::from(2 * k + 1);
            }
            sum * core::f64::consts::FRAC_2_SQRT_PI
        } else {
            let fraction = (1..=40).rev().fold(0.0, |fraction, k| f64::from(k) / 2.0 / (a + fraction));
            1.0 - (-a * a).exp() / (a + fraction) * core::f64::consts::FRAC_2_SQRT_PI / 2.0
        };
        value.copysign(x)
    }

    #[test]
    fn functions_agree_with_the_standard_library() {
        let close = |ours: f32, theirs: f64, name: &str, x: f32| {
            let error = (f64::from(ours) - theirs).abs();
            assert!(
                error <= 2.5e-7 * theirs.abs() + 2e-45 || (theirs as f32) == ours,
                "{name}({x}): {ours} {theirs}"
            );
        };
        for step in -4000..4000 {
            let x = step as f32 * 0.0217;
            let wide = f64::from(x);
            close(exp(x), wide.exp(), "exp", x);
            close(tanh(x), wide.tanh(), "tanh", x);
            close(erf(x), erf_by_series(wide), "erf", x);
            close(logistic(x), 1.0 / (1.0 + (-wide).exp()), "logistic", x);
            if x > 0.0 {
                close(ln(x), wide.ln(), "ln", x);
                close(sqrt64(wide) as f32, wide.sqrt(), "sqrt", x);
            }
            assert_eq!(round(wide), wide.round());
            assert_eq!(floor(x), x.floor());
        }
        for (x, theirs) in
            [(0.5, 0.520_499_877_8), (1.5, 0.966_105_146_5), (-3.0, -0.999_977_909_5), (2.6, 0.999_763_965_6)]
        {
            assert!((f64::from(erf(x)) - theirs).abs() < 1e-7, "erf({x})");
        }
        assert_eq!((erf(9.0), erf(f32::NEG_INFINITY), erf(0.0)), (1.0, -1.0, 0.0));
        assert!(erf(f32::NAN).is_nan());
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(200.0), f32::INFINITY);
        assert_eq!(round(0.499_999_999_999_999_94), 0.0);
    }
}
