//! A linear layer with cross-entropy: logits a piece of the vocabulary at a time, in f32 (f64), each made, used and written over.
//!
//! A piece is a product of all samples with some rows of the layer. Forward, each sample's largest logit and sum of exponentials go
//! on from piece to piece. Backward, a piece is made again and becomes its own gradient, from which two more products follow.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{LinearCrossEntropy, LinearCrossEntropyDims, LinearCrossEntropyGrad};
use plimsoll_graph::{DType, Scalar as Number, Type};

use super::Kernel;
use super::carver::Carver;
use super::gather::Indices;
use super::lanes::{
    LANES, Place, Stored, Wide, for_float, groups, larger, load, max, rows_per_task, store, sum,
};
use crate::Cpu;
use crate::gemm::{Epilogue, Operand, Product, Shape, gemm, gemm_f64, gemm_scratch_bytes};
use crate::simd::multiversion;

/// Logits of a piece: 16 MiB of f32.
const PIECE: usize = 1 << 22;
/// Elements a task, as for softmax.
const TASK: usize = 8192;

/// Products of a stored type: into its wide type, or into itself.
pub(super) trait Multiply: Stored {
    fn scratch(cpu: &Cpu, shape: Shape) -> usize;
    /// c = a b, or c + a b, in the wide type.
    fn wide(
        cpu: &Cpu,
        p: Product<'_, Self>,
        c: &mut [Self::Wide],
        ldc: usize,
        adds: bool,
        scratch: &mut [u8],
    );
    /// c = a b.
    fn own(cpu: &Cpu, p: Product<'_, Self>, c: &mut [Self], ldc: usize, scratch: &mut [u8]);
}

macro_rules! multiply {
    ($($t:ty),+) => { $(
        impl Multiply for $t {
            fn scratch(cpu: &Cpu, shape: Shape) -> usize {
                let threads = cpu.threads();
                let wide = gemm_scratch_bytes::<f32>(cpu.isa(), shape, 1, threads);
                wide.max(gemm_scratch_bytes::<$t>(cpu.isa(), shape, 1, threads))
            }

            fn wide(cpu: &Cpu, p: Product<'_, $t>, c: &mut [f32], ldc: usize, adds: bool, scratch: &mut [u8]) {
                let epilogue = if adds { &Epilogue::ACCUMULATE } else { &Epilogue::NONE };
                gemm(cpu.pool(), cpu.isa(), p, c, ldc, epilogue, scratch);
            }

            fn own(cpu: &Cpu, p: Product<'_, $t>, c: &mut [$t], ldc: usize, scratch: &mut [u8]) {
                gemm(cpu.pool(), cpu.isa(), p, c, ldc, &Epilogue::NONE, scratch);
            }
        }
    )+ };
}
multiply!(f32, bf16, f16);

impl Multiply for f64 {
    fn scratch(_: &Cpu, _: Shape) -> usize {
        0
    }

    fn wide(cpu: &Cpu, p: Product<'_, f64>, c: &mut [f64], ldc: usize, adds: bool, _: &mut [u8]) {
        gemm_f64(cpu.pool(), p, c, ldc, adds, None);
    }

