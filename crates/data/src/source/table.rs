//! Turns a file of comma-separated values into samples: numbers `x`, and a label or a target `y`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::{FileError, csv};
use plimsoll_graph::DType;

use super::array::read_at;
use super::{Scratch, Source};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};

/// Names of a column that is a label without being told.
pub(super) const LABELS: [&str; 5] = ["label", "class", "target", "y", "species"];
/// More names of classes than this are taken for something else.
const CLASSES_MOST: usize = 1 << 16;

/// A table of which any row can be read: 8 bytes a row are kept, and the names of classes.
pub(crate) struct Table {
    file: File,
    path: PathBuf,
    starts: Arc<[u64]>,
    longest: usize,
    label: usize,
    columns: usize,
    /// Names of classes, sorted; empty where labels are numbers.
    classes: Vec<Vec<u8>>,
    spec: Vec<FieldSpec>,
}

impl Table {
    /// Finds the rows. The first one is a heading if one of its fields but the label is no number. The label is the
    /// column of the given name or number, else one with a usual name, else the last.
    pub fn new(path: &Path, label: Option<&str>) -> Result<Table> {
        let (mut heading, mut first, mut classes) = (None, None, Vec::new());
        let mut column = None;
        let mut too_many = false;
        let index = csv::scan(path, |number, record| {
            if number == 0 {
                let fields: Vec<_> = csv::fields(record).map(|field| field.into_owned()).collect();
                let words = fields.iter().filter(|field| csv::number(field).is_none()).count();
                // A single word among numbers is the name of a class, not a heading.
                if words > 1 || (words == 1 && fields.len() == 1) {
                    heading = Some(fields);
                    return Ok(());
                }
            }
            if first.is_none() {
                let fields: Vec<_> = csv::fields(record).map(|field| field.into_owned()).collect();
                column = Some(find_label(heading.as_deref(), label, fields.len()));
                first = Some(fields);
            }
            let Some(Some(at)) = column else { return Ok(()) };
            let is_named =
                first.as_ref().is_some_and(|row| row.get(at).is_some_and(|f| csv::number(f).is_none()));
            if is_named
                && let Some(name) = csv::fields(record).nth(at)
                && let Err(place) = classes.binary_search_by(|class: &Vec<u8>| class.as_slice().cmp(&name))
            {
                too_many |= classes.len() == CLASSES_MOST;
                if !too_many {
                    classes.insert(place, name.into_owned());
                }
            }
            Ok(())
        })?;
        let unknown = |what: String| Error::Unknown { path: path.display().to_string(), what };
        let Some(first) = first else { return Err(unknown("it has no rows".into())) };
        let Some(Some(at)) = column else {
            let names = heading.unwrap_or_default();
            let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
            let what = format!("it has no column '{}'; there are {}", label.unwrap_or(""), names.join(", "));
            return Err(unknown(what));
        };
        if too_many {
            return Err(unknown(format!(
                "column {at} has more than {CLASSES_MOST} different names; is it a label?"
            )));
        }
        let whole = classes.is_empty() && first[at].contains(&b'.');
        let y = FieldSpec::new("y", if whole { DType::F32 } else { DType::I64 }, []);
        let spec = vec![FieldSpec::new("x", DType::F32, [first.len() - 1]), y];
        let starts = if heading.is_some() { index.starts[1..].into() } else { index.starts.into() };
        let file = File::open(path).map_err(|error| FileError::io(path, error))?;
        let (path, columns) = (path.to_owned(), first.len());
        Ok(Table { file, path, starts, longest: index.longest, label: at, columns, classes, spec })
    }
}

fn find_label(heading: Option<&[Vec<u8>]>, label: Option<&str>, columns: usize) -> Option<usize> {
    let named = |wanted: &str| {
        heading?.iter().position(|name| name.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    match label {
        Some(label) => named(label).or_else(|| label.parse().ok().filter(|&at| at < columns)),
        None => LABELS.iter().find_map(|name| named(name)).or(columns.checked_sub(1)),
    }
}

impl Source for Table {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        self.starts.len() as u64 - 1
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let damaged = |what: String| Error::File(FileError::damaged_at(&self.path, index, what));
        let (start, end) = (self.starts[index as usize], self.starts[index as usize + 1]);
        scratch.bytes.resize(usize::try_from(end - start).unwrap_or(0), 0);
        read_at(&self.file, &mut scratch.bytes, start)
            .map_err(|error| FileError::io(&self.path, error).at(index))?;
        // Empty lines may follow the record.
        let record = csv::trim_end(scratch.bytes.trim_ascii_end());
        let mut columns = 0;
        let mut next = 0;
        for (at, field) in csv::fields(record).enumerate() {
            columns += 1;
            if at == self.label {
                if self.classes.is_empty() {
                    let no_number = || damaged(format!("'{}' is no label", String::from_utf8_lossy(&field)));
                    let number = csv::number(&field).ok_or_else(no_number)?;
                    match self.spec[1].dtype {
                        DType::F32 => out.set(1, &[number as f32])?,
                        _ => out.set(1, &[number as i64])?,
                    }
                } else {
                    let class = self.classes.binary_search_by(|class| class.as_slice().cmp(&field));
                    let class =
                        class.map_err(|_| damaged("the file has changed since it was opened".into()))?;
                    out.set(1, &[class as i64])?;
                }
                continue;
            }
            let Some(number) = csv::number(&field) else {
                let what = format!("'{}' in column {at} is no number", String::from_utf8_lossy(&field));
                return Err(damaged(what));
            };
            if let Some(slot) = out.get_mut::<f32>(0)?.get_mut(next) {
                *slot = number as f32;
            }
            next += 1;
        }
        if columns != self.columns {
            return Err(damaged(format!(
                "it has {columns} columns where the first row has {}",
                self.columns
            )));
        }
        Ok(())
    }

    fn class_names(&self) -> Option<Vec<String>> {
        let names = self.classes.iter().map(|name| String::from_utf8_lossy(name).into_owned());
        (!self.classes.is_empty()).then(|| names.collect())
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn held(&self) -> u64 {
        let classes: usize = self.classes.iter().map(|class| class.len() + 24).sum();
        (self.starts.len() * 8 + classes) as u64
    }

    fn scratch_bytes(&self) -> u64 {
        self.longest as u64
    }
}
