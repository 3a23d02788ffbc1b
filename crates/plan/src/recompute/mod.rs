//! Turns an order and a budget into a schedule that fits: which tensors to drop, and when to make them again.

pub(crate) mod improve;
pub(crate) mod repair;
pub(crate) mod snapshots;
pub(crate) mod spread;
pub(crate) mod state;
pub(crate) mod tree;