    fn own(cpu: &Cpu, p: Product<'_, f64>, c: &mut [f64], ldc: usize, _: &mut [u8]) {
        gemm_f64(cpu.pool(), p, c, ldc, false, None);
    }
}

multiversion! {
    /// Caps the logits of each row of `n`, and lets its largest and its sum of exponentials go on over them.
    pub(super) fn add_piece<L; W: Wide>(x: *mut W, top: *mut W, total: *mut W, rows: usize, n: usize, cap: Option<W>, is_first: bool) {
        for r in 0..rows {
            // SAFETY: the caller gives `rows` rows of `n` logits, and as many tops and totals.
            unsafe {
                let x = x.add(r * n);
                if let Some(cap) = cap {
                    groups!(LANES, n, |i, len| {
                        let mut v = load::<W, LANES>(x.add(i), len, W::ZERO);
                        for v in &mut v {
                            *v = (*v / cap).tanh::<L>() * cap;
                        }
                        store(x.add(i), len, v);
                    });
                }
                let mut tops = [W::LOWEST; LANES];
                groups!(LANES, n, |i, len| {
                    let v = load::<W, LANES>(x.add(i), len, W::LOWEST);
                    for l in 0..LANES {
                        tops[l] = larger(v[l], tops[l]);
                    }
                });
                let own = max(tops);
                let (before, so_far) = match is_first {
                    true => (own, W::ZERO),
                    false => (top.add(r).read(), total.add(r).read()),
                };
                let most = larger(own, before);
                let mut sums = [W::ZERO; LANES];
                groups!(LANES, n, |i, len| {
                    let v = load::<W, LANES>(x.add(i), len, W::LOWEST);
                    for l in 0..LANES {
                        sums[l] += (v[l] - most).exp::<L>();
                    }
                });
                top.add(r).write(most);
                total.add(r).write(so_far * (before - most).exp::<L>() + sum(sums));
            }
        }
    }

    /// The gradient of each row of `n` logits that begin with class `start`, over the logits themselves or into another type.
    pub(super) fn differentiate<L; T: Stored>(
        x: *mut T::Wide, labels: Indices, first: usize, start: usize, lse: *const T::Wide, dloss: *const T::Wide, out: *mut T,
        rows: usize, n: usize, cap: Option<T::Wide>,
    ) {
        for r in 0..rows {
            // SAFETY: the caller gives `rows` rows of `n` logits and of `n` gradients, labels from `first` on, log-sums and gradients.
            unsafe {
                let (x, out) = (x.add(r * n), out.add(r * n));
                let (lse, dloss, label) = (lse.add(r).read(), dloss.add(r).read(), labels.at(first + r));
                let at_label = (label >= start && label < start + n).then(|| {
                    let mut v = x.add(label - start).read();
                    let mut slope = dloss;
                    if let Some(cap) = cap {
                        let t = (v / cap).tanh::<L>();
                        v = t * cap;
                        slope *= T::Wide::ONE - t * t;
                    }
                    ((v - lse).exp::<L>() - T::Wide::ONE) * slope
                });
                groups!(LANES, n, |i, len| {
                    let mut v = load::<T::Wide, LANES>(x.add(i), len, T::Wide::ZERO);
                    match cap {
                        None => {
                            for v in &mut v {
                                *v = (*v - lse).exp::<L>() * dloss;
                            }
                        }
                        Some(cap) => {
                            for v in &mut v {
                                let t = (*v / cap).tanh::<L>();
                                *v = (t * cap - lse).exp::<L>() * dloss * (T::Wide::ONE - t * t);
                            }
                        }
                    }
                    store(out.add(i), len, v);
                });
                if let Some(g) = at_label {
                    out.add(label - start).write(T::narrow(g));
                }
            }
        }
    }
}

/// The parts of a call's scratch.
struct Room<T: Stored> {
    logits: *mut T::Wide,
    totals: *mut T::Wide,
    /// The gradient of a piece, where it has another type than logits.
    slopes: *mut T,
    /// dx in the wide type, where that is another.
    sums: *mut T::Wide,
    products: *mut u8,
    n_products: usize,
    bytes: usize,
}

/// What of a call is computed.
#[derive(Clone, Copy)]
struct Wanted {
    is_gradient: bool,
    dx: bool,
    dw: bool,
}

impl<T: Multiply> Room<T> {
    fn new(cpu: &Cpu, start: *mut u8, dims: LinearCrossEntropyDims, wanted: Wanted) -> Room<T> {
        let LinearCrossEntropyDims { rows, width, classes } = dims;
        let piece = dims.piece(PIECE);
        // The last piece may be smaller, and products of other sizes want other scratch.
        let sizes = [piece, if classes.is_multiple_of(piece) { piece } else { classes % piece }];
        let products = sizes.iter().flat_map(|&n| {
            let dx = wanted.dx.then_some(Shape { m: rows, n: width, k: n });
            let dw = wanted.dw.then_some(Shape { m: n, n: width, k: rows });
            [Some(Shape { m: rows, n, k: width }), dx, dw].into_iter().flatten()
        });
        let n_products = products.map(|shape| T::scratch(cpu, shape)).max().unwrap_or(0);
        let mut carver = Carver::new(start);
        let logits = carver.take::<T::Wide>(rows * piece);
        let totals = carver.take::<T::Wide>(if wanted.is_gradient { 0 } else { rows });
        let slopes = match T::EXACT {
            true => logits.cast::<T>(),
            false => carver.take::<T>(if wanted.is_gradient { rows * piece } else { 0 }),
        };
        let sums = carver.take::<T::Wide>(if wanted.dx && !T::EXACT { rows * width } else { 0 });
        let products = carver.take::<u8>(n_products);
        Room { logits, totals, slopes, sums, products, n_products, bytes: carver.used() }
    }
}

fn scratch(cpu: &Cpu, inputs: &[&Type], wanted: Wanted) -> usize {
    let Ok(dims) = LinearCrossEntropyDims::new(inputs[0], inputs[1], inputs[2]) else { return 0 };
    let none = std::ptr::null_mut();
    match inputs[0].dtype {
        DType::F64 => Room::<f64>::new(cpu, none, dims, wanted).bytes,
        DType::BF16 => Room::<bf16>::new(cpu, none, dims, wanted).bytes,
        DType::F16 => Room::<f16>::new(cpu, none, dims, wanted).bytes,
        _ => Room::<f32>::new(cpu, none, dims, wanted).bytes,
    }
}

/// Runs `body(first sample, number of samples)` over all samples.
pub(super) fn over_samples(cpu: &Cpu, samples: usize, classes: usize, body: impl Fn(usize, usize) + Sync) {
    let step = rows_per_task(classes, TASK);
    cpu.pool().run(samples.div_ceil(step), |task| body(task * step, step.min(samples - task * step)));
}

pub(super) fn dims_of(call: &Call<'_>) -> Result<LinearCrossEntropyDims, Fault> {
    let [x, w, labels] = [0, 1, 2].map(|i| call.inputs[i].ty);
    LinearCrossEntropyDims::new(x, w, labels).map_err(|why| Fault::new(call.op.name(), why))
}

/// The logits of a piece: all samples with the rows of the layer from `start` on.
///
/// # Safety
/// The room must be that of the call, whose operands are of `T`.
unsafe fn make_piece<T: Multiply>(
    cpu: &Cpu,
    call: &Call<'_>,
    room: &Room<T>,
    dims: LinearCrossEntropyDims,
    start: usize,
    n: usize,
) {
    let LinearCrossEntropyDims { rows, width, .. } = dims;
    // SAFETY: the operands are of `T`; the room's parts lie apart and have these sizes.
    unsafe {
        let (x, w) = (call.inputs[0].slice::<T>(), call.inputs[1].slice::<T>());
        let logits = std::slice::from_raw_parts_mut(room.logits, rows * n);
        let scratch = std::slice::from_raw_parts_mut(room.products, room.n_products);
        let w = Operand::transposed(&w[start * width..(start + n) * width], width);
        let product = Product::one(Shape { m: rows, n, k: width }, Operand::plain(x, width), w);
        T::wide(cpu, product, logits, n, false, scratch);
    }
}

const FORWARD: Wanted = Wanted { is_gradient: false, dx: false, dw: false };

impl Kernel for LinearCrossEntropy {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        scratch(cpu, inputs, FORWARD)
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let dims = dims_of(call)?;
        let LinearCrossEntropyDims { rows, classes, .. } = dims;
        // SAFETY: the labels are live indices.
        let labels = unsafe { Indices::checked(call, 2, classes, "label") }?;
        if rows == 0 {
            return Ok(());
        }
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            type W = <T as Stored>::Wide;
            let room = Room::<T>::new(cpu, call.scratch, dims, FORWARD);
            let cap = self.cap.map(|Number(c)| W::of(c));
            // The label's logit stands where the loss will, the largest where the log-sum will.
            let (loss, lse) = (Place::<W>::new(call.outputs[0].ptr), Place::<W>::new(call.outputs[1].ptr));
            let (logits, totals) = (Place::<W>::new(room.logits.cast()), Place::<W>::new(room.totals.cast()));
            let piece = dims.piece(PIECE);
            for start in (0..classes).step_by(piece) {
                let n = piece.min(classes - start);
                // SAFETY: the caller's promise.
                unsafe { make_piece::<T>(cpu, call, &room, dims, start, n) };
                over_samples(cpu, rows, n, |first, count| {
                    let x = logits.at(first * n);
                    add_piece::<W>(cpu.isa(), x, lse.at(first), totals.at(first), count, n, cap, start == 0);
                    for r in 0..count {
                        // SAFETY: there is a label a sample; the piece holds its logit, and nobody else writes this sample's loss.
                        unsafe {
                            let label = labels.at(first + r);
                            if (start..start + n).contains(&label) {
                                loss.at(first + r).write(x.add(r * n + label - start).read());
                            }
                        }
                    }
                });
            }
            over_samples(cpu, rows, 1, |first, count| {
                for r in first..first + count {
                    // SAFETY: each sample is one task's alone, and all of it was written.
                    unsafe {
                        let (top, log) = (lse.at(r).read(), totals.at(r).read().ln());
                        loss.at(r).write(log + (top - loss.at(r).read()));
                        lse.at(r).write(top + log);
                    }
                }
            });
            Ok(())
        })
    }
}

