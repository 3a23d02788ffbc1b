//! Sources and pipelines: what they give, in which order, within how many bytes.

mod augment;
mod combine;
#[path = "../common/mod.rs"]
mod common;
mod every_source;
mod files;
mod images;
mod numbers;
mod pipeline;
mod random;
mod tables_and_shards;
