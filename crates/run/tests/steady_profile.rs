//! Steps that are profiled allocate nothing: the buffers are there before the first of them.

mod dense;

use dense::body;
use plimsoll_device::Bytes;
use plimsoll_graph::{DType, Type};
use plimsoll_run::{Device, Kind, StateTensor, Step, StepOptions, Tensor};
use plimsoll_testing::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn profiled_steps_allocate_nothing() {
    let device = Device::cpu_with(1, Bytes::mib(64)).unwrap();
    let (mut step, x) = device.scope(|| {
        let tensor = Tensor::full(Type::new(DType::F32, [32, 32]), 0.1).unwrap();
        let held = vec![StateTensor { name: "w".into(), kind: Kind::Parameter, tensor }];
        let x = Type::new(DType::F32, [64, 32]);
        let step = Step::compile_with(StepOptions::default(), held, std::slice::from_ref(&x), body).unwrap();
        (step, Tensor::full(x, 0.5).unwrap())
    });
    let allocations = |step: &mut Step| {
        step.run(&[&x]).unwrap();
        let before = Counting::allocations();
        for _ in 0..6 {
            step.run(&[&x]).unwrap();
        }
        Counting::allocations() - before
    };
    assert_eq!(allocations(&mut step), 0, "steps as they are");
    step.profile(4).unwrap();
    // One to warm up, the four that are asked for, and two behind them.
    assert_eq!(allocations(&mut step), 0, "profiled steps");
    assert_eq!(step.take_profile().unwrap().1.steps.len(), 4);
    assert_eq!(allocations(&mut step), 0, "steps after a profile");
}
