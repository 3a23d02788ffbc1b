//! A linear layer with cross-entropy in 16 bits: all logits of some samples at a time, then products of all samples with a piece of the classes.
//!
//! The gradients of all logits, which the second half reads, lie where the layer's own gradient will: they are no more where there are no more samples than
//! features. So logits are made once for losses and gradients together, and the scratch holds some samples of them.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::LinearCrossEntropyDims;
use plimsoll_graph::{DType, Type};

use super::Told;
use crate::Cuda;
use crate::error::Error;
use crate::kernels::{Matrix, Product, padded};
use crate::launch::{Args, Code, Grid};
use crate::memory::refusal_code;

const TEXT: &str = concat!(include_str!("../exp_sums.cu"), include_str!("by_samples.cu"));

/// Logits of some samples: 128 MiB of f32.
const LOGITS: usize = 32 << 20;
/// Gradients of logits of a piece of the classes: 48 MiB of 16 bits.
const PIECE: usize = 24 << 20;
/// Bytes that its products may have beside that: all of it is to stay below 256 MiB for the largest vocabularies.
const OF_PRODUCTS: usize = 16 << 20;

/// A call with the places of everything it uses; addresses mean nothing where only bytes are counted.
pub(super) struct Samples {
    dims: LinearCrossEntropyDims,
    dtype: DType,
    x: *mut u8,
    w: *mut u8,
    /// Logits of so many samples; where these are done with, a piece of the classes for all samples, and dx in f32.
    logits: *mut u8,
    samples: usize,
    staged: *mut u8,
    sums: *mut u8,
    /// Bytes before the products' scratch.
    used: usize,
    products: *mut u8,
}

impl Samples {
    /// Whether calls of these types are computed so.
    pub(super) fn takes(types: &[&Type]) -> bool {
        let dims = LinearCrossEntropyDims::new(types[0], types[1], types[2]);
        types[0].dtype.bytes() == 2 && dims.is_ok_and(|dims| 0 < dims.rows && dims.rows <= dims.width)
    }

    /// A call that they are of.
    pub(super) fn new(types: &[&Type], at: [*mut u8; 2], scratch: *mut u8) -> Result<Samples, Error> {
        let dims = super::dims_of(types)?;
        let (dtype, wide) = (types[0].dtype, types[0].dtype.accumulator());
        let samples = dims.samples(LOGITS);
        let staged = padded(dims.rows * dims.piece(PIECE) * dtype.bytes());
        let later = staged + padded(dims.rows * dims.width * wide.bytes());
        let used = padded(samples * dims.classes * wide.bytes()).max(later);
        Ok(Samples {
            dims,
            dtype,
            x: at[0],
            w: at[1],
            logits: scratch,
            samples,
            staged: scratch,
            sums: scratch.wrapping_add(staged),
            used,
            products: scratch.wrapping_add(used),
        })
    }

    /// logits = x wᵀ of `m` samples from `start` on.
    fn forward(&self, start: usize, m: usize) -> Product {
        let LinearCrossEntropyDims { width, classes, .. } = self.dims;
        let x = Matrix::dense(self.x, self.dtype, width).beyond(start * width);
        let w = Matrix::dense(self.w, self.dtype, width).turned();
        Product::new(m, classes, width, x, w, Matrix::dense(self.logits, self.dtype.accumulator(), classes))
    }

    /// dx of all pieces of the classes so far, of gradients of the one of `n` classes from `start` on.
    fn samples_gradient(&self, start: usize, n: usize, slopes: *mut u8) -> Product {
        let LinearCrossEntropyDims { rows, width, .. } = self.dims;
        let w = Matrix::dense(self.w, self.dtype, width).beyond(start * width);
        let sums = Matrix::dense(self.sums, self.dtype.accumulator(), width);
        let slopes = Matrix::dense(slopes, self.dtype, n);
        Product { accumulate: start > 0, ..Product::new(rows, width, n, slopes, w, sums) }
    }

