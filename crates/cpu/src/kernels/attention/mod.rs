//! Attention in tiles of queries by keys, from which the whole matrix of scores is never formed.
//!
//! A tile of scores is held transposed, keys by queries. So the queries of a tile are transposed once, keys and
//! values are used as they lie, the maximum and the sum of the softmax run along vectors of queries, and no product
//! of the forward or backward pass needs another transposition.
//!
//! Letters, here and in the files beside this one: D features of a query or key, Dv of a value.

mod backward;
mod forward;
mod tile;

use std::ops::Range;

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{self, AttentionDims};
use plimsoll_graph::{DType, Scalar, Type};

use super::Kernel;
use super::lanes::{Stored, Wide, for_float};
use super::small_matmul::LANES;
use crate::Cpu;
use crate::gemm::Shared;
use crate::isa::Isa;

/// Queries of a tile.
const QUERIES: usize = 64;
/// Keys of a tile. Fewer than queries, so that a causal attention computes little that nobody sees.
const KEYS: usize = 32;

/// The attention as both passes see it.
#[derive(Clone, Copy)]
struct Problem<T> {
    dims: AttentionDims,
    op: ops::Attention,
    q: Shared<T>,
    k: Shared<T>,
    v: Shared<T>,
    mask: Mask<T>,
    /// The first key of each query, or null.
    starts: Shared<i32>,
}

/// An additive mask and its distances; a distance is 0 along an axis of length 1.
#[derive(Clone, Copy)]
struct Mask<T> {
    data: Shared<T>,
    batch: usize,
    head: usize,
    query: usize,
}

impl<T: Stored> Problem<T> {
    fn new(op: &ops::Attention, call: &Call<'_>) -> Result<Problem<T>, Fault> {
        let ty = |i: usize| call.inputs[i].ty;
        let dims = AttentionDims::new(ty(0), ty(1), ty(2)).map_err(|why| Fault::new("attention", why))?;
        let pointer = |i: usize| Shared(call.inputs[i].ptr.cast::<T>());
        let mut mask = Mask { data: Shared(std::ptr::null_mut()), batch: 0, head: 0, query: 0 };
        if op.mask {
            let shape = &ty(3).shape;
            let stride = |axis: usize| if shape[axis] == 1 { 0 } else { shape[axis + 1..].iter().product() };
            mask = Mask { data: pointer(3), batch: stride(0), head: stride(1), query: stride(2) };
        }
        let starts = op.starts_at().map_or(std::ptr::null_mut(), |at| call.inputs[at].ptr.cast());
        let starts = Shared(starts);
        Ok(Problem { dims, op: *op, q: pointer(0), k: pointer(1), v: pointer(2), mask, starts })
    }

    fn scale(&self) -> T::Wide {
        T::Wide::of(self.op.scale.0)
    }

    /// The place of query (or result) `i` of a head, for rows of `width` features.
    fn query_row(&self, b: usize, i: usize, h: usize, width: usize) -> usize {
        ((b * self.dims.tq + i) * self.dims.heads + h) * width
    }

    /// The place of key (or value) `j` of a head.
    fn key_row(&self, b: usize, j: usize, h: usize, width: usize) -> usize {
        ((b * self.dims.tk + j) * self.dims.kv_heads + h) * width
    }

    /// How the scores of queries from `i` on and keys from `j` on are changed before the softmax.
    fn bias(&self, b: usize, h: usize, i: usize, j: usize) -> tile::Bias<T> {
        let d = &self.dims;
        // Query i sees the keys below i + 1 + tk - tq; counted from key j.
        let limit = (i + 1 + d.tk) as isize - (d.tq + j) as isize;
        let m = &self.mask;
        let place = b * m.batch + h * m.head + i * m.query + j;
        let starts = self.starts.get();
        tile::Bias {
            limit: if self.op.causal { limit } else { isize::MAX / 2 },
            first: match self.op.window {
                Some(window) => limit.saturating_sub_unsigned(window).max(isize::MIN / 2),
                None => isize::MIN / 2,
            },
            starts: if starts.is_null() { starts } else { starts.wrapping_add(b * d.tq + i) },
            key: j,
            cap: self.op.cap.map(|Scalar(cap)| T::Wide::of(cap)),
            mask: if m.data.get().is_null() { std::ptr::null() } else { m.data.get().wrapping_add(place) },
            mask_stride: m.query,
        }
    }

    /// Copies keys and values of a head to tiles whose rows are padded.
    ///
    /// # Safety
    /// The head has the keys, and the tiles have room for them.
    unsafe fn fetch_keys(
        &self,
        isa: Isa,
        (b, head): (usize, usize),
        keys: Range<usize>,
        (k, v): (*mut T::Wide, *mut T::Wide),
    ) {
        for (from, size, to) in [(&self.k, self.dims.d, k), (&self.v, self.dims.dv, v)] {
            let (row, apart) = (self.key_row(b, keys.start, head, size), self.dims.kv_heads * size);
            // SAFETY: the caller's promise.
            unsafe { tile::fetch(isa, from.get().add(row), apart, keys.len(), size, to, padded(size)) };
        }
    }

    /// The keys that any of `n` queries from `i` on sees, from the beginning of a tile on.
    ///
    /// # Safety
    /// The queries are there.
    unsafe fn keys_seen(&self, b: usize, i: usize, n: usize) -> Range<usize> {
        let (mut first, mut end) = (usize::MAX, 0);
        for i in i..i + n {
            let start = match self.starts.get() {
                starts if starts.is_null() => 0,
                // SAFETY: the caller's promise; there is a number for every query.
                starts => unsafe { *starts.add(b * self.dims.tq + i) },
            };
            let seen = self.op.seen(&self.dims, i, i64::from(start));
            if !seen.is_empty() {
                (first, end) = (first.min(seen.start), end.max(seen.end));
            }
        }
        first / KEYS * KEYS..end
    }
}

/// Features rounded up to whole vectors.
fn padded(features: usize) -> usize {
    features.next_multiple_of(LANES)
}

macro_rules! attention_kernel {
    ($op:ident, $pass:ident, $this:ident => $attention:expr) => {
        impl Kernel for ops::$op {
            fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
                let Ok(dims) = AttentionDims::new(inputs[0], inputs[1], inputs[2]) else { return 0 };
                let bytes = match inputs[0].dtype {
                    DType::F64 => $pass::scratch::<f64>(&dims),
                    _ => $pass::scratch::<f32>(&dims),
                };
                bytes * cpu.threads()
            }

            unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
                let $this = self;
                for_float!(call.inputs[0].ty.dtype, call.op, T => {
                    let problem = Problem::<T>::new($attention, call)?;
                    // SAFETY: the caller's promise; the types are the op's.
                    unsafe { $pass::run(cpu, &problem, call) };
                    Ok(())
                })
            }
        }
    };
}
attention_kernel!(Attention, forward, this => this);
attention_kernel!(AttentionGrad, backward, this => &this.0);

/// A product of the tiles, both operands by row.
#[inline(always)]
fn product<E: Wide>(
    (m, n, k): (usize, usize, usize),
    (a, lda): (*const E, usize),
    (b, ldb): (*const E, usize),
    (c, ldc): (*mut E, usize),
) -> super::small_matmul::Product<E> {
    super::small_matmul::Product { m, n, k, a, lda, a_by_column: false, b, ldb, c, ldc, accumulate: false }
}
