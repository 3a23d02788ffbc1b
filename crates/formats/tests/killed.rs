//! A process that is killed while it writes checkpoints leaves only whole ones.
//!
//! The test runs itself as a child that writes folders for ever, kills it after times spread over several writes, and looks
//! at what is there.

use plimsoll_formats::durable::{self, Checksummed, FileSum};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FOLDER: &str = "PLIMSOLL_TEST_CHECKPOINTS";

fn save(folder: &Path, step: u64) -> std::io::Result<()> {
    durable::write_dir(&durable::step_path(folder, step), |unfinished| {
        let mut sums = Vec::new();
        for name in ["weights", "optimizer"] {
            let mut out = Checksummed::new(std::fs::File::create(unfinished.join(name))?);
            for block in 0..32u64 {
                out.write_all(&[(step + block) as u8; 4096])?;
            }
            sums.push(out.sum(name));
        }
        std::fs::write(unfinished.join("manifest.json"), serde_json::to_vec(&sums)?)
    })?;
    durable::write_file(&folder.join("latest"), |out| write!(out, "{step}"))?;
    durable::keep_last(folder, 2).map(drop)
}

/// Checks every step folder and returns the newest step.
fn check(folder: &Path) -> Option<u64> {
    let steps = durable::steps(folder).expect("the steps");
    for (step, path) in &steps {
        let manifest = std::fs::read(path.join("manifest.json")).expect("a manifest in every step");
        let sums: Vec<FileSum> = serde_json::from_slice(&manifest).expect("a whole manifest");
        assert_eq!(sums.len(), 2);
        for sum in sums {
            sum.verify(path).unwrap_or_else(|e| panic!("step {step}: {e}"));
        }
    }
    if let Ok(text) = std::fs::read_to_string(folder.join("latest")) {
        let latest: u64 = text.parse().expect("a whole number");
        assert!(steps.last().is_some_and(|(last, _)| *last >= latest), "{latest} of {steps:?}");
    }
    steps.last().map(|(step, _)| *step)
}

#[test]
fn a_writer_killed_at_any_moment_leaves_only_whole_checkpoints() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let folder = PathBuf::from(folder);
        let first = check(&folder).unwrap_or(0);
        // Every step is written twice, so that replacing a folder is interrupted too.
        for step in first.. {
            save(&folder, step).expect("a saved step");
            save(&folder, step).expect("the same step again");
        }
    }
    let folder = std::env::temp_dir().join(format!("plimsoll-killed-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let program = std::env::current_exe().expect("this test's program");
    for round in 0..24u64 {
        let before = durable::steps(&folder).expect("steps").last().map(|(step, _)| *step);
        let mut child = Command::new(&program)
            .args(["--exact", "a_writer_killed_at_any_moment_leaves_only_whole_checkpoints"])
            .env(FOLDER, &folder)
            .stdout(Stdio::null())
            .spawn()
            .expect("a child");
        // Wait until it has got somewhere, then a little longer each time: the moment of death falls anywhere in a write.
        let start = Instant::now();
        while durable::steps(&folder).ok().and_then(|steps| steps.last().map(|(step, _)| *step)) == before
            && start.elapsed() < Duration::from_secs(10)
        {
            assert!(child.try_wait().expect("the child's state").is_none(), "the child failed by itself");
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(round * 613));
        child.kill().expect("killing the child");
        child.wait().expect("the child's end");
        durable::recover(&folder).expect("recovery");
        let newest = check(&folder);
        assert!(newest >= before, "round {round}: {newest:?} after {before:?}");
        let hidden = std::fs::read_dir(&folder)
            .expect("the folder")
            .filter(|entry| entry.as_ref().is_ok_and(|e| e.file_name().to_string_lossy().starts_with('.')))
            .count();
        assert_eq!(hidden, 0, "round {round} left temporary names behind");
    }
    assert!(check(&folder).is_some_and(|step| step > 0), "the children did write");
    std::fs::remove_dir_all(&folder).expect("removal");
}
