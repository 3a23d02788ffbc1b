//! A linear layer with cross-entropy: products of all samples with a piece of the vocabulary, and kernels over each piece.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::LinearCrossEntropyDims;
use plimsoll_graph::{DType, Type};

use super::Told;
use crate::Cuda;
use crate::error::Error;
use crate::kernels::{Matrix, Product, padded};
use crate::launch::{Args, Code, Grid};
use crate::memory::refusal_code;

const TEXT: &str = concat!(include_str!("../exp_sums.cu"), include_str!("by_classes.cu"));

/// Logits of a piece: 96 MiB of f32.
const PIECE: usize = 24 << 20;

/// A call with the places of everything it uses; addresses mean nothing where only bytes are counted.
pub(super) struct Pieces {
    dims: LinearCrossEntropyDims,
    dtype: DType,
    x: *mut u8,
    w: *mut u8,
    logits: *mut u8,
    slopes: *mut u8,
    top: *mut u8,
    total: *mut u8,
    /// dx in the accumulator's type.
    sums: *mut u8,
    dw: *mut u8,
    wants: [bool; 2],
    /// Bytes before the products' scratch.
    used: usize,
    products: *mut u8,
}

impl Pieces {
    /// A call, or the half of one: of losses, or of the outputs dx and dw as far as they are wanted.
    pub(super) fn new(
        types: &[&Type],
        at: [*mut u8; 2],
        scratch: *mut u8,
        outputs: Option<[Option<*mut u8>; 2]>,
    ) -> Result<Pieces, Error> {
        let dims = super::dims_of(types)?;
        let (dtype, wide) = (types[0].dtype, types[0].dtype.accumulator());
        let mut used = 0;
        let mut take = |elements: usize, of: DType| {
            let place = scratch.wrapping_add(used);
            used += padded(elements * of.bytes());
            place
        };
        let logits_of_piece = dims.rows * dims.piece(PIECE);
        let logits = take(logits_of_piece, wide);
        let rows = if outputs.is_none() { dims.rows } else { 0 };
        let (top, total) = (take(rows, wide), take(rows, wide));
        let [dx, dw] = outputs.unwrap_or_default();
        let is_narrow = dtype != wide;
        let slopes = match outputs.is_some() && is_narrow {
            true => take(logits_of_piece, dtype),
            false => logits,
        };
        let sums = match (dx, is_narrow) {
            (Some(_), true) => take(dims.rows * dims.width, wide),
            (dx, _) => dx.unwrap_or(std::ptr::null_mut()),
        };
        let products = scratch.wrapping_add(used);
        let wants = [dx.is_some(), dw.is_some()];
        let dw = dw.unwrap_or(std::ptr::null_mut());
        Ok(Pieces {
            dims,
            dtype,
            x: at[0],
            w: at[1],
            logits,
            slopes,
            top,
            total,
            sums,
            dw,
            wants,
            used,
            products,
        })
    }

    /// Where pieces begin, with the classes of each.
    fn starts(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (classes, piece) = (self.dims.classes, self.dims.piece(PIECE));
        (0..classes).step_by(piece).map(move |start| (start, piece.min(classes - start)))
    }

    /// The layer's rows of a piece.
    fn rows_of(&self, start: usize) -> Matrix {
        Matrix::dense(self.w, self.dtype, self.dims.width).beyond(start * self.dims.width)
    }

    /// logits = x wᵀ of a piece.
    fn forward(&self, start: usize, n: usize) -> Product {
        let LinearCrossEntropyDims { rows, width, .. } = self.dims;
        let x = Matrix::dense(self.x, self.dtype, width);
        let logits = Matrix::dense(self.logits, self.dtype.accumulator(), n);
        Product::new(rows, n, width, x, self.rows_of(start).turned(), logits)
    }

    /// dx of all pieces so far, and dw of this one, as far as they are wanted.
    fn backward(&self, start: usize, n: usize) -> impl Iterator<Item = Product> + use<> {
        let LinearCrossEntropyDims { rows, width, .. } = self.dims;
        let slopes = Matrix::dense(self.slopes, self.dtype, n);
        let sums = Matrix::dense(self.sums, self.dtype.accumulator(), width);
        let dx = Product {
            accumulate: start > 0,
            ..Product::new(rows, width, n, slopes, self.rows_of(start), sums)
        };
        let (x, dw) = (Matrix::dense(self.x, self.dtype, width), Matrix::dense(self.dw, self.dtype, width));
        let dw = Product::new(n, width, rows, slopes.turned(), x, dw.beyond(start * width));
        let [wants_dx, wants_dw] = self.wants;
        [wants_dx.then_some(dx), wants_dw.then_some(dw)].into_iter().flatten()
    }

    /// All scratch: parts, then what the hungriest product needs.
    pub(super) fn bytes(&self, cuda: &Cuda) -> usize {
        let of = |(start, n): (usize, usize)| {
            let products = std::iter::once(self.forward(start, n)).chain(self.backward(start, n));
            products.map(|product| product.scratch(cuda)).max().unwrap_or(0)
        };
        self.used + self.starts().map(of).max().unwrap_or(0)
    }

    fn args(&self, cuda: &Cuda, call: &Call<'_>, told: &Told, (start, n): (usize, usize)) -> Args {
        let LinearCrossEntropyDims { rows, width, classes } = self.dims;
        Args::new()
            .at(self.logits)
            .at(self.slopes)
            .at(told.labels)
            .at(self.top)
            .at(self.total)
            .at(told.loss)
            .at(told.lse)
            .at(told.dloss)
            .at(self.sums)
            .at(told.dx)
            .int(rows)
            .int(n)
            .int(start)
            .int(classes)
            .int(rows * width)
            .int(usize::from(start == 0))
            .int(usize::from(start + n == classes))
            .int(usize::from(told.cap.is_some()))
            .float(told.cap_or_one())
            .at(cuda.0.flag)
            .int(refusal_code(call.op.name()))
    }

    /// The losses, or the gradients. `scratch` are the bytes from where these begin.
    ///
    /// # Safety
    /// As of [`Kernel::run`](crate::kernels::Kernel::run), for the call that these are of.
    pub(super) unsafe fn run(
        &self,
        cuda: &Cuda,
        call: &Call<'_>,
        scratch: usize,
        told: &Told,
    ) -> Result<(), Error> {
        let LinearCrossEntropyDims { rows, width, .. } = self.dims;
        let code = Code::of("linear_cross_entropy", TEXT, self.dtype).with_type("I", told.labels_type);
        let rest = scratch.saturating_sub(self.used);
        let is_gradient = self.wants.contains(&true);
        for (start, n) in self.starts() {
            let args = self.args(cuda, call, told, (start, n));
            // SAFETY: the caller's promise.
            unsafe {
                self.forward(start, n).run(cuda, self.products, rest)?;
                let kernel = if is_gradient { "differentiate" } else { "add_piece" };
                if rows > 0 {
                    cuda.launch(&code, kernel, Grid::rows(rows, n), &args)?;
                }
                if is_gradient {
                    for product in self.backward(start, n) {
                        product.run(cuda, self.products, rest)?;
                    }
                }
            }
        }
        if self.wants[0] && self.dtype != self.dtype.accumulator() {
            let args = self.args(cuda, call, told, (0, 1));
            // SAFETY: the caller's promise.
            unsafe { cuda.launch(&code, "narrow_sums", Grid::each(rows * width), &args)? };
        }
        Ok(())
    }
}
