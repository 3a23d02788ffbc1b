//! The order of elements along an axis.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::ArgSort;
use plimsoll_graph::{DType, Type};

use super::layout::around;
use super::{Kernel, Parts, padded};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("sort.cu");

/// Elements that a block sorts in shared memory.
const TILE: usize = 1024;

/// Whether keys of a type take more than 32 bits; u32 is read as i64.
fn is_wide(dtype: DType) -> bool {
    dtype.bytes() == 8 || dtype == DType::U32
}

/// Bytes of one of the two places that the pairs of long lines lie in by turns.
fn pairs(x: &Type) -> usize {
    x.elements() * if is_wide(x.dtype) { 16 } else { 8 }
}

impl Kernel for ArgSort {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        Ok(if inputs[0].shape[self.axis] <= TILE { 0 } else { 2 * padded(pairs(inputs[0])) })
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        if y.ty.elements() == 0 {
            return Ok(());
        }
        let (length, (outer, inner)) = (x.ty.shape[self.axis], around(x.ty, self.axis));
        let (lines, wanted) = (outer * inner, self.wanted(x.ty));
        let dtype = if x.ty.dtype == DType::Bool { DType::U8 } else { x.ty.dtype };
        let code = Code::of("sort", TEXT, dtype)
            .with_type("I", self.dtype)
            .with("TILE", TILE)
            .with("WIDE_KEY", usize::from(is_wide(dtype)));
        let args = |from: *mut u8, to: *mut u8, run: usize| {
            let args = Args::new().at(x.ptr).at(y.ptr).at(from).at(to).int(lines).int(length).int(inner);
            args.int(wanted).int(self.descending.into()).int(run)
        };
        let nowhere = std::ptr::null_mut();
        if length <= TILE {
            let threads = (length.next_power_of_two() as u32 / 2).clamp(32, 512);
            let grid = Grid { blocks: [lines as u32, 1, 1], threads, shared: 0 };
            // SAFETY: the caller's promise.
            return unsafe { cuda.launch(&code, "short_lines", grid, &args(nowhere, nowhere, 0)) };
        }
        let mut parts = Parts::new(call);
        let (mut from, mut to) = (parts.take(pairs(x.ty)), parts.take(pairs(x.ty)));
        let (tiles, n) = (length.div_ceil(TILE), x.ty.elements());
        // SAFETY: the caller's promise; the scratch holds all pairs twice.
        unsafe {
            let grid = Grid { blocks: [(lines * tiles) as u32, 1, 1], threads: 512, shared: 0 };
            cuda.launch(&code, "tiles", grid, &args(nowhere, from, tiles))?;
            let mut run = TILE;
            while run < length {
                cuda.launch(&code, "merge", Grid::each(n), &args(from, to, run))?;
                (from, to) = (to, from);
                run *= 2;
            }
            cuda.launch(&code, "places", Grid::each(lines * wanted), &args(from, nowhere, 0))
        }
    }
}
