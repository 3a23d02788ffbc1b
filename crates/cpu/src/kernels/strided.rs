//! Copies elements from one strided arrangement to another: what broadcast, transpose, slice, pad, concat and split
//! come down to.
//!
//! Axes that continue each other on both sides are merged; what is left runs as whole-row copies, as fills, or, when
//! the sides disagree on the innermost axis, as small square blocks that both sides read and write by cache lines.

use smallvec::SmallVec;

use crate::gemm::Shared;
use crate::pool::Pool;

/// Elements that make a task worth waking a thread for.
const TASK: usize = 32 * 1024;
/// The side of a transposed block: a cache line of floats.
const SIDE: usize = 16;
/// A transposed patch: few enough rows on either side that their pages stay in the translation buffer.
const TALL: usize = 1024;
const WIDE: usize = 64;

/// One axis: how many elements, and how far apart they are on both sides, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub length: usize,
    pub from: usize,
    pub to: usize,
}

/// Axes, outermost first.
pub(super) type Axes = SmallVec<[Axis; 8]>;

/// Merges axes that continue each other on both sides and drops those of length 1.
fn merge(axes: &[Axis]) -> Axes {
    let mut merged = Axes::new();
    for &axis in axes.iter().filter(|a| a.length != 1) {
        match merged.last_mut() {
            Some(outer) if outer.from == axis.from * axis.length && outer.to == axis.to * axis.length => {
                *outer = Axis { length: outer.length * axis.length, ..axis };
            }
            _ => merged.push(axis),
        }
    }
    merged
}

/// Copies every element of `axes` from its place in `from` to its place in `to`.
///
/// # Safety
/// All places must lie in memory that can be read and written, and no place of `to` in `from`.
pub(super) unsafe fn copy(pool: &Pool, bytes: usize, axes: &[Axis], from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match bytes {
            1 => copy_typed::<u8>(pool, axes, from.cast(), to.cast()),
            2 => copy_typed::<u16>(pool, axes, from.cast(), to.cast()),
            4 => copy_typed::<u32>(pool, axes, from.cast(), to.cast()),
            _ => copy_typed::<u64>(pool, axes, from.cast(), to.cast()),
        }
    }
}

unsafe fn copy_typed<T: Copy + Send + Sync>(pool: &Pool, axes: &[Axis], from: *const T, to: *mut T) {
    if axes.iter().any(|a| a.length == 0) {
        return;
    }
    let mut axes = merge(axes);
    let inner = axes.pop().unwrap_or(Axis { length: 1, from: 1, to: 1 });
    let (from, to) = (Shared(from.cast_mut()), Shared(to));
    // When another axis is the dense one on the reading side, both are walked together.
    let dense = axes.iter().position(|a| a.from == 1 && a.to != 0);
    if let (Some(position), true) = (dense, inner.from > 1) {
        let across = axes.remove(position);
        let rows = axes.iter().map(|a| a.length).product::<usize>();
        let (tall, wide) = (across.length.div_ceil(TALL), inner.length.div_ceil(WIDE));
        let n_patches = rows * tall * wide;
        let per_task = (TASK / (TALL.min(across.length) * WIDE.min(inner.length))).max(1);
        pool.run(n_patches.div_ceil(per_task), |task| {
            for i in task * per_task..((task + 1) * per_task).min(n_patches) {
                let (row, p, q) = (i / (tall * wide), i % tall * TALL, i / tall % wide * WIDE);
                let (a, b) = offsets(&axes, row);
                let n_p = TALL.min(across.length - p);
                let part = Axis { length: WIDE.min(inner.length - q), ..inner };
                let from = from.get().wrapping_add(a + p + q * inner.from).cast_const();
                let to = to.get().wrapping_add(b + p * across.to + q * inner.to);
                for first in (0..n_p).step_by(SIDE) {
                    let to = to.wrapping_add(first * across.to);
                    // SAFETY: the strip is a part of the axes.
                    unsafe { turn(from.wrapping_add(first), to, SIDE.min(n_p - first), part, across.to) };
                }
            }
        });
        return;
    }
    let rows = axes.iter().map(|a| a.length).product::<usize>();
    let parts = inner.length.div_ceil(TASK);
    let part = inner.length.div_ceil(parts);
    let per_task = (TASK / part).max(1);
    pool.run((rows * parts).div_ceil(per_task), |task| {
        for i in task * per_task..((task + 1) * per_task).min(rows * parts) {
            let (row, first) = (i / parts, i % parts * part);
            let (a, b) = offsets(&axes, row);
            let n = part.min(inner.length.saturating_sub(first));
            let from = from.get().wrapping_add(a + first * inner.from).cast_const();
            let to = to.get().wrapping_add(b + first * inner.to);
            // SAFETY: the part is a part of the axes.
            unsafe { run(from, to, n, inner) };
        }
    });
}

