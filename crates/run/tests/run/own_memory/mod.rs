//! What tests of devices with memory of their own share.

use plimsoll_graph::example::Dice;
use plimsoll_graph::{RandomOps, Type};
use plimsoll_run::record::Step;
use plimsoll_run::{Device, Tensor};

pub fn is_card(device: &Device) -> bool {
    device.name().starts_with("cuda:")
}

pub fn noise(ty: &Type, scale: f64, seed: u64) -> Tensor {
    if ty.elements() > 1 << 20 {
        // A card draws its own: the host would take minutes.
        let key = Tensor::from_slice(&[seed as i64, 0, 0], [3]).unwrap();
        return key.random_normal(ty.clone(), 1, 0.0, scale).unwrap();
    }
    let mut dice = Dice::new(seed);
    let data: Vec<f64> = (0..ty.elements()).map(|_| scale * dice.normal()).collect();
    Tensor::from_f64(&data, ty.clone()).unwrap()
}

/// No two tensors of the arena share bytes while both are there.
pub fn assert_apart(timeline: &Step) {
    for (i, a) in timeline.tensors.iter().enumerate() {
        for b in &timeline.tensors[..i] {
            let at_once = a.from < b.to && b.from < a.to;
            let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            assert!(!at_once || apart, "{a:?} and {b:?}");
        }
    }
}
