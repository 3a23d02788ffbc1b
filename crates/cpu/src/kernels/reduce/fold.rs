//! Folds many elements into one: what a kind of reduction does in registers, and how rounding is kept small.
//!
//! Elements are folded in lanes of the element's computing type over short stretches, and the stretches in a wider
//! type: a sum of a million floats is as good as one in f64. The order depends on the lengths alone.

use half::{bf16, f16};
use plimsoll_device::backend::Element;

use crate::isa::Isa;
use crate::simd::{Float32, multiversion};

/// Partial results side by side, which is what the compiler vectorises.
const LANES: usize = 32;
/// Elements a lane folds before it is folded into the wider type.
const STRETCH: usize = 32;
/// The widest stretch of columns that is folded at once.
pub(super) const COLUMNS: usize = 512;

/// A type that can be folded in.
pub(super) trait Number: Copy + Send + Sync + 'static {
    const ZERO: Self;
    const ONE: Self;
    const LOWEST: Self;
    const HIGHEST: Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
}

macro_rules! numbers {
    ($($ty:ty [$zero:literal, $one:literal, $lowest:expr, $highest:expr]
        |$a:ident, $b:ident| $( $method:ident = $value:expr ),+;)+) => { $(
        impl Number for $ty {
            const ZERO: $ty = $zero;
            const ONE: $ty = $one;
            const LOWEST: $ty = $lowest;
            const HIGHEST: $ty = $highest;
            $( #[inline(always)]
            fn $method(self, $b: $ty) -> $ty {
                let $a = self;
                $value
            } )+
        }
    )+ };
}
// Of floats, a NaN on either side stays one.
numbers! {
    f32 [0.0, 1.0, f32::NEG_INFINITY, f32::INFINITY] |a, b| add = a + b, mul = a * b,
        larger = if a > b || a.is_nan() { a } else { b }, smaller = if a < b || a.is_nan() { a } else { b };
    f64 [0.0, 1.0, f64::NEG_INFINITY, f64::INFINITY] |a, b| add = a + b, mul = a * b,
        larger = if a > b || a.is_nan() { a } else { b }, smaller = if a < b || a.is_nan() { a } else { b };
    i64 [0, 1, i64::MIN, i64::MAX] |a, b| add = a.wrapping_add(b), mul = a.wrapping_mul(b),
        larger = a.max(b), smaller = a.min(b);
}

/// An element that can be reduced: the type of its lanes, and the wider type of its totals.
pub(super) trait Reducible: Element {
    type Lane: Number;
    type Total: Number;
    fn lane(self) -> Self::Lane;
    fn widen(lane: Self::Lane) -> Self::Total;
    /// The result: the total, over `n` elements where a mean is asked for.
    fn finish(total: Self::Total, mean_of: Option<usize>) -> Self;
    /// Folds a dense run of elements.
    fn fold_run<K: Kind>(isa: Isa, x: &[Self]) -> Self::Total;
    /// Folds rows into columns: `width` columns (at most [`COLUMNS`]) of `rows` rows that are `stride` apart.
    fn fold_rows<K: Kind>(
        isa: Isa,
        x: &[Self],
        width: usize,
        rows: usize,
        stride: usize,
        to: &mut [Self::Total],
    );
}

macro_rules! reducible {
    ($($how:ident $ty:ty: $lane:ty, $total:ty, |$x:ident| $to_lane:expr, |$t:ident, $n:ident| $finish:expr;)+) => { $(
        impl Reducible for $ty {
            type Lane = $lane;
            type Total = $total;
            #[inline(always)]
            fn lane(self) -> $lane {
                let $x = self;
                $to_lane
            }
            #[inline(always)]
            fn widen(lane: $lane) -> $total {
                lane as $total
            }
            #[inline(always)]
            fn finish($t: $total, $n: Option<usize>) -> $ty {
                $finish
            }
            fn fold_run<K: Kind>(isa: Isa, x: &[$ty]) -> $total {
                $how::run::<K, $ty>(isa, x)
            }
            fn fold_rows<K: Kind>(isa: Isa, x: &[$ty], width: usize, rows: usize, stride: usize, to: &mut [$total]) {
                $how::rows::<K, $ty>(isa, x, width, rows, stride, to);
            }
        }
    )+ };
}

fn mean(total: f64, n: Option<usize>) -> f64 {
    n.map_or(total, |n| total / n as f64)
}

reducible! {
    vector f32: f32, f64, |x| x, |t, n| mean(t, n) as f32;
    vector bf16: f32, f64, |x| Float32::widen(x), |t, n| Float32::narrow(mean(t, n) as f32);
    vector f16: f32, f64, |x| Float32::widen(x), |t, n| Float32::narrow(mean(t, n) as f32);
    plain f64: f64, f64, |x| x, |t, n| mean(t, n);
    plain i64: i64, i64, |x| x, |t, _n| t;
    plain i32: i64, i64, |x| i64::from(x), |t, _n| t as i32;
    plain i16: i64, i64, |x| i64::from(x), |t, _n| t as i16;
    plain i8: i64, i64, |x| i64::from(x), |t, _n| t as i8;
    plain u32: i64, i64, |x| i64::from(x), |t, _n| t as u32;
    plain u16: i64, i64, |x| i64::from(x), |t, _n| t as u16;
    plain u8: i64, i64, |x| i64::from(x), |t, _n| t as u8;
}

/// A kind of reduction.
pub(super) trait Kind: 'static {
    fn start<N: Number>() -> N;
    fn join<N: Number>(a: N, b: N) -> N;
}

