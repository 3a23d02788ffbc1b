//! What is kept of a planner's answers from one process to the next, as text that says what it is and whether it is whole.
//!
//! A plan has a file of its own: a line that says what was asked and what the rest must sum up to, then the plan. Least bytes are lines of
//! one file, each with its own sum. Whatever does not add up, or was asked otherwise, is refused by name.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::schema::{Schema, accept};

/// The first line of a kept answer.
#[derive(Serialize, Deserialize)]
struct Head {
    schema: Schema,
    /// The digest of what was asked.
    asked: String,
    /// The digest of the line behind it.
    sum: String,
}

/// The text of a file that keeps the answer to what has this digest.
///
/// ```
/// use plimsoll_record::{Digest, keep, kept};
/// let asked = Digest::of(b"a question");
/// let text = keep(asked, &vec![1, 2, 3]).unwrap();
/// assert_eq!(kept::<Vec<i32>>(&text, "answer.json", asked).unwrap(), [1, 2, 3]);
/// assert!(kept::<Vec<i32>>(&text, "answer.json", Digest::of(b"another")).is_err());
/// assert!(kept::<Vec<i32>>(&text.replace('2', "4"), "answer.json", asked).is_err());
/// ```
///
/// # Errors
/// The answer cannot be written as JSON.
pub fn keep(asked: Digest, answer: &impl Serialize) -> serde_json::Result<String> {
    let answer = serde_json::to_string(answer)?;
    let (asked, sum) = (asked.to_string(), Digest::of(answer.as_bytes()).to_string());
    Ok(serde_json::to_string(&Head { schema: Schema::CURRENT, asked, sum })? + "\n" + &answer + "\n")
}

/// Reads what [`keep`] wrote.
///
/// # Errors
/// [`Error::Schema`] for a file of another version; [`Error::Broken`] where it is not whole, or answers something else.
pub fn kept<T: DeserializeOwned>(text: &str, file: &str, asked: Digest) -> Result<T> {
    let broken = |why: &str| Error::Broken { file: file.into(), why: why.into() };
    let damaged = || broken("the file is damaged or was cut short");
    let (head, answer) = text.split_once('\n').ok_or_else(damaged)?;
    let head: Head = serde_json::from_str(head).map_err(|_| broken("it is no kept answer"))?;
    accept(Some(head.schema.0.into()), file)?;
    if head.asked != asked.to_string() {
        return Err(broken("it answers something else"));
    }
    let answer = answer.strip_suffix('\n').ok_or_else(damaged)?;
    if head.sum != Digest::of(answer.as_bytes()).to_string() {
        return Err(damaged());
    }
    serde_json::from_str(answer).map_err(|_| broken("it is no such answer"))
}

/// Bytes that are known of a step whatever its ops' times are; each unless it was never asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptBytes {
    /// The least for which there is a plan.
    pub floor: Option<u64>,
    /// What no plan can go below.
    pub bound: Option<u64>,
    /// What a plan takes that recomputes nothing.
    pub unlimited: Option<u64>,
}

impl KeptBytes {
    /// These, as the line of a file.
    ///
    /// ```
    /// use plimsoll_record::{Digest, KeptBytes};
    /// let (asked, bytes) = (Digest::of(b"a step"), KeptBytes { floor: Some(64), ..KeptBytes::default() });
    /// let line = bytes.line(asked);
    /// assert_eq!(KeptBytes::parse(&line), Some((asked, bytes)));
    /// assert_eq!(KeptBytes::parse(&line.replace("64", "65")), None);
    /// ```
    pub fn line(&self, asked: Digest) -> String {
        let figure = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| bytes.to_string());
        let line =
            format!("{asked} {} {} {}", figure(self.floor), figure(self.bound), figure(self.unlimited));
        format!("{line} {}", sum(&line))
    }

    /// What a line says; nothing where it is damaged.
    pub fn parse(line: &str) -> Option<(Digest, KeptBytes)> {
        let (said, check) = line.rsplit_once(' ')?;
        let words: Vec<&str> = said.split(' ').collect();
        let [asked, figures @ ..] = &words[..] else { return None };
        let asked = Digest(u128::from_str_radix(asked, 16).ok()?);
        let figure = |word: &str| if word == "-" { Some(None) } else { word.parse().ok().map(Some) };
        let figures: Option<Vec<Option<u64>>> = figures.iter().map(|word| figure(word)).collect();
        let [floor, bound, unlimited] = figures?[..] else { return None };
        (check == sum(said)).then_some((asked, KeptBytes { floor, bound, unlimited }))
    }
}

/// What a line must end with.
fn sum(line: &str) -> String {
    format!("{:016x}", Digest::of(line.as_bytes()).0 as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_or_of_another_version_is_refused_by_name() {
        let asked = Digest::of(b"asked");
        let text = keep(asked, &"an answer").unwrap();
        for cut in [0, 5, text.len() / 2, text.len() - 1] {
            let why = kept::<String>(&text[..cut], "a.json", asked).unwrap_err().to_string();
            assert!(why.starts_with("a.json: "), "{why}");
        }
        let newer = text.replace("\"schema\":2", "\"schema\":9");
        assert!(matches!(kept::<String>(&newer, "a.json", asked), Err(Error::Schema { found: 9, .. })));
        assert!(kept::<Vec<u8>>(&text, "a.json", asked).is_err(), "a sentence is no list of numbers");
    }

    #[test]
    fn a_line_of_bytes_with_any_character_changed_says_nothing() {
        let bytes = KeptBytes { floor: Some(123), bound: None, unlimited: Some(9) };
        let line = bytes.line(Digest::of(b"x"));
        assert_eq!(KeptBytes::parse(&line), Some((Digest::of(b"x"), bytes)));
        for at in 0..line.len() {
            let mut other = line.clone().into_bytes();
            other[at] = if other[at] == b'7' { b'8' } else { b'7' };
            assert_eq!(KeptBytes::parse(std::str::from_utf8(&other).unwrap()), None, "at {at}");
        }
        assert_eq!(KeptBytes::parse(""), None);
    }
}
