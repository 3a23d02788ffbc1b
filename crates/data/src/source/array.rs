//! Turns rows of arrays, in a file or in memory, into samples.
//!
//! Row `i` of every column makes sample `i`. Rows in files are read by offset when they are asked for; nothing else
//! is kept. Bytes are read by the system's positioned read, not mapped: pages of a mapped file would count as memory of
//! this process, and the budget is there to bound exactly that.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::{Element, FileError, Stored};
use plimsoll_graph::DType;

use super::{Block, Scratch, Source};
use crate::error::{Error, Result};
use crate::fields::FieldKind;
use crate::sample::{FieldSpec, Number, SampleMut};
use crate::scale::{Scale, divided};

/// What is read ahead when rows are asked for in turn: enough that the call costs little beside the copy.
const READ_AHEAD: usize = 128 << 10;

/// Numbers in memory that a data set reads without copying them first.
///
/// ```
/// use plimsoll_data::Memory;
///
/// static PIXELS: [u8; 4] = [1, 2, 3, 4];
/// let borrowed = Memory::from(&PIXELS[..]);
/// let owned = Memory::from(vec![1.0f32, 2.0]);
/// assert_eq!((borrowed.bytes().len(), owned.bytes().len()), (4, 8));
/// ```
#[derive(Clone)]
pub struct Memory {
    bytes: Bytes,
    dtype: DType,
}

#[derive(Clone)]
enum Bytes {
    Static(&'static [u8]),
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>),
    /// Memory of somebody else, who counts it.
    Borrowed(Arc<dyn AsRef<[u8]> + Send + Sync>),
}

struct Typed<T>(Arc<[T]>);

impl<T: Number> AsRef<[u8]> for Typed<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

struct TypedVec<T>(Vec<T>);

impl<T: Number> AsRef<[u8]> for TypedVec<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Memory {
    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Static(bytes) => bytes,
            Bytes::Shared(bytes) | Bytes::Borrowed(bytes) => (**bytes).as_ref(),
        }
    }

    /// What is not part of the program itself.
    fn held(&self) -> u64 {
        match self.bytes {
            Bytes::Static(_) | Bytes::Borrowed(_) => 0,
            Bytes::Shared(_) => self.bytes().len() as u64,
        }
    }
}

impl<T: Number> From<&'static [T]> for Memory {
    fn from(numbers: &'static [T]) -> Memory {
        Memory { bytes: Bytes::Static(bytemuck::cast_slice(numbers)), dtype: T::DTYPE }
    }
}

impl<T: Number + Send + Sync> From<Arc<[T]>> for Memory {
    fn from(numbers: Arc<[T]>) -> Memory {
        Memory { bytes: Bytes::Shared(Arc::new(Typed(numbers))), dtype: T::DTYPE }
    }
}

impl<T: Number + Send + Sync> From<Vec<T>> for Memory {
    fn from(numbers: Vec<T>) -> Memory {
        Memory { bytes: Bytes::Shared(Arc::new(TypedVec(numbers))), dtype: T::DTYPE }
    }
}

/// One array of a data set: its rows are one field of the samples.
#[derive(Clone)]
pub struct Column {
    place: Place,
    element: Stored,
    rows: u64,
    row_bytes: usize,
    field: FieldSpec,
    divisor: f32,
}

#[derive(Clone)]
enum Place {
    File { file: Arc<File>, path: PathBuf, start: u64 },
    Memory(Memory),
}

impl Column {
    /// An array in memory; `shape` is that of one row, and the number of rows is what the memory is enough for.
    ///
    /// Pixels (`u8`, more than one a row) become `f32` from 0 to 1 and labels (whole numbers, one a row) become `i64`,
    /// as from files; see [`Dataset::stored`](crate::Dataset::stored) for the other way.
    pub fn memory(name: &str, numbers: impl Into<Memory>, shape: impl Into<Vec<usize>>) -> Result<Column> {
        let (memory, shape) = (numbers.into(), shape.into());
        let row_bytes = shape.iter().product::<usize>() * memory.dtype.bytes();
        let rows = whole_rows(name, memory.bytes().len(), memory.dtype.bytes(), &shape)?;
        let dtype = memory.dtype;
        let place = Place::Memory(memory);
        let Some(kind) = kind_of(dtype) else {
            // A type without a place in files is handed on as it is.
            let field = FieldSpec::new(name, dtype, shape);
            let element = Element::U8.into();
            return Ok(Column { place, element, rows, row_bytes, field, divisor: 1.0 });
        };
        Ok(Column::declared(
            name,
            place,
            Stored { element: kind, big_endian: cfg!(target_endian = "big") },
            rows,
            shape,
        ))
    }

