//! Copies to the host and back add no heap allocation to a steady step. The emulator's own launches allocate, so a step with
//! copies is held against the same step without.

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, Type};
use plimsoll_run::{
    Device, Kind, Result, StateTensor, Step, StepArgs, StepOptions, StepResult, Tape, Tensor, TensorOps,
};
use plimsoll_testing::{Counting, group};

#[global_allocator]
static COUNTING: Counting = Counting;

fn body(pass: &StepArgs<'_>) -> Result<StepResult> {
    let tape = Tape::new();
    tape.watch(&pass.state[0])?;
    let mut x = pass.inputs[0].clone();
    for _ in 0..6 {
        x = x.matmul(&pass.state[0])?.tanh()?;
    }
    let loss = x.square()?.mean(&[], false)?;
    let grad = tape.gradient(&loss, &[&pass.state[0]])?.remove(0);
    let state = vec![pass.state[0].sub(&grad.mul_scalar(0.05)?)?];
    Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
}

/// Allocations of three steady steps, the copies of each, the ops that run again, and what was planned.
fn allocations(device: &Device, options: StepOptions) -> (usize, u64, u64, Bytes, Bytes) {
    device.scope(|| {
        let (w, x) = (Type::new(DType::F32, [32, 32]), Type::new(DType::F32, [64, 32]));
        let tensor = Tensor::full(w, 0.1).unwrap();
        let held = vec![StateTensor { name: "w".into(), kind: Kind::Parameter, tensor }];
        let mut step = Step::compile_with(options, held, std::slice::from_ref(&x), body).unwrap();
        let x = Tensor::full(x, 0.5).unwrap();
        for _ in 0..3 {
            step.run(&[&x]).unwrap();
        }
        let before = Counting::allocations();
        for _ in 0..3 {
            step.run(&[&x]).unwrap();
        }
        let made = Counting::allocations() - before;
        let info = step.info();
        (made, info.offloaded_copies, info.recomputed_ops, info.floor, info.unlimited)
    })
}

#[test]
fn copies_allocate_nothing() {
    let Some(device) = group("emulator", Device::cuda_emulated(Bytes::mib(64))) else { return };
    let (without, copies, ..) = allocations(&device, StepOptions::default());
    assert_eq!(copies, 0);
    let free = StepOptions::default().host_limit(Some(Bytes::mib(64)));
    let (.., floor, unlimited) = allocations(&device, free.clone());
    let line = Bytes((floor.get() + unlimited.get()) / 2);
    let (with, copies, again, ..) = allocations(&device, free.limit(Some(line)));
    assert!(copies > 0 && again == 0, "{copies} copies, {again} ops again");
    assert_eq!(with, without, "three steps with {copies} copies each");
}
