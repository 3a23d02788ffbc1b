//! Turns batches that Python gives one after the other into a stream of samples. One batch is held at a time.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::data::source::{Stream, StreamSource};
use plimsoll::data::{Error, FieldSpec, Result, SampleMut};
use plimsoll::internals::data::FieldKind;
use plimsoll::internals::formats::{Element, Stored};
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::array::Array;

/// A field of every batch.
#[derive(Clone)]
struct Form {
    name: String,
    element: Element,
    shape: Vec<usize>,
}

/// Batches of one form.
pub struct Batches {
    forms: Vec<Form>,
    spec: Vec<FieldSpec>,
    /// Samples in a batch.
    rows: usize,
    make: Py<PyAny>,
    passes: u64,
    raised: Raised,
}

impl Batches {
    /// Batches like the first one, which `make()` iterates over anew in every pass, and never more often than so many times: pipelines
    /// read ahead, and a generator is not to lose what nobody trains on.
    pub fn new(
        names: Vec<String>,
        kinds: Vec<FieldKind>,
        first: &[Array],
        make: Py<PyAny>,
        passes: u64,
    ) -> std::result::Result<Batches, String> {
        if names.len() != first.len() {
            return Err(format!("a batch has {} arrays, and {} are wanted", first.len(), names.len()));
        }
        let form = |(name, array): (&String, &Array)| {
            let shape = array.shape.get(1..).unwrap_or_default().to_vec();
            Form { name: name.clone(), element: array.element, shape }
        };
        let forms: Vec<Form> = names.iter().zip(first).map(form).collect();
        let spec = forms.iter().zip(kinds).map(|(form, kind)| {
            FieldSpec::new(&form.name, kind.in_samples(form.element), form.shape.clone())
        });
        let spec = spec.collect();
        let rows = rows(first).map_err(|e| e.to_string())?;
        Ok(Batches { forms, spec, rows, make, passes, raised: Raised::default() })
    }

    /// Where to find what Python raised in the middle of a run.
    pub fn raised(&self) -> Raised {
        self.raised.clone()
    }
}

/// How many samples a batch has.
fn rows(batch: &[Array]) -> Result<usize> {
    let mut all = batch.iter().map(|array| array.shape.first().copied().unwrap_or(0));
    let rows = all.next().unwrap_or(0);
    match all.find(|other| *other != rows) {
        Some(other) => Err(Error::Stage(format!(
            "a batch has arrays of {rows} and of {other} samples; each must have a row for every sample"
        ))),
        None if rows == 0 => Err(Error::Stage("a batch has no samples".into())),
        None => Ok(rows),
    }
}

impl StreamSource for Batches {
    fn packed(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn open_in(&self, epoch: u64) -> Result<Box<dyn Stream>> {
        match epoch < self.passes {
            true => self.open(),
            false => Err(Error::Stage(format!("Python's batches are for {} passes", self.passes))),
        }
    }

    fn open(&self) -> Result<Box<dyn Stream>> {
        let begun = Python::attach(|py| -> PyResult<_> {
            let iterator = self.make.bind(py).call0()?.try_iter()?.unbind();
            Ok(iterator)
        });
        let iterator = begun.map_err(|error| self.raised.keep(error))?;
        let (forms, full, raised) = (self.forms.clone(), self.rows, self.raised());
        let batch = Vec::new();
        Ok(Box::new(Rows { iterator, forms, full, batch, at: 0, rows: 0, is_short: false, raised }))
    }

    fn name(&self) -> String {
        "the batches of Python".into()
    }

    fn held(&self) -> u64 {
        // One is read from while the next is made.
        let row: usize =
            self.forms.iter().map(|form| form.shape.iter().product::<usize>() * form.element.bytes()).sum();
        2 * (row * self.rows) as u64
    }
}

/// A pass over batches.
struct Rows {
    iterator: Py<PyIterator>,
    forms: Vec<Form>,
    full: usize,
    batch: Vec<Array>,
    at: usize,
    rows: usize,
    /// Whether the batch at hand has fewer samples than others, so that it must be the last.
    is_short: bool,
    raised: Raised,
}

impl Rows {
    /// Takes the next batch; `false` at the end.
    fn advance(&mut self) -> Result<bool> {
        // What is let go of makes room for the next.
        self.batch.clear();
        let next = Python::attach(|py| -> PyResult<Option<Vec<Array>>> {
            let Some(batch) = self.iterator.bind(py).clone().next() else { return Ok(None) };
            let arrays: Vec<Bound<'_, PyAny>> = batch?.extract()?;
            arrays.iter().map(Array::new).collect::<PyResult<Vec<Array>>>().map(Some)
        });
        let Some(batch) = next.map_err(|error| self.raised.keep(error))? else { return Ok(false) };
        let rows = rows(&batch)?;
        if self.is_short || rows > self.full {
            return Err(Error::Stage(format!(
                "batches of Python must have equally many samples, {} as the first, and only the last of a pass may have fewer",
                self.full
            )));
        }
        if batch.len() != self.forms.len() {
            return Err(Error::Stage(format!(
                "a batch has {} arrays, and the first had {}",
                batch.len(),
                self.forms.len()
            )));
        }
        for (form, array) in self.forms.iter().zip(&batch) {
            if array.element != form.element || array.shape[1..] != form.shape[..] {
                return Err(Error::Stage(format!(
                    "'{}' has samples of {} {:?} in a batch, and of {} {:?} in the first",
                    form.name,
                    array.element.numpy_name(),
                    &array.shape[1..],
                    form.element.numpy_name(),
                    form.shape
                )));
            }
        }
        (self.batch, self.at, self.rows, self.is_short) = (batch, 0, rows, rows < self.full);
        Ok(true)
    }
}

impl Stream for Rows {
    fn next(&mut self, out: &mut SampleMut<'_>) -> Result<bool> {
        if self.at == self.rows && !self.advance()? {
            return Ok(false);
        }
        for (field, array) in self.batch.iter().enumerate() {
            let bytes = array.as_ref();
            let row = bytes.len() / self.rows;
            let dtype = out.spec()[field].dtype;
            let stored = Stored { element: array.element, big_endian: cfg!(target_endian = "big") };
            stored.convert(&bytes[self.at * row..(self.at + 1) * row], dtype, 1.0, out.bytes_mut(field));
        }
        self.at += 1;
        Ok(true)
    }
}

/// What Python raised while it made a batch: threads of the pipeline meet it, and who called gets it.
#[derive(Clone, Default)]
pub struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    fn keep(&self, error: PyErr) -> Error {
        let told = Error::Stage(format!("Python raised {error} while it made a batch"));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        told
    }

    /// What was raised, if anything was.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
