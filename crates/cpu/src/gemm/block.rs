//! Turns one block of the plan into packed pieces and micro-kernel calls, and stores the finished rows.

use super::dest::{Dest, finish_row, hook};
use super::kernel_portable::Portable;
use super::pack::{Left, Lines, Right, Segments, TileAt};
use super::plan::{Block, Plan};
use super::scalar::Kind;
use super::tile::{KC, MAX_ROWS, Simd, TILE_FLOATS, Tile};
#[cfg(target_arch = "x86_64")]
use super::{kernel_avx2::Avx2Fma, kernel_avx512::Avx512};
use crate::isa::Isa;

/// Floats of working memory that one thread needs for the blocks of a plan.
pub(crate) fn block_floats(plan: &Plan, panel: usize, kind: Kind) -> usize {
    let b = KC.min(plan.k.max(1)) * plan.block_panels() * panel;
    let c = if kind == Kind::F32 { 0 } else { plan.block_rows() * plan.block_panels() * panel };
    TILE_FLOATS + b + c + plan.extra
}

/// Rows and columns of the micro-kernel of an instruction set.
pub(crate) fn tile_size(isa: Isa) -> (usize, usize) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => (Avx512::ROWS, Avx512::PANEL),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Fma => (Avx2Fma::ROWS, Avx2Fma::PANEL),
        _ => (Portable::ROWS, Portable::PANEL),
    }
}

/// A block of a product, and what it is computed from and with.
#[derive(Clone, Copy)]
pub(crate) struct BlockTask<'a, A, B> {
    pub plan: &'a Plan,
    pub block: &'a Block,
    pub a: &'a A,
    pub b: &'a B,
    pub dest: &'a Dest<'a>,
    /// [`block_floats`] floats that no other thread uses.
    pub work: *mut f32,
    /// All of B, packed by [`pack_step`], or null.
    pub shared: *const f32,
}

