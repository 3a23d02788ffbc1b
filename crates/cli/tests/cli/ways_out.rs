//! What a refusal offers: every way out has a flag that can be typed, and the least that it names is what the planner says of it then.

use serde_json::Value;

use crate::common::{bytes, lines};

fn refused(words: &[&str]) -> Value {
    lines(&[&["plan"], words, &["--no-frontier", "--json"]].concat()).unwrap().pop().unwrap()
}

fn way<'a>(refusal: &'a Value, flag: &str) -> &'a Value {
    let ways = refusal["ways_out"].as_array().unwrap_or_else(|| panic!("no ways_out in {refusal}"));
    let found = ways.iter().find(|way| way["flag"].as_str().is_some_and(|said| said.starts_with(flag)));
    found.unwrap_or_else(|| panic!("no {flag} in {refusal}"))
}

/// The least of a step with more flags.
fn least(words: &[&str], more: &str) -> u64 {
    let more: Vec<&str> = more.split(' ').collect();
    // A flag that is there already is said anew.
    let at = words.iter().position(|word| *word == more[0]);
    let words: Vec<&str> = words
        .iter()
        .enumerate()
        .filter(|(i, _)| at.is_none_or(|at| *i != at && *i != at + 1))
        .map(|(_, w)| *w)
        .collect();
    let plan =
        lines(&[&["plan"], &words[..], &more, &["--no-frontier", "--json"]].concat()).unwrap().pop().unwrap();
    bytes(&plan, "floor_bytes")
}

#[test]
fn images_may_be_smaller_and_activations_narrower() {
    // So wide that the step takes more than planning it.
    let words = [
        "resnet18",
        "--data",
        "random",
        "--width",
        "16",
        "--image",
        "64",
        "--batch",
        "16",
        "--take",
        "32",
        "--threads",
        "1",
    ];
    let refusal = refused(&[&words[..], &["--memory", "20MiB"]].concat());
    assert_eq!(refusal["fits"], false, "{refusal}");
    let floor = bytes(&refusal, "floor_bytes");
    for flag in ["--precision mixed-bf16", "--precision mixed-f16", "--image 32", "--batch 8"] {
        let way = way(&refusal, flag);
        assert_eq!(way["flag"], flag);
        let said = bytes(way, "least_bytes");
        assert!(said < floor, "{flag} lowers the least: {refusal}");
        assert_eq!(way["fits"], said <= 20 << 20);
        assert!(refusal["why"].as_str().unwrap().contains(flag), "the text says it too: {refusal}");
    }
    for flag in ["--precision mixed-bf16", "--image 32"] {
        assert_eq!(bytes(way(&refusal, flag), "least_bytes"), least(&words, flag), "{flag}");
    }
    // No way out is offered that does not hold.
    for way in refusal["ways_out"].as_array().unwrap() {
        let (flag, said) = (way["flag"].as_str().unwrap(), bytes(way, "least_bytes"));
        assert!(said < floor && least(&words, flag) <= said, "{flag}: {refusal}");
    }
    // What is offered under the old name is the same.
    assert_eq!(refusal["ways"].as_array().map(Vec::len), refusal["ways_out"].as_array().map(Vec::len));
}

#[test]
fn sequences_may_be_shorter() {
    let words = [
        "gpt",
        "--data",
        "random",
        "--width",
        "32",
        "--depth",
        "2",
        "--heads",
        "2",
        "--sequence",
        "64",
        "--batch",
        "8",
        "--take",
        "16",
        "--threads",
        "1",
    ];
    let refusal = refused(&[&words[..], &["--memory", "19MiB"]].concat());
    let shorter = way(&refusal, "--sequence 32");
    assert!(bytes(shorter, "least_bytes") < bytes(&refusal, "floor_bytes"), "{refusal}");
    assert_eq!(bytes(shorter, "least_bytes"), least(&words, "--sequence 32"));
}

