//! Layers, optimizers and training steps, against PyTorch and Keras and against themselves.

mod bf16_state;
mod common;
mod eight_bit;
mod floors;
mod layers;
mod metrics;
mod micro_batches;
mod narrow_state;
mod offload;
mod optimizers;
mod precision;
mod records;
mod sites;
mod split;
mod training;
mod transaction;