    /// dw of a piece, of its gradients beside it.
    fn layers_gradient(&self, start: usize, n: usize, dw: *mut u8) -> Product {
        let LinearCrossEntropyDims { rows, width, .. } = self.dims;
        let slopes = Matrix::dense(self.staged, self.dtype, n).turned();
        let x = Matrix::dense(self.x, self.dtype, width);
        let dw = Matrix::dense(dw, self.dtype, width).beyond(start * width);
        Product::new(n, width, rows, slopes, x, dw)
    }

    /// Starts and lengths of parts of a whole.
    fn parts(whole: usize, part: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        (0..whole).step_by(part).map(move |start| (start, part.min(whole - start)))
    }

    /// All scratch: that of losses and of gradients alike, so that a product is the same one wherever it is made.
    pub(super) fn bytes(&self, cuda: &Cuda) -> usize {
        let place = super::ANY;
        let forward = Self::parts(self.dims.rows, self.samples).map(|(start, m)| self.forward(start, m));
        let backward = Self::parts(self.dims.classes, self.dims.piece(PIECE)).flat_map(|(start, n)| {
            [self.samples_gradient(start, n, place), self.layers_gradient(start, n, place)]
        });
        let products = forward.chain(backward).map(|product| product.scratch(cuda)).max().unwrap_or(0);
        self.used + products.min(OF_PRODUCTS)
    }

    /// Losses, gradients or both, as far as they have places.
    ///
    /// # Safety
    /// As of [`Kernel::run`](crate::kernels::Kernel::run), for the call that these are of.
    pub(super) unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>, told: &Told) -> Result<(), Error> {
        let LinearCrossEntropyDims { rows, width, classes } = self.dims;
        let piece = self.dims.piece(PIECE);
        let code = Code::of("cross_entropy_by_samples", TEXT, self.dtype)
            .with_type("I", told.labels_type)
            .with("VEC", if classes.is_multiple_of(4) { 4 } else { 1 });
        let rest = call.scratch_bytes.saturating_sub(self.used);
        for (start, m) in Self::parts(rows, self.samples) {
            let args = Args::new()
                .at(self.logits)
                .at(told.labels)
                .at(told.loss)
                .at(told.lse)
                .at(told.dloss)
                .at(told.dw)
                .ints([start, rows, classes, width, piece], 5, 0)
                .int(usize::from(!told.loss.is_null()))
                .int(usize::from(told.cap.is_some()))
                .float(told.cap_or_one())
                .at(cuda.0.flag)
                .int(refusal_code(call.op.name()));
            // SAFETY: the caller's promise; the scratch has the bytes that were declared.
            unsafe {
                self.forward(start, m).run(cuda, self.products, rest)?;
                cuda.launch(&code, "samples", Grid { threads: 512, ..Grid::rows(m, classes) }, &args)?;
            }
        }
        if told.dw.is_null() {
            return Ok(());
        }
        let moves = |from: *mut u8, count: usize| {
            Args::new().at(from).at(self.staged).at(self.sums).at(told.dx).int(count)
        };
        for (start, n) in Self::parts(classes, piece) {
            let slopes = Matrix::dense(told.dw, self.dtype, width).beyond(start * width).at;
            // SAFETY: as above; gradients of logits are read from beside where the product of their piece is written.
            unsafe {
                if !told.dx.is_null() {
                    self.samples_gradient(start, n, slopes).run(cuda, self.products, rest)?;
                }
                cuda.launch(&code, "stage", Grid::each((rows * n).div_ceil(8)), &moves(slopes, rows * n))?;
                self.layers_gradient(start, n, told.dw).run(cuda, self.products, rest)?;
            }
        }
        if !told.dx.is_null() {
            // SAFETY: as above.
            unsafe {
                cuda.launch(&code, "narrow_sums", Grid::each(rows * width), &moves(told.dw, rows * width))?
            };
        }
        Ok(())
    }
}
