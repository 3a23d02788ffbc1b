//! Language models of Hugging Face folders: tuned inside a limit, resumed to the bit, used, merged, planned.

use std::path::Path;

use plimsoll_testing::child::least_of;
use serde_json::Value;

use crate::common::{Scratch, lines};
use crate::resume::kill_and_resume;

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
    // What is refused before a text is read names what is enough for reading them, but for what a smaller last batch needs. A program that is measured is so in
    // steps of 2 MiB.
    let refused = tune(&folder, &data, &scratch.path("refused"), &["--lora", "4", "--memory", "1MiB"]);
    let (least, floor) = (least_of(&refused.unwrap_err()), plan["floor_bytes"].as_u64().unwrap());
    assert!(least.abs_diff(floor) % (2 << 20) < 4096, "{least} and {floor}");
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
fn ranks_tune_as_one_and_the_first_writes() {
    let scratch = Scratch::new("tune-ranks");
    let (folder, data) = (fixture("llama"), texts(&scratch));
    let tuned = |name: &str, more: &[&str]| {
        let flags = ["--lora", "4", "--epochs", "3", "--threads", "1", "--precision", "f32"];
        let said = tune(&folder, &data, &scratch.path(name), &[&flags[..], more].concat()).unwrap();
        let epochs = said.iter().filter(|line| line["event"] == "epoch");
        let losses = epochs.map(|line| line["loss"].as_f64().unwrap()).collect::<Vec<f64>>();
        let written = said.last().unwrap()["model"].as_str().unwrap().to_string();
        assert!(Path::new(&written).join("adapter_model.safetensors").is_file(), "{said:?}");
        losses
    };
    let one = tuned("one", &[]);
    for (parallel, ranks) in [
        ("data", "2"),
        ("shard", "2"),
        ("parameters", "2"),
        ("tensor", "2"),
        ("pipeline", "2"),
        ("data:2+tensor", "4"),
    ] {
        let two = tuned(parallel, &["--ranks", ranks, "--parallel", parallel]);
        assert_eq!(two.len(), one.len());
        for (a, b) in two.iter().zip(&one) {
            assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{parallel}: {two:?} and {one:?}");
        }
    }
    let why = tune(&folder, &data, &scratch.path("no"), &["--parallel", "pipeline"]).unwrap_err();
    assert!(why.contains("plimsoll tune has all parameters on every rank"), "{why}");
    let why = tune(&folder, &data, &scratch.path("no"), &["--parallel", "shard+tensor"]).unwrap_err();
    assert!(why.contains("data+tensor and data+pipeline are built"), "{why}");
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
fn adapters_with_magnitudes_are_tuned_gone_on_with_used_and_merged_over_any_base() {
    let scratch = Scratch::new("tune-dora");
    let (folder, data) = (fixture("llama"), texts(&scratch));
    for base in [None, Some("int8"), Some("nf4")] {
        let of = |name: &str| scratch.path(&format!("{name}-{}", base.unwrap_or("whole")));
        let (whole, parted, merged) = (of("whole"), of("parted"), of("merged"));
        let kept: Vec<&str> = base.iter().flat_map(|base| ["--base", base]).collect();
        let more =
            [&["--lora", "4", "--dora", "--lora-dropout", "0.1", "--memory", "100MiB"], &kept[..]].concat();
        let said = tune(&folder, &data, &whole, &[&more[..], &["--epochs", "6"]].concat()).unwrap();
        let epochs = said.iter().filter(|line| line["event"] == "epoch");
        let losses: Vec<f64> = epochs.map(|line| line["loss"].as_f64().unwrap()).collect();
        assert!(losses.len() == 6 && losses[5] < losses[0] - 1.0, "{base:?}: {losses:?}");
        tune(&folder, &data, &parted, &[&more[..], &["--epochs", "2"]].concat()).unwrap();
        lines(&["tune", "--resume", "--out", &parted, "--epochs", "6", "--json"]).unwrap();
        let read =
            |out: &str| std::fs::read(Path::new(out).join("adapter/adapter_model.safetensors")).unwrap();
        assert!(read(&whole) == read(&parted), "{base:?}: the adapters of a run that went on differ");
        let config = std::fs::read_to_string(Path::new(&whole).join("adapter/adapter_config.json")).unwrap();
        assert!(config.contains("\"use_dora\": true"), "{config}");
        let say = |words: &[&str]| {
            let all =
                [&["generate"], words, &["--prompt", "the ship is", "--tokens", "4", "--json"]].concat();
            lines(&all).unwrap().remove(0)["tokens"].clone()
        };
        let tuned = say(&[&[folder.as_str(), "--adapter", &whole], &kept[..]].concat());
        assert_ne!(tuned, say(&[&folder]), "{base:?}");
        lines(&["merge", &folder, &whole, "--out", &merged, "--json"]).unwrap();
        assert_eq!(say(&[&merged])[0], tuned[0], "{base:?}");
    }
}

/// `PLIMSOLL_KILLS=10` kills it more often.
#[test]
fn a_tuning_that_is_killed_three_times_ends_with_the_same_bits() {
    let scratch = Scratch::new("tune-killed");
    let (folder, data) = (fixture("llama"), texts(&scratch));
    let (whole, killed) = (scratch.path("whole"), scratch.path("killed"));
    let most = std::env::var("PLIMSOLL_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let kills = kill_and_resume(&whole, &killed, most, |out| {
        let flags =
            "--lora 4 --lora-dropout 0.1 --sequence 24 --batch 2 --epochs 20 --checkpoint-every 7 --json";
        let words = ["tune", &folder, "--data", &data, "--out", out].into_iter().chain(flags.split(' '));
        words.map(String::from).collect()
    });
    let read = |out: &str| std::fs::read(Path::new(out).join("adapter/adapter_model.safetensors")).unwrap();
    assert!(read(&whole) == read(&killed), "after {kills} kills the adapters are others");
    assert!(kills > 0);
}

