//! The logits of a linear layer with cross-entropy, a piece of the vocabulary at a time, and what follows from them.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::Scalar;
use plimsoll_graph::ops::{JointCrossEntropy, LinearCrossEntropyDims, LinearCrossEntropyGrad};

use super::rows::{Multiply, add_piece, differentiate};
use super::{dims_of, over_samples};
use crate::Cpu;
use crate::gemm::{Operand, Product, Shape};
use crate::kernels::carver::Carver;
use crate::kernels::gather::Indices;
use crate::kernels::lanes::{Place, Stored, Wide};

/// Logits of a piece: 16 MiB of f32.
const PIECE: usize = 1 << 22;

/// What of a call is computed.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    cap: Option<Scalar>,
    losses: bool,
    dx: bool,
    dw: bool,
}

impl Wanted {
    pub(super) fn losses(cap: Option<Scalar>) -> Wanted {
        Wanted { cap, losses: true, dx: false, dw: false }
    }

    pub(super) fn gradients(op: &LinearCrossEntropyGrad) -> Wanted {
        Wanted { cap: op.cap, losses: false, dx: op.dx, dw: op.dw }
    }

    pub(super) fn both(op: &JointCrossEntropy) -> Wanted {
        Wanted { cap: op.cap, losses: true, dx: op.dx, dw: true }
    }

    fn is_gradient(self) -> bool {
        self.dx || self.dw
    }
}

/// The parts of a call's scratch.
struct Room<T: Stored> {
    logits: *mut T::Wide,
    /// Sums of exponentials, a sample.
    totals: *mut T::Wide,
    /// Log-sums, where nobody else keeps them.
    lse: *mut T::Wide,
    /// The gradient of a piece, where it has another type than logits.
    slopes: *mut T,
    /// dx in the wide type, where that is another.
    sums: *mut T::Wide,
    products: *mut u8,
    n_products: usize,
    bytes: usize,
}

impl<T: Multiply> Room<T> {
    fn new(cpu: &Cpu, start: *mut u8, dims: LinearCrossEntropyDims, wanted: Wanted) -> Room<T> {
        let LinearCrossEntropyDims { rows, width, classes } = dims;
        let piece = dims.piece(PIECE);
        // The last piece may be smaller, and products of other sizes want other scratch.
        let sizes = [piece, if classes.is_multiple_of(piece) { piece } else { classes % piece }];
        let products = sizes.iter().flat_map(|&n| {
            let dx = wanted.dx.then_some(Shape { m: rows, n: width, k: n });
            let dw = wanted.dw.then_some(Shape { m: n, n: width, k: rows });
            [Some(Shape { m: rows, n, k: width }), dx, dw].into_iter().flatten()
        });
        let n_products = products.map(|shape| T::scratch(cpu, shape)).max().unwrap_or(0);
        let mut carver = Carver::new(start);
        let logits = carver.take::<T::Wide>(rows * piece);
        let totals = carver.take::<T::Wide>(if wanted.losses { rows } else { 0 });
        let lse = carver.take::<T::Wide>(if wanted.losses && wanted.is_gradient() { rows } else { 0 });
        let slopes = match T::EXACT {
            true => logits.cast::<T>(),
            false => carver.take::<T>(if wanted.is_gradient() { rows * piece } else { 0 }),
        };
        let sums = carver.take::<T::Wide>(if wanted.dx && !T::EXACT { rows * width } else { 0 });
        let products = carver.take::<u8>(n_products);
        Room { logits, totals, lse, slopes, sums, products, n_products, bytes: carver.used() }
    }
}

/// A call: its operands, the parts of its scratch, and where pieces are kept, if they are.
pub(super) struct Pieces<'a, T: Stored> {
    cpu: &'a Cpu,
    dims: LinearCrossEntropyDims,
    x: &'a [T],
    w: &'a [T],
    labels: Indices,
    room: Room<T>,
    cap: Option<T::Wide>,
    kept: Option<*mut T::Wide>,
}

