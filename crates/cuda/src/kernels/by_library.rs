//! Turns convolutions into what a library does fastest: products of matrices, or graphs of cuDNN.

use std::sync::Arc;

use plimsoll_device::backend::Call;
use plimsoll_graph::DType;

use super::fold::Fold;
use super::layout::turn;
use super::matmul::{Matrix, Product};
use super::patches::Patches;
use super::{Parts, padded};
use crate::Cuda;
use crate::dnn::{Case, Dnn, OF_CONV, Shape, Wanted};
use crate::error::Error;
use crate::launch::is_only_loading;

/// A convolution whose windows are single pixels, as a product of matrices: pixels by channels, channels by filters. None
/// where it is something else, or there is no library that would do it faster.
pub(super) fn as_product(
    cuda: &Cuda,
    wanted: Wanted,
    shape: &Shape,
    dtype: DType,
    [x, w, y]: [*mut u8; 3],
) -> Option<Product> {
    let single =
        shape.window == [1, 1] && shape.stride == [1, 1] && shape.pad == [(0, 0); 2] && shape.groups == 1;
    if !single || cuda.0.blas.is_none() {
        return None;
    }
    let pixels = shape.images * shape.out[0] * shape.out[1];
    let (channels, filters) = (shape.channels, shape.filters);
    let (x, w, y) = (
        Matrix::dense(x, dtype, channels),
        Matrix::dense(w, dtype, filters),
        Matrix::dense(y, dtype, filters),
    );
    Some(match wanted {
        Wanted::Output => Product::new(pixels, filters, channels, x, w, y),
        Wanted::Input => Product::new(pixels, channels, filters, y, w.turned(), x),
        Wanted::Filter => Product::new(channels, filters, pixels, x.turned(), y, w),
    })
}

/// The gradient at the input of a convolution whose windows lie side by side (a transposed convolution that enlarges), as
/// products: every pixel of the output is spread over one window. One product a row of the window, whose results are whole
/// rows of windows' rows. None where windows overlap, or rows are so short that most of a tile would be empty.
pub(super) fn as_products(
    cuda: &Cuda,
    shape: &Shape,
    dtype: DType,
    [dx, w, dy]: [*mut u8; 3],
) -> Option<impl Iterator<Item = Product>> {
    if !shape.are_side_by_side() || shape.out[1] < 32 || cuda.0.blas.is_none() {
        return None;
    }
    let Shape { images, out, channels, filters, window, .. } = *shape;
    // What a window has in a row, and all windows beside each other.
    let (part, row) = (window[1] * channels, out[1] * window[1] * channels);
    let pixels = Matrix { batch: out[1] * filters, ..Matrix::dense(dy, dtype, filters) };
    Some((0..window[0]).map(move |r| {
        let w = Matrix::dense(w, dtype, filters).beyond(r * part * filters).turned();
        let to = Matrix { batch: window[0] * row, ..Matrix::dense(dx, dtype, part) }.beyond(r * row);
        Product { batch: images * out[0], ..Product::new(out[1], part, filters, pixels, w, to) }
    }))
}

/// The bytes of the bias, once for every column of a window.
pub(super) fn biases_bytes(shape: &Shape, dtype: DType, bias: bool) -> usize {
    if bias { padded(shape.window[1] * shape.channels * dtype.bytes()) } else { 0 }
}

/// The scratch of a convolution by a library; none where none does it.
pub(super) fn library_scratch(
    cuda: &Cuda,
    wanted: Wanted,
    shape: &Shape,
    dtype: DType,
) -> Result<Option<usize>, Error> {
    // Any aligned address will do: what is chosen depends on sizes and alignment alone.
    let address = std::ptr::without_provenance_mut(4096);
    let patches = || Patches::of(cuda, wanted, shape, dtype).map(|patches| patches.scratch(cuda));
    let product = as_product(cuda, wanted, shape, dtype, [address; 3]).map(|product| product.scratch(cuda));
    match product.or_else(patches) {
        Some(scratch) => Ok(Some(scratch)),
        None => Ok(Planned::new(cuda, wanted, shape, dtype)?.map(|planned| planned.scratch())),
    }
}

