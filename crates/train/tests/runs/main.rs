//! Runs of a trainer as a user has them: begun, stopped, gone on with, damaged, in every order.

mod ahead;
mod announced;
mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod counted;
mod custom;
mod epochs;
mod faults;
mod groups;
mod nothing;
mod order;
mod parts;
mod paths;
mod pruning;
mod ranks;
mod shards;
mod stages;
mod stop;
mod wide;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use plimsoll_data::{Column, Dataset};
use plimsoll_device::Bytes;
use plimsoll_nn::{Adam, Metric, Sequential, softmax_cross_entropy};
use plimsoll_run::Device;
use plimsoll_train::{Callback, Notice, Trainer};

/// Keeps what it is told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Notice>>>);

impl Callback for Told {
    fn on_notice(&mut self, notice: &Notice) -> plimsoll_train::Result<()> {
        self.0.lock().unwrap().push(notice.clone());
        Ok(())
    }
}

/// Samples of the data; with batches of 4, six an epoch, the last a small one.
const SAMPLES: usize = 22;

/// Samples without batches.
fn samples(n: usize) -> Dataset {
    let x: Vec<f32> = (0..n * 6).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let y: Vec<i64> = (0..n as i64).map(|i| i % 3).collect();
    let (x, y) = (Column::memory("x", x, [6]).unwrap(), Column::memory("y", y, []).unwrap());
    Dataset::columns([x, y]).unwrap()
}

fn data() -> Dataset {
    samples(SAMPLES).shuffle(100, 5).batch(4)
}

fn model() -> Sequential {
    Sequential::new([6]).dense(5).relu().dropout(0.2).dense(3)
}

fn device() -> Device {
    Device::cpu_with(1, Bytes::mib(64)).unwrap()
}

fn trainer() -> Trainer {
    Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-2)).device(device()).metrics([Metric::Accuracy])
}

fn weights(trainer: &Trainer) -> Vec<Vec<u8>> {
    trainer.parameters().map(|(_, value)| value.to_bytes().unwrap()).collect()
}

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("plimsoll-runs-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Turns a bit of a file's last byte.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}
