//! Convolution and its gradients: the ops' attributes as sizes for the implicit matrix products of [`crate::conv`].
//!
//! A bias and relu are part of the product's last step. Other activations are a second pass over the output, in
//! place. 16-bit biases are widened into scratch first, since the products add them in f32.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault, Operand};
use plimsoll_graph::ops::{Conv, ConvGradFilter, ConvGradInput, ElementOp, Unary};
use plimsoll_graph::{DType, Rule, Shape, Type};

use super::{Kernel, element};
use crate::Cpu;
use crate::conv::{self, ConvShape};
use crate::gemm::{Activation, Epilogue, Scalar};

/// Bytes of scratch that a widened bias takes, so that what follows stays aligned.
fn bias_bytes(dtype: DType, channels: usize) -> usize {
    match dtype {
        DType::BF16 | DType::F16 => (channels * size_of::<f32>()).next_multiple_of(64),
        _ => 0,
    }
}

/// The sizes from the shapes of x and w and the attributes that all three ops have.
macro_rules! sizes {
    ($op:expr, $x:expr, $w:expr) => {{
        let (x, w): (&Shape, &Shape) = ($x, $w);
        ConvShape {
            stride_h: $op.stride[0],
            stride_w: $op.stride[1],
            pad_h: $op.pad[0],
            pad_w: $op.pad[1],
            dilation_h: $op.dilation[0],
            dilation_w: $op.dilation[1],
            groups: $op.groups,
            ..ConvShape::new([x[0], x[1], x[2], x[3]], [w[0], w[1]], w[3])
        }
    }};
}

/// Calls a scratch function for the Rust type of a 16- or 32-bit float; f64 needs none.
macro_rules! scratch_bytes {
    ($f:ident, $dtype:expr, $cpu:expr, $shape:expr) => {
        match $dtype {
            DType::F32 => conv::$f::<f32>($cpu.isa(), $shape, $cpu.threads()),
            DType::BF16 => conv::$f::<bf16>($cpu.isa(), $shape, $cpu.threads()),
            DType::F16 => conv::$f::<f16>($cpu.isa(), $shape, $cpu.threads()),
            _ => 0,
        }
    };
}

/// The bias in f32 and the rest of the scratch.
///
/// # Safety
/// The bias and the scratch must be as the op declared them.
unsafe fn widened<'s, T: Scalar + Element>(
    bias: Option<&Operand<'_>>,
    scratch: &'s mut [u8],
) -> (Option<&'s [f32]>, &'s mut [u8]) {
    let Some(bias) = bias else { return (None, scratch) };
    // SAFETY: the caller's promise.
    let values: &'s [T] = unsafe { bias.slice() };
    if T::DTYPE == DType::F32 {
        // SAFETY: T is f32.
        return (Some(unsafe { bias.slice() }), scratch);
    }
    let (head, rest) = scratch.split_at_mut(bias_bytes(T::DTYPE, values.len()));
    let wide: &mut [f32] = bytemuck::cast_slice_mut(head);
    let wide = &mut wide[..values.len()];
    wide.iter_mut().zip(values).for_each(|(wide, value)| *wide = value.to_f32());
    (Some(wide), rest)
}

fn refused(op: &'static str, dtype: DType) -> Fault {
    Fault { op, why: format!("it does not take {dtype}") }
}

impl Kernel for Conv {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        let (x, w) = (inputs[0], inputs[1]);
        let bias = if self.bias { bias_bytes(x.dtype, w.shape[3]) } else { 0 };
        bias + scratch_bytes!(forward_scratch_bytes, x.dtype, cpu, &sizes!(self, &x.shape, &w.shape))
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let dtype = call.inputs[0].ty.dtype;
        // SAFETY: the caller's promise, passed on, with the type that the operands name.
        unsafe {
            match dtype {
                DType::F32 => forward::<f32>(self, cpu, call),
                DType::BF16 => forward::<bf16>(self, cpu, call),
                DType::F16 => forward::<f16>(self, cpu, call),
                DType::F64 => forward_f64(self, cpu, call),
                _ => return Err(refused(self.name(), dtype)),
            }
        }
        match self.act {
            None => Ok(()),
            Some(Unary::Relu) if dtype != DType::F64 => Ok(()),
            Some(act) => {
                let call = Call { inputs: call.outputs, ..*call };
                // SAFETY: an elementwise function may be written over its input.
                unsafe { element::run_one(cpu, ElementOp::Unary(act), &call) }
            }
        }
    }
}

/// # Safety
/// The operands must be of type `T` and as the op's rules say.
unsafe fn forward<T: Scalar + Element>(op: &Conv, cpu: &Cpu, call: &Call<'_>) {
    let (x, w, y) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let shape = sizes!(op, &x.ty.shape, &w.ty.shape);
    // SAFETY: the caller's promise.
    unsafe {
        let (bias, scratch) = widened::<T>(call.inputs.get(2), call.scratch());
        let activation = if op.act == Some(Unary::Relu) { Activation::Relu } else { Activation::None };
        let epilogue = Epilogue { bias, activation, ..Epilogue::NONE };
        let (x, w, y) = (x.slice::<T>(), w.slice::<T>(), y.slice_mut::<T>());
        conv::forward(cpu.pool(), cpu.isa(), &shape, x, w, y, &epilogue, scratch);
    }
}

