//! Convolution and its gradients: the ops' attributes as sizes for the implicit matrix products of [`crate::conv`].
//!
//! A bias and relu are part of the product's last step. Other activations are a second pass over the output, in
//! place. 16-bit biases are widened into scratch first, since the products add them in f32.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault, Operand};
use plimsoll_graph::ops::{Conv, ConvFrame, ConvGradFilter, ConvGradInput, ElementOp, Unary};
use plimsoll_graph::{DType, Rule, Shape, Type};

use super::lanes::by_dtype;
use super::{Kernel, element};
use crate::Cpu;
use crate::conv::{self, ConvShape};
use crate::gemm::{Activation, Epilogue, Scalar};
use crate::isa::Isa;
use crate::pool::Pool;

/// Bytes of scratch that a widened bias takes, where there is one, so that what follows stays aligned.
fn bias_bytes(is_there: bool, dtype: DType, channels: usize) -> usize {
    match dtype {
        DType::BF16 | DType::F16 if is_there => (channels * size_of::<f32>()).next_multiple_of(64),
        _ => 0,
    }
}

/// The sizes from the shapes of x and w and what all three ops have.
fn sizes(frame: &ConvFrame, x: &Shape, w: &Shape) -> ConvShape {
    ConvShape {
        stride_h: frame.stride[0],
        stride_w: frame.stride[1],
        pad_h: frame.pad[0],
        pad_w: frame.pad[1],
        dilation_h: frame.dilation[0],
        dilation_w: frame.dilation[1],
        groups: frame.groups,
        ..ConvShape::new([x[0], x[1], x[2], x[3]], [w[0], w[1]], w[3])
    }
}

/// Calls a scratch function for the Rust type of a 16- or 32-bit float; f64 needs none.
macro_rules! scratch_bytes {
    ($f:ident, $dtype:expr, $cpu:expr, $shape:expr) => {
        by_dtype!(
            $dtype, T in F32 = f32, BF16 = bf16, F16 = f16 => conv::$f::<T>($cpu.isa(), $shape, $cpu.threads()),
            _other => 0
        )
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
    let (head, rest) = scratch.split_at_mut(bias_bytes(true, T::DTYPE, values.len()));
    let wide: &mut [f32] = bytemuck::cast_slice_mut(head);
    let wide = &mut wide[..values.len()];
    wide.iter_mut().zip(values).for_each(|(wide, value)| *wide = value.to_f32());
    (Some(wide), rest)
}

fn refused(op: &'static str, dtype: DType) -> Fault {
    Fault::new(op, format!("it does not take {dtype}"))
}

/// A product that makes images of images and a filter, in f32 and below.
type Images<T> = fn(&Pool, Isa, &ConvShape, &[T], &[T], &mut [T], &Epilogue<'_>, &mut [u8]);

/// Runs a product over the call's operands, with the bias that it may have.
///
/// # Safety
/// The operands must be of type `T` and as the op's rules say.
unsafe fn images<T: Scalar + Element>(
    cpu: &Cpu,
    call: &Call<'_>,
    shape: &ConvShape,
    activation: Activation,
    product: Images<T>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let (bias, scratch) = widened::<T>(call.inputs.get(2), call.scratch());
        let epilogue = Epilogue { bias, activation, ..Epilogue::NONE };
        let (from, w, to) = (call.inputs[0].slice(), call.inputs[1].slice(), call.outputs[0].slice_mut());
        product(cpu.pool(), cpu.isa(), shape, from, w, to, &epilogue, scratch);
    }
}

/// Runs one of two products, the second for f64, by the type that the operands name.
macro_rules! by_product {
    ($op:expr, $cpu:expr, $call:expr, $shape:expr, $activation:expr, $product:ident, $product_f64:ident) => {{
        let (cpu, call, shape): (&Cpu, &Call<'_>, &ConvShape) = ($cpu, $call, $shape);
        by_dtype!(
            call.inputs[0].ty.dtype, T in F32 = f32, BF16 = bf16, F16 = f16 => {
                // SAFETY: the caller's promise, passed on, with the type that the operands name.
                unsafe { images::<T>(cpu, call, shape, $activation, conv::$product) };
                Ok(())
            },
            other => match other {
                DType::F64 => {
                    // SAFETY: as above.
                    unsafe {
                        let bias = call.inputs.get(2).map(|bias| bias.slice::<f64>());
                        let (from, w, to) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
                        conv::$product_f64(cpu.pool(), shape, from.slice(), w.slice(), to.slice_mut(), false, bias);
                    }
                    Ok(())
                }
                _ => Err(refused($op.name(), other)),
            }
        )
    }};
}

impl Kernel for Conv {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        let (x, w) = (inputs[0], inputs[1]);
        bias_bytes(self.bias, x.dtype, w.shape[3])
            + scratch_bytes!(forward_scratch_bytes, x.dtype, cpu, &sizes(&self.frame, &x.shape, &w.shape))
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, w) = (call.inputs[0].ty, call.inputs[1].ty);
        let shape = sizes(&self.frame, &x.shape, &w.shape);
        let activation = if self.act == Some(Unary::Relu) { Activation::Relu } else { Activation::None };
        by_product!(self, cpu, call, &shape, activation, forward, forward_f64)?;
        match self.act {
            None => Ok(()),
            Some(Unary::Relu) if x.dtype != DType::F64 => Ok(()),
            Some(act) => {
                let call = Call { inputs: call.outputs, ..*call };
                // SAFETY: an elementwise function may be written over its input.
                unsafe { element::run_one(cpu, ElementOp::Unary(act), &call) }
            }
        }
    }
}

impl Kernel for ConvGradInput {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], outputs: &[&Type]) -> usize {
        let (w, dx) = (inputs[1], outputs[0]);
        bias_bytes(self.bias, dx.dtype, dx.shape[3])
            + scratch_bytes!(data_grad_scratch_bytes, w.dtype, cpu, &sizes(&self.frame, &dx.shape, &w.shape))
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let shape = sizes(&self.frame, &call.outputs[0].ty.shape, &call.inputs[1].ty.shape);
        by_product!(self, cpu, call, &shape, Activation::None, data_grad, data_grad_f64)
    }
}

impl Kernel for ConvGradFilter {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], outputs: &[&Type]) -> usize {
        let (x, dw) = (inputs[0], outputs[0]);
        scratch_bytes!(filter_grad_scratch_bytes, x.dtype, cpu, &sizes(&self.frame, &x.shape, &dw.shape))
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, dy, dw) = (&call.inputs[0], &call.inputs[1], &call.outputs[0]);
        let shape = sizes(&self.frame, &x.ty.shape, &dw.ty.shape);
        by_dtype!(
            x.ty.dtype, T in F32 = f32, BF16 = bf16, F16 = f16 => {
                // SAFETY: the caller's promise, passed on, with the type that the operands name.
                unsafe {
                    let (x, dy, dw) = (x.slice::<T>(), dy.slice::<T>(), dw.slice_mut::<T>());
                    conv::filter_grad(cpu.pool(), cpu.isa(), &shape, x, dy, dw, false, call.scratch());
                }
                Ok(())
            },
            other => match other {
                DType::F64 => {
                    // SAFETY: as above.
                    unsafe {
                        conv::filter_grad_f64(cpu.pool(), &shape, x.slice(), dy.slice(), dw.slice_mut(), false);
                    }
                    Ok(())
                }
                _ => Err(refused(self.name(), other)),
            }
        )
    }
}
