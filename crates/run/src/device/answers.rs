//! Answers of the planner that are kept in a folder, so that the next process that asks the same need not search.
//!
//! What a step takes at least is known by the digest of its problem: a line of one file, of which a process holds those that it asked for; a
//! plan is known by the digest of its problem, its times and its bytes, and stays in a file of its own. Whoever takes a plan from here verifies it. Like any
//! cache this one may be lost at any time: a file that cannot be written costs the next process its time, one that is damaged is
//! named once and then done without.

use std::collections::hash_map::Entry;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use plimsoll_plan::{Digest, Infeasible, Plan};
use plimsoll_record::{KeptBytes, keep, kept};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// A folder of plans takes at most this, and a file of it: what was used longest ago goes first.
const MOST_BYTES: u64 = 64 << 20;
const MOST_OF_A_FILE: u64 = 16 << 20;
/// The file of least bytes is at most so long; then its older half goes. It is read for whatever is asked for the first time, so it is short.
const MOST_OF_LINES: u64 = 128 << 10;

/// What the planner said of so many bytes: a plan, that there is none that takes less than so many nanoseconds, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Plan(Plan),
    NoneBelow(u64),
    Refusal(Box<Infeasible>),
    /// Of a step: what is known of its candidates before a limit is looked at.
    Candidates(KeptCandidates),
    /// Of a step within some bytes: which candidate is the fastest, by its number.
    Fastest(KeptCandidate),
}

/// A candidate as it is kept: its number, and its digest, by which it is known again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptCandidate {
    pub(crate) index: usize,
    pub(crate) digest: String,
}

impl KeptCandidate {
    /// Whether this is the candidate that has a digest.
    pub(crate) fn is(&self, digest: Digest) -> bool {
        self.digest == digest.to_string()
    }
}

/// What is known of a step's candidates, whatever their times are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptCandidates {
    /// Bytes that no plan can go below, of each.
    pub(crate) bounds: Vec<u64>,
    /// Which of them takes least, unless micro-batches side by side do.
    pub(crate) lowest_of: Option<KeptCandidate>,
    /// Micro-batches side by side, where the step can be written so.
    pub(crate) side_by_side: Option<KeptSideBySide>,
}

/// Micro-batches side by side as they are kept: of how many samples, and their digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptSideBySide {
    pub(crate) samples: usize,
    pub(crate) digest: String,
}

/// The answers that are known.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Where they are kept; without a place only bytes are remembered, as long as the process lives.
    folder: Option<PathBuf>,
    /// What was asked for, whether anything was known of it or not.
    bytes: FxHashMap<Digest, KeptBytes>,
    /// What somebody should be told: files that were not as they were written.
    remarks: Vec<String>,
    /// Whether this process has looked how much there is.
    is_tidied: bool,
}

impl Answers {
    /// Answers kept in a folder.
    pub(crate) fn kept_in(folder: &Path) -> Answers {
        let mut answers = Answers { folder: Some(folder.join("plans")), ..Answers::default() };
        let (file, text) = (answers.lines(), answers.text_of_lines());
        let damaged = text.lines().filter(|line| KeptBytes::parse(line).is_none()).count();
        if let Some(file) = file.filter(|_| damaged > 0) {
            answers.remarks.push(format!(
                "{}: {damaged} lines are damaged or of another version; what they said is planned afresh",
                file.display()
            ));
            // Those that are whole stay.
            answers.rewrite(&file, text.lines().filter(|line| KeptBytes::parse(line).is_some()));
        }
        answers
    }

