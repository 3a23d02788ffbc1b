//! Losses and gradients of a linear layer with cross-entropy, made at once and one after the other, for any backend: the same bits.

use plimsoll_graph::example::{Dice, Domain, Example};
use plimsoll_graph::ops::JointCrossEntropy;
use plimsoll_graph::reference::Array;
use plimsoll_graph::{DType, Scalar, Type};

use crate::reference::{Bench, Output, check_bits, run};

/// Checks that losses and gradients of a linear layer with cross-entropy, made at once, have the bits that they have one after the other: so many samples,
/// features and classes.
///
/// # Panics
/// If a kernel fails, or the bits differ.
pub fn check_joint_cross_entropy(
    bench: &Bench<'_>,
    [rows, width, classes]: [usize; 3],
    dtype: DType,
    cap: Option<Scalar>,
) {
    let of = |dtype, shape: &[usize]| Type::new(dtype, shape);
    let sample = of(dtype.accumulator(), &[rows]);
    let operands = vec![
        (of(dtype, &[rows, width]), Domain::Normal),
        (of(dtype, &[classes, width]), Domain::Normal),
        (of(DType::I64, &[rows]), Domain::Index(classes)),
    ];
    let (dloss, lse) = ((sample.clone(), Domain::Normal), (sample, Domain::Positive));
    for dx in [true, false] {
        let joint = JointCrossEntropy { cap, dx };
        let (losses, gradients) = joint.apart();
        let all = Example::new(joint, [&operands[..], std::slice::from_ref(&dloss)].concat());
        let values = all.fill(&mut Dice::new(7));
        let together = run(bench, &all, &values, false);
        let first = run(bench, &Example::new(losses, operands.clone()), &values, false);
        let example = Example::new(gradients, [&operands[..], &[lse.clone(), dloss.clone()]].concat());
        let saved = Array::new([rows], first[1].values.clone());
        let values = [&values[..3], &[saved, values[3].clone()]].concat();
        let apart: Vec<Output> =
            first.into_iter().take(1).chain(run(bench, &example, &values, false)).collect();
        check_bits(
            &all,
            &together,
            &apart,
            &format!("of {rows} samples, {width} features, {classes} classes in {dtype}"),
        );
    }
}
