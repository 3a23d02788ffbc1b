//! Turns a float into exp, log, tanh, erf and their kin, without a branch, so that loops over them vectorise.
//!
//! Each is a range reduction and a polynomial fitted to it, within about 1e-6 relative of the true value (1 to 4
//! units of the last place; the tests hold them to it), and right at zeros, infinities and not-a-number.
//! `L` says whether products and sums are contracted. The same functions serve single ops, fused chains and the
//! tails of matrix products, so that all of these give the same bits.

use std::f32::consts::LOG2_E;

use crate::simd::Level;

/// Adding it leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// The same for f64.
const ROUND64: f64 = 6_755_399_441_055_744.0;
/// Beyond this, sine and cosine leave the range reduction and ask the standard library.
pub(crate) const HUGE_ANGLE: f32 = 1.0e6;

macro_rules! polynomial {
    ($name:ident, $t:ident, $fma:ident) => {
        /// Σ c\[i\] xⁱ.
        #[inline(always)]
        fn $name<L: Level, const N: usize>(x: $t, c: [$t; N]) -> $t {
            let mut sum = c[N - 1];
            for i in (0..N - 1).rev() {
                sum = L::$fma(sum, x, c[i]);
            }
            sum
        }
    };
}
polynomial!(poly, f32, fma);
polynomial!(poly64, f64, fma64);

