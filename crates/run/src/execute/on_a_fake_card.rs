//! Steps on a fake card, whose memory libraries and other processes take while they are planned and run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_device::backend::Fault;
use plimsoll_device::{Bytes, Exchanged, Peers, RankTraffic, Verdict};
use plimsoll_graph::ops::{Exchange, Rank};
use plimsoll_graph::{DType, Type};

use crate::device::fake_card::FakeCard;
use crate::execute::chain::chain;
use crate::{Device, Error, Kind, Mode, StateTensor, Step, StepOptions, StepResult, Tensor, TensorOps};

/// A deep chain over a batch: most of what it takes can be recomputed.
fn step(device: &Device, memory: Option<Bytes>) -> crate::Result<Step> {
    device.scope(|| {
        let w = Tensor::from_f64(&[0.01; 64 * 64], Type::new(DType::F32, [64, 64]))?;
        let held = vec![StateTensor { name: "w".into(), kind: Kind::Parameter, tensor: w }];
        let options = StepOptions::default().limit(memory);
        Step::compile_with(options, held, &[input()], chain(24))
    })
}

fn input() -> Type {
    Type::new(DType::F32, [16384, 64])
}

fn run(step: &mut Step, device: &Device) -> crate::Result<Vec<u8>> {
    let x = device.scope(|| Tensor::from_f64(&[0.5; 16384 * 64], input()))?;
    step.run(&[&x])?[0].to_bytes()
}

/// A step in what it takes without a limit: the step, its limit, and what a run of it gives.
fn limited(device: &Device) -> (Step, Bytes, Vec<u8>) {
    let planned = step(device, None).unwrap().info().planned;
    let mut step = step(device, Some(planned)).unwrap();
    let result = run(&mut step, device).unwrap();
    (step, planned, result)
}

const OWN: Bytes = Bytes::mib(100);

#[test]
fn a_step_without_a_limit_is_planned_within_what_the_device_has() {
    let (wide, _) = FakeCard::device(Bytes::gib(1), OWN);
    let free = step(&wide, None).unwrap();
    let (planned, floor) = (free.info().planned, free.info().floor);
    assert!(floor < planned);
    let (tight, _) = FakeCard::device(Bytes((floor.get() + planned.get()) / 2), OWN);
    let mut small = step(&tight, None).unwrap();
    assert!(small.info().planned < planned && small.info().recomputed_ops > 0);
    assert_eq!(run(&mut small, &tight).unwrap(), run(&mut { free }, &wide).unwrap());
    let (full, _) = FakeCard::device(Bytes(floor.get() - 1), OWN);
    let why = match step(&full, None) {
        Err(why @ Error::Full { .. }) => why.to_string(),
        other => panic!("{:?}", other.map(|s| s.info().clone())),
    };
    assert!(
        why.starts_with("fake card has not enough memory left") && why.contains("the least for this step is"),
        "{why}"
    );
}

#[test]
fn memory_that_somebody_takes_after_planning_is_done_without() {
    let (device, card) = FakeCard::device(Bytes::gib(1), OWN);
    let planned = step(&device, None).unwrap().info().planned;
    let left = planned.saturating_sub(Bytes::mib(60));
    card.thief.store(Bytes::gib(1).get() - left.get(), Ordering::SeqCst);
    let mut step = step(&device, None).unwrap();
    assert!(step.info().planned <= left, "{} of {left}", step.info().planned);
    run(&mut step, &device).unwrap();
    // One who takes more after every plan leaves none that fits, and the step says so.
    let (device, card) = FakeCard::device(planned, OWN);
    card.thief.store(Bytes::mib(60).get(), Ordering::SeqCst);
    card.is_greedy.store(true, Ordering::SeqCst);
    let refused = self::step(&device, None).err().expect("nothing is left");
    assert!(matches!(refused, Error::OutOfMemory(_) | Error::Full { .. }), "{refused}");
}

