//! Layer norm and RMS norm: a row is read two or three times but comes from memory once.
//!
//! Mean first, then squares around it: two passes over a row in cache are as accurate as f32 sums can be.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{ElementOp, LayerNorm, LayerNormGrad, LayerNormGradAdd, RmsNorm, RmsNormGrad};
use plimsoll_graph::{DType, Type};

use crate::Cpu;
use crate::kernels::lanes::{LANES, Place, Stored, Wide, for_float, groups, load, rows_per_task, store, sum};
use crate::kernels::{Kernel, element};
use crate::simd::multiversion;

/// Elements a task of the forward pass.
const TASK: usize = 16384;
/// The most tasks of the backward pass: each has partial sums of its own for γ and β.
const MOST_PARTS: usize = 32;

/// Whether the mean is subtracted.
trait Centre {
    const YES: bool;
}
/// Layer norm.
struct Centred;
/// RMS norm.
struct Uncentred;
impl Centre for Centred {
    const YES: bool = true;
}
impl Centre for Uncentred {
    const YES: bool = false;
}

multiversion! {
    /// y = γ (x - mean) rstd + β for rows of `n`; β and the mean only where they are centred. y may lie over x where they are of one type.
    fn forward<L; T: Stored, Y: Stored<Wide = T::Wide>, K: Centre>(
        x: *const T, gamma: *const T::Wide, beta: *const T::Wide, y: *mut Y, means: *mut T::Wide,
        rstds: *mut T::Wide, rows: usize, n: usize, eps: f64,
    ) {
        let zero = T::Wide::ZERO;
        let per = T::Wide::of(1.0 / n as f64);
        for r in 0..rows {
            // SAFETY: the caller gives rows of `n` elements, scales of `n`, and a statistic a row.
            unsafe {
                let (x, y) = (x.add(r * n), y.add(r * n));
                let mut mean = zero;
                if K::YES {
                    let mut sums = [zero; LANES];
                    groups!(LANES, n, |i, len| {
                        let v = load::<T, LANES>(x.add(i), len, zero);
                        for l in 0..LANES {
                            sums[l] += v[l];
                        }
                    });
                    mean = sum(sums) * per;
                    means.add(r).write(mean);
                }
                let mut squares = [zero; LANES];
                groups!(LANES, n, |i, len| {
                    // Lanes beyond the row hold the mean and add nothing.
                    let v = load::<T, LANES>(x.add(i), len, mean);
                    for l in 0..LANES {
                        let d = v[l] - mean;
                        squares[l] = d.fma::<L>(d, squares[l]);
                    }
                });
                let rstd = T::Wide::ONE / sum(squares).fma::<L>(per, T::Wide::of(eps)).sqrt();
                rstds.add(r).write(rstd);
                groups!(LANES, n, |i, len| {
                    let mut v = load::<T, LANES>(x.add(i), len, zero);
                    let g = load::<T::Wide, LANES>(gamma.add(i), len, zero);
                    if K::YES {
                        let b = load::<T::Wide, LANES>(beta.add(i), len, zero);
                        for l in 0..LANES {
                            v[l] = ((v[l] - mean) * rstd).fma::<L>(g[l], b[l]);
                        }
                    } else {
                        for l in 0..LANES {
                            v[l] = (v[l] * rstd) * g[l];
                        }
                    }
                    store(y.add(i), len, v);
                });
            }
        }
    }

    /// dx of rows of `n` with what is added to it where that is not null, and their sums for dγ and dβ. dx may lie over x, dy or what is added.
    fn backward<L; T: Stored, Y: Stored<Wide = T::Wide>, K: Centre>(
        x: *const T, gamma: *const T::Wide, means: *const T::Wide, rstds: *const T::Wide, dy: *const Y, added: *const T,
        dx: *mut T, dgamma: *mut T::Wide, dbeta: *mut T::Wide, rows: usize, n: usize,
    ) {
        let zero = T::Wide::ZERO;
        let per = T::Wide::of(1.0 / n as f64);
        // SAFETY: the caller gives rows of `n` elements, scales and sums of `n`, and a statistic a row.
        unsafe {
            groups!(LANES, n, |i, len| {
                store::<T::Wide, LANES>(dgamma.add(i), len, [zero; LANES]);
                if K::YES {
                    store::<T::Wide, LANES>(dbeta.add(i), len, [zero; LANES]);
                }
            });
            for r in 0..rows {
                let (x, dy, dx) = (x.add(r * n), dy.add(r * n), dx.add(r * n));
                let mean = if K::YES { means.add(r).read() } else { zero };
                let rstd = rstds.add(r).read();
                let (mut g_sums, mut gn_sums) = ([zero; LANES], [zero; LANES]);
                groups!(LANES, n, |i, len| {
                    let v = load::<T, LANES>(x.add(i), len, zero);
                    let d = load::<Y, LANES>(dy.add(i), len, zero);
                    let g = load::<T::Wide, LANES>(gamma.add(i), len, zero);
                    for l in 0..LANES {
                        let g = d[l] * g[l];
                        g_sums[l] += g;
                        gn_sums[l] = g.fma::<L>((v[l] - mean) * rstd, gn_sums[l]);
                    }
                });
                let mean_g = if K::YES { sum(g_sums) * per } else { zero };
                let mean_gn = sum(gn_sums) * per;
                groups!(LANES, n, |i, len| {
                    let v = load::<T, LANES>(x.add(i), len, zero);
                    let d = load::<Y, LANES>(dy.add(i), len, zero);
                    let g = load::<T::Wide, LANES>(gamma.add(i), len, zero);
                    let mut dgs = load::<T::Wide, LANES>(dgamma.add(i), len, zero);
                    let mut out = [zero; LANES];
                    for l in 0..LANES {
                        let normal = (v[l] - mean) * rstd;
                        dgs[l] = d[l].fma::<L>(normal, dgs[l]);
                        out[l] = (d[l] * g[l] - mean_g - normal * mean_gn) * rstd;
                    }
                    if !added.is_null() {
                        let past = load::<T, LANES>(added.add(r * n + i), len, zero);
                        for l in 0..LANES {
                            out[l] += past[l];
                        }
                    }
                    store(dgamma.add(i), len, dgs);
                    if K::YES {
                        let mut dbs = load::<T::Wide, LANES>(dbeta.add(i), len, zero);
                        for l in 0..LANES {
                            dbs[l] += d[l];
                        }
                        store(dbeta.add(i), len, dbs);
                    }
                    store(dx.add(i), len, out);
                });
            }
        }
    }

    /// The sum of `parts` vectors of `n` numbers, `stride` apart, in order.
    fn add_parts<L; A: Stored>(parts: *const A, n_parts: usize, stride: usize, out: *mut A, n: usize) {
        // SAFETY: the caller gives `n_parts` vectors and room for one.
        unsafe {
            groups!(LANES, n, |i, len| {
                let mut total = [A::Wide::ZERO; LANES];
                for p in 0..n_parts {
                    let part = load::<A, LANES>(parts.add(p * stride + i), len, A::Wide::ZERO);
                    for l in 0..LANES {
                        total[l] += part[l];
                    }
                }
                store(out.add(i), len, total);
            });
        }
    }
}

