//! State in files of a folder: less memory that is planned and kept, the same bits, runs that go on with and without it, nothing left behind, and
//! refusals by name.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::{Scratch, bytes, least_of, lines, plimsoll};

const MODEL: &str =
    "mlp --data digits --width 1024 --depth 4 --batch 16 --take 96 --threads 1 --optimizer adam --seed 3";

fn words<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    command.split(' ').chain(MODEL.split(' ')).chain(more.iter().copied()).collect()
}

/// What the command says to an error.
fn refused(arguments: &[&str]) -> String {
    let done = plimsoll().args(arguments).output().unwrap();
    assert!(!done.status.success(), "{arguments:?} was accepted");
    String::from_utf8_lossy(&done.stderr).into_owned()
}

fn event(lines: &[Value], name: &str) -> Value {
    let found = lines.iter().rev().find(|line| line["event"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {lines:?}")).clone()
}

fn model(folder: &str) -> Vec<u8> {
    std::fs::read(format!("{folder}/model.safetensors")).unwrap()
}

#[test]
fn a_disk_lowers_the_least_which_is_kept_with_the_same_bits_and_leaves_no_file() {
    let place = Place::new("disk");
    let Place { folder, disk, whole: plain, out: inside, .. } = &place;
    let plan = |more: &[&str]| {
        lines(&words("plan", &[&["--no-frontier", "--json"], more].concat())).unwrap().pop().unwrap()
    };
    let (whole, small) = (plan(&[]), plan(&["--disk", disk]));
    let saved = bytes(&whole, "floor_bytes") - bytes(&small, "floor_bytes");
    // Of weights and two moments of a thousand by a thousand twelve MiB, what one update needs at once stays.
    assert!(saved > 4 << 20, "{saved} bytes less");

    let train = |out: &str, more: &[&str]| {
        let more = [&["--epochs", "2", "--json", "--out", out], more].concat();
        lines(&words("train", &more))
    };
    train(plain, &[]).unwrap();
    let refusal =
        refused(&words("train", &["--epochs", "2", "--out", inside, "--disk", disk, "--memory", "1MiB"]));
    let grain = if cfg!(debug_assertions) { 2 << 20 } else { 0 };
    let limit = least_of(&refusal) + grain;
    assert!(limit < bytes(&whole, "floor_bytes"), "{refusal}");
    let said =
        train(inside, &["--disk", disk, "--memory", &limit.to_string(), "--exact", "bitwise"]).unwrap();
    let planned = event(&said, "plan");
    assert!(bytes(&planned, "disk_bytes") > 4 << 20 && bytes(&planned, "host_bytes") == 0, "{planned}");
    assert!(bytes(&planned, "disk_bytes") >= bytes(&planned, "hosted_bytes"), "{planned}");
    let epoch = event(&said, "epoch");
    assert!(bytes(&epoch, "resident_peak_bytes") <= limit, "{epoch}");
    assert!(model(plain) == model(inside), "other bits with state on a disk");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "files are left behind");
}

#[test]
fn a_smaller_last_batch_that_needs_more_than_a_full_one_has_its_state_taken_to_the_disk() {
    let place = Place::new("disk-last");
    let (disk, out) = (&place.disk, &place.out);
    let settings = "unet --image 16 --width 32 --depth 3 --data random --batch 5 --take 7 --optimizer rmsprop --threads 1 --epochs 2";
    let settings: Vec<&str> = settings.split(' ').chain(["--disk", disk]).collect();
    let plan = lines(&[&["plan"], &settings[..], &["--no-frontier", "--json"]].concat()).unwrap();
    let least = bytes(plan.last().unwrap(), "floor_bytes").to_string();
    // Two samples are convolved by another kernel than five are, with more scratch.
    let said = lines(&[&["train"], &settings[..], &["--memory", &least, "--out", out, "--json"]].concat());
    assert_eq!(event(&said.unwrap(), "end")["step"], 4);
}

#[test]
fn a_run_goes_on_without_its_disk_and_with_it() {
    let place = Place::new("disk-resume");
    let Place { disk, out: parts, whole, .. } = &place;
    let run = |out: &str, epochs: &str, more: &[&str]| {
        let more = [&["--epochs", epochs, "--json", "--exact", "bitwise", "--out", out], more].concat();
        lines(&words("train", &more)).unwrap()
    };
    run(whole, "3", &[]);
    let limit = |more: &[&str]| {
        let all =
            [&["--epochs", "1", "--exact", "bitwise", "--memory", "1MiB", "--out", parts], more].concat();
        (least_of(&refused(&words("train", &all))) + (2 << 20)).to_string()
    };
    let tight = limit(&["--disk", disk]);
    let first = run(parts, "1", &["--disk", disk, "--memory", &tight]);
    assert!(bytes(&event(&first, "plan"), "disk_bytes") > 0);
    run(parts, "2", &["--resume", "--memory", "max"]);
    run(parts, "3", &["--resume", "--disk", disk, "--memory", &tight]);
    assert!(model(whole) == model(parts), "a run that went on has other weights");
}

/// Where a run over a disk is, and the folder that it may use.
struct Place {
    folder: String,
    disk: String,
    out: String,
    whole: String,
    _scratch: Scratch,
}

impl Place {
    fn new(name: &str) -> Place {
        let scratch = Scratch::new(name);
        let [folder, out, whole] = ["scratch", "run", "whole"].map(|name| scratch.path(name));
        std::fs::create_dir(&folder).unwrap();
        Place { disk: format!("{folder}:1GiB"), folder, out, whole, _scratch: scratch }
    }

    /// What a run that ended with this status said; nothing of it is in the folder.
    #[track_caller]
    fn ended(&self, run: Output, status: i32) -> String {
        let why = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(status), "{why}");
        assert_eq!(std::fs::read_dir(&self.folder).unwrap().count(), 0, "files are left behind");
        why
    }

    /// What a run that would take long says that is interrupted, by a command with its number, once it has kept a checkpoint.
    #[track_caller]
    fn interrupted(&self, by: &[&str], status: i32) -> String {
        let more = [
            "--epochs",
            "100000",
            "--checkpoint-every",
            "1",
            "--json",
            "--out",
            &self.out,
            "--disk",
            &self.disk,
        ];
        let tight =
            least_of(&refused(&words("train", &[&more[..], &["--memory", "1MiB"]].concat()))) + (2 << 20);
        let mut command = plimsoll();
        command.args(words("train", &[&more[..], &["--memory", &tight.to_string()]].concat()));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(said.any(|line| line.contains("\"event\":\"epoch\"")), "no epoch was done");
        // What else is said goes nowhere; a pipe that nobody reads would stop the run.
        std::thread::spawn(move || said.for_each(drop));
        let done = Command::new(by[0]).args(&by[1..]).arg(child.id().to_string()).status().unwrap();
        assert!(done.success(), "{by:?}");
        self.ended(child.wait_with_output().unwrap(), status)
    }
}

