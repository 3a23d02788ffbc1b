//! Steps whose weights and optimizer's state are in the host's memory: state comes to the device for its update and goes back, a weight comes
//! for each phase that reads it, beside the kernels, and the bits are those of a step that has it all on the device. On the emulator, whose
//! copies are as late as they may be, and on a card where there is one.

use std::sync::MutexGuard;

use crate::own_memory::{assert_apart, is_card, noise};
use plimsoll_device::{Bytes, Kind as LedgerKind};
use plimsoll_graph::{DType, Type};
use plimsoll_run::record::Action;
use plimsoll_run::{
    Device, Error, Exactness, Kind, Result, StateSpec, StateTensor, Step, StepArgs, StepOptions, StepPlanner,
    StepResult, Tape, Tensor, TensorOps,
};
use plimsoll_testing::{alone, group};

const LAYERS: usize = 6;

/// The devices with memory of their own, or lines that say which are not there; with a card, the right to use it alone.
fn devices() -> (Vec<Device>, Option<MutexGuard<'static, ()>>) {
    let found = [("emulator", Device::cuda_emulated(Bytes::mib(256))), ("card", Device::cuda(0))];
    let there = found.into_iter().filter_map(|(name, device)| group(name, device));
    let there: Vec<Device> = there.collect();
    let alone = there.iter().any(is_card).then(alone);
    (there, alone)
}

/// Few samples against many weights, so that state outweighs activations.
fn input(device: &Device) -> Type {
    Type::new(DType::F32, if is_card(device) { [64, 2048] } else { [8, 48] })
}

/// Weights, then what Adam keeps of each.
fn held(device: &Device) -> Vec<(String, Kind, Type)> {
    let n = input(device).shape[1];
    let ty = Type::new(DType::F32, [n, n]);
    let named = |what: &str, kind: Kind| {
        (0..LAYERS).map(|i| (format!("layer {i}/{what}"), kind, ty.clone())).collect::<Vec<_>>()
    };
    let (first, second) = (named("first moment", Kind::Optimizer), named("second moment", Kind::Optimizer));
    [named("weight", Kind::Parameter), first, second].concat()
}

fn body(pass: &StepArgs<'_>) -> Result<StepResult> {
    let (weights, moments) = pass.state.split_at(LAYERS);
    let (first, second) = moments.split_at(LAYERS);
    let tape = Tape::new();
    weights.iter().try_for_each(|w| tape.watch(w))?;
    let mut x = pass.inputs[0].clone();
    for w in weights {
        x = x.matmul(w)?.tanh()?;
    }
    let loss = x.square()?.mean(&[], false)?;
    let grads = tape.gradient(&loss, &weights.iter().collect::<Vec<_>>())?;
    let (mut new, mut m_new, mut v_new) = (Vec::new(), Vec::new(), Vec::new());
    for (((w, m), v), g) in weights.iter().zip(first).zip(second).zip(&grads) {
        let m = m.mul_scalar(0.9)?.add(&g.mul_scalar(0.1)?)?;
        let v = v.mul_scalar(0.99)?.add(&g.square()?.mul_scalar(0.01)?)?;
        new.push(w.sub(&m.div(&v.sqrt()?.add_scalar(1e-6)?)?.mul_scalar(0.01)?)?);
        m_new.push(m);
        v_new.push(v);
    }
    Ok(StepResult { state: [new, m_new, v_new].concat(), outputs: vec![loss], totals: vec![] })
}

fn options() -> StepOptions {
    StepOptions { batched: true, guarded: true, ..StepOptions::default() }
}

fn hosting(memory: Option<Bytes>) -> StepOptions {
    options().limit(memory).host_limit(Some(Bytes::gib(8)))
}

fn compile(device: &Device, options: StepOptions) -> Result<Step> {
    device.scope(|| {
        let scale = 1.0 / (input(device).shape[1] as f64).sqrt();
        let mut left = options.request.host_limit.unwrap_or(Bytes::ZERO);
        let mut all = Vec::new();
        for (i, (name, kind, ty)) in held(device).into_iter().enumerate() {
            let tensor = match kind {
                Kind::Parameter => noise(&ty, scale, i as u64),
                _ => Tensor::zeros(ty)?,
            };
            all.push(StateTensor { name, kind, tensor }.hosted(&mut left)?);
        }
        Step::compile_with(options, all, &[input(device)], body)
    })
}

