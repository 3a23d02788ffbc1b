//! Trains a small network on Fashion-MNIST inside a memory limit of 128 MiB; the README's example.
//!
//! Run with `cargo run --release -p plimsoll --example fashion -- /usr/share/datasets/fashion-mnist`. The folder holds the IDX
//! files, plain or gzipped; Debian's package `dataset-fashion-mnist` puts them there.

use plimsoll::prelude::*;

fn main() -> plimsoll::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "fashion-mnist".into());
    let train = Dataset::idx(format!("{folder}/train"))?.shuffle(10_000, 42).batch(128);
    let test = Dataset::idx(format!("{folder}/t10k"))?.batch(128);
    let model = Sequential::new([28, 28, 1])
        .conv2d(32, 3)
        .relu()
        .max_pool2d(2)
        .conv2d(64, 3)
        .relu()
        .max_pool2d(2)
        .flatten()
        .dropout(0.2)
        .dense(10);
    let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-3))
        .device(Device::cpu()?) // on a card (`Device::best`) the limit is of the card's memory
        .memory_limit("128MiB")?
        .metrics([Metric::Accuracy])
        .validation(test)
        .callback(ProgressBar::new());
    let plan = trainer.plan(&train)?; // what it will take, before it starts
    println!("{} planned, {} at the least", plan.figures.planned, plan.figures.floor);
    trainer.fit(&train, Epochs(3))?;
    trainer.save("fashion.safetensors")
}