macro_rules! kind {
    ($($name:ident, $start:ident, $join:ident;)+) => { $(
        pub(super) struct $name;
        impl Kind for $name {
            #[inline(always)]
            fn start<N: Number>() -> N {
                N::$start
            }
            #[inline(always)]
            fn join<N: Number>(a: N, b: N) -> N {
                a.$join(b)
            }
        }
    )+ };
}
kind! {
    Sum, ZERO, add;
    Prod, ONE, mul;
    Max, LOWEST, larger;
    Min, HIGHEST, smaller;
}

/// Folds a dense run of elements.
#[inline(always)]
fn run_body<K: Kind, T: Reducible>(x: &[T]) -> T::Total {
    let mut total: T::Total = K::start();
    let mut stretches = x.chunks_exact(LANES * STRETCH);
    for stretch in &mut stretches {
        let mut lanes = [K::start::<T::Lane>(); LANES];
        for block in stretch.chunks_exact(LANES) {
            for j in 0..LANES {
                lanes[j] = K::join(lanes[j], block[j].lane());
            }
        }
        total = K::join(total, gather::<K, T>(lanes));
    }
    let mut lanes = [K::start::<T::Lane>(); LANES];
    let mut blocks = stretches.remainder().chunks_exact(LANES);
    for block in &mut blocks {
        for j in 0..LANES {
            lanes[j] = K::join(lanes[j], block[j].lane());
        }
    }
    for (j, &x) in blocks.remainder().iter().enumerate() {
        lanes[j] = K::join(lanes[j], x.lane());
    }
    K::join(total, gather::<K, T>(lanes))
}

/// Folds rows into columns: `width` columns (at most [`COLUMNS`]) of `rows` rows that are `stride` apart.
/// Where the rows are dense and short, several are folded as one and taken apart at the end.
#[inline(always)]
fn rows_body<K: Kind, T: Reducible>(x: &[T], width: usize, rows: usize, stride: usize, to: &mut [T::Total]) {
    let together = if stride == width { (COLUMNS / width).min(rows).max(1) } else { 1 };
    let wide = together * width;
    let mut totals = [K::start::<T::Total>(); COLUMNS];
    let mut row = 0;
    while row + together <= rows {
        let mut lanes = [K::start::<T::Lane>(); COLUMNS];
        let mut depth = 0;
        while row + together <= rows && depth < STRETCH {
            let line = &x[row * stride..row * stride + wide];
            let lanes = &mut lanes[..wide];
            for j in 0..wide {
                lanes[j] = K::join(lanes[j], line[j].lane());
            }
            (row, depth) = (row + together, depth + 1);
        }
        for j in 0..wide {
            totals[j] = K::join(totals[j], T::widen(lanes[j]));
        }
    }
    for row in row..rows {
        for j in 0..width {
            totals[j] = K::join(totals[j], T::widen(x[row * stride + j].lane()));
        }
    }
    for j in 0..width {
        let column = (0..together).map(|i| totals[i * width + j]);
        to[j] = column.fold(K::start(), K::join);
    }
}

/// The folds of types that training uses, compiled for every instruction set.
mod vector {
    use super::*;

    multiversion! {
        pub(super) fn run<L; K: Kind, T: Reducible>(x: &[T]) -> T::Total {
            run_body::<K, T>(x)
        }

        pub(super) fn rows<L; K: Kind, T: Reducible>(
            x: &[T], width: usize, rows: usize, stride: usize, to: &mut [T::Total],
        ) {
            rows_body::<K, T>(x, width, rows, stride, to);
        }
    }
}

/// The folds of types that checks use, compiled once.
mod plain {
    use super::*;

    pub(super) fn run<K: Kind, T: Reducible>(_: Isa, x: &[T]) -> T::Total {
        run_body::<K, T>(x)
    }

    pub(super) fn rows<K: Kind, T: Reducible>(
        _: Isa,
        x: &[T],
        width: usize,
        rows: usize,
        stride: usize,
        to: &mut [T::Total],
    ) {
        rows_body::<K, T>(x, width, rows, stride, to);
    }
}

/// The lanes as one total, in halves.
#[inline(always)]
fn gather<K: Kind, T: Reducible>(lanes: [T::Lane; LANES]) -> T::Total {
    let mut totals = lanes.map(T::widen);
    let mut n = LANES / 2;
    while n > 0 {
        for j in 0..n {
            totals[j] = K::join(totals[j], totals[j + n]);
        }
        n /= 2;
    }
    totals[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_floats_add_up_as_in_f64() {
        let x: Vec<f32> = (0..1_000_003).map(|i| 0.1 + (i % 7) as f32 * 1e-3).collect();
        let want: f64 = x.iter().map(|&x| f64::from(x)).sum();
        for isa in Isa::available() {
            let got = f32::fold_run::<Sum>(isa, &x);
            assert!((got - want).abs() < 1e-6 * want, "{got} {want}");
            let mut columns = [0.0; 3];
            f32::fold_rows::<Sum>(isa, &x[..999_999], 3, 333_333, 3, &mut columns);
            let want: f64 = x[..999_999].iter().map(|&x| f64::from(x)).sum();
            assert!((columns.iter().sum::<f64>() - want).abs() < 1e-6 * want);
        }
    }

    #[test]
    fn a_nan_is_the_largest_and_the_smallest() {
        let mut x = [1.0f32; 100];
        x[70] = f32::NAN;
        assert!(f32::fold_run::<Max>(Isa::detect(), &x).is_nan());
        assert!(f32::fold_run::<Min>(Isa::detect(), &x).is_nan());
    }
}
