//! Turns the rows of a Parquet file into samples: numbers `x`, and a label or a target `y`.

use std::path::Path;

use plimsoll_formats::parquet::{Rows, Table};
use plimsoll_graph::DType;

use super::table::LABELS;
use super::{Stream, StreamSource};
use crate::columns::{Asked, Chosen, Columns};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};

/// Rows of a Parquet file, which can only be decoded from front to back.
pub(crate) struct Columnar {
    table: Table,
    chosen: Chosen,
    spec: Vec<FieldSpec>,
}

impl Columnar {
    /// Opens a file. The label is the column of the given name, else one with a usual name, else the last; there is none where
    /// `labelled` is `Some(false)`. With `named` the columns are those, and others may hold anything.
    pub fn new(path: &Path, asked: Asked<'_>) -> Result<Columnar> {
        let Asked { label, labelled, .. } = asked;
        let named = asked.columns();
        let named = named.as_ref();
        let is_named = |name: &str, of: &Columns| {
            of.inputs.iter().chain(&of.label).any(|wanted| name.eq_ignore_ascii_case(wanted))
        };
        let table = Table::open_with(path, |name| named.is_none_or(|of| is_named(name, of)))?;
        let columns = table.columns();
        let find = |wanted: &str| columns.iter().position(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let missing = |name: &str| {
            let names = Table::names(path).unwrap_or_default().join(", ");
            Error::Stage(format!("the Parquet file has no column '{name}'; there are {names}"))
        };
        let chosen = match (named, label) {
            (Some(named), _) => Chosen::named(named, columns.len(), find).map_err(|name| missing(&name))?,
            (None, _) if labelled == Some(false) => Chosen::all(columns.len(), None),
            (None, Some(label)) => {
                Chosen::all(columns.len(), Some(find(label).ok_or_else(|| missing(label))?))
            }
            (None, None) => {
                let usual = LABELS.iter().find_map(|name| find(name));
                Chosen::all(columns.len(), usual.or(columns.len().checked_sub(1)))
            }
        };
        if chosen.inputs() == 0 {
            return Err(Error::Stage(
                "the Parquet file has one column, and needs one of numbers beside its label".into(),
            ));
        }
        let mut spec = vec![FieldSpec::new("x", DType::F32, [chosen.inputs()])];
        if let Some(at) = chosen.label {
            let dtype = if columns[at].1.is_integer() { DType::I64 } else { DType::F32 };
            spec.push(FieldSpec::new("y", dtype, []));
        }
        Ok(Columnar { chosen, spec, table })
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
        Ok(Box::new(ColumnarStream { rows: self.table.rows(), row, chosen: self.chosen.clone() }))
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
    chosen: Chosen,
}

impl Stream for ColumnarStream {
    fn next(&mut self, out: &mut SampleMut<'_>) -> Result<bool> {
        if !self.rows.next(&mut self.row)? {
            return Ok(false);
        }
        if let Some(at) = self.row.iter().position(|x| x.is_nan()) {
            return Err(Error::refused(format!("column {} is NaN, not a number", at + 1)));
        }
        let x = out.get_mut::<f32>(0)?;
        for (slot, &number) in self.chosen.slots.iter().zip(&self.row) {
            if let Some(slot) = *slot {
                x[slot] = number as f32;
            }
        }
        if let Some(label) = self.chosen.label.map(|at| self.row[at]) {
            match out.spec()[1].dtype {
                DType::I64 => out.set(1, &[label as i64])?,
                _ => out.set(1, &[label as f32])?,
            }
        }
        Ok(true)
    }
}
