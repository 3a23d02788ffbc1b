//! Turns samples of any length into rows of one length, as files that a pipeline reads: texts are packed one behind another.
//!
//! A row has tokens, the position of each within its text, the token that should follow each, and whether that counts. No token
//! sees another text (positions say where one begins), and what follows the end of a text does not count.

use std::path::{Path, PathBuf};

use plimsoll_formats::Element;

use crate::error::{Error, Result};
use crate::row_files::{RowFiles, bytes_of};
use crate::texts::Sample;

/// What was packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Packed {
    /// Rows.
    pub rows: u64,
    /// Samples.
    pub samples: u64,
    /// Tokens that are learnt.
    pub learnt: u64,
    /// Tokens in rows that are filled.
    pub filled: u64,
    /// Samples that were longer than a row and lost their end.
    pub truncated: u64,
    /// Samples that could not be read and were passed over.
    pub skipped: u64,
    /// Rows in which several texts stand. Where there is none, positions say nothing that places do not.
    #[serde(default = "unknown")]
    pub shared: u64,
}

/// What is said of rows that were written before anybody counted.
fn unknown() -> u64 {
    u64::MAX
}

/// The files of rows, in the order of a sample's fields.
pub const FIELDS: [&str; 4] = ["tokens", "positions", "next", "weights"];

/// Rows being written.
pub struct Rows {
    length: usize,
    files: RowFiles,
    tokens: Vec<i32>,
    positions: Vec<i32>,
    next: Vec<i32>,
    weights: Vec<f32>,
    /// Texts in the row at hand.
    texts: usize,
    packed: Packed,
}

/// The element type of a field's file.
fn element(field: usize) -> Element {
    if field == 3 { Element::F32 } else { Element::I32 }
}

impl Rows {
    /// Rows of so many tokens, as files of a folder.
    pub fn create(folder: &Path, length: usize) -> Result<Rows> {
        if length == 0 {
            return Err(Error::Asked("sequences of no tokens cannot be learnt from".into()));
        }
        let fields = FIELDS.iter().enumerate().map(|(i, field)| (*field, element(i), length)).collect();
        let files = RowFiles::create(folder, fields)?;
        let (tokens, positions, next, weights) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Rows { length, files, tokens, positions, next, weights, texts: 0, packed: Packed::default() })
    }

    /// The files of a folder's rows, by field.
    pub fn paths(folder: &Path) -> Vec<(&'static str, PathBuf)> {
        FIELDS.iter().map(|field| (*field, folder.join(format!("{field}.npy")))).collect()
    }

    /// Counts a sample that was passed over.
    pub fn skip(&mut self) {
        self.packed.skipped += 1;
    }

    /// Adds a sample. A plain text is cut where a row ends and goes on in the next; any other begins in a row that has room for it,
    /// and loses its end where no row has.
    pub fn add(&mut self, sample: &Sample) -> Result<()> {
        // A token and what follows it.
        let pairs = sample.tokens.len().saturating_sub(1);
        self.packed.samples += 1;
        let taken = if sample.is_text { pairs } else { pairs.min(self.length) };
        if taken < pairs {
            self.packed.truncated += 1;
        }
        if !sample.is_text && taken > self.length - self.tokens.len() {
            self.end_row()?;
        }
        let mut done = 0;
        while done < taken {
            let n = (taken - done).min(self.length - self.tokens.len());
            for (position, i) in (done..done + n).enumerate() {
                self.tokens.push(sample.tokens[i] as i32);
                self.positions.push(position as i32);
                self.next.push(sample.tokens[i + 1] as i32);
                let counts = sample.counts[i + 1];
                self.weights.push(if counts { 1.0 } else { 0.0 });
                self.packed.learnt += u64::from(counts);
            }
            self.packed.filled += n as u64;
            self.texts += usize::from(n > 0);
            done += n;
            if self.tokens.len() == self.length {
                self.end_row()?;
            }
        }
        Ok(())
    }

    /// Fills the row up with a text that does not count, and writes it. A row in which nothing counts is not written.
    fn end_row(&mut self) -> Result<()> {
        let rest = self.length - self.tokens.len();
        if self.weights.iter().any(|w| *w > 0.0) {
            self.tokens.extend(std::iter::repeat_n(0, rest));
            self.positions.extend(0..rest as i32);
            self.next.extend(std::iter::repeat_n(0, rest));
            self.weights.extend(std::iter::repeat_n(0.0, rest));
            let whole = |numbers: &[i32]| bytes_of(numbers, i32::to_le_bytes);
            let weights = bytes_of(&self.weights, f32::to_le_bytes);
            let fields = [whole(&self.tokens), whole(&self.positions), whole(&self.next), weights];
            self.files.write(fields.iter().map(Vec::as_slice))?;
            self.packed.rows += 1;
            self.packed.shared += u64::from(self.texts > 1);
        }
        self.texts = 0;
        self.tokens.clear();
        self.positions.clear();
        self.next.clear();
        self.weights.clear();
        Ok(())
    }

    /// Writes the last row and the number of all.
    pub fn finish(mut self) -> Result<Packed> {
        if !self.tokens.is_empty() {
            self.end_row()?;
        }
        self.files.finish(self.packed.rows)?;
        Ok(self.packed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_formats::npy;

    fn numbers(folder: &Path, field: &str) -> Vec<i32> {
        let (mut file, header) = npy::Header::of_file(&folder.join(format!("{field}.npy"))).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        let (rows, _) = header.rows();
        assert_eq!(bytes.len() as u64, rows * 4 * 4, "{field}");
        bytes.as_chunks::<4>().0.iter().map(|x| i32::from_le_bytes(*x)).collect()
    }

    #[test]
    fn texts_fill_rows_and_answers_stay_whole() {
        let folder = std::env::temp_dir().join(format!("plimsoll-rows-{}", std::process::id()));
        let mut rows = Rows::create(&folder, 4).unwrap();
        let sample = |tokens: &[u32], from: usize, is_text| Sample {
            tokens: tokens.to_vec(),
            counts: (0..tokens.len()).map(|i| i >= from).collect(),
            is_text,
        };
        rows.add(&sample(&[1, 2, 3, 4, 5, 6, 7], 0, true)).unwrap();
        // Two places are left, and three are needed.
        rows.add(&sample(&[11, 12, 13, 14], 2, false)).unwrap();
        rows.add(&sample(&[21, 22, 23, 24, 25, 26, 27], 6, false)).unwrap();
        let packed = rows.finish().unwrap();
        assert_eq!((packed.rows, packed.samples, packed.truncated), (3, 3, 1));
        assert_eq!(packed.shared, 0, "a rest of a text and no other stand in the second row");
        assert_eq!(numbers(&folder, "tokens"), [1, 2, 3, 4, 5, 6, 0, 0, 11, 12, 13, 0]);
        assert_eq!(numbers(&folder, "positions"), [0, 1, 2, 3, 0, 1, 0, 1, 0, 1, 2, 0]);
        assert_eq!(numbers(&folder, "next"), [2, 3, 4, 5, 6, 7, 0, 0, 12, 13, 14, 0]);
        let one = 1.0f32.to_bits() as i32;
        assert_eq!(numbers(&folder, "weights"), [one, one, one, one, one, one, 0, 0, 0, one, one, 0]);
        assert_eq!(packed.learnt, 8);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