impl Kernel for LinearCrossEntropyGrad {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        scratch(cpu, inputs, Wanted { is_gradient: true, dx: self.dx, dw: self.dw })
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let dims = dims_of(call)?;
        let LinearCrossEntropyDims { rows, width, classes } = dims;
        // SAFETY: the labels are live indices.
        let labels = unsafe { Indices::checked(call, 2, classes, "label") }?;
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            type W = <T as Stored>::Wide;
            let wanted = Wanted { is_gradient: true, dx: self.dx, dw: self.dw };
            let room = Room::<T>::new(cpu, call.scratch, dims, wanted);
            let cap = self.cap.map(|Number(c)| W::of(c));
            let (lse, dloss) = (Place::<W>::new(call.inputs[3].ptr), Place::<W>::new(call.inputs[4].ptr));
            let (logits, slopes) = (Place::<W>::new(room.logits.cast()), Place::<T>::new(room.slopes.cast()));
            let dw = self.dw.then(|| call.outputs[usize::from(self.dx)].ptr.cast::<T>());
            let dx = self.dx.then(|| if T::EXACT { call.outputs[0].ptr.cast::<W>() } else { room.sums });
            let piece = dims.piece(PIECE);
            for start in (0..classes).step_by(piece) {
                let n = piece.min(classes - start);
                // SAFETY: the caller's promise.
                unsafe { make_piece::<T>(cpu, call, &room, dims, start, n) };
                over_samples(cpu, rows, n, |first, count| {
                    let (i, lse, dloss) = (first * n, lse.at(first), dloss.at(first));
                    differentiate::<T>(
                        cpu.isa(), logits.at(i), labels, first, start, lse, dloss, slopes.at(i), count, n, cap,
                    );
                });
                // SAFETY: operands and outputs are of `T`; parts of the room lie apart and have these sizes.
                unsafe {
                    let slopes = std::slice::from_raw_parts(room.slopes, rows * n);
                    let scratch = std::slice::from_raw_parts_mut(room.products, room.n_products);
                    let (x, w) = (call.inputs[0].slice::<T>(), call.inputs[1].slice::<T>());
                    if let Some(dx) = dx {
                        let w = Operand::plain(&w[start * width..(start + n) * width], width);
                        let shape = Shape { m: rows, n: width, k: n };
                        let product = Product::one(shape, Operand::plain(slopes, n), w);
                        let dx = std::slice::from_raw_parts_mut(dx, rows * width);
                        T::wide(cpu, product, dx, width, start > 0, scratch);
                    }
                    if let Some(dw) = dw {
                        let shape = Shape { m: n, n: width, k: rows };
                        let product = Product::one(shape, Operand::transposed(slopes, n), Operand::plain(x, width));
                        let dw = std::slice::from_raw_parts_mut(dw.add(start * width), n * width);
                        T::own(cpu, product, dw, width, scratch);
                    }
                }
            }
            if let (Some(sums), false) = (dx, T::EXACT) {
                let (sums, out) = (Place::<W>::new(sums.cast()), Place::<T>::new(call.outputs[0].ptr));
                over_samples(cpu, rows, width, |first, count| {
                    for i in first * width..(first + count) * width {
                        // SAFETY: each sample is one task's alone.
                        unsafe { out.at(i).write(T::narrow(sums.at(i).read())) };
                    }
                });
            }
            Ok(())
        })
    }
}