/// Computes one block.
///
/// # Safety
/// The processor has the instruction set; the operands and the output have the plan's size; `work` and `shared` are as
/// [`BlockTask`] says.
pub(crate) unsafe fn run_block<A: Left, B: Right>(isa: Isa, task: &BlockTask<'_, A, B>) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => run_avx512(task),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Fma => run_avx2(task),
            _ => run::<Portable, A, B>(task),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn run_avx512<A: Left, B: Right>(task: &BlockTask<'_, A, B>) {
    // SAFETY: the caller's promises are passed on.
    unsafe { run::<Avx512, A, B>(task) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<A: Left, B: Right>(task: &BlockTask<'_, A, B>) {
    // SAFETY: the caller's promises are passed on.
    unsafe { run::<Avx2Fma, A, B>(task) }
}

#[inline(always)]
unsafe fn run<S: Simd, A: Left, B: Right>(task: &BlockTask<'_, A, B>) {
    let BlockTask { plan, block, a, b, dest, work, shared } = *task;
    let (col_0, col_end) = (plan.col(block.panels.start), plan.col(block.panels.end));
    let n_cols = col_end - col_0;
    let first_row = plan.row(block.tiles.start);
    let (a_tile, own_b) = (work, work.wrapping_add(TILE_FLOATS));
    let k_most = KC.min(plan.k.max(1));
    // 16-bit outputs are summed in f32 beside the packed B and converted when they are finished.
    let sums = work.wrapping_add(TILE_FLOATS + k_most * plan.block_panels() * S::PANEL);
    let stored = dest.kind == Kind::F32;
    let own = sums.wrapping_add(if stored { 0 } else { plan.block_rows() * plan.block_panels() * S::PANEL });
    let mut rows = [0usize; MAX_ROWS];
    let (mut lines, mut segments) = (Lines::new(), Segments::new());
    let all_rows = first_row..plan.row(block.tiles.end);
    for step in block.steps.clone() {
        let (k_0, n_k) = (plan.depth(step), plan.depth(step + 1) - plan.depth(step));
        if !A::BY_ROW || step == block.steps.start {
            let k = if A::BY_ROW { 0..plan.k } else { k_0..k_0 + n_k };
            // SAFETY: the rows and k lie inside A, and its own memory has the size it asked for.
            unsafe { a.prepare::<S>(all_rows.clone(), k, own) };
        }
        let (is_first, is_last) = (step == block.steps.start, step + 1 == block.steps.end);
        let direct = plan.few_rows() && n_k > 0;
        let n_direct =
            if direct && b.direct(k_0, col_0).is_some() { n_cols / S::PANEL * S::PANEL } else { 0 };
        let b_packed = if shared.is_null() {
            own_b.cast_const()
        } else {
            shared.wrapping_add(k_0 * plan.padded_cols() + col_0 * n_k)
        };
        if n_direct < n_cols && shared.is_null() {
            let dst = own_b.wrapping_add(n_direct * n_k);
            // SAFETY: the columns lie inside B, and the packed B has room for the whole block.
            unsafe { b.pack::<S>(k_0, n_k, col_0 + n_direct, n_cols - n_direct, dst) };
        }
        for tile in block.tiles.clone() {
            let (row, n_rows) = (plan.row(tile), plan.row(tile + 1) - plan.row(tile));
            let origin = if A::BY_ROW { first_row } else { k_0 };
            let at = TileAt { origin, row, n_rows, k: k_0, n_k };
            // SAFETY: the tile lies inside A, and its buffer holds any tile.
            let a_stride = unsafe { a.tile::<S>(at, a_tile, own, &mut segments) };
            for (i, offset) in rows.iter_mut().enumerate().take(n_rows) {
                *offset = if stored {
                    dest.base + dest.map.offset(row + i)
                } else {
                    (row - first_row + i) * n_cols
                };
            }
            look_ahead(plan, block, a, b, step, tile, shared.is_null(), &mut lines);
            for panel in block.panels.clone() {
                let (ahead, n_ahead) = lines.part(panel - block.panels.start, block.panels.len());
                let (col, cols) = (plan.col(panel), plan.col(panel + 1) - plan.col(panel));
                let width = cols.next_multiple_of(S::LANES);
                let packed = (b_packed.wrapping_add((col - col_0) * n_k), width);
                let place = if col - col_0 < n_direct { b.direct(k_0, col) } else { None };
                let (b_panel, b_stride) = place.unwrap_or(packed);
                let c = if stored {
                    dest.out.cast::<f32>().wrapping_add(col)
                } else {
                    sums.wrapping_add(col - col_0)
                };
                let finish = stored && is_last;
                let bias = if finish && !dest.bias.is_null() {
                    dest.bias.wrapping_add(col)
                } else {
                    std::ptr::null()
                };
                let call = Tile {
                    segments: segments.list().as_ptr(),
                    n_segments: segments.list().len(),
                    a_stride,
                    b: b_panel,
                    b_stride,
                    // Four packed rows ahead hides the second-level cache. Rows of B itself may share one set of
                    // the first-level cache, where more than the next one would push the others out.
                    b_ahead: if place.is_some() { b_stride } else { 4 * b_stride },
                    c,
                    rows: rows.as_ptr(),
                    cols,
                    accumulate: !is_first || (stored && dest.accumulate),
                    bias,
                    relu: finish && dest.relu,
                    ahead,
                    n_ahead: n_ahead.min(n_k),
                };
                // SAFETY: tile, panel and the rows and columns of C are as the kernel expects them.
                unsafe { S::kernel(A::BY_ROW, n_rows, width / S::LANES)(&call) };
            }
            if is_last && (!stored || dest.hook.is_some()) {
                for i in 0..n_rows {
                    // SAFETY: the row's sums are complete, and no other thread touches these columns of the row.
                    unsafe {
                        if stored {
                            let values = dest.out.cast::<f32>().add(rows[i] + col_0);
                            hook(dest, rows[i] + col_0, values, n_cols);
                        } else {
                            finish_row::<S>(dest, row + i, col_0, sums.add(rows[i]), n_cols);
                        }
                    }
                }
            }
        }
    }
}

/// Lists what will be packed soon: the next tile of an A stored by row, and this tile's share of what the next step
/// packs.
#[inline(always)]
fn look_ahead<A: Left, B: Right>(
    plan: &Plan,
    block: &Block,
    a: &A,
    b: &B,
    step: usize,
    tile: usize,
    packs_b: bool,
    lines: &mut Lines,
) {
    lines.clear();
    let (k, k_end) = (plan.depth(step), plan.depth(step + 1));
    if A::BY_ROW && tile + 1 < block.tiles.end {
        let (row, row_end) = (plan.row(tile + 1), plan.row(tile + 2));
        a.lines(row, row_end - row, k, k_end - k, lines);
    }
    if step + 1 < block.steps.end {
        let n_k = plan.depth(step + 2) - k_end;
        let (index, parts) = (tile - block.tiles.start, block.tiles.len());
        let at = |i: usize| k_end + n_k * i / parts;
        let (from, n_k) = (at(index), at(index + 1) - at(index));
        if !A::BY_ROW {
            let (row, row_end) = (plan.row(block.tiles.start), plan.row(block.tiles.end));
            a.lines(row, row_end - row, from, n_k, lines);
        }
        if packs_b {
            let (col, col_end) = (plan.col(block.panels.start), plan.col(block.panels.end));
            b.lines(from, n_k, col, col_end - col, lines);
        }
    }
}

/// Packs one step of all of B to its place in the shared panels.
///
/// # Safety
/// The processor has the instruction set; B has the plan's size; `shared` holds k by the padded columns of floats.
pub(crate) unsafe fn pack_step<B: Right>(isa: Isa, plan: &Plan, step: usize, b: &B, shared: *mut f32) {
    let (k, n_k) = (plan.depth(step), plan.depth(step + 1) - plan.depth(step));
    let dst = shared.wrapping_add(k * plan.padded_cols());
    // SAFETY: the caller's promises are passed on.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => pack_avx512(b, k, n_k, plan.n, dst),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Fma => pack_avx2(b, k, n_k, plan.n, dst),
            _ => b.pack::<Portable>(k, n_k, 0, plan.n, dst),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn pack_avx512<B: Right>(b: &B, k: usize, n_k: usize, n: usize, dst: *mut f32) {
    // SAFETY: the caller's promises are passed on.
    unsafe { b.pack::<Avx512>(k, n_k, 0, n, dst) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pack_avx2<B: Right>(b: &B, k: usize, n_k: usize, n: usize, dst: *mut f32) {
    // SAFETY: the caller's promises are passed on.
    unsafe { b.pack::<Avx2Fma>(k, n_k, 0, n, dst) }
}

/// Adds the `parts` partial sums of rows `rows`, in order, and stores them with the epilogue.
///
/// # Safety
/// The processor has the instruction set; `partial` holds `parts` matrices of m by n floats.
pub(crate) unsafe fn reduce_rows(
    isa: Isa,
    plan: &Plan,
    rows: std::ops::Range<usize>,
    partial: *mut f32,
    dest: &Dest<'_>,
) {
    // SAFETY: the caller's promises are passed on.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => reduce_avx512(plan, rows, partial, dest),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Fma => reduce_avx2(plan, rows, partial, dest),
            _ => reduce::<Portable>(plan, rows, partial, dest),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn reduce_avx512(plan: &Plan, rows: std::ops::Range<usize>, partial: *mut f32, dest: &Dest<'_>) {
    // SAFETY: the caller's promises are passed on.
    unsafe { reduce::<Avx512>(plan, rows, partial, dest) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn reduce_avx2(plan: &Plan, rows: std::ops::Range<usize>, partial: *mut f32, dest: &Dest<'_>) {
    // SAFETY: the caller's promises are passed on.
    unsafe { reduce::<Avx2Fma>(plan, rows, partial, dest) }
}

#[inline(always)]
unsafe fn reduce<S: Simd>(plan: &Plan, rows: std::ops::Range<usize>, partial: *mut f32, dest: &Dest<'_>) {
    for row in rows {
        // SAFETY: every part has the row; the parts lie behind each other.
        unsafe {
            let sums = std::slice::from_raw_parts_mut(partial.add(row * plan.n), plan.n);
            for part in 1..plan.k_parts {
                let more = std::slice::from_raw_parts(partial.add((part * plan.m + row) * plan.n), plan.n);
                sums.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
            }
            finish_row::<S>(dest, row, 0, sums.as_mut_ptr(), plan.n);
        }
    }
}
