//! Turns a file of values between commas or the like into samples: numbers `x`, and a label or a target `y`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::{FileError, csv};
use plimsoll_graph::DType;

use super::array::read_at;
use super::first_pass::{CLASSES_MOST, FirstPass};
use super::{Scratch, Source};
use crate::columns::{Asked, Chosen, Columns};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};

/// Names of a column that is a label without being told.
pub(super) const LABELS: [&str; 5] = ["label", "class", "target", "y", "species"];

/// A table of which any row can be read: 8 bytes a row are kept, and the names of classes.
pub(crate) struct Table {
    file: File,
    path: PathBuf,
    index: Arc<csv::Index>,
    separator: u8,
    /// Records before the first row: a heading, or none.
    before: usize,
    /// The names of columns, where there is a heading.
    heading: Vec<String>,
    /// The columns that are read.
    chosen: Chosen,
    columns: usize,
    labels: Labels,
    spec: Vec<FieldSpec>,
}

/// What labels are.
#[derive(Clone, Debug, PartialEq)]
enum Labels {
    /// Whole numbers.
    Whole,
    /// Numbers, of which one at least is not whole.
    Floats,
    /// Names, sorted.
    Names(Vec<Vec<u8>>),
}

impl Table {
    /// Finds the rows. The first one is a heading if two of its fields are no numbers. The label is the column of the
    /// given name or number, else one with a usual name, else the last; there is none where `labelled` is `Some(false)`. With
    /// `named` the columns are those, and others may hold anything.
    /// Labels are names if the first one is, whole numbers if all of them are, and floats otherwise.
    pub fn new(path: &Path, asked: Asked<'_>) -> Result<Table> {
        let named = asked.columns();
        let (label, labelled) = match &named {
            Some(Columns { label: Some(label), .. }) => (Some(label.as_str()), asked.labelled),
            Some(Columns { label: None, .. }) => (None, Some(false)),
            None => (asked.label, asked.labelled),
        };
        let unknown = |what: String| Error::Unknown { path: path.display().to_string(), what };
        let (index, found) = FirstPass::over(path, label, labelled)?;
        let FirstPass { separator, heading, columns, label: at, .. } = found;
        if columns == 0 {
            return Err(unknown("it has no rows".into()));
        }
        let text = |name: &Vec<u8>| String::from_utf8_lossy(name).trim().to_owned();
        let heading: Option<Vec<String>> = heading.map(|names| names.iter().map(text).collect());
        let Ok(at) = at else {
            let names = heading.unwrap_or_default().join(", ");
            return Err(unknown(format!("it has no column '{}'; there are {names}", label.unwrap_or(""))));
        };
        let chosen = match &named {
            None => Chosen::all(columns, at),
            Some(named) => {
                let names = heading.clone().unwrap_or_default();
                let find = |wanted: &str| {
                    let named = names.iter().position(|name| name.eq_ignore_ascii_case(wanted));
                    named.or_else(|| wanted.parse().ok())
                };
                Chosen::named(named, columns, find).map_err(|name| {
                    unknown(format!("it has no column '{name}'; there are {}", names.join(", ")))
                })?
            }
        };
        if chosen.inputs() == 0 {
            let what = "it has one column, and a table needs a column of numbers beside its label; are its columns \
                        separated by something else than commas, semicolons, tabs or bars?";
            return Err(unknown(what.into()));
        }
        let is_input = |column: usize| chosen.slots.get(column).copied().flatten().is_some();
        for (column, text) in found.texts.iter().enumerate() {
            let Some(text) = text else { continue };
            let what = match csv::has_decimal_comma(text) {
                true if is_input(column) || at == Some(column) => {
                    "which has a decimal comma: write numbers with a point"
                }
                false if is_input(column) && named.is_some() => "which is no number",
                false if is_input(column) => {
                    "which is no number: name the columns to read, as with --columns x=NAME,NAME,y=NAME"
                }
                _ => continue,
            };
            let name = heading.as_ref().and_then(|names| names.get(column));
            let name = name.map_or(String::new(), |name| format!(" ('{name}')"));
            let text = String::from_utf8_lossy(text);
            return Err(unknown(format!("column {}{name} holds '{text}', {what}", column + 1)));
        }
        if found.too_many {
            let column = at.unwrap_or(0) + 1;
            let what =
                format!("column {column} has more than {CLASSES_MOST} different names; is it a label?");
            return Err(unknown(what));
        }
        let labels = match (found.is_named, found.is_whole) {
            (true, _) => Labels::Names(found.names),
            (false, true) => Labels::Whole,
            (false, false) => Labels::Floats,
        };
        let mut spec = vec![FieldSpec::new("x", DType::F32, [chosen.inputs()])];
        if at.is_some() {
            let dtype = if labels == Labels::Floats { DType::F32 } else { DType::I64 };
            spec.push(FieldSpec::new("y", dtype, []));
        }
        let file = File::open(path).map_err(|error| FileError::io(path, error))?;
        let before = usize::from(heading.is_some());
        let (index, heading, path) = (Arc::new(index), heading.unwrap_or_default(), path.to_owned());
        Ok(Table { file, path, index, separator, before, heading, chosen, columns, labels, spec })
    }