#[test]
fn a_disk_that_fails_in_the_middle_of_a_run_ends_it_with_the_last_checkpoint() {
    let place = Place::new("disk-fails");
    // No file may be written past its first page then, as on a disk that has no more room.
    let why = place.interrupted(&["prlimit", "--fsize=4096:", "--pid"], 1);
    // Whatever is written first: a tensor that is kept there, or the next checkpoint.
    let of_disk = why.contains("tensors kept in") && why.contains("could not be copied");
    assert!(of_disk || why.contains("cannot be written"), "{why}");
    // A step of which a part was written is in no checkpoint.
    assert!(why.contains("could not be saved any more, the last checkpoint is"), "{why}");

    // From there it goes on with the bits of a run that nothing happened to.
    goes_on(&place, step_in(&why, "training stopped at step "));
}

/// The step that a sentence names.
fn step_in(why: &str, before: &str) -> u64 {
    let behind = why.split(before).nth(1).unwrap_or_else(|| panic!("no step in {why}"));
    behind.split([',', ':']).next().unwrap().parse().unwrap()
}

/// Goes on with a run that ended at a step, to the end of the next epoch, of six batches, and compares it with one that was never ended.
fn goes_on(Place { out, whole, .. }: &Place, step: u64) {
    let epochs = (step / 6 + 2).to_string();
    lines(&["train", "--resume", "--out", out, "--epochs", &epochs, "--json", "--memory", "max"]).unwrap();
    lines(&words("train", &["--epochs", &epochs, "--json", "--out", whole])).unwrap();
    assert!(model(whole) == model(out), "a run that went on has other weights");
}

#[test]
fn a_signal_ends_a_run_over_a_disk_with_a_checkpoint_and_no_file() {
    let place = Place::new("disk-signal");
    let why = place.interrupted(&["kill", "-s", "INT"], 130);
    goes_on(&place, step_in(&why, "stopped after step "));
}

#[test]
fn a_disk_that_gives_less_than_is_wanted_is_told_before_the_first_step() {
    let place = Place::new("disk-little");
    let more = ["--epochs", "1", "--out", &place.out, "--disk", &place.disk, "--memory"];
    let tight = least_of(&refused(&words("train", &[&more[..], &["1MiB"]].concat()))) + (2 << 20);
    let mut command = Command::new("prlimit");
    command.args(["--fsize=1000000", "--"]).arg(plimsoll().get_program());
    let ended = command.args(words("train", &[&more[..], &[&tight.to_string()]].concat())).output().unwrap();
    let why = place.ended(ended, 1);
    assert!(why.contains("could not be given") && why.contains("MiB more: File too large"), "{why}");
}

#[test]
fn folders_and_sizes_that_are_none_are_refused_by_name() {
    let scratch = Scratch::new("disk-refused");
    let (here, none) = (scratch.path("."), scratch.path("none:1GiB"));
    let said = |disk: &str, more: &[&str]| refused(&words("plan", &[&["--disk", disk], more].concat()));
    assert!(said(&none, &[]).contains("none: there is no such folder"));
    assert!(
        said("nowhere", &[]).contains("name a folder and how much of it may be taken, as in /scratch:200GiB")
    );
    assert!(said(&format!("{here}:much"), &[]).contains("--disk"));
    let full = said(&format!("{here}:900000TiB"), &[]);
    assert!(full.contains("its disk has") && full.contains("are asked for"), "{full}");
    assert!(said("/proc/self:1GiB", &[]).contains("no file can be made there"));
    let card = said(&format!("{here}:1GiB"), &["--device", "h200"]);
    assert!(
        card.contains("keeps nothing on a disk, only the CPU does") && card.contains("--host-memory"),
        "{card}"
    );
}
