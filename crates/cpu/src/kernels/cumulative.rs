//! Running sums and products: along neighbouring lines at once, in f64 or in integers that wrap around.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault};
use plimsoll_graph::ops::{CumProdGrad, Cumulative, CumulativeKind};
use plimsoll_graph::{DType, Type};

use super::Kernel;
use super::gather::around;
use super::lanes::{Place, Stored, for_float, rows_per_task};
use crate::Cpu;

/// Elements a task.
const TASK: usize = 16384;
/// Neighbouring lines that are run along at a time.
const WIDTH: usize = 32;

/// An element and the type in which its sums and products run.
trait Runs: Element {
    type Total: Copy;
    const ZERO: Self::Total;
    const ONE: Self::Total;
    fn up(self) -> Self::Total;
    fn down(total: Self::Total) -> Self;
    fn add(a: Self::Total, b: Self::Total) -> Self::Total;
    fn mul(a: Self::Total, b: Self::Total) -> Self::Total;
}

macro_rules! runs {
    ($($t:ty, $total:ty, $up:expr, $down:expr, $add:expr, $mul:expr;)+) => { $(
        impl Runs for $t {
            type Total = $total;
            const ZERO: $total = 0 as $total;
            const ONE: $total = 1 as $total;
            #[inline(always)]
            fn up(self) -> $total {
                $up(self)
            }
            #[inline(always)]
            fn down(total: $total) -> $t {
                $down(total)
            }
            #[inline(always)]
            fn add(a: $total, b: $total) -> $total {
                $add(a, b)
            }
            #[inline(always)]
            fn mul(a: $total, b: $total) -> $total {
                $mul(a, b)
            }
        }
    )+ };
}
// A running total of f32 in f32 would lose a bit with every doubling of its length.
runs! {
    f32, f64, f64::from, |x| x as f32, |a, b| a + b, |a, b| a * b;
    f64, f64, |x| x, |x| x, |a, b| a + b, |a, b| a * b;
    bf16, f64, |x| f64::from(Stored::widen(x)), |x| Stored::narrow(x as f32), |a, b| a + b, |a, b| a * b;
    f16, f64, |x| f64::from(Stored::widen(x)), |x| Stored::narrow(x as f32), |a, b| a + b, |a, b| a * b;
    i64, i64, |x| x, |x| x, i64::wrapping_add, i64::wrapping_mul;
    i32, i32, |x| x, |x| x, i32::wrapping_add, i32::wrapping_mul;
}

/// Calls `f` with the first place and the number of neighbouring lines of every group of them: `f(start, width)`.
fn line_groups(cpu: &Cpu, [outer, n, inner]: [usize; 3], f: impl Fn(usize, usize) + Sync) {
    let blocks = inner.div_ceil(WIDTH);
    let step = rows_per_task(n * WIDTH.min(inner), TASK);
    cpu.pool().run((outer * blocks).div_ceil(step), |task| {
        for block in task * step..(task * step + step).min(outer * blocks) {
            let c = block % blocks * WIDTH;
            f(block / blocks * n * inner + c, WIDTH.min(inner - c));
        }
    });
}

/// The k-th place of a line of `n` that is run along forwards or backwards.
#[inline(always)]
fn place(k: usize, n: usize, reverse: bool) -> usize {
    if reverse { n - 1 - k } else { k }
}

/// Runs along `width ≤ W` neighbouring lines of `n` elements that lie `stride` apart.
///
/// # Safety
/// As many elements must be there from `x` and `y` on; the two may be one.
#[inline(always)]
unsafe fn run_along<T: Runs, const SUM: bool, const W: usize>(
    op: &Cumulative,
    x: *const T,
    y: *mut T,
    [n, stride, width]: [usize; 3],
) {
    let mut totals = [if SUM { T::ZERO } else { T::ONE }; W];
    for k in 0..n {
        let at = place(k, n, op.reverse) * stride;
        for (l, total) in totals.iter_mut().enumerate().take(width) {
            // SAFETY: the caller's promise; the element is read before it is written.
            unsafe {
                let value = x.add(at + l).read().up();
                let joined = if SUM { T::add(*total, value) } else { T::mul(*total, value) };
                y.add(at + l).write(T::down(if op.exclusive { *total } else { joined }));
                *total = joined;
            }
        }
    }
}

unsafe fn cumulate<T: Runs, const SUM: bool>(
    op: &Cumulative,
    cpu: &Cpu,
    call: &Call<'_>,
) -> Result<(), Fault> {
    let (outer, n, inner) = around(&call.inputs[0].ty.shape, op.axis);
    let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
    line_groups(cpu, [outer, n, inner], |first, width| {
        let (x, y, sizes) = (x.at(first).cast_const(), y.at(first), [n, inner, width]);
        // SAFETY: the group lies inside both operands, and no other task writes to its lines.
        unsafe {
            if width == 1 {
                run_along::<T, SUM, 1>(op, x, y, sizes);
            } else {
                run_along::<T, SUM, WIDTH>(op, x, y, sizes);
            }
        }
    });
    Ok(())
}

impl Kernel for Cumulative {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise, passed on; each type is the operand's.
        unsafe {
            match (call.inputs[0].ty.dtype, self.kind) {
                (DType::I64, CumulativeKind::Sum) => cumulate::<i64, true>(self, cpu, call),
                (DType::I64, CumulativeKind::Prod) => cumulate::<i64, false>(self, cpu, call),
                (DType::I32, CumulativeKind::Sum) => cumulate::<i32, true>(self, cpu, call),
                (DType::I32, CumulativeKind::Prod) => cumulate::<i32, false>(self, cpu, call),
                (float, CumulativeKind::Sum) => {
                    for_float!(float, call.op, T => cumulate::<T, true>(self, cpu, call))
                }
                (float, CumulativeKind::Prod) => {
                    for_float!(float, call.op, T => cumulate::<T, false>(self, cpu, call))
                }
            }
        }
    }
}

/// What is before each place of a line is kept in f64, one line a thread: the output's own type might not hold it.
impl Kernel for CumProdGrad {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        inputs[0].shape[self.axis] * size_of::<f64>() * cpu.threads()
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (outer, n, inner) = around(&call.inputs[0].ty.shape, self.axis);
        let CumProdGrad { exclusive, reverse, .. } = *self;
        let before = Place::<f64>::new(call.scratch);
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            let (x, dy) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.inputs[1].ptr));
            let dx = Place::<T>::new(call.outputs[0].ptr);
            let step = rows_per_task(n, TASK);
            cpu.pool().run_with_slot((outer * inner).div_ceil(step), |slot, task| {
                for line in task * step..(task * step + step).min(outer * inner) {
                    let at = |k: usize| line / inner * n * inner + line % inner + place(k, n, reverse) * inner;
                    // SAFETY: places are of one line, which is one task's; the slot's part of the scratch holds a line.
                    unsafe {
                        let mut product = 1.0;
                        for k in 0..n {
                            before.at(slot * n + k).write(product);
                            product *= Runs::up(x.at(at(k)).read());
                        }
                        // Σ dy[k] · the product of what is between a place and k, from the last place to the first.
                        let mut sum = 0.0;
                        for k in (0..n).rev() {
                            let own = Runs::up(dy.at(at(k)).read());
                            let value = Runs::up(x.at(at(k)).read());
                            let total = if exclusive { sum } else { own + sum };
                            dx.at(at(k)).write(<T as Runs>::down(before.at(slot * n + k).read() * total));
                            sum = if exclusive { own + value * sum } else { value * total };
                        }
                    }
                }
            });
            Ok(())
        })
    }
}
