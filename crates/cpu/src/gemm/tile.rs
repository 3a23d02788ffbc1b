//! Says what a micro-kernel gets (one packed tile of A, one panel of B) and what an instruction set must offer.
//!
//! A tile of A is stored in one of two layouts, so that packing is a copy in both cases and never a transposition:
//! *by row* (A's rows follow each other in memory along k: products, patches of a convolution) with the constant
//! row stride [`ROW_STRIDE`], or *by column* (A is given transposed: weight gradients) with the constant column
//! stride [`Simd::GROUP`]. Constant strides make every broadcast one load with an immediate offset.

use super::scalar::Scalar;

/// Longest stretch of k that is packed and multiplied in one go.
pub(crate) const KC: usize = 256;

/// Distance between the rows of a tile stored by row. One cache line more than `KC` so that the rows do not fall
/// into the same set of the first-level cache.
pub(crate) const ROW_STRIDE: usize = KC + 16;

/// Rows that any micro-kernel handles at most.
pub(crate) const MAX_ROWS: usize = 14;

/// Floats that hold one packed tile of A in either layout.
pub(crate) const TILE_FLOATS: usize =
    if MAX_ROWS * ROW_STRIDE > KC * 16 { MAX_ROWS * ROW_STRIDE } else { KC * 16 };

/// A stretch of a tile of A along k.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    /// Its first row and column.
    pub a: *const f32,
    /// Its columns.
    pub len: usize,
}

/// One call of a micro-kernel: `C[rows, cols] (+)= A_tile · B_panel`, then bias and relu where asked.
pub(crate) struct Tile {
    /// The tile of A in stretches along k.
    pub segments: *const Segment,
    /// Number of stretches.
    pub n_segments: usize,
    /// Floats from one row to the next (by row) or from one column to the next (by column).
    pub a_stride: usize,
    /// First row of the panel of B.
    pub b: *const f32,
    /// Floats from one row of the panel to the next.
    pub b_stride: usize,
    /// Floats from what is read of the panel to what the cache is asked for.
    pub b_ahead: usize,
    /// First column of C.
    pub c: *mut f32,
    /// Offset of every row of C in floats.
    pub rows: *const usize,
    /// Columns of C that exist; the panel is padded to whole vectors.
    pub cols: usize,
    /// Add to what C holds.
    pub accumulate: bool,
    /// One value a column, or null.
    pub bias: *const f32,
    /// Replace negative results by zero.
    pub relu: bool,
    /// Lines of memory to ask the cache for, one at every step of k.
    pub ahead: *const *const u8,
    /// Number of these lines.
    pub n_ahead: usize,
}

/// A micro-kernel for a fixed number of rows and vectors.
pub(crate) type TileFn = unsafe fn(&Tile);

/// What the packing and the block driver need of an instruction set.
///
/// # Safety
/// All functions must be called where the processor has the instruction set, with pointers valid for the stated
/// lengths. They are always inlined, so that they take on the features of the function they are called in.
pub(crate) trait Simd: Copy + 'static {
    /// Floats in a vector.
    const LANES: usize;
    /// Columns of a full panel of B: two vectors.
    const PANEL: usize = 2 * Self::LANES;
    /// Column stride of a tile stored by column.
    const GROUP: usize = Self::LANES;

    /// The micro-kernels of tiles stored by column, and by row: for each number of rows from 1 on, of one vector and of two.
    const KERNELS: [&'static [[TileFn; 2]]; 2];
    /// Most rows of a tile.
    const ROWS: usize = Self::KERNELS[0].len();

    /// The micro-kernel for `rows` rows (1 to `ROWS`) and `vectors` vectors (1 or 2).
    fn kernel(by_row: bool, rows: usize, vectors: usize) -> TileFn {
        Self::KERNELS[by_row as usize][rows - 1][vectors - 1]
    }

    /// `dst[i] = src[i]` for `i < n`.
    #[inline(always)]
    unsafe fn widen<T: Scalar>(src: *const T, dst: *mut f32, n: usize) {
        // SAFETY: the caller gives `n` readable and writable numbers.
        unsafe {
            let mut i = 0;
            while i + Self::LANES <= n {
                Self::widen_vector(src.add(i), dst.add(i));
                i += Self::LANES;
            }
            while i < n {
                let rest = Self::GROUP.min(n - i);
                Self::widen_group(src.add(i), dst.add(i), rest);
                i += rest;
            }
        }
    }

    /// The same for `n = LANES`.
    unsafe fn widen_vector<T: Scalar>(src: *const T, dst: *mut f32);

    /// The same for `n <= GROUP`, in one vector.
    unsafe fn widen_group<T: Scalar>(src: *const T, dst: *mut f32, n: usize);

    /// `dst[i] = src[i]` rounded, for `i < n`.
    unsafe fn narrow<T: Scalar>(src: *const f32, dst: *mut T, n: usize);

    /// `dst[k * stride + j] = src[j * ld + k]`, of (`src`, `ld`) and (`dst`, `stride`), for `k < n_k`, `j < n_j`; `n_j <= LANES`, and columns up to
    /// `LANES` are set to zero.
    unsafe fn transpose<T: Scalar>(src: (*const T, usize), n_k: usize, n_j: usize, dst: (*mut f32, usize));
}

/// Sets `n` floats to zero.
#[inline(always)]
pub(crate) unsafe fn zero(dst: *mut f32, n: usize) {
    // SAFETY: the caller says that `n` floats may be written.
    unsafe { std::ptr::write_bytes(dst, 0, n) }
}
