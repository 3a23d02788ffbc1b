//! The gradient of attention: by cuDNN for some samples at a time where it knows the case and is faster, else by the crate's own tiles.

use std::ptr::null_mut;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::Type;
use plimsoll_graph::ops::{Attention, AttentionDims, AttentionGrad};

use super::attention::{Tiles, Which, heads, types};
use super::{Kernel, padded};
use crate::Cuda;
use crate::dnn::{Case, Heads, HeadsGrad, OF_ATTENTION_GRAD};
use crate::error::Error;
use crate::launch::{Args, Grid, is_only_loading};

/// The case for cuDNN of some samples, with its workspace and their number; none where it does not know it.
fn grad_library(
    cuda: &Cuda,
    op: &Attention,
    dims: AttentionDims,
    q: &Type,
) -> Result<Option<(Case, usize, usize)>, Error> {
    let Some(heads) = heads(cuda, op, dims, q) else { return Ok(None) };
    let Some(samples) = HeadsGrad(heads).at_once() else { return Ok(None) };
    let case =
        Case::AttentionGrad(HeadsGrad(Heads { dims: AttentionDims { batch: samples, ..dims }, ..heads }));
    Ok(cuda.dnn()?.and_then(|dnn| Some((case, dnn.workspace(&case)?, samples))))
}

/// The gradient of some samples of a call: what is asked, how it is cut, and where everything is.
struct Grad<'a> {
    tiles: Tiles,
    q: &'a Type,
    inputs: Vec<Operand<'a>>,
    /// o, the log-sum-exp, do; dq, dk, dv.
    read: [*mut u8; 3],
    written: [*mut u8; 3],
    scratch: *mut u8,
}

impl Grad<'_> {
    fn args(&self, to: [*mut u8; 2]) -> Args {
        let [o, lse, d_o] = self.read;
        self.tiles.args(&self.inputs, [o, lse, d_o, to[0], to[1], self.scratch])
    }

    /// By the crate's own kernels.
    ///
    /// # Safety
    /// As of [`Kernel::run`], with a scratch of [`Tiles::sums`].
    unsafe fn own(&self, cuda: &Cuda) -> Result<(), Error> {
        let Grad { tiles, q, written: [dq, dk, dv], .. } = self;
        let (dims, code) = (tiles.dims, tiles.code(q));
        // SAFETY: the caller's promise; the scratch holds a number for every query, and the sums of heads behind them.
        unsafe {
            if dims.batch * dims.heads * dims.tq > 0 {
                cuda.launch(&code, "deltas", tiles.each_query(), &self.args([*dq, null_mut()]))?;
                let grid = tiles.grid(Which::GradQueries, q);
                cuda.launch(&code, "grad_queries", grid, &self.args([*dq, null_mut()]))?;
            }
            if dims.batch * dims.kv_heads * dims.tk > 0 {
                let args = self.args([*dk, *dv]);
                cuda.launch(&code, "grad_keys", tiles.grid(Which::GradKeys, q), &args)?;
                if tiles.is_apart() {
                    let numbers = dims.batch * dims.tk * dims.kv_heads * (dims.d + dims.dv);
                    cuda.launch(&code, "join_heads", Grid::each(numbers), &args)?;
                }
            }
        }
        Ok(())
    }
}

/// Bytes of numbers that the crate's own kernels want for so many samples.
fn own_scratch(tiles: &Tiles, batch: usize, q: &Type) -> usize {
    tiles.of(batch).sums() * q.dtype.accumulator().bytes()
}

impl Kernel for AttentionGrad {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let tiles = Tiles::new(cuda, &self.0, inputs)?;
        let whole = own_scratch(&tiles, tiles.dims.batch, inputs[0]);
        let Some((_, workspace, samples)) = grad_library(cuda, &self.0, tiles.dims, inputs[0])? else {
            return Ok(whole);
        };
        let part = padded(own_scratch(&tiles, samples, inputs[0]));
        Ok(whole.max(part + workspace))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let tiles = Tiles::new(cuda, &self.0, &types(call.inputs))?;
        let (first, q, dims) = (self.0.n_inputs(), call.inputs[0].ty, tiles.dims);
        let known = grad_library(cuda, &self.0, dims, q)?;
        // Loading means the crate's own code, for some samples and for all.
        let known = known.filter(|_| dims.batch > 0);
        let (case, workspace, samples) = match known {
            Some((case, workspace, samples)) => (Some(case), workspace, samples),
            None => (None, 0, dims.batch.max(1)),
        };
        let part = padded(own_scratch(&tiles, samples, q));
        let by_library = case.filter(|_| !is_only_loading() && part + workspace <= call.scratch_bytes);
        let samples = if by_library.is_some() || is_only_loading() { samples } else { dims.batch.max(1) };
        for piece in 0..dims.batch.max(1) / samples {
            let from = |x: &Operand<'_>| {
                let whole = x.ty.bytes() / dims.batch.max(1);
                x.ptr.wrapping_add(piece * samples * whole)
            };
            let inputs = call.inputs[..first].iter().map(|x| Operand { ty: x.ty, ptr: from(x) }).collect();
            let grad = Grad {
                tiles: tiles.of(samples.min(dims.batch)),
                q,
                inputs,
                read: [0, 1, 2].map(|i| from(&call.inputs[first + i])),
                written: [0, 1, 2].map(|i| from(&call.outputs[i])),
                scratch: call.scratch,
            };
            // SAFETY: the caller's promise; a piece is of whole samples.
            let own = || unsafe { grad.own(cuda) };
            let (Some(case), Some(dnn)) = (by_library, cuda.dnn()?) else {
                own()?;
                continue;
            };
            let (mut one, mut scale, mut hidden) = (1.0f32, self.0.scale.0 as f32, f32::MIN);
            let numbers = [&raw mut one, &raw mut scale, &raw mut hidden].map(|at| at.cast::<u8>());
            let inputs = [0, 1, 2].map(|i| grad.inputs[i].ptr);
            let at = inputs.into_iter().chain([grad.read[0], grad.read[2], grad.read[1]]).chain(grad.written);
            let at = at.chain([call.scratch]).chain(numbers);
            let operands: Vec<(i64, *mut u8)> = OF_ATTENTION_GRAD.into_iter().zip(at).collect();
            let operands = if self.0.causal { &operands[..] } else { &operands[..operands.len() - 1] };
            // SAFETY: the caller's promise; the numbers live on the host until the call returns, and the workspace lies behind a number a query.
            unsafe { dnn.run(cuda, &case, operands, call.scratch.wrapping_add(part), Some(&own))? };
        }
        Ok(())
    }
}
