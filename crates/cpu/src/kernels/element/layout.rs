//! Turns a shape and the operands that broadcast to it into tiles: runs of elements small enough for the first-level
//! cache, and where each operand's elements for a run lie.
//!
//! Neighbouring axes over which no operand changes its pattern are merged first, so that most calls have one axis
//! (equal shapes) or two (a row or a column against a matrix).

use plimsoll_device::backend::Operand;
use plimsoll_graph::Shape;
use smallvec::SmallVec;

/// Elements that make a task worth waking a thread for.
const TASK: usize = 16 * 1024;

/// The merged axes, innermost first, and each operand's strides along them.
pub(super) struct Layout {
    lengths: SmallVec<[usize; 6]>,
    /// `strides[input * lengths.len() + axis]`, in elements; 0 where the operand is repeated.
    strides: SmallVec<[usize; 64]>,
    n_inputs: usize,
}

impl Layout {
    /// The layout of inputs that broadcast to `shape`.
    pub(super) fn new(shape: &Shape, inputs: &[Operand<'_>]) -> Layout {
        let mut lengths: SmallVec<[usize; 6]> = SmallVec::new();
        // One row of strides an axis while axes are merged; turned around at the end.
        let mut rows: SmallVec<[usize; 64]> = SmallVec::new();
        let mut next: SmallVec<[usize; 16]> = SmallVec::from_elem(1, inputs.len());
        let mut here: SmallVec<[usize; 16]> = SmallVec::from_elem(0, inputs.len());
        for axis in (0..shape.rank()).rev() {
            for (i, x) in inputs.iter().enumerate() {
                let missing = shape.rank() - x.ty.shape.rank();
                let length = if axis < missing { 1 } else { x.ty.shape[axis - missing] };
                here[i] = if length == 1 { 0 } else { next[i] };
                next[i] *= length;
            }
            if shape[axis] == 1 {
                continue;
            }
            let fits = |last: usize| {
                let strides = &rows[rows.len() - inputs.len()..];
                strides.iter().zip(&here).all(|(&inner, &outer)| outer == inner * last)
            };
            match lengths.last_mut() {
                Some(last) if fits(*last) => *last *= shape[axis],
                _ => {
                    lengths.push(shape[axis]);
                    rows.extend_from_slice(&here);
                }
            }
        }
        if lengths.is_empty() {
            lengths.push(1);
            rows.extend(std::iter::repeat_n(0, inputs.len()));
        }
        let n_axes = lengths.len();
        let mut strides = SmallVec::from_elem(0, rows.len());
        for axis in 0..n_axes {
            for i in 0..inputs.len() {
                strides[i * n_axes + axis] = rows[axis * inputs.len() + i];
            }
        }
        Layout { lengths, strides, n_inputs: inputs.len() }
    }

    /// Whether every input lies as the result does or is one value.
    pub(super) fn is_plain(&self) -> bool {
        self.lengths.len() == 1
    }

    /// The length of the innermost axis.
    pub(super) fn inner(&self) -> usize {
        self.lengths[0]
    }

    /// The number of runs along the innermost axis.
    pub(super) fn rows(&self) -> usize {
        self.lengths[1..].iter().product()
    }

    /// An input's strides, innermost first.
    pub(super) fn strides(&self, input: usize) -> &[usize] {
        &self.strides[input * self.lengths.len()..(input + 1) * self.lengths.len()]
    }

    /// Whether an input's elements lie as the result's do.
    pub(super) fn is_flat(&self, input: usize) -> bool {
        let mut expected = 1;
        self.strides(input).iter().zip(&self.lengths).all(|(&stride, &length)| {
            let same = stride == expected;
            expected *= length;
            same
        })
    }

    /// Whether an input is the same for every row.
    pub(super) fn is_one_row(&self, input: usize) -> bool {
        self.strides(input)[1..].iter().all(|&s| s == 0)
    }

    /// The offset of an input's element at the start of a row.
    pub(super) fn row_offset(&self, input: usize, mut row: usize) -> usize {
        debug_assert!(input < self.n_inputs);
        let mut offset = 0;
        for (&stride, &length) in self.strides(input)[1..].iter().zip(&self.lengths[1..]) {
            offset += row % length * stride;
            row /= length;
        }
        offset
    }

    /// The cut into tiles of at most `longest` elements.
    pub(super) fn tiles(&self, longest: usize) -> Tiles {
        let (inner, rows) = (self.inner(), self.rows());
        // Rows of which several fit are gathered into one tile, instead of being tiles of their own.
        let gathers = self.lengths.len() > 1 && inner * 2 <= longest;
        let (per_row, rows_each) = if gathers { (1, longest / inner) } else { (inner.div_ceil(longest), 1) };
        let n_tiles = if gathers { rows.div_ceil(rows_each) } else { rows * per_row };
        let length = if gathers { rows_each * inner } else { inner.div_ceil(per_row.max(1)) };
        Tiles {
            inner,
            rows,
            longest,
            gathers,
            per_row,
            rows_each,
            n_tiles,
            per_task: (TASK / length.max(1)).max(1),
        }
    }
}

/// How a layout is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    inner: usize,
    rows: usize,
    longest: usize,
    /// Whether a tile is several short rows; else it is a part of one row.
    pub gathers: bool,
    per_row: usize,
    rows_each: usize,
    n_tiles: usize,
    per_task: usize,
}

