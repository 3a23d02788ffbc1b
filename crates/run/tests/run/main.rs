//! A device, eager and traced, as a user of it has it.

mod allocators;
#[path = "../dense/mod.rs"]
mod dense;
mod eager;
mod flow;
mod hosted;
mod integers;
mod kept_choices;
mod offload;
mod own_memory;
mod own_ops;
mod placement;
mod profile;
mod ranks;
mod traced;
mod trim;
