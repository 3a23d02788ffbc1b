//! State in files of a folder: less memory that is planned and kept, the same bits, runs that go on with and without it, nothing left behind, and
//! refusals by name.

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
    let scratch = Scratch::new("disk");
    let (folder, plain, inside) = (scratch.path("scratch"), scratch.path("plain"), scratch.path("inside"));
    std::fs::create_dir(&folder).unwrap();
    let disk = format!("{folder}:1GiB");
    let plan = |more: &[&str]| {
        lines(&words("plan", &[&["--no-frontier", "--json"], more].concat())).unwrap().pop().unwrap()
    };
    let (whole, small) = (plan(&[]), plan(&["--disk", &disk]));
    let saved = bytes(&whole, "floor_bytes") - bytes(&small, "floor_bytes");
    // Of weights and two moments of a thousand by a thousand twelve MiB, what one update needs at once stays.
    assert!(saved > 4 << 20, "{saved} bytes less");

    let train = |out: &str, more: &[&str]| {
        let more = [&["--epochs", "2", "--json", "--out", out], more].concat();
        lines(&words("train", &more))
    };
    train(&plain, &[]).unwrap();
    let refusal =
        refused(&words("train", &["--epochs", "2", "--out", &inside, "--disk", &disk, "--memory", "1MiB"]));
    let grain = if cfg!(debug_assertions) { 2 << 20 } else { 0 };
    let limit = least_of(&refusal) + grain;
    assert!(limit < bytes(&whole, "floor_bytes"), "{refusal}");
    let said =
        train(&inside, &["--disk", &disk, "--memory", &limit.to_string(), "--exact", "bitwise"]).unwrap();
    let planned = event(&said, "plan");
    assert!(bytes(&planned, "disk_bytes") > 4 << 20 && bytes(&planned, "host_bytes") == 0, "{planned}");
    assert!(bytes(&planned, "disk_bytes") >= bytes(&planned, "hosted_bytes"), "{planned}");
    let epoch = event(&said, "epoch");
    assert!(bytes(&epoch, "resident_peak_bytes") <= limit, "{epoch}");
    assert!(model(&plain) == model(&inside), "other bits with state on a disk");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "files are left behind");
}

#[test]
fn a_run_goes_on_without_its_disk_and_with_it() {
    let scratch = Scratch::new("disk-resume");
    let (whole, parts, folder) = (scratch.path("whole"), scratch.path("parts"), scratch.path("scratch"));
    std::fs::create_dir(&folder).unwrap();
    let disk = format!("{folder}:1GiB");
    let run = |out: &str, epochs: &str, more: &[&str]| {
        let more = [&["--epochs", epochs, "--json", "--exact", "bitwise", "--out", out], more].concat();
        lines(&words("train", &more)).unwrap()
    };
    run(&whole, "3", &[]);
    let limit = |more: &[&str]| {
        let all =
            [&["--epochs", "1", "--exact", "bitwise", "--memory", "1MiB", "--out", &parts], more].concat();
        (least_of(&refused(&words("train", &all))) + (2 << 20)).to_string()
    };
    let tight = limit(&["--disk", &disk]);
    let first = run(&parts, "1", &["--disk", &disk, "--memory", &tight]);
    assert!(bytes(&event(&first, "plan"), "disk_bytes") > 0);
    run(&parts, "2", &["--resume", "--memory", "max"]);
    run(&parts, "3", &["--resume", "--disk", &disk, "--memory", &tight]);
    assert!(model(&whole) == model(&parts), "a run that went on has other weights");
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