/// A convolution by cuDNN, as it is or folded.
struct Planned {
    dnn: Arc<Dnn>,
    wanted: Wanted,
    /// What cuDNN is asked for: the folded shape, where it is folded.
    shape: Shape,
    dtype: DType,
    fold: Option<Fold>,
    workspace: usize,
}

impl Planned {
    /// None where cuDNN does not know the case.
    fn new(cuda: &Cuda, wanted: Wanted, shape: &Shape, dtype: DType) -> Result<Option<Planned>, Error> {
        let Some(dnn) = cuda.dnn()? else { return Ok(None) };
        let planned = |fold: Option<Fold>| {
            let shape = fold.map_or(*shape, |fold| fold.folded);
            let workspace = dnn.workspace(&Case::Conv(wanted, shape, dtype))?;
            Some(Planned { dnn: dnn.clone(), wanted, shape, dtype, fold, workspace })
        };
        let fold = Fold::of(shape, dtype).filter(|_| wanted != Wanted::Input);
        Ok(fold.and_then(|fold| planned(Some(fold))).or_else(|| planned(None)))
    }

    fn filter_bytes(&self) -> usize {
        self.shape.taps() * self.shape.filters * self.dtype.bytes()
    }

    /// The filter in cuDNN's order, folded images, and the engine's workspace.
    fn scratch(&self) -> usize {
        padded(self.filter_bytes()) + padded(self.image_bytes()) + self.workspace
    }

    fn image_bytes(&self) -> usize {
        self.fold.map_or(0, |fold| fold.image_bytes())
    }

    /// Puts it on the stream.
    ///
    /// # Safety
    /// As for [`super::Kernel::run`].
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>, [x, w, y]: [*mut u8; 3]) -> Result<(), Error> {
        let Planned { ref dnn, wanted, shape, dtype, .. } = *self;
        let mut parts = Parts::new(call);
        let (filter, images) = (parts.take(self.filter_bytes()), parts.take(self.image_bytes()));
        let workspace = parts.take(0);
        let (taps, filters) = (shape.taps(), shape.filters);
        // SAFETY: the caller's promise; the scratch holds the filter, the images and the workspace.
        unsafe {
            let x = match &self.fold {
                Some(fold) => {
                    fold.images(cuda, x, images)?;
                    images
                }
                None => x,
            };
            match &self.fold {
                _ if wanted == Wanted::Filter => {}
                Some(fold) => fold.filter(cuda, w, filter)?,
                None => turn(cuda, dtype, [taps, filters], w, filter)?,
            }
            if !is_only_loading() {
                let [at_x, at_w, at_y] = OF_CONV;
                let operands = [(at_x, x), (at_w, filter), (at_y, y)];
                dnn.run(cuda, &Case::Conv(wanted, shape, dtype), &operands, workspace, None)?;
            }
            match &self.fold {
                _ if wanted != Wanted::Filter => Ok(()),
                Some(fold) => fold.unfold_filter(cuda, filter, w),
                None => turn(cuda, dtype, [filters, taps], filter, w),
            }
        }
    }
}

/// A convolution by cuDNN; false where it does not know the case.
///
/// # Safety
/// As for [`super::Kernel::run`].
pub(super) unsafe fn dnn_run(
    cuda: &Cuda,
    call: &Call<'_>,
    wanted: Wanted,
    shape: &Shape,
    operands: [*mut u8; 3],
) -> Result<bool, Error> {
    let planned = Planned::new(cuda, wanted, shape, call.inputs[0].ty.dtype)?;
    let Some(planned) = planned.filter(|planned| planned.scratch() <= call.scratch_bytes) else {
        return Ok(false);
    };
    // SAFETY: the caller's promise.
    unsafe { planned.run(cuda, call, operands) }.map(|()| true)
}
