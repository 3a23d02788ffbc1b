//! Scaled-dot-product attention, forward and backward, by tiles in shared memory: no matrix of scores is stored.

use std::ptr::null_mut;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::Type;
use plimsoll_graph::ops::{Attention, AttentionDims, AttentionGrad};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("attention.cu");

/// The sizes of a call and of its tiles.
struct Tiles {
    dims: AttentionDims,
    rows: usize,
    shared: usize,
}

impl Tiles {
    /// The tallest tiles whose operands fit into shared memory.
    fn new(cuda: &Cuda, types: &[&Type]) -> Result<Tiles, Error> {
        let refused = |why| Error::Library { library: "the CUDA backend", call: "attention", why };
        let dims = AttentionDims::new(types[0], types[1], types[2]).map_err(refused)?;
        let bytes = types[0].dtype.accumulator().bytes();
        for rows in [32, 16, 8] {
            // Queries, keys, values, gradients, two tiles of scores and three numbers a row.
            let shared = bytes * rows * (2 * (dims.d + 1) + 2 * (dims.dv + 1) + 2 * (rows + 1) + 3);
            if shared <= cuda.shared_limit() {
                return Ok(Tiles { dims, rows, shared });
            }
        }
        Err(refused(format!("heads of {} and {} features do not fit into shared memory", dims.d, dims.dv)))
    }

    fn code(&self, q: &Type) -> Code<'static> {
        Code::of("attention", TEXT, q.dtype)
            .with("D", self.dims.d)
            .with("DV", self.dims.dv)
            .with("ROWS", self.rows)
    }

    fn grid(&self, length: usize, heads: usize) -> Grid {
        let grid = Grid::tiles(length.div_ceil(self.rows), heads, self.dims.batch, 256);
        Grid { shared: self.shared as u32, ..grid }
    }

    fn args(&self, op: &Attention, inputs: &[Operand<'_>], at: [*mut u8; 6]) -> Args {
        let d = &self.dims;
        let mask = op.mask.then(|| inputs[3]);
        let step = |axis: usize| match mask {
            Some(mask) if mask.ty.shape[axis] > 1 => mask.ty.shape.strides()[axis],
            _ => 0,
        };
        let args = Args::new().at(inputs[0].ptr).at(inputs[1].ptr).at(inputs[2].ptr);
        at.into_iter()
            .fold(args.at(mask.map_or(null_mut(), |m| m.ptr)), Args::at)
            .ints([d.batch, d.tq, d.tk, d.heads, d.kv_heads], 5, 1)
            .int(usize::from(op.causal))
            .ints([step(0), step(1), step(2)], 3, 0)
            .float(op.scale.0)
    }
}

fn types<'a>(operands: &[Operand<'a>]) -> Vec<&'a Type> {
    operands.iter().map(|x| x.ty).collect()
}

impl Kernel for Attention {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        Tiles::new(cuda, inputs).map(|_| 0)
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let tiles = Tiles::new(cuda, &types(call.inputs))?;
        let (o, lse) = (call.outputs[0], call.outputs[1]);
        if lse.ty.elements() == 0 {
            return Ok(());
        }
        let none = null_mut();
        let args = tiles.args(self, call.inputs, [none, none, none, o.ptr, none, lse.ptr]);
        let grid = tiles.grid(tiles.dims.tq, tiles.dims.heads);
        // SAFETY: the caller's promise; a block reads its queries before it writes over them.
        unsafe { cuda.launch(&tiles.code(call.inputs[0].ty), "forward", grid, &args) }
    }
}

impl Kernel for AttentionGrad {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let Tiles { dims, .. } = Tiles::new(cuda, inputs)?;
        Ok(dims.batch * dims.heads * dims.tq * inputs[0].dtype.accumulator().bytes())
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let tiles = Tiles::new(cuda, &types(call.inputs))?;
        let first = 3 + usize::from(self.0.mask);
        let [o, lse, d_o] = [0, 1, 2].map(|i| call.inputs[first + i].ptr);
        let [dq, dk, dv] = [0, 1, 2].map(|i| call.outputs[i].ptr);
        let dims = tiles.dims;
        let args =
            |a: *mut u8, b: *mut u8| tiles.args(&self.0, call.inputs, [o, lse, d_o, a, b, call.scratch]);
        let code = tiles.code(call.inputs[0].ty);
        let queries = dims.batch * dims.heads * dims.tq;
        // SAFETY: the caller's promise; the scratch holds a number for every query.
        unsafe {
            if queries > 0 {
                cuda.launch(&code, "deltas", Grid::each(queries), &args(dq, null_mut()))?;
                let grid = tiles.grid(dims.tq, dims.heads);
                cuda.launch(&code, "grad_queries", grid, &args(dq, null_mut()))?;
            }
            if dims.batch * dims.kv_heads * dims.tk > 0 {
                cuda.launch(&code, "grad_keys", tiles.grid(dims.tk, dims.kv_heads), &args(dk, dv))?;
            }
        }
        Ok(())
    }
}
