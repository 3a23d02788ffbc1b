//! Scaled-dot-product attention by tiles: no matrix of scores is stored; and how its gradient (`attention_grad.rs`) is cut.
//!
//! 16-bit heads run on tensor cores, by cuDNN where it is faster or by `flash.cu`, which documents, windows and caps do;
//! other types, masks and odd sizes run on plain arithmetic (`attention.cu`). Blocks of keys that no query of a block sees are passed over.

use std::ptr::null_mut;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::ops::{Attention, AttentionDims};
use plimsoll_graph::{DType, Type};

use super::Kernel;
use crate::Cuda;
use crate::dnn::{Case, Heads, OF_ATTENTION};
use crate::error::Error;
use crate::launch::{Args, Code, Grid, is_only_loading};

const TEXT: &str = concat!(include_str!("attention_args.cu"), include_str!("attention.cu"));
const FLASH: &str =
    concat!(include_str!("attention_args.cu"), include_str!("tensor.cu"), include_str!("flash.cu"));
/// Keys that the kernels on tensor cores take at a time, and keys or queries of a block of their gradients.
const FLASH_ROWS: usize = 64;
/// Blocks of keys that keep a large card busy though some have many more queries than others. Fewer are cut up by heads of queries. A fixed
/// number, so that results do not depend on the card's size.
const ENOUGH_BLOCKS: usize = 640;

/// One of the kernels.
#[derive(Clone, Copy)]
pub(super) enum Which {
    Forward,
    GradQueries,
    GradKeys,
}

/// What `in_block` declares of shared memory, beside the tiles.
const SHARED_BY_BLOCKS: usize = 256;

/// The sizes of a call and how it is cut into tiles.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    op: Attention,
    pub(super) dims: AttentionDims,
    /// Rows of a tile of plain arithmetic; none on tensor cores.
    rows: Option<usize>,
}

impl Tiles {
    /// Tensor cores where they know the case, else the tallest tiles whose operands fit into shared memory.
    pub(super) fn new(cuda: &Cuda, op: &Attention, types: &[&Type]) -> Result<Tiles, Error> {
        let refused = |why| Error::Library { library: "the CUDA backend", call: "attention", why };
        let dims = AttentionDims::new(types[0], types[1], types[2]).map_err(refused)?;
        let even = |width: usize| width > 0 && width.is_multiple_of(16) && width <= 128;
        let flash = matches!(types[0].dtype, DType::BF16 | DType::F16)
            && !op.mask
            && even(dims.d)
            && even(dims.dv)
            && dims.tq.max(dims.tk) < 1 << 24
            && cuda.has_tensor_cores();
        if flash {
            return Ok(Tiles { op: *op, dims, rows: None });
        }
        let bytes = types[0].dtype.accumulator().bytes();
        let tiles = [32, 16, 8].map(|rows| Tiles { op: *op, dims, rows: Some(rows) });
        let fits =
            |tiles: &Tiles| bytes * tiles.numbers(Which::Forward) + SHARED_BY_BLOCKS <= cuda.shared_limit();
        tiles.into_iter().find(fits).ok_or_else(|| {
            refused(format!("heads of {} and {} features do not fit into shared memory", dims.d, dims.dv))
        })
    }

    /// The same of so many samples.
    pub(super) fn of(self, batch: usize) -> Tiles {
        Tiles { dims: AttentionDims { batch, ..self.dims }, ..self }
    }

    /// Whether the gradients of keys that several heads share are summed a head apart.
    pub(super) fn is_apart(&self) -> bool {
        let AttentionDims { batch, tk, heads, kv_heads, .. } = self.dims;
        self.rows.is_none() && kv_heads < heads && tk.div_ceil(FLASH_ROWS) * kv_heads * batch < ENOUGH_BLOCKS
    }

    /// Numbers of the gradients' scratch: one a query, then sums of keys and values a head.
    pub(super) fn sums(&self) -> usize {
        let AttentionDims { batch, tq, tk, heads, d, dv, .. } = self.dims;
        let deltas = batch * heads * tq;
        if self.is_apart() { deltas.next_multiple_of(64) + batch * heads * tk * (d + dv) } else { deltas }
    }

    /// The rows of a block of a kernel.
    fn block(&self, which: Which) -> usize {
        match (self.rows, which) {
            (Some(rows), _) => rows,
            (None, Which::Forward) if self.dims.d.max(self.dims.dv) <= 64 => 2 * FLASH_ROWS,
            (None, _) => FLASH_ROWS,
        }
    }

    /// Numbers in shared memory: elements on tensor cores, sums elsewhere.
    fn numbers(&self, which: Which) -> usize {
        let (d, dv) = (self.dims.d, self.dims.dv);
        if let Some(rows) = self.rows {
            // Queries, keys, values, gradients, two tiles of scores and three numbers a row.
            return rows * (2 * (d + 1) + 2 * (dv + 1) + 2 * (rows + 1) + 3);
        }
        // Rows are padded by eight; what comes while something is worked on lies beside it.
        let (d, dv) = (d + 8, dv + 8);
        match which {
            Which::Forward => self.block(which) * d + 2 * FLASH_ROWS * (d + dv),
            Which::GradQueries => 3 * FLASH_ROWS * (d + dv),
            // Two statistics of each query, of four bytes, and its first key where early ones are hidden.
            Which::GradKeys => {
                let statistics = if self.op.hides_early() { 3 } else { 2 };
                3 * FLASH_ROWS * (d + dv) + 4 * statistics * FLASH_ROWS
            }
        }
    }