    /// An array in memory that somebody else holds and counts: `bytes` gives its elements in C order for as long as the column is there,
    /// and a pipeline declares nothing for it. `shape` is that of one row; `kind` says what the array is for. Nothing is scaled.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset, FieldKind};
    /// use plimsoll_formats::Element;
    /// use std::sync::Arc;
    ///
    /// let pixels = Column::array("x", Arc::new(vec![0u8, 128, 255, 1]), Element::U8, [2], FieldKind::Numbers)?;
    /// let batch = Dataset::columns([pixels])?.batch(2).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(0).unwrap().get::<f32>()?, [0.0, 128.0, 255.0, 1.0]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// The bytes are no whole number of rows.
    pub fn array(
        name: &str,
        bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
        element: Element,
        shape: impl Into<Vec<usize>>,
        kind: FieldKind,
    ) -> Result<Column> {
        let shape = shape.into();
        let dtype = element.widened();
        let memory = Memory { bytes: Bytes::Borrowed(bytes), dtype };
        let rows = whole_rows(name, memory.bytes().len(), element.bytes(), &shape)?;
        let stored = Stored { element, big_endian: cfg!(target_endian = "big") };
        let column = Column::declared(name, Place::Memory(memory), stored, rows, shape);
        Ok(column.read_as(ReadAs { kind: Some(kind), scale: None }))
    }

    /// An array in a file, from byte `start` on; `shape` includes the rows.
    pub(crate) fn file(
        name: &str,
        file: File,
        path: PathBuf,
        start: u64,
        element: Stored,
        shape: &[usize],
    ) -> Column {
        let place = Place::File { file: Arc::new(file), path, start };
        let rows = shape.first().map_or(1, |&rows| rows as u64);
        Column::declared(name, place, element, rows, shape.get(1..).unwrap_or(&[]).to_vec())
    }

    fn declared(name: &str, place: Place, element: Stored, rows: u64, shape: Vec<usize>) -> Column {
        let (dtype, divisor) = declared_type(name, element, &shape);
        let row_bytes = shape.iter().product::<usize>() * element.element.bytes();
        Column { place, element, rows, row_bytes, field: FieldSpec::new(name, dtype, shape), divisor }
    }

    /// The same array with the element type of what it is for, if that is said, and with numbers of inputs scaled.
    pub(crate) fn read_as(mut self, read: ReadAs) -> Column {
        (self.field.dtype, self.divisor) = read.declared(&self.field, self.element, self.divisor);
        self
    }

    fn as_stored(&self) -> Column {
        let mut column = self.clone();
        if column.field.dtype != column.element.element.widened() && kind_of(column.field.dtype).is_some() {
            column.field.dtype = column.element.element.widened();
        }
        column.divisor = 1.0;
        column
    }

    fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::File { path, .. } => Some(path),
            Place::Memory(_) => None,
        }
    }

    /// Whether a row's bytes are the field's bytes.
    fn is_plain(&self) -> bool {
        self.divisor == 1.0 && (self.element.is(self.field.dtype) || kind_of(self.field.dtype).is_none())
    }

    fn read(&self, index: u64, bytes: &mut Vec<u8>, block: &mut Block, out: &mut [u8]) -> Result<()> {
        let at = index * self.row_bytes as u64;
        match &self.place {
            Place::Memory(memory) => {
                let row = &memory.bytes()[at as usize..at as usize + self.row_bytes];
                if self.is_plain() {
                    out.copy_from_slice(row);
                } else {
                    self.element.convert(row, self.field.dtype, self.divisor, out);
                }
            }
            Place::File { file, path, start } => {
                let failed = |error| Error::File(FileError::io(path, error).at(index));
                let at = start + at;
                // Rows larger than what is read ahead go to their place without a detour.
                if self.row_bytes * 2 > READ_AHEAD || at != block.last_end {
                    block.last_end = at + self.row_bytes as u64;
                    if self.is_plain() {
                        return read_at(file, out, at).map_err(failed);
                    }
                    bytes.resize(self.row_bytes, 0);
                    read_at(file, bytes, at).map_err(failed)?;
                    self.element.convert(bytes, self.field.dtype, self.divisor, out);
                    return Ok(());
                }
                block.last_end = at + self.row_bytes as u64;
                let have = block.start + block.bytes.len() as u64;
                if at < block.start || block.last_end > have {
                    let end = start + self.rows * self.row_bytes as u64;
                    block.bytes.resize((end - at).min(READ_AHEAD as u64) as usize, 0);
                    block.start = at;
                    read_at(file, &mut block.bytes, at).map_err(failed)?;
                }
                let row = &block.bytes[(at - block.start) as usize..][..self.row_bytes];
                if self.is_plain() {
                    out.copy_from_slice(row);
                } else {
                    self.element.convert(row, self.field.dtype, self.divisor, out);
                }
            }
        }
        Ok(())
    }
}

