//! A steady step of a run allocates nothing: pipeline, staging, step and callbacks together.

use std::sync::{Arc, Mutex};

use plimsoll_data::{Column, Dataset};
use plimsoll_nn::{Adam, Metric, Sequential, softmax_cross_entropy};
use plimsoll_testing::Counting;
use plimsoll_train::{Callback, Epochs, Result, StepEvent, StepLog, Trainer};

#[global_allocator]
static COUNTING: Counting = Counting;

/// Notes the number of allocations after every step.
struct Counts(Arc<Mutex<Vec<usize>>>);

impl Callback for Counts {
    fn on_step(&mut self, _: &StepEvent) -> Result<()> {
        self.0.lock().unwrap().push(Counting::allocations());
        Ok(())
    }
}

#[test]
fn a_steady_step_allocates_nothing() {
    let x: Vec<f32> = (0..400 * 16).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let y: Vec<i64> = (0..400).map(|i| i % 3).collect();
    let (x, y) = (Column::memory("x", x, [4, 4, 1]).unwrap(), Column::memory("y", y, []).unwrap());
    let data = Dataset::columns([x, y]).unwrap().shuffle(400, 5).batch(4).prefetch(2).workers(1);
    let log = std::env::temp_dir().join(format!("plimsoll-steady-{}.csv", std::process::id()));
    let counts = Arc::new(Mutex::new(Vec::with_capacity(200)));
    let model = Sequential::new([4, 4, 1]).conv2d(4, 3).batch_norm().relu().flatten().dropout(0.2).dense(3);
    let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2))
        .metrics([Metric::Accuracy])
        .callback(StepLog::new(&log))
        .callback(Counts(counts.clone()));
    trainer.fit(data, Epochs(1)).unwrap();
    std::fs::remove_file(&log).unwrap();
    let counts = counts.lock().unwrap();
    let steady: Vec<usize> = counts[20..].windows(2).map(|pair| pair[1] - pair[0]).collect();
    // A thread's first wait on a busy machine may cost it a parking place; no step has a cost of its own.
    let costly = steady.iter().filter(|&&allocations| allocations > 0).count();
    assert!(costly <= 3 && steady.iter().sum::<usize>() < steady.len() / 2, "{steady:?}");
}
