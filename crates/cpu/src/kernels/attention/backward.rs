//! The backward pass: one task a sample and key head, over its query heads and tiles in a fixed order.
//!
//! The gradients of keys and values gather in the thread's scratch, in the type of the sums; those of a tile of
//! queries are complete when the tile has passed all keys.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::AttentionDims;

use super::super::carver::Carver;
use super::super::lanes::{Stored, Wide};
use super::super::small_matmul::{Product, SmallMatmul};
use super::tile::{self, Saved};
use super::{KEYS, Problem, QUERIES, padded, product};
use crate::Cpu;
use crate::gemm::Shared;

/// A thread's working memory. Names in capitals of the formulas: rows are as stored, `_t` is transposed.
struct Work<E> {
    q: *mut E,
    q_t: *mut E,
    d_o: *mut E,
    d_o_t: *mut E,
    k: *mut E,
    v: *mut E,
    /// Scores, then probabilities.
    p: *mut E,
    /// do·v, then the gradients of the scores.
    ds: *mut E,
    dq: *mut E,
    lse: *mut E,
    delta: *mut E,
    dk: *mut E,
    dv: *mut E,
}

impl<E> Work<E> {
    fn new(carver: &mut Carver, d: &AttentionDims) -> Work<E> {
        let (dp, dvp) = (padded(d.d), padded(d.dv));
        Work {
            q: carver.take(QUERIES * dp),
            q_t: carver.take(QUERIES * dp),
            d_o: carver.take(QUERIES * dvp),
            d_o_t: carver.take(QUERIES * dvp),
            k: carver.take(KEYS * dp),
            v: carver.take(KEYS * dvp),
            p: carver.take(KEYS * QUERIES),
            ds: carver.take(KEYS * QUERIES),
            dq: carver.take(QUERIES * dp),
            lse: carver.take(QUERIES),
            delta: carver.take(QUERIES),
            dk: carver.take(d.tk * dp),
            dv: carver.take(d.tk * dvp),
        }
    }
}

/// Bytes of scratch a thread.
pub(super) fn scratch<E: Wide>(d: &AttentionDims) -> usize {
    let mut carver = Carver::new(std::ptr::null_mut());
    Work::<E>::new(&mut carver, d);
    carver.used()
}

/// Results of the forward pass and the gradient that arrived, for the queries.
#[derive(Clone, Copy)]
struct Results<T, E> {
    o: Shared<T>,
    lse: Shared<E>,
    d_o: Shared<T>,
    dq: Shared<T>,
}

/// Computes dq, dk and dv.
///
/// # Safety
/// As for the kernel; `T` is the operands' element type.
pub(super) unsafe fn run<T: Stored>(cpu: &Cpu, p: &Problem<T>, call: &Call<'_>) {
    let d = &p.dims;
    let from_end = |i: usize| call.inputs[call.inputs.len() - i].ptr;
    let results = Results {
        o: Shared(from_end(3).cast::<T>()),
        lse: Shared(from_end(2).cast::<T::Wide>()),
        d_o: Shared(from_end(1).cast::<T>()),
        dq: Shared(call.outputs[0].ptr.cast::<T>()),
    };
    let (dk, dv) = (Shared(call.outputs[1].ptr.cast::<T>()), Shared(call.outputs[2].ptr.cast::<T>()));
    let (base, bytes) = (Shared(call.scratch), scratch::<T::Wide>(d));
    cpu.pool().run_with_slot(d.batch * d.kv_heads, |slot, task| {
        let (hk, b) = (task % d.kv_heads, task / d.kv_heads);
        let (isa, dp, dvp) = (cpu.isa(), padded(d.d), padded(d.dv));
        let work: Work<T::Wide> = Work::new(&mut Carver::new(base.get().wrapping_add(slot * bytes)), d);
        // SAFETY: every slot has its own working memory, every task its own heads of all gradients.
        unsafe {
            work.dk.write_bytes(0, d.tk * dp);
            work.dv.write_bytes(0, d.tk * dvp);
            for h in hk * d.group()..(hk + 1) * d.group() {
                for first in (0..d.tq).step_by(QUERIES) {
                    query_tile(cpu, p, &results, &work, (b, h, first));
                }
            }
            let (dk, dv) = (
                dk.get().wrapping_add(p.key_row(b, 0, hk, d.d)),
                dv.get().wrapping_add(p.key_row(b, 0, hk, d.dv)),
            );
            tile::store(isa, work.dk, dp, d.tk, d.d, dk, d.kv_heads * d.d);
            tile::store(isa, work.dv, dvp, d.tk, d.dv, dv, d.kv_heads * d.dv);
        }
    });
}