/// Number of rows and their length, from the types of x and γ.
fn dims(x: &Type, gamma: &Type) -> (usize, usize) {
    let n = gamma.elements();
    (x.elements() / n.max(1), n)
}

fn rows_per_part(rows: usize, n: usize) -> usize {
    rows.div_ceil(MOST_PARTS).max(rows_per_task(n, TASK))
}

/// Layer norm (x, γ, β → y, mean, rstd) or RMS norm (x, γ → y, rstd).
unsafe fn run_forward<T: Stored, Y: Stored<Wide = T::Wide>, K: Centre>(
    cpu: &Cpu,
    call: &Call<'_>,
    eps: f64,
) -> Result<(), Fault> {
    let (rows, n) = dims(call.inputs[0].ty, call.inputs[1].ty);
    let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<Y>::new(call.outputs[0].ptr));
    let gamma = Place::<T::Wide>::new(call.inputs[1].ptr);
    // Where there is no β, the last input is γ, and nothing reads it in its place.
    let beta = Place::<T::Wide>::new(call.inputs[call.inputs.len() - 1].ptr);
    let mean = Place::<T::Wide>::new(call.outputs[1].ptr);
    let rstd = Place::<T::Wide>::new(call.outputs[call.outputs.len() - 1].ptr);
    let step = rows_per_task(n, TASK);
    cpu.pool().run(rows.div_ceil(step), |task| {
        let (r, i) = (task * step, task * step * n);
        let count = step.min(rows - r);
        let (isa, gamma, beta) = (cpu.isa(), gamma.at(0), beta.at(0));
        forward::<T, Y, K>(isa, x.at(i), gamma, beta, y.at(i), mean.at(r), rstd.at(r), count, n, eps);
    });
    Ok(())
}

