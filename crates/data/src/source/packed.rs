//! Turns rows of compressed arrays into samples, from front to back.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_formats::{FileError, Stored};
use plimsoll_graph::DType;

use super::array::{ReadAs, conversion, declared_type, equally_many_rows, refuse_nan, refuse_nothing};
use super::{Stream, StreamSource};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, Sample, SampleMut};

/// So many bytes may lie behind the last row.
const BEHIND_MOST: usize = 1 << 20;

/// How a compressed array is opened at its first number.
type Open = Arc<dyn Fn() -> Result<Box<dyn Read + Send>> + Send + Sync>;

/// One array that can only be read from front to back.
#[derive(Clone)]
pub(crate) struct PackedColumn {
    pub path: PathBuf,
    pub open: Open,
    pub element: Stored,
    pub rows: u64,
    pub row_bytes: usize,
    pub field: FieldSpec,
    pub divisor: f32,
}

impl PackedColumn {
    pub fn new(name: &str, path: PathBuf, element: Stored, shape: &[usize], open: Open) -> PackedColumn {
        let rows = shape.first().map_or(1, |&rows| rows as u64);
        let shape = shape.get(1..).unwrap_or(&[]).to_vec();
        let (dtype, divisor) = declared_type(name, element, &shape);
        let row_bytes = shape.iter().product::<usize>() * element.element.bytes();
        PackedColumn {
            path,
            open,
            element,
            rows,
            row_bytes,
            field: FieldSpec::new(name, dtype, shape),
            divisor,
        }
    }

    /// The same array with the element type of what it is for, if that is said, and with numbers of inputs scaled.
    pub fn read_as(mut self, read: ReadAs) -> PackedColumn {
        (self.field.dtype, self.divisor) = read.declared(&self.field, self.element, self.divisor);
        self
    }
}

/// Compressed columns of equally many rows.
pub(crate) struct Packed {
    columns: Vec<PackedColumn>,
    packed: Vec<FieldSpec>,
    spec: Vec<FieldSpec>,
}

impl Packed {
    pub fn new(columns: Vec<PackedColumn>) -> Result<Packed> {
        equally_many_rows(columns.iter().map(|column| (column.path.display().to_string(), column.rows)))?;
        columns.iter().try_for_each(|column| refuse_nothing(&column.field))?;
        let spec: Vec<_> = columns.iter().map(|column| column.field.clone()).collect();
        let packed = columns.iter().map(|c| FieldSpec::new(&c.field.name, DType::U8, [c.row_bytes]));
        Ok(Packed { packed: packed.collect(), columns, spec })
    }
}

impl StreamSource for Packed {
    fn packed(&self) -> &[FieldSpec] {
        &self.packed
    }

    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn unpack(&self, packed: &Sample<'_>, out: &mut SampleMut<'_>) -> Result<()> {
        for (field, column) in self.columns.iter().enumerate() {
            column.element.convert(
                packed.bytes(field),
                column.field.dtype,
                column.divisor,
                out.bytes_mut(field),
            );
            if let Err(error) = refuse_nan(&column.field, Some(&column.path), 0, out.bytes_mut(field)) {
                // Which sample it is, is known to the caller.
                return Err(match error {
                    Error::File(FileError::Damaged { file, what, .. }) => {
                        Error::refused(format!("{}: {what}", file.display()))
                    }
                    other => other,
                });
            }
        }
        Ok(())
    }

    fn len(&self) -> Option<u64> {
        self.columns.first().map(|column| column.rows)
    }

    fn open(&self) -> Result<Box<dyn Stream>> {
        let open = |column: &PackedColumn| Ok(((column.open)()?, column.path.clone()));
        let readers = self.columns.iter().map(open).collect::<Result<_>>()?;
        Ok(Box::new(PackedStream { readers, next: 0, rows: StreamSource::len(self).unwrap_or(0) }))
    }

    fn notes(&self) -> Vec<String> {
        let note = |column: &PackedColumn| conversion(&column.field, column.element, column.divisor);
        self.columns.iter().filter_map(note).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.columns.iter().map(|column| column.path.clone()).collect()
    }

    fn name(&self) -> String {
        self.columns.first().map_or(String::new(), |column| column.path.display().to_string())
    }

    fn held(&self) -> u64 {
        // A decompressor keeps a window of 32 KiB, tables, and the buffer of its file.
        self.columns.len() as u64 * (128 << 10)
    }

    fn stored(&self) -> Option<Arc<dyn StreamSource>> {
        let mut columns = self.columns.clone();
        for column in &mut columns {
            (column.field.dtype, column.divisor) = (column.element.element.widened(), 1.0);
        }
        Packed::new(columns).ok().map(|source| Arc::new(source) as Arc<dyn StreamSource>)
    }
}

struct PackedStream {
    readers: Vec<(Box<dyn Read + Send>, PathBuf)>,
    next: u64,
    rows: u64,
}

impl Stream for PackedStream {
    fn next(&mut self, out: &mut SampleMut<'_>) -> Result<bool> {
        if self.next == self.rows {
            return Ok(false);
        }
        for (field, (reader, path)) in self.readers.iter_mut().enumerate() {
            let read = reader.read_exact(out.bytes_mut(field));
            read.map_err(|error| FileError::io(path, error).at(self.next))?;
        }
        if self.next + 1 == self.rows {
            self.finish()?;
        }
        self.next += 1;
        Ok(true)
    }
}

impl PackedStream {
    /// Reads to the ends of the files, where the checksums of what was read lie. Before the last row is handed out, so
    /// that no pass over damaged numbers succeeds.
    fn finish(&mut self) -> Result<()> {
        let mut block = [0; 512];
        for (reader, path) in &mut self.readers {
            let mut behind = 0;
            loop {
                let read = reader.read(&mut block);
                match read.map_err(|error| FileError::io(path, error).at(self.next))? {
                    0 => break,
                    read => behind += read,
                }
                if behind > BEHIND_MOST {
                    let what = "the file goes on far behind the numbers that its header promises";
                    return Err(FileError::damaged(path, what).into());
                }
            }
        }
        Ok(())
    }
}
