//! Steps that copy activations to the host and back beside their kernels: the same bits as without, on the emulator, whose
//! copies are as late as they may be, and on a card where there is one, recorded as a CUDA graph.

use std::sync::MutexGuard;

use crate::own_memory::{assert_apart, is_card, noise};
use plimsoll_device::{Bytes, Kind as LedgerKind};
use plimsoll_graph::{ConvGeometry, ConvOps, DType, Padding, Type};
use plimsoll_run::record::Action;
use plimsoll_run::{
    Device, Error, Exactness, Kind, Result, StateSpec, StateTensor, Step, StepArgs, StepOptions, StepPlanner,
    StepResult, Tape, Tensor, TensorOps,
};
use plimsoll_testing::{alone, group};

/// The devices with memory of their own, or lines that say which are not there; with a card, the right to use it alone.
fn devices() -> (Vec<Device>, Option<MutexGuard<'static, ()>>) {
    let card = Device::cuda(0);
    if let Ok(card) = &card {
        // What is better, to copy or to run again, depends on how fast the card and its link really are.
        card.calibrate(&std::env::temp_dir().join("plimsoll-offload-times"));
    }
    let found = [("emulator", Device::cuda_emulated(Bytes::mib(256))), ("card", card)];
    let there = found.into_iter().filter_map(|(name, device)| group(name, device));
    let there: Vec<Device> = there.collect();
    let alone = there.iter().any(is_card).then(alone);
    (there, alone)
}

/// A model whose gradients need what every layer made.
#[derive(Clone, Copy, Debug)]
enum Net {
    Dense,
    Conv,
}

impl Net {
    /// Few samples and channels for the emulator, which is slow. For a card so many that a layer takes longer to run again than
    /// its result to be copied, and that activations outweigh its pages.
    fn input(self, device: &Device) -> Type {
        match (self, is_card(device)) {
            (Net::Dense, false) => Type::new(DType::F32, [128, 32]),
            (Net::Dense, true) => Type::new(DType::F32, [1 << 11, 4096]),
            (Net::Conv, false) => Type::new(DType::F32, [2, 10, 10, 4]),
            (Net::Conv, true) => Type::new(DType::F32, [16, 64, 64, 256]),
        }
    }

    fn weights(self, device: &Device) -> Vec<Type> {
        let channels = self.input(device).shape.last().copied().unwrap_or(1);
        match self {
            Net::Dense => vec![Type::new(DType::F32, [channels, channels]); 8],
            Net::Conv => vec![Type::new(DType::F32, [3, 3, channels, channels]); 6],
        }
    }

    fn layer(self, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        match self {
            Net::Dense => x.matmul(w)?.tanh(),
            Net::Conv => x
                .conv2d(w, None, ConvGeometry { pad: Padding::Same, ..ConvGeometry::default() })?
                .tanh()?
                .exp(),
        }
    }

    fn body(self, pass: &StepArgs<'_>) -> Result<StepResult> {
        let tape = Tape::new();
        pass.state.iter().try_for_each(|w| tape.watch(w))?;
        let mut x = pass.inputs[0].clone();
        for w in pass.state {
            x = self.layer(&x, w)?;
        }
        let loss = x.square()?.mean(&[], false)?;
        let grads = tape.gradient(&loss, &pass.state.iter().collect::<Vec<_>>())?;
        let new = pass.state.iter().zip(&grads).map(|(w, g)| w.sub(&g.mul_scalar(0.05)?));
        Ok(StepResult { state: new.collect::<Result<_>>()?, outputs: vec![loss], totals: vec![] })
    }

    fn held(self, device: &Device) -> Vec<(String, Kind, Type)> {
        let named = |(i, ty): (usize, Type)| (format!("w{i}"), Kind::Parameter, ty);
        self.weights(device).into_iter().enumerate().map(named).collect()
    }
}

/// The state as far as planning must know it.
fn specs(held: Vec<(String, Kind, Type)>) -> Vec<StateSpec> {
    held.into_iter().map(|(name, kind, ty)| StateSpec::new(name, kind, ty)).collect()
}

fn options() -> StepOptions {
    StepOptions { batched: true, guarded: true, ..StepOptions::default() }.exactness(Exactness::Bitwise)
}

/// Copies that are allowed to take whatever they like.
fn copying(memory: Option<Bytes>) -> StepOptions {
    options().limit(memory).host_limit(Some(Bytes::gib(8)))
}

/// Dense layers in the lowest of their limits, so that they are copied out.
fn tight(device: &Device) -> Step {
    compile(Net::Dense, device, copying(Some(lines(Net::Dense, device)[0]))).unwrap()
}

fn compile(net: Net, device: &Device, options: StepOptions) -> Result<Step> {
    device.scope(|| {
        let fill = |(i, (name, kind, ty)): (usize, (String, Kind, Type))| StateTensor {
            name,
            kind,
            tensor: noise(&ty, 0.3, i as u64),
        };
        let held = net.held(device).into_iter().enumerate().map(fill).collect();
        Step::compile_with(options, held, &[net.input(device)], move |pass| net.body(pass))
    })
}