/// The gradient of layer norm (x, γ, mean, rstd, dy → dx, dγ, dβ) or RMS norm (x, γ, rstd, dy → dx, dγ). Where something is added to dx, it is
/// the input behind dy, which is `last`.
unsafe fn run_backward<T: Stored, Y: Stored<Wide = T::Wide>, K: Centre>(
    cpu: &Cpu,
    call: &Call<'_>,
    last: usize,
) -> Result<(), Fault> {
    let (rows, n) = dims(call.inputs[0].ty, call.inputs[1].ty);
    let added = call.inputs.get(last + 1).map(|added| Place::<T>::new(added.ptr));
    let (x, dy) = (Place::<T>::new(call.inputs[0].ptr), Place::<Y>::new(call.inputs[last].ptr));
    let dx = Place::<T>::new(call.outputs[0].ptr);
    let gamma = Place::<T::Wide>::new(call.inputs[1].ptr);
    let mean = Place::<T::Wide>::new(call.inputs[2].ptr);
    let rstd = Place::<T::Wide>::new(call.inputs[last - 1].ptr);
    let parts = Place::<T::Wide>::new(call.scratch);
    let step = rows_per_part(rows, n);
    let n_parts = rows.div_ceil(step);
    cpu.pool().run(n_parts, |task| {
        let (r, i) = (task * step, task * step * n);
        let count = step.min(rows - r);
        let (dgamma, dbeta) = (parts.at(2 * task * n), parts.at((2 * task + 1) * n));
        let (isa, gamma, mean, rstd) = (cpu.isa(), gamma.at(0), mean.at(r), rstd.at(r));
        let added = added.as_ref().map_or(std::ptr::null(), |added| added.at(i).cast_const());
        let (x, dy, dx) = (x.at(i), dy.at(i), dx.at(i));
        backward::<T, Y, K>(isa, x, gamma, mean, rstd, dy, added, dx, dgamma, dbeta, count, n);
    });
    for (o, output) in call.outputs[1..].iter().enumerate() {
        add_parts::<T::Wide>(cpu.isa(), parts.at(o * n), n_parts, 2 * n, output.ptr.cast(), n);
    }
    Ok(())
}

fn backward_scratch(x: &Type, gamma: &Type) -> usize {
    let (rows, n) = dims(x, gamma);
    rows.div_ceil(rows_per_part(rows, n)) * 2 * gamma.bytes()
}

/// Runs a body with names for the types of x and of y: mostly one, or f32 and 16 bits.
macro_rules! for_norm {
    ($types:expr, $op:expr, $t:ident, $y:ident => $body:expr) => {
        match $types {
            (DType::F32, DType::BF16) => {
                type $t = f32;
                type $y = half::bf16;
                $body
            }
            (DType::F32, DType::F16) => {
                type $t = f32;
                type $y = half::f16;
                $body
            }
            (same, _) => for_float!(same, $op, $t => {
                type $y = $t;
                $body
            }),
        }
    };
}

macro_rules! row_kernels {
    ($norm:ident, $grad:ident, $centring:ident) => {
        impl Kernel for $norm {
            unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
                let types = (call.inputs[0].ty.dtype, call.outputs[0].ty.dtype);
                // SAFETY: the caller's promise, passed on.
                for_norm!(types, call.op, T, Y => unsafe {
                    run_forward::<T, Y, $centring>(cpu, call, self.eps.0)
                })
            }
        }

        impl Kernel for $grad {
            fn scratch(&self, _: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
                backward_scratch(inputs[0], inputs[1])
            }

            unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
                let last = call.inputs.len() - 1;
                let types = (call.inputs[0].ty.dtype, call.inputs[last].ty.dtype);
                // SAFETY: the caller's promise, passed on.
                for_norm!(types, call.op, T, Y => unsafe { run_backward::<T, Y, $centring>(cpu, call, last) })
            }
        }
    };
}
row_kernels!(LayerNorm, LayerNormGrad, Centred);
row_kernels!(RmsNorm, RmsNormGrad, Uncentred);

impl Kernel for LayerNormGradAdd {
    fn scratch(&self, _: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        backward_scratch(inputs[0], inputs[1])
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let dy = call.inputs.len() - 2;
        let types = (call.inputs[0].ty.dtype, call.inputs[dy].ty.dtype);
        let (of_norm, rounded) = call.outputs.split_at(3);
        let whole = Call { outputs: of_norm, ..*call };
        // SAFETY: the caller's promise, passed on.
        for_norm!(types, call.op, T, Y => unsafe { run_backward::<T, Y, Centred>(cpu, &whole, dy) })?;
        if rounded.is_empty() {
            return Ok(());
        }
        let cast = Call { inputs: &of_norm[..1], outputs: rounded, ..*call };
        // SAFETY: as above; the sum is written, and nothing that lies in the place of the rounded one is read any more.
        unsafe { element::run_one(cpu, ElementOp::Cast, &cast) }
    }
}
