//! Turns pieces of the operands into packed tiles of A and packed panels of B.
//!
//! The block driver knows operands through the two traits alone; convolutions implement them over images and
//! filters, which is what makes them implicit matrix products.

use super::scalar::Scalar;
use super::tile::{ROW_STRIDE, Segment, Simd, zero};
use std::ops::Range;

/// Which tile of the left operand is wanted: rows `row .. row + n_rows`, k from `k` to `k + n_k`. `origin` is the first row (by row) or
/// the first k (by column) that was prepared.
#[derive(Clone, Copy)]
pub(crate) struct TileAt {
    pub origin: usize,
    pub row: usize,
    pub n_rows: usize,
    pub k: usize,
    pub n_k: usize,
}

/// The left operand: hands out tiles of some rows by some stretch of k.
///
/// # Safety
/// `pack` is called with rows and k inside the operand's size and a `dst` of `TILE_FLOATS` floats.
pub(crate) trait Left: Copy + Send + Sync {
    /// Whether tiles are stored by row or by column.
    const BY_ROW: bool;

    /// Writes rows `row .. row + n_rows`, k from `k` to `k + n_k`.
    unsafe fn pack<S: Simd>(&self, row: usize, n_rows: usize, k: usize, n_k: usize, dst: *mut f32);

    /// Gets ready for tiles of these rows and k: called once a block by operands stored by row, with all of k, and
    /// once a step by operands stored by column. `own` are the operand's own floats of working memory.
    #[inline(always)]
    unsafe fn prepare<S: Simd>(&self, _rows: Range<usize>, _k: Range<usize>, _own: *mut f32) {}

    /// Where a tile begins that the micro-kernel can read where it lies, and the distance of its rows (or columns).
    #[inline(always)]
    fn in_place(&self, _row: usize, _k: usize) -> Option<(*const f32, usize)> {
        None
    }

    /// Says where the micro-kernel finds a tile, as stretches along k and the distance of rows (or columns), and
    /// packs it into `dst` for that unless it lies in memory already.
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: TileAt, dst: *mut f32, _own: *const f32, to: &mut Segments) -> usize {
        if let Some((data, distance)) = self.in_place(at.row, at.k) {
            return to.only(data, at.n_k, distance);
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { self.pack::<S>(at.row, at.n_rows, at.k, at.n_k, dst) };
        to.clear();
        to.push(dst, at.n_k);
        if Self::BY_ROW { ROW_STRIDE } else { S::GROUP }
    }

    /// Lists the lines of memory that [`Left::pack`] with these arguments will read, where they are out of order.
    #[inline(always)]
    fn lines(&self, _row: usize, _n_rows: usize, _k: usize, _n_k: usize, _lines: &mut Lines) {}
}

/// The right operand: hands out panels of a stretch of k by some columns.
///
/// # Safety
/// `pack` is called with k and columns inside the operand's size and a `dst` with room for all panels.
pub(crate) trait Right: Copy + Send + Sync {
    /// Writes k from `k` to `k + n_k`, columns `col .. col + n_cols` as panels one after the other, the last one
    /// padded with zeros to whole vectors.
    unsafe fn pack<S: Simd>(&self, k: usize, n_k: usize, col: usize, n_cols: usize, dst: *mut f32);

    /// Lists the lines of memory that [`Right::pack`] with these arguments will read.
    fn lines(&self, k: usize, n_k: usize, col: usize, n_cols: usize, lines: &mut Lines);

    /// The operand itself and its row stride, where it can be read as a panel without packing.
    fn direct(&self, _k: usize, _col: usize) -> Option<(*const f32, usize)> {
        None
    }
}

/// A matrix in memory, rows `ld` apart.
#[derive(Clone, Copy)]
pub(crate) struct Plain<T> {
    pub data: *const T,
    pub ld: usize,
}

/// A matrix in memory given as its transpose: element (i, j) lies at `j * ld + i`.
#[derive(Clone, Copy)]
pub(crate) struct Transposed<T> {
    pub data: *const T,
    pub ld: usize,
}

