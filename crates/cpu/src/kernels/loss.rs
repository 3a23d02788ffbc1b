//! Cross-entropy of logits and its gradient: a row of classes is read twice and comes from memory once.

use plimsoll_device::backend::{Call, Fault, Operand};
use plimsoll_graph::ops::{CrossEntropy, CrossEntropyGrad, DenseCrossEntropy, DenseCrossEntropyGrad};

use super::Kernel;
use super::gather::Indices;
use super::lanes::{
    LANES, Place, Stored, Wide, for_float, groups, larger, load, max, rows_per_task, store, sum,
};
use crate::Cpu;
use crate::simd::{Level, multiversion};

/// Elements a task, as for softmax.
const TASK: usize = 8192;

/// The largest of a row and Σ exp(x - largest).
///
/// # Safety
/// `n` elements must be readable at `x`.
#[inline(always)]
unsafe fn top_and_sum<L: Level, T: Stored>(x: *const T, n: usize) -> (T::Wide, T::Wide) {
    let mut tops = [T::Wide::LOWEST; LANES];
    let mut sums = [T::Wide::ZERO; LANES];
    // SAFETY: groups stay inside the row.
    unsafe {
        groups!(LANES, n, |i, len| {
            let v = load::<T, LANES>(x.add(i), len, T::Wide::LOWEST);
            for l in 0..LANES {
                tops[l] = larger(v[l], tops[l]);
            }
        });
        let top = max(tops);
        groups!(LANES, n, |i, len| {
            let v = load::<T, LANES>(x.add(i), len, T::Wide::LOWEST);
            for l in 0..LANES {
                sums[l] += (v[l] - top).exp::<L>();
            }
        });
        (top, sum(sums))
    }
}

multiversion! {
    /// loss and log-sum-exp of each row of `n` logits, with labels that were checked.
    fn forward<L; T: Stored>(
        x: *const T, labels: Indices, first: usize, loss: *mut T::Wide, lse: *mut T::Wide, rows: usize, n: usize,
    ) {
        for r in 0..rows {
            // SAFETY: the caller gives `rows` rows of `n` logits and as many labels (from `first` on) below n.
            unsafe {
                let x = x.add(r * n);
                let (top, total) = top_and_sum::<L, T>(x, n);
                let log = total.ln();
                lse.add(r).write(top + log);
                // The difference to the largest is exact where the label is the likeliest.
                loss.add(r).write(log + (top - x.add(labels.at(first + r)).read().widen()));
            }
        }
    }

    /// dx = dloss (exp(x - lse) - [label]) for each row; dx may lie over x.
    fn backward<L; T: Stored>(
        x: *const T, labels: Indices, first: usize, lse: *const T::Wide, dloss: *const T::Wide, dx: *mut T,
        rows: usize, n: usize,
    ) {
        for r in 0..rows {
            // SAFETY: as above; the label's element is read before the row is written.
            unsafe {
                let (x, dx) = (x.add(r * n), dx.add(r * n));
                let (lse, dloss) = (lse.add(r).read(), dloss.add(r).read());
                let label = labels.at(first + r);
                let at_label = ((x.add(label).read().widen() - lse).exp::<L>() - T::Wide::ONE) * dloss;
                groups!(LANES, n, |i, len| {
                    let mut v = load::<T, LANES>(x.add(i), len, T::Wide::ZERO);
                    for v in &mut v {
                        *v = (*v - lse).exp::<L>() * dloss;
                    }
                    store(dx.add(i), len, v);
                });
                dx.add(label).write(T::narrow(at_label));
            }
        }
    }

    /// Loss and log-sum-exp of each row of `n` logits against a row of targets.
    fn dense_forward<L; T: Stored>(
        x: *const T, t: *const T, loss: *mut T::Wide, lse: *mut T::Wide, rows: usize, n: usize,
    ) {
        for r in 0..rows {
            // SAFETY: the caller gives `rows` rows of `n` logits and of `n` targets.
            unsafe {
                let (x, t) = (x.add(r * n), t.add(r * n));
                let (top, total) = top_and_sum::<L, T>(x, n);
                let log = total.ln();
                let mut sums = [T::Wide::ZERO; LANES];
                groups!(LANES, n, |i, len| {
                    let v = load::<T, LANES>(x.add(i), len, T::Wide::ZERO);
                    let w = load::<T, LANES>(t.add(i), len, T::Wide::ZERO);
                    for l in 0..LANES {
                        sums[l] = w[l].fma::<L>(log + (top - v[l]), sums[l]);
                    }
                });
                lse.add(r).write(top + log);
                loss.add(r).write(sum(sums));
            }
        }
    }

    /// dx = dloss (exp(x - lse) Σ t - t) for each row; dx may lie over x or t.
    fn dense_backward<L; T: Stored>(
        x: *const T, t: *const T, lse: *const T::Wide, dloss: *const T::Wide, dx: *mut T, rows: usize, n: usize,
    ) {
        for r in 0..rows {
            // SAFETY: as above; the sum of the targets is taken before the row is written.
            unsafe {
                let (x, t, dx) = (x.add(r * n), t.add(r * n), dx.add(r * n));
                let (lse, dloss) = (lse.add(r).read(), dloss.add(r).read());
                let mut sums = [T::Wide::ZERO; LANES];
                groups!(LANES, n, |i, len| {
                    let w = load::<T, LANES>(t.add(i), len, T::Wide::ZERO);
                    for l in 0..LANES {
                        sums[l] += w[l];
                    }
                });
                let total = sum(sums);
                groups!(LANES, n, |i, len| {
                    let mut v = load::<T, LANES>(x.add(i), len, T::Wide::ZERO);
                    let w = load::<T, LANES>(t.add(i), len, T::Wide::ZERO);
                    for l in 0..LANES {
                        v[l] = ((v[l] - lse).exp::<L>() * total - w[l]) * dloss;
                    }
                    store(dx.add(i), len, v);
                });
            }
        }
    }
}

