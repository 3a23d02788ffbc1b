//! Memory of a card that goes away under a step: a library that grows, and another process that takes what was free. The
//! step is planned anew or refused with figures, nothing that was trained is lost, and the bits are those of an undisturbed
//! run. What was seen is printed on stderr, so that one run on a card tells all.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use plimsoll_cuda::{Arena, Cuda, Options};
use plimsoll_device::{Bytes, Verdict};
use plimsoll_graph::{DType, RandomOps, Type};
use plimsoll_run::{
    Device, Error, Kind, Result, StateTensor, Step, StepArgs, StepOptions, StepResult, Tape, Tensor,
    TensorOps,
};
use plimsoll_testing::{alone, group};

/// What tells a process that it is the thief, and what it is to take.
const THIEF: &str = "PLIMSOLL_TEST_THIEF";
/// Samples of a batch where a library grows.
const SAMPLES: usize = 1 << 14;
/// Samples where somebody else fills the card: few at first, then so many that their workspace takes a while to map.
const FEW: usize = 1 << 10;
const MANY: usize = 1 << 16;
const WIDTH: usize = 1024;
const LAYERS: usize = 24;
/// Steps of an undisturbed run.
const STEPS: usize = 12;

/// The card, for one test at a time: each looks at all of its memory. Or a line that says that there is none.
#[track_caller]
fn card() -> Option<(MutexGuard<'static, ()>, Device)> {
    let alone = alone();
    group("card", Device::cuda(0)).map(|device| (alone, device))
}

/// The same card without libraries, for memory that no device's pool knows of: what is taken through it counts for the
/// process, as what a library takes.
fn bare() -> Cuda {
    Cuda::with(0, Options { cublaslt: false, cudnn: false, ..Options::default() }).expect("a card")
}

fn input(samples: usize) -> Type {
    Type::new(DType::F32, [samples, WIDTH])
}

/// Noise that the card draws itself, the same every time.
fn noise(device: &Device, ty: &Type, scale: f64, seed: i64) -> Tensor {
    device.scope(|| {
        let key = Tensor::from_slice(&[seed, 0, 0], [3]).expect("a key");
        key.random_normal(ty.clone(), 1, 0.0, scale).expect("noise")
    })
}

/// A deep chain over a batch: most of what it takes can be recomputed.
fn body(pass: &StepArgs<'_>) -> Result<StepResult> {
    let tape = Tape::new();
    tape.watch(&pass.state[0])?;
    let mut x = pass.inputs[0].clone();
    for _ in 0..LAYERS {
        x = x.matmul(&pass.state[0])?.tanh()?;
    }
    let loss = x.square()?.mean(&[], false)?;
    let grad = tape.gradient(&loss, &[&pass.state[0]])?.remove(0);
    let state = vec![pass.state[0].sub(&grad.mul_scalar(0.1)?)?];
    Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
}

fn options(memory: Option<Bytes>) -> StepOptions {
    StepOptions { batched: true, ..StepOptions::default() }.limit(memory)
}

/// A step, and a count of how often its body is traced: every plan traces it.
fn compile(device: &Device, memory: Option<Bytes>, samples: usize) -> Result<(Step, Arc<AtomicUsize>)> {
    let w = noise(device, &Type::new(DType::F32, [WIDTH, WIDTH]), 0.04, 1);
    let held = vec![StateTensor { name: "w".into(), kind: Kind::Parameter, tensor: w }];
    let traced = Arc::new(AtomicUsize::new(0));
    let count = traced.clone();
    let body = move |pass: &StepArgs<'_>| {
        count.fetch_add(1, Ordering::SeqCst);
        body(pass)
    };
    Ok((Step::compile_with(options(memory), held, &[input(samples)], body)?, traced))
}

fn run(step: &mut Step, x: &Tensor) -> Result<Vec<u8>> {
    step.run(&[x])?[0].to_bytes()
}

fn weights(step: &Step) -> Vec<u8> {
    step.state()[0].to_bytes().expect("the state")
}

