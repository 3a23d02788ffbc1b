//! How the columns of a matrix are shared out among threads, for kernels that sum over rows.

use plimsoll_graph::DType;

use crate::launch::{Code, Grid};

/// Pieces that rows are cut into at most. A fixed number, so that results do not depend on the card's size.
pub(super) const PIECES: usize = 512;

/// How many columns a thread takes, and how many threads of a block lie side by side.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    columns: usize,
    together: usize,
    across: usize,
}

impl Cut {
    /// As many columns a thread as sixteen bytes hold, where rows are whole numbers of that.
    pub(super) fn new(dtype: DType, columns: usize) -> Cut {
        let most = 16 / dtype.bytes();
        Cut::by(columns, if columns.is_multiple_of(most) { most } else { 1 })
    }

    /// One column a thread: for operands that are not aligned.
    pub(super) fn single(columns: usize) -> Cut {
        Cut::by(columns, 1)
    }

    fn by(columns: usize, together: usize) -> Cut {
        Cut { columns, together, across: (columns / together).next_power_of_two().clamp(1, 32) }
    }

    /// Pieces that so many rows are cut into: a thread has at least four rows of each.
    pub(super) fn pieces(&self, rows: usize) -> usize {
        (PIECES / self.blocks().max(1)).clamp(1, rows.div_ceil(4 * 256 / self.across).max(1))
    }

    /// The source, which includes `columns.cu`, for this cut.
    pub(super) fn code(&self, code: Code<'static>) -> Code<'static> {
        code.with("N", self.together).with("ACROSS", self.across)
    }

    /// A block for some columns of every piece.
    pub(super) fn grid(&self, pieces: usize) -> Grid {
        Grid::tiles(self.blocks(), pieces, 1, 256)
    }

    /// A block for 32 columns: to join the pieces.
    pub(super) fn join(&self) -> Grid {
        Grid::tiles(self.columns.div_ceil(32), 1, 1, 256)
    }

    fn blocks(&self) -> usize {
        self.columns.div_ceil(self.across * self.together)
    }
}
