//! One compiled training step under a memory limit for the whole process, without a loop around it.
//!
//! Run with `cargo run --release -p plimsoll --example line`.

use plimsoll::prelude::*;

fn main() -> plimsoll::Result<()> {
    // Two threads, and a hard limit on what tensors may take together.
    Device::cpu_with(2, Bytes::mib(64))?.scope(|| {
        let model = |net: &mut Net, x: &[Tensor]| {
            let h = net.dense("hidden", &x[0], 64, true)?.relu()?;
            net.dense("out", &h, 10, true)
        };
        let (x, y) = (Type::new(DType::F32, [32, 784]), Type::new(DType::I64, [32]));
        let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), x.clone(), y.clone());
        recipe.request.limit = Some(Bytes::mib(24)); // the line, for the whole process
        let mut training = Training::new(model, recipe, 42)?;
        println!("planned {}, the least is {}", training.info().planned, training.info().floor);
        let (x, y) = (Tensor::full(x, 0.5)?, Tensor::zeros(y)?);
        for _ in 0..100 {
            training.step(&[&x], &y)?; // forward, backward and update: no allocation
        }
        Ok(())
    })
}
