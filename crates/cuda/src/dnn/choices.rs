//! Remembers which engine was chosen for a case, on disk: a choice that was made once is kept, so that every run on a
//! machine gives the same bits.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;

/// More than this is not read of a file.
const MOST_READ: u64 = 16 << 20;

/// An engine that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Its name.
    pub engine: String,
    /// What is declared for the case: the most that any engine needs that it was chosen from.
    pub workspace: usize,
}

/// Engines by case.
#[derive(Debug)]
pub(super) struct Choices {
    file: PathBuf,
    known: HashMap<String, Choice>,
}

impl Choices {
    /// What a file says. One that cannot be read is as good as none.
    pub(super) fn kept_in(file: PathBuf) -> Choices {
        let mut text = String::new();
        let read = File::open(&file).and_then(|from| from.take(MOST_READ).read_to_string(&mut text));
        let mut known = HashMap::new();
        if read.is_ok() {
            for (case, choice) in text.lines().filter_map(read_line) {
                // Of two processes that chose at the same time, the first to write is right.
                known.entry(case).or_insert(choice);
            }
        }
        Choices { file, known }
    }

    /// The engine that was chosen for a case.
    pub(super) fn of(&self, case: &str) -> Option<&Choice> {
        self.known.get(case)
    }

    /// Keeps a choice. A file that cannot be written costs the next run its measurements.
    pub(super) fn keep(&mut self, case: String, choice: Choice) {
        if let Some(folder) = self.file.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let line = format!("{case}\t{}\t{}\n", choice.workspace, choice.engine);
        let opened = OpenOptions::new().create(true).append(true).open(&self.file);
        let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
        self.known.insert(case, choice);
    }
}

fn read_line(line: &str) -> Option<(String, Choice)> {
    let mut parts = line.split('\t');
    let (case, workspace, engine) = (parts.next()?, parts.next()?, parts.next()?);
    Some((case.into(), Choice { engine: engine.into(), workspace: workspace.parse().ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_choice_is_kept_and_damage_is_not_fatal() {
        let folder = std::env::temp_dir().join(format!("plimsoll-choices-{}", std::process::id()));
        let file = folder.join("below").join("cudnn.engines");
        let mut choices = Choices::kept_in(file.clone());
        assert_eq!(choices.of("a"), None);
        let choice = |engine: &str| Choice { engine: engine.into(), workspace: 12 };
        choices.keep("a".into(), choice("7 2=1"));
        choices.keep("b".into(), choice("3"));
        assert_eq!(choices.of("a"), Some(&choice("7 2=1")));
        let mut other = Choices::kept_in(file.clone());
        assert_eq!((other.of("a"), other.of("b")), (Some(&choice("7 2=1")), Some(&choice("3"))));
        other.keep("a".into(), choice("9"));
        assert_eq!(Choices::kept_in(file.clone()).of("a"), Some(&choice("7 2=1")));
        fs::write(&file, "no tab\na\tmany\t4\na\t12\t1\n").unwrap();
        assert_eq!(Choices::kept_in(file.clone()).of("a"), Some(&choice("1")));
        fs::write(&file, [0xff, 0xfe, b'\t']).unwrap();
        assert_eq!(Choices::kept_in(file).of("a"), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
