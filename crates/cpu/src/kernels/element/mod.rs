//! Elementwise ops, single and fused: all of them run through one tile interpreter.
//!
//! A single op is a chain of one step, built on the stack. What fits f32 registers exactly or is rounded from f32
//! (f32, bf16, f16, bytes, truth values) runs in them; f64 and integers run in 64-bit ones.

mod layout;
mod narrow;
mod plan;
mod run;
mod wide;

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{self, Arg, ElementOp, Step};

use super::Kernel;
use crate::Cpu;
pub(crate) use narrow::apply;
use plan::{Program, is_narrow};
use run::execute;

/// Runs a program in the registers its types ask for.
///
/// # Safety
/// As for [`plimsoll_device::backend::Backend::run`].
unsafe fn run_program(cpu: &Cpu, program: Program<'_>, call: &Call<'_>) -> Result<(), Fault> {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        if is_narrow(program, call) {
            execute::<f32>(cpu, program, call)
        } else {
            execute::<wide::Word>(cpu, program, call)
        }
    }
}

/// Runs an op as a chain of one step over its inputs.
///
/// # Safety
/// As for [`plimsoll_device::backend::Backend::run`].
pub(super) unsafe fn run_one(cpu: &Cpu, op: ElementOp, call: &Call<'_>) -> Result<(), Fault> {
    let output = call.outputs[0].ty;
    let args = (0..op.arity() as u16).map(Arg::Input).collect();
    let step = Step { op, args, dtype: output.dtype };
    let program = Program { shape: &output.shape, steps: std::slice::from_ref(&step), outputs: &[0] };
    // SAFETY: the caller's promise, passed on.
    unsafe { run_program(cpu, program, call) }
}

macro_rules! single {
    ($($op:ty => |$self:ident| $element:expr;)+) => { $(
        impl Kernel for $op {
            unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
                let $self = self;
                // SAFETY: the caller's promise, passed on.
                unsafe { run_one(cpu, $element, call) }
            }
        }
    )+ };
}

single! {
    ops::Unary => |f| ElementOp::Unary(*f);
    ops::Binary => |f| ElementOp::Binary(*f);
    ops::Compare => |f| ElementOp::Compare(*f);
    ops::Select => |_op| ElementOp::Select;
    ops::Cast => |_op| ElementOp::Cast;
    ops::ReluGrad => |op| ElementOp::ReluGrad(op.slope);
}

impl Kernel for ops::Fused {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let chain = &*self.0;
        let program = Program { shape: &chain.shape, steps: &chain.steps, outputs: &chain.outputs };
        // SAFETY: the caller's promise, passed on.
        unsafe { run_program(cpu, program, call) }
    }
}
