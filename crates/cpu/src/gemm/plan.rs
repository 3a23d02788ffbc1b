//! Turns the sizes of a product into blocks: which rows, columns and stretch of k make one task.
//!
//! The cuts depend on the sizes and the instruction set alone, never on the number of threads, so every sum is
//! formed in the same order by one thread or by many.

use super::tile::KC;
use std::ops::Range;

/// Tasks that a large product is cut into at least: enough to balance uneven threads.
const WANTED_TASKS: usize = 16;
/// Multiplications that make a task worth waking a thread for.
const WORTHWHILE: usize = 1 << 19;
/// Rows of a block at most (tiles of A are packed one by one, so this bounds only how often B is packed).
const BLOCK_ROWS: usize = 448;
/// Rows below which packing B for the block would no longer be cheap.
const LEAST_ROWS: usize = 84;
/// Columns of a block at most: `KC` times this is the packed B, which should stay in the second-level cache.
const BLOCK_COLS: usize = 256;
/// Bytes that the partial sums of a split k may take.
const PARTIAL_BYTES: usize = 4 << 20;

/// Bytes of B up to which it is packed once for all blocks.
const SHARED_BYTES: usize = 4 << 20;

/// How a product of m by n by k is cut. Tiles, panels and k-steps are numbered from 0 and cut evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    panel: usize,
    /// Rows that tiles do not reach beyond: m, or a line of a grid.
    width: usize,
    /// Floats that the left operand wants for itself in every thread's working memory.
    pub extra: usize,
    /// Tiles of A, all of nearly the same height.
    pub tiles: usize,
    /// Panels of B, all full but the last.
    pub panels: usize,
    /// Stretches of k that are packed at once.
    pub steps: usize,
    row_blocks: usize,
    col_blocks: usize,
    /// Parts of k whose sums are kept apart and added in order at the end.
    pub k_parts: usize,
}

/// One task: ranges of tiles, panels and k-steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub tiles: Range<usize>,
    pub panels: Range<usize>,
    pub steps: Range<usize>,
    pub k_part: usize,
}

fn cut(total: usize, parts: usize, i: usize) -> usize {
    total * i / parts.max(1)
}

impl Plan {
    /// Cuts one of `copies` products of the same size (batches, groups).
    pub(crate) fn new(m: usize, n: usize, k: usize, copies: usize, rows: usize, panel: usize) -> Plan {
        Plan::in_lines(1, m, n, k, copies, rows, panel)
    }

    /// The same for `lines * width` rows, where no tile may cross from one line to the next.
    pub(crate) fn in_lines(
        lines: usize,
        width: usize,
        n: usize,
        k: usize,
        copies: usize,
        rows: usize,
        panel: usize,
    ) -> Plan {
        let m = lines * width;
        let (tiles, panels, steps) = (lines * width.div_ceil(rows), n.div_ceil(panel), k.div_ceil(KC).max(1));
        let work = m.saturating_mul(n).saturating_mul(k).saturating_mul(copies);
        let wanted = (work / WORTHWHILE).clamp(1, WANTED_TASKS).div_ceil(copies.max(1));
        let mut col_blocks = panels.div_ceil(BLOCK_COLS / panel).max(1);
        let mut row_blocks = tiles.div_ceil(BLOCK_ROWS / rows).max(1);
        let mut k_parts = 1;
        let count = |r: usize, c: usize, p: usize| r * c * p;
        if count(row_blocks, col_blocks, 1) < wanted && steps >= 16 {
            let fits = PARTIAL_BYTES / (4 * m * n * copies).max(1);
            let missing = wanted.div_ceil(row_blocks * col_blocks);
            k_parts = missing.min(fits).min(steps / 8).max(1);
        }
        if count(row_blocks, col_blocks, k_parts) < wanted {
            let most = tiles.div_ceil(LEAST_ROWS.div_ceil(rows)).max(row_blocks);
            row_blocks = wanted.div_ceil(col_blocks * k_parts).min(most);
        }
        if count(row_blocks, col_blocks, k_parts) < wanted {
            let most = panels.div_ceil(2).max(col_blocks);
            col_blocks = wanted.div_ceil(row_blocks * k_parts).min(most);
        }
        Plan { m, n, k, panel, width, extra: 0, tiles, panels, steps, row_blocks, col_blocks, k_parts }
    }

