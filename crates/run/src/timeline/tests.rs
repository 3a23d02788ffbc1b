//! Records agree with the plans they are made from.

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_plan::Exactness;
use plimsoll_record as record;
use plimsoll_record::{Action, Kind, Phase};

use crate::{Device, StateTensor, Step, StepArgs, StepOptions, StepResult, Tape, Tensor};

/// A chain of layers whose gradients need what every one of them made, batched.
fn step(options: StepOptions) -> crate::Result<Step> {
    let device = Device::cpu_with(1, Bytes::mib(256)).unwrap();
    device.scope(|| {
        let tensor = Tensor::from_slice(&vec![0.01f32; 256 * 256], [256, 256])?;
        let held = vec![StateTensor { name: "chain/weight".into(), kind: Kind::Parameter, tensor }];
        let inputs = [Type::new(DType::F32, [512, 256])];
        Step::compile_with(options, held, &inputs, |pass: &StepArgs<'_>| {
            let tape = Tape::new();
            tape.watch(&pass.state[0])?;
            let mut x = pass.inputs[0].clone();
            for i in 0..12 {
                let layer = || x.matmul(&pass.state[0])?.tanh()?.exp()?.sin();
                x = crate::named(&format!("layer{i}"), layer)?;
            }
            let loss = x.square()?.mean(&[], false)?;
            let gradient = tape.gradient(&loss, &[&pass.state[0]])?.remove(0);
            let state = vec![pass.state[0].sub(&gradient.mul_scalar(0.1)?)?];
            Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
        })
    })
}

fn options(exactness: Exactness) -> StepOptions {
    StepOptions { batched: true, guarded: true, ..StepOptions::default() }.exactness(exactness)
}

/// Two tensors that are there at once lie apart, all inside the arena, and add up to what the plan calls live.
fn consistent(step: &Step) -> record::Step {
    let timeline = step.timeline().unwrap();
    assert_eq!(timeline.peak().1, step.info().live.get());
    assert_eq!(timeline.bytes.arena_bytes, step.info().arena.get());
    let residents: u64 = timeline.residents.iter().map(|r| r.bytes).sum();
    let bytes = &timeline.bytes;
    let held = bytes.program_bytes + bytes.pipeline_bytes + bytes.other_bytes + residents;
    assert_eq!(held + bytes.arena_bytes + bytes.unused_bytes, step.info().planned.get());
    let us: f64 = timeline.instructions.iter().map(|i| i.us).sum();
    if timeline.sections.len() == 1 {
        assert!((us / 1e6 - step.info().predicted_seconds).abs() < 1e-6, "{us} µs");
    }
    for (i, a) in timeline.tensors.iter().enumerate() {
        assert!(a.from < a.to && a.to as usize <= timeline.instructions.len(), "{a:?}");
        assert!(a.offset + a.bytes <= timeline.bytes.arena_bytes, "{a:?}");
        for b in &timeline.tensors[..i] {
            let at_once = a.from < b.to && b.from < a.to;
            let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            assert!(!at_once || apart, "{a:?} and {b:?}");
        }
    }
    timeline
}

fn again(timeline: &record::Step) -> u64 {
    timeline.instructions.iter().filter(|i| i.what == Action::Again).count() as u64
}

#[test]
fn a_timeline_holds_at_its_peak_what_the_plan_calls_live() {
    let step = step(options(Exactness::Bitwise)).unwrap();
    let timeline = consistent(&step);
    assert_eq!(timeline.sections.len(), 1);
    assert_eq!(timeline.names[timeline.residents[0].name as usize], "chain/weight");
    assert!(timeline.instructions.iter().any(|i| i.what == Action::Check));
    assert!(timeline.names.iter().any(|name| name == "layer7"));
    assert!(timeline.sites.iter().all(|site| site.contains("timeline/tests.rs:")), "{:?}", timeline.sites);
}

#[test]
fn what_a_line_makes_run_again_is_marked() {
    let free = step(options(Exactness::Bitwise)).unwrap();
    let line = Bytes(free.info().floor.get() + (2 << 20));
    let tight = step(options(Exactness::Bitwise).limit(Some(line))).unwrap();
    let timeline = consistent(&tight);
    assert!(again(&timeline) > 0);
    assert_eq!(again(&timeline), tight.info().recomputed_ops);
    assert!(timeline.tensors.iter().any(|t| t.again));
    assert_eq!(timeline.memory_limit_bytes, Some(line.get()));
}

#[test]
fn a_split_batch_is_a_pass_and_an_update_in_a_row() {
    let split = options(Exactness::Reassociated).micro_batch(Some(128));
    let timeline = consistent(&step(split).unwrap());
    let sections: Vec<(&str, u64, u64)> =
        timeline.sections.iter().map(|s| (&*s.name, s.samples, s.runs)).collect();
    assert_eq!(sections, [("pass", 128, 4), ("update", 0, 1)]);
    let sums = timeline.residents.iter().filter(|r| r.kind == Kind::Gradient);
    assert!(sums.map(|r| r.bytes).sum::<u64>() >= 256 * 256 * 4);
    assert!(timeline.instructions.iter().any(|i| i.phase == Phase::Update));
}