/// Losses and the state after a few steps: enough that a device that records replays what it recorded.
fn bits(net: Net, device: &Device, step: &mut Step) -> Vec<Vec<u8>> {
    let x = device.scope(|| noise(&net.input(device), 1.0, 99));
    let mut seen = Vec::new();
    for _ in 0..5 {
        let outputs = step.run(&[&x]).unwrap();
        seen.push(outputs[0].to_bytes().unwrap());
    }
    seen.extend(step.state().iter().map(|t| t.to_bytes().unwrap()));
    seen
}

/// Lines between the least with copies and what the fastest plan takes. What a card's context takes may change by a page or
/// two from plan to plan, so there the least itself is left out.
fn lines(net: Net, device: &Device) -> Vec<Bytes> {
    let survey = StepPlanner::new(
        &copying(None),
        device,
        specs(net.held(device)),
        &[net.input(device)],
        move |pass| net.body(pass),
    );
    let survey = survey.unwrap();
    let (floor, most) = (survey.floor().get(), survey.unlimited().get());
    let first = if is_card(device) { 1 } else { 0 };
    (first..4).map(|k| Bytes(floor + (most - floor) * k / 4)).collect()
}

#[test]
fn copies_give_the_same_bits_under_every_limit() {
    let (devices, _alone) = devices();
    for device in devices {
        for net in [Net::Dense, Net::Conv] {
            let mut free = compile(net, &device, options()).unwrap();
            assert_eq!((free.info().offloaded_copies, free.info().host_bytes), (0, Bytes::ZERO));
            let expected = bits(net, &device, &mut free);
            drop(free);
            let mut copied = Vec::new();
            for line in lines(net, &device) {
                let mut step = compile(net, &device, copying(Some(line))).unwrap();
                let info = step.info().clone();
                println!(
                    "{} {net:?} in {line}: {} copies of {}, {} on the host, {} again",
                    device.name(),
                    info.offloaded_copies,
                    info.offloaded_bytes,
                    info.host_bytes,
                    info.recomputed_ops
                );
                assert!(info.planned <= line && info.exactness == Exactness::Bitwise);
                assert_eq!(info.offloaded_copies > 0, info.host_bytes > Bytes::ZERO);
                assert!(bits(net, &device, &mut step) == expected, "{net:?} in {line}: other bits");
                copied.push(info.offloaded_copies);
            }
            assert!(copied.iter().any(|&copies| copies > 0), "{net:?}: no plan copies anything");
        }
    }
}

#[test]
fn the_record_of_a_step_shows_its_copies_and_holds_what_the_plan_calls_live() {
    let (devices, _alone) = devices();
    for device in devices {
        let step = tight(&device);
        let timeline = step.timeline().unwrap();
        let count = |what: Action| timeline.instructions.iter().filter(|i| i.what == what).count() as u64;
        assert_eq!(count(Action::Offload) + count(Action::Prefetch), step.info().offloaded_copies);
        assert_eq!(count(Action::Await), step.info().offloaded_copies, "every copy is waited for once");
        assert!(count(Action::Prefetch) > 0);
        // A recording ends at a check, and nothing that it starts may be under way then.
        let mut under_way = 0;
        for instruction in &timeline.instructions {
            match instruction.what {
                Action::Offload | Action::Prefetch => under_way += 1,
                Action::Await => under_way -= 1,
                Action::Check => assert_eq!(under_way, 0, "copies at the check"),
                Action::Run | Action::Again | Action::Copy => {}
            }
        }
        assert_eq!(count(Action::Check), 1);
        assert_eq!(timeline.peak().1, step.info().live.get());
        assert_apart(&timeline);
    }
}

#[test]
fn host_memory_lowers_the_floor_and_is_never_exceeded() {
    let (devices, _alone) = devices();
    for device in devices {
        let survey = |options: &StepOptions| {
            let net = Net::Dense;
            StepPlanner::new(options, &device, specs(net.held(&device)), &[net.input(&device)], move |pass| {
                net.body(pass)
            })
            .unwrap()
        };
        let (without, with) = (survey(&options()).floor(), survey(&copying(None)).floor());
        assert!(with <= without, "{with} with copies, {without} without");
        let zero = options().host_limit(Some(Bytes::ZERO));
        // What libraries take of a card is measured, and grows by a grain now and then.
        let grain = if is_card(&device) { 32 << 20 } else { 0 };
        assert!(survey(&zero).floor().get().abs_diff(without.get()) <= grain);
        // From too little for any tensor to all that is wanted.
        let line = Bytes((with.get() + 2 * survey(&options()).unlimited().get()) / 3).max(without);
        for host in [Bytes(1), Bytes::kib(17), Bytes::kib(40), Bytes::mib(24), Bytes::gib(8)] {
            let options = options().limit(Some(line)).host_limit(Some(host));
            let info = survey(&options).plan(Some(line)).unwrap().figures;
            assert!(info.host_bytes <= host, "{} of {host}", info.host_bytes);
            assert!(info.planned <= line);
        }
    }
}

