//! Turns an order and a budget into a schedule that fits: which tensors to drop, and when to make them again.
//!
//! Equal layers are not looked for. On steps of 24, 100 and 1,000 equal layers (939, 3,903 and 39,003 ops; `tests/scale.rs`
//! builds them) schedules in half the memory took 1.072, 1.068 and 1.072 of the time without a budget, and in 15 % of it
//! 1.224, 1.221 and 1.221: a step of many layers is planned as well as one of few, whose layers the search sees one by one.
//! What planning once for all of them could save is time, where the layers are many and the budget is small: 3 to 7 seconds.

pub(crate) mod improve;
pub(crate) mod repair;
pub(crate) mod snapshots;
pub(crate) mod spread;
pub(crate) mod state;
pub(crate) mod tree;
