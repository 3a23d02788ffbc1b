//! Processes of their own: what a process takes can be read of one that does nothing else.
//!
//! A test that measures its own process starts itself again ([`ask`]) and answers in numbers ([`answer`]). A test of a command reads
//! its JSON lines and the most memory that it took, as the system counts it ([`lines`]).

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

const QUESTION: &str = "PLIMSOLL_CHILD";
/// Stands between the words of a question: no path and no name has it.
const BETWEEN: &str = "\u{1f}";

/// What this process was started to find out; none in the process that asks.
pub fn question() -> Option<Vec<String>> {
    let asked = std::env::var(QUESTION).ok()?;
    Some(asked.split(BETWEEN).map(String::from).collect())
}

/// Says the answer.
pub fn answer(numbers: &[u64]) {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    println!("\nsaid: {}", numbers.join(" "));
}

/// Starts this test program again for one test, with a question, and returns the numbers of its answer.
///
/// # Panics
/// Where there is none.
#[track_caller]
pub fn ask<const N: usize>(test: &str, question: &[&str]) -> [u64; N] {
    let own = std::env::current_exe().expect("a test program has a path");
    let output = Command::new(own)
        .args(["--exact", test, "--nocapture"])
        .env(QUESTION, question.join(BETWEEN))
        .output()
        .expect("a test program can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text.lines().find_map(|line| line.split_once("said: ")).map(|(_, numbers)| numbers);
    let numbers = said.map(|said| said.split(' ').filter_map(|n| n.parse().ok()).collect::<Vec<u64>>());
    let numbers = numbers.and_then(|numbers| <[u64; N]>::try_from(numbers).ok());
    numbers.unwrap_or_else(|| {
        panic!("{question:?} has no answer: {text}{}", String::from_utf8_lossy(&output.stderr))
    })
}

/// What a command said, and the most memory that it took.
pub struct Said {
    /// Its JSON lines.
    pub lines: Vec<Value>,
    /// The high-water mark of its resident memory (`VmHWM`), looked at from outside while it ran; zero where the system does
    /// not say.
    pub peak_bytes: u64,
}

/// Runs a command that writes JSON lines; what it said on its standard error where it failed.
///
/// # Errors
/// The command failed, cannot be started, or wrote what is no JSON.
pub fn lines(command: &mut Command) -> Result<Said, String> {
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = started.map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let watch = std::thread::spawn(move || {
        let mut peak = 0;
        // The mark only rises, so the last one counts; the file goes away with the process. An early one may still be that of this process, which the
        // other shares until it has become the command.
        while let Some(mark) = std::fs::read_to_string(&status).ok().and_then(|text| mark(&text)) {
            peak = mark;
            std::thread::sleep(Duration::from_millis(2));
        }
        peak
    });
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let peak_bytes = watch.join().map_err(|_| "the watch on the process broke")?;
    if !output.status.success() {
        return Err(format!("{} {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |line: &str| serde_json::from_str(line).map_err(|e| format!("{e}: {line}"));
    Ok(Said { lines: text.lines().map(line).collect::<Result<_, _>>()?, peak_bytes })
}

/// The least that a refusal of the command names, to the last byte.
///
/// # Panics
/// Where it names none.
#[track_caller]
pub fn least_of(refusal: &str) -> u64 {
    let exact = refusal.split("the least for this step is ").nth(1).and_then(|rest| rest.split('(').nth(1));
    let bytes = exact.and_then(|rest| rest.split(" bytes)").next());
    bytes.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no least in: {refusal}"))
}

/// The high-water mark in a process's status.
fn mark(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_high_water_mark_is_read_in_bytes() {
        assert_eq!(mark("Name:\tsh\nVmHWM:\t    1604 kB\nVmRSS:\t 900 kB\n"), Some(1604 << 10));
        assert_eq!(mark("Name:\tsh\n"), None);
    }

    #[test]
    fn a_test_answers_itself() {
        if let Some(question) = question() {
            return answer(&[question.len() as u64, question[1].parse().unwrap()]);
        }
        assert_eq!(ask("child::tests::a_test_answers_itself", &["two words", "7"]), [2, 7]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_commands_lines_and_its_peak_are_read() {
        let said = lines(Command::new("sh").args(["-c", "echo '{\"a\": 1}'; sleep 0.2"])).unwrap();
        assert_eq!(said.lines[0]["a"], 1);
        assert!(said.peak_bytes > 100 << 10, "{}", said.peak_bytes);
        let failed = lines(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).err().unwrap();
        assert!(failed.contains("why") && failed.contains('3'), "{failed}");
    }
}