#[test]
fn memory_that_is_taken_while_another_form_is_made_or_the_line_is_moved_is_done_without() {
    let (wide, _) = FakeCard::device(Bytes::gib(1), OWN);
    let mut free = step(&wide, None).unwrap();
    let planned = free.info().planned;
    let expected: Vec<Vec<u8>> = (0..2).map(|_| run(&mut free, &wide).unwrap()).collect();
    for is_moved in [false, true] {
        let (device, card) = FakeCard::device(Bytes::gib(1), OWN);
        let mut step = step(&device, None).unwrap();
        step.set_body(Mode::Evaluate, |pass| {
            let y = pass.inputs[0].matmul(&pass.state[0])?.square()?.mean(&[], false)?;
            Ok(StepResult { state: pass.state.to_vec(), outputs: vec![y], totals: vec![] })
        });
        assert_eq!(run(&mut step, &device).unwrap(), expected[0]);
        let stolen = Bytes::gib(1).saturating_sub(planned) + Bytes::mib(60);
        card.thief.store(stolen.get(), Ordering::SeqCst);
        // Either way the workspace is given back while a plan is made, and there is less of it behind that.
        if is_moved {
            step.replan(StepOptions::default()).unwrap();
        } else {
            let x = device.scope(|| Tensor::from_f64(&[0.5; 16384 * 64], input())).unwrap();
            step.run_mode(Mode::Evaluate, &[&x]).unwrap();
        }
        assert_eq!(run(&mut step, &device).unwrap(), expected[1]);
        let left = device.capacity().unwrap();
        assert!(left < planned && step.info().planned <= left, "{} of {left}", step.info().planned);
    }
}

#[test]
fn an_eager_op_beside_a_step_does_not_take_the_process_past_its_line() {
    let (device, _) = FakeCard::device(Bytes::gib(1), OWN);
    let (mut step, line, expected) = limited(&device);
    // A page more than the line leaves.
    let past = || {
        let left = line.get() - device.taken().unwrap().get();
        device.scope(|| Tensor::zeros(Type::new(DType::U8, [left as usize + 4096])))
    };
    let refused = past().unwrap_err();
    let Error::OutOfMemory(why) = &refused else { panic!("{refused}") };
    assert!(
        why.verdict == Verdict::MemoryLimit && why.to_string().contains("raise the memory limit"),
        "{refused}"
    );
    device.scope(|| Tensor::zeros(Type::new(DType::U8, [4096]))).unwrap();
    step.replan(StepOptions::default()).unwrap();
    past().unwrap();
    step.replan(StepOptions::default().limit(Some(line))).unwrap();
    assert!(past().is_err());
    drop(step);
    past().unwrap();
    assert_eq!(run(&mut self::step(&device, None).unwrap(), &device).unwrap(), expected);
}

#[test]
fn a_device_that_has_failed_is_not_called_full() {
    let (device, card) = FakeCard::device(Bytes::gib(1), OWN);
    let taken = || device.scope(|| Tensor::zeros(input())).map(drop);
    taken().unwrap();
    card.is_lost.store(true, Ordering::SeqCst);
    let refused = taken().unwrap_err();
    assert!(matches!(&refused, Error::Fault { .. }) && refused.to_string().contains("failed"), "{refused}");
    card.is_lost.store(false, Ordering::SeqCst);
    card.total.store(OWN.get(), Ordering::SeqCst);
    let refused = taken().unwrap_err();
    assert!(matches!(&refused, Error::OutOfMemory(_)), "{refused}");
}

#[test]
fn libraries_that_grow_are_noticed_and_planned_around() {
    let (device, card) = FakeCard::device(Bytes::gib(1), OWN);
    let (mut step, planned, first) = limited(&device);
    assert!(step.take_notice().is_none());
    let grown = step.info().account.program + Bytes::mib(3);
    card.own.store(grown.get(), Ordering::SeqCst);
    run(&mut step, &device).unwrap();
    let notice = step.take_notice().expect("it grew");
    assert!(notice.contains("3 MiB more than was declared"), "{notice}");
    assert!(step.info().planned <= planned && step.info().account.program > grown);
    assert!(device.taken().unwrap() <= planned);
    let (fresh, _) = FakeCard::device(Bytes::gib(1), OWN);
    assert_eq!(run(&mut self::step(&fresh, None).unwrap(), &fresh).unwrap(), first);
    // Where nothing is left to do without, that is said.
    card.own.store(planned.get(), Ordering::SeqCst);
    let refused = (0..8).find_map(|_| run(&mut step, &device).err()).expect("the limit cannot be kept");
    assert!(matches!(refused, Error::Infeasible { .. }), "{refused}");
}