fn survey(device: &Device, options: &StepOptions) -> StepPlanner {
    let specs = held(device).into_iter().map(|(name, kind, ty)| StateSpec::new(name, kind, ty)).collect();
    StepPlanner::new(options, device, specs, &[input(device)], body).unwrap()
}

fn losses(device: &Device, step: &mut Step, n: usize) -> Vec<Vec<u8>> {
    let x = device.scope(|| noise(&input(device), 1.0, 99));
    (0..n).map(|_| step.run(&[&x]).unwrap()[0].to_bytes().unwrap()).collect()
}

/// Losses and the state after a few steps: enough that a device that records replays what it recorded.
fn bits(device: &Device, step: &mut Step) -> Vec<Vec<u8>> {
    let mut seen = losses(device, step, 5);
    seen.extend(step.state().iter().map(|t| t.to_bytes().unwrap()));
    seen
}

fn expected(device: &Device) -> Vec<Vec<u8>> {
    bits(device, &mut compile(device, options()).unwrap())
}

/// A limit that all of the state on the device would pass: between the least with and without the host's memory.
fn low(device: &Device) -> Bytes {
    let (with, without) = (survey(device, &hosting(None)).floor(), survey(device, &options()).floor());
    assert!(with < without, "{with} with state on the host, {without} without");
    Bytes(with.get().midpoint(without.get()))
}

#[test]
fn state_on_the_host_gives_the_same_bits_under_every_limit() {
    let (devices, _alone) = devices();
    for device in devices {
        let expected = expected(&device);
        let (floor, most) = {
            let survey = survey(&device, &hosting(None));
            (survey.floor().get(), survey.unlimited().get())
        };
        // What a card's context takes may change by a page or two from plan to plan, so there the least itself is left out.
        let first = if is_card(&device) { 1 } else { 0 };
        let mut hosted = Vec::new();
        for k in first..=6 {
            let line = Bytes(floor + (most - floor) * k / 6);
            let mut step = compile(&device, hosting(Some(line))).unwrap();
            let info = step.info().clone();
            let away: usize = step.state().iter().filter(|t| t.is_hosted()).map(|t| t.ty().bytes()).sum();
            println!(
                "{} in {line}: {} of state on the host, {} copies of {}, {} again, {:.3} ms",
                device.name(),
                info.hosted_bytes,
                info.offloaded_copies,
                info.offloaded_bytes,
                info.recomputed_ops,
                info.predicted_seconds * 1e3,
            );
            assert!(info.planned <= line && info.exactness == Exactness::Bitwise);
            assert_eq!(info.hosted_bytes, Bytes::from(away));
            assert!(info.hosted_bytes <= info.host_bytes);
            assert!(bits(&device, &mut step) == expected, "other bits in {line}");
            if let Some(taken) = device.taken() {
                assert!(taken <= line, "{taken} of {line} are taken");
            }
            hosted.push(info.hosted_bytes);
        }
        assert!(hosted[0] > Bytes::ZERO, "no state is on the host where there is least");
        assert_eq!(hosted.last(), Some(&Bytes::ZERO), "state is on the host where there is room for it");
    }
}

