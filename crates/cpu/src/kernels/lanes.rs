//! Turns stored elements into fixed-width groups of accumulators and back.
//!
//! A group is an array that the compiler keeps in vector registers. All of a group is loaded before any of it is
//! stored, so a loop over groups runs at full speed where the output lies over the input; and the width is part of
//! the code, not of the machine, so sums are added in one order on every instruction set.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use half::{bf16, f16};
use plimsoll_device::backend::Element;
use plimsoll_graph::DType;

use super::small_matmul::SmallMatmul;
use crate::math;
use crate::simd::{Float32, Level};

/// The width of a group along a row.
pub(crate) const LANES: usize = 32;

/// A type that kernels compute in: f32, or f64 for f64 data.
pub(crate) trait Wide:
    Stored<Wide = Self>
    + SmallMatmul
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// ∞
    const INFINITY: Self;
    /// -∞
    const LOWEST: Self;
    /// The nearest value.
    fn of(x: f64) -> Self;
    /// self · b + c, rounded once where the instruction set can.
    fn fma<L: Level>(self, b: Self, c: Self) -> Self;
    /// e^self
    fn exp<L: Level>(self) -> Self;
    /// ln self, as exactly as the machine's library has it.
    fn ln(self) -> Self;
    /// ln self, in vectors.
    fn log<L: Level>(self) -> Self;
    /// tanh self
    fn tanh<L: Level>(self) -> Self;
    /// √self
    fn sqrt(self) -> Self;
    /// 1 / (1 + e^-self)
    #[inline(always)]
    fn sigmoid<L: Level>(self) -> Self {
        Self::ONE / (Self::ONE + (-self).exp::<L>())
    }
}

macro_rules! wide {
    ($t:ident: of $of:expr, fma $fma:expr, $( $function:ident $value:expr ),+) => {
        impl Wide for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const INFINITY: $t = $t::INFINITY;
            const LOWEST: $t = $t::NEG_INFINITY;
            #[inline(always)]
            fn of(x: f64) -> $t {
                $of(x)
            }
            #[inline(always)]
            fn fma<L: Level>(self, b: $t, c: $t) -> $t {
                $fma(self, b, c)
            }
            $( #[inline(always)]
            fn $function<L: Level>(self) -> $t {
                $value(self)
            } )+
            #[inline(always)]
            fn ln(self) -> $t {
                $t::ln(self)
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                $t::sqrt(self)
            }
        }
    };
}
wide!(f32: of |x| x as f32, fma L::fma, exp math::exp::<L>, log math::log::<L>, tanh math::tanh::<L>);
wide!(f64: of |x| x, fma L::fma64, exp f64::exp, log f64::ln, tanh f64::tanh);

/// A float type as it lies in memory.
pub(crate) trait Stored: Element {
    /// The type its values are computed in.
    type Wide: Wide;
    /// Whether that is the type itself.
    const EXACT: bool;
    /// The value.
    fn widen(self) -> Self::Wide;
    /// The nearest value, ties to even.
    fn narrow(x: Self::Wide) -> Self;
}

impl Stored for f64 {
    type Wide = f64;
    const EXACT: bool = true;
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
    #[inline(always)]
    fn narrow(x: f64) -> f64 {
        x
    }
}

macro_rules! stored_as_f32 {
    ($($t:ty, $exact:literal;)+) => { $(
        impl Stored for $t {
            type Wide = f32;
            const EXACT: bool = $exact;
            #[inline(always)]
            fn widen(self) -> f32 {
                Float32::widen(self)
            }
            #[inline(always)]
            fn narrow(x: f32) -> $t {
                Float32::narrow(x)
            }
        }
    )+ };
}
stored_as_f32! { f32, true; bf16, false; f16, false; }

/// Runs a body with `$t` naming the Rust type of an element type, of those that are listed.
macro_rules! by_dtype {
    ($dtype:expr, $t:ident in $( $name:ident = $held:ty ),+ => $body:expr, $other:ident => $else:expr) => {
        match $dtype {
            $( plimsoll_graph::DType::$name => {
                type $t = $held;
                $body
            } )+
            $other => $else,
        }
    };
}
pub(crate) use by_dtype;

/// Runs a body with `$t` naming the Rust type of a float element type; the body gives a `Result<_, Fault>`.
macro_rules! for_float {
    ($dtype:expr, $op:expr, $t:ident => $body:expr) => {
        $crate::kernels::lanes::by_dtype!(
            $dtype, $t in F32 = f32, F64 = f64, BF16 = half::bf16, F16 = half::f16 => $body,
            other => Err(plimsoll_device::backend::Fault::new($op.name(), format!("there is no kernel for {other} elements; cast them first")))
        )
    };
}
pub(crate) use for_float;

