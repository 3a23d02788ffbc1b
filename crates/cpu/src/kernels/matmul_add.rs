//! A matrix product that is scaled and added to something: both happen to its sums before they are rounded.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault};
use plimsoll_graph::ops::MatMulAdd;
use plimsoll_graph::{DType, Type};

use super::Kernel;
use super::lanes::Place;
use super::matmul::{arrange, operands};
use crate::Cpu;
use crate::gemm::{Batch, Epilogue, Product, RowHook, Scalar, Shape, gemm, gemm_f64, gemm_scratch_bytes};

/// Elements of a task of the f64 sum.
const TASK: usize = 8 * 1024;

impl Kernel for MatMulAdd {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], outputs: &[&Type]) -> usize {
        let Ok((shape, batch)) = arrange(&self.product(), inputs[0], inputs[1]) else { return 0 };
        let (isa, threads) = (cpu.isa(), cpu.threads());
        match inputs[0].dtype {
            DType::F64 => outputs[0].bytes(),
            DType::BF16 => gemm_scratch_bytes::<bf16>(isa, shape, batch.count, threads),
            DType::F16 => gemm_scratch_bytes::<f16>(isa, shape, batch.count, threads),
            _ => {
                let scaled = scaled_bytes(self, inputs[0], inputs[1]).unwrap_or(0);
                scaled + gemm_scratch_bytes::<f32>(isa, shape, batch.count, threads)
            }
        }
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (a, b) = (call.inputs[0].ty, call.inputs[1].ty);
        let (shape, batch) = arrange(&self.product(), a, b).map_err(|why| Fault::new(call.op.name(), why))?;
        // SAFETY: the caller's promise, passed on; each type is the operands'.
        unsafe {
            match a.dtype {
                DType::F64 => wide(self, cpu, call, shape, batch),
                DType::BF16 => narrow::<bf16>(self, cpu, call, (shape, batch)),
                DType::F16 => narrow::<f16>(self, cpu, call, (shape, batch)),
                _ => plain(self, cpu, call, shape, batch),
            }
        }
        Ok(())
    }
}

/// The product in f32 sums of 16-bit operands.
///
/// # Safety
/// As for [`plimsoll_device::backend::Backend::run`], with operands of `T`.
unsafe fn narrow<T: Scalar + Element>(op: &MatMulAdd, cpu: &Cpu, call: &Call<'_>, laid: (Shape, Batch)) {
    let (shape, batch) = laid;
    // SAFETY: the operands are of `T`, and the output shares no memory with a factor.
    let (a, b, c) = unsafe {
        (call.inputs[0].slice::<T>(), call.inputs[1].slice::<T>(), call.outputs[0].slice_mut::<T>())
    };
    let added = call.inputs.get(2).map(|c| Place::<T>::new(c.ptr));
    let scale = op.scale.0 as f32;
    let hook = |row: usize, col: usize, values: &mut [f32]| {
        let first = row * shape.n + col;
        for (i, value) in values.iter_mut().enumerate() {
            *value *= scale;
            if let Some(added) = &added {
                // SAFETY: the value added has the output's shape. Where it is the output's memory, sums of 16-bit products are elsewhere until they are
                // rounded: this element is read here and written only after.
                *value += unsafe { added.at(first + i).read() }.to_f32();
            }
        }
    };
    let epilogue = Epilogue { hook: Some(&hook as &dyn RowHook), ..Epilogue::NONE };
    let (a, b) = operands(&op.product(), shape, a, b);
    // SAFETY: nobody else has the scratch.
    let scratch = unsafe { call.scratch() };
    gemm(cpu.pool(), cpu.isa(), Product { shape, batch, a, b }, c, shape.n, &epilogue, scratch);
}

/// The product in f32, whose sums are made in the output's own memory: what is added is there before, and the scale is the smaller factor's.
///
/// # Safety
/// As for [`plimsoll_device::backend::Backend::run`], with operands of f32.
unsafe fn plain(op: &MatMulAdd, cpu: &Cpu, call: &Call<'_>, shape: Shape, batch: Batch) {
    // SAFETY: the operands are of f32, and the output shares no memory with a factor.
    let (mut a, mut b, c) = unsafe {
        (call.inputs[0].slice::<f32>(), call.inputs[1].slice::<f32>(), call.outputs[0].slice_mut::<f32>())
    };
    // SAFETY: nobody else has the scratch.
    let mut scratch = unsafe { call.scratch() };
    if let Some(scaled) = scaled_bytes(op, call.inputs[0].ty, call.inputs[1].ty) {
        let factor = if a.len() <= b.len() { &mut a } else { &mut b };
        let (head, rest) = scratch.split_at_mut(scaled);
        scratch = rest;
        // SAFETY: the head is aligned and has room for the factor.
        let head = unsafe { std::slice::from_raw_parts_mut(head.as_mut_ptr().cast::<f32>(), factor.len()) };
        head.iter_mut().zip(*factor).for_each(|(to, x)| *to = x * op.scale.0 as f32);
        *factor = head;
    }
    if let Some(added) = call.inputs.get(2).filter(|added| added.ptr != call.outputs[0].ptr) {
        // SAFETY: it has the output's shape and lies elsewhere.
        c.copy_from_slice(unsafe { added.slice::<f32>() });
    }
    let epilogue = if op.add { &Epilogue::ACCUMULATE } else { &Epilogue::NONE };
    let (a, b) = operands(&op.product(), shape, a, b);
    gemm(cpu.pool(), cpu.isa(), Product { shape, batch, a, b }, c, shape.n, epilogue, scratch);
}

/// Bytes of the smaller factor, where it is scaled in f32.
fn scaled_bytes(op: &MatMulAdd, a: &Type, b: &Type) -> Option<usize> {
    (op.scale.0 != 1.0).then(|| (4 * a.elements().min(b.elements())).next_multiple_of(64))
}

/// The product in f64, in the scratch, then the sum.
///
/// # Safety
/// As for [`plimsoll_device::backend::Backend::run`], with operands of f64.
unsafe fn wide(op: &MatMulAdd, cpu: &Cpu, call: &Call<'_>, shape: Shape, batch: Batch) {
    let n = call.outputs[0].ty.elements();
    // SAFETY: the operands are of f64; the scratch has room for the result and is nobody else's.
    let (a, b, sums) = unsafe {
        let sums = std::slice::from_raw_parts_mut(call.scratch.cast::<f64>(), n);
        (call.inputs[0].slice::<f64>(), call.inputs[1].slice::<f64>(), sums)
    };
    let (a, b) = operands(&op.product(), shape, a, b);
    gemm_f64(cpu.pool(), Product { shape, batch, a, b }, sums, shape.n, false, None);
    let sums: &[f64] = sums;
    let (out, added) =
        (Place::<f64>::new(call.outputs[0].ptr), call.inputs.get(2).map(|c| Place::<f64>::new(c.ptr)));
    cpu.pool().run(n.div_ceil(TASK), |task| {
        for i in task * TASK..((task + 1) * TASK).min(n) {
            // SAFETY: element i belongs to this task, and is read before it is written.
            unsafe {
                let c = added.as_ref().map_or(0.0, |added| added.at(i).read());
                out.at(i).write(sums[i] * op.scale.0 + c);
            }
        }
    });
}
