//! Trains a small network on images inside a memory limit, and again without one: the weights are the same, bit for bit.
//!
//! Run with `cargo run --release -p plimsoll --example memory_limit`.

use plimsoll::device::process;
use plimsoll::prelude::*;

fn main() -> plimsoll::Result<()> {
    // ANCHOR: data
    // 512 images of 28 × 28 gray pixels with a class each; here they are made, yours come from files.
    let pixels: Vec<f32> = (0..512u64 * 784).map(|i| ((i * 7919) % 251) as f32 / 250.0).collect();
    let classes: Vec<i64> = (0..512).map(|i| i % 10).collect();
    let x = Column::memory("image", pixels, [28, 28, 1])?;
    let data = Dataset::columns([x, Column::memory("class", classes, [])?])?.batch(128);
    // ANCHOR_END: data

    // ANCHOR: train
    let model = || Sequential::new([28, 28, 1]).conv2d(16, 3).relu().conv2d(16, 3).relu().flatten().dense(10);
    let trainer = || -> plimsoll::Result<Trainer> {
        Ok(Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-3))
            .device(Device::cpu()?) // on a card the limit is of the card's memory
            .exactness(Exactness::Bitwise)) // the same bits as without a limit, or a refusal
    };

    let free = trainer()?.plan(&data)?.figures;
    println!("without a limit a step takes {}, the least is {}", free.planned, free.floor);

    let mut limited = trainer()?.memory_limit("64MiB")?;
    let plan = limited.plan(&data)?.figures;
    println!("{} planned; {} ops recomputed instead of kept", plan.planned, plan.recomputed_ops);
    limited.fit(&data, Epochs(1))?;
    // ANCHOR_END: train

    let peak = process::peak_resident().unwrap_or(Bytes(0));
    println!("the process took {peak} at most");
    assert!(peak <= Bytes::mib(64));

    let mut unlimited = trainer()?;
    unlimited.fit(&data, Epochs(1))?;
    for ((param, a), (_, b)) in limited.parameters().zip(unlimited.parameters()) {
        assert_eq!(a.to_bytes()?, b.to_bytes()?, "{} differs", param.name);
    }
    println!("the weights are the same bits as those of a run without a limit");
    Ok(())
}