#[test]
fn adapters_lead_to_their_model_and_few_bits_are_said_from() {
    let scratch = Scratch::new("tune-adapter-folder");
    let (folder, data, out) = (fixture("llama"), texts(&scratch), scratch.path("run"));
    tune(&folder, &data, &out, &["--lora", "4", "--epochs", "2"]).unwrap();
    let say = |words: &[&str]| {
        lines(&[&["generate"], words, &["--prompt", "the ship", "--tokens", "4", "--json"]].concat())
    };
    let named = say(&[&folder, "--adapter", &out]).unwrap();
    assert_eq!(say(&[&out]).unwrap(), named, "the run's adapters name their model");
    assert_eq!(say(&[&folder, "--base", "int8"]).unwrap()[0]["tokens"].as_array().unwrap().len(), 4);
    assert!(say(&[&folder, "--base", "nf4", "--adapter", &out]).is_ok());
    let again = scratch.path("again");
    let said = tune(&out, &data, &again, &["--epochs", "1"]).unwrap();
    assert_eq!(said[0]["tuned"], "adapters of rank 4");
    // Adapters of a model that is not here, and adapters where a model is wanted.
    let lost = fixture("llama-adapter");
    for words in [vec!["generate", &lost, "--prompt", "a"], vec!["tune", &lost, "--data", &data]] {
        let why = lines(&words).unwrap_err();
        assert!(why.contains("\"llama\"") && why.contains("--adapter"), "{why}");
    }
    let why = lines(&["merge", &lost, &folder, "--out", &scratch.path("merged")]).unwrap_err();
    assert!(why.contains("name the folder of the model first"), "{why}");
}