    /// Number of tasks.
    pub(crate) fn blocks(&self) -> usize {
        if self.m == 0 || self.n == 0 { 0 } else { self.row_blocks * self.col_blocks * self.k_parts }
    }

    /// The task with this number. Neighbours share columns, so that B stays in the shared cache.
    pub(crate) fn block(&self, index: usize) -> Block {
        let (row, rest) = (index % self.row_blocks, index / self.row_blocks);
        let (part, col) = (rest % self.k_parts, rest / self.k_parts);
        let range = |total, parts, i| cut(total, parts, i)..cut(total, parts, i + 1);
        Block {
            tiles: range(self.tiles, self.row_blocks, row),
            panels: range(self.panels, self.col_blocks, col),
            steps: range(self.steps, self.k_parts, part),
            k_part: part,
        }
    }

    /// First row of a tile; `row(tiles)` is m.
    pub(crate) fn row(&self, tile: usize) -> usize {
        let per_line = self.tiles_per_line();
        tile / per_line * self.width + cut(self.width, per_line, tile % per_line)
    }

    fn tiles_per_line(&self) -> usize {
        (self.tiles * self.width).checked_div(self.m).unwrap_or(1).max(1)
    }

    /// Lines that a block touches at most.
    pub(crate) fn block_lines(&self) -> usize {
        self.tiles.div_ceil(self.row_blocks).saturating_sub(1) / self.tiles_per_line() + 2
    }

    /// Length of the longest step.
    pub(crate) fn step_len(&self) -> usize {
        self.k.div_ceil(self.steps)
    }

    /// First column of a panel; `col(panels)` is n.
    pub(crate) fn col(&self, panel: usize) -> usize {
        (panel * self.panel).min(self.n)
    }

    /// First k of a step; `depth(steps)` is k.
    pub(crate) fn depth(&self, step: usize) -> usize {
        cut(self.k, self.steps, step)
    }

    /// Panels of the widest block.
    pub(crate) fn block_panels(&self) -> usize {
        self.panels.div_ceil(self.col_blocks)
    }

    /// Rows of the tallest block, or slightly more.
    pub(crate) fn block_rows(&self) -> usize {
        self.tiles.div_ceil(self.row_blocks) * self.width.div_ceil(self.tiles_per_line())
    }

    /// Whether all of B is packed once, before the blocks begin, because several of them would pack the same.
    pub(crate) fn shares_b(&self, copies: usize) -> bool {
        copies == 1
            && self.row_blocks > 1
            && !self.few_rows()
            && 4 * self.k * self.padded_cols() <= SHARED_BYTES
    }

    /// Columns of B when its last panel is whole.
    pub(crate) fn padded_cols(&self) -> usize {
        self.panels * self.panel
    }

    /// Whether a packed panel of B is used by so few tiles that packing it does not pay.
    pub(crate) fn few_rows(&self) -> bool {
        self.m <= 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_every_tile_panel_and_step_once() {
        for (m, n, k) in
            [(1, 1, 0), (16, 1024, 256), (576, 64, 65536), (1000, 37, 300), (65536, 64, 576), (7, 10, 9)]
        {
            for (rows, panel) in [(14, 32), (6, 16), (4, 16)] {
                let plan = Plan::new(m, n, k, 1, rows, panel);
                let mut seen = vec![0u8; plan.tiles * plan.panels * plan.steps];
                for i in 0..plan.blocks() {
                    let block = plan.block(i);
                    for t in block.tiles {
                        for p in block.panels.clone() {
                            for s in block.steps.clone() {
                                seen[(t * plan.panels + p) * plan.steps + s] += 1;
                            }
                        }
                    }
                }
                assert!(seen.iter().all(|&count| count == 1), "{plan:?}");
                assert!((0..plan.tiles).all(|t| plan.row(t + 1) - plan.row(t) <= rows));
                assert!((0..plan.steps).all(|s| plan.depth(s + 1) - plan.depth(s) <= KC));
            }
        }
    }

    #[test]
    fn a_long_k_with_a_small_output_is_split_within_the_bound() {
        let plan = Plan::new(576, 64, 65536, 1, 14, 32);
        assert!(plan.k_parts > 1 && plan.blocks() >= WANTED_TASKS);
        assert!(plan.k_parts * 576 * 64 * 4 <= PARTIAL_BYTES);
    }
}