// SAFETY: the pointers are only read, inside calls that borrow the memory.
unsafe impl<T: Sync> Send for Plain<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Plain<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Send for Transposed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Transposed<T> {}

impl<T: Scalar> Left for Plain<T> {
    const BY_ROW: bool = true;

    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, row: usize, n_rows: usize, k: usize, n_k: usize, dst: *mut f32) {
        for i in 0..n_rows {
            // SAFETY: the rows and k lie inside the matrix, and a tile has room for them.
            unsafe { S::widen(self.data.add((row + i) * self.ld + k), dst.add(i * ROW_STRIDE), n_k) };
        }
    }

    #[inline(always)]
    fn in_place(&self, row: usize, k: usize) -> Option<(*const f32, usize)> {
        readable_in_place::<T>(self.ld).then(|| (self.data.wrapping_add(row * self.ld + k).cast(), self.ld))
    }

    #[inline(always)]
    fn lines(&self, row: usize, n_rows: usize, k: usize, n_k: usize, lines: &mut Lines) {
        lines.matrix(self.data, self.ld, row, n_rows, k, n_k);
    }
}

impl<T: Scalar> Left for Transposed<T> {
    const BY_ROW: bool = false;

    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, row: usize, n_rows: usize, k: usize, n_k: usize, dst: *mut f32) {
        for i in 0..n_k {
            // SAFETY: the rows and k lie inside the matrix, and a tile has room for them.
            unsafe { S::widen_group(self.data.add((k + i) * self.ld + row), dst.add(i * S::GROUP), n_rows) };
        }
    }

    #[inline(always)]
    fn in_place(&self, row: usize, k: usize) -> Option<(*const f32, usize)> {
        readable_in_place::<T>(self.ld).then(|| (self.data.wrapping_add(k * self.ld + row).cast(), self.ld))
    }

    #[inline(always)]
    fn lines(&self, row: usize, n_rows: usize, k: usize, n_k: usize, lines: &mut Lines) {
        lines.matrix(self.data, self.ld, k, n_k, row, n_rows);
    }
}

impl<T: Scalar> Right for Plain<T> {
    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, k: usize, n_k: usize, col: usize, n_cols: usize, dst: *mut f32) {
        let full = n_cols / S::PANEL * S::PANEL;
        let (tail, width) = (n_cols - full, (n_cols - full).next_multiple_of(S::LANES));
        // Row by row through all panels, because memory is fastest when read in order.
        for i in 0..n_k {
            // SAFETY: k and the columns lie inside the matrix, and `dst` has room for the panels.
            unsafe {
                let src = self.data.add((k + i) * self.ld + col);
                for j in (0..full).step_by(S::PANEL) {
                    S::widen(src.add(j), dst.add(j * n_k + i * S::PANEL), S::PANEL);
                }
                if tail > 0 {
                    let dst = dst.add(full * n_k + i * width);
                    S::widen(src.add(full), dst, tail);
                    zero(dst.add(tail), width - tail);
                }
            }
        }
    }

    #[inline(always)]
    fn lines(&self, k: usize, n_k: usize, col: usize, n_cols: usize, lines: &mut Lines) {
        lines.matrix(self.data, self.ld, k, n_k, col, n_cols);
    }

    fn direct(&self, k: usize, col: usize) -> Option<(*const f32, usize)> {
        // SAFETY: the driver asks for places inside the matrix only.
        (T::KIND == super::Kind::F32).then(|| (unsafe { self.data.add(k * self.ld + col) }.cast(), self.ld))
    }
}

impl<T: Scalar> Right for Transposed<T> {
    #[inline(always)]
    unsafe fn pack<S: Simd>(&self, k: usize, n_k: usize, col: usize, n_cols: usize, dst: *mut f32) {
        // SAFETY: k and the columns lie inside the matrix, and `dst` has room for the panels.
        unsafe {
            transpose_panels::<S, T>(self.data.add(col * self.ld + k), self.ld, 0, n_k, n_k, n_cols, dst)
        }
    }