#[test]
fn weights_of_a_file_are_where_tuning_begins() {
    let scratch = Scratch::new("tune-from");
    let (folder, data, out) = (fixture("qwen2"), texts(&scratch), scratch.path("run"));
    let own = scratch.path("own");
    std::fs::create_dir_all(&own).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(Path::new(&folder).join(file), Path::new(&own).join(file)).unwrap();
    }
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(Path::new(&fixture("llama")).join(file), Path::new(&own).join(file)).unwrap();
    }
    let first = tune(&own, &data, &out, &["--epochs", "2"]).unwrap();
    let tuned = Path::new(&out).join("model/model.safetensors");
    let second =
        tune(&own, &data, &scratch.path("second"), &["--epochs", "1", "--from", tuned.to_str().unwrap()])
            .unwrap();
    let from = second.iter().find(|line| line["event"] == "from").unwrap();
    assert!(
        from["missing"].as_array().unwrap().is_empty() && from["unused"].as_array().unwrap().is_empty(),
        "{from}"
    );
    let loss =
        |said: &[Value]| said.iter().find(|line| line["event"] == "epoch").unwrap()["loss"].as_f64().unwrap();
    assert!(loss(&second) < loss(&first), "{} {}", loss(&second), loss(&first));
}

#[test]
fn encoders_are_planned_and_tuned_for_words_and_for_labels() {
    let scratch = Scratch::new("tune-encoders");
    let folder = fixture("bert-texts");
    let flags = ["--sequence", "16", "--batch", "4", "--lr", "0.01", "--epochs", "4", "--json"];
    let run = |data: &str, out: &str, more: &[&str]| {
        lines(&[&["tune", &folder, "--data", data, "--out", out], &flags[..], more].concat())
    };
    let losses = |said: &[Value]| -> Vec<f64> {
        said.iter()
            .filter(|line| line["event"] == "epoch")
            .map(|line| line["loss"].as_f64().unwrap())
            .collect()
    };
    let data = scratch.path("texts.jsonl");
    std::fs::write(&data, "{\"text\": \"the memory limit is a line on the hull of a ship\"}\n".repeat(8))
        .unwrap();
    let said = run(&data, &scratch.path("words"), &[]).unwrap();
    let seen = losses(&said);
    assert!(seen[3] < seen[0] - 0.5, "{seen:?}");
    let data = scratch.path("labels.jsonl");
    let line = |text: &str, label: &str| format!("{{\"text\": \"{text}\", \"label\": \"{label}\"}}\n");
    std::fs::write(&data, (line("the ship", "sails") + &line("the machine", "runs")).repeat(8)).unwrap();
    let out = scratch.path("labels");
    let more = ["--task", "sequence", "--labels", "sails,runs", "--memory", "60MiB"];
    let said = run(&data, &out, &more).unwrap();
    assert_eq!(said[0]["anew"].as_array().unwrap().len(), 4, "{}", said[0]);
    let seen = losses(&said);
    assert!(seen[3] < 0.5 * seen[0], "{seen:?}");
    let config = std::fs::read_to_string(Path::new(&out).join("model/config.json")).unwrap();
    assert!(config.contains("BertForSequenceClassification") && config.contains("sails"), "{config}");
    // What was written is tuned on, its head with it.
    let written = Path::new(&out).join("model");
    let again = lines(&[
        "tune",
        written.to_str().unwrap(),
        "--data",
        &data,
        "--out",
        &scratch.path("on"),
        "--sequence",
        "16",
        "--epochs",
        "1",
        "--json",
    ])
    .unwrap();
    assert!(again[0]["anew"].as_array().unwrap().is_empty() && losses(&again)[0] < seen[0], "{}", again[0]);
    let why = run(&data, &scratch.path("wrong"), &["--lora", "4"]).unwrap_err();
    assert!(why.contains("an encoder is tuned whole"), "{why}");
    let why = lines(&["tune", &fixture("llama"), "--data", &data, "--task", "tokens"]).unwrap_err();
    assert!(why.contains("--task"), "{why}");
    for name in ["vit", "roberta-tokens", "distilbert-words"] {
        let plan = lines(&["plan", &fixture(name), "--json", "--no-frontier"]).unwrap().remove(0);
        assert!(plan["fits"] == true, "{name}: {plan}");
    }
}

