//! Scatter-add and put-along-add: sums by index, split by where they go.
//!
//! Each destination is summed by one task, in the order of the indices; 16-bit elements are summed in f32.

use std::ops::AddAssign;

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault};
use plimsoll_graph::ops::{PutAlongAdd, ScatterAdd, ScatterAddTo};
use plimsoll_graph::{DType, Type};

use super::{Indices, TASK, around};
use crate::Cpu;
use crate::kernels::Kernel;
use crate::kernels::lanes::{Place, Stored, by_dtype, for_float, groups, rows_per_task, sums_bytes};

/// Columns that are summed at a time.
const WIDTH: usize = 64;

/// An element type that can be summed, and the type in which it is.
trait Summand: Element {
    type Sum: Element + AddAssign + Default;
    /// Whether both are one type.
    const EXACT: bool;
    fn up(self) -> Self::Sum;
    fn down(sum: Self::Sum) -> Self;
}

macro_rules! summands {
    ($($t:ty, $sum:ty, $exact:literal, $up:expr, $down:expr;)+) => { $(
        impl Summand for $t {
            type Sum = $sum;
            const EXACT: bool = $exact;
            #[inline(always)]
            fn up(self) -> $sum {
                $up(self)
            }
            #[inline(always)]
            fn down(sum: $sum) -> $t {
                $down(sum)
            }
        }
    )+ };
}
summands! {
    f32, f32, true, |x| x, |x| x;
    f64, f64, true, |x| x, |x| x;
    bf16, f32, false, Stored::widen, Stored::narrow;
    f16, f32, false, Stored::widen, Stored::narrow;
    i64, Wrapped<i64>, true, Wrapped, |x: Wrapped<i64>| x.0;
    i32, Wrapped<i32>, true, Wrapped, |x: Wrapped<i32>| x.0;
}

/// An integer whose sum wraps around, as the elementwise kernels' does.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
struct Wrapped<T>(T);

impl AddAssign for Wrapped<i64> {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

impl AddAssign for Wrapped<i32> {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

// SAFETY: transparent over an element of that type.
unsafe impl Element for Wrapped<i64> {
    const DTYPE: DType = DType::I64;
}
// SAFETY: as above.
unsafe impl Element for Wrapped<i32> {
    const DTYPE: DType = DType::I32;
}

/// Runs a body with `$t` naming the Rust type of elements that can be summed.
macro_rules! for_summand {
    ($call:expr, $t:ident => $body:expr) => {
        by_dtype!(
            $call.inputs[0].ty.dtype, $t in I64 = i64, I32 = i32 => $body,
            float => for_float!(float, $call.op, $t => $body)
        )
    };
}

/// Sorts positions by index, keeping the order of equals: those of index k are `order[starts[k]..starts[k + 1]]`.
///
/// # Safety
/// `starts` has room for `length + 1` numbers, `order` for `n`; indices are below `length`.
unsafe fn sort(indices: Indices, n: usize, length: usize, starts: *mut usize, order: *mut usize) {
    // SAFETY: the caller's promise; every write is at an index (plus one) or at a position below n.
    unsafe {
        starts.write_bytes(0, length + 1);
        for i in 0..n {
            *starts.add(indices.at(i) + 1) += 1;
        }
        for k in 0..length {
            *starts.add(k + 1) += starts.add(k).read();
        }
        for i in 0..n {
            let next = starts.add(indices.at(i));
            order.add(next.read()).write(i);
            *next += 1;
        }
        // Each start has moved to the next one's; move them back.
        for k in (1..=length).rev() {
            starts.add(k).write(starts.add(k - 1).read());
        }
        starts.write(0);
    }
}

impl Kernel for ScatterAdd {
    fn scratch(&self, _: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        (self.length + 1 + inputs[1].elements()) * size_of::<usize>()
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { add(self, cpu, call, None) }
    }
}

impl Kernel for ScatterAddTo {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], outputs: &[&Type]) -> usize {
        self.sums.scratch(cpu, &inputs[..2], outputs)
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { add(&self.sums, cpu, call, Some(call.inputs[2].ptr)) }
    }
}