#[test]
fn the_optimizers_state_may_be_narrower() {
    let words =
        ["mlp", "--data", "digits", "--width", "512", "--batch", "32", "--take", "64", "--threads", "1"];
    let refusal = refused(&[&words[..], &["--memory", "19MiB"]].concat());
    for kept in ["bf16", "8bit"] {
        let flag = format!("--state {kept}");
        let narrower = way(&refusal, &flag);
        assert!(bytes(narrower, "least_bytes") < bytes(&refusal, "floor_bytes"), "{refusal}");
        // It is enough, which is found sooner than the least and is no lower.
        let said = bytes(narrower, "least_bytes");
        assert!(least(&words, &flag) <= said, "{refusal}");
        let plan = refused(&[&words[..], &["--state", kept, "--memory", &said.to_string()]].concat());
        assert_eq!(plan["fits"], true, "{plan}");
        assert!(refusal["why"].as_str().unwrap().contains(&flag), "the text says it too: {refusal}");
    }
    let of = |flag: &str| bytes(way(&refusal, flag), "least_bytes");
    assert!(of("--state 8bit") < of("--state bf16"), "{refusal}");
    // Where it is so already, or the optimizer has no such form, it is not offered.
    for more in [["--state", "8bit"], ["--optimizer", "adagrad"]] {
        let refusal = refused(&[&words[..], &["--memory", "16MiB"], &more].concat());
        assert_eq!(refusal["fits"], false, "{refusal}");
        let ways = refusal["ways_out"].as_array().unwrap();
        let is_of_state = |way: &Value| way["flag"].as_str().unwrap().starts_with("--state");
        assert!(!ways.iter().any(is_of_state), "{refusal}");
    }
}

#[test]
fn a_disk_may_hold_what_memory_cannot() {
    let model = "mlp --data digits --width 1024 --depth 4 --batch 16 --take 64 --threads 1";
    let words: Vec<&str> = model.split(' ').collect();
    let refusal = refused(&[&words[..], &["--memory", "19MiB"]].concat());
    let disk = way(&refusal, "--disk");
    let (flag, said) = (disk["flag"].as_str().unwrap(), bytes(disk, "least_bytes"));
    assert!(flag.starts_with("--disk .:") && flag.ends_with("MiB"), "{refusal}");
    assert!(said + (4 << 20) < bytes(&refusal, "floor_bytes"), "{refusal}");
    // As it is written it can be typed, and what it names is enough, to a hair of what a build without optimisation measures of itself.
    assert!(least(&words, flag) <= said + (2 << 20), "{refusal}");
    let (of, folder) = flag.split_once(' ').unwrap();
    let said = (said + (2 << 20)).to_string();
    let plan = refused(&[&words[..], &[of, folder, "--memory", &said]].concat());
    assert_eq!(plan["fits"], true, "{plan}");
    assert!(bytes(&plan, "disk_bytes") > 4 << 20, "{plan}");
    // A card copies to the host's memory instead.
    let card = refused(&[&words[..], &["--device", "h200", "--memory", "19MiB"]].concat());
    let ways = card["ways_out"].as_array().unwrap();
    assert!(ways.iter().all(|way| !way["flag"].as_str().unwrap().starts_with("--disk")), "{card}");
}

#[test]
fn what_cannot_be_smaller_is_not_offered() {
    // Digits are 8 × 8 as they are, and 16 bits are narrow already.
    let words = ["cnn", "--batch", "64", "--precision", "mixed-bf16", "--threads", "1", "--memory", "19MiB"];
    let refusal = refused(&words);
    assert_eq!(refusal["fits"], false, "{refusal}");
    let flags: Vec<&str> =
        refusal["ways_out"].as_array().unwrap().iter().filter_map(|way| way["flag"].as_str()).collect();
    assert!(
        flags.iter().all(|flag| !flag.starts_with("--image") && !flag.starts_with("--precision")),
        "{flags:?}"
    );
}

#[test]
fn a_tiny_step_that_is_split_or_smaller_still_needs_room_to_be_planned() {
    let words =
        ["mlp", "--data", "digits", "--width", "8", "--batch", "64", "--take", "64", "--threads", "1"];
    let words = [&words[..], &["--exact", "bitwise"]].concat();
    let refusal = refused(&[&words[..], &["--memory", "1MiB"]].concat());
    for way in refusal["ways_out"].as_array().unwrap() {
        let (flag, said) = (way["flag"].as_str().unwrap(), bytes(way, "least_bytes"));
        assert!(least(&words, flag) <= said, "{flag}: {refusal}");
    }
}
