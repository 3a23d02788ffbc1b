//! Runs that are killed and go on: the same bits in the end, and no checkpoint that cannot be read.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Scratch, lines, plimsoll};

const SETTINGS: &str = "train demo --data digits --take 300 --batch 20 --epochs 4 --checkpoint-every 4 --threads 1 --seed 7 --json";

fn arguments(out: &str) -> Vec<String> {
    SETTINGS.split(' ').map(String::from).chain(["--out".into(), out.to_string()]).collect()
}

#[test]
fn a_run_that_is_done_says_that_nothing_is_left() {
    let scratch = Scratch::new("done");
    let out = scratch.path("run");
    let words = [
        "train",
        "mlp",
        "--data",
        "digits",
        "--width",
        "4",
        "--take",
        "40",
        "--threads",
        "1",
        "--epochs",
        "2",
    ];
    assert!(plimsoll().args(words).args(["--out", &out]).output().unwrap().status.success());
    let again = |more: &[&str]| {
        let done = plimsoll().args(["train", "--resume", "--out", &out]).args(more).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    for more in [&[][..], &["--epochs", "1"]] {
        let said = again(more);
        assert!(said.contains("the run has had 2 epochs and no more are asked for"), "{said}");
    }
    let said = again(&["--epochs", "3"]);
    assert!(said.contains("epoch   3") && !said.contains("nothing is left"), "{said}");
}

#[test]
fn a_run_that_is_killed_twenty_times_ends_with_the_same_bits() {
    let scratch = Scratch::new("killed");
    let (whole, killed) = (scratch.path("whole"), scratch.path("killed"));
    let kills = kill_and_resume(&whole, &killed, 20, arguments);
    let model = |folder: &str| std::fs::read(format!("{folder}/model.safetensors")).unwrap();
    assert!(model(&whole) == model(&killed), "after {kills} kills the weights are others");
    assert!(kills > 0);
}

/// Runs a command to its end in one folder, and in another kills it at random moments, so often at most, and lets it go on each time; how
/// often it was killed.
pub fn kill_and_resume(whole: &str, killed: &str, most: u64, arguments: impl Fn(&str) -> Vec<String>) -> u64 {
    let start = Instant::now();
    let done = plimsoll().args(arguments(whole)).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // However fast the machine is, runs are killed somewhere inside.
    let took = start.elapsed().as_millis() as u64;
    let (mut kills, mut state) = (0, 12345u64);
    loop {
        let mut run = plimsoll();
        run.args(arguments(killed)).stdout(Stdio::null()).stderr(Stdio::piped());
        // Killed early enough, there is no run yet to go on with.
        if std::path::Path::new(killed).join("config.toml").is_file() {
            run.arg("--resume");
        }
        let mut run = run.spawn().unwrap();
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let patience = if kills < most { took / 10 + (state >> 33) % (took / 2 + 1) } else { 600_000 };
        let start = Instant::now();
        let ended = loop {
            if let Some(status) = run.try_wait().unwrap() {
                break Some(status);
            }
            if start.elapsed() > Duration::from_millis(patience) {
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        match ended {
            None => {
                run.kill().unwrap();
                run.wait().unwrap();
                kills += 1;
            }
            Some(status) => {
                let output = run.wait_with_output().unwrap();
                assert!(status.success(), "after {kills} kills: {}", String::from_utf8_lossy(&output.stderr));
                return kills;
            }
        }
    }
}

#[test]
fn a_trained_model_is_evaluated_and_used() {
    let scratch = Scratch::new("used");
    let (out, classes) = (scratch.path("run"), scratch.path("classes.npy"));
    let run =
        format!("train demo --data digits --take 600 --batch 50 --epochs 3 --threads 2 --json --out {out}");
    let trained = lines(&run.split(' ').collect::<Vec<_>>()).unwrap();
    let last = trained.iter().rev().find(|line| line["event"] == "epoch").unwrap();
    let found = lines(&["evaluate", &out, "--json"]).unwrap();
    let (a, b) = (found[0]["accuracy"].as_f64().unwrap(), last["val_accuracy"].as_f64().unwrap());
    assert!((a - b).abs() < 1e-9, "{a} and {b}");
    let used =
        lines(&["predict", &out, "--out", &classes, "--argmax", "--json", "--memory", "64MiB"]).unwrap();
    assert_eq!(used[0]["samples"], 297);
    let file = std::fs::read(&classes).unwrap();
    assert_eq!(file.len(), 128 + 297 * 8);
    let error = lines(&run.split(' ').collect::<Vec<_>>()).unwrap_err();
    assert!(error.contains("holds a run"), "{error}");
}

#[test]
fn a_run_whose_device_is_lost_names_its_last_checkpoint_and_goes_on_from_there() {
    let scratch = Scratch::new("lost");
    let (whole, lost) = (scratch.path("whole"), scratch.path("lost"));
    let run = |out: &str, more: &[&str]| plimsoll().args(arguments(out)).args(more).output().unwrap();
    assert!(run(&whole, &[]).status.success());
    let broken = run(&lost, &["--fault", "device:23"]);
    let said = String::from_utf8_lossy(&broken.stderr);
    assert!(!broken.status.success() && said.contains("training stopped at step 22"), "{said}");
    let (_, checkpoint) = said.trim().rsplit_once("the last checkpoint is ").expect("it is named");
    assert!(checkpoint.ends_with("20") && std::path::Path::new(checkpoint).is_dir(), "{checkpoint}");
    let resumed = run(&lost, &["--resume"]);
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
    let model = |folder: &str| std::fs::read(format!("{folder}/model.safetensors")).unwrap();
    assert!(model(&whole) == model(&lost), "the weights are others");
}