/// Says what the card holds and what was planned.
fn show(what: &str, device: &Device, step: Option<&Step>) {
    let (taken, capacity) = (device.taken().unwrap_or_default(), device.capacity().unwrap_or_default());
    let pool = device.memory_info();
    eprintln!(
        "{what}: {taken} taken by this process, {} by tensors, {} by the pool; {capacity} could be had",
        pool.current, pool.reserved
    );
    if let Some(info) = step.map(Step::info) {
        eprintln!(
            "    planned {} of at least {} and at most {}; beside the arena: program {}, tensors {}, staged {}; \
             {} ops run again",
            info.planned,
            info.floor,
            info.unlimited,
            info.account.program,
            info.account.tensors,
            info.account.inputs,
            info.recomputed_ops
        );
    }
}

/// An undisturbed run: a step over a batch first, the rest over another, with the losses and the figures of the last.
struct Undisturbed {
    losses: Vec<Vec<u8>>,
    planned: Bytes,
    floor: Bytes,
}

impl Undisturbed {
    /// On a device of its own: what its pool holds goes with it.
    fn new(first: usize, rest: usize) -> Undisturbed {
        let device = Device::cuda(0).expect("a card");
        let (few, many) = (noise(&device, &input(first), 1.0, 7), noise(&device, &input(rest), 1.0, 8));
        let (mut step, _) = compile(&device, None, first).expect("a step");
        let mut losses = vec![run(&mut step, &few).expect("a first step")];
        losses.extend((1..STEPS).map(|_| run(&mut step, &many).expect("a step")));
        show("undisturbed", &device, Some(&step));
        let (planned, floor) = (step.info().planned, step.info().floor);
        assert!(floor < planned, "{floor} and {planned}: there is nothing to save");
        Undisturbed { losses, planned, floor }
    }
}

#[test]
fn a_library_that_grows_on_a_card_is_told_and_planned_around_with_the_same_bits() {
    let Some((_alone, device)) = card() else { return };
    let (plain, grown) = (Undisturbed::new(SAMPLES, SAMPLES), Bytes::mib(96));
    let mut library = Arena::new(&bare(), 1 << 36).unwrap();
    let (first, x) = (noise(&device, &input(SAMPLES), 1.0, 7), noise(&device, &input(SAMPLES), 1.0, 8));
    let line = plain.planned + Bytes::mib(16);
    let (mut step, traced) = compile(&device, Some(line), SAMPLES).unwrap();
    let mut losses = vec![run(&mut step, &first).unwrap()];
    losses.extend((1..3).map(|_| run(&mut step, &x).unwrap()));
    show(&format!("under a memory limit of {line} after 3 steps"), &device, Some(&step));
    eprintln!("    told so far: {:?}", step.take_notice());
    assert!(device.taken().unwrap() <= line);
    let (before, plans) = (step.info().account.program, traced.load(Ordering::SeqCst));
    library.resize(grown.to_usize().unwrap()).unwrap();
    show(&format!("a library took {grown} more"), &device, None);
    let mut told = None;
    while losses.len() < STEPS {
        losses.push(run(&mut step, &x).unwrap());
        let (now, n) = (device.taken().unwrap(), losses.len());
        if told.is_none() {
            told = step.take_notice();
            eprintln!("    after step {n}: {now} taken, told: {told:?}");
        }
        assert!(told.is_none() || now <= line, "{now} under a memory limit of {line} after step {n}");
    }
    show("planned anew", &device, Some(&step));
    let told = told.expect("it grew and nobody was told");
    assert!(told.contains("more than was declared") && told.contains("planned anew within"), "{told}");
    assert!(traced.load(Ordering::SeqCst) > plans);
    let program = step.info().account.program;
    assert!(program >= before + Bytes::mib(48), "{before} were declared before and {program} after");
    assert!(step.info().planned <= line && device.taken().unwrap() <= line);
    assert!(losses == plain.losses, "other bits");
}