/// One tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    /// Its first row.
    pub row: usize,
    /// Its first element in that row.
    pub col: usize,
    /// Its first element in the result.
    pub start: usize,
    /// Its elements.
    pub n: usize,
}

impl Tiles {
    /// The number of tasks; a function of the shape alone.
    pub(super) fn n_tasks(&self) -> usize {
        self.n_tiles.div_ceil(self.per_task)
    }

    /// The tiles of a task.
    pub(super) fn of_task(&self, task: usize) -> impl Iterator<Item = Tile> {
        let first = task * self.per_task;
        let all = *self;
        (first..(first + self.per_task).min(self.n_tiles)).map(move |i| all.tile(i))
    }

    fn tile(&self, i: usize) -> Tile {
        if self.gathers {
            let row = i * self.rows_each;
            let rows = self.rows_each.min(self.rows - row);
            Tile { row, col: 0, start: row * self.inner, n: rows * self.inner }
        } else {
            let (row, part) = (i / self.per_row, i % self.per_row);
            let col = part * self.longest;
            Tile { row, col, start: row * self.inner + col, n: self.longest.min(self.inner - col) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{DType, Type};

    fn layout(shape: &[usize], inputs: &[&[usize]]) -> (SmallVec<[usize; 6]>, Vec<Vec<usize>>) {
        let types: Vec<Type> = inputs.iter().map(|s| Type::new(DType::F32, *s)).collect();
        let operands: Vec<Operand<'_>> =
            types.iter().map(|ty| Operand { ty, ptr: std::ptr::null_mut() }).collect();
        let layout = Layout::new(&Shape::from(shape), &operands);
        let strides = (0..inputs.len()).map(|i| layout.strides(i).to_vec()).collect();
        (layout.lengths, strides)
    }

    #[test]
    fn axes_of_one_pattern_are_merged() {
        assert_eq!(
            layout(&[2, 3, 4], &[&[2, 3, 4], &[]]),
            (SmallVec::from_slice(&[24]), vec![vec![1], vec![0]])
        );
        let (lengths, strides) = layout(&[2, 3, 4], &[&[2, 3, 4], &[4], &[2, 3, 1]]);
        assert_eq!((lengths.as_slice(), strides), (&[4, 6][..], vec![vec![1, 4], vec![1, 0], vec![0, 1]]));
        let (lengths, strides) = layout(&[2, 3, 4], &[&[2, 1, 4], &[3, 1]]);
        assert_eq!((lengths.as_slice(), strides), (&[4, 3, 2][..], vec![vec![1, 0, 4], vec![0, 1, 0]]));
    }

    #[test]
    fn tiles_cover_every_element_once() {
        for (shape, row) in
            [(&[1000][..], &[1000][..]), (&[70, 3], &[3]), (&[5, 700], &[700]), (&[0, 4], &[4])]
        {
            let types = [Type::new(DType::F32, shape), Type::new(DType::F32, row)];
            let operands: Vec<Operand<'_>> =
                types.iter().map(|ty| Operand { ty, ptr: std::ptr::null_mut() }).collect();
            let tiles = Layout::new(&Shape::from(shape), &operands).tiles(512);
            let mut at = 0;
            for tile in (0..tiles.n_tasks()).flat_map(|task| tiles.of_task(task)) {
                assert_eq!(tile.start, at);
                assert!(tile.n <= 512 && tile.start == tile.row * tiles.inner + tile.col);
                at += tile.n;
            }
            assert_eq!(at, shape.iter().product::<usize>());
        }
    }
}