/// Adds by index, alone or to what is `there`, which may be the output itself.
///
/// # Safety
/// As of [`Kernel::run`]; what is there has the output's type.
unsafe fn add(op: &ScatterAdd, cpu: &Cpu, call: &Call<'_>, there: Option<*mut u8>) -> Result<(), Fault> {
    // SAFETY: the indices are live.
    let indices = unsafe { Indices::checked(call, 1, op.length, "index") }?;
    let (outer, length, inner) = around(&call.outputs[0].ty.shape, op.axis);
    let n = call.inputs[1].ty.elements();
    let starts = Place::<usize>::new(call.scratch);
    let order = Place::<usize>::new(starts.at(length + 1).cast());
    // SAFETY: the scratch was declared for just this, and the indices are checked.
    unsafe { sort(indices, n, length, starts.at(0), order.at(0)) };
    for_summand!(call, T => {
        let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
        let there = there.map(Place::<T>::new);
        let is_in_place = there.is_some_and(|there| there.at(0) == y.at(0));
        let step = rows_per_task(inner, TASK);
        cpu.pool().run((outer * length).div_ceil(step), |task| {
            for row in task * step..(task * step + step).min(outer * length) {
                let (o, k) = (row / length, row % length);
                // SAFETY: row < outer · length, order holds positions below n; tasks write disjoint rows.
                unsafe {
                    let (first, last) = (starts.at(k).read(), starts.at(k + 1).read());
                    // What no index names stays as it is.
                    if let (Some(there), true) = (there, first == last) {
                        if !is_in_place {
                            y.at(row * inner).copy_from_nonoverlapping(there.at(row * inner), inner);
                        }
                        continue;
                    }
                    groups!(WIDTH, inner, |c, width| {
                        let mut sums = [<T as Summand>::Sum::default(); WIDTH];
                        for j in first..last {
                            let from = x.at((o * n + order.at(j).read()) * inner + c);
                            for (l, sum) in sums.iter_mut().enumerate().take(width) {
                                *sum += Summand::up(from.add(l).read());
                            }
                        }
                        for (l, &sum) in sums.iter().enumerate().take(width) {
                            let (i, sum) = (row * inner + c + l, <T as Summand>::down(sum));
                            let made = there.map_or(sum, |there| {
                                let mut both = Summand::up(there.at(i).read());
                                both += Summand::up(sum);
                                <T as Summand>::down(both)
                            });
                            y.at(i).write(made);
                        }
                    });
                }
            }
        });
        Ok(())
    })
}

impl Kernel for PutAlongAdd {
    fn scratch(&self, _: &Cpu, inputs: &[&Type], outputs: &[&Type]) -> usize {
        sums_bytes(inputs[0].dtype, outputs[0].elements())
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the indices are live.
        let indices = unsafe { Indices::checked(call, 1, self.length, "index") }?;
        let (outer, n, inner) = around(&call.inputs[0].ty.shape, self.axis);
        let length = self.length;
        for_summand!(call, T => {
            type S = <T as Summand>::Sum;
            let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
            let exact = <T as Summand>::EXACT;
            let sums = Place::<S>::new(if exact { call.outputs[0].ptr } else { call.scratch });
            // A task has some columns: an outer index and a range of inner ones.
            let blocks = inner.div_ceil(WIDTH);
            let step = rows_per_task((n + length) * WIDTH.min(inner), TASK);
            cpu.pool().run((outer * blocks).div_ceil(step), |task| {
                for block in task * step..(task * step + step).min(outer * blocks) {
                    let (o, c) = (block / blocks, block % blocks * WIDTH);
                    let width = WIDTH.min(inner - c);
                    // SAFETY: o < outer, c + width ≤ inner, indices are below the length; columns are one task's.
                    unsafe {
                        for k in 0..length {
                            sums.at((o * length + k) * inner + c).write_bytes(0, width);
                        }
                        for k in 0..n {
                            for column in c..c + width {
                                let i = (o * n + k) * inner + column;
                                *sums.at((o * length + indices.at(i)) * inner + column) +=
                                    Summand::up(x.at(i).read());
                            }
                        }
                        for k in 0..length {
                            let from = (o * length + k) * inner + c;
                            for i in from..if exact { from } else { from + width } {
                                y.at(i).write(<T as Summand>::down(sums.at(i).read()));
                            }
                        }
                    }
                }
            });
            Ok(())
        })
    }
}
