//! Every op against PyTorch: values and gradients, eager and traced, in every float type, on one and two threads, and on a
//! card where there is one.
//!
//! The golden files are made by `make.py`, beside this file, which also says what is in them.

use std::collections::BTreeSet;

use plimsoll_graph::example::{Dice, Domain};
use plimsoll_graph::ops::{Binary, Compare, ReduceKind, Unary};
use plimsoll_graph::{DType, LossOps, NormOps, OPS, Op, Padding, PoolOps, Rule, TensorOps, Type};
use plimsoll_run::{Device, Result, Tensor, function};
use plimsoll_testing::group;

mod case;
mod check;
mod dispatch;
mod random;

use case::Case;

/// The golden files.
const FILES: &[&str] = &[
    "elementwise",
    "layout",
    "reduce",
    "along",
    "matmul",
    "conv",
    "pool",
    "gather",
    "loss",
    "norm",
    "sequence",
    "second",
];

/// Runs all cases of a file and names what is wrong.
fn check(file: &str) {
    let devices = [1, 2].map(|threads| Device::cpu_with(threads, "64MiB".parse().unwrap()).unwrap());
    let cases = Case::read(file);
    assert!(!cases.is_empty(), "{file} is empty");
    report(cases.iter().flat_map(|case| {
        case.dtypes().into_iter().flat_map(|dtype| check::compare(case, dtype, &devices)).collect::<Vec<_>>()
    }));
}

#[test]
fn every_op_on_a_card_is_that_of_pytorch() {
    let Some(device) = group("card", Device::cuda(0)) else { return };
    let cases: Vec<Case> = FILES.iter().flat_map(|file| Case::read(file)).collect();
    let devices = [device];
    let of_case = |case: &Case| -> Vec<String> {
        case.dtypes().into_iter().flat_map(|dtype| check::compare(case, dtype, &devices)).collect()
    };
    report(cases.iter().flat_map(of_case));
}

fn report(wrong: impl Iterator<Item = String>) {
    let wrong: Vec<String> = wrong.collect();
    let shown = wrong.iter().take(60).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} results are wrong:\n{shown}", wrong.len());
}

macro_rules! golden_tests {
    ($( $test:ident: $file:literal; )+) => {
        $( #[test]
        fn $test() {
            check($file);
        } )+

        #[test]
        fn every_golden_file_has_a_test() {
            assert_eq!(FILES, [$($file),+]);
        }
    };
}

golden_tests! {
    elementwise_ops_are_those_of_pytorch: "elementwise";
    moving_elements_is_that_of_pytorch: "layout";
    reductions_are_those_of_pytorch: "reduce";
    running_and_ordering_along_an_axis_are_those_of_pytorch: "along";
    matrix_products_are_those_of_pytorch: "matmul";
    convolutions_are_those_of_pytorch: "conv";
    pooling_and_resizing_are_those_of_pytorch: "pool";
    picking_by_index_is_that_of_pytorch: "gather";
    softmax_and_losses_are_those_of_pytorch: "loss";
    norms_are_those_of_pytorch: "norm";
    attention_and_recurrent_layers_are_those_of_pytorch: "sequence";
    second_derivatives_are_those_of_pytorch: "second";
}

#[test]
fn the_reference_interpreter_agrees_with_pytorch() {
    let cases: Vec<Case> = FILES.iter().flat_map(|file| Case::read(file)).collect();
    // The interpreter does not round floats, so cases about rounding are not for it.
    report(cases.iter().filter(|case| !case.exact).flat_map(check::compare_reference));
}

#[test]
fn outputs_that_nothing_reads_overwrite_nothing() -> Result<()> {
    // Forward only: window places, statistics and log-sum-exp have no reader, and lie beside values that have.
    let body = |x: &[Tensor]| {
        let image = x[0].sum(&[0], true)?;
        let pooled = image.max_pool2d([2, 2], [2, 2], Padding::Valid)?;
        let normal = pooled.layer_norm(&x[1], &x[1], 1e-5)?;
        let loss = normal.reshape([4, 8])?.softmax_cross_entropy(&x[2])?;
        let all = [&image, &pooled, &normal].map(|y| y.sum(&[], false));
        let [image, pooled, normal] = all;
        Ok(vec![loss.add(&image?)?.add(&pooled?)?.add(&normal?)?])
    };
    let mut dice = Dice::new(1);
    let mut normals = |shape: &[usize]| {
        let ty = Type::new(DType::F32, shape);
        Tensor::from_f64(&Domain::Normal.fill(&ty, &mut dice).data, ty)
    };
    let arguments = [normals(&[2, 4, 4, 8])?, normals(&[8])?, Tensor::from_slice(&[0i64, 7, 3, 3], [4])?];
    let eager = body(&arguments)?[0].to_bytes()?;
    let traced = function(body).call(&arguments.iter().collect::<Vec<_>>())?;
    assert_eq!(eager, traced[0].to_bytes()?);
    Ok(())
}

/// All ops that the cases and their gradients emit.
fn emitted() -> Vec<Op> {
    let cases: Vec<Case> = FILES.iter().flat_map(|file| Case::read(file)).collect();
    let graphs = cases.iter().map(|case| check::graph(case).unwrap_or_else(|e| panic!("{}: {e}", case.name)));
    graphs.flat_map(|graph| graph.nodes().iter().map(|node| node.op.clone()).collect::<Vec<_>>()).collect()
}

/// Ops that give their input as it is, or what a user says: PyTorch has nothing to say of them. (Nor of steps over bytes and over bf16, which
/// `crates/nn/tests/nn/eight_bit.rs` and `bf16_state.rs` hold against their definition, of exchanges between ranks, for which `tests/run/ranks.rs` does, and of
/// weights of few bits, for which `crates/hub/tests/base.rs` has bitsandbytes' own.)
const OF_USERS: [&str; 7] =
    ["StopGradient", "OwnGradient", "Custom", "EightBitUpdate", "Bf16Update", "Exchange", "QuantMatMul"];
/// Ops that only a pass makes of two others, which golden cases have: the pass's own test (`crates/graph/src/passes/norm_add.rs`, `join_losses.rs`,
/// `indexed_sum.rs`) holds them against those.
const OF_PASSES: [&str; 3] = ["LayerNormGradAdd", "JointCrossEntropy", "ScatterAddTo"];

#[test]
fn every_op_of_the_table_is_in_a_golden_case() {
    let emitted = emitted();
    let others = random::OPS.iter().chain(&OF_USERS).chain(&OF_PASSES).copied();
    let seen: BTreeSet<&str> = emitted.iter().map(Op::variant).chain(others).collect();
    let missing: Vec<&str> = OPS.iter().map(|def| def.name).filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "no golden case emits {missing:?}");
}

#[test]
fn every_function_of_one_and_two_elements_is_in_a_golden_case() {
    let emitted = emitted();
    let seen: BTreeSet<&str> = emitted.iter().map(Op::name).collect();
    let reduce = |kind: &ReduceKind| {
        let op = plimsoll_graph::ops::Reduce { kind: *kind, axes: Default::default(), keep: false };
        op.name()
    };
    let names = Unary::all().iter().map(|f| f.name()).collect::<Vec<_>>();
    let names = names.into_iter().chain(Binary::ALL.iter().map(|f| f.name()));
    let names = names.chain(Compare::ALL.iter().map(|f| f.name())).chain(ReduceKind::ALL.iter().map(reduce));
    let missing: Vec<&str> = names.filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "no golden case calls {missing:?}");
}
