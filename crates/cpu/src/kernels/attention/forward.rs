//! The forward pass: one task a head and tile of queries, with the softmax brought up to date key tile by key tile.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::AttentionDims;

use super::super::carver::Carver;
use super::super::lanes::{Stored, Wide};
use super::super::small_matmul::{Product, SmallMatmul};
use super::tile::{self, Softmax};
use super::{KEYS, Problem, QUERIES, padded, product};
use crate::Cpu;
use crate::gemm::Shared;

/// A thread's working memory.
struct Work<E> {
    /// Queries by row, then transposed: `[D][QUERIES]`.
    rows: *mut E,
    q: *mut E,
    k: *mut E,
    v: *mut E,
    scores: *mut E,
    results: *mut E,
    state: Softmax<E>,
}

impl<E> Work<E> {
    fn new(carver: &mut Carver, d: &AttentionDims) -> Work<E> {
        Work {
            rows: carver.take(QUERIES * padded(d.d)),
            q: carver.take(QUERIES * padded(d.d)),
            k: carver.take(KEYS * padded(d.d)),
            v: carver.take(KEYS * padded(d.dv)),
            scores: carver.take(KEYS * QUERIES),
            results: carver.take(QUERIES * padded(d.dv)),
            state: Softmax {
                most: carver.take(QUERIES),
                sum: carver.take(QUERIES),
                rescale: carver.take(QUERIES),
            },
        }
    }
}

/// Bytes of scratch a thread.
pub(super) fn scratch<E: Wide>(d: &AttentionDims) -> usize {
    let mut carver = Carver::new(std::ptr::null_mut());
    Work::<E>::new(&mut carver, d);
    carver.used()
}

/// Computes o and lse.
///
/// # Safety
/// As for the kernel; `T` is the operands' element type.
pub(super) unsafe fn run<T: Stored>(cpu: &Cpu, p: &Problem<T>, call: &Call<'_>) {
    let d = &p.dims;
    let tiles = d.tq.div_ceil(QUERIES);
    let (o, lse) = (Shared(call.outputs[0].ptr.cast::<T>()), Shared(call.outputs[1].ptr.cast::<T::Wide>()));
    let (base, bytes) = (Shared(call.scratch), scratch::<T::Wide>(d));
    cpu.pool().run_with_slot(d.batch * d.heads * tiles, |slot, task| {
        // Later tiles of a causal attention see more keys: they come first, so that the ends meet.
        let (tile, rest) = (tiles - 1 - task % tiles, task / tiles);
        let (h, b) = (rest % d.heads, rest / d.heads);
        let work: Work<T::Wide> = Work::new(&mut Carver::new(base.get().wrapping_add(slot * bytes)), d);
        let first = tile * QUERIES;
        let n = QUERIES.min(d.tq - first);
        // SAFETY: every slot has its own working memory, and every task its own queries.
        unsafe {
            query_tile(cpu, p, &work, (b, h, first, n));
            let width = padded(d.dv);
            let out = (o.get().add(p.query_row(b, first, h, d.dv)), d.heads * d.dv);
            let lse = lse.get().add((b * d.heads + h) * d.tq + first);
            tile::finish::<T>(cpu.isa(), work.results, width, (n, d.dv), work.state, out, lse);
        }
    });
}

/// Leaves the unscaled results of queries `first .. first + n` of a head in the working memory.
unsafe fn query_tile<T: Stored>(
    cpu: &Cpu,
    p: &Problem<T>,
    work: &Work<T::Wide>,
    (b, h, first, n): (usize, usize, usize, usize),
) {
    let (isa, d, hk) = (cpu.isa(), &p.dims, h / p.dims.group());
    let (dp, dvp) = (padded(d.d), padded(d.dv));
    // SAFETY: rows and tiles lie inside the operands, the working memory has the tiles' sizes.
    unsafe {
        tile::fetch(isa, p.q.get().add(p.query_row(b, first, h, d.d)), d.heads * d.d, n, d.d, work.rows, dp);
        tile::transpose(isa, work.rows, dp, n, d.d, work.q, n);
        tile::begin(isa, work.state, n);
        work.results.write_bytes(0, n * dvp);
        let seen = p.keys_seen(b, first, n);
        for j in seen.clone().step_by(KEYS) {
            let keys = KEYS.min(seen.end - j);
            p.fetch_keys(isa, (b, hk), j..j + keys, (work.k, work.v));
            let bias = p.bias(b, h, first, j);
            let skip = bias.first_query();
            // scores[key][query] = k qᵀ
            let (q, scores) = (work.q.add(skip), work.scores.add(skip));
            let product_1 = product((keys, n - skip, d.d), (work.k, dp), (q, QUERIES), (scores, QUERIES));
            T::Wide::product(isa, &product_1);
            tile::softmax::<T>(isa, work.scores, keys, n, p.scale(), &bias, work.state);
            if j > seen.start {
                tile::rescale(isa, work.results, dvp, skip..n, work.state.rescale);
            }
            // results[query] += Σ p[key][query] v[key]
            let results = work.results.add(skip * dvp);
            let product_2 = product((n - skip, d.dv, keys), (scores, QUERIES), (work.v, dvp), (results, dvp));
            T::Wide::product(isa, &Product { a_by_column: true, accumulate: true, ..product_2 });
        }
    }
}