#[test]
fn a_library_that_leaves_no_room_on_a_card_is_a_refusal_and_nothing_is_lost() {
    let Some((_alone, device)) = card() else { return };
    let plain = Undisturbed::new(SAMPLES, SAMPLES);
    let mut library = Arena::new(&bare(), 1 << 36).unwrap();
    let (first, x) = (noise(&device, &input(SAMPLES), 1.0, 7), noise(&device, &input(SAMPLES), 1.0, 8));
    let line = plain.planned + Bytes::mib(16);
    let (mut step, _) = compile(&device, Some(line), SAMPLES).unwrap();
    let mut losses = vec![run(&mut step, &first).unwrap(), run(&mut step, &x).unwrap()];
    // More than the limit leaves beside the least.
    let grown = line.saturating_sub(step.info().floor) + Bytes::mib(256);
    show(&format!("under a memory limit of {line} after 2 steps"), &device, Some(&step));
    library.resize(grown.to_usize().unwrap()).unwrap();
    show(&format!("a library took {grown} more"), &device, None);
    let mut trained = weights(&step);
    let refused = loop {
        assert!(losses.len() < STEPS, "nobody looked");
        match run(&mut step, &x) {
            Ok(loss) => (losses.push(loss), trained = weights(&step)),
            Err(why) => break why,
        };
    };
    eprintln!("    refused after step {}: {refused}", losses.len());
    let Error::Infeasible { asked, least, .. } = &refused else {
        panic!("no refusal with figures: {refused}")
    };
    assert!(*asked == line && *least > line, "{least} of {asked}");
    assert!(refused.to_string().contains("cannot be kept: the least for this step is"), "{refused}");
    assert!(weights(&step) == trained, "the state was changed");
    let again = run(&mut step, &x).expect_err("there is no more room than before");
    assert!(matches!(&again, Error::Infeasible { .. }), "{again}");
    assert!(weights(&step) == trained, "the state was changed");
    library.resize(0).unwrap();
    step.replan(options(Some(line))).unwrap();
    while losses.len() < STEPS {
        losses.push(run(&mut step, &x).unwrap());
    }
    show("the library gave it back", &device, Some(&step));
    assert!(step.info().planned <= line && device.taken().unwrap() <= line);
    assert!(losses == plain.losses, "other bits");
}

#[test]
fn an_eager_op_beside_a_step_on_a_card_does_not_take_the_process_past_its_line() {
    let Some((_alone, device)) = card() else { return };
    let x = noise(&device, &input(SAMPLES), 1.0, 8);
    let line = {
        let device = Device::cuda(0).unwrap();
        let _beside = noise(&device, &input(SAMPLES), 1.0, 8);
        compile(&device, None, SAMPLES).unwrap().0.info().planned + Bytes::mib(16)
    };
    let (mut step, _) = compile(&device, Some(line), SAMPLES).unwrap();
    for _ in 0..4 {
        run(&mut step, &x).unwrap();
    }
    show(&format!("under a memory limit of {line} after 4 steps"), &device, Some(&step));
    let zeros =
        |bytes: u64| device.scope(|| Tensor::zeros(Type::new(DType::U8, [usize::try_from(bytes).unwrap()])));
    let left = line.saturating_sub(device.taken().unwrap());
    let refused = zeros(left.get() + (64 << 20)).expect_err("that is past the limit");
    eprintln!("    {left} are left; 64 MiB more were refused: {refused}");
    let Error::OutOfMemory(why) = &refused else { panic!("{refused}") };
    assert!(why.verdict == Verdict::MemoryLimit, "{refused}");
    // What the limit leaves is given, page by page, and no more.
    let mut kept = Vec::new();
    while let Ok(more) = zeros(8 << 20) {
        kept.push(more);
        let taken = device.taken().unwrap();
        assert!(taken <= line, "{taken} under a memory limit of {line} with {} blocks", kept.len());
    }
    show(&format!("{} blocks of 8 MiB were given", kept.len()), &device, None);
    drop(kept);
    run(&mut step, &x).unwrap();
    assert!(device.taken().unwrap() <= line);
    step.replan(options(None)).unwrap();
    zeros(left.get() + (64 << 20)).expect("without a limit there is room");
}

/// Another process that takes memory of the card, until this is dropped.
struct Thief {
    child: Child,
    stdin: Option<ChildStdin>,
    said: Receiver<String>,
}

