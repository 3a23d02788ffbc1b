//! Batch buffers that many threads fill at once, and that are used again and again.
//!
//! A buffer goes round: [`Free`] → [`Opener`], which hands out disjoint [`Chunk`]s of rows to threads → [`Full`],
//! which can be read → [`Free`]. The types keep the rule that makes this sound: rows are written only through
//! chunks, no two chunks share a row, and nobody reads before every chunk is gone.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::recipe::Padded;
use crate::sample::{FieldSpec, Line, Sample, SampleMut};

/// The memory of one batch: each field in a block of its own, row after row, and the lengths of all rows.
struct Slot {
    spec: Arc<[FieldSpec]>,
    rows: usize,
    fields: Vec<*mut [Line]>,
    lens: *mut [u32],
    /// The number of each row's sample in its source.
    numbers: *mut [u64],
}

// SAFETY: The pointers own their memory. Access from several threads goes through `Chunk`s, which are disjoint, or
// through `Full`, which is alone.
unsafe impl Send for Slot {}
// SAFETY: As above; `Slot` itself has no method that touches the memory.
unsafe impl Sync for Slot {}

impl Drop for Slot {
    fn drop(&mut self) {
        for &field in &self.fields {
            // SAFETY: Made by `Box::into_raw` in `Free::new`, and freed only here.
            drop(unsafe { Box::from_raw(field) });
        }
        // SAFETY: As above.
        drop(unsafe { Box::from_raw(self.lens) });
        // SAFETY: As above.
        drop(unsafe { Box::from_raw(self.numbers) });
    }
}

/// A buffer that nobody uses.
pub(crate) struct Free(Arc<Slot>);

/// A buffer that is being filled.
pub(crate) struct Opener {
    slot: Arc<Slot>,
    next: usize,
}

/// Some rows of a buffer, for one thread to write.
pub(crate) struct Chunk {
    slot: Arc<Slot>,
    start: usize,
    count: usize,
}

/// A buffer whose rows are written.
pub(crate) struct Full(Arc<Slot>);

/// Bytes of a buffer of `rows` rows.
pub(crate) fn buffer_bytes(spec: &[FieldSpec], rows: usize) -> u64 {
    let field = |field: &FieldSpec| (field.bytes() as u64).saturating_mul(rows as u64).next_multiple_of(64);
    spec.iter().map(field).sum::<u64>() + (4 * rows * spec.len() + 8 * rows) as u64
}

impl Free {
    pub fn new(spec: &Arc<[FieldSpec]>, rows: usize) -> Free {
        let field = |field: &FieldSpec| {
            let lines = (field.bytes() * rows).div_ceil(64);
            Box::into_raw(vec![bytemuck::Zeroable::zeroed(); lines].into_boxed_slice())
        };
        let lens: Box<[u32]> =
            (0..rows).flat_map(|_| spec.iter().map(|field| field.first() as u32)).collect();
        let fields = spec.iter().map(field).collect();
        let numbers = Box::into_raw(vec![0; rows].into_boxed_slice());
        Free(Arc::new(Slot { spec: spec.clone(), rows, fields, lens: Box::into_raw(lens), numbers }))
    }

    pub fn open(self) -> Opener {
        Opener { slot: self.0, next: 0 }
    }
}

impl Opener {
    /// The next `count` rows, fewer where the buffer ends.
    pub fn chunk(&mut self, count: usize) -> Chunk {
        let start = self.next;
        let count = count.min(self.slot.rows - start);
        self.next += count;
        Chunk { slot: self.slot.clone(), start, count }
    }

    /// The buffer for reading, or the opener again while a chunk is alive.
    pub fn full(mut self) -> Result<Full, Opener> {
        // Chunks hold the slot, so being alone with it means that none is left; a new one cannot appear, because
        // the opener is gone.
        match Arc::get_mut(&mut self.slot) {
            Some(_) => Ok(Full(self.slot)),
            None => Err(self),
        }
    }
}

impl Chunk {
    #[cfg(test)]
    fn count(&self) -> usize {
        self.count
    }

    /// The number of its first row in the buffer.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Says which sample of the source row `row` of this chunk is.
    pub fn set_number(&mut self, row: usize, number: u64) {
        assert!(row < self.count, "a chunk of {} rows has no row {row}", self.count);
        // SAFETY: The row lies inside the block, and no other chunk has it, as in `row`.
        unsafe { self.slot.numbers.cast::<u64>().add(self.start + row).write(number) };
    }

    /// Row `row` of this chunk.
    pub fn row(&mut self, row: usize) -> SampleMut<'_> {
        assert!(row < self.count, "a chunk of {} rows has no row {row}", self.count);
        let (at, spec) = (self.start + row, &self.slot.spec[..]);
        let field = |(spec, &field): (&FieldSpec, &*mut [Line])| {
            let bytes = spec.bytes();
            // SAFETY: Row `at` lies inside the block, since `at` is less than `Slot::rows`; no other chunk has this
            // row, and `&mut self` keeps this chunk from handing it out twice.
            unsafe { std::slice::from_raw_parts_mut(field.cast::<u8>().add(at * bytes), bytes) }
        };
        let bytes: SmallVec<_> = spec.iter().zip(&self.slot.fields).map(field).collect();
        // SAFETY: As above, for the lengths of this row.
        let lens = unsafe {
            std::slice::from_raw_parts_mut(self.slot.lens.cast::<u32>().add(at * spec.len()), spec.len())
        };
        SampleMut { spec, bytes, lens }
    }
}

