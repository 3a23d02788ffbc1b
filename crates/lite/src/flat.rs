//! Turns bytes of a FlatBuffers file into tables, vectors and strings, and checks every offset on the way.
//!
//! Offsets to tables, vectors and strings are unsigned and forward, so that nothing can lead in a circle; only a table's offset to its
//! vtable may go back, and it is followed once. Nothing here allocates, recurses or believes a length that the file does not have.

use crate::error::{Error, Result};

fn damaged<T>(what: &'static str, at: usize) -> Result<T> {
    Err(Error::Damaged { what, at })
}

fn bytes_at<const N: usize>(file: &[u8], at: usize, what: &'static str) -> Result<[u8; N]> {
    match file.get(at..).and_then(|rest| rest.first_chunk::<N>()) {
        Some(bytes) => Ok(*bytes),
        None => damaged(what, at),
    }
}

fn u16_at(file: &[u8], at: usize, what: &'static str) -> Result<usize> {
    Ok(u16::from_le_bytes(bytes_at(file, at, what)?) as usize)
}

fn u32_at(file: &[u8], at: usize, what: &'static str) -> Result<usize> {
    Ok(u32::from_le_bytes(bytes_at(file, at, what)?) as usize)
}

/// Where the offset that stands at `at` leads.
fn follow(file: &[u8], at: usize, what: &'static str) -> Result<usize> {
    let offset = u32_at(file, at, what)?;
    match at.checked_add(offset) {
        Some(target) if offset > 0 && target < file.len() => Ok(target),
        _ => damaged(what, at),
    }
}

/// A table of the file.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    file: &'a [u8],
    at: usize,
    bytes: usize,
    /// The offsets of its fields.
    fields: &'a [[u8; 2]],
}

impl<'a> Table<'a> {
    /// The table that the file begins with, if it has the identifier.
    pub fn root(file: &'a [u8], identifier: &[u8; 4]) -> Result<Self> {
        if bytes_at::<4>(file, 4, "the file's identifier")? != *identifier {
            return damaged("the file's identifier", 4);
        }
        Self::at(file, follow(file, 0, "the root table")?, "the root table")
    }

    fn at(file: &'a [u8], at: usize, what: &'static str) -> Result<Self> {
        let back = i32::from_le_bytes(bytes_at(file, at, what)?);
        let vtable = usize::try_from(at as i64 - i64::from(back)).or_else(|_| damaged(what, at))?;
        let vtable_bytes = u16_at(file, vtable, what)?;
        let bytes = u16_at(file, vtable.saturating_add(2), what)?;
        let end = vtable.checked_add(vtable_bytes);
        let entries = end.and_then(|end| file.get(vtable + 4..end));
        match entries {
            Some(entries) if bytes >= 4 && vtable_bytes % 2 == 0 && bytes <= file.len() - at => {
                Ok(Self { file, at, bytes, fields: entries.as_chunks().0 })
            }
            _ => damaged(what, at),
        }
    }

    /// Where the field lies, if the table has it.
    fn field<const N: usize>(&self, field: usize, what: &'static str) -> Result<Option<usize>> {
        match self.fields.get(field).map_or(0, |offset| u16::from_le_bytes(*offset) as usize) {
            0 => Ok(None),
            offset if offset >= 4 && offset + N <= self.bytes => Ok(Some(self.at + offset)),
            _ => damaged(what, self.at),
        }
    }

    fn scalar<const N: usize>(&self, field: usize, what: &'static str) -> Result<Option<[u8; N]>> {
        self.field::<N>(field, what)?.map(|at| bytes_at(self.file, at, what)).transpose()
    }

    /// A byte.
    pub fn u8(&self, field: usize, default: u8, what: &'static str) -> Result<u8> {
        Ok(self.scalar::<1>(field, what)?.map_or(default, |bytes| bytes[0]))
    }

    /// A truth value: anything but zero is true.
    pub fn bool(&self, field: usize, what: &'static str) -> Result<bool> {
        Ok(self.u8(field, 0, what)? != 0)
    }

    /// A signed number.
    pub fn i32(&self, field: usize, default: i32, what: &'static str) -> Result<i32> {
        Ok(self.scalar(field, what)?.map_or(default, i32::from_le_bytes))
    }

    /// An unsigned number.
    pub fn u32(&self, field: usize, what: &'static str) -> Result<usize> {
        Ok(self.scalar(field, what)?.map_or(0, u32::from_le_bytes) as usize)
    }

    /// A long unsigned number.
    pub fn u64(&self, field: usize, what: &'static str) -> Result<u64> {
        Ok(self.scalar(field, what)?.map_or(0, u64::from_le_bytes))
    }

    /// A float.
    pub fn f32(&self, field: usize, what: &'static str) -> Result<f32> {
        Ok(self.scalar(field, what)?.map_or(0.0, f32::from_le_bytes))
    }

    /// A table within.
    pub fn table(&self, field: usize, what: &'static str) -> Result<Option<Table<'a>>> {
        let Some(at) = self.field::<4>(field, what)? else { return Ok(None) };
        Self::at(self.file, follow(self.file, at, what)?, what).map(Some)
    }

    /// The elements of a vector, each of `N` bytes; none if there is no vector.
    pub fn vector<const N: usize>(&self, field: usize, what: &'static str) -> Result<&'a [[u8; N]]> {
        let Some(at) = self.field::<4>(field, what)? else { return Ok(&[]) };
        let (_, elements) = elements::<N>(self.file, at, what)?;
        Ok(elements)
    }

    /// The tables of a vector.
    pub fn tables(&self, field: usize, what: &'static str) -> Result<Tables<'a>> {
        let Some(at) = self.field::<4>(field, what)? else {
            return Ok(Tables { file: self.file, at: 0, count: 0, what });
        };
        let (at, elements) = elements::<4>(self.file, at, what)?;
        Ok(Tables { file: self.file, at, count: elements.len(), what })
    }

    /// A text; an empty one if there is none.
    pub fn string(&self, field: usize, what: &'static str) -> Result<&'a str> {
        let bytes = self.vector::<1>(field, what)?.as_flattened();
        core::str::from_utf8(bytes).or_else(|_| damaged(what, self.at))
    }
}

/// Where a vector's elements begin, and the elements.
fn elements<'a, const N: usize>(
    file: &'a [u8],
    at: usize,
    what: &'static str,
) -> Result<(usize, &'a [[u8; N]])> {
    let at = follow(file, at, what)?;
    let count = u32_at(file, at, what)?;
    let bytes = count.checked_mul(N).and_then(|bytes| file.get(at + 4..)?.get(..bytes));
    match bytes {
        Some(bytes) => Ok((at + 4, bytes.as_chunks().0)),
        None => damaged(what, at),
    }
}

/// A vector of tables, each read when it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    file: &'a [u8],
    at: usize,
    count: usize,
    what: &'static str,
}

impl<'a> Tables<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Result<Table<'a>> {
        if index >= self.count {
            return damaged(self.what, self.at);
        }
        Table::at(self.file, follow(self.file, self.at + 4 * index, self.what)?, self.what)
    }
}
