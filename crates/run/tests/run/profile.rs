//! What is measured of steps and of eager ops adds up to the time that they take, and changes nothing else.

use crate::dense::body;
use plimsoll_device::{Bytes, Kind as LedgerKind};
use plimsoll_graph::{DType, Type};
use plimsoll_run::record::{Action, Profile, Step as StepRecord};
use plimsoll_run::{
    Device, Exactness, Kind, Result, StateTensor, Step, StepOptions, Tensor, TensorOps, profile, profile_room,
};
use plimsoll_testing::{alone, group};

const WIDTH: usize = 256;

/// A step of three layers, with a batch for it.
fn step(device: &Device, batch: usize, options: StepOptions) -> Result<(Step, Tensor)> {
    device.scope(|| {
        let noise = |n: usize| (0..n).map(|i| ((i * 37) % 101) as f32 / 1e3).collect::<Vec<f32>>();
        let held = |i: usize| {
            let tensor = Tensor::from_slice(&noise(WIDTH * WIDTH), [WIDTH, WIDTH])?;
            Ok(StateTensor { name: format!("w{i}"), kind: Kind::Parameter, tensor })
        };
        let state = (0..3).map(held).collect::<Result<_>>()?;
        let ty = Type::new(DType::F32, [batch, WIDTH]);
        let step = Step::compile_with(StepOptions { batched: true, ..options }, state, &[ty], body)?;
        Ok((step, Tensor::from_slice(&noise(batch * WIDTH), [batch, WIDTH])?))
    })
}

/// The devices with memory of their own that there are, by the names of their groups.
fn with_own_memory() -> Vec<(&'static str, Device)> {
    let found = [("emulator", Device::cuda_emulated(Bytes::mib(256))), ("card", Device::cuda(0))];
    found.into_iter().filter_map(|(name, device)| Some((name, group(name, device)?))).collect()
}

/// Profiles so many steps of so many that are run.
fn profiled(step: &mut Step, batch: &Tensor, asked: usize, run: usize) -> (StepRecord, Profile) {
    step.profile(asked).unwrap();
    for _ in 0..run {
        step.run(&[batch]).unwrap();
    }
    step.take_profile().unwrap()
}

/// What holds for every profile.
fn holds(record: &StepRecord, profile: &Profile) {
    profile.check(record, "profile").unwrap();
    for step in &profile.steps {
        let spent = &step.spent;
        let sum = spent.measured_ms() + spent.between_ms;
        assert!((sum - spent.step_ms).abs() < 1e-6, "{spent:?}");
        // Instructions follow each other inside the step.
        let mut end = 0.0;
        for run in &step.runs {
            assert!(run.start_us >= end - 1e-3, "{} before {end}", run.start_us);
            end = run.start_us + run.us.iter().map(|us| f64::from(*us)).sum::<f64>();
        }
        assert!(end <= spent.step_ms * 1e3 * 1.001, "{end} of {spent:?}");
    }
    let instructions: usize = profile.steps.iter().flat_map(|step| &step.runs).map(|run| run.us.len()).sum();
    assert_eq!(profile.rows.iter().map(|row| row.count).sum::<u64>(), instructions as u64);
    let of_rows: f64 = profile.rows.iter().filter(|row| row.what.is_kernel()).map(|row| row.total_ms).sum();
    let of_steps: f64 = profile.steps.iter().map(|step| step.spent.kernel_ms).sum();
    assert!((of_rows - of_steps).abs() < 1e-6 * of_steps.max(1.0), "{of_rows} and {of_steps}");
}

