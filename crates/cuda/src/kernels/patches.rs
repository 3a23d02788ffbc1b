//! Turns a convolution whose windows lie side by side over images of few channels, such as the patches of a vision transformer, into a product.
//!
//! Tensor cores take channels by eight: of three channels a library leaves most of them idle, whatever the window. A whole window is a long row, and no pixel is in
//! two of them, so that the rows are as large as the images.

use plimsoll_graph::{DType, Shape as Lengths};

use super::fold::Fold;
use super::layout::{Strides, move_elements};
use super::matmul::{Matrix, Product};
use super::padded;
use super::strided::dense_strides;
use crate::Cuda;
use crate::dnn::{Shape, Wanted};
use crate::error::Error;

/// Channels that tensor cores take together.
const TOGETHER: usize = 8;

/// A convolution, or the gradient of its filter, over windows that lie side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patches {
    shape: Shape,
    dtype: DType,
    wanted: Wanted,
}

impl Patches {
    /// None where windows overlap or have gaps, or where a library does as well by itself.
    pub(super) fn of(cuda: &Cuda, wanted: Wanted, shape: &Shape, dtype: DType) -> Option<Patches> {
        let fits = shape.are_side_by_side() && !shape.channels.is_multiple_of(TOGETHER);
        let is_of_use = wanted != Wanted::Input && Fold::of(shape, dtype).is_none() && cuda.0.blas.is_some();
        (fits && is_of_use).then_some(Patches { shape: *shape, dtype, wanted })
    }

    fn windows(&self) -> usize {
        self.shape.images * self.shape.out[0] * self.shape.out[1]
    }

    /// The bytes of all windows as rows.
    fn bytes(&self) -> usize {
        padded(self.windows() * self.shape.taps() * self.dtype.bytes())
    }

    /// The product over rows that lie somewhere.
    fn product(&self, rows: *mut u8, [w, y]: [*mut u8; 2]) -> Product {
        let (windows, taps, filters) = (self.windows(), self.shape.taps(), self.shape.filters);
        let dense = |at, columns| Matrix::dense(at, self.dtype, columns);
        let (rows, w, y) = (dense(rows, taps), dense(w, filters), dense(y, filters));
        match self.wanted {
            Wanted::Filter => Product::new(taps, filters, windows, rows.turned(), y, w),
            _ => Product::new(windows, filters, taps, rows, w, y),
        }
    }

    /// Bytes for the rows and behind them for the product.
    pub(super) fn scratch(&self, cuda: &Cuda) -> usize {
        // Any aligned address will do: what is chosen depends on sizes and alignment alone.
        let address = std::ptr::without_provenance_mut(4096);
        self.bytes() + self.product(address, [address; 2]).scratch(cuda)
    }

    /// Puts windows as rows on the stream; gives the product over them, with the scratch and the bytes that are left for it.
    ///
    /// # Safety
    /// All must be live memory of the device: images, filter and result of as many elements as the shape says, and [`Patches::scratch`] bytes.
    pub(super) unsafe fn rows(
        &self,
        cuda: &Cuda,
        [x, w, y]: [*mut u8; 3],
        (scratch, bytes): (*mut u8, usize),
    ) -> Result<(Product, *mut u8, usize), Error> {
        let Shape { images, size, out, window, channels, .. } = self.shape;
        let rows: Lengths = [images, out[0], out[1], window[0], window[1] * channels].into();
        let line = size[1] * channels;
        let from: Strides =
            [size[0] * line, window[0] * line, window[1] * channels, line, 1].into_iter().collect();
        // SAFETY: the caller's promise; windows lie within the images.
        unsafe { move_elements(cuda, self.dtype, &rows, (x, &from), (scratch, &dense_strides(&rows))) }?;
        let behind = (scratch.wrapping_add(self.bytes()), bytes.saturating_sub(self.bytes()));
        Ok((self.product(scratch, [w, y]), behind.0, behind.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_lie_side_by_side_are_told_from_others() {
        let (window, stride, pad) = ([16, 16], [16, 16], [(0, 0); 2]);
        let patches = Shape { images: 2, size: [32, 48], out: [2, 3], window, stride, pad, ..Shape::EXAMPLE };
        assert!(patches.are_side_by_side());
        assert!(!Shape { stride: [8, 16], ..patches }.are_side_by_side());
        assert!(!Shape { pad: [(0, 0), (0, 1)], ..patches }.are_side_by_side());
        assert!(!Shape { size: [33, 48], ..patches }.are_side_by_side());
    }
}
