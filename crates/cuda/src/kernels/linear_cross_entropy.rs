//! A linear layer with cross-entropy: products of all samples with a piece of the vocabulary, and kernels over each piece.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{LinearCrossEntropy, LinearCrossEntropyDims, LinearCrossEntropyGrad};
use plimsoll_graph::{DType, Scalar, Type};

use super::{Kernel, Matrix, Product, padded};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};
use crate::memory::refusal_code;

const TEXT: &str = include_str!("linear_cross_entropy.cu");

/// Logits of a piece: 96 MiB of f32.
const PIECE: usize = 24 << 20;

/// A call with the places of everything it uses; addresses mean nothing where only bytes are counted.
struct Pieces {
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
    fn new(
        types: &[&Type],
        at: [*mut u8; 2],
        scratch: *mut u8,
        outputs: Option<[Option<*mut u8>; 2]>,
    ) -> Result<Pieces, Error> {
        let call = "linear_cross_entropy";
        let wrong = |why| Error::Library { library: "the CUDA backend", call, why };
        let dims = LinearCrossEntropyDims::new(types[0], types[1], types[2]).map_err(wrong)?;
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
    fn bytes(&self, cuda: &Cuda) -> usize {
        let of = |(start, n): (usize, usize)| {
            let products = std::iter::once(self.forward(start, n)).chain(self.backward(start, n));
            products.map(|product| product.scratch(cuda)).max().unwrap_or(0)
        };
        self.used + self.starts().map(of).max().unwrap_or(0)
    }

    /// Bytes of a call's scratch that its products have.
    fn rest(&self, call: &Call<'_>) -> usize {
        call.scratch_bytes.saturating_sub(self.used)
    }

    fn code(&self, labels: DType) -> Code<'static> {
        let labels = if labels == DType::I32 { DType::I32 } else { DType::I64 };
        Code::of("linear_cross_entropy", TEXT, self.dtype).with_type("I", labels)
    }
}

/// What the kernels of a piece are told.
struct Told {
    labels: *mut u8,
    loss: *mut u8,
    lse: *mut u8,
    dloss: *mut u8,
    dx: *mut u8,
    cap: Option<Scalar>,
}

impl Told {
    fn args(&self, cuda: &Cuda, call: &Call<'_>, pieces: &Pieces, start: usize, n: usize) -> Args {
        let LinearCrossEntropyDims { rows, width, classes } = pieces.dims;
        Args::new()
            .at(pieces.logits)
            .at(pieces.slopes)
            .at(self.labels)
            .at(pieces.top)
            .at(pieces.total)
            .at(self.loss)
            .at(self.lse)
            .at(self.dloss)
            .at(pieces.sums)
            .at(self.dx)
            .int(rows)
            .int(n)
            .int(start)
            .int(classes)
            .int(rows * width)
            .int(usize::from(start == 0))
            .int(usize::from(start + n == classes))
            .int(usize::from(self.cap.is_some()))
            .float(self.cap.map_or(1.0, |Scalar(cap)| cap))
            .at(cuda.0.flag)
            .int(refusal_code(call.op.name()))
    }

    /// Makes the logits of one piece of the classes after another, and does something with each: its arguments, where it starts, how
    /// many classes it has.
    ///
    /// # Safety
    /// As of [`Kernel::run`], for the call that `pieces` are of.
    unsafe fn each_piece(
        &self,
        cuda: &Cuda,
        call: &Call<'_>,
        pieces: &Pieces,
        mut body: impl FnMut(&Args, usize, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (start, n) in pieces.starts() {
            let args = self.args(cuda, call, pieces, start, n);
            // SAFETY: the caller's promise.
            unsafe { pieces.forward(start, n).run(cuda, pieces.products, pieces.rest(call))? };
            body(&args, start, n)?;
        }
        Ok(())
    }
}

/// An address that only alignment is read of.
const ANY: *mut u8 = 4096 as *mut u8;

impl Kernel for LinearCrossEntropy {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        Ok(Pieces::new(inputs, [ANY; 2], ANY, None)?.bytes(cuda))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let types: Vec<&Type> = call.inputs.iter().map(|x| x.ty).collect();
        let pieces = Pieces::new(&types, [call.inputs[0].ptr, call.inputs[1].ptr], call.scratch, None)?;
        if pieces.dims.rows == 0 {
            return Ok(());
        }
        let none = std::ptr::null_mut();
        let (loss, lse) = (call.outputs[0].ptr, call.outputs[1].ptr);
        let told = Told { labels: call.inputs[2].ptr, loss, lse, dloss: none, dx: none, cap: self.cap };
        let code = pieces.code(call.inputs[2].ty.dtype);
        let add = |args: &Args, _, n| {
            // SAFETY: the caller's promise.
            unsafe { cuda.launch(&code, "add_piece", Grid::rows(pieces.dims.rows, n), args) }
        };
        // SAFETY: the caller's promise.
        unsafe { told.each_piece(cuda, call, &pieces, add) }
    }
}

impl Kernel for LinearCrossEntropyGrad {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let outputs = [self.dx.then_some(ANY), self.dw.then_some(ANY)];
        Ok(Pieces::new(inputs, [ANY; 2], ANY, Some(outputs))?.bytes(cuda))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let types: Vec<&Type> = call.inputs.iter().map(|x| x.ty).collect();
        let mut outputs = call.outputs.iter().map(|y| y.ptr);
        let dx = if self.dx { outputs.next() } else { None };
        let dw = if self.dw { outputs.next() } else { None };
        let at = [call.inputs[0].ptr, call.inputs[1].ptr];
        let pieces = Pieces::new(&types, at, call.scratch, Some([dx, dw]))?;
        let LinearCrossEntropyDims { rows, width, .. } = pieces.dims;
        let told = Told {
            labels: call.inputs[2].ptr,
            loss: std::ptr::null_mut(),
            lse: call.inputs[3].ptr,
            dloss: call.inputs[4].ptr,
            dx: dx.unwrap_or(std::ptr::null_mut()),
            cap: self.cap,
        };
        let code = pieces.code(call.inputs[2].ty.dtype);
        let rest = pieces.rest(call);
        let differentiate = |args: &Args, start, n| {
            // SAFETY: the caller's promise.
            unsafe {
                if rows > 0 {
                    cuda.launch(&code, "differentiate", Grid::rows(rows, n), args)?;
                }
                for product in pieces.backward(start, n) {
                    product.run(cuda, pieces.products, rest)?;
                }
            }
            Ok(())
        };
        // SAFETY: the caller's promise.
        unsafe { told.each_piece(cuda, call, &pieces, differentiate)? };
        if let (Some(_), true) = (dx, pieces.dtype != pieces.dtype.accumulator()) {
            let args = told.args(cuda, call, &pieces, 0, 1);
            // SAFETY: the caller's promise.
            unsafe { cuda.launch(&code, "narrow_sums", Grid::each(rows * width), &args)? };
        }
        Ok(())
    }
}
