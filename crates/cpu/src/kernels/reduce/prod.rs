//! The gradient of a product: each element's gradient is the product of all others.
//!
//! Instead of a product an element, one pass counts zeros and multiplies the rest; the others' product is then the
//! whole one divided by the element, or nothing where another element is zero.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault};
use plimsoll_graph::{DType, ops};
use smallvec::SmallVec;

use crate::Cpu;
use crate::gemm::Shared;
use crate::kernels::Kernel;
use crate::simd::Float32;

/// Elements that make a task worth waking a thread for.
const TASK: usize = 16 * 1024;

impl Kernel for ops::ProdGrad {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise, passed on; each type is the operands'.
        unsafe {
            match call.inputs[0].ty.dtype {
                DType::F64 => typed::<f64>(self, cpu, call, |x| x, |x| x),
                DType::BF16 => {
                    typed::<bf16>(self, cpu, call, |x| x.widen().into(), |x| Float32::narrow(x as f32))
                }
                DType::F16 => {
                    typed::<f16>(self, cpu, call, |x| x.widen().into(), |x| Float32::narrow(x as f32))
                }
                _ => typed::<f32>(self, cpu, call, f64::from, |x| x as f32),
            }
        }
        Ok(())
    }
}

unsafe fn typed<T: Element>(
    op: &ops::ProdGrad,
    cpu: &Cpu,
    call: &Call<'_>,
    widen: fn(T) -> f64,
    narrow: fn(f64) -> T,
) {
    let shape = &call.inputs[0].ty.shape;
    let strides = shape.strides();
    // SAFETY: the inputs are not written while this runs.
    let (x, dy) = unsafe { (call.inputs[0].slice::<T>(), call.inputs[1].slice::<T>()) };
    let dx = Shared(call.outputs[0].ptr.cast::<T>());
    if x.is_empty() {
        return;
    }
    let axes = |goes: bool| -> SmallVec<[(usize, usize); 8]> {
        (0..shape.rank())
            .filter(|axis| op.axes.contains(axis) == goes)
            .map(|a| (shape[a], strides[a]))
            .collect()
    };
    let (kept, gone) = (axes(false), axes(true));
    let n = gone.iter().map(|a| a.0).product::<usize>();
    let per_task = (TASK / n).max(1);
    cpu.pool().run(dy.len().div_ceil(per_task), |task| {
        for group in task * per_task..((task + 1) * per_task).min(dy.len()) {
            let start = offset(&kept, group);
            let (mut product, mut zeros) = (1.0, 0);
            for i in 0..n {
                match widen(x[start + offset(&gone, i)]) {
                    0.0 => zeros += 1,
                    value => product *= value,
                }
            }
            let dy = widen(dy[group]);
            for i in 0..n {
                let place = start + offset(&gone, i);
                let value = widen(x[place]);
                let others = match (zeros, value == 0.0) {
                    (0, _) => product / value,
                    (1, true) => product,
                    _ => 0.0,
                };
                // SAFETY: every element belongs to one group, and every group to one task.
                unsafe { *dx.get().add(place) = narrow(dy * others) };
            }
        }
    });
}

/// The place of the i-th index of some axes.
fn offset(axes: &[(usize, usize)], mut i: usize) -> usize {
    let mut offset = 0;
    for &(length, stride) in axes.iter().rev() {
        offset += i % length * stride;
        i /= length;
    }
    offset
}
