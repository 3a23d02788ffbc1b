//! Values that the Python scripts beside the tests compute as well, so that only results are kept in files.

use plimsoll_graph::Type;
use plimsoll_run::Tensor;

fn bits(stream: u64, i: u64) -> u64 {
    let mut z = (stream << 32).wrapping_add(i);
    z = z.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Evenly spread between minus and plus a bound.
pub fn uniform(stream: u64, ty: &Type, bound: f64) -> Tensor {
    let draw = |i: u64| {
        let u = (bits(stream, i) >> 40) as f64 / (1u64 << 24) as f64;
        ((2.0 * u - 1.0) * bound) as f32
    };
    let data: Vec<f32> = (0..ty.elements() as u64).map(draw).collect();
    Tensor::from_slice(&data, &ty.shape).unwrap()
}

/// Integers from 0 to below `classes`.
pub fn labels(stream: u64, ty: &Type, classes: u64) -> Tensor {
    let data: Vec<i64> = (0..ty.elements() as u64).map(|i| (bits(stream, i) % classes) as i64).collect();
    Tensor::from_slice(&data, &ty.shape).unwrap()
}
