//! Turns the rows of a Parquet file into samples: numbers `x`, and a label or a target `y`.

use plimsoll_formats::parquet::{Rows, Table};
use plimsoll_graph::DType;

use super::table::LABELS;
use super::{Stream, StreamSource};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};

/// Rows of a Parquet file, which can only be decoded from front to back.
pub(crate) struct Columnar {
    table: Table,
    label: usize,
    spec: Vec<FieldSpec>,
}

impl Columnar {
    /// The label is the column of the given name, else one with a usual name, else the last.
    pub fn new(table: Table, label: Option<&str>) -> Result<Columnar> {
        let columns = table.columns();
        let named = |wanted: &str| columns.iter().position(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let found = match label {
            Some(label) => named(label),
            None => LABELS.iter().find_map(|name| named(name)).or(columns.len().checked_sub(1)),
        };
        let Some(at) = found else {
            let names: Vec<_> = columns.iter().map(|(name, _)| name.as_str()).collect();
            let what = format!(
                "the Parquet file has no column '{}'; there are {}",
                label.unwrap_or(""),
                names.join(", ")
            );
            return Err(Error::Stage(what));
        };
        if columns.len() == 1 {
            return Err(Error::Stage(
                "the Parquet file has one column, and needs one of numbers beside its label".into(),
            ));
        }
        let dtype = if columns[at].1.is_integer() { DType::I64 } else { DType::F32 };
        let x = FieldSpec::new("x", DType::F32, [columns.len() - 1]);
        Ok(Columnar { label: at, spec: vec![x, FieldSpec::new("y", dtype, [])], table })
    }
}

impl StreamSource for Columnar {
    fn packed(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> Option<u64> {
        Some(self.table.len())
    }

    fn open(&self) -> Result<Box<dyn Stream>> {
        let row = vec![0.0; self.table.columns().len()];
        Ok(Box::new(ColumnarStream { rows: self.table.rows(), row, label: self.label }))
    }

    fn files(&self) -> Vec<std::path::PathBuf> {
        vec![self.table.path().to_owned()]
    }

    fn name(&self) -> String {
        self.table.path().display().to_string()
    }

    fn held(&self) -> u64 {
        self.table.held()
    }
}

struct ColumnarStream {
    rows: Rows,
    row: Vec<f64>,
    label: usize,
}

impl Stream for ColumnarStream {
    fn next(&mut self, out: &mut SampleMut<'_>) -> Result<bool> {
        if !self.rows.next(&mut self.row)? {
            return Ok(false);
        }
        if let Some(at) = self.row.iter().position(|x| x.is_nan()) {
            return Err(Error::refused(format!("column {} is NaN, not a number", at + 1)));
        }
        let numbers = self.row.iter().enumerate().filter(|(at, _)| *at != self.label);
        for (slot, (_, &number)) in out.get_mut::<f32>(0)?.iter_mut().zip(numbers) {
            *slot = number as f32;
        }
        let label = self.row[self.label];
        match out.spec()[1].dtype {
            DType::I64 => out.set(1, &[label as i64])?,
            _ => out.set(1, &[label as f32])?,
        }
        Ok(true)
    }
}