    pub(super) fn code(&self, q: &Type) -> Code<'static> {
        let code = match self.rows {
            Some(rows) => Code::of("attention", TEXT, q.dtype).with("ROWS", rows),
            None => {
                let mut code = Code::of("flash", FLASH, q.dtype);
                code.head +=
                    if q.dtype == DType::BF16 { "#define MMA \"bf16\"\n" } else { "#define MMA \"f16\"\n" };
                code
            }
        };
        code.with("D", self.dims.d)
            .with("DV", self.dims.dv)
            .with("EARLY", usize::from(self.op.hides_early()))
            .with("APART", usize::from(self.is_apart()))
            .with("CAPPED", usize::from(self.op.cap.is_some()))
    }

    pub(super) fn grid(&self, which: Which, q: &Type) -> Grid {
        let (length, heads) = match which {
            Which::GradKeys if self.is_apart() => (self.dims.tk, self.dims.heads),
            Which::GradKeys => (self.dims.tk, self.dims.kv_heads),
            _ => (self.dims.tq, self.dims.heads),
        };
        let (threads, bytes) = match self.rows {
            Some(_) => (256, q.dtype.accumulator().bytes()),
            None => (128, q.dtype.bytes()),
        };
        let grid = Grid::tiles(length.div_ceil(self.block(which)), heads, self.dims.batch, threads);
        Grid { shared: (self.numbers(which) * bytes) as u32, ..grid }
    }

    pub(super) fn each_query(&self) -> Grid {
        let queries = self.dims.batch * self.dims.heads * self.dims.tq;
        match self.rows {
            Some(_) => Grid::each(queries),
            None => Grid::tiles(queries.div_ceil(16).min(1 << 20), 1, 1, 128),
        }
    }

    pub(super) fn args(&self, inputs: &[Operand<'_>], at: [*mut u8; 6]) -> Args {
        let (op, d) = (&self.op, &self.dims);
        let starts = op.starts_at().map_or(null_mut(), |at| inputs[at].ptr);
        let mask = op.mask.then(|| inputs[3]);
        let step = |axis: usize| match mask {
            Some(mask) if mask.ty.shape[axis] > 1 => mask.ty.shape.strides()[axis],
            _ => 0,
        };
        let args = Args::new().at(inputs[0].ptr).at(inputs[1].ptr).at(inputs[2].ptr);
        at.into_iter()
            .fold(args.at(mask.map_or(null_mut(), |m| m.ptr)), Args::at)
            .at(starts)
            .ints([d.batch, d.tq, d.tk, d.heads, d.kv_heads], 5, 1)
            .int(usize::from(op.causal))
            .ints([step(0), step(1), step(2)], 3, 0)
            // A window of all keys hides nothing, nor does one that is larger.
            .int(op.window.unwrap_or(usize::MAX).min(d.tq.max(d.tk)))
            .float(op.scale.0)
            .float(op.cap.map_or(1.0, |cap| cap.0))
    }
}

pub(super) fn types<'a>(operands: &[Operand<'a>]) -> Vec<&'a Type> {
    operands.iter().map(|x| x.ty).collect()
}

/// The heads for cuDNN, where it may know them.
pub(super) fn heads(cuda: &Cuda, op: &Attention, dims: AttentionDims, q: &Type) -> Option<Heads> {
    let heads = Heads { dims, causal: op.causal, dtype: q.dtype };
    let is_plain = !op.mask && !op.hides_early() && op.cap.is_none();
    (is_plain && heads.may_be_known() && cuda.has_tensor_cores()).then_some(heads)
}

/// The case for cuDNN, with its workspace; none where it does not know it.
fn library(
    cuda: &Cuda,
    op: &Attention,
    dims: AttentionDims,
    q: &Type,
) -> Result<Option<(Case, usize)>, Error> {
    let Some(heads) = heads(cuda, op, dims, q) else { return Ok(None) };
    let case = Case::Attention(heads);
    Ok(cuda.dnn()?.and_then(|dnn| Some((case, dnn.workspace(&case)?))))
}

impl Kernel for Attention {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let Tiles { dims, .. } = Tiles::new(cuda, self, inputs)?;
        Ok(library(cuda, self, dims, inputs[0])?.map_or(0, |(_, workspace)| workspace))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let tiles = Tiles::new(cuda, self, &types(call.inputs))?;
        let (o, lse) = (call.outputs[0], call.outputs[1]);
        if lse.ty.elements() == 0 {
            return Ok(());
        }
        let none = null_mut();
        let args = tiles.args(call.inputs, [none, none, none, o.ptr, none, lse.ptr]);
        let grid = tiles.grid(Which::Forward, call.inputs[0].ty);
        // SAFETY: the caller's promise.
        let own = || unsafe { cuda.launch(&tiles.code(call.inputs[0].ty), "forward", grid, &args) };
        // Where cuDNN does not know the case it is not started for it: planning, which asks for scratch alone, would not count it.
        let known = library(cuda, self, tiles.dims, call.inputs[0].ty)?;
        let Some((case, workspace)) = known else { return own() };
        let Some(dnn) = cuda.dnn()? else { return own() };
        if is_only_loading() || workspace > call.scratch_bytes {
            return own();
        }
        let (mut scale, mut hidden) = (self.scale.0 as f32, f32::MIN);
        let [q, k, v] = [0, 1, 2].map(|i| call.inputs[i].ptr);
        let at = [q, k, v, o.ptr, lse.ptr, (&raw mut scale).cast(), (&raw mut hidden).cast()];
        let operands: Vec<(i64, *mut u8)> = OF_ATTENTION.into_iter().zip(at).collect();
        let operands = if self.causal { &operands[..] } else { &operands[..6] };
        // SAFETY: the caller's promise; the two numbers live on the host until the call returns.
        unsafe { dnn.run(cuda, &case, operands, call.scratch, Some(&own)) }
    }
}