/// How many rows of a shape these bytes are.
fn whole_rows(name: &str, bytes: usize, element: usize, shape: &[usize]) -> Result<u64> {
    let row = shape.iter().product::<usize>() * element;
    if row == 0 || !bytes.is_multiple_of(row) {
        let what = format!("{bytes} bytes do not make whole rows of shape {shape:?}");
        return Err(Error::Stage(format!("column '{name}': {what}")));
    }
    Ok((bytes / row) as u64)
}

#[cfg(unix)]
pub(crate) fn read_at(file: &File, out: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, mut out: &mut [u8], mut at: u64) -> std::io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, at)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => (out, at) = (&mut out[n..], at + n as u64),
        }
    }
    Ok(())
}

/// The kind of number in a file that has this type in tensors; arrays of NumPy have no bf16.
fn kind_of(dtype: DType) -> Option<Element> {
    (dtype != DType::BF16).then(|| Element::from(dtype))
}

/// Whether an array of this name is what is to be learned.
fn is_label(name: &str) -> bool {
    let name = name.to_lowercase();
    // `y`, `y0` and `y_train` are labels; `years` are not.
    let rest = name.strip_prefix('y').map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', '-']))
        || ["label", "target", "mask"].iter().any(|start| name.starts_with(start))
}

/// What a stored array becomes in samples: labels (any whole numbers that are named `y…`, `label…`, `target…` or
/// `mask…`, or that are one a row) become `i64`; pixels (other `u8`) become `f32` divided by 255; other whole
/// numbers `i64`; doubles become `f32`; the rest stays.
pub(super) fn declared_type(name: &str, element: Stored, shape: &[usize]) -> (DType, f32) {
    use Element;
    match element.element {
        Element::U8 if !is_label(name) && !shape.is_empty() => (DType::F32, 255.0),
        kind if kind.is_integer() => (DType::I64, 1.0),
        Element::F64 => (DType::F32, 1.0),
        kind => (kind.widened(), 1.0),
    }
}

/// Refuses a row in which something is not a number: it would make the loss none, and nobody could say where it came from.
pub(super) fn refuse_nan(field: &FieldSpec, path: Option<&Path>, row: u64, bytes: &[u8]) -> Result<()> {
    let at = match field.dtype {
        DType::F32 => {
            bytes.chunks_exact(4).position(|x| f32::from_ne_bytes([x[0], x[1], x[2], x[3]]).is_nan())
        }
        DType::F64 => bytes
            .chunks_exact(8)
            .position(|x| x.first_chunk().is_some_and(|x: &[u8; 8]| f64::from_ne_bytes(*x).is_nan())),
        DType::F16 => bytes.chunks_exact(2).position(|x| half::f16::from_ne_bytes([x[0], x[1]]).is_nan()),
        _ => None,
    };
    let Some(at) = at else { return Ok(()) };
    let place = match field.shape.is_empty() {
        true => String::new(),
        false => format!(", element {at} of its row,"),
    };
    let what = format!("'{}'{place} is NaN, not a number", field.name);
    Err(match path {
        Some(path) => FileError::damaged_at(path, row, what).into(),
        None => Error::Step { stage: "source".into(), index: row, what },
    })
}

/// How an array is read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadAs {
    /// What it is for; without it, its name and type tell.
    pub kind: Option<FieldKind>,
    /// What numbers of inputs are multiplied by, if that is said.
    pub scale: Option<Scale>,
}

