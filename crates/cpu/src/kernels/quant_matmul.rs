//! A product with a weight of few bits: a tile of it becomes floats in scratch, is multiplied, and makes room for the next.
//!
//! A tile is some rows of the weight where it is transposed, some columns where it is not, so that no sums go on from tile to tile.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::QuantMatMul;
use plimsoll_graph::quant::{QuantForm, QuantParts};
use plimsoll_graph::{DType, Type};

use super::Kernel;
use super::carver::Carver;
use super::lanes::{Place, Stored, Wide, for_float};
use super::linear_cross_entropy::Multiply;
use crate::Cpu;
use crate::gemm::{Operand, Product, Shape};

/// Numbers of a tile.
const TILE: usize = 1 << 18;
/// Numbers that are unpacked at a time, on the stack.
const SOME: usize = 256;

/// How a call is cut into tiles, and where its scratch lies.
struct Tiles<T> {
    samples: usize,
    /// Features of x and of y.
    from: usize,
    to: usize,
    /// Features of y that a tile gives.
    step: usize,
    tile: *mut T,
    scales: *mut f32,
    products: *mut u8,
    n_products: usize,
    bytes: usize,
}

impl<T: Multiply> Tiles<T> {
    fn new(cpu: &Cpu, op: &QuantMatMul, x: &Type, start: *mut u8) -> Tiles<T> {
        let [from, to] = op.widths();
        let samples = x.elements().checked_div(from).unwrap_or(0);
        let step = (TILE / from.max(1) / 64 * 64).max(64).min(to.max(1));
        let rest = if to.is_multiple_of(step) { step } else { to % step };
        let shape = |n: usize| Shape { m: samples, n, k: from };
        let n_products = [step, rest].map(|n| T::scratch(cpu, shape(n))).into_iter().max().unwrap_or(0);
        let n_scales = scales_of(op).0;
        let mut carver = Carver::new(start);
        let tile = carver.take::<T>(step * from);
        let scales = carver.take::<f32>(n_scales);
        let products = carver.take::<u8>(n_products);
        Tiles { samples, from, to, step, tile, scales, products, n_products, bytes: carver.used() }
    }
}

/// How many scales a weight has, and which input they are.
fn scales_of(op: &QuantMatMul) -> (usize, usize) {
    let parts = op.form.parts(op.rows, op.columns, DType::F32);
    match op.form {
        QuantForm::Int8 => (parts[1].elements(), 2),
        QuantForm::Nf4 => (parts[2].elements(), 3),
    }
}

/// A scale of an input, in f32.
///
/// # Safety
/// The input is live and has it.
unsafe fn scale(call: &Call<'_>, input: usize, at: usize) -> f32 {
    let x = &call.inputs[input];
    // SAFETY: the caller's promise.
    unsafe {
        match x.ty.dtype {
            DType::F64 => *x.ptr.cast::<f64>().add(at) as f32,
            _ => *x.ptr.cast::<f32>().add(at),
        }
    }
}

impl Kernel for QuantMatMul {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        let none = std::ptr::null_mut();
        match inputs[0].dtype {
            DType::F64 => Tiles::<f64>::new(cpu, self, inputs[0], none).bytes,
            DType::BF16 => Tiles::<bf16>::new(cpu, self, inputs[0], none).bytes,
            DType::F16 => Tiles::<f16>::new(cpu, self, inputs[0], none).bytes,
            _ => Tiles::<f32>::new(cpu, self, inputs[0], none).bytes,
        }
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            type W = <T as Stored>::Wide;
            let tiles = Tiles::<T>::new(cpu, self, call.inputs[0].ty, call.scratch);
            if tiles.samples == 0 || tiles.to == 0 {
                return Ok(());
            }
            let (n_scales, at) = scales_of(self);
            // SAFETY: inputs and scratch are live, of the declared types and sizes, and apart from outputs.
            let (parts, x, y, products) = unsafe {
                for i in 0..n_scales {
                    tiles.scales.add(i).write(scale(call, at, i));
                }
                let bytes = |i: usize| std::slice::from_raw_parts(call.inputs[i].ptr.cast_const(), call.inputs[i].ty.bytes());
                let is_nf4 = self.form == QuantForm::Nf4;
                let parts = QuantParts {
                    codes: bytes(1),
                    blocks: if is_nf4 { bytes(2) } else { &[] },
                    scales: std::slice::from_raw_parts(tiles.scales, n_scales),
                    mean: if is_nf4 { scale(call, 4, 0) } else { 0.0 },
                };
                let y = std::slice::from_raw_parts_mut(call.outputs[0].ptr.cast::<T>(), tiles.samples * tiles.to);
                let products = std::slice::from_raw_parts_mut(tiles.products, tiles.n_products);
                (parts, call.inputs[0].slice::<T>(), y, products)
            };
            let place = Place::<T>::new(tiles.tile.cast());
            for start in (0..tiles.to).step_by(tiles.step) {
                let n = tiles.step.min(tiles.to - start);
                // A line of the tile: a row of the weight, or the part of one that the tile has.
                let (lines, length) = if self.plain { (self.rows, n) } else { (n, self.columns) };
                cpu.pool().run(lines, |line| {
                    let from = if self.plain { line * self.columns + start } else { (start + line) * self.columns };
                    let mut some = [0.0f32; SOME];
                    for first in (0..length).step_by(SOME) {
                        let some = &mut some[..SOME.min(length - first)];
                        self.form.unpack(&parts, self.columns, from + first, some);
                        for (i, x) in some.iter().enumerate() {
                            // SAFETY: a line is one task's alone, and the tile has all of them.
                            unsafe { place.at(line * length + first + i).write(T::narrow(W::of(f64::from(*x)))) };
                        }
                    }
                });
                // SAFETY: the tile was written whole.
                let tile = unsafe { std::slice::from_raw_parts(tiles.tile.cast_const(), lines * length) };
                let w = if self.plain { Operand::plain(tile, length) } else { Operand::transposed(tile, length) };
                let shape = Shape { m: tiles.samples, n, k: tiles.from };
                let product = Product::one(shape, Operand::plain(x, tiles.from), w);
                T::own(cpu, product, &mut y[start..], tiles.to, products);
            }
            Ok(())
        })
    }
}