/// Where a row starts on both sides.
fn offsets(axes: &[Axis], mut row: usize) -> (usize, usize) {
    let (mut from, mut to) = (0, 0);
    for axis in axes.iter().rev() {
        let i = row % axis.length;
        row /= axis.length;
        from += i * axis.from;
        to += i * axis.to;
    }
    (from, to)
}

/// One run along the innermost axis.
unsafe fn run<T: Copy>(from: *const T, to: *mut T, n: usize, axis: Axis) {
    // SAFETY: the caller says that the run can be read and written.
    unsafe {
        match (axis.from, axis.to) {
            (1, 1) => std::ptr::copy_nonoverlapping(from, to, n),
            (0, 1) => std::slice::from_raw_parts_mut(to, n).fill(*from),
            (a, b) => (0..n).for_each(|i| *to.add(i * b) = *from.add(i * a)),
        }
    }
}

/// A strip of `n` (at most [`SIDE`]) dense elements on the reading side by the whole inner axis.
unsafe fn turn<T: Copy>(from: *const T, to: *mut T, n: usize, inner: Axis, to_stride: usize) {
    let mut q = 0;
    while n == SIDE && inner.to == 1 && q + SIDE <= inner.length {
        // SAFETY: the block lies inside the strip.
        unsafe {
            let mut block = [[*from; SIDE]; SIDE];
            for (j, row) in block.iter_mut().enumerate() {
                *row = from.add((q + j) * inner.from).cast::<[T; SIDE]>().read_unaligned();
            }
            for p in 0..SIDE {
                let mut line = [*from; SIDE];
                for j in 0..SIDE {
                    line[j] = block[j][p];
                }
                to.add(p * to_stride + q).cast::<[T; SIDE]>().write_unaligned(line);
            }
        }
        q += SIDE;
    }
    for q in q..inner.length {
        for p in 0..n {
            // SAFETY: as above.
            unsafe { *to.add(p * to_stride + q * inner.to) = *from.add(p + q * inner.from) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(length: usize, from: usize, to: usize) -> Axis {
        Axis { length, from, to }
    }

    #[test]
    fn axes_that_continue_each_other_are_merged() {
        assert_eq!(
            merge(&[axis(2, 12, 12), axis(1, 7, 7), axis(3, 4, 4), axis(4, 1, 1)]).as_slice(),
            [axis(24, 1, 1)]
        );
        assert_eq!(merge(&[axis(2, 3, 3), axis(3, 1, 4)]).len(), 2);
    }

    #[test]
    fn a_large_matrix_is_transposed_in_blocks() {
        let (rows, cols) = (183, 1130);
        let from: Vec<u32> = (0..rows * cols).collect();
        let mut to = vec![0u32; from.len()];
        let axes = [axis(cols as usize, 1, rows as usize), axis(rows as usize, cols as usize, 1)];
        // SAFETY: both sides have all elements.
        unsafe { copy(&Pool::new(2), 4, &axes, from.as_ptr().cast(), to.as_mut_ptr().cast()) };
        for r in 0..rows {
            for c in 0..cols {
                assert_eq!(to[(c * rows + r) as usize], r * cols + c);
            }
        }
    }
}