    fn lines(&self) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join("least-bytes"))
    }

    fn text_of_lines(&self) -> String {
        self.lines().and_then(|file| read(&file, 2 * MOST_OF_LINES).ok()).unwrap_or_default()
    }

    fn file(&self, asked: Digest) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{asked}.json")))
    }

    /// What somebody should be told, once.
    pub(crate) fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// What is known of a step's bytes.
    pub(crate) fn bytes(&mut self, asked: Digest) -> KeptBytes {
        if let Some(known) = self.bytes.get(&asked) {
            return *known;
        }
        let (text, named) = (self.text_of_lines(), asked.to_string());
        // What was written last counts.
        let mut lines = text.lines().rev().filter(|line| line.starts_with(&named));
        let found = lines.find_map(KeptBytes::parse).map(|(_, bytes)| bytes).unwrap_or_default();
        self.bytes.insert(asked, found);
        found
    }

    /// Remembers what is known of a step's bytes.
    pub(crate) fn keep_bytes(&mut self, asked: Digest, bytes: KeptBytes) {
        let is_new = match self.bytes.entry(asked) {
            Entry::Occupied(mut known) => std::mem::replace(known.get_mut(), bytes) != bytes,
            Entry::Vacant(unknown) => {
                unknown.insert(bytes);
                true
            }
        };
        let Some(file) = self.lines().filter(|_| is_new) else { return };
        let written = self.append(&file, &(bytes.line(asked) + "\n"));
        if written.is_ok_and(|length| length > MOST_OF_LINES) {
            let text = read(&file, 2 * MOST_OF_LINES).unwrap_or_default();
            self.rewrite(&file, text.lines().skip(text.lines().count() / 2));
        }
    }

    /// Adds to the end of a file, in one piece; returns how long it is then.
    fn append(&mut self, file: &Path, text: &str) -> std::io::Result<u64> {
        self.tidy();
        let mut out = fs::OpenOptions::new().create(true).append(true).open(file)?;
        out.write_all(text.as_bytes())?;
        Ok(out.metadata()?.len())
    }

    fn rewrite<'a>(&mut self, file: &Path, lines: impl Iterator<Item = &'a str>) {
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        self.replace(file, &text);
    }

    /// Puts a file in the place of an old one, whole or not at all, whoever else does so at the same time.
    fn replace(&mut self, file: &Path, text: &str) {
        self.tidy();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let fresh = file.with_extension(format!("{}-{number}.new", std::process::id()));
        let written = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, file));
        if written.is_err() {
            fs::remove_file(&fresh).ok();
        }
    }

    /// The answer to what was asked, unless there is none that is whole.
    pub(crate) fn answer(&mut self, asked: Digest) -> Option<Answer> {
        let file = self.file(asked)?;
        let name = file.display().to_string();
        let answer = match read(&file, MOST_OF_A_FILE) {
            Ok(text) => kept(&text, &name, asked).map_err(|why| why.to_string()),
            Err(why) if why.kind() == ErrorKind::NotFound => return None,
            Err(why) => Err(format!("{name}: {why}")),
        };
        match answer {
            Ok(answer) => {
                // What is used stays longest.
                fs::File::open(&file).and_then(|file| file.set_modified(SystemTime::now())).ok();
                Some(answer)
            }
            Err(why) => {
                self.forget(asked, &why);
                None
            }
        }
    }

    /// Takes away an answer that does not hold, and says why.
    pub(crate) fn forget(&mut self, asked: Digest, why: &str) {
        let Some(file) = self.file(asked) else { return };
        fs::remove_file(&file).ok();
        self.remarks.push(format!("a kept plan is not used and is planned afresh: {why}"));
    }

    /// Keeps an answer.
    pub(crate) fn keep(&mut self, asked: Digest, answer: &Answer) {
        let Some(file) = self.file(asked) else { return };
        if let Ok(text) = keep(asked, answer) {
            self.replace(&file, &text);
        }
    }

    /// Makes the folder, once, and lets go of what is too much in it.
    fn tidy(&mut self) {
        let Some(folder) = self.folder.as_ref().filter(|_| !self.is_tidied) else { return };
        self.is_tidied = true;
        fs::create_dir_all(folder).ok();
        let mut files: Vec<(SystemTime, u64, PathBuf)> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| {
                let (path, about) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))).ok()?;
                let is_plan = path.extension().is_some_and(|ending| ending == "json" || ending == "new");
                (is_plan && about.is_file()).then_some((about.modified().ok()?, about.len(), path))
            })
            .collect();
        files.sort();
        let mut all: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        // Half of what may be there is left, so that it need not be looked at again soon.
        if all > MOST_BYTES {
            for (_, bytes, path) in files {
                if all <= MOST_BYTES / 2 {
                    break;
                }
                fs::remove_file(path).ok();
                all -= bytes;
            }
        }
    }
}

