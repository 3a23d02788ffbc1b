//! Turns one pass over a table of text into what its columns hold, before any row is read.

use std::path::Path;

use plimsoll_formats::csv;

use super::table::LABELS;
use crate::error::Result;

/// More names of classes than this are taken for something else.
pub(super) const CLASSES_MOST: usize = 1 << 16;
/// A column in which none of so many first rows has a number is no column of numbers.
const LOOKED_AT: u64 = 100;

/// What one pass over the file finds.
pub(super) struct FirstPass {
    /// What stands between fields.
    pub separator: u8,
    pub heading: Option<Vec<Vec<u8>>>,
    pub columns: usize,
    /// Where the label is; `Err` where it is asked for and not there.
    pub label: Result<Option<usize>, ()>,
    /// Whether the first label is a name.
    pub is_named: bool,
    pub names: Vec<Vec<u8>>,
    pub too_many: bool,
    pub is_whole: bool,
    /// The first record, until the second has said what separates fields.
    first: Option<Vec<u8>>,
    /// Of each column what its first field holds that is no number, while none of the rows that are looked at has one.
    pub texts: Vec<Option<Vec<u8>>>,
}

impl FirstPass {
    /// The places of all records of a file, and what its columns hold. The label is the column of the given name or number, else one with
    /// a usual name, else the last; there is none where `labelled` is `Some(false)`.
    pub fn over(path: &Path, label: Option<&str>, labelled: Option<bool>) -> Result<(csv::Index, FirstPass)> {
        let mut found = FirstPass {
            separator: b',',
            heading: None,
            columns: 0,
            label: Ok(None),
            is_named: false,
            names: Vec::new(),
            too_many: false,
            is_whole: true,
            first: None,
            texts: Vec::new(),
        };
        let index = csv::scan(path, |number, record| {
            if number == 0 {
                found.first = Some(record.to_vec());
                return Ok(());
            }
            found.begin(Some(record), label, labelled);
            found.see(number, record, label, labelled);
            Ok(())
        })?;
        found.begin(None, label, labelled);
        Ok((index, found))
    }

    /// Looks at the first record, once it is known what comes second.
    fn begin(&mut self, second: Option<&[u8]>, label: Option<&str>, labelled: Option<bool>) {
        if let Some(first) = self.first.take() {
            self.separator = csv::separator(&first, second);
            self.see(0, &first, label, labelled);
        }
    }

    fn see(&mut self, number: u64, record: &[u8], label: Option<&str>, labelled: Option<bool>) {
        if self.columns == 0 {
            let fields: Vec<_> =
                csv::fields(record, self.separator).map(|field| field.into_owned()).collect();
            let words = fields.iter().filter(|field| csv::number(field).is_none()).count();
            // A single word among numbers is the name of a class, not a heading.
            if number == 0 && (words > 1 || (words == 1 && fields.len() == 1)) {
                self.heading = Some(fields);
                return;
            }
            self.columns = fields.len();
            if labelled != Some(false) {
                let at = find_label(self.heading.as_deref(), label, fields.len());
                self.label = at.map(Some).ok_or(());
                self.is_named = at.is_some_and(|at| csv::number(&fields[at]).is_none());
            }
            let is_text = |field: &Vec<u8>| csv::number(field).is_none() && !field.trim_ascii().is_empty();
            self.texts = fields.into_iter().map(|field| Some(field).filter(is_text)).collect();
        } else if number < LOOKED_AT {
            for (text, field) in self.texts.iter_mut().zip(csv::fields(record, self.separator)) {
                text.take_if(|_| csv::number(&field).is_some());
            }
        }
        let Ok(Some(at)) = self.label else { return };
        let field = csv::fields(record, self.separator).nth(at);
        let Some(field) = field.filter(|field| !field.trim_ascii().is_empty()) else {
            // A row without a label is said when it is read.
            return;
        };
        if !self.is_named {
            let is_number = csv::number(&field).is_some();
            let is_whole = std::str::from_utf8(&field).is_ok_and(|text| is_whole(text.trim()));
            self.is_whole &= is_whole || !is_number;
            return;
        }
        if let Err(place) = self.names.binary_search_by(|name| name.as_slice().cmp(&field)) {
            self.too_many |= self.names.len() == CLASSES_MOST;
            if !self.too_many {
                self.names.insert(place, field.into_owned());
            }
        }
    }
}

/// Whether a number is written without a point or an exponent.
fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn find_label(heading: Option<&[Vec<u8>]>, label: Option<&str>, columns: usize) -> Option<usize> {
    let named = |wanted: &str| {
        heading?.iter().position(|name| name.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    match label {
        Some(label) => named(label).or_else(|| label.parse().ok()).filter(|&at| at < columns),
        None => {
            LABELS.iter().find_map(|name| named(name)).filter(|&at| at < columns).or(columns.checked_sub(1))
        }
    }
}
