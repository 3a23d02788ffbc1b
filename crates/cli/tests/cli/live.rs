//! `plimsoll train --tui` on a pseudo terminal, where the machine can make one.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use plimsoll_testing::needs;

use crate::common::{Scratch, bytes, lines, plimsoll};

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";
/// What the live view declares for itself, and what a build with debug assertions may vary by.
const VIEW: u64 = 2 << 20;
const GRAIN: u64 = if cfg!(debug_assertions) { 4 << 20 } else { 0 };

/// Whether there is a command that runs another one on a pseudo terminal.
#[track_caller]
fn has_terminal() -> bool {
    let there = Command::new("script").args(["-qec", "true", "/dev/null"]).stdin(Stdio::null()).output();
    let there = there.is_ok_and(|output| output.status.success());
    needs("terminal", there, "there is no `script` command to make a pseudo terminal")
}

/// Runs the command on a pseudo terminal, pressing a key now and then.
fn on_terminal(arguments: &[&str], key: Option<u8>) -> Output {
    let plimsoll = plimsoll();
    let program = plimsoll.get_program().to_str().unwrap();
    let inner = format!("stty rows 30 cols 110; exec '{program}' {}", arguments.join(" "));
    let mut command = Command::new("script");
    command.args(["-qec", &inner, "/dev/null"]).env("TERM", "xterm-256color");
    command.envs(plimsoll.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let streams = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = streams.spawn().unwrap();
    let mut keys = child.stdin.take().unwrap();
    let presser = std::thread::spawn(move || {
        let start = Instant::now();
        while key.is_some() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_secs(1));
            if keys.write_all(key.as_slice()).and_then(|()| keys.flush()).is_err() {
                return None;
            }
        }
        // Kept open: a terminal whose keyboard is gone is another matter.
        Some(keys)
    });
    let output = match key {
        // Nobody presses: the keyboard stays open till the end.
        None => {
            let keys = presser.join().unwrap();
            let output = child.wait_with_output().unwrap();
            drop(keys);
            output
        }
        Some(_) => child.wait_with_output().unwrap(),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    output
}

#[test]
fn a_live_view_stays_in_the_memory_limit_and_gives_the_terminal_back() {
    if !has_terminal() {
        return;
    }
    let folder = Scratch::new("live-line");
    let train = ["train", "--epochs", "2", "--threads", "1", "--out"];
    let free = lines(&[&train[..], &[&folder.path("free"), "--json", "--memory", "1GiB"]].concat()).unwrap();
    let line = bytes(free.iter().find(|line| line["event"] == "plan").unwrap(), "floor_bytes") + VIEW + GRAIN;
    let (out, memory) = (folder.path("live"), line.to_string());
    let output = on_terminal(&[&train[..], &[&out, "--memory", &memory, "--tui"]].concat(), None);
    let text = String::from_utf8_lossy(&output.stdout);
    let (enter, leave) = (text.find(ENTER), text.rfind(LEAVE));
    assert!(enter.is_some() && enter < leave, "{text}");
    assert!(["parameter", "activation", "pipeline:"].iter().all(|word| text.contains(word)), "{text}");
    assert!(leave.is_some_and(|at| text[at..].contains("the trained model is")), "{text}");
    let table = std::fs::read_to_string(format!("{out}/metrics.csv")).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split(',').collect()).collect();
    let column = rows[0].iter().position(|name| *name == "resident_peak_bytes").unwrap();
    let peak: u64 = rows.last().unwrap()[column].parse().unwrap();
    assert!(peak <= line, "{peak} bytes under a line of {line}");
}

#[test]
fn q_ends_a_run_after_a_step_with_a_checkpoint_to_go_on_from() {
    if !has_terminal() {
        return;
    }
    let folder = Scratch::new("live-stop");
    let out = folder.path("run");
    let arguments =
        ["train", "--epochs", "100000", "--threads", "1", "--memory", "64MiB", "--out", &out, "--tui"];
    let text = String::from_utf8_lossy(&on_terminal(&arguments, Some(b'q')).stdout).into_owned();
    assert!(text.contains("stopped by q"), "{text}");
    let events = lines(&["train", "--resume", "--out", &out, "--epochs", "1", "--json"]).unwrap();
    assert!(events.iter().any(|event| event["event"] == "resumed"), "{events:?}");
}

#[test]
fn without_a_terminal_the_live_view_is_what_the_progress_bar_prints() {
    let folder = Scratch::new("live-pipe");
    let out = folder.path("run");
    let output = plimsoll()
        .args(["train", "--epochs", "1", "--threads", "1", "--memory", "64MiB", "--out", &out, "--tui"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("epoch   1  loss"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
}
