//! Says where the sums of a product go and what happens to them on the way there.

use super::epilogue::{Activation, Epilogue, RowHook};
use super::scalar::Kind;
use super::tile::Simd;
use half::{bf16, f16};

/// Where row r of the product lies in the output, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowMap {
    /// Rows at a fixed distance.
    Linear { ld: usize },
    /// Row r is pixel (r / (height * width), r / width % height, r % width) of a grid with these strides.
    Grid { height: usize, width: usize, image: usize, line: usize, pixel: usize },
}

impl RowMap {
    #[inline(always)]
    pub(super) fn offset(&self, row: usize) -> usize {
        match *self {
            RowMap::Linear { ld } => row * ld,
            RowMap::Grid { height, width, image, line, pixel } => {
                let y = row / width;
                y / height * image + y % height * line + row % width * pixel
            }
        }
    }
}

/// The output of a product and what happens to the sums on the way there.
#[derive(Clone, Copy)]
pub(crate) struct Dest<'a> {
    pub out: *mut u8,
    pub kind: Kind,
    pub map: RowMap,
    /// Offset of row 0, column 0 in the output, in elements.
    pub base: usize,
    /// Elements of a whole output row, by which the hook's row and column are told.
    pub row_len: usize,
    /// Row number of the output's first element, for the hook.
    pub first_row: usize,
    pub accumulate: bool,
    /// One value a column, or null.
    pub bias: *const f32,
    pub relu: bool,
    pub hook: Option<&'a dyn RowHook>,
}

// SAFETY: blocks write disjoint parts of the output, and everything else is read only.
unsafe impl Send for Dest<'_> {}
// SAFETY: as above.
unsafe impl Sync for Dest<'_> {}

impl<'a> Dest<'a> {
    /// The output at `out`, in whole rows of `row_len` elements, with an epilogue.
    pub(crate) fn new(
        out: *mut u8,
        kind: Kind,
        map: RowMap,
        row_len: usize,
        epilogue: &Epilogue<'a>,
    ) -> Dest<'a> {
        let bias = epilogue.bias.map_or(std::ptr::null(), |bias| bias.as_ptr());
        let relu = epilogue.activation == Activation::Relu;
        let (accumulate, hook) = (epilogue.accumulate, epilogue.hook);
        Dest { out, kind, map, base: 0, row_len, first_row: 0, accumulate, bias, relu, hook }
    }

    /// The same output for a product whose first column is column `col` of the whole rows.
    pub(crate) fn at_column(mut self, col: usize) -> Dest<'a> {
        self.base += col;
        if !self.bias.is_null() {
            self.bias = self.bias.wrapping_add(col);
        }
        self
    }

    /// Partial sums in f32, stored as they are.
    pub(crate) fn partial(out: *mut f32, ld: usize) -> Dest<'static> {
        let map = RowMap::Linear { ld };
        let bias = std::ptr::null();
        Dest {
            out: out.cast(),
            kind: Kind::F32,
            map,
            base: 0,
            row_len: ld.max(1),
            first_row: 0,
            accumulate: false,
            bias,
            relu: false,
            hook: None,
        }
    }
}

/// Calls the hook, if there is one, for `n` finished values at an offset of the output.
#[inline(always)]
pub(super) unsafe fn hook(dest: &Dest<'_>, offset: usize, values: *mut f32, n: usize) {
    if let Some(hook) = dest.hook {
        let (row, col) = (dest.first_row + offset / dest.row_len, offset % dest.row_len);
        // SAFETY: the caller gives `n` floats that nobody else uses.
        hook.apply(row, col, unsafe { std::slice::from_raw_parts_mut(values, n) });
    }
}

/// Applies the epilogue to `n` finished sums of a row, in place, and stores them.
#[inline(always)]
pub(super) unsafe fn finish_row<S: Simd>(dest: &Dest<'_>, row: usize, col: usize, sums: *mut f32, n: usize) {
    let offset = dest.base + dest.map.offset(row) + col;
    // SAFETY: the caller gives `n` sums; the output has the row and its columns.
    unsafe {
        if dest.accumulate {
            match dest.kind {
                Kind::F32 => (0..n).for_each(|j| *sums.add(j) += *dest.out.cast::<f32>().add(offset + j)),
                Kind::Bf16 => {
                    (0..n).for_each(|j| *sums.add(j) += (*dest.out.cast::<bf16>().add(offset + j)).to_f32());
                }
                Kind::F16 => {
                    (0..n).for_each(|j| *sums.add(j) += (*dest.out.cast::<f16>().add(offset + j)).to_f32());
                }
            }
        }
        if !dest.bias.is_null() {
            (0..n).for_each(|j| *sums.add(j) += *dest.bias.add(col + j));
        }
        if dest.relu {
            for j in 0..n {
                if *sums.add(j) < 0.0 {
                    *sums.add(j) = 0.0;
                }
            }
        }
        hook(dest, offset, sums, n);
        match dest.kind {
            Kind::F32 => S::narrow(sums, dest.out.cast::<f32>().add(offset), n),
            Kind::Bf16 => S::narrow(sums, dest.out.cast::<bf16>().add(offset), n),
            Kind::F16 => S::narrow(sums, dest.out.cast::<f16>().add(offset), n),
        }
    }
}
