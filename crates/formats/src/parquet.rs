//! Turns a Parquet file of numbers into rows, from front to back.
//!
//! Built only with the feature `parquet`. Columns are decoded a thousand rows at a time, so that memory is bounded by the
//! pages of the file, not by its row groups. Of nested columns only plain ones are read; a missing value is damage.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::basic::Type;
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::DataType;
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};

use crate::{Element, FileError, Result};

/// Rows that are decoded at a time.
const BLOCK: usize = 1024;
/// What the decoder of a column keeps at most: a page, its decompressed form and a dictionary, as writers limit them.
const DECODER: u64 = 4 << 20;

/// An open file.
#[derive(Clone)]
pub struct Table {
    reader: Arc<SerializedFileReader<File>>,
    path: PathBuf,
    columns: Vec<(String, Element)>,
    /// Where each of them is in the file.
    places: Vec<usize>,
    rows: u64,
}

/// Runs what decodes foreign bytes; what it panics about is damage as well.
fn guarded<T>(path: &Path, f: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(|error| FileError::damaged(path, error.to_string())),
        Err(_) => {
            Err(FileError::damaged(path, "the Parquet file is damaged beyond what its decoder expects"))
        }
    }
}

impl Table {
    /// Reads the footer of a file, of which all columns are wanted.
    pub fn open(path: &Path) -> Result<Table> {
        Table::open_with(path, |_| true)
    }

