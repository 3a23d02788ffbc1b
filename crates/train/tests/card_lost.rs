//! A card that really fails: a kernel reads and writes where there is no memory, after which the context answers every call
//! with that error. The run ends with an error that names its last checkpoint, everything is let go of without a crash, and
//! another process goes on from there with the same bits.
//!
//! Each run is a process of its own, because nothing brings a context back. What was seen is printed on stderr.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_cuda::{Cuda, Options};
use plimsoll_data::Dataset;
use plimsoll_device::backend::{Backend, Call, Operand};
use plimsoll_graph::ops::Unary;
use plimsoll_graph::{DType, Op, Type};
use plimsoll_run::Device;
use plimsoll_testing::{Scratch, group};
use plimsoll_train::{Callback, Epochs, Error, Result, StepEvent, Trainer};

/// What tells a process that it is to train, where its checkpoints are, and after which step the card fails: 0 for never.
const RUN: &str = "PLIMSOLL_TEST_RUN";
const FAILS: &str = "PLIMSOLL_TEST_FAILS";
const EPOCHS: u64 = 3;
const EVERY: u64 = 4;

fn data() -> Dataset {
    common::data([8, 8, 4])
}

fn trainer(device: Device, folder: &Path) -> Trainer {
    common::trainer(device, [8, 8, 4], 8, folder, EVERY)
}

/// Runs a kernel over addresses behind which there is no memory, in the context that the whole process shares.
fn fail_for_good() {
    let options = Options { cublaslt: false, cudnn: false, ..Options::default() };
    let cuda = Cuda::with(0, options).expect("the card is there until now");
    let ty = Type::new(DType::F32, [256]);
    let nowhere = [Operand { ty: &ty, ptr: std::ptr::without_provenance_mut(4096) }];
    let (op, scratch) = (Op::from(Unary::Neg), std::ptr::null_mut());
    let call = Call { op: &op, inputs: &nowhere, outputs: &nowhere, scratch, scratch_bytes: 0 };
    // SAFETY: nothing lies at these addresses, so nothing is read or written: the card faults, which is what is wanted.
    let launched = unsafe { cuda.run(&call) };
    // The trainer is not told: it finds out when it uses the card next.
    eprintln!("    the kernel was started: {launched:?}");
}

/// Prints every loss to the last bit, and lets the card fail after a step.
struct Witness {
    fails: u64,
}

impl Callback for Witness {
    fn on_step(&mut self, event: &StepEvent) -> Result<()> {
        println!("\nloss {} {:016x}", event.step, event.loss.to_bits());
        if event.step == self.fails {
            fail_for_good();
        }
        Ok(())
    }
}

/// What the other tests start: a run from the newest checkpoint of a folder, or from the start, that says how it ended.
#[test]
fn a_run_is_a_process_of_its_own() {
    let Some(folder) = std::env::var_os(RUN).map(PathBuf::from) else {
        return println!("nothing to do: the test of a lost card starts this");
    };
    let fails = std::env::var(FAILS).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let device = Device::cuda(0).expect("a card");
    let mut trainer = trainer(device, &folder).callback(Witness { fails });
    let resumed = trainer.resume(&folder, &data()).expect("a checkpoint, or none");
    println!("\nbegins {} {resumed}", trainer.progress().step);
    match trainer.fit(data(), Epochs(EPOCHS)) {
        Ok(_) => {
            let bytes = trainer.parameters().flat_map(|(_, value)| value.to_bytes().expect("weights"));
            // FNV-1a: one number for all weights, to the last bit.
            let sum = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
                (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            println!("\nweights {} {sum:016x}", trainer.progress().step);
        }
        Err(error) => {
            eprintln!("    it ended with: {error}");
            let Error::Lost { step, cause, checkpoint } = &error else {
                panic!("not a lost card: {error:?}")
            };
            assert!(error.to_string().contains("the last checkpoint is"), "{error}");
            assert!(cause.to_string().contains("CUDA"), "{cause}");
            println!("\nlost {step} {}", checkpoint.display());
            let again = trainer.fit(data(), Epochs(EPOCHS)).expect_err("the card is lost");
            eprintln!("    and once more with: {again}");
        }
    }
    drop(trainer);
    println!("\nended 0 0");
}

/// What a run said: by the first word, a number and a word each.
type Said = BTreeMap<String, Vec<(u64, String)>>;

/// Starts a run and waits for its end.
fn run(folder: &Path, fails: u64) -> Said {
    let mut command = Command::new(std::env::current_exe().expect("the path of the test"));
    command.args(["a_run_is_a_process_of_its_own", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(RUN, folder).env(FAILS, fails.to_string()).stdin(Stdio::null());
    let output = folder.with_extension(format!("said-{fails}"));
    command.stdout(std::fs::File::create(&output).expect("a file"));
    let mut child = command.spawn().expect("a process");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("its state") {
            break Some(status);
        }
        if start.elapsed() > Duration::from_secs(180) {
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = std::fs::read_to_string(&output).expect("what it said");
    eprintln!("  fails after {fails}: {status:?} in {:?}", start.elapsed());
    let Some(status) = status else {
        let _ = child.kill();
        let _ = child.wait();
        panic!("the run hangs; it said:\n{text}");
    };
    assert!(status.success(), "the process of the run ended with {status}; it said:\n{text}");
    let mut said = Said::new();
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        if let [what, number, word] = words[..]
            && let Ok(number) = number.parse()
        {
            said.entry(what.into()).or_default().push((number, word.into()));
        }
    }
    assert!(said.contains_key("ended"), "not everything was let go of:\n{text}");
    said
}

#[test]
fn a_run_whose_card_really_fails_names_its_last_checkpoint_and_goes_on_from_there_with_the_same_bits() {
    if group("card", Device::cuda(0)).is_none() {
        return;
    }
    let scratch = Scratch::new("lost-card");
    let whole = run(&scratch.folder().join("whole"), 0);
    let (losses, weights) = (&whole["loss"], &whole["weights"]);
    eprintln!("  undisturbed: {} steps, weights {weights:?}", losses.len());
    assert_eq!(losses.len() as u64, 6 * EPOCHS);
    // Within an epoch, where a checkpoint is due, and at the end of an epoch, where one is written.
    for (fails, last) in [(10, 8), (8, 6), (12, 8)] {
        let folder = scratch.folder().join(format!("fails-{fails}"));
        let broken = run(&folder, fails);
        eprintln!("  fails after {fails}: {:?}, {:?}", broken["begins"], broken["lost"]);
        let (step, checkpoint) = &broken["lost"][0];
        assert_eq!(*step, fails, "as many steps were done");
        assert!(checkpoint.ends_with(&last.to_string()) && Path::new(checkpoint).is_dir(), "{checkpoint}");
        assert_eq!(broken["loss"][..], losses[..fails as usize], "other bits before it failed");
        let resumed = run(&folder, 0);
        assert_eq!(resumed["begins"], [(last, "true".to_string())]);
        assert_eq!(resumed["loss"][..], losses[last as usize..], "other bits behind the checkpoint");
        assert_eq!(&resumed["weights"], weights);
    }
}