/// Samples and classes of logits.
fn dims(logits: &Operand<'_>) -> (usize, usize) {
    let n = logits.ty.shape.last().copied().unwrap_or(1).max(1);
    (logits.ty.elements() / n, n)
}

/// Runs `body(first sample, number of samples)` over all samples.
fn over_samples(cpu: &Cpu, samples: usize, classes: usize, body: impl Fn(usize, usize) + Sync) {
    let step = rows_per_task(classes, TASK);
    cpu.pool().run(samples.div_ceil(step), |task| body(task * step, step.min(samples - task * step)));
}

impl Kernel for CrossEntropy {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (samples, n) = dims(&call.inputs[0]);
        // SAFETY: the labels are live indices.
        let labels = unsafe { Indices::checked(call, 1, n, "label") }?;
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            type W = <T as Stored>::Wide;
            let x = Place::<T>::new(call.inputs[0].ptr);
            let (loss, lse) = (Place::<W>::new(call.outputs[0].ptr), Place::<W>::new(call.outputs[1].ptr));
            over_samples(cpu, samples, n, |first, rows| {
                forward::<T>(cpu.isa(), x.at(first * n), labels, first, loss.at(first), lse.at(first), rows, n);
            });
            Ok(())
        })
    }
}

impl Kernel for CrossEntropyGrad {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (samples, n) = dims(&call.inputs[0]);
        // SAFETY: the labels are live indices.
        let labels = unsafe { Indices::checked(call, 1, n, "label") }?;
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            type W = <T as Stored>::Wide;
            let (x, dx) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
            let (lse, dloss) = (Place::<W>::new(call.inputs[2].ptr), Place::<W>::new(call.inputs[3].ptr));
            over_samples(cpu, samples, n, |first, rows| {
                let i = first * n;
                backward::<T>(cpu.isa(), x.at(i), labels, first, lse.at(first), dloss.at(first), dx.at(i), rows, n);
            });
            Ok(())
        })
    }
}

impl Kernel for DenseCrossEntropy {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (samples, n) = dims(&call.inputs[0]);
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            type W = <T as Stored>::Wide;
            let (x, t) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.inputs[1].ptr));
            let (loss, lse) = (Place::<W>::new(call.outputs[0].ptr), Place::<W>::new(call.outputs[1].ptr));
            over_samples(cpu, samples, n, |first, rows| {
                let i = first * n;
                dense_forward::<T>(cpu.isa(), x.at(i), t.at(i), loss.at(first), lse.at(first), rows, n);
            });
            Ok(())
        })
    }
}

impl Kernel for DenseCrossEntropyGrad {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (samples, n) = dims(&call.inputs[0]);
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            type W = <T as Stored>::Wide;
            let (x, t) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.inputs[1].ptr));
            let (lse, dloss) = (Place::<W>::new(call.inputs[2].ptr), Place::<W>::new(call.inputs[3].ptr));
            let dx = Place::<T>::new(call.outputs[0].ptr);
            over_samples(cpu, samples, n, |first, rows| {
                let i = first * n;
                dense_backward::<T>(cpu.isa(), x.at(i), t.at(i), lse.at(first), dloss.at(first), dx.at(i), rows, n);
            });
            Ok(())
        })
    }
}
