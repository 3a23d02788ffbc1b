//! Language models of Hugging Face folders: tuned inside a limit, resumed to the bit, used, merged, planned.

use std::path::Path;

use serde_json::Value;

use crate::common::{Scratch, lines};

fn fixture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/fixtures").join(name);
    folder.to_string_lossy().into_owned()
}

/// Conversations and texts as a file.
fn texts(scratch: &Scratch) -> String {
    let path = scratch.path("texts.jsonl");
    let mut all = String::new();
    for i in 0..12 {
        all += &format!(
            "{{\"text\": \"the memory limit is a line on the hull of ship {i}; the ship is the machine\"}}\n"
        );
        all += "{\"messages\": [{\"role\": \"user\", \"content\": \"the ship?\"}, {\"role\": \"assistant\", \"content\": \"the machine\"}]}\n";
    }
    std::fs::write(&path, all).unwrap();
    path
}

fn tune(folder: &str, data: &str, out: &str, more: &[&str]) -> Result<Vec<Value>, String> {
    let mut words = vec![
        "tune",
        folder,
        "--data",
        data,
        "--sequence",
        "24",
        "--batch",
        "4",
        "--lr",
        "0.01",
        "--json",
        "--out",
        out,
    ];
    words.extend(more);
    lines(&words)
}

#[test]
fn adapters_are_tuned_within_the_limit_used_and_merged() {
    let scratch = Scratch::new("tune-adapters");
    let (folder, data, out) = (fixture("llama"), texts(&scratch), scratch.path("run"));
    let said = tune(&folder, &data, &out, &["--lora", "4", "--epochs", "6", "--memory", "100MiB"]).unwrap();
    let of = |event: &str| said.iter().filter(|line| line["event"] == event).cloned().collect::<Vec<Value>>();
    let run = &of("run")[0];
    assert_eq!(
        (run["tuned"].as_str(), run["packed"]["samples"].as_u64()),
        (Some("adapters of rank 4"), Some(24))
    );
    let plan = &of("plan")[0];
    assert_eq!(plan["memory_limit_bytes"], 100 << 20, "{plan}");
    assert!(plan["planned_bytes"].as_u64().is_some_and(|planned| planned <= 100 << 20), "{plan}");
    assert_eq!(of("plan").len(), 1, "a plan is said once");
    let losses: Vec<f64> = of("epoch").iter().map(|line| line["loss"].as_f64().unwrap()).collect();
    assert!(losses.len() == 6 && losses[5] < losses[0] - 1.0, "{losses:?}");
    let written = said.last().unwrap()["model"].as_str().unwrap().to_string();
    assert!(written.ends_with("adapter") && Path::new(&written).join("adapter_model.safetensors").is_file());
    // Checkpoints hold adapters and their state, and none of the weights.
    let checkpoints = std::fs::read_dir(Path::new(&out).join("checkpoints")).unwrap().flatten();
    let state =
        checkpoints.map(|entry| entry.path().join("state.safetensors")).find(|path| path.is_file()).unwrap();
    let state = std::fs::read(state).unwrap();
    let holds = |name: &str| state.windows(name.len()).any(|bytes| bytes == name.as_bytes());
    assert!(holds("q_proj/lora_A/weight") && !holds("q_proj/weight"));
    let prompt = ["--prompt", "the ship is", "--tokens", "8", "--json"];
    let say = |more: &[&str]| lines(&[&["generate"], more, &prompt[..]].concat()).unwrap().remove(0);
    let (plain, tuned) = (say(&[&folder]), say(&[&folder, "--adapter", &out]));
    assert_ne!(plain["tokens"], tuned["tokens"]);
    let merged = scratch.path("merged");
    lines(&["merge", &folder, &out, "--out", &merged, "--json"]).unwrap();
    // Rounding to bf16 may part them after a while, not at once.
    assert_eq!(say(&[&merged])["tokens"][0], tuned["tokens"][0]);
    let again = lines(&["merge", &folder, &out, "--out", &merged]).unwrap_err();
    assert!(again.contains("not empty"), "{again}");
}