impl Thief {
    /// Starts it, and waits until it has taken what it takes at once.
    fn start(order: &str) -> Thief {
        let this = std::env::current_exe().expect("the path of the test");
        let mut command = Command::new(this);
        command.args(["the_thief_is_a_process_of_its_own", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(THIEF, order).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("its output"));
        let (send, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(|line| line.ok()) {
                eprintln!("    thief: {line}");
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut thief = Thief { child, stdin, said };
        thief.wait_for("ready");
        thief
    }

    /// Waits until it has said something.
    fn wait_for(&mut self, word: &str) {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(line) if line.contains(word) => return,
                Ok(_) => {}
                Err(why) => panic!("the thief has not said '{word}': {why}"),
            }
        }
    }
}

impl Drop for Thief {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // It holds memory of a card that others need.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes memory until so many bytes are free, or nothing is given any more.
fn take_all_but(cuda: &Cuda, held: &mut Arena, rest: usize) {
    const PAGE: usize = 2 << 20;
    let mut most = 1 << 30;
    while most >= PAGE {
        let (free, _) = cuda.memory().expect("figures");
        let more = free.saturating_sub(rest).min(most) / PAGE * PAGE;
        if more == 0 {
            return;
        }
        if held.resize(held.mapped() + more).is_err() {
            most /= 2;
        }
    }
}

/// What the other tests start: it takes memory of the card as it is told, says so, and holds it until its input ends.
/// `now:REST` leaves so many bytes free. `watch:ROOM:REST` leaves ROOM, waits until somebody begins to take of that, and
/// then takes until it holds all but REST.
#[test]
fn the_thief_is_a_process_of_its_own() {
    let Ok(order) = std::env::var(THIEF) else {
        return println!("nothing to do: the tests of theft start this");
    };
    let numbers: Vec<usize> = order.split(':').skip(1).map(|n| n.parse().expect("a number")).collect();
    let cuda = bare();
    let mut held = Arena::new(&cuda, 1 << 38).expect("addresses");
    let say = |what: &str, held: &Arena| {
        let free = cuda.memory().expect("figures").0;
        println!("\n{what}: holds {} bytes, {free} are free", held.mapped());
        std::io::stdout().flush().expect("an output");
    };
    take_all_but(&cuda, &mut held, numbers[0]);
    say("ready", &held);
    if let [_, rest] = numbers[..] {
        let (room, _) = cuda.memory().expect("figures");
        let goal = held.mapped() + room.saturating_sub(rest);
        let (start, tenth) = (Instant::now(), room / 10);
        let patience = Duration::from_secs(60);
        while cuda.memory().expect("figures").0 + tenth > room && start.elapsed() < patience {}
        say("it begins", &held);
        let start = Instant::now();
        // What the other gives back in between is taken too.
        while held.mapped() < goal && start.elapsed() < Duration::from_secs(20) {
            let (free, _) = cuda.memory().expect("figures");
            let mapped = held.mapped();
            take_all_but(&cuda, &mut held, free.saturating_sub(goal - mapped));
        }
        say("done", &held);
    }
    let mut ignored = Vec::new();
    std::io::stdin().read_to_end(&mut ignored).expect("an input");
}

/// A step on the card that has run over few samples, and what the tests of theft go on with.
struct Begun {
    _alone: MutexGuard<'static, ()>,
    device: Device,
    plain: Undisturbed,
    step: Step,
    traced: Arc<AtomicUsize>,
    many: Tensor,
    losses: Vec<Vec<u8>>,
    taken: Bytes,
    trained: Vec<u8>,
}

impl Begun {
    fn new() -> Option<Begun> {
        let (_alone, device) = card()?;
        let plain = Undisturbed::new(FEW, MANY);
        let (few, many) = (noise(&device, &input(FEW), 1.0, 7), noise(&device, &input(MANY), 1.0, 8));
        let (mut step, traced) = compile(&device, None, FEW).unwrap();
        let losses = vec![run(&mut step, &few).unwrap()];
        show("after a step over few samples", &device, Some(&step));
        let (taken, trained) = (device.taken().unwrap(), weights(&step));
        Some(Begun { _alone, device, plain, step, traced, many, losses, taken, trained })
    }
}

#[test]
fn memory_of_a_card_that_another_process_takes_is_done_without_or_refused_and_nothing_is_lost() {
    let Some(begun) = Begun::new() else { return };
    let Begun { _alone, device, plain, mut step, many, mut losses, taken, trained, .. } = begun;

    // Nothing fits: what is left is enough for a driver's tables and for no plan.
    let thief = Thief::start(&format!("now:{}", 96 << 20));
    show("another process has all but 96 MiB", &device, None);
    let refused = run(&mut step, &many).expect_err("there is no room");
    eprintln!("    refused: {refused}");
    let Error::Full { device: name, refusal } = &refused else {
        panic!("no refusal with figures: {refused}")
    };
    let Error::Infeasible { asked, least, .. } = &**refusal else { panic!("{refusal}") };
    assert!(name == "cuda:0" && least > asked, "{least} of {asked}");
    assert!(weights(&step) == trained, "the state was changed");
    drop(thief);
    show("the other process has gone", &device, Some(&step));

    // Half of what could be saved must be.
    let wanted = Bytes((plain.floor.get() + plain.planned.get()) / 2);
    let rest = wanted.saturating_sub(taken);
    eprintln!("    wanted {wanted}: {rest} left beside the {taken} that this process has");
    let thief = Thief::start(&format!("now:{}", rest.get()));
    show(&format!("another process has all but {rest}"), &device, None);
    losses.extend((0..5).map(|_| run(&mut step, &many).unwrap()));
    show("planned within what is left", &device, Some(&step));
    let capacity = device.capacity().unwrap();
    assert!(step.info().planned <= capacity, "{} planned of {capacity}", step.info().planned);
    assert!(step.info().planned < plain.planned && step.info().recomputed_ops > 0);
    drop(thief);

    step.replan(options(None)).unwrap();
    while losses.len() < STEPS {
        losses.push(run(&mut step, &many).unwrap());
    }
    show("the other process has gone", &device, Some(&step));
    assert!(losses == plain.losses, "other bits");
}

#[test]
fn memory_of_a_card_that_is_taken_while_a_step_maps_it_is_done_without_and_nothing_is_lost() {
    let Some(begun) = Begun::new() else { return };
    let Begun { _alone, device, plain, mut step, many, mut losses, taken, trained, traced, .. } = begun;
    let room = plain.planned.saturating_sub(taken) + Bytes::mib(256);
    let rest = Bytes((plain.floor.get() + plain.planned.get()) / 2).saturating_sub(taken);
    let mut thief = Thief::start(&format!("watch:{}:{}", room.get(), rest.get()));
    let plans = traced.load(Ordering::SeqCst);
    show(&format!("another process leaves {room}, and only {rest} once that is begun"), &device, None);
    match run(&mut step, &many) {
        Ok(loss) => losses.push(loss),
        // Who takes memory faster than plans are made leaves none that fits, for a while.
        Err(why @ (Error::OutOfMemory(_) | Error::Full { .. })) => {
            eprintln!("    refused meanwhile: {why}");
            assert!(weights(&step) == trained, "the state was changed");
        }
        Err(why) => panic!("{why}"),
    }
    eprintln!("    {} plans were traced for that", traced.load(Ordering::SeqCst) - plans);
    thief.wait_for("done");
    show("the other process has what it wanted", &device, Some(&step));
    // It may have taken all that was free between two plans; then there is nothing to be had before it has gone.
    let trained = weights(&step);
    while losses.len() < STEPS / 2 {
        match run(&mut step, &many) {
            Ok(loss) => {
                losses.push(loss);
                assert!(step.info().planned <= device.capacity().unwrap());
            }
            Err(why @ (Error::OutOfMemory(_) | Error::Full { .. })) => {
                eprintln!("    refused: {why}");
                assert!(weights(&step) == trained, "the state was changed");
                break;
            }
            Err(why) => panic!("{why}"),
        }
    }
    show("within what is left", &device, Some(&step));
    drop(thief);
    while losses.len() < STEPS {
        losses.push(run(&mut step, &many).unwrap());
    }
    assert!(losses == plain.losses, "other bits");
}
