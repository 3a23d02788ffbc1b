//! The optimizer's state as bytes and in bf16, and weights in bf16: less memory that is planned and kept, a run that goes on with the same bits, and refusals by name.

use serde_json::Value;

use crate::common::{Scratch, bytes, least_of, lines, lines_inside, plimsoll};
use crate::model::{data, fixture};

const MODEL: &str = "mlp --data digits --width 512 --batch 32 --take 160 --threads 1";

fn words<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    command.split(' ').chain(MODEL.split(' ')).chain(more.iter().copied()).collect()
}

fn event(lines: &[Value], name: &str) -> Value {
    let found = lines.iter().rev().find(|line| line["event"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {lines:?}")).clone()
}

/// What the command says to an error.
fn refused(arguments: &[&str]) -> String {
    let done = plimsoll().args(arguments).output().unwrap();
    assert!(!done.status.success(), "{arguments:?} was accepted");
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn a_plan_shows_a_part_of_the_state_and_its_least_is_kept() {
    let plan = |more: &[&str]| {
        lines(&words("plan", &[&["--no-frontier", "--json"], more].concat())).unwrap().pop().unwrap()
    };
    let whole = plan(&[]);
    // In bf16 half of it, as bytes a quarter and the scales.
    for (kept, least, most) in [("8bit", 20, 30), ("bf16", 50, 51)] {
        let small = plan(&["--state", kept]);
        let state = |plan: &Value| bytes(&plan["kinds"], "optimizer");
        let (was, is) = (state(&whole), state(&small));
        assert!((was * least..=was * most).contains(&(is * 100)), "{kept}: {is} of {was} bytes");
        let saved = bytes(&whole, "floor_bytes") - bytes(&small, "floor_bytes");
        let less = was - is;
        assert!(saved * 10 >= less * 8, "the least is {saved} bytes less, where state is {less} less");
        keeps_its_least(["--state", kept]);
    }
    // Beside mixed-bf16, weights in bf16 are half of what is kept.
    let (mixed, narrow) = (plan(&["--precision", "mixed-bf16"]), plan(&["--precision", "bf16"]));
    for kind in ["parameter", "optimizer"] {
        let (was, is) = (bytes(&mixed["kinds"], kind), bytes(&narrow["kinds"], kind));
        assert!((was * 50..=was * 52).contains(&(is * 100)), "{kind}: {is} of {was} bytes");
    }
    assert!(bytes(&narrow, "floor_bytes") < bytes(&mixed, "floor_bytes"));
    keeps_its_least(["--precision", "bf16"]);
}

fn keeps_its_least(kept: [&str; 2]) {
    let scratch = Scratch::new(&format!("{}-limit", kept.concat()));
    let train = |name: &str, memory: &str| -> Vec<String> {
        let out = scratch.path(name);
        let more = [&["--epochs", "1", "--json", "--out", &out, "--memory", memory], &kept[..]].concat();
        words("train", &more).into_iter().map(String::from).collect()
    };
    let refusal = refused(&train("refused", "1MiB").iter().map(String::as_str).collect::<Vec<_>>());
    // What the process takes beside its plan is declared for a release build; in others it is measured, and varies by this.
    let grain = if cfg!(debug_assertions) { 2 << 20 } else { 0 };
    let limit = least_of(&refusal) + grain;
    let arguments = train("inside", &limit.to_string());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let epoch = event(&lines_inside(limit, &arguments).unwrap(), "epoch");
    assert!(bytes(&epoch, "resident_peak_bytes") <= limit, "{epoch}");
}

#[test]
fn a_run_goes_on_with_the_same_bits_and_not_with_other_state() {
    let scratch = Scratch::new("narrow-resume");
    let run = |out: &str, epochs: &str, more: &[&str]| {
        let more = [&["--epochs", epochs, "--json", "--out", out, "--seed", "3"], more].concat();
        lines(&words("train", &more))
    };
    let plain = scratch.path("plain");
    run(&plain, "1", &[]).unwrap();
    let narrow = scratch.path("narrow");
    run(&narrow, "2", &["--precision", "bf16"]).unwrap();
    let halves = scratch.path("halves");
    run(&halves, "1", &["--precision", "bf16"]).unwrap();
    run(&halves, "2", &["--resume"]).unwrap();
    let model = |folder: &str| std::fs::read(format!("{folder}/model.safetensors")).unwrap();
    assert!(model(&narrow) == model(&halves), "a run with weights in bf16 that went on has other weights");
    for kept in ["8bit", "bf16"] {
        let (whole, parts) = (scratch.path(&format!("{kept}-whole")), scratch.path(&format!("{kept}-parts")));
        run(&whole, "2", &["--state", kept]).unwrap();
        run(&parts, "1", &["--state", kept]).unwrap();
        run(&parts, "2", &["--resume"]).unwrap();
        assert!(model(&whole) == model(&parts), "a run with {kept} that went on has other weights");
        assert!(model(&plain) != model(&whole));
        let other = run(&parts, "3", &["--resume", "--state", "f32"]).unwrap_err();
        assert!(other.contains(&format!("begun with --state {kept}, and now --state f32")), "{other}");
        let other = run(&plain, "3", &["--resume", "--state", kept]).unwrap_err();
        assert!(other.contains(&format!("begun without it, and now --state {kept}")), "{other}");
    }
}

#[test]
fn a_run_with_weights_in_bf16_leaves_in_every_format() {
    let scratch = Scratch::new("narrow-leaves");
    let out = scratch.path("run");
    lines(&words("train", &["--epochs", "1", "--json", "--out", &out, "--precision", "bf16"])).unwrap();
    let keras = scratch.path("m.keras");
    lines(&["convert", &out, "--out", &keras, "--json"]).unwrap();
    for name in ["m.tflite", "m.onnx", "m.plim"] {
        lines(&["export", &out, "--to", &scratch.path(name), "--json"]).unwrap();
    }
    // What leaves is what was trained: the file says of the held-back digits what the run does.
    let loss = |what: &str| {
        let mut said = lines(&["evaluate", what, "--data", "digits", "--json"]).unwrap();
        said.pop().unwrap()["loss"].as_f64().unwrap()
    };
    let (run, file) = (loss(&out), loss(&scratch.path("m.onnx")));
    assert!((run - file).abs() <= 0.02 * run, "{run} and {file}");
}

#[test]
fn weights_in_bf16_are_refused_by_name_where_they_cannot_be() {
    let file = fixture("decay.keras");
    let file = file.to_str().unwrap();
    for (words, why) in [
        ("plan mlp --precision bf16 --state f32", "has the optimizer's state in bf16, too"),
        ("plan mlp --precision bf16 --state 8bit", "has the optimizer's state in bf16, too"),
        ("plan mlp --precision bf16 --optimizer sgd", "--state bf16: sgd has no bf16 state"),
        ("plan mlp --precision f32,out=bf16", "is for a whole model"),
        ("train mlp --precision bf16 --average 0.99", "would stand still"),
        ("train mlp --precision bf16 --ranks 2", "is for one rank"),
        (&format!("plan {file} --precision bf16"), "is for models by name and folders of language models"),
    ] {
        let said = refused(&words.split(' ').collect::<Vec<_>>());
        assert!(said.contains(why), "{words}: {said}");
    }
}

#[test]
fn a_keras_files_own_optimizer_is_refused_by_name() {
    let scratch = Scratch::new("eight-bit-keras");
    let (data, file) = (data(&scratch, "decay.npz"), fixture("decay.keras"));
    let out = scratch.path("run");
    let file = file.to_str().unwrap();
    let said = refused(&["train", file, "--data", &data, "--batch", "6", "--out", &out, "--state", "8bit"]);
    assert!(said.contains("has no 8-bit state; adam, adamw, momentum, nesterov and lion have"), "{said}");
    assert!(said.contains("--state 8bit: keras "), "{said}");
}
