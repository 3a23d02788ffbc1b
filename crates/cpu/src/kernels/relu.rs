//! Relu that keeps one bit an element for its gradient.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault};
use plimsoll_graph::{DType, ops};

use super::Kernel;
use crate::Cpu;
use crate::gemm::Shared;
use crate::simd::{Float32, end_block, multiversion};

/// Elements of a task; a multiple of the block, so that no byte of the mask has two writers.
const TASK: usize = 32 * 1024;
/// Elements whose bits are made at once.
const BLOCK: usize = 32;

/// What relu asks of an element.
trait Rectified: Element {
    const ZERO: Self;
    fn is_positive(self) -> bool;
    fn is_negative(self) -> bool;
}

macro_rules! rectified {
    ($($ty:ty, $zero:expr, |$x:ident| $value:expr;)+) => { $(
        impl Rectified for $ty {
            const ZERO: $ty = $zero;
            #[inline(always)]
            fn is_positive(self) -> bool {
                let $x = self;
                $value > 0.0
            }
            #[inline(always)]
            fn is_negative(self) -> bool {
                let $x = self;
                $value < 0.0
            }
        }
    )+ };
}

rectified! {
    f32, 0.0, |x| x;
    f64, 0.0, |x| x;
    bf16, bf16::ZERO, |x| x.widen();
    f16, f16::ZERO, |x| x.widen();
}

multiversion! {
    /// y = max(x, 0) and the bits of x > 0, for `n` elements from a multiple of eight on; y may be x.
    fn rectify<L; T: Rectified>(x: *const T, y: *mut T, mask: *mut u8, n: usize) {
        let mut i = 0;
        while i + BLOCK <= n {
            // SAFETY: the callers give `n` elements and their bits.
            let values = unsafe { x.add(i).cast::<[T; BLOCK]>().read_unaligned() };
            let mut bits = 0u32;
            let mut result = values;
            for j in 0..BLOCK {
                bits |= if values[j].is_positive() { 1 << j } else { 0 };
                result[j] = if values[j].is_negative() { T::ZERO } else { values[j] };
            }
            // SAFETY: as above; a block has four bytes of bits.
            unsafe {
                y.add(i).cast::<[T; BLOCK]>().write_unaligned(result);
                mask.add(i / 8).cast::<[u8; 4]>().write(bits.to_le_bytes());
            }
            end_block();
            i += BLOCK;
        }
        while i < n {
            let mut bits = 0u8;
            for j in 0..8.min(n - i) {
                // SAFETY: as above.
                unsafe {
                    let value = *x.add(i + j);
                    bits |= u8::from(value.is_positive()) << j;
                    *y.add(i + j) = if value.is_negative() { T::ZERO } else { value };
                }
            }
            // SAFETY: as above.
            unsafe { *mask.add(i / 8) = bits };
            i += 8;
        }
    }

    /// dx = dy where the bit is set, else 0, for `n` elements from a multiple of eight on; dx may be dy.
    fn pass<L; T: Rectified>(mask: *const u8, dy: *const T, dx: *mut T, n: usize) {
        let mut i = 0;
        while i + BLOCK <= n {
            // SAFETY: the callers give `n` elements and their bits.
            let (mut values, bits) = unsafe {
                (dy.add(i).cast::<[T; BLOCK]>().read_unaligned(), mask.add(i / 8).cast::<[u8; 4]>().read())
            };
            let bits = u32::from_le_bytes(bits);
            for j in 0..BLOCK {
                values[j] = if bits >> j & 1 == 1 { values[j] } else { T::ZERO };
            }
            // SAFETY: as above.
            unsafe { dx.add(i).cast::<[T; BLOCK]>().write_unaligned(values) };
            end_block();
            i += BLOCK;
        }
        for i in i..n {
            // SAFETY: as above.
            unsafe {
                let is_set = *mask.add(i / 8) >> (i % 8) & 1 == 1;
                *dx.add(i) = if is_set { *dy.add(i) } else { T::ZERO };
            }
        }
    }
}

/// Calls a function for the Rust type of a float element type.
macro_rules! for_rectified {
    ($dtype:expr, $typed:ident($($arg:expr),*)) => {
        match $dtype {
            DType::F64 => $typed::<f64>($($arg),*),
            DType::BF16 => $typed::<bf16>($($arg),*),
            DType::F16 => $typed::<f16>($($arg),*),
            _ => $typed::<f32>($($arg),*),
        }
    };
}

impl Kernel for ops::ReluMask {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        fn typed<T: Rectified>(cpu: &Cpu, call: &Call<'_>) {
            let n = call.inputs[0].ty.elements();
            let (x, y) = (Shared(call.inputs[0].ptr.cast::<T>()), Shared(call.outputs[0].ptr.cast::<T>()));
            let mask = Shared(call.outputs[1].ptr);
            cpu.pool().run(n.div_ceil(TASK), |task| {
                let (start, n) = (task * TASK, TASK.min(n - task * TASK));
                let (x, y) = (x.get().wrapping_add(start), y.get().wrapping_add(start));
                rectify::<T>(cpu.isa(), x, y, mask.get().wrapping_add(start / 8), n);
            });
        }
        for_rectified!(call.inputs[0].ty.dtype, typed(cpu, call));
        Ok(())
    }
}

impl Kernel for ops::ReluMaskGrad {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        fn typed<T: Rectified>(cpu: &Cpu, call: &Call<'_>) {
            let n = call.inputs[1].ty.elements();
            let mask = Shared(call.inputs[0].ptr);
            let (dy, dx) = (Shared(call.inputs[1].ptr.cast::<T>()), Shared(call.outputs[0].ptr.cast::<T>()));
            cpu.pool().run(n.div_ceil(TASK), |task| {
                let (start, n) = (task * TASK, TASK.min(n - task * TASK));
                let (dy, dx) = (dy.get().wrapping_add(start), dx.get().wrapping_add(start));
                pass::<T>(cpu.isa(), mask.get().wrapping_add(start / 8), dy, dx, n);
            });
        }
        for_rectified!(call.inputs[1].ty.dtype, typed(cpu, call));
        Ok(())
    }
}
