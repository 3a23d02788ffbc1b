//! Batch norm and group norm: statistics of channels over many rows, channels innermost.
//!
//! Batch norm is group norm of one sample with as many groups as channels. Both directions go in three steps: sums of
//! parts of the rows, in parallel; the parts merged in order and made into a few numbers a channel; and one pass that
//! applies those. A part is summed a piece at a time, small enough to stay in the first-level cache while its mean
//! and then its squares around that mean are taken; pieces and parts are merged by Chan's formula. So the variance is
//! as good as with two passes, and memory is passed once.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::Type;
use plimsoll_graph::ops::{BatchNorm, BatchNormGrad, GroupNorm, GroupNormGrad};

use super::channels::{
    Dims, Nothing, Relu, Tail, Vectors, apply_gradient, gradient_sums, merge_statistics, merge_sums,
    normalise, statistics,
};
use crate::Cpu;
use crate::kernels::Kernel;
use crate::kernels::lanes::{Place, Stored, Wide, for_float};

/// Runs `body(sample, part, first row, number of rows)` over all parts.
fn over_parts(cpu: &Cpu, dims: Dims, body: impl Fn(usize, usize, usize, usize) + Sync) {
    let (parts, step) = (dims.parts(), dims.rows_per_part());
    cpu.pool().run(dims.samples * parts, |task| {
        let (sample, part) = (task / parts, task % parts);
        body(sample, part, part * step, step.min(dims.rows - part * step));
    });
}

/// Inputs x, γ, β; outputs y, mean, (var,) rstd.
unsafe fn run_forward<T: Stored, R: Tail>(
    cpu: &Cpu,
    call: &Call<'_>,
    dims: Dims,
    eps: f64,
) -> Result<(), Fault> {
    if call.inputs[0].ty.elements() == 0 {
        return Ok(());
    }
    let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
    let (gamma, beta) =
        (Place::<T::Wide>::new(call.inputs[1].ptr), Place::<T::Wide>::new(call.inputs[2].ptr));
    let means = Place::<T::Wide>::new(call.outputs[1].ptr);
    let vars = Place::<T::Wide>::new(call.outputs[2].ptr);
    let rstds = Place::<T::Wide>::new(call.outputs[call.outputs.len() - 1].ptr);
    let has_var = call.outputs.len() == 4;
    let v = Vectors::<T::Wide> { at: Place::new(call.scratch), dims };
    let Dims { samples, rows, channels, groups } = dims;
    over_parts(cpu, dims, |sample, part, first, count| {
        let i = (sample * rows + first) * channels;
        statistics::<T>(
            cpu.isa(),
            x.at(i),
            count,
            channels,
            v.part(sample, part, 0),
            v.part(sample, part, 1),
        );
    });
    let width = dims.width();
    let (per_group, per_width) = (T::Wide::of(1.0 / (rows * width) as f64), T::Wide::of(1.0 / width as f64));
    let n_rows = T::Wide::of(rows as f64);
    cpu.pool().run(samples, |sample| {
        merge_statistics::<T::Wide>(cpu.isa(), v, sample);
        let (mean, square, scale) = (v.sample(sample, 0), v.sample(sample, 1), v.sample(sample, 2));
        for g in 0..groups {
            // SAFETY: a group's channels are below `channels`, and its statistic is this task's.
            unsafe {
                // The group's mean is that of its channels' means; the squares around it are those around each
                // channel's mean and of the means around the group's.
                let range = g * width..(g + 1) * width;
                let group_mean =
                    range.clone().fold(T::Wide::ZERO, |sum, c| sum + mean.add(c).read()) * per_width;
                let squares = range.clone().fold(T::Wide::ZERO, |sum, c| {
                    let d = mean.add(c).read() - group_mean;
                    sum + square.add(c).read() + d * d * n_rows
                });
                let var = squares * per_group;
                let rstd = T::Wide::ONE / (var + T::Wide::of(eps)).sqrt();
                means.at(sample * groups + g).write(group_mean);
                if has_var {
                    vars.at(sample * groups + g).write(var);
                }
                rstds.at(sample * groups + g).write(rstd);
                for c in range {
                    mean.add(c).write(group_mean);
                    scale.add(c).write(gamma.at(c).read() * rstd);
                }
            }
        }
    });
    over_parts(cpu, dims, |sample, _, first, count| {
        let i = (sample * rows + first) * channels;
        let (mean, scale) = (v.sample(sample, 0), v.sample(sample, 2));
        normalise::<T, R>(cpu.isa(), x.at(i), y.at(i), count, channels, mean, scale, beta.at(0));
    });
    Ok(())
}

