//! Reads the tables of a FlatBuffer from bytes of which nothing is trusted.
//!
//! Every offset is looked at before it is followed, so that a damaged file ends in an error. Nothing here is shared with what writes the
//! files: the one is a check of the other.

use crate::error::{Error, Result};

/// A table at a place of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    vtable: usize,
    slots: usize,
    what: &'static str,
}

/// The number of elements of a vector and where they begin.
type Place = (usize, usize);

fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

impl<'a> Table<'a> {
    /// A table in which every field is as by default.
    pub(crate) fn empty() -> Table<'a> {
        Table { bytes: &[], at: 0, vtable: 0, slots: 0, what: "options" }
    }

    /// The root of a file with an identifier.
    pub(crate) fn root(bytes: &'a [u8], identifier: &[u8; 4], what: &'static str) -> Result<Table<'a>> {
        let wrong = |why: &str| Error::damaged(what, why);
        if take(bytes, 4) != Some(*identifier) {
            return Err(wrong("it is no TensorFlow Lite file: the mark TFL3 is not at its beginning"));
        }
        let at = take(bytes, 0).map(u32::from_le_bytes).ok_or_else(|| wrong("it ends in its first bytes"))?;
        Table::at(bytes, at as usize, what)
    }

    fn at(bytes: &'a [u8], at: usize, what: &'static str) -> Result<Table<'a>> {
        let wrong = || Error::damaged(what, "a table lies outside of the file");
        let back = take(bytes, at).map(i32::from_le_bytes).ok_or_else(wrong)?;
        let vtable = usize::try_from(at as i64 - i64::from(back)).map_err(|_| wrong())?;
        let length = usize::from(take(bytes, vtable).map(u16::from_le_bytes).ok_or_else(wrong)?);
        if length < 4 || length % 2 != 0 || vtable.checked_add(length).is_none_or(|end| end > bytes.len()) {
            return Err(wrong());
        }
        Ok(Table { bytes, at, vtable, slots: (length - 4) / 2, what })
    }

    pub(crate) fn wrong(&self, why: impl Into<String>) -> Error {
        Error::damaged(self.what, why)
    }

    fn outside(&self) -> Error {
        self.wrong("a field lies outside of the file")
    }

    /// Where a field is; none where it is left out.
    fn field(&self, slot: u16) -> Result<Option<usize>> {
        if usize::from(slot) >= self.slots {
            return Ok(None);
        }
        let entry = take(self.bytes, self.vtable + 4 + 2 * usize::from(slot)).map(u16::from_le_bytes);
        match entry.ok_or_else(|| self.outside())? {
            0 => Ok(None),
            offset => Ok(Some(self.at + usize::from(offset))),
        }
    }

    fn fixed<const N: usize>(&self, slot: u16) -> Result<Option<[u8; N]>> {
        match self.field(slot)? {
            None => Ok(None),
            Some(at) => take(self.bytes, at).map(Some).ok_or_else(|| self.outside()),
        }
    }

    pub(crate) fn i8(&self, slot: u16, default: i8) -> Result<i8> {
        Ok(self.fixed(slot)?.map_or(default, i8::from_le_bytes))
    }

    pub(crate) fn u8(&self, slot: u16) -> Result<u8> {
        Ok(self.fixed(slot)?.map_or(0, u8::from_le_bytes))
    }

    pub(crate) fn i32(&self, slot: u16, default: i32) -> Result<i32> {
        Ok(self.fixed(slot)?.map_or(default, i32::from_le_bytes))
    }

    pub(crate) fn u32(&self, slot: u16) -> Result<u32> {
        Ok(self.fixed(slot)?.map_or(0, u32::from_le_bytes))
    }

    pub(crate) fn f32(&self, slot: u16, default: f32) -> Result<f32> {
        Ok(self.fixed(slot)?.map_or(default, f32::from_le_bytes))
    }

    pub(crate) fn flag(&self, slot: u16) -> Result<bool> {
        Ok(self.u8(slot)? != 0)
    }

    /// Where what a field points to is.
    fn followed(&self, slot: u16) -> Result<Option<usize>> {
        let Some(at) = self.field(slot)? else { return Ok(None) };
        let offset = take(self.bytes, at).map(u32::from_le_bytes).ok_or_else(|| self.outside())?;
        at.checked_add(offset as usize).map(Some).ok_or_else(|| self.outside())
    }

    fn vector(&self, slot: u16, element: usize) -> Result<Option<Place>> {
        let Some(at) = self.followed(slot)? else { return Ok(None) };
        let n = take(self.bytes, at).map(u32::from_le_bytes).ok_or_else(|| self.outside())? as usize;
        let end = n.checked_mul(element).and_then(|bytes| bytes.checked_add(at + 4));
        match end.is_some_and(|end| end <= self.bytes.len()) {
            true => Ok(Some((n, at + 4))),
            false => Err(self.wrong("a list is longer than the file")),
        }
    }

    /// The bytes of a vector, in place.
    pub(crate) fn bytes(&self, slot: u16) -> Result<Option<&'a [u8]>> {
        Ok(self.vector(slot, 1)?.map(|(n, at)| &self.bytes[at..at + n]))
    }

    fn list<const N: usize, T>(&self, slot: u16, of: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let Some((n, at)) = self.vector(slot, N)? else { return Ok(Vec::new()) };
        Ok(self.bytes[at..at + n * N].as_chunks::<N>().0.iter().map(|&bytes| of(bytes)).collect())
    }

    pub(crate) fn ints(&self, slot: u16) -> Result<Vec<i32>> {
        self.list(slot, i32::from_le_bytes)
    }

    pub(crate) fn longs(&self, slot: u16) -> Result<Vec<i64>> {
        self.list(slot, i64::from_le_bytes)
    }

    pub(crate) fn floats(&self, slot: u16) -> Result<Vec<f32>> {
        self.list(slot, f32::from_le_bytes)
    }

    pub(crate) fn text(&self, slot: u16) -> Result<String> {
        let bytes = self.bytes(slot)?.unwrap_or_default();
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    pub(crate) fn table(&self, slot: u16, what: &'static str) -> Result<Option<Table<'a>>> {
        self.followed(slot)?.map(|at| Table::at(self.bytes, at, what)).transpose()
    }

    pub(crate) fn tables(&self, slot: u16, what: &'static str) -> Result<Vec<Table<'a>>> {
        let Some((n, at)) = self.vector(slot, 4)? else { return Ok(Vec::new()) };
        let one = |i: usize| {
            let at = at + 4 * i;
            let offset = take(self.bytes, at).map(u32::from_le_bytes).ok_or_else(|| self.outside())?;
            let at = at.checked_add(offset as usize).ok_or_else(|| self.outside())?;
            Table::at(self.bytes, at, what)
        };
        (0..n).map(one).collect()
    }
}
