//! Random training steps for tests: a forward pass, a backward pass that reads it, and updates.

use plimsoll_plan::{Home, Kind, Op, Problem, Tensor, TensorId, View};

/// A small deterministic source of chance.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A random step of `layers` layers with skips, views, in-place pairs, state updates, and scratch.
pub fn random_step(layers: usize, seed: u64) -> Problem {
    let mut chance = Chance(seed);
    let mut step = Problem::new();
    let input =
        step.tensor(Tensor { kind: Kind::Input, ..Tensor::resident("input", 64 * (1 + chance.below(40))) });
    let mut values: Vec<TensorId> = vec![input];
    let mut weights = Vec::new();
    let mut backward: Vec<(Vec<TensorId>, TensorId)> = Vec::new();
    for layer in 0..layers {
        let bytes = 1 + chance.below(8000);
        let weight = step.tensor(Tensor::resident(format!("weight{layer}"), 1 + chance.below(500)));
        let value = Tensor::transient(format!("value{layer}"), bytes);
        let value = step.tensor(Tensor { alignment: 1 << chance.below(9), ..value });
        let mut reads = vec![values[values.len() - 1], weight];
        if chance.one_in(3) {
            reads.push(values[chance.below(values.len() as u64) as usize]);
        }
        let mut op = Op::new(format!("forward{layer}"), &reads, &[value], 10 + chance.below(1000));
        op.replayable = !chance.one_in(12);
        if chance.one_in(3) {
            op.scratch = chance.below(6000);
        }
        if chance.one_in(5) {
            let mean = step.tensor(Tensor::resident(format!("mean{layer}"), 8));
            op.updates.push(mean);
        }
        step.op(op);
        let mut last = value;
        if chance.one_in(3) {
            let relu =
                step.tensor(Tensor { name: format!("relu{layer}"), ..step.tensors[value.index()].clone() });
            let mut op = Op::new(format!("relu{layer}"), &[value], &[relu], 5 + chance.below(100));
            op.in_place = vec![(value, relu)];
            step.op(op);
            last = relu;
        }
        if chance.one_in(4) {
            let view = View { of: last, offset: 0 };
            let half = Tensor {
                view: Some(view),
                bytes: bytes.div_ceil(2),
                alignment: 1,
                ..step.tensors[last.index()].clone()
            };
            last = step.tensor(half);
        }
        reads.push(last);
        backward.push((reads, weight));
        values.push(last);
        weights.push(weight);
    }
    let loss = step.tensor(Tensor::output("loss", 4));
    step.op(Op::new("loss", &[values[values.len() - 1]], &[loss], 50));
    let mut gradient = loss;
    for (layer, (reads, weight)) in backward.into_iter().enumerate().rev() {
        let bytes = step.tensors[values[layer].index()].bytes;
        let next = step.tensor(Tensor::transient(format!("gradient{layer}"), bytes));
        let home = if chance.one_in(6) { Home::Output } else { Home::Transient };
        let share = Tensor {
            kind: Kind::Gradient,
            home,
            ..Tensor::transient(format!("share{layer}"), step.tensors[weight.index()].bytes)
        };
        let share = step.tensor(share);
        let reads: Vec<TensorId> = reads.into_iter().chain([gradient]).collect();
        step.op(Op::new(format!("backward{layer}"), &reads, &[next, share], 20 + chance.below(1500)));
        let mut sgd = Op::new(format!("sgd{layer}"), &[share], &[], 10);
        sgd.updates = vec![weight];
        sgd.replayable = false;
        step.op(sgd);
        gradient = next;
    }
    step
}
