//! Turns a plan and its operands into tasks of the pool, and says how much scratch that takes.

use super::block::{BlockTask, block_floats, pack_step, reduce_rows, run_block};
use super::dest::Dest;
use super::pack::{Left, Right};
use super::plan::Plan;
use super::scalar::Kind;
use crate::isa::Isa;
use crate::pool::Pool;

/// Bytes that scratch is aligned to inside.
const ALIGN: usize = 64;

/// Rows that one task of the last addition handles.
const REDUCE_ROWS: usize = 32;

/// Bytes of scratch for `copies` products of this plan on `threads` threads.
pub(crate) fn scratch_bytes(plan: &Plan, copies: usize, panel: usize, kind: Kind, threads: usize) -> usize {
    ALIGN
        + threads.max(1) * slot_bytes(plan, panel, kind)
        + partial_bytes(plan, copies)
        + shared_bytes(plan, copies)
}

fn slot_bytes(plan: &Plan, panel: usize, kind: Kind) -> usize {
    (4 * block_floats(plan, panel, kind)).next_multiple_of(ALIGN)
}

fn partial_bytes(plan: &Plan, copies: usize) -> usize {
    if plan.k_parts > 1 { (4 * copies * plan.k_parts * plan.m * plan.n).next_multiple_of(ALIGN) } else { 0 }
}

fn shared_bytes(plan: &Plan, copies: usize) -> usize {
    if plan.shares_b(copies) { 4 * plan.k * plan.padded_cols() } else { 0 }
}

/// A raw pointer that tasks may share because they use disjoint parts behind it.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub *mut T);

// SAFETY: whoever builds one sees to it that tasks touch disjoint parts.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer; a method, so that closures capture the whole wrapper.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

/// The first place in `scratch` that is aligned to 64 bytes.
///
/// # Panics
/// When the scratch is smaller than `bytes`, which its `…_scratch_bytes` twin told.
pub(crate) fn aligned(scratch: &mut [u8], bytes: usize) -> *mut u8 {
    assert!(scratch.len() >= bytes, "scratch has {} bytes where {bytes} were declared", scratch.len());
    let start = scratch.as_mut_ptr();
    start.wrapping_add(start.align_offset(ALIGN))
}

/// Computes `copies` products of the same plan; `operands(i)` gives the parts of the i-th.
///
/// # Safety
/// The operands and outputs have the plan's size, and the outputs of different copies do not overlap.
pub(crate) unsafe fn run_products<'a, A: Left, B: Right>(
    pool: &Pool,
    isa: Isa,
    plan: &Plan,
    copies: usize,
    panel: usize,
    kind: Kind,
    operands: impl Fn(usize) -> (A, B, Dest<'a>) + Sync,
    scratch: &mut [u8],
) {
    let blocks = plan.blocks();
    if blocks == 0 || copies == 0 {
        return;
    }
    let slot_bytes = slot_bytes(plan, panel, kind);
    let base = aligned(scratch, scratch_bytes(plan, copies, panel, kind, pool.threads()));
    let partial = Shared(base.wrapping_add(pool.threads() * slot_bytes).cast::<f32>());
    let base = Shared(base);
    let is_split = plan.k_parts > 1;
    let mut shared_b = Shared(std::ptr::null_mut::<f32>());
    if plan.shares_b(copies) {
        shared_b = Shared(partial.get().wrapping_byte_add(partial_bytes(plan, copies)));
        let (_, b, _) = operands(0);
        // SAFETY: the caller vouches for B, and every task writes its own step.
        pool.run(plan.steps, |step| unsafe { pack_step(isa, plan, step, &b, shared_b.get()) });
    }
    pool.run_with_slot(copies * blocks, |slot, task| {
        let (copy, block) = (task / blocks, plan.block(task % blocks));
        let (a, b, mut dest) = operands(copy);
        let work = base.get().wrapping_add(slot * slot_bytes).cast::<f32>();
        if is_split {
            let index = (copy * plan.k_parts + block.k_part) * plan.m * plan.n;
            dest = Dest::partial(partial.get().wrapping_add(index), plan.n);
        }
        let shared = shared_b.get().cast_const();
        let task = BlockTask { plan, block: &block, a: &a, b: &b, dest: &dest, work, shared };
        // SAFETY: the caller vouches for the operands; every slot has its own working memory and every block its
        // own part of the output.
        unsafe { run_block(isa, &task) };
    });
    if is_split {
        let chunks = plan.m.div_ceil(REDUCE_ROWS);
        pool.run(copies * chunks, |task| {
            let (copy, chunk) = (task / chunks, task % chunks);
            let rows = chunk * REDUCE_ROWS..((chunk + 1) * REDUCE_ROWS).min(plan.m);
            let (_, _, dest) = operands(copy);
            let sums = partial.get().wrapping_add(copy * plan.k_parts * plan.m * plan.n);
            // SAFETY: all parts are complete, and every task has its own rows.
            unsafe { reduce_rows(isa, plan, rows, sums, &dest) };
        });
    }
}
