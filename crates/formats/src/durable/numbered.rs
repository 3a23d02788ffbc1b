//! Turns step numbers into folder names, finds those folders again, and keeps only the last few.

use super::{recover, sync_dir, temporary::remove_whole};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of a step: `step-00001234`, so that names sort like numbers.
pub fn step_path(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step:08}"))
}

/// The step folders in `folder`, oldest first. An absent folder holds none.
///
/// Every folder found is whole. To find also one that was being replaced when the process died, call
/// [`recover`] before.
pub fn steps(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut steps = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("step-"));
        let Some(step) = number.and_then(|digits| digits.parse::<u64>().ok()) else { continue };
        // `step-+7` and `step-7` parse too, but are not names that we give.
        if step_path(folder, step).file_name() == Some(&name) && entry.file_type()?.is_dir() {
            steps.push((step, entry.path()));
        }
    }
    steps.sort();
    Ok(steps)
}

/// Removes all step folders but the last `k`, and what crashes have left. Returns the steps removed.
///
/// The newest folder always stays, also for a `k` of zero: to remove the only checkpoint is never what was meant.
pub fn keep_last(folder: &Path, k: usize) -> io::Result<Vec<u64>> {
    keep_last_until(folder, k, u64::MAX)
}

/// As [`keep_last`], of the steps up to `last` alone: folders of later steps are neither counted nor removed. For one who has
/// gone back to an earlier step, and whose own folders are not the last by their numbers.
pub fn keep_last_until(folder: &Path, k: usize, last: u64) -> io::Result<Vec<u64>> {
    recover(folder)?;
    let mut steps = steps(folder)?;
    steps.retain(|(step, _)| *step <= last);
    let old = steps.len().saturating_sub(k.max(1));
    let mut removed = Vec::new();
    for (step, path) in &steps[..old] {
        remove_whole(path)?;
        removed.push(*step);
    }
    sync_dir(folder)?;
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::super::Scratch;
    use super::*;

    #[test]
    fn steps_are_found_by_number_and_other_names_are_not_touched() {
        let scratch = Scratch::new("steps");
        for name in ["step-00000010", "step-00000002", "step-123456789", "step-7", "step-+0000007", "best"] {
            fs::create_dir(scratch.0.join(name)).expect("a folder");
        }
        fs::write(scratch.0.join("step-00000003"), "a file").expect("a file");
        let found: Vec<u64> = steps(&scratch.0).expect("steps").into_iter().map(|(step, _)| step).collect();
        assert_eq!(found, [2, 10, 123_456_789]);
        assert_eq!(keep_last(&scratch.0, 2).expect("removal"), [2]);
        assert_eq!(keep_last(&scratch.0, 0).expect("removal"), [10]);
        assert_eq!(scratch.names(), ["best", "step-+0000007", "step-00000003", "step-123456789", "step-7"]);
        assert!(steps(&scratch.0.join("absent")).expect("no steps").is_empty());
    }

    #[test]
    fn folders_of_later_steps_are_neither_counted_nor_removed() {
        let scratch = Scratch::new("until");
        for step in [8, 10, 12, 20] {
            fs::create_dir(step_path(&scratch.0, step)).expect("a folder");
        }
        assert_eq!(keep_last_until(&scratch.0, 1, 12).expect("removal"), [8, 10]);
        assert_eq!(scratch.names(), ["step-00000012", "step-00000020"]);
    }
}
