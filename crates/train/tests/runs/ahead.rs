//! A device with memory of its own is given the next batch while it works on the one before: on the emulator where there is a
//! C++ compiler, whose copies happen no earlier than they are waited for.

use std::sync::{Arc, Mutex};

use plimsoll_data::{Column, Dataset};
use plimsoll_device::Bytes;
use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
use plimsoll_run::Device;
use plimsoll_testing::group;
use plimsoll_train::{Callback, Epochs, Result, StepEvent, Trainer};

/// Three full batches and a smaller one.
fn data() -> Dataset {
    let x: Vec<f32> = (0..14 * 6).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let y: Vec<i64> = (0..14i64).map(|i| i % 3).collect();
    let (x, y) = (Column::memory("x", x, [6]).unwrap(), Column::memory("y", y, []).unwrap());
    Dataset::columns([x, y]).unwrap().shuffle(100, 5).batch(4)
}

struct Losses(Arc<Mutex<Vec<f64>>>);

impl Callback for Losses {
    fn on_step(&mut self, event: &StepEvent) -> Result<()> {
        self.0.lock().unwrap().push(event.loss);
        Ok(())
    }
}

fn losses(device: Device, validation: bool) -> Vec<f64> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let model = Sequential::new([6]).dense(5).relu().dense(3);
    let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2))
        .device(device)
        .callback(Losses(seen.clone()));
    if validation {
        trainer = trainer.validation(data());
    }
    trainer.fit(data(), Epochs(3)).unwrap();
    std::mem::take(&mut *seen.lock().unwrap())
}

#[test]
fn batches_that_are_copied_ahead_train_as_those_that_are_not() {
    let Some(device) = group("emulator", Device::cuda_emulated(Bytes::mib(64))) else { return };
    let host = losses(Device::cpu_with(1, Bytes::mib(64)).unwrap(), false);
    assert_eq!(host.len(), 3 * 4);
    for validation in [false, true] {
        let ahead = losses(device.clone(), validation);
        assert_eq!(ahead.len(), host.len());
        for (step, (a, b)) in ahead.iter().zip(&host).enumerate() {
            assert!((a - b).abs() < 1e-5 * b.abs(), "step {step}: {a} ahead, {b} on the host");
        }
    }
}