#[test]
fn kernels_add_up_to_the_step() {
    let device = Device::cpu_with(1, Bytes::gib(1)).unwrap();
    let (mut step, batch) = step(&device, 1024, StepOptions::default()).unwrap();
    let (record, profile) = profiled(&mut step, &batch, 5, 20);
    holds(&record, &profile);
    assert_eq!((profile.steps.len(), profile.asked, profile.left_out), (5, 5, 0));
    // The first one touches pages for the first time, and is not among those that are kept.
    assert_eq!(profile.steps[0].step, 2);
    // Beside what is between instructions, a step is its kernels; a busy machine may take the processor away there too.
    let best =
        profile.steps.iter().map(|step| step.spent.measured_ms() / step.spent.step_ms).fold(0.0, f64::max);
    assert!(best > 0.97, "{best} of a step is known: {:?}", profile.mean);
    let matmul = profile.rows.iter().find(|row| row.name == "matmul").unwrap();
    // Three forward, and two gradients each but for the input's.
    assert_eq!(matmul.count, 5 * 8);
    assert!(matmul.share > 0.3 && matmul.predicted_ms.is_some_and(|ms| ms > 0.0), "{matmul:?}");
    assert_eq!((profile.mean.uploaded_bytes, profile.mean.downloaded_bytes), (0.0, 0.0));
    assert!(profile.memory.tensor_peak_bytes >= profile.memory.arena_bytes && profile.memory.arena_bytes > 0);
}

#[test]
fn profiled_steps_give_the_same_bits_and_fewer_steps_than_asked_are_told() {
    let device = Device::cpu_with(2, Bytes::gib(1)).unwrap();
    let (mut plain, batch) = step(&device, 64, StepOptions::default()).unwrap();
    let (mut measured, _) = step(&device, 64, StepOptions::default()).unwrap();
    for _ in 0..3 {
        plain.run(&[&batch]).unwrap();
    }
    let (record, profile) = profiled(&mut measured, &batch, 100, 3);
    holds(&record, &profile);
    assert_eq!((profile.steps.len(), profile.asked), (3, 100));
    for (a, b) in plain.state().iter().zip(measured.state()) {
        assert_eq!(a.to_bytes().unwrap(), b.to_bytes().unwrap());
    }
    assert!(measured.take_profile().is_none(), "it was taken");
    let error = measured.profile(0).unwrap_err().to_string();
    assert!(error.contains("a profile of 0 steps"), "{error}");
}

#[test]
fn passes_of_a_split_batch_are_runs_of_their_own_and_other_batches_are_left_out() {
    let device = Device::cpu_with(1, Bytes::gib(1)).unwrap();
    let options = StepOptions::default().micro_batch(Some(32)).exactness(Exactness::Reassociated);
    let (mut step, batch) = step(&device, 128, options).unwrap();
    step.profile(4).unwrap();
    let small = device.scope(|| Tensor::zeros(Type::new(DType::F32, [32, WIDTH]))).unwrap();
    for i in 0..8 {
        step.run(&[if i == 3 { &small } else { &batch }]).unwrap();
    }
    let (record, profile) = step.take_profile().unwrap();
    holds(&record, &profile);
    assert_eq!((profile.steps.len(), profile.left_out), (4, 1));
    let sections: Vec<u32> = profile.steps[0].runs.iter().map(|run| run.section).collect();
    assert_eq!(sections, [0, 0, 0, 0, 1]);
    let row = |name: &str| profile.rows.iter().find(|row| row.name == name).unwrap();
    assert_eq!(row("matmul").count, 4 * 4 * 8);
}

#[test]
fn what_a_profile_takes_has_a_row_in_the_ledger() {
    let device = Device::cpu_with(1, Bytes::gib(1)).unwrap();
    let room = profile_room(10);
    let options = StepOptions { reserved: room, ..StepOptions::default() };
    let (mut step, batch) = step(&device, 64, options).unwrap();
    step.profile(10).unwrap();
    step.run(&[&batch]).unwrap();
    let ledger = step.ledger();
    assert_eq!(ledger.planned(), step.info().planned, "\n{ledger}");
    let row = ledger.row(LedgerKind::Other, "profile").unwrap_or_else(|| panic!("\n{ledger}"));
    assert_eq!(row.planned, room);
    assert!(row.measured.is_some_and(|held| held > Bytes::ZERO && held <= room), "\n{ledger}");
}

