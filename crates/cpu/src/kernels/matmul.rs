//! The matrix product: operands and batch as the packed product takes them, bias and activation in its tail.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault};
use plimsoll_graph::ops::{self, MatMulDims, Unary};
use plimsoll_graph::{DType, Type};

use super::{Kernel, element};
use crate::Cpu;
use crate::gemm::{
    Activation, Batch, Epilogue, Operand, Product, RowHook, Scalar, Shape, Shared, gemm, gemm_f64,
    gemm_scratch_bytes,
};

/// Elements of a task of the f64 activation.
const TASK: usize = 8 * 1024;

/// A product as one batch: many rows against one matrix are one taller product.
pub(super) fn arrange(op: &ops::MatMul, a: &Type, b: &Type) -> Result<(Shape, Batch), String> {
    let MatMulDims { batch, m, n, k, a_shared, b_shared } = op.dims(a, b)?;
    if b_shared && !op.ta && !a_shared {
        return Ok((Shape { m: batch * m, n, k }, Batch::ONE));
    }
    let strides = (if a_shared { 0 } else { m * k }, if b_shared { 0 } else { k * n });
    Ok((Shape { m, n, k }, Batch { count: batch, a_stride: strides.0, b_stride: strides.1, c_stride: m * n }))
}

impl Kernel for ops::MatMul {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        let Ok((shape, batch)) = arrange(self, inputs[0], inputs[1]) else { return 0 };
        let threads = cpu.threads();
        match inputs[0].dtype {
            DType::F64 => 0,
            DType::BF16 => {
                bias_bytes(self, shape) + gemm_scratch_bytes::<bf16>(cpu.isa(), shape, batch.count, threads)
            }
            DType::F16 => {
                bias_bytes(self, shape) + gemm_scratch_bytes::<f16>(cpu.isa(), shape, batch.count, threads)
            }
            _ => gemm_scratch_bytes::<f32>(cpu.isa(), shape, batch.count, threads),
        }
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (a, b) = (call.inputs[0].ty, call.inputs[1].ty);
        let (shape, batch) = arrange(self, a, b).map_err(|why| Fault::new(call.op.name(), why))?;
        // SAFETY: the caller's promise, passed on; each type is the operands'.
        unsafe {
            match a.dtype {
                DType::F64 => wide(self, cpu, call, shape, batch),
                DType::BF16 => narrow::<bf16>(self, cpu, call, shape, batch),
                DType::F16 => narrow::<f16>(self, cpu, call, shape, batch),
                _ => narrow::<f32>(self, cpu, call, shape, batch),
            }
        }
        Ok(())
    }
}

/// Bytes of the bias in f32, for 16-bit products.
fn bias_bytes(op: &ops::MatMul, shape: Shape) -> usize {
    if op.bias { (4 * shape.n).next_multiple_of(64) } else { 0 }
}

pub(super) fn operands<'a, T>(
    op: &ops::MatMul,
    shape: Shape,
    a: &'a [T],
    b: &'a [T],
) -> (Operand<'a, T>, Operand<'a, T>) {
    let Shape { m, n, k } = shape;
    let a = if op.ta { Operand::transposed(a, m) } else { Operand::plain(a, k) };
    let b = if op.tb { Operand::transposed(b, k) } else { Operand::plain(b, n) };
    (a, b)
}

/// The product in f32 sums.
///
/// # Safety
/// As for [`plimsoll_device::backend::Backend::run`], with operands of `T`.
unsafe fn narrow<T: Scalar + Element>(
    op: &ops::MatMul,
    cpu: &Cpu,
    call: &Call<'_>,
    shape: Shape,
    batch: Batch,
) {
    // SAFETY: the operands are of `T`, and the output shares no memory with an input.
    let (a, b, c) = unsafe {
        (call.inputs[0].slice::<T>(), call.inputs[1].slice::<T>(), call.outputs[0].slice_mut::<T>())
    };
    // SAFETY: nobody else has the scratch.
    let mut scratch = unsafe { call.scratch() };
    let mut widened: &[f32] = &[];
    if op.bias && T::DTYPE != DType::F32 {
        let (head, rest) = scratch.split_at_mut(bias_bytes(op, shape));
        scratch = rest;
        // SAFETY: the head is aligned and has room for the bias, which has one value a column.
        unsafe {
            let head = std::slice::from_raw_parts_mut(head.as_mut_ptr().cast::<f32>(), shape.n);
            head.iter_mut().zip(call.inputs[2].slice::<T>()).for_each(|(to, x)| *to = x.to_f32());
            widened = head;
        }
    } else if op.bias {
        // SAFETY: the bias is of f32 here.
        widened = unsafe { call.inputs[2].slice::<f32>() };
    }
    let isa = cpu.isa();
    let act = op.act.filter(|&f| f != Unary::Relu);
    let hook = |_: usize, _: usize, values: &mut [f32]| {
        if let Some(f) = act {
            element::apply(isa, f, values);
        }
    };
    let epilogue = Epilogue {
        accumulate: false,
        bias: op.bias.then_some(widened),
        activation: if op.act == Some(Unary::Relu) { Activation::Relu } else { Activation::None },
        hook: act.is_some().then_some(&hook as &dyn RowHook),
    };
    let (a, b) = operands(op, shape, a, b);
    gemm(cpu.pool(), isa, Product { shape, batch, a, b }, c, shape.n, &epilogue, scratch);
}

/// The product in f64.
///
/// # Safety
/// As for [`plimsoll_device::backend::Backend::run`], with operands of f64.
unsafe fn wide(op: &ops::MatMul, cpu: &Cpu, call: &Call<'_>, shape: Shape, batch: Batch) {
    // SAFETY: the operands are of f64, and the output shares no memory with an input.
    let (a, b, c) = unsafe {
        (call.inputs[0].slice::<f64>(), call.inputs[1].slice::<f64>(), call.outputs[0].slice_mut::<f64>())
    };
    // SAFETY: as above.
    let bias = op.bias.then(|| unsafe { call.inputs[2].slice::<f64>() });
    let (a, b) = operands(op, shape, a, b);
    gemm_f64(cpu.pool(), Product { shape, batch, a, b }, c, shape.n, false, bias);
    if let Some(f) = op.act {
        let (n, c) = (c.len(), Shared(c.as_mut_ptr()));
        cpu.pool().run(n.div_ceil(TASK), |task| {
            for i in task * TASK..((task + 1) * TASK).min(n) {
                // SAFETY: element i belongs to this task.
                unsafe { *c.get().add(i) = f.eval(*c.get().add(i)) };
            }
        });
    }
}