/// e^x: x = n ln 2 + r with |r| ≤ ½ ln 2, and 2^n applied in two halves so that neither leaves the range.
#[inline(always)]
pub(crate) fn exp<L: Level>(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let shifted = L::fma(x, LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, the first with so few bits that its product with n is exact.
    let r = L::fma(n, -0.693_359_4, x);
    let r = L::fma(n, 2.121_944_4e-4, r);
    let tail = poly::<L, 5>(r, [0.5, 1.666_657_6e-1, 4.166_646_3e-2, 8.363_336e-3, 1.393_388_3e-3]);
    let e = L::fma(r * r, tail, r) + 1.0;
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    e * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// ln x: x = 2^e m with m in [√½, √2), and ln m by the series of 2 artanh((m - 1) / (m + 1)).
#[inline(always)]
pub(crate) fn log<L: Level>(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits() as i32;
    // The bits of √½: above it, the exponent field counts one up.
    let e = bits.wrapping_sub(0x3F35_04F3) >> 23;
    let m = f32::from_bits(bits.wrapping_sub(e << 23) as u32);
    let e = e as f32 - if subnormal { 23.0 } else { 0.0 };
    let s = (m - 1.0) / (m + 1.0);
    let ss = s * s;
    let tail = poly::<L, 3>(ss, [3.333_334_3e-1, 1.999_431_1e-1, 1.479_337e-1]);
    let twice = s + s;
    let y = L::fma(e, -2.121_944_4e-4, L::fma(twice * ss, tail, twice));
    let y = L::fma(e, 0.693_359_4, y);
    let y = if x < f32::INFINITY { y } else { x };
    let y = if x > 0.0 { y } else { f32::NAN };
    if x == 0.0 { f32::NEG_INFINITY } else { y }
}

/// ln(1 + t) for t in [0, 1], to full relative accuracy at small t.
#[inline(always)]
fn log1p_unit<L: Level>(t: f32) -> f32 {
    let s = t / (t + 2.0);
    let ss = s * s;
    let c = [3.333_333_4e-1, 1.999_985_1e-1, 1.429_629_2e-1, 1.085_165_6e-1, 1.161_953_3e-1];
    let twice = s + s;
    L::fma(twice * ss, poly::<L, 5>(ss, c), twice)
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub(crate) fn sigmoid<L: Level>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<L>(-x))
}

/// tanh x: an odd polynomial near zero, 1 - 2 / (e^2|x| + 1) farther out.
#[inline(always)]
pub(crate) fn tanh<L: Level>(x: f32) -> f32 {
    let a = x.abs();
    let s = x * x;
    let c = [-3.333_333_3e-1, 1.333_33e-1, -5.395_862_4e-2, 2.176_363_3e-2, -8.326_401e-3, 2.272_704_2e-3];
    let near = L::fma(x * s, poly::<L, 6>(s, c), x);
    let far = (1.0 - 2.0 / (exp::<L>(a + a) + 1.0)).copysign(x);
    if a < 0.625 { near } else { far }
}

/// The error function: an odd polynomial near zero, 1 - e^q(|x|) farther out.
#[inline(always)]
pub(crate) fn erf<L: Level>(x: f32) -> f32 {
    let a = x.abs();
    let s = x * x;
    let c = [
        1.283_791_7e-1,
        -3.761_263_3e-1,
        1.128_369e-1,
        -2.685_906e-2,
        5.200_125e-3,
        -8.131_831e-4,
        8.322_183e-5,
    ];
    let near = L::fma(x, poly::<L, 7>(s, c), x);
    // At 4 the complement is below half a unit of the last place of 1.
    let t = if a > 4.0 { 4.0 } else { a };
    let c = [
        1.790_192e-4,
        -1.129_536_6,
        -6.333_012e-1,
        -1.083_325_3e-1,
        2.515_474_7e-2,
        -4.185_028e-3,
        4.374_620_2e-4,
        -2.136_488e-5,
    ];
    let far = (1.0 - exp::<L>(poly::<L, 8>(t, c))).copysign(x);
    if a < 0.93 { near } else { far }
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)
#[inline(always)]
pub(crate) fn softplus<L: Level>(x: f32) -> f32 {
    relu(x) + log1p_unit::<L>(exp::<L>(-x.abs()))
}

/// max(x, 0); a NaN stays one, as in the tails of matrix products.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// x · sigmoid(x)
#[inline(always)]
pub(crate) fn silu<L: Level>(x: f32) -> f32 {
    x * sigmoid::<L>(x)
}

/// ½x(1 + erf(x/√2))
#[inline(always)]
pub(crate) fn gelu<L: Level>(x: f32) -> f32 {
    0.5 * x * (1.0 + erf::<L>(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// ½x(1 + tanh(√(2/π)(x + 0.044715x³))), written as x · sigmoid of twice the argument: one division, no cancellation.
#[inline(always)]
pub(crate) fn gelu_tanh<L: Level>(x: f32) -> f32 {
    let inner = x * L::fma(x * x, 0.035_677_41, 0.797_884_6);
    x * sigmoid::<L>(inner + inner)
}

/// sin x for |x| up to [`HUGE_ANGLE`].
#[inline(always)]
pub(crate) fn sin<L: Level>(x: f32) -> f32 {
    let (r, quadrant) = quarter_turns::<L>(x);
    let (s, c) = sin_cos_near::<L>(r);
    let y = if quadrant & 1 == 0 { s } else { c };
    f32::from_bits(y.to_bits() ^ (quadrant & 2) << 30)
}

/// cos x for |x| up to [`HUGE_ANGLE`].
#[inline(always)]
pub(crate) fn cos<L: Level>(x: f32) -> f32 {
    let (r, quadrant) = quarter_turns::<L>(x);
    let (s, c) = sin_cos_near::<L>(r);
    let y = if quadrant & 1 == 0 { c } else { s };
    f32::from_bits(y.to_bits() ^ (quadrant.wrapping_add(1) & 2) << 30)
}

/// x less its nearest multiple of π/2, and which multiple that was. In f64, whose 29 further bits are enough.
#[inline(always)]
fn quarter_turns<L: Level>(x: f32) -> (f32, u32) {
    let x = f64::from(x);
    let shifted = L::fma64(x, std::f64::consts::FRAC_2_PI, ROUND64);
    let n = shifted - ROUND64;
    let r = L::fma64(n, -1.570_796_326_734_125_6, x);
    let r = L::fma64(n, -6.077_100_506_506_192e-11, r);
    (r as f32, shifted.to_bits() as u32)
}

#[inline(always)]
fn sin_cos_near<L: Level>(r: f32) -> (f32, f32) {
    let s = r * r;
    let sin = L::fma(r * s, poly::<L, 3>(s, [-1.666_666_5e-1, 8.332_746e-3, -1.958_748e-4]), r);
    let cos =
        L::fma(s * s, poly::<L, 3>(s, [4.166_666_5e-2, -1.388_830_3e-3, 2.454_773e-5]), L::fma(s, -0.5, 1.0));
    (sin, cos)
}

/// a^b = 2^(b log2 a), in f64 so that large exponents lose nothing.
#[inline(always)]
pub(crate) fn pow<L: Level>(a: f32, b: f32) -> f32 {
    let (x, y) = (f64::from(a.abs()), f64::from(b));
    let bits = x.to_bits() as i64;
    let e = bits.wrapping_sub(0x3FE6_A09E_667F_3BCD) >> 52;
    let m = f64::from_bits(bits.wrapping_sub(e << 52) as u64);
    let s = (m - 1.0) / (m + 1.0);
    let odd = [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0];
    let log2 = L::fma64(s * (2.0 * std::f64::consts::LOG2_E), poly64::<L, 7>(s * s, odd), e as i32 as f64);
    let log2 = if x == 0.0 { f64::NEG_INFINITY } else { log2 };
    let log2 = if x < f64::INFINITY { log2 } else { x };
    let t = y * log2;
    let t = if t > 200.0 { 200.0 } else { t };
    let t = if t < -200.0 { -200.0 } else { t };
    let shifted = t + ROUND64;
    let r = (t - (shifted - ROUND64)) * std::f64::consts::LN_2;
    let c = [
        1.0,
        1.0,
        0.5,
        1.0 / 6.0,
        1.0 / 24.0,
        1.0 / 120.0,
        1.0 / 720.0,
        1.0 / 5040.0,
        1.0 / 40320.0,
        1.0 / 362_880.0,
        1.0 / 3_628_800.0,
    ];
    let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    let y = (poly64::<L, 11>(r, c) * scale) as f32;
    let y = if b == 0.0 || a.abs() == 1.0 { 1.0 } else { y };
    let half = b * 0.5;
    let is_odd = half.floor() != half;
    let signed = if b.floor() != b && a > f32::NEG_INFINITY {
        f32::NAN
    } else if is_odd {
        -y
    } else {
        y
    };
    let y = if a < 0.0 { signed } else { y };
    if b.is_nan() && a != 1.0 || a.is_nan() && b != 0.0 { f32::NAN } else { y }
}

/// Whether an angle is beyond [`HUGE_ANGLE`].
#[inline(always)]
pub(crate) fn is_huge_angle(x: f32) -> bool {
    x.abs() > HUGE_ANGLE
}

#[cfg(test)]
mod tests;
