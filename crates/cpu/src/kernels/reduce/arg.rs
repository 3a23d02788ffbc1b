//! The index of the largest element along an axis.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault};
use plimsoll_graph::{DType, ops};

use crate::Cpu;
use crate::gemm::Shared;
use crate::kernels::Kernel;

/// Elements that make a task worth waking a thread for.
const TASK: usize = 32 * 1024;

impl Kernel for ops::ArgMax {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise, passed on; each type is the operand's.
        unsafe {
            match call.inputs[0].ty.dtype {
                DType::F32 => typed::<f32>(self.axis, cpu, call),
                DType::F64 => typed::<f64>(self.axis, cpu, call),
                DType::BF16 => typed::<bf16>(self.axis, cpu, call),
                DType::F16 => typed::<f16>(self.axis, cpu, call),
                DType::I64 => typed::<i64>(self.axis, cpu, call),
                DType::I32 => typed::<i32>(self.axis, cpu, call),
                DType::I16 => typed::<i16>(self.axis, cpu, call),
                DType::I8 => typed::<i8>(self.axis, cpu, call),
                DType::U32 => typed::<u32>(self.axis, cpu, call),
                DType::U16 => typed::<u16>(self.axis, cpu, call),
                DType::U8 | DType::Bool => typed::<u8>(self.axis, cpu, call),
            }
        }
        Ok(())
    }
}

unsafe fn typed<T: Element + PartialOrd>(axis: usize, cpu: &Cpu, call: &Call<'_>) {
    let shape = &call.inputs[0].ty.shape;
    // SAFETY: the input is not written while this runs.
    let x = unsafe { call.inputs[0].slice::<T>() };
    let y = Shared(call.outputs[0].ptr.cast::<i64>());
    let (length, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let n = call.outputs[0].ty.elements();
    let per_task = (TASK / length.max(1)).max(1);
    cpu.pool().run(n.div_ceil(per_task), |task| {
        for i in task * per_task..((task + 1) * per_task).min(n) {
            let start = i / inner * length * inner + i % inner;
            let at = |k: usize| x[start + k * inner];
            let best = (1..length).fold(0, |best, k| if at(k) > at(best) { k } else { best });
            // SAFETY: result i belongs to this task.
            unsafe { *y.get().add(i) = best as i64 };
        }
    });
}
