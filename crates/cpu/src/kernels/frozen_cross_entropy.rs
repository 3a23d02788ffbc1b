//! A frozen linear layer with cross-entropy: all logits of some samples at a time, in f32 (f64), which become losses, then their own gradient.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{FrozenCrossEntropy, LinearCrossEntropyDims};
use plimsoll_graph::{DType, Type};

use super::Kernel;
use super::carver::Carver;
use super::gather::Indices;
use super::lanes::{Place, Stored, Wide, for_float};
use super::linear_cross_entropy::{Multiply, add_piece, differentiate, dims_of, over_samples};
use crate::Cpu;
use crate::gemm::{Operand, Product, Shape};

/// Logits of a piece: 16 MiB of f32.
const PIECE: usize = 1 << 22;

/// The parts of a call's scratch.
struct Room<T: Stored> {
    logits: *mut T::Wide,
    /// Sums of exponentials, then log-sums, a sample of the piece; its largest logit; what its loss's gradient is taken to be.
    totals: *mut T::Wide,
    tops: *mut T::Wide,
    ones: *mut T::Wide,
    /// The gradient of the logits, where it has another type than they.
    slopes: *mut T,
    products: *mut u8,
    n_products: usize,
    bytes: usize,
}

impl<T: Multiply> Room<T> {
    fn new(cpu: &Cpu, start: *mut u8, dims: LinearCrossEntropyDims) -> Room<T> {
        let LinearCrossEntropyDims { rows, width, classes } = dims;
        let samples = dims.samples(PIECE);
        // The last piece may be smaller, and products of other sizes want other scratch.
        let last = if rows.is_multiple_of(samples) { samples } else { rows % samples };
        let shapes = [samples, last]
            .into_iter()
            .flat_map(|m| [Shape { m, n: classes, k: width }, Shape { m, n: width, k: classes }]);
        let n_products = shapes.map(|shape| T::scratch(cpu, shape)).max().unwrap_or(0);
        let mut carver = Carver::new(start);
        let logits = carver.take::<T::Wide>(samples * classes);
        let [totals, tops, ones] = [(); 3].map(|()| carver.take::<T::Wide>(samples));
        let slopes = match T::EXACT {
            true => logits.cast::<T>(),
            false => carver.take::<T>(samples * classes),
        };
        let products = carver.take::<u8>(n_products);
        Room { logits, totals, tops, ones, slopes, products, n_products, bytes: carver.used() }
    }
}

impl Kernel for FrozenCrossEntropy {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        let Ok(dims) = LinearCrossEntropyDims::new(inputs[0], inputs[1], inputs[2]) else { return 0 };
        let none = std::ptr::null_mut();
        match inputs[0].dtype {
            DType::F64 => Room::<f64>::new(cpu, none, dims).bytes,
            DType::BF16 => Room::<bf16>::new(cpu, none, dims).bytes,
            DType::F16 => Room::<f16>::new(cpu, none, dims).bytes,
            _ => Room::<f32>::new(cpu, none, dims).bytes,
        }
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let dims = dims_of(call)?;
        let (rows, width, classes) = (dims.rows, dims.width, dims.classes);
        // SAFETY: the labels are live indices.
        let labels = unsafe { Indices::checked(call, 2, classes, "label") }?;
        let dtype = call.inputs[0].ty.dtype;
        for_float!(dtype, call.op, T => {
            type W = <T as Stored>::Wide;
            let room = Room::<T>::new(cpu, call.scratch, dims);
            let loss = Place::<W>::new(call.outputs[0].ptr);
            let (logits, slopes) = (Place::<W>::new(room.logits.cast()), Place::<T>::new(room.slopes.cast()));
            let [totals, tops, ones] = [room.totals, room.tops, room.ones].map(|at| Place::<W>::new(at.cast()));
            let piece = dims.samples(PIECE);
            for start in (0..rows).step_by(piece) {
                let m = piece.min(rows - start);
                // SAFETY: the operands are of `T`; the room's parts lie apart and have these sizes.
                let (w, scratch) = unsafe {
                    let (x, w) = (call.inputs[0].slice::<T>(), call.inputs[1].slice::<T>());
                    let scratch = std::slice::from_raw_parts_mut(room.products, room.n_products);
                    let x = Operand::plain(&x[start * width..(start + m) * width], width);
                    let product = Product::one(Shape { m, n: classes, k: width }, x, Operand::transposed(w, width));
                    let made = std::slice::from_raw_parts_mut(room.logits, m * classes);
                    T::wide(cpu, product, made, classes, false, scratch);
                    (w, scratch)
                };
                over_samples(cpu, m, classes, |first, count| {
                    let at = logits.at(first * classes);
                    add_piece::<W>(cpu.isa(), at, tops.at(first), totals.at(first), count, classes, None, true);
                    for r in first..first + count {
                        // SAFETY: each sample is one task's alone; its logits, its label and its sums are there.
                        unsafe {
                            let (top, log) = (tops.at(r).read(), totals.at(r).read().ln());
                            let own = logits.at(r * classes + labels.at(start + r)).read();
                            loss.at(start + r).write(log + (top - own));
                            totals.at(r).write(top + log);
                            ones.at(r).write(W::ONE);
                        }
                    }
                    differentiate::<T>(
                        cpu.isa(), at, labels, start + first, 0, totals.at(first), ones.at(first), slopes.at(first * classes), count,
                        classes, None,
                    );
                });
                // SAFETY: the gradient of the logits is whole, and lies apart from what is written.
                unsafe {
                    let slopes = std::slice::from_raw_parts(room.slopes, m * classes);
                    let shape = Shape { m, n: width, k: classes };
                    let product = Product::one(shape, Operand::plain(slopes, classes), Operand::plain(w, width));
                    let dx = call.outputs[1].ptr.cast::<T>().add(start * width);
                    T::own(cpu, product, std::slice::from_raw_parts_mut(dx, m * width), width, scratch);
                }
            }
            Ok(())
        })
    }
}