impl Full {
    pub fn spec(&self) -> &[FieldSpec] {
        &self.0.spec
    }

    /// The bytes of a field, all rows.
    pub fn bytes(&self, field: usize) -> &[u8] {
        let bytes = self.0.spec[field].bytes() * self.0.rows;
        // SAFETY: The block holds this many initialised bytes, and a `Full` is alone with its slot: nobody writes.
        unsafe { std::slice::from_raw_parts(self.0.fields[field].cast::<u8>(), bytes) }
    }

    pub fn bytes_mut(&mut self, field: usize) -> &mut [u8] {
        let bytes = self.0.spec[field].bytes() * self.0.rows;
        // SAFETY: As in `bytes`, and `&mut self` is the only way to this memory.
        unsafe { std::slice::from_raw_parts_mut(self.0.fields[field].cast::<u8>(), bytes) }
    }

    /// The first extents of the fields, row after row.
    pub fn lens(&self) -> &[u32] {
        // SAFETY: As in `bytes`.
        unsafe { &*self.0.lens }
    }

    /// The number of each row's sample in its source.
    pub fn numbers(&self) -> &[u64] {
        // SAFETY: As in `bytes`.
        unsafe { &*self.0.numbers }
    }

    pub fn row(&self, row: usize) -> Sample<'_> {
        let spec = self.spec();
        let bytes = |field: usize| &self.bytes(field)[row * spec[field].bytes()..][..spec[field].bytes()];
        let lens = &self.lens()[row * spec.len()..(row + 1) * spec.len()];
        Sample { spec, bytes: (0..spec.len()).map(bytes).collect(), lens }
    }

    /// Moves the rows of a varying field together so that each is as long as the longest, or as far as batches are filled up, with
    /// zeros behind the shorter ones; says how long that is.
    pub fn pad(&mut self, field: usize, rows: usize, padded: &Padded) -> usize {
        let fields = self.spec().len();
        let (room, inner) = (self.spec()[field].bytes(), self.spec()[field].inner_bytes());
        let longest = (0..rows).map(|row| self.lens()[row * fields + field] as usize).max().unwrap_or(0);
        let longest = padded.length(longest, self.spec()[field].first());
        for row in 0..rows {
            let filled = self.lens()[row * fields + field] as usize * inner;
            // A row never moves up, and rows are moved from the first on: none is written over before its turn.
            let (from, to) = (row * room, row * longest * inner);
            let bytes = self.bytes_mut(field);
            bytes.copy_within(from..from + filled, to);
            bytes[to + filled..to + longest * inner].fill(0);
        }
        longest
    }

    pub fn free(self) -> Free {
        Free(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::DType;

    #[test]
    fn threads_fill_disjoint_rows_and_reading_waits_for_all_of_them() {
        let spec: Arc<[FieldSpec]> = [FieldSpec::new("x", DType::I64, [2])].into();
        let mut opener = Free::new(&spec, 7).open();
        let chunks = [opener.chunk(3), opener.chunk(3), opener.chunk(3)];
        assert_eq!(chunks.each_ref().map(Chunk::count), [3, 3, 1]);
        let Err(opener) = opener.full() else { panic!("read while chunks are out") };
        std::thread::scope(|scope| {
            for (number, mut chunk) in chunks.into_iter().enumerate() {
                scope.spawn(move || {
                    for row in 0..chunk.count() {
                        chunk.row(row).set(0, &[number as i64, row as i64]).unwrap();
                    }
                });
            }
        });
        let full = opener.full().ok().unwrap();
        assert_eq!(full.row(5).get::<i64>(0).unwrap(), [1, 2]);
        assert_eq!(full.row(6).get::<i64>(0).unwrap(), [2, 0]);
        assert_eq!(full.bytes(0).as_ptr() as usize % 64, 0);
        assert_eq!(full.free().open().chunk(9).count(), 7);
    }

    #[test]
    fn shorter_rows_are_padded_with_zeros_to_the_longest() {
        let spec: Arc<[FieldSpec]> = [FieldSpec::varying("t", DType::U8, [5])].into();
        let mut opener = Free::new(&spec, 3).open();
        let mut chunk = opener.chunk(3);
        for (row, text) in [&b"ab"[..], b"", b"xyz"].iter().enumerate() {
            chunk.row(row).bytes_mut(0).fill(9);
            chunk.row(row).set(0, text).unwrap();
        }
        drop(chunk);
        let mut full = opener.full().ok().unwrap();
        assert_eq!(full.pad(0, 3, &Padded::Longest), 3);
        assert_eq!(&full.bytes(0)[..9], b"ab\0\0\0\0xyz");
    }
}
