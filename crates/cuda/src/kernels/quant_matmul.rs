//! A product with a weight of few bits: a tile of it becomes floats in scratch, and a library multiplies it on tensor cores.
//!
//! A tile is some rows of the weight where it is transposed, some columns where it is not, so that no sums go on from tile to tile.

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::QuantMatMul;
use plimsoll_graph::quant::QuantForm;

use super::{Kernel, Matrix, Parts, Product, padded};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid, THREADS};

const TEXT: &str = concat!(include_str!("eight_bit_values.cu"), include_str!("quant_matmul.cu"));

/// Numbers of a tile: 16 MiB in 16 bits. Products of 2048 features of 4096 are as fast as those of all.
const TILE: usize = 8 << 20;
/// Blocks of threads at most: each makes its tables first.
const MOST: usize = 4096;
/// An address that only alignment is read of.
const ANY: *mut u8 = 4096 as *mut u8;

/// The sizes of a call: samples, features of x and of y, features of y that a tile gives.
struct Tiles {
    samples: usize,
    from: usize,
    to: usize,
    step: usize,
}

impl Tiles {
    fn new(op: &QuantMatMul, x: &Type) -> Tiles {
        let [from, to] = op.widths();
        let samples = x.elements().checked_div(from).unwrap_or(0);
        Tiles { samples, from, to, step: (TILE / from.max(1) / 128 * 128).max(128).min(to.max(1)) }
    }

    /// Where tiles begin, with the features of each.
    fn starts(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (to, step) = (self.to, self.step);
        (0..to).step_by(step).map(move |start| (start, step.min(to - start)))
    }

    fn tile_bytes(&self, x: &Type) -> usize {
        self.step * self.from * x.dtype.bytes()
    }

    fn product(&self, op: &QuantMatMul, ty: &Type, at: [*mut u8; 3], start: usize, n: usize) -> Product {
        let [x, tile, y] = at;
        let tile = match op.plain {
            true => Matrix::dense(tile, ty.dtype, n),
            false => Matrix::dense(tile, ty.dtype, self.from).turned(),
        };
        let (x, y) = (Matrix::dense(x, ty.dtype, self.from), Matrix::dense(y, ty.dtype, self.to));
        Product::new(self.samples, n, self.from, x, tile, y.beyond(start))
    }
}

impl Kernel for QuantMatMul {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let tiles = Tiles::new(self, inputs[0]);
        let products =
            tiles.starts().map(|(start, n)| tiles.product(self, inputs[0], [ANY; 3], start, n).scratch(cuda));
        Ok(padded(tiles.tile_bytes(inputs[0])) + products.max().unwrap_or(0))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let ty = call.inputs[0].ty;
        let tiles = Tiles::new(self, ty);
        if tiles.samples == 0 || tiles.to == 0 || tiles.from == 0 {
            return Ok(());
        }
        let mut parts = Parts::new(call);
        let tile = parts.take(tiles.tile_bytes(ty));
        let (rest, products) = (parts.left(call), parts.take(0));
        let at = |i: usize| call.inputs[i].ptr;
        let (form, blocks, scales, mean) = match self.form {
            QuantForm::Int8 => (0, std::ptr::null_mut(), at(2), std::ptr::null_mut()),
            QuantForm::Nf4 => (1, at(2), at(3), at(4)),
        };
        for (start, n) in tiles.starts() {
            // Rows and columns of the weight that the tile has.
            let (row, column, rows, width) =
                if self.plain { (0, start, self.rows, n) } else { (start, 0, n, self.columns) };
            let each = if [self.columns, column, width].iter().all(|n| n.is_multiple_of(8)) { 8 } else { 1 };
            let code = Code::of("quant_matmul", TEXT, ty.dtype).with("FORM", form).with("N", each);
            let code = Code { contract: false, ..code };
            let args = Args::new().at(at(1)).at(blocks).at(scales).at(mean).at(tile);
            let args = args.ints([self.columns, row, column, rows, width], 5, 0);
            let blocks = (rows * width / each).div_ceil(THREADS as usize).clamp(1, MOST) as u32;
            let grid = Grid { blocks: [blocks, 1, 1], threads: THREADS, shared: 0 };
            // SAFETY: the caller's promise; the tile has room for what is unpacked.
            unsafe {
                cuda.launch(&code, "unpack", grid, &args)?;
                let operands = [call.inputs[0].ptr, tile, call.outputs[0].ptr];
                tiles.product(self, ty, operands, start, n).run(cuda, products, rest)?;
            }
        }
        Ok(())
    }
}
