//! A frozen linear layer with cross-entropy: two products for some samples and all classes, and one kernel over their logits between them.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{FrozenCrossEntropy, LinearCrossEntropyDims};
use plimsoll_graph::{DType, Type};

use super::{Kernel, Matrix, Product, padded};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};
use crate::memory::refusal_code;

const TEXT: &str = concat!(include_str!("exp_sums.cu"), include_str!("frozen_cross_entropy.cu"));

/// Logits of a piece: 192 MiB of f32.
const PIECE: usize = 48 << 20;
/// Blocks of 128 by 256 results that keep a large card busy in the second product, whose sums are long and whose results are few. A fixed number,
/// so that results do not depend on the card's size.
const BLOCKS: usize = 396;

/// Bytes that its products may have beside that: all of it is to stay below 256 MiB for the largest vocabularies.
const OF_PRODUCTS: usize = 16 << 20;

/// An address that only alignment is read of.
const ANY: *mut u8 = 4096 as *mut u8;

/// A call with the places of everything it uses; addresses mean nothing where only bytes are counted.
struct Pieces {
    dims: LinearCrossEntropyDims,
    dtype: DType,
    x: *mut u8,
    w: *mut u8,
    dx: *mut u8,
    logits: *mut u8,
    /// Samples of a piece.
    samples: usize,
    /// Parts of the classes whose sums are apart, and the place of those.
    parts: usize,
    sums: *mut u8,
    /// Bytes before the products' scratch.
    used: usize,
    products: *mut u8,
}

impl Pieces {
    fn new(types: &[&Type], [x, w, dx, scratch]: [*mut u8; 4]) -> Result<Pieces, Error> {
        let call = "frozen_cross_entropy";
        let wrong = |why| Error::Library { library: "the CUDA backend", call, why };
        let dims = LinearCrossEntropyDims::new(types[0], types[1], types[2]).map_err(wrong)?;
        let (dtype, wide) = (types[0].dtype, types[0].dtype.accumulator());
        let samples = dims.samples(PIECE);
        let blocks = samples.div_ceil(128) * dims.width.div_ceil(256);
        // Parts are alike and begin at whole vectors, so that they are one batch of products.
        let is_even = |parts: &usize| dims.classes.is_multiple_of(parts * 16 / dtype.bytes());
        let parts = (1..=BLOCKS / blocks.max(1)).rev().find(is_even).unwrap_or(1);
        let logits_bytes = padded(samples * dims.classes * wide.bytes());
        let sums_bytes = if parts > 1 { padded(parts * samples * dims.width * wide.bytes()) } else { 0 };
        let used = logits_bytes + sums_bytes;
        Ok(Pieces {
            dims,
            dtype,
            x,
            w,
            dx,
            logits: scratch,
            samples,
            parts,
            sums: scratch.wrapping_add(logits_bytes),
            used,
            products: scratch.wrapping_add(used),
        })
    }

    /// Where pieces begin, with the samples of each.
    fn starts(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (rows, samples) = (self.dims.rows, self.samples);
        (0..rows).step_by(samples).map(move |start| (start, samples.min(rows - start)))
    }

    /// logits = x wᵀ of a piece, then dx of it: of each part of the classes, or of all.
    fn products(&self, start: usize, m: usize) -> [Product; 2] {
        let LinearCrossEntropyDims { width, classes, .. } = self.dims;
        let wide = self.dtype.accumulator();
        let x = Matrix::dense(self.x, self.dtype, width).beyond(start * width);
        let w = Matrix::dense(self.w, self.dtype, width);
        let forward =
            Product::new(m, classes, width, x, w.turned(), Matrix::dense(self.logits, wide, classes));
        // The gradient of a row of logits lies where that row begins.
        let k = classes / self.parts;
        let row = classes * wide.bytes() / self.dtype.bytes();
        let slopes = Matrix { batch: k, ..Matrix::dense(self.logits, self.dtype, row) };
        let w = Matrix { batch: k * width, ..w };
        let dx = match self.parts {
            1 => Matrix::dense(self.dx, self.dtype, width).beyond(start * width),
            _ => Matrix { batch: m * width, ..Matrix::dense(self.sums, wide, width) },
        };
        [forward, Product { batch: self.parts, ..Product::new(m, width, k, slopes, w, dx) }]
    }

    /// All scratch: parts, then what the hungriest product needs.
    fn bytes(&self, cuda: &Cuda) -> usize {
        let products = self.starts().flat_map(|(start, m)| self.products(start, m));
        self.used + products.map(|product| product.scratch(cuda)).max().unwrap_or(0).min(OF_PRODUCTS)
    }
}

impl Kernel for FrozenCrossEntropy {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        Ok(Pieces::new(inputs, [ANY; 4])?.bytes(cuda))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let types: Vec<&Type> = call.inputs.iter().map(|x| x.ty).collect();
        let [loss, dx] = [0, 1].map(|i| call.outputs[i].ptr);
        let pieces = Pieces::new(&types, [call.inputs[0].ptr, call.inputs[1].ptr, dx, call.scratch])?;
        let LinearCrossEntropyDims { width, classes, .. } = pieces.dims;
        let labels = if types[2].dtype == DType::I32 { DType::I32 } else { DType::I64 };
        let code = Code::of("frozen_cross_entropy", TEXT, pieces.dtype)
            .with_type("I", labels)
            .with("VEC", if classes.is_multiple_of(4) { 4 } else { 1 });
        let rest = call.scratch_bytes.saturating_sub(pieces.used);
        for (start, m) in pieces.starts() {
            let [forward, backward] = pieces.products(start, m);
            let args = Args::new()
                .at(pieces.logits)
                .at(call.inputs[2].ptr)
                .at(loss)
                .at(pieces.sums)
                .at(dx.wrapping_add(start * width * pieces.dtype.bytes()))
                .ints([start, classes, m * width, pieces.parts], 4, 0)
                .at(cuda.0.flag)
                .int(refusal_code(call.op.name()));
            // SAFETY: the caller's promise; the scratch has the bytes that were declared for these pieces.
            unsafe {
                forward.run(cuda, pieces.products, rest)?;
                cuda.launch(&code, "losses", Grid { threads: 512, ..Grid::rows(m, classes) }, &args)?;
                backward.run(cuda, pieces.products, rest)?;
                if pieces.parts > 1 {
                    cuda.launch(&code, "join", Grid::each(m * width), &args)?;
                }
            }
        }
        Ok(())
    }
}
