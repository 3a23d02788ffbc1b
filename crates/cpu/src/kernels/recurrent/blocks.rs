//! The recurrent weights in blocks of units, and the small product of a step with one block.

use super::super::lanes::Wide;
use super::super::small_matmul::{LANES, Product};
use crate::Cpu;
use crate::gemm::Shared;
use crate::isa::Isa;

/// Multiplications that make a task worth waking a thread for.
const WORTHWHILE: usize = 1 << 17;

/// Weights cut so that the columns a task needs lie together: block by block, `[rows][columns]` each.
#[derive(Clone, Copy)]
pub(super) struct Blocks<E> {
    data: Shared<E>,
    /// Rows of each block: the length of the sums.
    rows: usize,
    /// Columns of each block.
    columns: usize,
    /// Units of each block.
    units: usize,
    /// Number of blocks.
    count: usize,
    /// Blocks of one task.
    per_task: usize,
}

/// The sizes of a recurrent cell, as its blocks need them.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub(super) units: usize,
    pub(super) gates: usize,
    pub(super) batch: usize,
}

impl<E: Wide> Blocks<E> {
    /// Numbers that the forward blocks take: every block has `gates` columns for each of sixteen units.
    pub(super) fn forward_size(units: usize, gates: usize) -> usize {
        units * gates * units.next_multiple_of(LANES)
    }

    /// Numbers that the backward blocks take.
    pub(super) fn backward_size(units: usize, gates: usize) -> usize {
        gates * units * units.next_multiple_of(2 * LANES)
    }

    fn new(data: *mut E, rows: usize, gates: usize, width: usize, units: usize, batch: usize) -> Blocks<E> {
        let columns = gates * width;
        let work = (batch * rows * columns).max(1);
        let per_task = WORTHWHILE.div_ceil(work);
        Blocks { data: Shared(data), rows, columns, units: width, count: units.div_ceil(width), per_task }
    }

    /// Blocks for h u: block i holds the columns of all gates of units `16 i ..`, gate after gate, zeros past the last.
    ///
    /// # Safety
    /// `u` is `[units, gates * units]`; `data` has [`Blocks::forward_size`] numbers.
    pub(super) unsafe fn forward(cpu: &Cpu, u: *const E, cell: Cell, data: *mut E) -> Self {
        let Cell { units, gates, batch } = cell;
        let blocks = Blocks::new(data, units, gates, LANES, units, batch);
        let u = Shared(u.cast_mut());
        cpu.pool().run(blocks.count, |block| {
            let first = block * LANES;
            let n = LANES.min(units - first);
            for row in 0..units {
                for gate in 0..gates {
                    // SAFETY: every task has its own block; the columns are inside u.
                    unsafe {
                        let to = blocks.data.get().add((block * units + row) * gates * LANES + gate * LANES);
                        let from = u.get().add(row * gates * units + gate * units + first);
                        std::ptr::copy_nonoverlapping(from, to, n);
                        to.add(n).write_bytes(0, LANES - n);
                    }
                }
            }
        });
        blocks
    }

    /// Blocks for dgates uᵀ: block i holds the columns of units `32 i ..` of uᵀ, zeros past the last.
    ///
    /// # Safety
    /// `u` is `[units, gates * units]`; `data` has [`Blocks::backward_size`] numbers.
    pub(super) unsafe fn backward(cpu: &Cpu, u: *const E, cell: Cell, data: *mut E) -> Self {
        let Cell { units, gates, batch } = cell;
        let width = 2 * LANES;
        let rows = gates * units;
        let blocks = Blocks::new(data, rows, 1, width, units, batch);
        let u = Shared(u.cast_mut());
        cpu.pool().run(blocks.count, |block| {
            let first = block * width;
            for from in (0..rows).step_by(LANES) {
                for unit in 0..width {
                    for row in from..(from + LANES).min(rows) {
                        // SAFETY: every task has its own block; the rows are inside u.
                        unsafe {
                            let inside = first + unit < units;
                            let value =
                                if inside { *u.get().add((first + unit) * rows + row) } else { E::ZERO };
                            *blocks.data.get().add((block * rows + row) * width + unit) = value;
                        }
                    }
                }
            }
        });
        blocks
    }

    /// Tasks of a step.
    fn tasks(&self) -> usize {
        self.count.div_ceil(self.per_task)
    }

    /// Numbers of working memory that a thread needs for the sums of one block.
    pub(super) fn sums_size(batch: usize, gates: usize) -> usize {
        batch * gates.max(2) * LANES
    }

    /// Numbers from one row of the sums to the next.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Calls `body(first unit, sums)` for every block, on all threads, with the product of `a` (`batch` rows, `lda` apart) and
    /// the block in `sums`, rows of [`Blocks::columns`]; without `a` the sums hold nothing of use.
    ///
    /// # Safety
    /// `a` has the rows, and `sums` room for every thread.
    pub(super) unsafe fn for_each(
        &self,
        cpu: &Cpu,
        batch: usize,
        a: Option<(*const E, usize)>,
        sums: *mut E,
        body: impl Fn(usize, *const E) + Sync,
    ) {
        let isa: Isa = cpu.isa();
        let size = batch * self.columns;
        let (sums, a) = (Shared(sums), a.map(|(a, lda)| (Shared(a.cast_mut()), lda)));
        cpu.pool().run_with_slot(self.tasks(), |slot, task| {
            let sums = sums.get().wrapping_add(slot * size);
            for block in task * self.per_task..((task + 1) * self.per_task).min(self.count) {
                if let Some((a, lda)) = a {
                    let product = Product {
                        m: batch,
                        n: self.columns,
                        k: self.rows,
                        a: a.get().cast_const(),
                        lda,
                        a_by_column: false,
                        b: self.data.get().wrapping_add(block * self.rows * self.columns),
                        ldb: self.columns,
                        c: sums,
                        ldc: self.columns,
                        accumulate: false,
                    };
                    // SAFETY: the caller's promise; every thread has its own sums.
                    unsafe { E::product(isa, &product) };
                }
                body(block * self.units, sums);
            }
        });
    }
}
