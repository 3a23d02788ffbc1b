//! Softmax, its logarithm, and the gradients of both: along the last axis row by row, along another column by column.
//!
//! All four have one form: perhaps the largest element of a line, then a sum of terms, then each element from that
//! sum. A row is read two or three times but comes from memory once.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad};

use super::Kernel;
use super::lanes::{
    LANES, Place, Stored, Wide, for_float, groups, larger, load, max, one_at_a_time, rows_per_task, store,
    sum,
};
use crate::Cpu;
use crate::simd::{Level, multiversion};

/// Elements a task: an exponential costs about a nanosecond, waking a thread some microseconds.
const TASK: usize = 8192;

/// What is done along a line. `a` and `b` are the elements of the two inputs (the same one where there is one).
trait Line {
    /// Whether the largest `a` is subtracted.
    const MAX: bool;
    /// Whether the term, times what the sum became, is the result.
    const SCALES_TERM: bool;
    /// What is summed.
    #[inline(always)]
    fn term<L: Level, A: Wide>(a: A, _b: A, max: A) -> A {
        (a - max).exp::<L>()
    }
    /// What every element needs of the sum.
    fn total<A: Wide>(sum: A) -> A;
    /// The result.
    fn result<L: Level, A: Wide>(a: A, b: A, max: A, total: A) -> A;
}

impl Line for Softmax {
    const MAX: bool = true;
    const SCALES_TERM: bool = true;
    #[inline(always)]
    fn total<A: Wide>(sum: A) -> A {
        A::ONE / sum
    }
    #[inline(always)]
    fn result<L: Level, A: Wide>(a: A, _: A, max: A, total: A) -> A {
        (a - max).exp::<L>() * total
    }
}

impl Line for LogSoftmax {
    const MAX: bool = true;
    const SCALES_TERM: bool = false;
    #[inline(always)]
    fn total<A: Wide>(sum: A) -> A {
        sum.ln()
    }
    #[inline(always)]
    fn result<L: Level, A: Wide>(a: A, _: A, max: A, total: A) -> A {
        (a - max) - total
    }
}

impl Line for SoftmaxGrad {
    const MAX: bool = false;
    const SCALES_TERM: bool = false;
    #[inline(always)]
    fn term<L: Level, A: Wide>(y: A, dy: A, _: A) -> A {
        y * dy
    }
    #[inline(always)]
    fn total<A: Wide>(sum: A) -> A {
        sum
    }
    #[inline(always)]
    fn result<L: Level, A: Wide>(y: A, dy: A, _: A, total: A) -> A {
        y * (dy - total)
    }
}

impl Line for LogSoftmaxGrad {
    const MAX: bool = false;
    const SCALES_TERM: bool = false;
    #[inline(always)]
    fn term<L: Level, A: Wide>(_: A, dy: A, _: A) -> A {
        dy
    }
    #[inline(always)]
    fn total<A: Wide>(sum: A) -> A {
        sum
    }
    #[inline(always)]
    fn result<L: Level, A: Wide>(y: A, dy: A, _: A, total: A) -> A {
        dy - y.exp::<L>() * total
    }
}