#[test]
fn each_library_has_a_row_of_what_it_was_measured_to_take() {
    let (device, card) = FakeCard::device(Bytes::gib(1), OWN);
    let step = step(&device, None).unwrap();
    let ledger = step.ledger();
    let row = |kind, name: &str| *ledger.row(kind, name).unwrap_or_else(|| panic!("no {name} in\n{ledger}"));
    let (context, products) = (row(Kind::Library, "context"), row(Kind::Library, "products"));
    assert_eq!((context.planned, context.measured), (Bytes::mib(50), Some(Bytes::mib(50))));
    assert_eq!((products.planned, products.measured), (Bytes::mib(25), Some(Bytes::mib(25))));
    // What they load later has what was declared beside that, and what no library accounts for.
    let later = row(Kind::Program, "what libraries load later");
    assert_eq!(later.planned, step.info().account.program.saturating_sub(Bytes::mib(75)));
    assert_eq!(later.measured, Some(Bytes::mib(25)));
    assert_eq!(ledger.planned(), step.info().planned, "\n{ledger}");
    // Libraries that took more than was declared for all of them do not make the plan larger than it is.
    card.own.store(Bytes::mib(400).get(), Ordering::SeqCst);
    let ledger = step.ledger();
    assert_eq!(ledger.planned(), step.info().planned, "\n{ledger}");
    assert_eq!(ledger.row(Kind::Library, "context").unwrap().measured, Some(Bytes::mib(200)));
}

/// A rank by itself whose library has taken so much of the card, or of the host.
#[derive(Debug)]
struct OneRank {
    own: Bytes,
    is_on_host: bool,
}

impl Peers for OneRank {
    fn rank(&self) -> Rank {
        Rank::ONLY
    }

    fn by(&self) -> &str {
        "a library"
    }

    fn is_on_host(&self) -> bool {
        self.is_on_host
    }

    fn scratch(&self, _: &Exchange, _: &Type) -> usize {
        0
    }

    fn seconds(&self, _: &Exchange, _: &Type) -> f64 {
        0.0
    }

    unsafe fn exchange(&self, _: &Exchange, _: Exchanged<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn differ(&self, _: &[(&str, &str)]) -> Result<Option<String>, Fault> {
        Ok(None)
    }

    fn stop(&self, _: &str) {}

    fn own_bytes(&self) -> Bytes {
        self.own
    }

    fn traffic(&self) -> RankTraffic {
        RankTraffic::default()
    }
}

#[test]
fn what_connects_ranks_on_a_card_is_a_row_of_its_own_and_counts_once() {
    let (alone, _) = FakeCard::device(Bytes::gib(1), OWN);
    let before = step(&alone, None).unwrap();
    let (planned, program) = (before.info().planned, before.info().account.program);
    assert!(!before.ledger().to_string().contains("ranks"));
    for (is_on_host, ranks) in [(false, Bytes::mib(40)), (true, Bytes::ZERO)] {
        let (card, _) = FakeCard::device(Bytes::gib(1), OWN);
        let card = card.with_ranks(Arc::new(OneRank { own: Bytes::mib(40), is_on_host }));
        // The card says of all that is no tensor that it is taken, so that the sum is the same.
        let mut limited = step(&card, Some(planned)).unwrap();
        let account = limited.info().account;
        assert_eq!((account.ranks, account.program), (ranks, program.saturating_sub(ranks)));
        run(&mut limited, &card).unwrap();
        assert_eq!(limited.info().planned, planned, "it was not planned anew");
        let ledger = limited.ledger().to_string();
        let row = ledger.lines().find(|line| line.contains("ranks"));
        let figure = Bytes::mib(40).to_string();
        let is_whole = row.map(|row| row.matches(&figure).count() >= 2);
        assert_eq!(is_whole, (!is_on_host).then_some(true), "planned and measured are {figure}: {ledger}");
    }
}
