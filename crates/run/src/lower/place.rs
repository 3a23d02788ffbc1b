//! Where bytes are while a program runs.

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The bytes of an argument.
    Argument(usize),
    /// The bytes of a result.
    Result(usize),
    /// An offset of the arena.
    Arena(usize),
}

/// A copy on the device that no plan orders: before everything else, or after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) from: Place,
    pub(crate) to: Place,
    pub(crate) bytes: usize,
}