/// Inputs x, γ, mean, rstd, dy, and β where a relu follows; outputs dx, dγ, dβ.
unsafe fn run_backward<T: Stored, R: Tail>(cpu: &Cpu, call: &Call<'_>, dims: Dims) -> Result<(), Fault> {
    let Dims { samples, rows, channels, groups } = dims;
    let (x, dy) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.inputs[4].ptr));
    let dx = Place::<T>::new(call.outputs[0].ptr);
    let [gamma, means, rstds] = [1, 2, 3].map(|i| Place::<T::Wide>::new(call.inputs[i].ptr));
    let [dgamma, dbeta] = [1, 2].map(|o| Place::<T::Wide>::new(call.outputs[o].ptr));
    let v = Vectors::<T::Wide> { at: Place::new(call.scratch), dims };
    let width = dims.width();
    // Without a relu nobody reads the shift.
    let shift = Place::<T::Wide>::new(call.inputs[if R::RELU { 5 } else { 1 }].ptr);
    // Vector 2 of a sample: the mean of each channel's group. Vector 3: the factor of the norm.
    for sample in 0..samples {
        for c in 0..channels {
            // SAFETY: c / width < groups, and the vectors have a place for every channel.
            unsafe {
                let group = sample * groups + c / width;
                v.sample(sample, 2).add(c).write(means.at(group).read());
                v.sample(sample, 3).add(c).write(gamma.at(c).read() * rstds.at(group).read());
            }
        }
    }
    over_parts(cpu, dims, |sample, part, first, count| {
        let i = (sample * rows + first) * channels;
        let (sums, products) = (v.part(sample, part, 0), v.part(sample, part, 1));
        gradient_sums::<T, R>(
            cpu.isa(),
            x.at(i),
            dy.at(i),
            count,
            channels,
            v.sample(sample, 2),
            [v.sample(sample, 3).cast_const(), shift.at(0).cast_const()],
            sums,
            products,
        );
    });
    cpu.pool().run(samples, |sample| merge_sums::<T::Wide>(cpu.isa(), v, sample));
    for c in 0..channels {
        let (mut to_gamma, mut to_beta) = (T::Wide::ZERO, T::Wide::ZERO);
        for sample in 0..samples {
            // SAFETY: as above.
            unsafe {
                let rstd = rstds.at(sample * groups + c / width).read();
                to_gamma += v.sample(sample, 1).add(c).read() * rstd;
                to_beta += v.sample(sample, 0).add(c).read();
            }
        }
        // SAFETY: γ and β have a number a channel.
        unsafe {
            dgamma.at(c).write(to_gamma);
            dbeta.at(c).write(to_beta);
        }
    }
    // With g = γ dy and n = (x - mean) rstd: dx = rstd γ dy - rstd² mean(g n) (x - mean) - rstd mean(g).
    // The factors take the place of the sums.
    let per = T::Wide::of(1.0 / (rows * width).max(1) as f64);
    for sample in 0..samples {
        let [sums, products] = [v.sample(sample, 0), v.sample(sample, 1)];
        for g in 0..groups {
            // SAFETY: as above.
            unsafe {
                let rstd = rstds.at(sample * groups + g).read();
                let (mut mean_g, mut mean_gn) = (T::Wide::ZERO, T::Wide::ZERO);
                for c in g * width..(g + 1) * width {
                    mean_g += gamma.at(c).read() * sums.add(c).read();
                    mean_gn += gamma.at(c).read() * products.add(c).read();
                }
                let to_x = T::Wide::ZERO - mean_gn * per * rstd * rstd * rstd;
                let offset = T::Wide::ZERO - mean_g * per * rstd;
                for c in g * width..(g + 1) * width {
                    products.add(c).write(to_x);
                    sums.add(c).write(offset);
                }
            }
        }
    }
    over_parts(cpu, dims, |sample, _, first, count| {
        let i = (sample * rows + first) * channels;
        let factors = [3, 1, 0].map(|which| v.sample(sample, which).cast_const());
        apply_gradient::<T, R>(
            cpu.isa(),
            x.at(i),
            dy.at(i),
            dx.at(i),
            count,
            channels,
            v.sample(sample, 2),
            factors,
            shift.at(0),
        );
    });
    Ok(())
}

/// A kernel over columns of channels, with a relu behind it or without.
macro_rules! column_kernel {
    ($kernel:ident, |$op:ident, $x:ident| $dims:expr, relu: $relu:expr, $run:ident($($more:expr),*)) => {
        impl Kernel for $kernel {
            fn scratch(&self, _: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
                let ($op, $x) = (self, &inputs[0].shape);
                // Not all sizes depend on the op.
                let _ = $op;
                Dims::scratch($dims, inputs[1].dtype.bytes())
            }

            unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
                let ($op, $x) = (self, &call.inputs[0].ty.shape);
                // SAFETY: the caller's promise, passed on.
                for_float!(call.inputs[0].ty.dtype, call.op, T => unsafe {
                    match $relu {
                        true => $run::<T, Relu>(cpu, call, $dims $(, $more)*),
                        false => $run::<T, Nothing>(cpu, call, $dims $(, $more)*),
                    }
                })
            }
        }
    };
}
column_kernel!(BatchNorm, |op, x| Dims::batch(x), relu: op.relu, run_forward(op.eps.0));
column_kernel!(BatchNormGrad, |op, x| Dims::batch(x), relu: op.relu, run_backward());
column_kernel!(GroupNorm, |op, x| Dims::group(x, op.groups), relu: false, run_forward(op.eps.0));
column_kernel!(GroupNormGrad, |op, x| Dims::group(x, op.groups), relu: false, run_backward());