/// Adds what one tile of queries contributes to dk and dv, and stores its dq.
unsafe fn query_tile<T: Stored>(
    cpu: &Cpu,
    p: &Problem<T>,
    results: &Results<T, T::Wide>,
    work: &Work<T::Wide>,
    (b, h, first): (usize, usize, usize),
) {
    let (isa, d, hk) = (cpu.isa(), &p.dims, h / p.dims.group());
    let (dp, dvp) = (padded(d.d), padded(d.dv));
    let n = QUERIES.min(d.tq - first);
    // SAFETY: rows and tiles lie inside the operands, the working memory has the tiles' sizes.
    unsafe {
        let (q_row, o_row) = (p.query_row(b, first, h, d.d), p.query_row(b, first, h, d.dv));
        tile::fetch(isa, p.q.get().add(q_row), d.heads * d.d, n, d.d, work.q, dp);
        tile::transpose(isa, work.q, dp, n, d.d, work.q_t, n);
        tile::fetch(isa, results.d_o.get().add(o_row), d.heads * d.dv, n, d.dv, work.d_o, dvp);
        tile::transpose(isa, work.d_o, dvp, n, d.dv, work.d_o_t, n);
        let (o, d_o) = (results.o.get().add(o_row).cast_const(), results.d_o.get().add(o_row).cast_const());
        tile::row_dots(isa, o, d_o, d.heads * d.dv, (n, d.dv), work.delta);
        work.delta.add(n).write_bytes(0, QUERIES - n);
        for q in 0..QUERIES {
            let lse = if q < n {
                *results.lse.get().add((b * d.heads + h) * d.tq + first + q)
            } else {
                T::Wide::ZERO
            };
            // A query that saw nothing has only probabilities of zero.
            *work.lse.add(q) = if lse == -T::Wide::INFINITY { T::Wide::INFINITY } else { lse };
        }
        work.dq.write_bytes(0, n * dp);
        let seen = p.keys_seen(b, first, n);
        for j in seen.clone().step_by(KEYS) {
            let keys = KEYS.min(seen.end - j);
            p.fetch_keys(isa, (b, hk), j..j + keys, (work.k, work.v));
            let multiply = |product: Product<T::Wide>| T::Wide::product(isa, &product);
            let add = |product: Product<T::Wide>| multiply(Product { accumulate: true, ..product });
            let (scale, bias) = (p.scale(), p.bias(b, h, first, j));
            let skip = bias.first_query();
            let seeing = n - skip;
            let ([p, ds], [q_t, d_o_t]) =
                ([work.p, work.ds].map(|m| m.add(skip)), [work.q_t, work.d_o_t].map(|m| m.add(skip)));
            // p = k qᵀ and ds = v doᵀ, keys by queries.
            multiply(product((keys, seeing, d.d), (work.k, dp), (q_t, QUERIES), (p, QUERIES)));
            multiply(product((keys, seeing, d.dv), (work.v, dvp), (d_o_t, QUERIES), (ds, QUERIES)));
            let saved = Saved { lse: work.lse, delta: work.delta };
            tile::score_grads::<T>(isa, work.p, work.ds, (keys, n), scale, &bias, saved);
            // dv += p do, dk += ds q, dq += dsᵀ k.
            let (d_o, q, dq) = (work.d_o.add(skip * dvp), work.q.add(skip * dp), work.dq.add(skip * dp));
            add(product((keys, d.dv, seeing), (p, QUERIES), (d_o, dvp), (work.dv.add(j * dvp), dvp)));
            add(product((keys, d.d, seeing), (ds, QUERIES), (q, dp), (work.dk.add(j * dp), dp)));
            let to_dq = product((seeing, d.d, keys), (ds, QUERIES), (work.k, dp), (dq, dp));
            add(Product { a_by_column: true, ..to_dq });
        }
        tile::store(isa, work.dq, dp, n, d.d, results.dq.get().add(q_row), d.heads * d.d);
    }
}
