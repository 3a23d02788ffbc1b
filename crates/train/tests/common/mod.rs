//! What tests of trainings that fail share.

use std::path::Path;

use plimsoll_data::{Column, Dataset};
use plimsoll_nn::{Adam, Metric, Sequential, softmax_cross_entropy};
use plimsoll_run::Device;
use plimsoll_train::{Checkpoints, Trainer};

/// Six batches an epoch, the last a small one.
pub const SAMPLES: usize = 22;

/// Samples of a shape in three classes.
pub fn data(shape: [usize; 3]) -> Dataset {
    let n = SAMPLES * shape.iter().product::<usize>();
    let x: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let y: Vec<i64> = (0..SAMPLES as i64).map(|i| i % 3).collect();
    let (x, y) = (Column::memory("x", x, shape).unwrap(), Column::memory("y", y, []).unwrap());
    Dataset::columns([x, y]).unwrap().shuffle(100, 5).batch(4)
}

/// A small net with everything that has state, over samples of a shape, that writes checkpoints every so many steps.
pub fn trainer(device: Device, shape: [usize; 3], filters: usize, folder: &Path, every: u64) -> Trainer {
    let model = Sequential::new(shape).conv2d(filters, 3).batch_norm().relu().flatten().dropout(0.2).dense(3);
    Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2))
        .device(device)
        .metrics([Metric::Accuracy])
        .checkpoints(Checkpoints::new(folder).every(every))
}
