//! Keeps the bytes still to place in each section and answers the largest of them over a span.
//!
//! The sections are kept in blocks of 64 with one summary a block, so that a query is a scan of at most two cut
//! blocks and of the summaries between them.

use std::ops::Range;

const BLOCK: usize = 64;

/// The bytes still to place in each section.
#[derive(Clone, Debug)]
pub(super) struct Load {
    total: Vec<u64>,
    /// Bytes to take off each total of a block.
    taken: Vec<u64>,
    /// The largest total of a block.
    most: Vec<u64>,
}

impl Load {
    /// `total` bytes to place in each section.
    pub fn new(total: &[u64]) -> Load {
        Load {
            total: total.to_vec(),
            taken: vec![0; total.len().div_ceil(BLOCK)],
            most: total.chunks(BLOCK).map(largest).collect(),
        }
    }

    /// Goes back to `total` bytes in each section.
    pub fn reset(&mut self, total: &[u64]) {
        self.total.copy_from_slice(total);
        self.taken.fill(0);
        for (most, block) in self.most.iter_mut().zip(total.chunks(BLOCK)) {
            *most = largest(block);
        }
    }

    /// The most bytes still to place in any section of `span`.
    pub fn most(&self, span: Range<usize>) -> u64 {
        let mut most = 0;
        for_blocks(span, |block, cells| {
            most = most.max(match cells {
                None => self.most[block],
                Some(cells) => largest(&self.total[cells]) - self.taken[block],
            });
        });
        most
    }

    /// The first section of `span` with as many bytes still to place as any other there.
    pub fn fullest(&self, span: Range<usize>) -> usize {
        let most = self.most(span.clone());
        span.clone().find(|&s| self.total[s] - self.taken[s / BLOCK] == most).unwrap_or(span.start)
    }

    /// Takes `size` bytes off every section of `span`.
    pub fn take(&mut self, span: Range<usize>, size: u64) {
        for_blocks(span, |block, cells| match cells {
            None => {
                self.taken[block] += size;
                self.most[block] -= size;
            }
            Some(cells) => {
                for total in &mut self.total[cells] {
                    *total -= size;
                }
                let end = ((block + 1) * BLOCK).min(self.total.len());
                self.most[block] = largest(&self.total[block * BLOCK..end]) - self.taken[block];
            }
        });
    }
}

fn largest(values: &[u64]) -> u64 {
    values.iter().copied().fold(0, u64::max)
}

/// Calls `visit(block, None)` for each block inside `span`, `visit(block, Some(cells))` for those cut by it.
fn for_blocks(span: Range<usize>, mut visit: impl FnMut(usize, Option<Range<usize>>)) {
    if span.is_empty() {
        return;
    }
    for block in span.start / BLOCK..=(span.end - 1) / BLOCK {
        let start = span.start.max(block * BLOCK);
        let end = span.end.min((block + 1) * BLOCK);
        visit(block, if end - start == BLOCK { None } else { Some(start..end) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_across_blocks_answer_as_plain_lists_do() {
        let mut plain: Vec<u64> = (0..300).map(|section| 1000 + section * 37 % 101).collect();
        let mut load = Load::new(&plain);
        for step in 0..200 {
            let start = step * 53 % 299;
            let span = start..(start + 1 + step * 71 % 300).min(300);
            load.take(span.clone(), step as u64 % 4);
            plain[span.clone()].iter_mut().for_each(|total| *total -= step as u64 % 4);
            let seen = start / 2..span.end;
            let most = plain[seen.clone()].iter().copied().max().unwrap_or(0);
            assert_eq!(load.most(seen.clone()), most);
            assert_eq!(plain[load.fullest(seen)], most);
        }
        load.reset(&plain);
        assert_eq!(load.most(0..300), plain.iter().copied().max().unwrap_or(0));
    }
}
