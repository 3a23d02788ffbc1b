//! The functions against f64 over wide ranges and at the edges, on every instruction set.

use super::*;
use crate::isa::Isa;
use crate::simd::multiversion;

type Function = fn(Isa, &[f32], &mut [f32]);
type Check = (&'static str, Function, fn(f64) -> f64, f32, f32, f64);

macro_rules! mapped {
    ($($name:ident)+) => { $( multiversion! {
        pub(super) fn $name<L>(x: &[f32], y: &mut [f32]) {
            x.iter().zip(y).for_each(|(&x, y)| *y = crate::math::$name::<L>(x));
        }
    } )+ };
}

mod all {
    use super::*;
    mapped! { exp log sigmoid tanh erf softplus silu gelu gelu_tanh sin cos }
}

fn erf64(x: f64) -> f64 {
    plimsoll_graph::ops::Unary::Erf.eval(x)
}

/// The largest error over a range, relative to the value; `floor` keeps differences below it out.
fn worst((name, f, truth, low, high, floor): Check, isa: Isa) -> (f64, f32, &'static str) {
    let n = 200_000;
    let x: Vec<f32> = (0..=n).map(|i| low + (high - low) * (i as f32 / n as f32)).collect();
    let mut y = vec![0.0; x.len()];
    f(isa, &x, &mut y);
    let mut worst = (0.0, 0.0, name);
    for (&x, &y) in x.iter().zip(&y) {
        let want = truth(f64::from(x));
        let error = (f64::from(y) - want).abs() / want.abs().max(floor);
        if error > worst.0 || error.is_nan() {
            worst = (error, x, name);
        }
    }
    worst
}

#[test]
fn the_functions_are_within_a_millionth_of_the_truth() {
    let tiny = f64::from(f32::MIN_POSITIVE);
    let checks: Vec<Check> = vec![
        ("exp", all::exp, f64::exp, -87.0, 88.7, tiny),
        ("exp near 0", all::exp, f64::exp, -0.01, 0.01, tiny),
        ("log", all::log, f64::ln, 1e-6, 10.0, 1e-6),
        ("log near 1", all::log, f64::ln, 0.9, 1.1, 1e-6),
        ("log of large", all::log, f64::ln, 1.0, 1e30, tiny),
        ("sigmoid", all::sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -80.0, 80.0, tiny),
        ("tanh", all::tanh, f64::tanh, -12.0, 12.0, tiny),
        ("tanh near 0", all::tanh, f64::tanh, -0.7, 0.7, tiny),
        ("erf", all::erf, erf64, -6.0, 6.0, tiny),
        ("erf near 0", all::erf, erf64, -1.0, 1.0, tiny),
        ("softplus", all::softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), -80.0, 80.0, tiny),
        ("silu", all::silu, |x| x / (1.0 + (-x).exp()), -80.0, 80.0, tiny),
        ("gelu", all::gelu, |x| 0.5 * x * (1.0 + erf64(x * std::f64::consts::FRAC_1_SQRT_2)), -3.0, 9.0, 0.3),
        (
            "gelu_tanh",
            all::gelu_tanh,
            |x| 0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh()),
            -3.0,
            9.0,
            0.3,
        ),
        ("sin", all::sin, f64::sin, -100.0, 100.0, 1e-4),
        ("cos", all::cos, f64::cos, -100.0, 100.0, 1e-4),
        ("sin far out", all::sin, f64::sin, -1e6, 1e6, 1e-3),
        ("cos far out", all::cos, f64::cos, -1e6, 1e6, 1e-3),
    ];
    for isa in Isa::available() {
        for check in &checks {
            let (error, x, name) = worst(*check, isa);
            assert!(error < 1e-6, "{name} on {isa} is off by {error:e} at {x:e}");
        }
    }
}

multiversion! {
    fn powers<L>(a: f32, b: &[f32], y: &mut [f32]) {
        b.iter().zip(y).for_each(|(&b, y)| *y = pow::<L>(a, b));
    }
}

#[test]
fn powers_are_within_a_millionth_and_right_at_the_edges() {
    let inf = f32::INFINITY;
    for isa in Isa::available() {
        for a in [1e-30f32, 0.3, 0.99, 1.0, 1.7, 10.0, 3e20] {
            let b: Vec<f32> = (-1000..1000).map(|i| i as f32 * 0.037).collect();
            let mut y = vec![0.0; b.len()];
            powers(isa, a, &b, &mut y);
            for (&b, &y) in b.iter().zip(&y) {
                let want = f64::from(a).powf(f64::from(b));
                let out_of_range = !(1.2e-38..=3.4e38).contains(&want);
                let near = (f64::from(y) - want).abs() <= 1e-6 * want;
                assert!(near || out_of_range && (y == inf || y < 1.2e-38), "{a}^{b} = {y}, not {want}");
            }
        }
        let edges = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, inf, -inf, f32::NAN];
        for a in edges {
            let mut y = [0.0; 13];
            powers(isa, a, &edges, &mut y);
            for (b, y) in edges.into_iter().zip(y) {
                let want = a.powf(b);
                // The sign of a power of minus zero is not kept.
                let near = (y - want).abs() <= 1e-6 * want.abs() || y.abs() == want.abs() && a == 0.0;
                assert!(near || y == want || y.is_nan() && want.is_nan(), "{a}^{b} = {y}, not {want}");
            }
        }
    }
}

#[test]
fn infinities_zeros_and_nans_come_out_as_they_should() {
    let inf = f32::INFINITY;
    let at = |f: Function, isa, x| {
        let mut y = [0.0];
        f(isa, &[x], &mut y);
        y[0]
    };
    for isa in Isa::available() {
        let table: [(Function, f32, f32); 25] = [
            (all::exp, 0.0, 1.0),
            (all::exp, inf, inf),
            (all::exp, -inf, 0.0),
            (all::exp, 89.0, inf),
            (all::exp, -120.0, 0.0),
            (all::log, 0.0, -inf),
            (all::log, 1.0, 0.0),
            (all::log, inf, inf),
            (all::log, 1e-40, -92.103_4),
            (all::tanh, inf, 1.0),
            (all::tanh, -inf, -1.0),
            (all::tanh, 0.0, 0.0),
            (all::sigmoid, inf, 1.0),
            (all::sigmoid, -inf, 0.0),
            (all::sigmoid, 0.0, 0.5),
            (all::erf, inf, 1.0),
            (all::erf, -inf, -1.0),
            (all::erf, 0.0, 0.0),
            (all::softplus, inf, inf),
            (all::softplus, -inf, 0.0),
            (all::gelu, 20.0, 20.0),
            (all::gelu, -20.0, 0.0),
            (all::gelu_tanh, -20.0, 0.0),
            (all::sin, 0.0, 0.0),
            (all::cos, 0.0, 1.0),
        ];
        for (i, (f, x, want)) in table.into_iter().enumerate() {
            let y = at(f, isa, x);
            assert!(
                y == want || (y - want).abs() <= 1e-6 * want.abs(),
                "row {i} on {isa}: f({x}) = {y}, not {want}"
            );
            assert!(at(f, isa, f32::NAN).is_nan(), "row {i}");
        }
        assert!(at(all::log, isa, -1.0).is_nan() && at(all::sin, isa, inf).is_nan());
    }
}
