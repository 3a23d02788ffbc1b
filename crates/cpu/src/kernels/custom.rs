//! Calls kernels that users wrote, with their operands as slices.

use std::panic::{AssertUnwindSafe, catch_unwind};

use plimsoll_device::backend::{Call, Fault, Operand};
use plimsoll_graph::custom::{Elements, ElementsMut, HostCall, Parallel};
use plimsoll_graph::{DType, Type, ops};
use smallvec::SmallVec;

use super::Kernel;
use crate::Cpu;

macro_rules! elements {
    ($( $variant:ident, )+) => {
        /// The elements of an operand.
        ///
        /// # Safety
        /// As for [`Operand::slice`].
        unsafe fn elements<'s>(x: &Operand<'_>) -> Elements<'s> {
            use std::slice::from_raw_parts as slice;
            // SAFETY: the caller's promise, and each type is held in these bytes.
            unsafe {
                match x.ty.dtype { $( DType::$variant => Elements::$variant(slice(x.ptr.cast(), x.ty.elements())), )+ }
            }
        }

        /// The elements of an operand, to be written.
        ///
        /// # Safety
        /// As for [`Operand::slice_mut`].
        unsafe fn elements_mut<'s>(x: &Operand<'_>) -> ElementsMut<'s> {
            use std::slice::from_raw_parts_mut as slice;
            // SAFETY: the caller's promise, and each type is held in these bytes.
            unsafe {
                match x.ty.dtype { $( DType::$variant => ElementsMut::$variant(slice(x.ptr.cast(), x.ty.elements())), )+ }
            }
        }
    };
}
elements! { F32, F64, BF16, F16, I64, I32, I16, I8, U32, U16, U8, Bool, }

impl Kernel for ops::Custom {
    fn scratch(&self, _: &Cpu, inputs: &[&Type], outputs: &[&Type]) -> usize {
        self.op().scratch(inputs, outputs)
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let pool = cpu.pool();
        let run = |body: &(dyn Fn(usize) + Sync)| pool.run(pool.threads(), body);
        let types: SmallVec<[&Type; 8]> = call.inputs.iter().map(|x| x.ty).collect();
        // SAFETY: the caller's promise. A custom op has no in-place rule, so no output shares memory with an input.
        let mut host = unsafe {
            HostCall {
                input_types: &types,
                inputs: call.inputs.iter().map(|x| elements(x)).collect(),
                outputs: call.outputs.iter().map(|y| elements_mut(y)).collect(),
                scratch: call.scratch(),
                parallel: Parallel::new(pool.threads(), &run),
            }
        };
        let name = self.op().name();
        // A user's mistake must not take the run with it: the step is refused and nothing of it is kept.
        match catch_unwind(AssertUnwindSafe(|| self.op().run(&mut host))) {
            Ok(done) => done.map_err(|why| Fault::new(name, why)),
            Err(panic) => {
                let said = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
                let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                Err(Fault::new(name, format!("its kernel panicked: {said}")))
            }
        }
    }
}