/// Runs a body for each group of `$n` elements: `$i` is where it starts, `$len` its length, a constant but in the last.
///
/// A macro, not a function of a closure: a closure that is not inlined would lose the instruction set.
macro_rules! groups {
    ($w:expr, $n:expr, |$i:ident, $len:ident| $body:block) => {{
        let n: usize = $n;
        let mut $i = 0;
        while $i + $w <= n {
            let $len = $w;
            $crate::kernels::lanes::one_at_a_time();
            $body
            $i += $w;
        }
        if $i < n {
            let $len = n - $i;
            $body
        }
    }};
}
pub(crate) use groups;

/// Stands in a loop over groups and keeps it a loop over groups.
///
/// A group is unrolled into scalar steps before it becomes vectors again. In between, the compiler may prefer to
/// vectorise the loop itself, eight groups at a time with gathers and scatters: seen to make softmax's gradient ten
/// times slower. An empty instruction that it must execute in order rules that out and costs nothing.
#[inline(always)]
pub(crate) fn one_at_a_time() {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("", options(nomem, nostack, preserves_flags));
    }
}

/// The values of a group; lanes beyond `len` hold `fill`.
///
/// # Safety
/// `len ≤ W` elements must be readable at `at`.
#[inline(always)]
pub(crate) unsafe fn load<T: Stored, const W: usize>(
    at: *const T,
    len: usize,
    fill: T::Wide,
) -> [T::Wide; W] {
    let mut v = [fill; W];
    if len == W {
        for (l, v) in v.iter_mut().enumerate() {
            // SAFETY: l < W = len.
            *v = unsafe { at.add(l).read() }.widen();
        }
    } else {
        for (l, v) in v.iter_mut().enumerate().take(len) {
            // SAFETY: l < len.
            *v = unsafe { at.add(l).read() }.widen();
        }
    }
    v
}

/// Writes the first `len` values of a group.
///
/// # Safety
/// `len ≤ W` elements must be writable at `at`.
#[inline(always)]
pub(crate) unsafe fn store<T: Stored, const W: usize>(at: *mut T, len: usize, v: [T::Wide; W]) {
    if len == W {
        for (l, &v) in v.iter().enumerate() {
            // SAFETY: l < W = len.
            unsafe { at.add(l).write(T::narrow(v)) };
        }
    } else {
        for (l, &v) in v.iter().enumerate().take(len) {
            // SAFETY: l < len.
            unsafe { at.add(l).write(T::narrow(v)) };
        }
    }
}

/// The sum of a group, halves on halves.
#[inline(always)]
pub(crate) fn sum<A: Wide, const W: usize>(mut v: [A; W]) -> A {
    let mut half = W / 2;
    while half > 0 {
        for l in 0..half {
            v[l] += v[l + half];
        }
        half /= 2;
    }
    v[0]
}

/// The largest of a group.
#[inline(always)]
pub(crate) fn max<A: Wide, const W: usize>(mut v: [A; W]) -> A {
    let mut half = W / 2;
    while half > 0 {
        for l in 0..half {
            v[l] = larger(v[l], v[l + half]);
        }
        half /= 2;
    }
    v[0]
}

/// The larger of two; a NaN on the left loses.
#[inline(always)]
pub(crate) fn larger<A: Wide>(a: A, b: A) -> A {
    if a > b { a } else { b }
}

/// An address that tasks share; they write disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct Place<T>(*mut T);

// SAFETY: it is an address; every use is an unsafe block that says why no two tasks meet.
unsafe impl<T> Send for Place<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Place<T> {}

impl<T> Place<T> {
    /// An address as elements of `T`.
    pub(crate) fn new(at: *mut u8) -> Place<T> {
        Place(at.cast())
    }

    /// The address of element `i`.
    #[inline(always)]
    pub(crate) fn at(self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// Bytes of so many sums beside elements that are no sums themselves.
pub(crate) fn sums_bytes(dtype: DType, sums: usize) -> usize {
    let sum = dtype.accumulator();
    if sum == dtype { 0 } else { sums * sum.bytes() }
}

/// Rows a task, so that it has about `target` elements: a matter of shape alone.
pub(crate) fn rows_per_task(row: usize, target: usize) -> usize {
    (target / row.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_group_reads_and_writes_no_more_than_its_length() {
        let mut x = [1.0f32, 2.0, 3.0, 9.0];
        // SAFETY: three of four elements.
        let v: [f32; 8] = unsafe { load(x.as_ptr(), 3, -1.0) };
        assert_eq!(v, [1.0, 2.0, 3.0, -1.0, -1.0, -1.0, -1.0, -1.0]);
        // SAFETY: as above.
        unsafe { store(x.as_mut_ptr(), 3, [5.0; 8]) };
        assert_eq!(x, [5.0, 5.0, 5.0, 9.0]);
    }

    #[test]
    fn groups_cover_every_element_once() {
        for n in 0..20 {
            let mut seen = Vec::new();
            groups!(8, n, |i, len| { seen.extend(i..i + len) });
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }
}
