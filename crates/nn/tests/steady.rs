//! A steady-state training step performs no heap allocation.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{Adam, EightBit, Net, Optimizer, Recipe, Training, zoo};
use plimsoll_run::{Device, Result, Tensor};
use plimsoll_testing::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_steady_step_allocates_nothing() {
    let device = Device::cpu_with(2, Bytes::mib(512)).unwrap();
    device.scope(|| {
        let images = Type::new(DType::F32, [4, 16, 16, 3]);
        let pixels = Type::new(DType::I64, [4, 16, 16]);
        let tokens = Type::new(DType::I64, [4, 16]);
        let gpt = zoo::Gpt { vocabulary: 50, width: 32, layers: 2, heads: 4 };
        type Model = Box<dyn Fn(&mut Net, &[Tensor]) -> Result<Tensor> + Send + Sync>;
        let cases: Vec<(&str, Model, Type, Type)> = vec![
            ("unet", Box::new(|net, x| zoo::unet(net, &x[0], 8, 3, 2)), images.clone(), pixels),
            (
                "resnet18",
                Box::new(|net, x| zoo::resnet18(net, &x[0], 64, 10)),
                images.clone(),
                Type::new(DType::I64, [4]),
            ),
            (
                "dropout",
                Box::new(|net, x| {
                    let x = net.dropout("drop", &x[0].flatten(1)?, 0.5)?;
                    net.dense("out", &x, 10, true)
                }),
                images,
                Type::new(DType::I64, [4]),
            ),
            ("gpt", Box::new(move |net, x| zoo::gpt(net, &x[0], gpt)), tokens.clone(), tokens.clone()),
            ("lstm", Box::new(|net, x| zoo::lstm(net, &x[0], 50, 32, 2)), tokens.clone(), tokens),
        ];
        // State of one byte a number, too.
        let eight_bit = zoo::Gpt { width: 64, ..gpt };
        let mut all: Vec<_> =
            cases.into_iter().map(|case| (case, Arc::new(Adam::new(1e-3)) as Arc<dyn Optimizer>)).collect();
        let gpt: Model = Box::new(move |net, x| zoo::gpt(net, &x[0], eight_bit));
        let tokens = Type::new(DType::I64, [4, 16]);
        all.push((("8-bit gpt", gpt, tokens.clone(), tokens), EightBit::of(&Adam::new(1e-3)).unwrap()));
        for ((name, model, input, labels), optimizer) in all {
            let recipe = Recipe::cross_entropy(optimizer, input.clone(), labels.clone());
            let mut training = Training::new(model, recipe, 1).unwrap();
            let x = Tensor::full(input, 1.0).unwrap();
            let y = Tensor::full(labels, 1.0).unwrap();
            for _ in 0..2 {
                training.step(&[&x], &y).unwrap();
            }
            let before = Counting::allocations();
            for _ in 0..3 {
                training.step(&[&x], &y).unwrap();
            }
            let made = Counting::allocations() - before;
            assert_eq!(made, 0, "{name}: {made} heap allocations in three steps");
        }
    });
}