/// A file's text, if it is no longer than `most`.
fn read(file: &Path, most: u64) -> std::io::Result<String> {
    let mut text = String::new();
    let read = fs::File::open(file)?.take(most + 1).read_to_string(&mut text)?;
    match read as u64 <= most {
        true => Ok(text),
        false => Err(std::io::Error::other("the file is longer than any that was written")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("plimsoll-answers-{name}-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        folder
    }

    #[test]
    fn what_one_process_keeps_the_next_one_finds() {
        let folder = scratch("found");
        let (asked, other) = (Digest::of(b"asked"), Digest::of(b"other"));
        let bytes = KeptBytes { floor: Some(7), ..KeptBytes::default() };
        let mut first = Answers::kept_in(&folder);
        first.keep_bytes(asked, bytes);
        first.keep(asked, &Answer::NoneBelow(12));
        let mut second = Answers::kept_in(&folder);
        assert!(second.bytes.is_empty(), "what nobody asked for is not held");
        assert_eq!((second.bytes(asked), second.bytes(other)), (bytes, KeptBytes::default()));
        assert_eq!(second.answer(asked), Some(Answer::NoneBelow(12)));
        assert_eq!((second.answer(other), second.take_remarks().len()), (None, 0));
        // Without a place, bytes are remembered as long as the process lives.
        let mut nowhere = Answers::default();
        nowhere.keep_bytes(asked, bytes);
        nowhere.keep(asked, &Answer::NoneBelow(12));
        assert_eq!((nowhere.bytes(asked), nowhere.answer(asked)), (bytes, None));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_named_and_gone() {
        let folder = scratch("damaged");
        let asked = Digest::of(b"asked");
        let mut answers = Answers::kept_in(&folder);
        answers.keep(asked, &Answer::Plan(Plan::default()));
        answers.keep_bytes(asked, KeptBytes { floor: Some(7), ..KeptBytes::default() });
        let file = folder.join("plans").join(format!("{asked}.json"));
        for damage in
            [&b"{}"[..], b"", b"\xff\xfe not even text", b"{\"schema\":77,\"asked\":\"\",\"sum\":\"\"}\n"]
        {
            let whole = fs::read(&file).unwrap();
            fs::write(&file, damage).unwrap();
            assert_eq!(answers.answer(asked), None);
            let said = answers.take_remarks();
            assert!(said.len() == 1 && said[0].contains(&asked.to_string()), "{said:?}");
            assert!(!file.exists(), "it is planned afresh and kept anew");
            fs::write(&file, whole).unwrap();
        }
        assert_eq!(answers.answer(asked), Some(Answer::Plan(Plan::default())));
        let lines = folder.join("plans/least-bytes");
        fs::write(&lines, fs::read_to_string(&lines).unwrap().replace(" 7 ", " 6 ")).unwrap();
        let mut next = Answers::kept_in(&folder);
        assert_eq!(next.bytes(asked), KeptBytes::default());
        assert!(next.take_remarks()[0].contains("least-bytes: 1 lines"));
        assert!(Answers::kept_in(&folder).take_remarks().is_empty(), "it is said once");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_stays_bounded_and_what_was_used_last_stays() {
        let folder = scratch("bounded");
        let plans = folder.join("plans");
        fs::create_dir_all(&plans).unwrap();
        for n in 0..70u64 {
            let file = fs::File::create(plans.join(format!("{n:032x}.json"))).unwrap();
            file.set_len(1 << 20).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(n)).unwrap();
        }
        let mut answers = Answers::kept_in(&folder);
        for n in 0..4000u32 {
            answers.keep_bytes(Digest::of(&n.to_le_bytes()), KeptBytes::default());
        }
        let left: Vec<bool> = (0..70u64).map(|n| plans.join(format!("{n:032x}.json")).exists()).collect();
        assert_eq!(left.iter().filter(|there| **there).count(), 32);
        assert!(left[69] && !left[0]);
        assert!(fs::metadata(plans.join("least-bytes")).unwrap().len() <= MOST_OF_LINES);
        fs::remove_dir_all(folder).unwrap();
    }
}
