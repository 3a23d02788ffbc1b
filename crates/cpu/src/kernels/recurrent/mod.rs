//! LSTM and GRU over a sequence: the products that do not wait for the step before are one large product each, the
//! others a small product a step, with the gates computed while its result is still in the cache.
//!
//! A step is shared out by units: a task computes all gates of its units for the whole batch, from its own block of
//! the recurrent weights, which are put in blocks once for all steps. So there is one fork and one join a step, and a
//! thread meets the same weights in its cache step after step.
//!
//! Everything is computed in f32 (f64 for f64) and in time-major order, which x is brought into on the way; 16-bit
//! operands are widened on the same way.
//!
//! Letters: B samples, T steps, I inputs, H units, G gates.

mod blocks;
mod gru;
mod large;
mod lstm;
mod order;
mod passes;
mod step;

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{self, RecurrentDims};
use plimsoll_graph::{DType, Type};

use super::Kernel;
use super::carver::Carver;
use super::lanes::{Stored, by_dtype, for_float};
use crate::Cpu;
use order::Bound;

/// The sizes of a call whose shapes the op has checked.
fn dims(x: &Type, u: &Type) -> RecurrentDims {
    let at = |t: &Type, axis: usize| t.shape.get(axis).copied().unwrap_or(0);
    RecurrentDims { batch: at(x, 0), steps: at(x, 1), inputs: at(x, 2), units: at(u, 0) }
}

/// Whether operands must be copied to be computed with.
fn is_narrow(dtype: DType) -> bool {
    dtype.bytes() == 2
}

macro_rules! recurrent_kernel {
    ($($op:ident => $run:path;)+) => { $(
        impl Kernel for ops::$op {
            fn scratch(&self, cpu: &Cpu, inputs: &[&Type], outputs: &[&Type]) -> usize {
                let mut carver = Carver::new(std::ptr::null_mut());
                by_dtype!(
                    inputs[0].dtype, T in F32 = f32, F64 = f64, BF16 = half::bf16, F16 = half::f16 => {
                        // SAFETY: without a call nothing is read or written; the scratch is only counted.
                        unsafe { $run(cpu, dims(inputs[0], inputs[2]), &mut Bound::<T>::counting(inputs, outputs, &mut carver)) }
                    },
                    _other => ()
                );
                carver.used()
            }

            unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
                let mut carver = Carver::new(call.scratch);
                for_float!(call.inputs[0].ty.dtype, call.op, T => {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let dims = dims(call.inputs[0].ty, call.inputs[2].ty);
                        $run(cpu, dims, &mut Bound::<T>::running(cpu, call, &mut carver));
                    }
                    Ok(())
                })
            }
        }
    )+ };
}

recurrent_kernel! {
    Lstm => lstm::forward;
    LstmGrad => lstm::backward;
    Gru => gru::forward;
    GruGrad => gru::backward;
}

/// The compute type of a stored type.
type Of<T> = <T as Stored>::Wide;