#[test]
fn the_floor_with_copies_is_kept_and_a_byte_less_is_refused() {
    let (devices, _alone) = devices();
    for device in devices.into_iter().filter(|device| !is_card(device)) {
        let net = Net::Dense;
        let floor = compile(net, &device, copying(None)).unwrap().info().floor;
        let mut free = compile(net, &device, options()).unwrap();
        let expected = bits(net, &device, &mut free);
        drop(free);
        let mut tight = compile(net, &device, copying(Some(floor))).unwrap();
        assert!(tight.info().planned <= floor);
        assert!(bits(net, &device, &mut tight) == expected);
        drop(tight);
        match compile(net, &device, copying(Some(Bytes(floor.get() - 1)))) {
            Err(Error::Infeasible { least, .. }) => assert_eq!(least, floor),
            other => panic!("a byte less gave {:?}", other.map(|step| step.info().clone())),
        }
    }
}

#[test]
fn a_refusal_without_host_memory_says_what_it_would_give() {
    let (devices, _alone) = devices();
    for device in devices.into_iter().filter(|device| !is_card(device)) {
        let least = compile(Net::Dense, &device, copying(None)).unwrap().info().floor;
        let tight = options().limit(Some(Bytes(1)));
        let Err(Error::Infeasible { ways, .. }) = compile(Net::Dense, &device, tight) else {
            panic!("a byte is enough");
        };
        let way = ways.iter().find(|way| way.change.contains("host memory")).expect("the way");
        // It is enough, and hardly more: what a search of the other step leaves behind is counted too.
        let more = way.least.get().checked_sub(least.get()).expect("no less than the least");
        assert!(more <= 64 << 10, "{}: {} where {least} would do", way.change, way.least);
        assert!(compile(Net::Dense, &device, copying(Some(way.least))).is_ok(), "{}", way.change);
    }
}

#[test]
fn the_ledger_has_a_row_for_the_host() {
    let (devices, _alone) = devices();
    for device in devices {
        let step = tight(&device);
        let (ledger, host) = (step.ledger(), step.info().host_bytes);
        // By the times of a card a plan with state on the host, or without copies, may be as good: a row for each then.
        assert!(host > Bytes::ZERO || is_card(&device));
        let all = ledger.total(LedgerKind::Host);
        assert_eq!((all.planned, all.measured.unwrap_or(Bytes::ZERO)), (host, host), "{ledger}");
        assert!(is_card(&device) || ledger.row(LedgerKind::Host, "copies to the host").is_some());
    }
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_and_the_next_is_right() {
    let (devices, _alone) = devices();
    for device in devices {
        let net = Net::Dense;
        let mut free = compile(net, &device, options()).unwrap();
        let expected = bits(net, &device, &mut free);
        drop(free);
        let mut step = compile(net, &device, copying(Some(lines(net, &device)[0]))).unwrap();
        assert!(step.info().offloaded_copies > 0);
        let ty = net.input(&device);
        let bad = device.scope(|| Tensor::full(ty, f64::NAN)).unwrap();
        for _ in 0..3 {
            assert!(matches!(step.run(&[&bad]), Err(Error::NotFinite { .. })));
        }
        assert!(bits(net, &device, &mut step) == expected);
    }
}

#[test]
fn a_smaller_batch_and_another_line_share_the_host_memory() {
    let (devices, _alone) = devices();
    for device in devices {
        let net = Net::Dense;
        let ty = net.input(&device);
        let smaller = ty.with_shape(ty.shape.with(0, ty.shape[0] / 2));
        // The inputs are tensors of the device too, and a part of the line.
        let line = lines(net, &device)[0] + Bytes::from(2 * (ty.bytes() + smaller.bytes()));
        let (large, small) = device.scope(|| (noise(&ty, 1.0, 5), noise(&smaller, 1.0, 6)));
        let mixed = [&large, &small, &large, &large, &small, &large];
        let losses = |step: &mut Step| {
            mixed.map(|x| step.run(&[x]).map(|outputs| outputs[0].to_bytes().unwrap())).map(Result::unwrap)
        };
        let mut free = compile(net, &device, options()).unwrap();
        let expected = [losses(&mut free), losses(&mut free)];
        drop(free);
        let mut step = compile(net, &device, copying(Some(line))).unwrap();
        assert!(step.info().offloaded_copies > 0);
        assert_eq!(losses(&mut step), expected[0]);
        assert_eq!(step.n_shapes(), 2);
        step.replan(options()).unwrap();
        assert_eq!(step.info().offloaded_copies, 0);
        assert_eq!(losses(&mut step), expected[1]);
    }
}

#[test]
fn the_cpu_copies_nothing_whatever_is_allowed() {
    let device = Device::cpu_with(1, Bytes::mib(256)).unwrap();
    let step = compile(Net::Dense, &device, copying(None)).unwrap();
    assert_eq!((step.info().offloaded_copies, step.info().host_bytes), (0, Bytes::ZERO));
}