#[test]
fn the_floor_is_lower_by_what_lives_on_the_host_and_a_byte_less_is_refused() {
    let (devices, _alone) = devices();
    for device in devices.into_iter().filter(|device| !is_card(device)) {
        let expected = expected(&device);
        let (with, without) = (survey(&device, &hosting(None)).floor(), survey(&device, &options()).floor());
        let state: usize = held(&device).iter().map(|(_, _, ty)| ty.bytes()).sum();
        // What comes for one update is there with it; so is a weight for its product.
        let gained = without.get() - with.get();
        assert!(gained > state as u64 / 2 && gained < state as u64, "{gained} of {state}");
        let mut step = compile(&device, hosting(Some(with))).unwrap();
        assert!(bits(&device, &mut step) == expected);
        drop(step);
        match compile(&device, hosting(Some(Bytes(with.get() - 1)))) {
            Err(Error::Infeasible { least, .. }) => assert_eq!(least, with),
            other => panic!("a byte less gave {:?}", other.map(|step| step.info().clone())),
        }
        let tight = options().limit(Some(with));
        let Err(Error::Infeasible { ways, .. }) = compile(&device, tight) else {
            panic!("it fits without the host")
        };
        let way = ways.iter().find(|way| way.change.contains("host memory")).expect("the way");
        assert_eq!(way.least, with, "{}", way.change);
    }
}

#[test]
fn where_there_is_least_weights_are_on_the_host_too() {
    let (devices, _alone) = devices();
    for device in devices.into_iter().filter(|device| !is_card(device)) {
        let expected = expected(&device);
        let floor = survey(&device, &hosting(None)).floor();
        let mut step = compile(&device, hosting(Some(floor))).unwrap();
        let weights = step.names().iter().zip(step.state()).filter(|((_, kind), _)| *kind == Kind::Parameter);
        let away = weights.filter(|(_, tensor)| tensor.is_hosted()).count();
        assert!(away > LAYERS / 2, "{away} of {LAYERS} weights are on the host");
        assert!(bits(&device, &mut step) == expected);
    }
}

#[test]
fn more_memory_is_never_slower_and_the_host_gives_no_more_than_it_may() {
    let (devices, _alone) = devices();
    for device in devices.into_iter().filter(|device| !is_card(device)) {
        for host in [Bytes::kib(1), Bytes::kib(30), Bytes::mib(8)] {
            let options = options().host_limit(Some(host));
            let mut survey = survey(&device, &options);
            let (floor, most) = (survey.floor().get(), survey.unlimited().get());
            let mut last = f64::MAX;
            for k in 0..12 {
                let line = Bytes(floor + (most - floor) * k / 11);
                let info = survey.plan(Some(line)).unwrap().figures;
                assert!(info.predicted_seconds <= last, "{line} is slower than less");
                assert!(info.planned <= line && info.host_bytes <= host, "{info:?}");
                last = info.predicted_seconds;
            }
        }
    }
}

#[test]
fn host_memory_never_makes_a_plan_slower() {
    let (devices, _alone) = devices();
    for device in devices.into_iter().filter(|device| !is_card(device)) {
        let (mut with, mut without) = (survey(&device, &hosting(None)), survey(&device, &options()));
        let (floor, most) = (without.floor().get(), without.unlimited().get());
        for k in 0..=8 {
            let line = Bytes(floor + (most - floor) * k / 8);
            let seconds =
                |survey: &mut StepPlanner| survey.plan(Some(line)).unwrap().figures.predicted_seconds;
            let (with, without) = (seconds(&mut with), seconds(&mut without));
            assert!(with <= without, "{} in {line}: {with} s, and {without} s without", device.name());
        }
    }
}

