//! Every op's gradient against finite differences, both on the reference interpreter in f64.

use std::collections::BTreeSet;

use plimsoll_graph::example::{Dice, Domain, Example};
use plimsoll_graph::reference::{Array, interpret};
use plimsoll_graph::{Error, Graph, Site, Sym, TensorOps, Trace, gradients};
use plimsoll_testing::reference::chosen;

/// Ops through which no gradient flows, on purpose; everything else must pass the comparison below.
const WITHOUT_GRADIENT: &[&str] = &[
    "Compare",
    "ArgMax",
    "Fused",
    "Full",
    "Iota",
    "StopGradient",
    "ProdGrad",
    "CumProdGrad",
    "GridSampleGrad",
    "ArgSort",
    "OneHot",
    "AttentionGrad",
    "LinearCrossEntropyGrad",
    "JointCrossEntropy",
    "LstmGrad",
    "GruGrad",
    "Uniform",
    "Normal",
    "TruncatedNormal",
    "EightBitUpdate",
    "Bf16Update",
];

/// Ops whose outputs from this one on are kept for their gradient alone, which gives none for them.
const SAVED_OUTPUTS: &[(&str, usize)] =
    &[("Attention", 1), ("FrozenCrossEntropy", 1), ("LinearCrossEntropy", 1), ("Lstm", 3), ("Gru", 2)];

/// Inputs that an op's gradient takes as constant and says so.
const CONSTANT_INPUTS: &[(&str, usize)] = &[
    ("Attention", 3),
    ("FrozenCrossEntropy", 1),
    ("QuantMatMul", 2),
    ("QuantMatMul", 3),
    ("QuantMatMul", 4),
    ("Rotary", 1),
    ("Rotary", 2),
    ("StopGradient", 0),
    ("OwnGradient", 0),
];

/// A weighted sum of all float outputs, so that every output's gradient is different and none is hidden.
fn traced(example: &Example) -> (Trace, Vec<Sym>, Vec<Sym>, Vec<Sym>) {
    let trace = Trace::new();
    let inputs: Vec<Sym> = example.inputs.iter().map(|(ty, _)| trace.input("x", ty.clone())).collect();
    let outputs = trace.push(example.op.clone(), &inputs.iter().collect::<Vec<_>>(), Site::here());
    let outputs: Vec<Sym> = outputs
        .unwrap_or_else(|e| panic!("{:?}: {e}", example.op))
        .into_iter()
        .take(
            SAVED_OUTPUTS
                .iter()
                .find(|saved| saved.0 == example.op.variant())
                .map_or(usize::MAX, |saved| saved.1),
        )
        .filter(|s| s.dtype().is_float())
        .collect();
    let seeds = outputs.iter().map(|s| trace.input("seed", s.ty().clone())).collect();
    (trace, inputs, outputs, seeds)
}

fn weighted(graph: &Graph, values: &[Array], seeds: &[Array]) -> f64 {
    let outputs = interpret(graph, &[values, seeds].concat());
    outputs.iter().zip(seeds).flat_map(|(y, w)| y.data.iter().zip(&w.data)).map(|(y, w)| y * w).sum()
}

/// Compares one example; returns whether it has a gradient.
fn check(example: &Example, dice: &mut Dice) -> bool {
    let (trace, inputs, outputs, seeds) = traced(example);
    let targets: Vec<(&Sym, Option<&Sym>)> = outputs.iter().zip(seeds.iter().map(Some)).collect();
    let varies =
        |i: usize| inputs[i].dtype().is_float() && !CONSTANT_INPUTS.contains(&(example.op.variant(), i));
    let wrt: Vec<&Sym> = (0..inputs.len()).filter(|&i| varies(i)).map(|i| &inputs[i]).collect();
    if outputs.is_empty() || wrt.is_empty() {
        return false;
    }
    let forward = trace.finish(&outputs.iter().collect::<Vec<_>>()).unwrap();
    let grads = match gradients(&targets, &wrt, Site::here()) {
        Ok(grads) => grads,
        Err(Error::NoGradient { .. }) => return false,
        Err(e) => panic!("{:?}: {e}", example.op),
    };
    let present: Vec<&Sym> = grads.iter().flatten().collect();
    let backward = trace.finish(&present).unwrap();
    let values = example.fill(dice);
    let seed_values: Vec<Array> = seeds.iter().map(|s| Domain::Normal.fill(s.ty(), dice)).collect();
    let analytic = interpret(&backward, &[&values[..], &seed_values].concat());
    let mut analytic = analytic.into_iter();
    let float_inputs = (0..inputs.len()).filter(|&i| varies(i));
    for (i, grad) in float_inputs.zip(&grads) {
        let grad = grad.as_ref().map(|_| analytic.next().unwrap());
        // A few elements an input: every example comes in several random shapes, and each evaluation is a whole run.
        let n = values[i].data.len();
        let elements: BTreeSet<usize> = (0..n.min(6)).map(|_| dice.range(0, n)).collect();
        for e in elements {
            let at = |delta: f64| {
                let mut moved = values.clone();
                moved[i].data[e] += delta;
                weighted(&forward, &moved, &seed_values)
            };
            let h = 1e-5;
            let numeric = (at(h) - at(-h)) / (2.0 * h);
            let analytic = grad.as_ref().map_or(0.0, |g| g.data[e]);
            let error = (numeric - analytic).abs() / (1.0 + numeric.abs().max(analytic.abs()));
            assert!(
                error < 1e-5,
                "{:?} input {i} element {e}: {analytic} but numerically {numeric}",
                example.op
            );
        }
    }
    true
}

#[test]
fn every_gradient_rule_agrees_with_finite_differences() {
    let mut with = BTreeSet::new();
    for def in chosen() {
        for seed in 0..3 {
            let mut dice = Dice::new(seed);
            for example in (def.examples)(&mut dice) {
                if check(&example, &mut dice) {
                    with.insert(def.name);
                }
            }
        }
    }
    let without: Vec<&str> = chosen().iter().map(|op| op.name).filter(|name| !with.contains(name)).collect();
    let unexpected: Vec<_> = without.iter().filter(|n| !WITHOUT_GRADIENT.contains(n)).collect();
    assert!(unexpected.is_empty(), "no gradient was tested for {unexpected:?}");
}

#[test]
fn second_derivatives_agree_with_finite_differences_of_the_first() {
    // d²/dx² of sum(tanh(x)³) through two calls.
    let trace = Trace::new();
    let ty = plimsoll_graph::Type::new(plimsoll_graph::DType::F64, [5]);
    let x = trace.input("x", ty.clone());
    let y = x.tanh().unwrap().pow_scalar(3.0).unwrap().sum(&[], false).unwrap();
    let first = gradients(&[(&y, None)], &[&x], Site::here()).unwrap().remove(0).unwrap();
    let second = gradients(&[(&first, None)], &[&x], Site::here()).unwrap().remove(0).unwrap();
    let (f, s) = (trace.finish(&[&first]).unwrap(), trace.finish(&[&second]).unwrap());
    let value = Domain::Normal.fill(&ty, &mut Dice::new(5));
    let analytic = &interpret(&s, std::slice::from_ref(&value))[0];
    for i in 0..5 {
        let at = |delta: f64| {
            let mut moved = value.clone();
            moved.data[i] += delta;
            interpret(&f, &[moved])[0].data[i]
        };
        let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!((numeric - analytic.data[i]).abs() < 1e-6, "{numeric} {}", analytic.data[i]);
    }
}
