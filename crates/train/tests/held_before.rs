//! A program around the engine may hold what it likes: a memory limit counts what is taken beyond that. Alone in its process.

use plimsoll_data::{Column, Dataset};
use plimsoll_device::{Bytes, process};
use plimsoll_nn::{Sequential, Sgd, softmax_cross_entropy};
use plimsoll_run::{Device, PROGRAM};
use plimsoll_train::{Epochs, Trainer};

#[test]
fn what_was_held_before_is_no_part_of_the_limit() {
    if process::resident().is_none() {
        return;
    }
    let held = vec![1u8; 96 << 20];
    let x = Column::memory("x", vec![0.5f32; 64 * 64], [64]).unwrap();
    let y = Column::memory("y", vec![0i64; 64], []).unwrap();
    let data = Dataset::columns([x, y]).unwrap().batch(16);
    let model = || Sequential::new([64]).dense(64).relu().dense(2);
    let trainer = || {
        let device = Device::cpu_threads(1).unwrap();
        Trainer::new(model(), softmax_cross_entropy, Sgd::new(0.1)).device(device)
    };
    let program = |trainer: &Trainer| trainer.plan(&data).unwrap().figures.account.program;
    assert!(program(&trainer()) > Bytes::mib(96), "a large program is measured");
    process::set_held_before(process::resident().unwrap());
    assert_eq!(program(&trainer()), PROGRAM, "what the engine takes is as declared");
    let least = trainer().least(&data).unwrap();
    assert!(least < Bytes::mib(64), "{least}");
    let mut tight = trainer().memory_limit_bytes(Some(least));
    tight.fit(&data, Epochs(1)).unwrap();
    let counted = Device::cpu_threads(1).unwrap().counted();
    assert!(counted.now <= least && process::resident().unwrap() > Bytes::mib(96), "{counted:?}");
    drop(held);
}