multiversion! {
    /// Rows of `n` elements that lie one after the other.
    fn rows<L; T: Stored, K: Line>(a: *const T, b: *const T, y: *mut T, n_rows: usize, n: usize) {
        let keep = K::SCALES_TERM && T::EXACT;
        for row in 0..n_rows {
            // SAFETY: the caller gives `n_rows` rows of `n` elements each; groups stay inside a row.
            unsafe {
                let (a, b, y) = (a.add(row * n), b.add(row * n), y.add(row * n));
                let mut top = T::Wide::ZERO;
                if K::MAX {
                    let mut tops = [T::Wide::LOWEST; LANES];
                    groups!(LANES, n, |i, len| {
                        let v = load::<T, LANES>(a.add(i), len, T::Wide::LOWEST);
                        for l in 0..LANES {
                            tops[l] = larger(v[l], tops[l]);
                        }
                    });
                    top = max(tops);
                }
                let mut sums = [T::Wide::ZERO; LANES];
                groups!(LANES, n, |i, len| {
                    // Lanes beyond the row add nothing: e^-∞ where there is a maximum, 0 · 0 elsewhere.
                    let fill = if K::MAX { T::Wide::LOWEST } else { T::Wide::ZERO };
                    let mut v = load::<T, LANES>(a.add(i), len, fill);
                    let w = load::<T, LANES>(b.add(i), len, fill);
                    for l in 0..LANES {
                        v[l] = K::term::<L, _>(v[l], w[l], top);
                        sums[l] += v[l];
                    }
                    if keep {
                        store(y.add(i), len, v);
                    }
                });
                let total = K::total(sum(sums));
                groups!(LANES, n, |i, len| {
                    let from = if keep { y.cast_const() } else { a };
                    let mut v = load::<T, LANES>(from.add(i), len, T::Wide::ZERO);
                    if keep {
                        for v in &mut v {
                            *v *= total;
                        }
                    } else {
                        let w = load::<T, LANES>(b.add(i), len, T::Wide::ZERO);
                        for l in 0..LANES {
                            v[l] = K::result::<L, _>(v[l], w[l], top, total);
                        }
                    }
                    store(y.add(i), len, v);
                });
            }
        }
    }

    /// `width ≤ LANES` neighbouring columns of `n` elements that lie `stride` apart.
    fn columns<L; T: Stored, K: Line>(a: *const T, b: *const T, y: *mut T, n: usize, stride: usize, width: usize) {
        let keep = K::SCALES_TERM && T::EXACT;
        let fill = T::Wide::ZERO;
        // SAFETY: the caller gives `n` rows `stride` apart with `width` elements each.
        unsafe {
            groups!(LANES, width, |c, len| {
                let (a, b, y) = (a.add(c), b.add(c), y.add(c));
                let mut tops = [fill; LANES];
                if K::MAX {
                    tops = [T::Wide::LOWEST; LANES];
                    for k in 0..n {
                        one_at_a_time();
                        let v = load::<T, LANES>(a.add(k * stride), len, fill);
                        for l in 0..LANES {
                            tops[l] = larger(v[l], tops[l]);
                        }
                    }
                }
                let mut totals = [fill; LANES];
                for k in 0..n {
                    one_at_a_time();
                    let mut v = load::<T, LANES>(a.add(k * stride), len, fill);
                    let w = load::<T, LANES>(b.add(k * stride), len, fill);
                    for l in 0..LANES {
                        v[l] = K::term::<L, _>(v[l], w[l], tops[l]);
                        totals[l] += v[l];
                    }
                    if keep {
                        store(y.add(k * stride), len, v);
                    }
                }
                for total in &mut totals {
                    *total = K::total(*total);
                }
                for k in 0..n {
                    one_at_a_time();
                    let from = if keep { y.cast_const() } else { a };
                    let mut v = load::<T, LANES>(from.add(k * stride), len, fill);
                    if keep {
                        for l in 0..LANES {
                            v[l] *= totals[l];
                        }
                    } else {
                        let w = load::<T, LANES>(b.add(k * stride), len, fill);
                        for l in 0..LANES {
                            v[l] = K::result::<L, _>(v[l], w[l], tops[l], totals[l]);
                        }
                    }
                    store(y.add(k * stride), len, v);
                }
            });
        }
    }
}

/// Splits a tensor into rows or columns along the axis and runs them all.
unsafe fn along<T: Stored, K: Line>(cpu: &Cpu, call: &Call<'_>, axis: usize) -> Result<(), Fault> {
    let shape = &call.outputs[0].ty.shape;
    let inner: usize = shape[axis + 1..].iter().product();
    let (outer, n) = (shape[..axis].iter().product::<usize>(), shape[axis]);
    if shape.elements() == 0 {
        return Ok(());
    }
    let a = Place::<T>::new(call.inputs[0].ptr);
    let b = Place::<T>::new(call.inputs[call.inputs.len() - 1].ptr);
    let y = Place::<T>::new(call.outputs[0].ptr);
    if inner == 1 {
        let step = rows_per_task(n, TASK);
        cpu.pool().run(outer.div_ceil(step), |task| {
            let (first, last) = (task * step, (task * step + step).min(outer));
            let i = first * n;
            rows::<T, K>(cpu.isa(), a.at(i), b.at(i), y.at(i), last - first, n);
        });
    } else {
        let blocks = inner.div_ceil(LANES);
        let step = rows_per_task(n * LANES.min(inner), TASK);
        cpu.pool().run((outer * blocks).div_ceil(step), |task| {
            for block in task * step..(task * step + step).min(outer * blocks) {
                let (o, c) = (block / blocks, block % blocks * LANES);
                let i = o * n * inner + c;
                columns::<T, K>(cpu.isa(), a.at(i), b.at(i), y.at(i), n, inner, (inner - c).min(LANES));
            }
        });
    }
    Ok(())
}

macro_rules! line_kernels {
    ($($op:ident),+) => { $(
        impl Kernel for $op {
            unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
                // SAFETY: the caller's promise, passed on.
                for_float!(call.outputs[0].ty.dtype, call.op, T => unsafe { along::<T, $op>(cpu, call, self.axis) })
            }
        }
    )+ };
}
line_kernels!(Softmax, SoftmaxGrad, LogSoftmax, LogSoftmaxGrad);
