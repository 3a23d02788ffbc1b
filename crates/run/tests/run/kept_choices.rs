//! Which candidate of a step is the fastest, kept from one process to the next: it saves tracing the others, and changes no plan. What is
//! damaged, or was asked otherwise, is not used.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, NormOps, Type};
use plimsoll_record::{Digest, keep};
use plimsoll_run::{
    Device, Exactness, Kind, PlanFigures, Result, StateSpec, StepArgs, StepOptions, StepPlanner, StepResult,
    Tape, TensorOps,
};
use plimsoll_testing::Scratch;
use serde_json::Value;

/// A folder in which answers are kept.
struct Folder(Scratch);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(Scratch::new(&format!("choices-{name}")))
    }

    /// The answers of a kind that are kept there, with their files.
    fn answers(&self, kind: &str) -> Vec<(PathBuf, Value)> {
        let files = fs::read_dir(self.0.folder().join("plans")).unwrap().map(|file| file.unwrap().path());
        let json = files.filter(|file| file.extension().is_some_and(|ending| ending == "json"));
        let read = |file: PathBuf| {
            let text = fs::read_to_string(&file).unwrap();
            let answer: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
            (file, answer)
        };
        let mut all: Vec<(PathBuf, Value)> =
            json.map(read).filter(|(_, answer)| answer.get(kind).is_some()).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

/// Writes another answer to a file, as whole as the one that was there.
fn forge(file: &Path, answer: &Value) {
    let asked = file.file_stem().unwrap().to_str().unwrap();
    let asked = Digest(u128::from_str_radix(asked, 16).unwrap());
    fs::write(file, keep(asked, answer).unwrap()).unwrap();
}

/// Layers on a batch, trained by gradient descent: six weights, and where there is more state, batch norms by that.
fn body(pass: &StepArgs<'_>) -> Result<StepResult> {
    let tape = Tape::new();
    pass.state.iter().try_for_each(|w| tape.watch(w))?;
    let mut x = pass.inputs[0].clone();
    for w in &pass.state[..6] {
        x = x.matmul(w)?;
        if let [scale, shift] = &pass.state[6..] {
            (x, _, _) = x.batch_norm(scale, shift, 1e-3)?;
        }
        x = x.tanh()?;
    }
    let loss = x.square()?.mean(&[], false)?;
    let grads = tape.gradient(&loss, &pass.state.iter().collect::<Vec<_>>())?;
    let new = pass.state.iter().zip(&grads).map(|(w, g)| w.sub(&g.mul_scalar(0.1)?));
    Ok(StepResult { state: new.collect::<Result<_>>()?, outputs: vec![loss], totals: vec![] })
}

/// A question, and who asks it.
#[derive(Clone)]
struct Question {
    samples: usize,
    normalised: bool,
    options: StepOptions,
    threads: usize,
}

impl Question {
    fn new() -> Question {
        let options =
            StepOptions { batched: true, ..StepOptions::default() }.exactness(Exactness::Reassociated);
        Question { samples: 32768, normalised: false, options, threads: 1 }
    }

    /// A step whose micro-batches share statistics, and so run side by side.
    fn normalised() -> Question {
        Question { samples: 131_072, normalised: true, ..Question::new() }
    }

    fn device(&self, folder: Option<&Folder>) -> Device {
        let device = Device::cpu_with(self.threads, Bytes::gib(2)).unwrap();
        if let Some(folder) = folder {
            device.keep_plans(folder.0.folder());
        }
        device
    }

    /// A planner on a device of its own, as in a process of its own, and how often it has traced the step.
    fn planner(&self, device: &Device) -> (StepPlanner, Arc<AtomicUsize>) {
        let parameter = |i: usize, shape: &[usize]| {
            StateSpec::new(format!("w{i}"), Kind::Parameter, Type::new(DType::F32, shape))
        };
        let mut state: Vec<StateSpec> = (0..6).map(|i| parameter(i, &[64, 64])).collect();
        if self.normalised {
            state.extend([parameter(6, &[64]), parameter(7, &[64])]);
        }
        let inputs = [Type::new(DType::F32, [self.samples, 64])];
        let traced = Arc::new(AtomicUsize::new(0));
        let count = traced.clone();
        let planner = StepPlanner::new(&self.options, device, state, &inputs, move |pass| {
            count.fetch_add(1, Ordering::Relaxed);
            body(pass)
        });
        let mut planner = planner.unwrap();
        // Other tests of this process take memory too.
        planner.set_outside(Bytes::mib(200));
        (planner, traced)
    }

    /// The plan at a part of the way from the least limit to the one that is as good as none.
    fn ask(&self, folder: Option<&Folder>, part: f64) -> (PlanFigures, usize) {
        let (mut planner, traced) = self.planner(&self.device(folder));
        let (least, most) = (planner.floor().get(), planner.unlimited().get());
        let limit = Bytes(least + ((most - least) as f64 * part) as u64);
        let figures = planner.plan(Some(limit)).unwrap().figures;
        (PlanFigures { plan_seconds: 0.0, from_cache: false, ..figures }, traced.load(Ordering::Relaxed))
    }
}

const PARTS: [f64; 4] = [0.0, 0.05, 0.4, 1.0];

#[test]
fn a_kept_choice_gives_the_plan_of_the_search_and_traces_less() {
    for (name, question) in [("passes", Question::new()), ("side-by-side", Question::normalised())] {
        let folder = Folder::new(name);
        let mut splits = 0;
        for part in PARTS {
            let (searched, _) = question.ask(None, part);
            let (cold, _) = question.ask(Some(&folder), part);
            let (warm, traced) = question.ask(Some(&folder), part);
            assert_eq!((&cold, &warm), (&searched, &searched), "{name} at {part}");
            splits += usize::from(warm.micro_batches > 1);
            // The whole batch, what takes least and what was chosen, and what tells whether it can be split.
            assert!(traced <= 9, "{name} at {part}: traced {traced} times");
        }
        assert!(splits > 0, "{name}: nothing was split");
        assert_eq!(folder.answers("fastest").len(), PARTS.len());
        assert_eq!(folder.answers("candidates").len(), 1);
    }
}

#[test]
fn a_choice_of_another_question_is_not_used() {
    let folder = Folder::new("others");
    let first = Question::new();
    first.ask(Some(&folder), 0.05);
    let bitwise = first.options.clone().exactness(Exactness::Bitwise);
    let others = [
        ("another limit", first.clone(), 0.06),
        ("another exactness", Question { options: bitwise, ..first.clone() }, 0.05),
        (
            "micro-batches that were asked for",
            Question { options: first.options.clone().micro_batch(Some(64)), ..first.clone() },
            0.05,
        ),
        ("another batch", Question { samples: 16384, ..first.clone() }, 0.05),
        ("another device", Question { threads: 2, ..first.clone() }, 0.05),
    ];
    let mut kept = folder.answers("fastest");
    assert_eq!(kept.len(), 1);
    for (name, question, part) in others {
        let (searched, _) = question.ask(None, part);
        let (found, _) = question.ask(Some(&folder), part);
        assert_eq!(found, searched, "{name}");
        let now = folder.answers("fastest");
        assert_eq!(now.len(), kept.len() + 1, "{name} has a choice of its own");
        kept = now;
    }
}

#[test]
fn a_choice_that_is_no_longer_true_is_not_used() {
    let folder = Folder::new("untrue");
    let question = Question::new();
    let (searched, _) = question.ask(Some(&folder), 0.05);
    let (chosen, candidates) = (folder.answers("fastest"), folder.answers("candidates"));
    let changed = |(file, answer): &(PathBuf, Value), at: &str, value: Value| {
        let mut answer = answer.clone();
        *answer.pointer_mut(at).unwrap() = value;
        forge(file, &answer);
    };
    let (index, bounds) = (&chosen[0].1["fastest"]["index"], &candidates[0].1["candidates"]["bounds"]);
    let (index, bounds) = (index.as_u64().unwrap(), bounds.as_array().unwrap());
    assert!(index > 0, "the batch is split");
    let of_another = "0123456789abcdef0123456789abcdef";
    let lies: [(&str, &(PathBuf, Value), &str, Value); 8] = [
        ("the whole batch", &chosen[0], "/fastest/index", 0.into()),
        ("another size", &chosen[0], "/fastest/index", (index - 1).into()),
        ("none of them", &chosen[0], "/fastest/index", 1000.into()),
        ("another digest", &chosen[0], "/fastest/digest", of_another.into()),
        ("fewer bounds", &candidates[0], "/candidates/bounds", bounds[1..].into()),
        ("another first bound", &candidates[0], "/candidates/bounds/0", 1.into()),
        ("another least", &candidates[0], "/candidates/lowest_of/index", 0.into()),
        ("the least of another", &candidates[0], "/candidates/lowest_of/digest", of_another.into()),
    ];
    for (name, answer, at, value) in lies {
        changed(answer, at, value);
        assert_eq!(question.ask(Some(&folder), 0.05).0, searched, "{name}");
        assert_eq!(folder.answers("fastest"), chosen, "{name}: what was found anew is kept");
        assert_eq!(folder.answers("candidates"), candidates, "{name}");
    }
}

#[test]
fn a_damaged_choice_is_named_and_searched_for_anew() {
    let folder = Folder::new("damaged");
    let question = Question::new();
    let (searched, _) = question.ask(Some(&folder), 0.05);
    for kind in ["fastest", "candidates"] {
        let (file, _) = folder.answers(kind).remove(0);
        let whole = fs::read_to_string(&file).unwrap();
        let other = whole.replacen("index\":", "index\":1", 1);
        for damaged in [&whole[..whole.len() / 2], "", "{}", &other] {
            fs::write(&file, damaged).unwrap();
            let device = question.device(Some(&folder));
            let told = Arc::new(Mutex::new(Vec::new()));
            let tell = told.clone();
            device.on_remark(move |remark| tell.lock().unwrap().push(remark.to_string()));
            let (mut planner, _) = question.planner(&device);
            let limit =
                searched.floor.get() as f64 + 0.05 * (searched.unlimited.get() - searched.floor.get()) as f64;
            let found = planner.plan(Some(Bytes(limit as u64))).unwrap().figures;
            assert_eq!(PlanFigures { plan_seconds: 0.0, from_cache: false, ..found }, searched);
            let told = told.lock().unwrap();
            let name = file.file_stem().unwrap().to_str().unwrap();
            assert!(told.len() == 1 && told[0].contains(name), "{kind}: {told:?}");
            assert_eq!(fs::read_to_string(&file).unwrap(), whole, "it is kept anew");
        }
    }
}

#[test]
fn the_least_is_the_same_whatever_was_planned_before() {
    for (name, question) in [("least", Question::new()), ("least-side-by-side", Question::normalised())] {
        let folder = Folder::new(name);
        let (mut planner, _) = question.planner(&question.device(Some(&folder)));
        let cold = (planner.floor(), planner.unlimited());
        // Floors of candidates that the least did not need are found on the way.
        planner.frontier(7, None).unwrap();
        for (file, _) in folder.answers("candidates") {
            fs::remove_file(file).unwrap();
        }
        let (again, _) = question.planner(&question.device(Some(&folder)));
        assert_eq!((again.floor(), again.unlimited()), cold, "{name}");
    }
}

#[test]
fn a_planner_that_is_told_of_others_plans_like_one_that_knew() {
    let reserved = Bytes::mib(24);
    let question = Question::new();
    let emulator = Device::cuda_emulated(Bytes::gib(2)).unwrap();
    for (name, device) in [("cpu", question.device(None)), ("emulator", emulator)] {
        let (mut told, _) = question.planner(&device);
        let before = told.floor();
        told.set_reserved(reserved);
        // The memory of a card is not that of the pipelines beside it.
        let more = if device.has_own_memory() { Bytes::ZERO } else { reserved };
        assert_eq!(told.floor(), before + more, "{name}");
        let options = StepOptions { reserved, ..question.options.clone() };
        let (mut knew, _) = Question { options, ..question.clone() }.planner(&device);
        let [told, knew] = [&mut told, &mut knew].map(|planner| {
            let limit = Bytes(planner.floor().get() + 8 * 1024 * 1024);
            planner.plan(Some(limit)).unwrap().figures
        });
        assert_eq!((told.account.reserved, knew.account.reserved), (more, more), "{name}");
        let of = |figures: &PlanFigures| {
            (
                figures.planned.saturating_sub(figures.outside),
                figures.arena,
                figures.micro_batches,
                figures.predicted_seconds,
            )
        };
        assert_eq!(of(&told), of(&knew), "{name}");
    }
}
