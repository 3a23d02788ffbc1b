//! Sums, means, extremes and products over axes, and the index of the largest.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{ArgMax, ProdGrad, Reduce, ReduceKind};
use plimsoll_graph::{DType, Type};
use smallvec::SmallVec;

use super::Kernel;
use super::columns::Cut;
use super::element::too_many_axes;
use super::layout::around;
use super::strided::{MAX_RANK, Strided};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid, THREADS};

const TEXT: &str = include_str!("reduce.cu");
const COLUMN_SUMS: &str = concat!(include_str!("columns.cu"), include_str!("column_sums.cu"));
const PROD_GRAD: &str = include_str!("prod_grad.cu");
const ARGMAX: &str = include_str!("argmax.cu");
/// The first of the largest of so many elements is found by a block.
const LONG: usize = 128;

/// The axes that stay and those that go.
struct Folding {
    kept: Strided,
    folded: Strided,
    outputs: usize,
    count: usize,
}

impl Folding {
    fn new(x: &Type, axes: &[usize]) -> Folding {
        let own = x.shape.strides();
        let part = |goes: bool| {
            let chosen = (0..x.shape.rank()).filter(|axis| axes.contains(axis) == goes);
            let (lengths, strides): (SmallVec<[usize; 8]>, SmallVec<[usize; 8]>) =
                chosen.map(|axis| (x.shape[axis], own[axis])).unzip();
            (Strided::new(&lengths, &[strides]), lengths.iter().product())
        };
        let ((kept, outputs), (folded, count)) = (part(false), part(true));
        Folding { kept, folded, outputs, count }
    }

    /// Whether the elements of an output lie side by side.
    fn is_row(&self) -> bool {
        self.folded.strides[0].last() == Some(&1) || self.kept.rank() == 0
    }

    /// Pieces that the elements of an output are cut into: enough to keep a card busy, of some length each.
    fn pieces(&self) -> usize {
        let (busy, least) =
            if self.is_row() { (self.outputs, 4096) } else { (self.outputs.div_ceil(THREADS as usize), 64) };
        (Cuda::PARALLEL / busy.max(1)).clamp(1, (self.count / least).max(1))
    }

    /// The rows and columns of a dense matrix whose columns are folded, where it is that.
    fn matrix(&self) -> Option<[usize; 2]> {
        let plain = self.kept.rank() == 1
            && self.folded.rank() == 1
            && self.kept.strides[0][0] == 1
            && self.folded.strides[0][0] == self.outputs;
        plain.then_some([self.count, self.outputs])
    }

    fn args(&self, args: Args) -> Args {
        let one = |args: Args, s: &Strided| {
            args.int(s.rank()).ints(s.lengths.iter().copied(), MAX_RANK, 1).ints(
                s.strides[0].iter().copied(),
                MAX_RANK,
                0,
            )
        };
        one(one(args, &self.kept), &self.folded)
    }

    fn check(&self, x: &Type) -> Result<(), Error> {
        if self.kept.rank() > MAX_RANK || self.folded.rank() > MAX_RANK {
            return Err(too_many_axes(&x.shape));
        }
        Ok(())
    }
}

/// Whether a reduction is a sum of real numbers.
fn is_sum(op: &Reduce, dtype: DType) -> bool {
    matches!(op.kind, ReduceKind::Sum | ReduceKind::Mean) && dtype.is_float()
}