#[test]
fn a_run_that_goes_on_has_the_bits_of_one_that_never_stopped() {
    let scratch = Scratch::new("tune-resume");
    let (folder, data) = (fixture("gpt2"), texts(&scratch));
    // The fixture of GPT-2 has no tokenizer of its own; the words are the same.
    let own = scratch.path("gpt2");
    std::fs::create_dir_all(&own).unwrap();
    for (from, file) in [
        (&folder, "config.json"),
        (&folder, "model.safetensors"),
        (&fixture("llama"), "tokenizer.json"),
        (&fixture("llama"), "tokenizer_config.json"),
    ] {
        std::fs::copy(Path::new(from).join(file), Path::new(&own).join(file)).unwrap();
    }
    let (whole, parted) = (scratch.path("whole"), scratch.path("parted"));
    let more = ["--lora", "2", "--lora-dropout", "0.1", "--lora-targets", "c_attn"];
    tune(&own, &data, &whole, &[&more[..], &["--epochs", "2"]].concat()).unwrap();
    tune(&own, &data, &parted, &[&more[..], &["--epochs", "1"]].concat()).unwrap();
    lines(&["tune", "--resume", "--out", &parted, "--epochs", "2", "--json"]).unwrap();
    let read = |out: &str| std::fs::read(Path::new(out).join("adapter/adapter_model.safetensors")).unwrap();
    assert!(read(&whole) == read(&parted), "the adapters differ");
    let other = lines(&["tune", "--resume", "--out", &parted, "--lora", "3"]).unwrap_err();
    assert!(other.contains("other adapters"), "{other}");
}

#[test]
fn all_weights_are_tuned_into_a_folder_like_the_first() {
    let scratch = Scratch::new("tune-all");
    let (folder, data, out) = (fixture("llama"), texts(&scratch), scratch.path("run"));
    let said = tune(&folder, &data, &out, &["--epochs", "2", "--precision", "mixed-bf16"]).unwrap();
    let model = said.last().unwrap()["model"].as_str().unwrap();
    assert!(model.ends_with("model"));
    let text = lines(&["generate", model, "--prompt", "the", "--tokens", "4", "--json"]).unwrap();
    assert_eq!(text[0]["tokens"].as_array().unwrap().len(), 4);
}

#[test]
fn a_folder_is_planned_from_its_config_alone() {
    let scratch = Scratch::new("plan-folder");
    let folder = scratch.path("only-config");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(Path::new(&fixture("qwen3")).join("config.json"), Path::new(&folder).join("config.json"))
        .unwrap();
    let plan = |more: &[&str]| {
        lines(&[&["plan", &folder, "--sequence", "64", "--json", "--no-frontier"], more].concat())
    };
    let (all, few) = (plan(&[]).unwrap().remove(0), plan(&["--lora", "2"]).unwrap().remove(0));
    assert!(all["fits"] == true && few["fits"] == true);
    let state = |line: &Value| line["kinds"]["optimizer"].as_u64().unwrap_or(0);
    assert!(state(&few) < state(&all), "{few} {all}");
    let refused = plan(&["--memory", "1MiB"]).unwrap().remove(0);
    assert!(refused["fits"] == false && refused["floor_bytes"].as_u64() > Some(1 << 20), "{refused}");
    assert!(plan(&["--augment", "flip"]).unwrap_err().contains("--augment"));
    assert!(lines(&["plan", "gpt", "--lora", "2"]).unwrap_err().contains("--lora"));
}

#[test]
fn what_cannot_be_tuned_is_said_with_file_and_line() {
    let scratch = Scratch::new("tune-wrong");
    let (folder, out) = (fixture("llama"), scratch.path("run"));
    let data = scratch.path("texts.jsonl");
    std::fs::write(&data, "{\"text\": \"the ship is the machine\"}\n{\"words\": 1}\n").unwrap();
    let error = tune(&folder, &data, &out, &["--lora", "2", "--epochs", "1"]).unwrap_err();
    assert!(error.contains("texts.jsonl, line 2") && error.contains("none of text"), "{error}");
    let skipped = scratch.path("skipped");
    let said =
        tune(&folder, &data, &skipped, &["--lora", "2", "--epochs", "1", "--on-error", "skip"]).unwrap();
    assert_eq!(said[0]["packed"]["skipped"], 1);
    std::fs::write(&data, "\n").unwrap();
    let error = tune(&folder, &data, &scratch.path("empty"), &["--lora", "2"]).unwrap_err();
    assert!(error.contains("no text in it"), "{error}");
    let left = std::fs::read_dir(scratch.path("empty")).into_iter().flatten().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| name != "lock").collect();
    assert!(left.is_empty(), "a refused run leaves {left:?}");
    for (more, word) in [
        (["--lora", "0"], "rank 0"),
        (["--sequence", "97"], "96 positions"),
        (["--metrics", "accuracy"], "--metrics"),
        (["--lora-alpha", "3"], "--lora"),
    ] {
        let none = scratch.path("none");
        let words = [&["tune", &folder, "--data", &data, "--out", &none][..], &more].concat();
        let error = lines(&words).unwrap_err();
        assert!(error.contains(word), "{more:?}: {error}");
    }
    let error = lines(&["generate", &fixture("gpt2"), "--prompt", "a"]).unwrap_err();
    assert!(error.contains("tokenizer.json"), "{error}");
}
