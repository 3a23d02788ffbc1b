//! The memory contract without slack, through a release build of the command: exactly the least works, one byte less is refused,
//! and the process never takes more than it was given.
//!
//! What a process takes beside its plan is declared for release builds; in a debug build it is measured and varies, so nothing
//! can be exact there. The command is the one that `PLIMSOLL_RELEASE` names:
//! `PLIMSOLL_RELEASE=target/release/plimsoll cargo test -p plimsoll-cli --test contract_release`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use plimsoll_testing::child::{Said, least_of, lines};
use plimsoll_testing::{Scratch, group};
use serde_json::Value;

/// Small sizes, of models that differ in what they hold when they hold most.
const MODELS: &[(&str, &str)] = &[
    // So little beside the program that what is declared for that must hold by itself.
    ("mlp", "--data random --image 8 --width 16 --depth 3 --classes 7 --metrics none --batch 5"),
    ("mlp", "--data digits --width 64 --batch 32"),
    ("cnn", "--data digits --width 8 --batch 32"),
    ("resnet18", "--data digits --width 8 --batch 16"),
    ("unet", "--data shapes:32:16 --width 4 --depth 2 --batch 4"),
    ("gpt", "--data TEXT --sequence 16 --classes 128 --width 32 --depth 2 --heads 2 --batch 8"),
    ("lstm", "--data TEXT --sequence 16 --classes 128 --width 32 --depth 1 --batch 8"),
    // Many ops on little data: planning takes more than the step.
    ("mobilenet", "--data digits --width 8 --batch 8"),
    ("gpt", "--data TEXT --sequence 8 --classes 128 --width 16 --depth 24 --heads 2 --batch 2"),
    ("vit", "--data digits --width 16 --depth 24 --heads 2 --patch 4 --batch 2"),
];

/// The command, with kernel times of its own from run to run, or a line that says that there is none.
struct Release {
    command: PathBuf,
    scratch: Scratch,
    runs: std::cell::Cell<u32>,
}

impl Release {
    #[track_caller]
    fn find(name: &str) -> Option<Release> {
        let found = std::env::var("PLIMSOLL_RELEASE").map_err(|_| "PLIMSOLL_RELEASE names no release build");
        let command = group("release", found)?;
        // A relative path is meant from the folder of the workspace, where people type it.
        let command = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(command);
        assert!(command.is_file(), "PLIMSOLL_RELEASE names {}, which is no file", command.display());
        let scratch = Scratch::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        Some(Release { command, scratch, runs: 0.into() })
    }

    /// Trains for an epoch; what the command said where it refused.
    fn train(&self, model: &str, settings: &str, memory: Option<u64>) -> Result<Said, String> {
        let text = self.scratch.path("text.txt");
        if !Path::new(&text).is_file() {
            let words = (0..2000).map(|i| ["the ", "limit ", "holds, ", "and so "][i * 7 % 11 % 4]);
            std::fs::write(&text, words.collect::<String>()).unwrap();
        }
        let n = self.runs.replace(self.runs.get() + 1);
        let mut command = Command::new(&self.command);
        command.env("PLIMSOLL_CACHE", self.scratch.path("times"));
        command.args(["train", model, "--epochs", "1", "--take", "40", "--threads", "2", "--json", "--out"]);
        command.arg(self.scratch.path(&format!("run-{n}")));
        command.args(settings.split(' ').map(|word| if word == "TEXT" { &text } else { word }));
        if let Some(memory) = memory {
            command.args(["--memory", &memory.to_string()]);
        }
        lines(&mut command)
    }
}

fn last<'a>(said: &'a Said, event: &str) -> &'a Value {
    said.lines.iter().rfind(|line| line["event"] == event).unwrap_or_else(|| panic!("no {event}"))
}

#[test]
fn exactly_the_least_works_and_one_byte_less_is_refused() {
    let Some(release) = Release::find("least") else { return };
    for (model, settings) in MODELS {
        let refused = release.train(model, settings, Some(1 << 20)).err().unwrap_or_default();
        let least = least_of(&refused);
        let free = release.train(model, settings, None).unwrap_or_else(|why| panic!("{model}: {why}"));
        let most = last(&free, "plan")["unlimited_bytes"].as_u64().unwrap();
        for limit in [least, least.midpoint(most.max(least)), most.max(least)] {
            let name = format!("{model} in {limit}, the least {least}, without a limit {most}");
            let run =
                release.train(model, settings, Some(limit)).unwrap_or_else(|why| panic!("{name}: {why}"));
            let own = last(&run, "epoch")["resident_peak_bytes"].as_u64().unwrap();
            assert!(own <= limit, "{name}: it says it took {own}");
            assert!(run.peak_bytes <= limit, "{name}: the system says {}", run.peak_bytes);
            assert!(run.peak_bytes > 0, "{name}: nothing was measured");
        }
        let below = release.train(model, settings, Some(least - 1)).err();
        let below = below
            .unwrap_or_else(|| panic!("{model}: {least} is said to be the least, and one byte less works"));
        assert_eq!(least_of(&below), least, "{model}: {below}");
    }
}

#[test]
fn one_byte_below_the_least_is_a_helpful_refusal_in_two_seconds() {
    let Some(release) = Release::find("refusal") else { return };
    let ask = |memory: u64| {
        let start = Instant::now();
        let said = release.train("cnn", "--data digits --batch 250", Some(memory)).err();
        (said.unwrap_or_else(|| panic!("{memory} bytes are enough")), start.elapsed())
    };
    let least = least_of(&ask(9 << 20).0);
    // The fastest of three: the machine may be busy with something else.
    let tries = [least - 1, least - 2, least - 3].map(ask);
    let fastest = tries.iter().map(|(_, time)| *time).min().unwrap();
    assert!(fastest < Duration::from_secs(2), "{fastest:?}");
    for (refusal, _) in &tries {
        for part in ["cannot be kept", "the heaviest tensors:\n", "ways out:\n  --memory "] {
            assert!(refusal.contains(part), "{part} is missing in: {refusal}");
        }
        assert_eq!(least_of(refusal), least, "{refusal}");
    }
}