impl<'a, T: Multiply> Pieces<'a, T> {
    /// Bytes of scratch of a call.
    pub(super) fn bytes(cpu: &Cpu, dims: LinearCrossEntropyDims, wanted: Wanted) -> usize {
        Room::<T>::new(cpu, std::ptr::null_mut(), dims, wanted).bytes
    }

    /// A call that computes what is wanted.
    ///
    /// # Safety
    /// As of [`Kernel::run`](crate::kernels::Kernel::run); the operands must be of `T`.
    pub(super) unsafe fn new(cpu: &'a Cpu, call: &Call<'a>, wanted: Wanted) -> Result<Pieces<'a, T>, Fault> {
        let dims = dims_of(call)?;
        // SAFETY: the labels are live indices.
        let labels = unsafe { Indices::checked(call, 2, dims.classes, "label") }?;
        let room = Room::new(cpu, call.scratch, dims, wanted);
        let cap = wanted.cap.map(|Scalar(cap)| T::Wide::of(cap));
        // SAFETY: the caller's promise.
        let [x, w] = [0, 1].map(|i| unsafe { call.inputs[i].slice::<T>() });
        Ok(Pieces { cpu, dims, x, w, labels, room, cap, kept: None })
    }

    /// The same with pieces of logits that are kept from losses to gradients in `dw`, where they fit: each lies where its own gradient of the layer will.
    /// Caps are written over logits, so that these would have to be made again.
    pub(super) fn kept_in(self, dw: *mut u8) -> Pieces<'a, T> {
        let fits = T::EXACT && self.dims.rows <= self.dims.width && self.cap.is_none();
        Pieces { kept: fits.then_some(dw.cast()), ..self }
    }

    /// Where log-sums are kept that leave no call.
    pub(super) fn own_lse(&self) -> Place<T::Wide> {
        Place::new(self.room.lse.cast())
    }

    /// Where pieces begin, with the classes of each.
    fn starts(&self) -> impl Iterator<Item = (usize, usize)> + use<T> {
        let (classes, piece) = (self.dims.classes, self.dims.piece(PIECE));
        (0..classes).step_by(piece).map(move |start| (start, piece.min(classes - start)))
    }

    /// Where the logits of a piece lie.
    fn place(&self, start: usize) -> *mut T::Wide {
        self.kept.map_or(self.room.logits, |kept| kept.wrapping_add(start * self.dims.width))
    }

    /// Makes the logits of a piece: all samples with the rows of the layer from `start` on.
    ///
    /// # Safety
    /// The operands must be live, and nobody else may use the place.
    unsafe fn make(&self, start: usize, n: usize) {
        let LinearCrossEntropyDims { rows, width, .. } = self.dims;
        // SAFETY: the place has room for a piece, kept or not; the parts of the scratch lie apart and have these sizes.
        unsafe {
            let logits = std::slice::from_raw_parts_mut(self.place(start), rows * n);
            let w = Operand::transposed(&self.w[start * width..(start + n) * width], width);
            let product = Product::one(Shape { m: rows, n, k: width }, Operand::plain(self.x, width), w);
            T::wide(self.cpu, product, logits, n, false, self.products());
        }
    }

    /// The scratch of products.
    ///
    /// # Safety
    /// One at a time.
    #[allow(clippy::mut_from_ref)]
    unsafe fn products(&self) -> &mut [u8] {
        // SAFETY: it is a part of the scratch with as many bytes.
        unsafe { std::slice::from_raw_parts_mut(self.room.products, self.room.n_products) }
    }

    /// The losses, and the log-sums of their exponentials.
    ///
    /// # Safety
    /// Both places must have a number a sample.
    pub(super) unsafe fn losses(&self, loss: Place<T::Wide>, lse: Place<T::Wide>) {
        let (cpu, rows, labels, cap) = (self.cpu, self.dims.rows, self.labels, self.cap);
        if rows == 0 {
            return;
        }
        // The label's logit stands where the loss will, the largest where the log-sum will.
        let totals = Place::<T::Wide>::new(self.room.totals.cast());
        for (start, n) in self.starts() {
            // SAFETY: the caller's promise.
            unsafe { self.make(start, n) };
            let logits = Place::<T::Wide>::new(self.place(start).cast());
            over_samples(cpu, rows, n, |first, count| {
                let x = logits.at(first * n);
                add_piece::<T::Wide>(
                    cpu.isa(),
                    x,
                    lse.at(first),
                    totals.at(first),
                    count,
                    n,
                    cap,
                    start == 0,
                );
                for r in 0..count {
                    // SAFETY: there is a label a sample; the piece holds its logit, and nobody else writes this sample's loss.
                    unsafe {
                        let label = labels.at(first + r);
                        if (start..start + n).contains(&label) {
                            loss.at(first + r).write(x.add(r * n + label - start).read());
                        }
                    }
                }
            });
        }
        over_samples(cpu, rows, 1, |first, count| {
            for r in first..first + count {
                // SAFETY: each sample is one task's alone, and all of it was written.
                unsafe {
                    let (top, log) = (lse.at(r).read(), totals.at(r).read().ln());
                    loss.at(r).write(log + (top - loss.at(r).read()));
                    lse.at(r).write(top + log);
                }
            }
        });
    }

    /// The gradients that are wanted, of log-sums and the gradients of losses.
    ///
    /// # Safety
    /// The places must have a number a sample, the outputs the sizes of the operands; where pieces are kept, all of them must be there.
    pub(super) unsafe fn gradients(
        &self,
        lse: Place<T::Wide>,
        dloss: Place<T::Wide>,
        dx: Option<*mut u8>,
        dw: Option<*mut u8>,
    ) {
        let (cpu, labels, cap) = (self.cpu, self.labels, self.cap);
        let LinearCrossEntropyDims { rows, width, .. } = self.dims;
        let slopes = Place::<T>::new(self.room.slopes.cast());
        let sums = dx.map(|dx| if T::EXACT { dx.cast::<T::Wide>() } else { self.room.sums });
        for (start, n) in self.starts() {
            if self.kept.is_none() {
                // SAFETY: the caller's promise.
                unsafe { self.make(start, n) };
            }
            let logits = Place::<T::Wide>::new(self.place(start).cast());
            over_samples(cpu, rows, n, |first, count| {
                let (i, lse, dloss) = (first * n, lse.at(first), dloss.at(first));
                let (x, out) = (logits.at(i), slopes.at(i));
                differentiate::<T>(cpu.isa(), x, labels, first, start, lse, dloss, out, count, n, cap);
            });
            // SAFETY: operands and outputs are of `T`; parts of the scratch lie apart and have these sizes; a piece that was kept is read no more.
            unsafe {
                let slopes = std::slice::from_raw_parts(self.room.slopes, rows * n);
                if let Some(sums) = sums {
                    let w = Operand::plain(&self.w[start * width..(start + n) * width], width);
                    let shape = Shape { m: rows, n: width, k: n };
                    let product = Product::one(shape, Operand::plain(slopes, n), w);
                    let sums = std::slice::from_raw_parts_mut(sums, rows * width);
                    T::wide(cpu, product, sums, width, start > 0, self.products());
                }
                if let Some(dw) = dw {
                    let shape = Shape { m: n, n: width, k: rows };
                    let x = Operand::plain(self.x, width);
                    let product = Product::one(shape, Operand::transposed(slopes, n), x);
                    let dw = dw.cast::<T>().add(start * width);
                    let dw = std::slice::from_raw_parts_mut(dw, n * width);
                    T::own(cpu, product, dw, width, self.products());
                }
            }
        }
        if let (Some(sums), Some(dx), false) = (sums, dx, T::EXACT) {
            let (sums, out) = (Place::<T::Wide>::new(sums.cast()), Place::<T>::new(dx));
            over_samples(cpu, rows, width, |first, count| {
                for i in first * width..(first + count) * width {
                    // SAFETY: each sample is one task's alone.
                    unsafe { out.at(i).write(T::narrow(sums.at(i).read())) };
                }
            });
        }
    }
}