impl ReadAs {
    /// The type of a field in samples, and what its numbers are divided by.
    pub fn declared(self, field: &FieldSpec, element: Stored, divisor: f32) -> (DType, f32) {
        let (dtype, divisor, is_input) = match self.kind {
            Some(kind) => (kind.declared(element), 1.0, kind == FieldKind::Numbers),
            None => (field.dtype, divisor, !is_label(&field.name)),
        };
        match self.scale {
            Some(scale) if is_input && dtype.is_float() => (dtype, scale.divisor()),
            _ => (dtype, divisor),
        }
    }
}

/// Refuses an array whose rows hold nothing.
pub(super) fn refuse_nothing(field: &FieldSpec) -> Result<()> {
    match field.shape.contains(&0) {
        true => Err(Error::Stage(format!(
            "a row of '{}' has the shape {:?}: it holds nothing",
            field.name, field.shape
        ))),
        false => Ok(()),
    }
}

/// What is said of an array whose numbers are not handed on as they are.
pub(super) fn conversion(field: &FieldSpec, element: Stored, divisor: f32) -> Option<String> {
    let is_pixels = element.element == Element::U8 && field.dtype.is_float();
    (divisor != 1.0 || is_pixels)
        .then(|| format!("'{}': {} as {}, {}", field.name, element.element, field.dtype, divided(divisor)))
}

/// Refuses columns, by name and rows, that differ in their rows.
pub(super) fn equally_many_rows(mut columns: impl Iterator<Item = (String, u64)>) -> Result<()> {
    let Some((first, rows)) = columns.next() else { return Ok(()) };
    match columns.find(|(_, other)| *other != rows) {
        Some((name, other)) => Err(Error::Stage(format!(
            "{first} has {rows} rows and {name} has {other}; every sample needs a row of each"
        ))),
        None => Ok(()),
    }
}

/// Columns of equally many rows.
pub(crate) struct Arrays {
    columns: Vec<Column>,
    spec: Vec<FieldSpec>,
}

impl Arrays {
    pub fn new(columns: Vec<Column>) -> Result<Arrays> {
        equally_many_rows(columns.iter().map(|column| (format!("'{}'", column.field.name), column.rows)))?;
        columns.iter().try_for_each(|column| refuse_nothing(&column.field))?;
        let spec = columns.iter().map(|column| column.field.clone()).collect();
        Ok(Arrays { columns, spec })
    }
}

impl Source for Arrays {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        self.columns.first().map_or(0, |column| column.rows)
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        if scratch.blocks.len() < self.columns.len() {
            scratch.blocks.resize_with(self.columns.len(), Block::default);
        }
        for (field, column) in self.columns.iter().enumerate() {
            let block = &mut scratch.blocks[field];
            column.read(index, &mut scratch.bytes, block, out.bytes_mut(field))?;
            refuse_nan(&column.field, column.path(), index, out.bytes_mut(field))?;
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let note = |column: &Column| conversion(&column.field, column.element, column.divisor);
        self.columns.iter().filter_map(note).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.columns.iter().filter_map(|column| Some(column.path()?.to_owned())).collect()
    }

    fn white(&self) -> Option<f32> {
        let first = self.columns.first().filter(|column| column.element == Element::U8.into())?;
        Some(255.0 / first.divisor)
    }

    fn name(&self) -> String {
        let path = self.columns.iter().find_map(|column| match &column.place {
            Place::File { path, .. } => Some(path.display().to_string()),
            Place::Memory(_) => None,
        });
        path.unwrap_or_else(|| "the data in memory".to_owned())
    }

    fn held(&self) -> u64 {
        let held = |column: &Column| match &column.place {
            Place::Memory(memory) => memory.held(),
            Place::File { .. } => 0,
        };
        self.columns.iter().map(held).sum()
    }

    fn scratch_bytes(&self) -> u64 {
        let files = self.columns.iter().filter(|column| matches!(column.place, Place::File { .. }));
        let row = self.columns.iter().map(|column| column.row_bytes).max().unwrap_or(0);
        reading(files.count(), row)
    }

    fn stored(&self) -> Option<Arc<dyn Source>> {
        let columns: Vec<_> = self.columns.iter().map(Column::as_stored).collect();
        let spec = columns.iter().map(|column| column.field.clone()).collect();
        Some(Arc::new(Arrays { columns, spec }))
    }
}

/// What a thread needs that reads rows of so many files, of which the widest has so many bytes.
pub(super) fn reading(files: usize, row: usize) -> u64 {
    (files * READ_AHEAD + row) as u64
}
