//! Three eager loops that other systems stumble over: many products at constant memory, a pool full of holes, and a leak.
//!
//! Run with `cargo run --release -p plimsoll --example eager_memory`.

use std::time::Instant;

use plimsoll::prelude::*;

fn main() -> plimsoll::Result<()> {
    products()?;
    holes()?;
    leak()
}

/// 100 products of 300 × 300 matrices: the memory after the last is that after the first.
fn products() -> plimsoll::Result<()> {
    let device = Device::cpu_with(plimsoll::device::process::allowed_cpus(), Bytes::mib(128))?;
    device.scope(|| {
        let square = Type::new(DType::F32, [300, 300]);
        let a = Tensor::full(square.clone(), 1.0 / 300.0)?;
        let mut b = Tensor::full(square, 1.0)?;
        let start = Instant::now();
        for i in 1..=100 {
            b = a.matmul(&b)?;
            if i == 1 || i % 25 == 0 {
                let info = device.memory_info();
                let resident = plimsoll::device::process::resident().unwrap_or(Bytes(0));
                println!("product {i:3}: {} in use, peak {}, process {resident}", info.current, info.peak);
            }
        }
        println!("100 products in {:.1} s\n", start.elapsed().as_secs_f64());
        Ok(())
    })
}

/// 63 blocks of 4 MiB in a 256 MiB limit, every other one freed, then 8 MiB asked for.
fn holes() -> plimsoll::Result<()> {
    let device = Device::cpu_with(1, Bytes::mib(256))?;
    device.scope(|| {
        let mut blocks = Vec::new();
        for _ in 0..63 {
            blocks.push(Some(Tensor::zeros(Type::new(DType::U8, [4 << 20]))?));
        }
        blocks.iter_mut().skip(1).step_by(2).for_each(|block| *block = None);
        let start = Instant::now();
        let refused = Tensor::zeros(Type::new(DType::U8, [8 << 20]));
        let waited = start.elapsed();
        let why = refused.map(|_| String::new()).unwrap_or_else(|error| error.to_string());
        println!("{why}\n\nrefused after {waited:?}\n");
        assert!(why.contains("fragmentation"));
        Ok(())
    })
}

/// A loop that keeps every loss, with all that it was computed from.
fn leak() -> plimsoll::Result<()> {
    let device = Device::cpu_with(1, Bytes::mib(64))?;
    device.scope(|| {
        // ANCHOR: leak
        let mut losses = Vec::new();
        let mut grown = Vec::new();
        for _ in 0..10 {
            let outputs = Tensor::full(Type::new(DType::F32, [256, 256]), 1.0)?.tanh()?;
            losses.push(outputs); // a tensor is kept where a number would do
            grown = device.mark_step();
        }
        grown.iter().for_each(|growth| println!("{growth}"));
        // ANCHOR_END: leak
        assert!(grown.len() == 1 && losses.len() == 10);
        Ok(())
    })
}
