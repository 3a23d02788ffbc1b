//! Turns arrays, batches that Python makes one after the other, or the path of files into data of the engine.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll::internals::data::{FieldKind, Fields, Images, Open, Split, Wanted};
use plimsoll::prelude::*;
use pyo3::prelude::*;

use crate::array::Array;
use crate::call;
use crate::errors::plain;
use crate::stream::{Batches, Raised};

/// Data to train on, evaluate or predict on, before it is made into batches.
#[pyclass(frozen, module = "plimsoll._native")]
pub struct Data {
    pub dataset: Dataset,
    pub name: &'static str,
    /// Whether it comes batch by batch.
    pub is_stream: bool,
    pub raised: Raised,
}

/// What a field is for, by the package's word for it.
pub fn kind(word: &str) -> PyResult<FieldKind> {
    match word {
        "numbers" => Ok(FieldKind::Numbers),
        "indices" => Ok(FieldKind::Indices),
        "label" => Ok(FieldKind::Label),
        other => Err(pyo3::exceptions::PyValueError::new_err(format!("there is no kind of field {other}"))),
    }
}

/// Arrays, by name and kind, whose rows are the samples. Nothing is copied.
#[pyfunction]
pub fn arrays(py: Python<'_>, fields: Vec<(String, String, Bound<'_, PyAny>)>) -> PyResult<Data> {
    let mut taken = Vec::new();
    for (name, word, array) in fields {
        taken.push((name, kind(&word)?, Array::new(&array)?));
    }
    call::caught(py, || {
        let column = |(name, kind, array): (String, FieldKind, Array)| {
            let shape = array.shape.get(1..).unwrap_or_default().to_vec();
            let element = array.element;
            Column::array(&name, Arc::new(array), element, shape, kind)
        };
        let columns: Vec<Column> = taken.into_iter().map(column).collect::<Result<_, _>>()?;
        Ok(Data {
            dataset: Dataset::columns(columns)?,
            name: "arrays",
            is_stream: false,
            raised: Raised::default(),
        })
    })
}

/// Batches that `make()` gives in turn, as lists of arrays: `first` is like every one of them but the last, which may be smaller. `fields`
/// are names and kinds; there are so many `passes` over them at most.
#[pyfunction]
pub fn batches(
    py: Python<'_>,
    fields: Vec<(String, String)>,
    first: Vec<Bound<'_, PyAny>>,
    make: Py<PyAny>,
    passes: u64,
) -> PyResult<Data> {
    let kinds = fields.iter().map(|(_, word)| kind(word)).collect::<PyResult<Vec<_>>>()?;
    let first = first.iter().map(Array::new).collect::<PyResult<Vec<_>>>()?;
    let names = fields.into_iter().map(|(name, _)| name).collect();
    call::caught(py, || {
        let source = Batches::new(names, kinds, &first, make, passes).map_err(plain)?;
        let raised = source.raised();
        Ok(Data { dataset: Dataset::stream(source), name: "batches of Python", is_stream: true, raised })
    })
}

/// Files that the engine reads by itself: what is at a path, with these inputs and labels (names and kinds) of each sample. `part` is
/// `train` or `test`; `image` is the height, width and channels that pictures become.
#[pyfunction]
#[pyo3(signature = (path, inputs, labels, part, image=None))]
pub fn files(
    py: Python<'_>,
    path: PathBuf,
    inputs: Vec<(String, String)>,
    labels: Vec<(String, String)>,
    part: &str,
    image: Option<(usize, usize, usize)>,
) -> PyResult<Data> {
    let wanted = |fields: Vec<(String, String)>| -> PyResult<Vec<Wanted>> {
        fields.into_iter().map(|(name, word)| Ok(Wanted { name, kind: kind(&word)? })).collect()
    };
    let fields = Fields { inputs: wanted(inputs)?, labels: wanted(labels)? };
    let split = split(part)?;
    call::caught(py, || {
        let images = image.map(|(height, width, channels)| Images { channels, ..Images::new(height, width) });
        let labelled = fields.labels.is_empty().then_some(false);
        let open = Open { split, images, labelled, fields: Some(fields), ..Open::default() };
        let dataset = Dataset::open_with(path, &open)?;
        Ok(Data { dataset, name: "files", is_stream: false, raised: Raised::default() })
    })
}

/// Files as they say themselves what is in them: the path, the part, and whether samples have labels.
#[pyfunction]
pub fn open_files(py: Python<'_>, path: PathBuf, part: &str, labelled: bool) -> PyResult<Data> {
    let split = split(part)?;
    call::caught(py, || {
        let open = Open { split, labelled: Some(labelled), ..Open::default() };
        let dataset = Dataset::open_with(path, &open)?;
        Ok(Data { dataset, name: "files", is_stream: false, raised: Raised::default() })
    })
}

/// A part of a data set by its name.
fn split(part: &str) -> PyResult<Split> {
    match part {
        "train" => Ok(Split::Train),
        "test" => Ok(Split::Test),
        other => {
            let why = format!("there is no part {other} of a data set; name train or test");
            Err(pyo3::exceptions::PyValueError::new_err(why))
        }
    }
}

#[pymethods]
impl Data {
    /// How many samples there are, where that is known.
    fn samples(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        call::caught(py, || Ok(self.dataset.samples()?))
    }
}
