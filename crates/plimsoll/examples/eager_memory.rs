//! Two eager loops that other systems stumble over: many large products at constant memory, and a pool full of holes.
//!
//! Run with `cargo run --release -p plimsoll --example memory`.

use std::time::Instant;

use plimsoll::prelude::*;

fn main() -> plimsoll::Result<()> {
    products()?;
    holes()
}

/// 500 products of 2000 × 2000 matrices: the memory after the last is that after the first.
fn products() -> plimsoll::Result<()> {
    let device = Device::cpu_with(plimsoll::device::process::allowed_cpus(), Bytes::mib(128))?;
    device.scope(|| {
        let square = Type::new(DType::F32, [2000, 2000]);
        let a = Tensor::full(square.clone(), 1.0 / 2000.0)?;
        let mut b = Tensor::full(square, 1.0)?;
        let start = Instant::now();
        for i in 1..=500 {
            b = a.matmul(&b)?;
            if i == 1 || i % 100 == 0 {
                let info = device.memory_info();
                let resident = plimsoll::device::process::resident().unwrap_or(Bytes(0));
                println!("product {i:3}: {} in use, peak {}, process {resident}", info.current, info.peak);
            }
        }
        println!("500 products in {:.1} s\n", start.elapsed().as_secs_f64());
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
        match refused {
            Ok(_) => println!("8 MiB fitted"),
            Err(error) => println!("{error}\n\nrefused after {waited:?}"),
        }
        Ok(())
    })
}