    /// Reads the footer of a file, of which the columns of some names are wanted; others may hold anything.
    pub fn open_with(path: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Table> {
        let file = File::open(path).map_err(|error| FileError::io(path, error))?;
        let reader = guarded(path, || SerializedFileReader::new(file))?;
        let metadata = reader.metadata().file_metadata();
        let (mut columns, mut places) = (Vec::new(), Vec::new());
        let all = metadata.schema_descr().columns().iter().enumerate();
        for (place, column) in all.filter(|(_, column)| is_wanted(column.name())) {
            let kind = match column.physical_type() {
                Type::BOOLEAN => Element::Bool,
                Type::INT32 => Element::I32,
                Type::INT64 => Element::I64,
                Type::FLOAT => Element::F32,
                Type::DOUBLE => Element::F64,
                other => {
                    let what =
                        format!("column '{}' is of type {other}; only numbers are read", column.name());
                    return Err(FileError::unsupported(path, what));
                }
            };
            if column.max_rep_level() > 0 {
                let what = format!("column '{}' holds lists; only plain numbers are read", column.name());
                return Err(FileError::unsupported(path, what));
            }
            columns.push((column.name().to_owned(), kind));
            places.push(place);
        }
        let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
        Ok(Table { path: path.to_owned(), columns, places, rows, reader: Arc::new(reader) })
    }

    /// The names of all columns of a file, whatever they hold.
    pub fn names(path: &Path) -> Result<Vec<String>> {
        let file = File::open(path).map_err(|error| FileError::io(path, error))?;
        let reader = guarded(path, || SerializedFileReader::new(file))?;
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        Ok(columns.iter().map(|column| column.name().to_owned()).collect())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names and types of the columns.
    pub fn columns(&self) -> &[(String, Element)] {
        &self.columns
    }

    /// How many rows there are.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes that decoding takes at most, as far as the footer tells.
    pub fn held(&self) -> u64 {
        let groups = self.reader.metadata().row_groups();
        let column = |at: usize| {
            let sizes = groups.iter().filter_map(|group| group.columns().get(at));
            let most =
                sizes.map(|column| u64::try_from(column.uncompressed_size()).unwrap_or(0)).max().unwrap_or(0);
            (2 * most).min(DECODER) + 16 * BLOCK as u64
        };
        self.places.iter().copied().map(column).sum()
    }

    /// Starts at the first row.
    pub fn rows(&self) -> Rows {
        let (group, row) = (0, 0);
        Rows { table: self.clone(), group, readers: Vec::new(), block: Vec::new(), at: 0, in_block: 0, row }
    }
}

/// A pass over the rows of a table.
pub struct Rows {
    table: Table,
    /// The next row group to open.
    group: usize,
    readers: Vec<ColumnReader>,
    /// The decoded rows of each column.
    block: Vec<Vec<f64>>,
    at: usize,
    in_block: usize,
    row: u64,
}

impl Rows {
    /// Writes the numbers of the next row, one a column; answers `false` at the end.
    pub fn next(&mut self, out: &mut [f64]) -> Result<bool> {
        while self.at == self.in_block {
            if !self.decode()? {
                return Ok(false);
            }
        }
        for (slot, column) in out.iter_mut().zip(&self.block) {
            *slot = column[self.at];
        }
        (self.at, self.row) = (self.at + 1, self.row + 1);
        Ok(true)
    }

    /// Decodes the next rows of every column; answers `false` at the end of the file.
    fn decode(&mut self) -> Result<bool> {
        let Rows { table, group, readers, block, row, .. } = self;
        let columns = table.columns.len();
        block.resize_with(columns, Vec::new);
        loop {
            if readers.is_empty() {
                if *group == table.reader.num_row_groups() {
                    return Ok(false);
                }
                let open = || {
                    let rows = table.reader.get_row_group(*group)?;
                    let places = table.places.iter();
                    places.map(|&column| rows.get_column_reader(column)).collect::<Result<_, _>>()
                };
                *readers = guarded(&table.path, open).map_err(|error| error.at(*row))?;
                *group += 1;
            }
            let mut found = None;
            for (at, (reader, values)) in readers.iter_mut().zip(block.iter_mut()).enumerate() {
                let read =
                    guarded(&table.path, || read_block(reader, values)).map_err(|error| error.at(*row))?;
                let (name, path) = (&table.columns[at].0, &table.path);
                if values.len() != read {
                    let what = format!("column '{name}' lacks a value near this row");
                    return Err(FileError::damaged_at(path, *row, what));
                }
                if *found.get_or_insert(read) != read {
                    return Err(FileError::damaged_at(path, *row, format!("column '{name}' ends too early")));
                }
            }
            match found {
                Some(1..) => {
                    (self.at, self.in_block) = (0, found.unwrap_or(0));
                    return Ok(true);
                }
                _ => readers.clear(),
            }
        }
    }
}

/// Decodes up to a block of rows into `values`; answers how many rows, missing values included.
fn read_block(reader: &mut ColumnReader, values: &mut Vec<f64>) -> Result<usize, ParquetError> {
    fn read<T: DataType>(
        reader: &mut ColumnReaderImpl<T>,
        values: &mut Vec<f64>,
        number: impl Fn(&T::T) -> f64,
    ) -> Result<usize, ParquetError> {
        let (mut decoded, mut levels) = (Vec::with_capacity(BLOCK), Vec::new());
        let (rows, ..) = reader.read_records(BLOCK, Some(&mut levels), None, &mut decoded)?;
        values.extend(decoded.iter().map(number));
        Ok(rows)
    }
    values.clear();
    match reader {
        ColumnReader::BoolColumnReader(reader) => read(reader, values, |&x| f64::from(u8::from(x))),
        ColumnReader::Int32ColumnReader(reader) => read(reader, values, |&x| f64::from(x)),
        ColumnReader::Int64ColumnReader(reader) => read(reader, values, |&x| x as f64),
        ColumnReader::FloatColumnReader(reader) => read(reader, values, |&x| f64::from(x)),
        ColumnReader::DoubleColumnReader(reader) => read(reader, values, |&x| x),
        _ => Err(ParquetError::General("only numbers are read".into())),
    }
}

/// Writes a small table of floats and a column of whole numbers: for tests and examples.
pub fn write(path: &Path, names: &[&str], floats: &[Vec<f32>], label: &str, ints: &[i64]) -> Result<()> {
    use ::parquet::data_type::{FloatType, Int64Type};
    use ::parquet::file::properties::WriterProperties;
    use ::parquet::file::writer::SerializedFileWriter;
    use ::parquet::schema::parser::parse_message_type;

    let columns: String = names.iter().map(|name| format!("required float {name}; ")).collect();
    let schema = format!("message table {{ {columns} required int64 {label}; }}");
    let file = File::create(path).map_err(|error| FileError::io(path, error))?;
    guarded(path, || {
        let schema = Arc::new(parse_message_type(&schema)?);
        let mut writer =
            SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::builder().build()))?;
        let mut group = writer.next_row_group()?;
        let mut at = 0;
        while let Some(mut column) = group.next_column()? {
            match floats.get(at) {
                Some(values) => column.typed::<FloatType>().write_batch(values, None, None)?,
                None => column.typed::<Int64Type>().write_batch(ints, None, None)?,
            };
            column.close()?;
            at += 1;
        }
        group.close()?;
        writer.close()?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(path: &Path) -> Result<Vec<[f64; 3]>> {
        let (table, mut all) = (Table::open(path)?, Vec::new());
        let (mut rows, mut row) = (table.rows(), [0.0; 3]);
        while rows.next(&mut row)? {
            all.push(row);
        }
        Ok(all)
    }

    #[test]
    fn numbers_come_back_and_damage_is_named() {
        let path = std::env::temp_dir().join(format!("plimsoll-parquet-{}", std::process::id()));
        let floats = [(0..3000).map(|i| i as f32).collect::<Vec<_>>(), vec![0.5; 3000]];
        write(&path, &["a", "b"], &floats, "label", &(0..3000).map(|i| i % 7).collect::<Vec<_>>()).unwrap();
        let table = Table::open(&path).unwrap();
        assert_eq!((table.len(), table.columns()[2].clone()), (3000, ("label".to_owned(), Element::I64)));
        let all = rows(&path).unwrap();
        assert_eq!((all.len(), all[2500]), (3000, [2500.0, 0.5, 1.0]));

        let bytes = std::fs::read(&path).unwrap();
        for cut in (0..bytes.len()).step_by(bytes.len() / 40) {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            assert!(rows(&path).unwrap_err().to_string().contains("plimsoll-parquet"));
        }
        for at in (0..bytes.len()).step_by(bytes.len() / 200) {
            let mut mutated = bytes.clone();
            mutated[at] ^= 0x15;
            std::fs::write(&path, &mutated).unwrap();
            let _ = rows(&path);
        }
        std::fs::remove_file(path).unwrap();
    }
}