    #[inline(always)]
    fn lines(&self, k: usize, n_k: usize, col: usize, n_cols: usize, lines: &mut Lines) {
        lines.matrix(self.data, self.ld, col, n_cols, k, n_k);
    }
}

/// Whether micro-kernels should read an operand with this row stride where it lies. Rows that lie a large power of
/// two apart would push each other out of the first-level cache, so those are packed.
#[inline(always)]
fn readable_in_place<T: Scalar>(ld: usize) -> bool {
    T::KIND == super::Kind::F32 && !(ld * size_of::<f32>()).is_multiple_of(1024)
}

/// Writes rows `k .. k + n_k` of panels of `all_k` rows each: element (k + i, j) is `src[j * ld + i]`.
///
/// # Safety
/// `src` has `n_cols` rows of `n_k` numbers, `dst` room for the panels.
#[inline(always)]
pub(crate) unsafe fn transpose_panels<S: Simd, T: Scalar>(
    src: *const T,
    ld: usize,
    k: usize,
    n_k: usize,
    all_k: usize,
    n_cols: usize,
    dst: *mut f32,
) {
    for j in (0..n_cols).step_by(S::LANES) {
        let panel = j / S::PANEL * S::PANEL;
        let width = (n_cols - panel).min(S::PANEL).next_multiple_of(S::LANES);
        // SAFETY: column `j` exists; the panel has a whole vector from it on.
        unsafe {
            let dst = dst.add(panel * all_k + k * width + j - panel);
            S::transpose((src.add(j * ld), ld), n_k, (n_cols - j).min(S::LANES), (dst, width));
        }
    }
}

/// Lines of memory that will be packed soon. The micro-kernels ask the cache for one of them at every step of k:
/// asked for in one go they would hold up the loads of the kernel itself, and unasked the packing would wait.
pub(crate) struct Lines {
    places: [*const u8; Lines::MOST],
    len: usize,
}

impl Lines {
    const MOST: usize = 512;

    #[inline(always)]
    pub(crate) fn new() -> Lines {
        Lines { places: [std::ptr::null(); Lines::MOST], len: 0 }
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Part `index` of `parts`, and its length.
    #[inline(always)]
    pub(crate) fn part(&self, index: usize, parts: usize) -> (*const *const u8, usize) {
        let at = |i: usize| self.len * i / parts;
        (self.places.as_ptr().wrapping_add(at(index)), at(index + 1) - at(index))
    }

    /// Adds the lines of `n` numbers; what is too much is left out.
    #[inline(always)]
    pub(crate) fn numbers<T>(&mut self, start: *const T, n: usize) {
        for byte in (0..n * size_of::<T>()).step_by(64) {
            if self.len < Lines::MOST {
                self.places[self.len] = start.cast::<u8>().wrapping_add(byte);
                self.len += 1;
            }
        }
    }

    /// Adds the lines of a part of a stored matrix.
    #[inline(always)]
    fn matrix<T>(&mut self, data: *const T, ld: usize, row: usize, n_rows: usize, col: usize, n_cols: usize) {
        for i in row..row + n_rows {
            self.numbers(data.wrapping_add(i * ld + col), n_cols);
        }
    }
}

/// Where a tile lies, in stretches along k.
pub(crate) struct Segments {
    list: [Segment; Segments::MOST],
    len: usize,
}

impl Segments {
    /// Stretches that a tile may consist of.
    pub(crate) const MOST: usize = 48;

    #[inline(always)]
    pub(crate) fn new() -> Segments {
        Segments { list: [Segment { a: std::ptr::null(), len: 0 }; Segments::MOST], len: 0 }
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, a: *const f32, len: usize) {
        self.list[self.len] = Segment { a, len };
        self.len += 1;
    }

    /// One stretch alone; returns the distance of its rows (or columns).
    #[inline(always)]
    pub(crate) fn only(&mut self, a: *const f32, len: usize, stride: usize) -> usize {
        self.clear();
        self.push(a, len);
        stride
    }

    #[inline(always)]
    pub(crate) fn list(&self) -> &[Segment] {
        &self.list[..self.len]
    }
}