impl Kernel for Reduce {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let folding = Folding::new(inputs[0], &self.axes);
        folding.check(inputs[0])?;
        let bytes = inputs[0].dtype.accumulator().bytes();
        if let Some([rows, columns]) = folding.matrix()
            && is_sum(self, inputs[0].dtype)
        {
            return Ok(Cut::new(inputs[0].dtype, columns).pieces(rows) * columns * bytes);
        }
        let pieces = folding.pieces();
        Ok(if pieces > 1 { pieces * folding.outputs * bytes } else { 0 })
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        let folding = Folding::new(x.ty, &self.axes);
        folding.check(x.ty)?;
        if folding.outputs == 0 {
            return Ok(());
        }
        if let Some([rows, columns]) = folding.matrix()
            && is_sum(self, x.ty.dtype)
        {
            let pieces = Cut::new(x.ty.dtype, columns).pieces(rows);
            let aligned = (x.ptr as usize).is_multiple_of(16);
            let cut = if aligned { Cut::new(x.ty.dtype, columns) } else { Cut::single(columns) };
            let code = cut.code(Code::of("column_sums", COLUMN_SUMS, x.ty.dtype));
            let divide = usize::from(self.kind == ReduceKind::Mean);
            let args = Args::new()
                .at(x.ptr)
                .at(y.ptr)
                .at(call.scratch)
                .int(rows)
                .int(columns)
                .int(pieces)
                .int(divide);
            // SAFETY: the caller's promise; the scratch holds a sum for every piece and column.
            unsafe {
                cuda.launch(&code, "sums", cut.grid(pieces), &args)?;
                return cuda.launch(&code, "join", cut.join(), &args);
            }
        }
        let pieces = folding.pieces();
        let join = match self.kind {
            ReduceKind::Sum | ReduceKind::Mean => "Sum",
            ReduceKind::Max => "Largest",
            ReduceKind::Min => "Smallest",
            ReduceKind::Prod => "Product",
        };
        let mut code = Code::of("reduce", TEXT, x.ty.dtype);
        code.head += &format!("#define JOIN {join}\n");
        let args = Args::new()
            .at(x.ptr)
            .at(y.ptr)
            .at(call.scratch)
            .int(folding.outputs)
            .int(folding.count)
            .int(pieces)
            .int(usize::from(self.kind == ReduceKind::Mean));
        let args = folding.args(args);
        // SAFETY: the caller's promise; the scratch holds a partial result for every piece and output.
        unsafe {
            if folding.is_row() {
                let mut grid = Grid::rows(folding.outputs, folding.count.div_ceil(pieces));
                grid.blocks[1] = pieces as u32;
                cuda.launch(&code, "rows", grid, &args)?;
            } else {
                let mut grid = Grid::each(folding.outputs);
                grid.blocks[1] = pieces as u32;
                cuda.launch(&code, "columns", grid, &args)?;
            }
            if pieces > 1 {
                cuda.launch(&code, "pieces", Grid::each(folding.outputs), &args)?;
            }
        }
        Ok(())
    }
}

impl Kernel for ProdGrad {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        Folding::new(inputs[0], &self.axes).check(inputs[0])?;
        Ok(inputs[0].elements() * inputs[0].dtype.accumulator().bytes())
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, dy, dx) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        let folding = Folding::new(x.ty, &self.axes);
        folding.check(x.ty)?;
        if x.ty.elements() == 0 {
            return Ok(());
        }
        let args = Args::new().at(x.ptr).at(dy.ptr).at(dx.ptr).at(call.scratch);
        let args = folding.args(args.int(folding.outputs).int(folding.count));
        let code = Code::of("prod_grad", PROD_GRAD, x.ty.dtype);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "prod_grad", Grid::each(folding.outputs), &args) }
    }
}

impl Kernel for ArgMax {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        let n = y.ty.elements();
        let (_, inner) = around(x.ty, self.axis);
        let args = Args::new().at(x.ptr).at(y.ptr).int(n).int(x.ty.shape[self.axis]).int(inner);
        let dtype = if x.ty.dtype == DType::Bool { DType::U8 } else { x.ty.dtype };
        let (code, length) = (Code::of("argmax", ARGMAX, dtype), x.ty.shape[self.axis]);
        let (kernel, grid) = match inner == 1 && length >= LONG && dtype.is_float() && n > 0 {
            true => ("argmax_rows", Grid::rows(n, length.div_ceil(8))),
            false => ("argmax", Grid::each(n)),
        };
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, kernel, grid, &args) }
    }
}
