//! Layers, optimizers and training steps, against PyTorch and Keras and against themselves.

mod common;
mod eight_bit;
mod floors;
mod layers;
mod metrics;
mod micro_batches;
mod offload;
mod optimizers;
mod precision;
mod records;
mod sites;
mod split;
mod training;
mod transaction;
