//! Files of rows, one a field, as a pipeline reads them: written a row at a time, their number in the end.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use plimsoll_formats::{Element, npy};

use crate::error::{Error, Result};

/// A field of a row: its name, the type of its numbers, how many there are.
pub(crate) type RowField = (&'static str, Element, usize);

/// The files of rows that are being written.
pub(crate) struct RowFiles {
    fields: Vec<RowField>,
    files: Vec<(PathBuf, BufWriter<File>)>,
}

impl RowFiles {
    /// Begins the files of a folder.
    pub(crate) fn create(folder: &Path, fields: Vec<RowField>) -> Result<RowFiles> {
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let mut files = Vec::new();
        for (name, element, numbers) in &fields {
            let path = folder.join(format!("{name}.npy"));
            let mut file = BufWriter::new(File::create(&path).map_err(Error::io(&path))?);
            // The number of rows is written when it is known; the header's size does not depend on it.
            npy::write_header(&mut file, *element, &[0, *numbers]).map_err(Error::io(&path))?;
            files.push((path, file));
        }
        Ok(RowFiles { fields, files })
    }

    /// Adds a row: the bytes of each field.
    pub(crate) fn write<'a>(&mut self, row: impl IntoIterator<Item = &'a [u8]>) -> Result<()> {
        for ((path, file), bytes) in self.files.iter_mut().zip(row) {
            file.write_all(bytes).map_err(Error::io(path))?;
        }
        Ok(())
    }

    /// Writes how many rows there are.
    pub(crate) fn finish(mut self, rows: u64) -> Result<()> {
        for ((path, file), (_, element, numbers)) in self.files.iter_mut().zip(&self.fields) {
            file.seek(SeekFrom::Start(0)).map_err(Error::io(path))?;
            npy::write_header(file, *element, &[rows as usize, *numbers]).map_err(Error::io(path))?;
            file.flush().map_err(Error::io(path))?;
            file.get_ref().sync_all().map_err(Error::io(path))?;
        }
        Ok(())
    }
}

/// Numbers as a file has them.
pub(crate) fn bytes_of<T: Copy, const N: usize>(numbers: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    numbers.iter().flat_map(|x| bytes(*x)).collect()
}