/// A picture in color as a PNG file that is not compressed.
fn png(width: u32, height: u32, pixel: impl Fn(usize) -> u8) -> Vec<u8> {
    let crc = |bytes: &[u8]| {
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 })
        })
    };
    let chunk = |name: &[u8], data: &[u8]| {
        let body = [name, data].concat();
        [&(data.len() as u32).to_be_bytes()[..], &body, &crc(&body).to_be_bytes()].concat()
    };
    let row = 3 * width as usize;
    let rows: Vec<u8> = (0..height as usize)
        .flat_map(|y| {
            std::iter::once(0).chain((0..row).map(move |x| y * row + x).map(&pixel)).collect::<Vec<u8>>()
        })
        .collect();
    let (a, b) = rows.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (a + b) % 65521)
    });
    let n = rows.len() as u16;
    let stored =
        [&[0x78, 1, 1][..], &n.to_le_bytes(), &(!n).to_le_bytes(), &rows, &(b << 16 | a).to_be_bytes()]
            .concat();
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    [&b"\x89PNG\r\n\x1a\n"[..], &chunk(b"IHDR", &header), &chunk(b"IDAT", &stored), &chunk(b"IEND", b"")]
        .concat()
}

#[test]
fn pictures_are_tuned_by_the_labels_of_their_folders() {
    let scratch = Scratch::new("tune-pictures");
    for (label, shade) in [("dark", 10u8), ("light", 240)] {
        let folder = scratch.path(&format!("pictures/{label}"));
        std::fs::create_dir_all(&folder).unwrap();
        for i in 0..8u8 {
            let pixel = |k: usize| shade.saturating_add(i) ^ (k % 5) as u8;
            std::fs::write(format!("{folder}/{i}.png"), png(12, 8, pixel)).unwrap();
        }
    }
    let (data, out) = (scratch.path("pictures"), scratch.path("run"));
    let said = lines(&[
        "tune",
        &fixture("vit"),
        "--data",
        &data,
        "--out",
        &out,
        "--batch",
        "4",
        "--lr",
        "0.01",
        "--epochs",
        "4",
        "--json",
    ])
    .unwrap();
    let losses: Vec<f64> =
        said.iter().filter(|l| l["event"] == "epoch").map(|l| l["loss"].as_f64().unwrap()).collect();
    assert!(losses[3] < 0.5 * losses[0], "{losses:?}");
    let config = std::fs::read_to_string(Path::new(&out).join("model/config.json")).unwrap();
    assert!(config.contains("dark") && config.contains("light"), "{config}");
}

#[test]
fn all_weights_are_tuned_into_a_folder_like_the_first() {
    let scratch = Scratch::new("tune-all");
    let (folder, data) = (fixture("llama"), texts(&scratch));
    let mut losses = Vec::new();
    // In bf16 the optimizer moves the weights as they are stored.
    for precision in ["mixed-bf16", "bf16"] {
        let out = scratch.path(precision);
        let said = tune(&folder, &data, &out, &["--epochs", "4", "--precision", precision]).unwrap();
        let epoch = said.iter().rfind(|line| line["event"] == "epoch").unwrap();
        losses.push(epoch["loss"].as_f64().unwrap());
        let model = said.last().unwrap()["model"].as_str().unwrap();
        assert!(model.ends_with("model"));
        let text = lines(&["generate", model, "--prompt", "the", "--tokens", "4", "--json"]).unwrap();
        assert_eq!(text[0]["tokens"].as_array().unwrap().len(), 4);
        assert_eq!(lines(&["generate", &out, "--prompt", "the", "--tokens", "4", "--json"]).unwrap(), text);
    }
    assert!((losses[0] - losses[1]).abs() <= 0.05 * losses[0], "{losses:?}");
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
    assert!(error.contains("nothing in it to learn from"), "{error}");
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