#[test]
fn copies_to_and_from_a_device_are_counted_and_timed() {
    let _alone = alone();
    for (name, device) in with_own_memory() {
        let before = device.traffic();
        let x = device.scope(|| Tensor::from_slice(&vec![1.0f32; 16 * WIDTH], [16, WIDTH])).unwrap();
        let bytes = x.to_bytes().unwrap().len() as u64;
        let traffic = device.traffic().since(before);
        assert_eq!((traffic.up.get(), traffic.down.get()), (bytes, bytes), "on {name}");
        let (mut step, batch) =
            step(&device, 16, StepOptions { guarded: true, ..StepOptions::default() }).unwrap();
        let (record, profile) = profiled(&mut step, &batch, 3, 12);
        holds(&record, &profile);
        assert_eq!(profile.steps.len(), 3);
        // The loss is read to see whether it is finite, and nothing else.
        assert_eq!((profile.mean.uploaded_bytes, profile.mean.downloaded_bytes), (0.0, 4.0), "on {name}");
        assert!(profile.mean.check_ms > 0.0 && profile.mean.host_waiting_ms > 0.0, "{:?}", profile.mean);
        assert!(record.instructions.iter().any(|line| line.what == Action::Check));
        let row = step.ledger();
        assert!(row.row(LedgerKind::Host, "profile").is_none(), "it was taken");
    }
}

#[test]
fn eager_ops_are_measured_one_by_one_with_their_lines() {
    let device = Device::cpu_with(1, Bytes::gib(1)).unwrap();
    let x = device.scope(|| Tensor::from_slice(&vec![0.01f32; 512 * 512], [512, 512])).unwrap();
    let (y, measured) = profile(|| -> Result<Tensor> {
        let y = x.matmul(&x)?.tanh()?;
        // A view runs nothing, and an op that is refused is none.
        let y = y.reshape([512 * 512])?.reshape([512, 512])?;
        assert!(y.matmul(&y.reshape([512 * 512])?).is_err());
        y.matmul(&x)
    })
    .unwrap();
    assert_eq!(y.unwrap().shape()[..], [512, 512]);
    let ops: Vec<&str> = measured.calls.iter().map(|call| call.op).collect();
    assert_eq!(ops, ["matmul", "tanh", "matmul"]);
    assert!(measured.calls.iter().all(|call| call.seconds > 0.0 && call.device == "cpu"));
    assert_eq!(measured.calls[0].bytes, 3 * 4 * 512 * 512);
    assert!(measured.calls[0].site.to_string().contains("profile.rs"), "{}", measured.calls[0].site);
    let share = measured.op_seconds() / measured.seconds;
    assert!(share > 0.5 && share <= 1.0, "{share} of the closure is ops");
    let text = measured.to_string();
    assert!(text.lines().nth(1).unwrap().starts_with("matmul"), "{text}");
    assert!(text.contains("ms between them"), "{text}");
    // Nothing is measured outside, and what is inside of another is measured for both.
    let (inner, outer) = profile(|| profile(|| x.tanh()).unwrap().1).unwrap();
    assert_eq!((inner.calls.len(), outer.calls.len()), (1, 1));
}

#[test]
fn eager_copies_are_measured_too_on_a_device_with_memory_of_its_own() {
    let _alone = alone();
    for (name, device) in with_own_memory() {
        let run = || -> Result<Vec<f32>> {
            let x = Tensor::from_slice(&[0.5f32; 64], [8, 8])?;
            x.matmul(&x)?.to_vec()
        };
        let (y, measured) = device.scope(|| profile(run)).unwrap();
        assert_eq!(y.unwrap(), [2.0; 64]);
        let ops: Vec<&str> = measured.calls.iter().map(|call| call.op).collect();
        assert_eq!(ops, ["upload", "matmul", "download"], "on {name}");
        assert_eq!((measured.traffic.up.get(), measured.traffic.down.get()), (256, 256));
        assert!(measured.to_string().contains("256 B from the host"), "{measured}");
    }
}