#[test]
fn state_moves_with_the_line_and_nothing_of_it_is_lost() {
    let (devices, _alone) = devices();
    for device in devices {
        let expected = losses(&device, &mut compile(&device, options()).unwrap(), 9);
        let line = low(&device);
        let mut step = compile(&device, hosting(Some(line))).unwrap();
        let is_hosted = |step: &Step| step.state().iter().any(Tensor::is_hosted);
        assert!(is_hosted(&step));
        let mut seen = losses(&device, &mut step, 3);
        step.replan(options()).unwrap();
        assert!(!is_hosted(&step));
        seen.extend(losses(&device, &mut step, 3));
        step.replan(hosting(Some(line + Bytes::from(input(&device).bytes())))).unwrap();
        assert!(is_hosted(&step));
        seen.extend(losses(&device, &mut step, 3));
        assert!(seen == expected);
    }
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_on_the_host_either() {
    let (devices, _alone) = devices();
    for device in devices {
        let expected = expected(&device);
        let mut step = compile(&device, hosting(Some(low(&device)))).unwrap();
        assert!(step.info().hosted_bytes > Bytes::ZERO);
        let bad = device.scope(|| Tensor::full(input(&device), f64::NAN)).unwrap();
        for _ in 0..3 {
            assert!(matches!(step.run(&[&bad]), Err(Error::NotFinite { .. })));
        }
        drop(bad);
        assert!(bits(&device, &mut step) == expected);
    }
}

#[test]
fn state_on_the_host_is_read_kept_and_set_like_any_other() {
    let (devices, _alone) = devices();
    for device in devices {
        let mut free = compile(&device, options()).unwrap();
        let first = losses(&device, &mut free, 3);
        let third: Vec<Vec<u8>> = free.state().iter().map(|t| t.to_bytes().unwrap()).collect();
        let expected = [first, losses(&device, &mut free, 3)];
        drop(free);
        let mut step = compile(&device, hosting(Some(low(&device)))).unwrap();
        assert_eq!(losses(&device, &mut step, 3), expected[0]);
        let i = step.state().iter().position(Tensor::is_hosted).expect("state on the host");
        // A clone keeps what it saw, on the host; the step goes on beside it.
        let kept = step.state()[i].clone();
        let before = kept.to_bytes().unwrap();
        assert_eq!(losses(&device, &mut step, 3), expected[1]);
        assert!(kept.is_hosted() && step.state()[i].is_hosted());
        assert!(kept.to_bytes().unwrap() == before && step.state()[i].to_bytes().unwrap() != before);
        drop(kept);
        // From the state of the third step on, the fourth is the fourth again.
        for (i, bytes) in third.iter().enumerate() {
            step.set_state(i, bytes).unwrap();
        }
        assert_eq!(losses(&device, &mut step, 3), expected[1]);
    }
}

#[test]
fn the_updates_of_a_split_batch_fetch_their_state_too() {
    let (devices, _alone) = devices();
    for device in devices {
        let split = |options: StepOptions| options.micro_batch(Some(3)).exactness(Exactness::Reassociated);
        let expected = bits(&device, &mut compile(&device, split(options())).unwrap());
        let floor = |options: &StepOptions| survey(&device, &split(options.clone())).floor();
        let (with, without) = (floor(&hosting(None)), floor(&options()));
        let line = Bytes(with.get().midpoint(without.get()));
        let mut step = compile(&device, split(hosting(Some(line)))).unwrap();
        assert!(step.info().hosted_bytes > Bytes::ZERO && step.info().micro_batches > 1);
        assert!(bits(&device, &mut step) == expected);
    }
}

#[test]
fn ledger_and_record_say_what_is_on_the_host() {
    let (devices, _alone) = devices();
    for device in devices {
        let step = compile(&device, hosting(Some(low(&device)))).unwrap();
        let ledger = step.ledger();
        for ((name, kind), tensor) in step.names().iter().zip(step.state()) {
            let row = |kind| ledger.row(kind, name).and_then(|row| row.measured);
            let bytes = Some(Bytes::from(tensor.ty().bytes()));
            match (tensor.is_hosted(), *kind) {
                (true, _) => assert_eq!((row(LedgerKind::Host), row(LedgerKind::Optimizer)), (bytes, None)),
                (false, Kind::Optimizer) => assert_eq!(row(LedgerKind::Optimizer), bytes),
                (false, _) => assert_eq!(row(LedgerKind::Parameter), bytes),
            }
        }
        let timeline = step.timeline().unwrap();
        let hosted = step.state().iter().filter(|t| t.is_hosted()).count();
        assert_eq!(timeline.residents.len(), step.state().len() - hosted + 2);
        let count = |what: Action| timeline.instructions.iter().filter(|i| i.what == what).count() as u64;
        assert!(count(Action::Prefetch) >= hosted as u64 && count(Action::Offload) >= hosted as u64);
        assert_eq!(count(Action::Await), step.info().offloaded_copies, "every copy is waited for once");
        assert_eq!(timeline.peak().1, step.info().live.get());
        assert_apart(&timeline);
    }
}