/// # Safety
/// The operands must be of type f64 and as the op's rules say.
unsafe fn forward_f64(op: &Conv, cpu: &Cpu, call: &Call<'_>) {
    let (x, w, y) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let shape = sizes!(op, &x.ty.shape, &w.ty.shape);
    // SAFETY: the caller's promise.
    unsafe {
        let bias = call.inputs.get(2).map(|bias| bias.slice::<f64>());
        conv::forward_f64(cpu.pool(), &shape, x.slice(), w.slice(), y.slice_mut(), false, bias);
    }
}

impl Kernel for ConvGradInput {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], outputs: &[&Type]) -> usize {
        let (w, dx) = (inputs[1], outputs[0]);
        let bias = if self.bias { bias_bytes(dx.dtype, dx.shape[3]) } else { 0 };
        bias + scratch_bytes!(data_grad_scratch_bytes, w.dtype, cpu, &sizes!(self, &dx.shape, &w.shape))
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let dtype = call.inputs[0].ty.dtype;
        // SAFETY: the caller's promise, passed on, with the type that the operands name.
        unsafe {
            match dtype {
                DType::F32 => grad_input::<f32>(self, cpu, call),
                DType::BF16 => grad_input::<bf16>(self, cpu, call),
                DType::F16 => grad_input::<f16>(self, cpu, call),
                DType::F64 => grad_input_f64(self, cpu, call),
                _ => return Err(refused(self.name(), dtype)),
            }
        }
        Ok(())
    }
}

/// # Safety
/// The operands must be of type `T` and as the op's rules say.
unsafe fn grad_input<T: Scalar + Element>(op: &ConvGradInput, cpu: &Cpu, call: &Call<'_>) {
    let (dy, w, dx) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let shape = sizes!(op, &dx.ty.shape, &w.ty.shape);
    // SAFETY: the caller's promise.
    unsafe {
        let (bias, scratch) = widened::<T>(call.inputs.get(2), call.scratch());
        let epilogue = Epilogue { bias, ..Epilogue::NONE };
        let (dy, w, dx) = (dy.slice::<T>(), w.slice::<T>(), dx.slice_mut::<T>());
        conv::data_grad(cpu.pool(), cpu.isa(), &shape, dy, w, dx, &epilogue, scratch);
    }
}

/// # Safety
/// The operands must be of type f64 and as the op's rules say.
unsafe fn grad_input_f64(op: &ConvGradInput, cpu: &Cpu, call: &Call<'_>) {
    let (dy, w, dx) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let shape = sizes!(op, &dx.ty.shape, &w.ty.shape);
    // SAFETY: the caller's promise.
    unsafe {
        let bias = call.inputs.get(2).map(|bias| bias.slice::<f64>());
        conv::data_grad_f64(cpu.pool(), &shape, dy.slice(), w.slice(), dx.slice_mut(), false, bias);
    }
}

impl Kernel for ConvGradFilter {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], outputs: &[&Type]) -> usize {
        let (x, dw) = (inputs[0], outputs[0]);
        scratch_bytes!(filter_grad_scratch_bytes, x.dtype, cpu, &sizes!(self, &x.shape, &dw.shape))
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let dtype = call.inputs[0].ty.dtype;
        // SAFETY: the caller's promise, passed on, with the type that the operands name.
        unsafe {
            match dtype {
                DType::F32 => grad_filter::<f32>(self, cpu, call),
                DType::BF16 => grad_filter::<bf16>(self, cpu, call),
                DType::F16 => grad_filter::<f16>(self, cpu, call),
                DType::F64 => {
                    let (x, dy, dw) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
                    let shape = sizes!(self, &x.ty.shape, &dw.ty.shape);
                    conv::filter_grad_f64(cpu.pool(), &shape, x.slice(), dy.slice(), dw.slice_mut(), false);
                }
                _ => return Err(refused(self.name(), dtype)),
            }
        }
        Ok(())
    }
}

/// # Safety
/// The operands must be of type `T` and as the op's rules say.
unsafe fn grad_filter<T: Scalar + Element>(op: &ConvGradFilter, cpu: &Cpu, call: &Call<'_>) {
    let (x, dy, dw) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
    let shape = sizes!(op, &x.ty.shape, &dw.ty.shape);
    // SAFETY: the caller's promise.
    unsafe {
        let (x, dy, dw) = (x.slice::<T>(), dy.slice::<T>(), dw.slice_mut::<T>());
        conv::filter_grad(cpu.pool(), cpu.isa(), &shape, x, dy, dw, false, call.scratch());
    }
}