    /// What is wrong in a row, with the line as an editor counts it, and the column where it has one.
    fn damaged(&self, row: u64, column: Option<usize>, what: &str) -> Error {
        let record = row as usize + self.before;
        let known = record / csv::LINES_STEP;
        let mut line = self.index.lines.get(known).copied().unwrap_or(1);
        let (mut at, end) = (self.index.starts[known * csv::LINES_STEP], self.index.starts[record]);
        let mut block = [0; 4096];
        while at < end {
            let part = &mut block[..(end - at).min(4096) as usize];
            if read_at(&self.file, part, at).is_err() {
                break;
            }
            line += csv::count_lines(part);
            at += part.len() as u64;
        }
        let place = column.map_or(String::new(), |at| match self.heading.get(at) {
            Some(name) => format!(", column {} ('{name}')", at + 1),
            None => format!(", column {}", at + 1),
        });
        FileError::damaged(&self.path, format!("line {line}{place}: {what} (sample {row})")).into()
    }

    fn write_label(&self, field: &[u8], out: &mut SampleMut<'_>) -> Result<Result<(), String>> {
        let text = String::from_utf8_lossy(field);
        if field.trim_ascii().is_empty() {
            return Ok(Err("the label is missing".into()));
        }
        match &self.labels {
            Labels::Whole => match text.trim().parse::<i64>() {
                Ok(number) => out.set(1, &[number])?,
                Err(_) => {
                    return Ok(Err(format!("'{text}' is no label: labels are whole numbers of 64 bits")));
                }
            },
            Labels::Floats => match csv::number(field) {
                Some(number) if !number.is_nan() => out.set(1, &[number as f32])?,
                _ => return Ok(Err(format!("'{text}' is no label: labels are numbers"))),
            },
            Labels::Names(names) => match names.binary_search_by(|name| name.as_slice().cmp(field)) {
                Ok(class) => out.set(1, &[class as i64])?,
                Err(_) => return Ok(Err("the file has changed since it was opened".into())),
            },
        }
        Ok(Ok(()))
    }
}

impl Source for Table {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        (self.index.len() - self.before) as u64
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let record = index as usize + self.before;
        let (start, end) = (self.index.starts[record], self.index.starts[record + 1]);
        scratch.bytes.resize(usize::try_from(end - start).unwrap_or(0), 0);
        read_at(&self.file, &mut scratch.bytes, start)
            .map_err(|error| FileError::io(&self.path, error).at(index))?;
        // Empty lines may follow the record.
        let bytes = if start == 0 { csv::trim_mark(&scratch.bytes) } else { &scratch.bytes };
        let record = csv::trim_end(bytes.trim_ascii_end());
        let mut columns = 0;
        for (at, field) in csv::fields(record, self.separator).enumerate() {
            columns += 1;
            if Some(at) == self.chosen.label {
                self.write_label(&field, out)?.map_err(|what| self.damaged(index, Some(at), &what))?;
                continue;
            }
            // A column too many is said below.
            let Some(place) = self.chosen.slots.get(at).copied().flatten() else { continue };
            let Some(number) = csv::number(&field).filter(|number| !number.is_nan()) else {
                let what = match field.trim_ascii().is_empty() {
                    true => "the number is missing".to_owned(),
                    false => format!("'{}' is no number", String::from_utf8_lossy(&field)),
                };
                return Err(self.damaged(index, Some(at), &what));
            };
            out.get_mut::<f32>(0)?[place] = number as f32;
        }
        if columns != self.columns {
            let what = format!("it has {columns} columns where the first row has {}", self.columns);
            return Err(self.damaged(index, None, &what));
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let Some(at) = self.chosen.label else { return Vec::new() };
        let column = self.heading.get(at).map_or(format!("column {}", at + 1), |name| format!("'{name}'"));
        let what = match &self.labels {
            Labels::Whole => "whole numbers".to_owned(),
            Labels::Floats => "numbers".to_owned(),
            Labels::Names(names) => format!("{} names", names.len()),
        };
        vec![format!("'y': {column} of {}, {what}", self.path.display())]
    }

    fn class_names(&self) -> Option<Vec<String>> {
        let Labels::Names(names) = &self.labels else { return None };
        Some(names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn held(&self) -> u64 {
        let names: usize = match &self.labels {
            Labels::Names(names) => names.iter().map(|name| name.len() + 24).sum(),
            _ => 0,
        };
        let heading: usize = self.heading.iter().map(|name| name.len() + 24).sum();
        ((self.index.starts.capacity() + self.index.lines.capacity()) * 8
            + names
            + heading
            + 16 * self.columns) as u64
    }

    fn scratch_bytes(&self) -> u64 {
        self.index.longest as u64
    }
}
