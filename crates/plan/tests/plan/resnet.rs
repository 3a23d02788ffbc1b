//! A training step of ResNet-50 in a third of its memory.
//!
//! The step is built from shapes: batch 184 of 224 × 224, four bytes a number; convolutions, batch normalization, ReLU,
//! pooling, sums, a dense layer, the loss, all gradients, and an update of each parameter with momentum. Elementwise chains
//! are one op, as an engine that fuses them runs them: normalization is a pass for the statistics and one op that
//! applies them, adds the shortcut and takes the ReLU. Times are of a device of 10 TFLOP/s and 700 GB/s: whichever
//! limits an op. Everything is counted in the bytes: parameters, momentum, the batch, activations, gradients. No op has scratch.

use plimsoll_plan::{Home, Kind, Op, OpId, Planner, Problem, Request, Tensor, TensorId};
use std::collections::HashMap;

const BATCH: u64 = 184;

/// Values with a shape: where they are, channels, side.
#[derive(Clone, Copy)]
struct Map {
    id: TensorId,
    channels: u64,
    side: u64,
}

impl Map {
    fn numbers(&self) -> u64 {
        BATCH * self.channels * self.side * self.side
    }
}

/// What the backward pass reads of a forward op.
enum Keep {
    /// A product with a weight: the input and the weight.
    Product { weight: TensorId, flops: u64 },
    /// The input, the scale, the batch's statistics, and the output if a ReLU made it. What was added has the gradient of
    /// the output.
    Normalization { scale: TensorId, statistics: TensorId, relu: bool, added: Option<Map> },
    /// Which element was chosen.
    Pool { chosen: TensorId },
    /// Nothing.
    Mean,
}

struct Net {
    step: Problem,
    /// Input, output and what is kept of each forward op.
    ops: Vec<(Map, Map, Keep)>,
}

impl Net {
    fn transient(&mut self, name: &str, numbers: u64) -> TensorId {
        self.step.tensor(Tensor::transient(name, 4 * numbers))
    }

    fn map(&mut self, name: &str, channels: u64, side: u64) -> Map {
        let id = self.transient(name, BATCH * channels * side * side);
        Map { id, channels, side }
    }

    fn resident(&mut self, name: &str, numbers: u64, kind: Kind) -> TensorId {
        self.step.tensor(Tensor { kind, ..Tensor::resident(name, 4 * numbers) })
    }

    /// An op that is limited by arithmetic or by the bytes of its operands; the first write may take a read's place.
    fn op(
        &mut self,
        name: &str,
        reads: &[TensorId],
        writes: &[TensorId],
        flops: u64,
        over: Option<TensorId>,
    ) -> OpId {
        let bytes: u64 = reads.iter().chain(writes).map(|t| self.step.tensors[t.index()].bytes).sum();
        let mut op = Op::new(name, reads, writes, (flops / 10_000).max(bytes / 700).max(1000));
        op.in_place.extend(over.map(|read| (read, writes[0])));
        self.step.op(op)
    }

    fn product(&mut self, x: Map, channels: u64, kernel: u64, stride: u64) -> Map {
        let y = self.map("product", channels, x.side / stride);
        let weight = self.resident("weight", channels * x.channels * kernel * kernel, Kind::Parameter);
        let flops = 2 * y.numbers() * x.channels * kernel * kernel;
        self.op("product", &[x.id, weight], &[y.id], flops, None);
        self.ops.push((x, y, Keep::Product { weight, flops }));
        y
    }

    /// Normalization over the batch, a shortcut added, a ReLU taken.
    fn normalization(&mut self, x: Map, added: Option<Map>, relu: bool) -> Map {
        let scale = self.resident("scale", 2 * x.channels, Kind::Parameter);
        let running = self.resident("running", 2 * x.channels, Kind::Other);
        let statistics = self.transient("statistics", 2 * x.channels);
        let op = self.op("statistics", &[x.id], &[statistics], 4 * x.numbers(), None);
        self.step.ops[op.index()].updates.push(running);
        let y = self.map("normalized", x.channels, x.side);
        let reads: Vec<TensorId> = [x.id, scale, statistics].into_iter().chain(added.map(|a| a.id)).collect();
        self.op("normalization", &reads, &[y.id], 6 * x.numbers(), added.map(|a| a.id));
        self.ops.push((x, y, Keep::Normalization { scale, statistics, relu, added }));
        y
    }

    /// Three convolutions around a shortcut.
    fn block(&mut self, x: Map, width: u64, stride: u64) -> Map {
        let mut shortcut = x;
        if x.channels != 4 * width {
            shortcut = self.product(x, 4 * width, 1, stride);
            shortcut = self.normalization(shortcut, None, false);
        }
        let y = self.product(x, width, 1, 1);
        let y = self.normalization(y, None, true);
        let y = self.product(y, width, 3, stride);
        let y = self.normalization(y, None, true);
        let y = self.product(y, 4 * width, 1, 1);
        self.normalization(y, Some(shortcut), true)
    }

    /// Changes a parameter by its gradient and its momentum.
    fn update(&mut self, weight: TensorId, gradient: TensorId) {
        let numbers = self.step.tensors[weight.index()].bytes / 4;
        let momentum = self.resident("momentum", numbers, Kind::Optimizer);
        let op = self.op("update", &[gradient, weight, momentum], &[], 4 * numbers, None);
        self.step.ops[op.index()].updates.extend([weight, momentum]);
        self.step.ops[op.index()].replayable = false;
    }

    /// Adds `gradient` to what is there for `map`.
    fn arrive(&mut self, gradients: &mut HashMap<TensorId, TensorId>, map: Map, gradient: TensorId) {
        let Some(before) = gradients.insert(map.id, gradient) else { return };
        let sum = self.map("gradient", map.channels, map.side);
        self.op("sum of gradients", &[before, gradient], &[sum.id], map.numbers(), Some(before));
        gradients.insert(map.id, sum.id);
    }

    fn backward(&mut self, last: Map, gradient: TensorId, input: TensorId) {
        let mut gradients = HashMap::from([(last.id, gradient)]);
        for (x, y, keep) in std::mem::take(&mut self.ops).into_iter().rev() {
            let g = gradients[&y.id];
            let made = |net: &mut Net| net.map("gradient", x.channels, x.side).id;
            match keep {
                Keep::Product { weight, flops } => {
                    let share = self.transient("share", self.step.tensors[weight.index()].bytes / 4);
                    self.step.tensors[share.index()].kind = Kind::Gradient;
                    self.op("product for weight", &[x.id, g], &[share], flops, None);
                    self.update(weight, share);
                    if x.id != input {
                        let gx = made(self);
                        self.op("product for input", &[weight, g], &[gx], flops, None);
                        self.arrive(&mut gradients, x, gx);
                    }
                }
                Keep::Normalization { scale, statistics, relu, added } => {
                    let mut g = g;
                    if relu {
                        let before = made(self);
                        self.op("relu backward", &[g, y.id], &[before], x.numbers(), Some(g));
                        g = before;
                    }
                    let share = self.transient("share", 2 * x.channels);
                    self.op("sums for scale", &[x.id, statistics, g], &[share], 4 * x.numbers(), None);
                    let gx = made(self);
                    let reads = [x.id, scale, statistics, share, g];
                    self.op("normalization backward", &reads, &[gx], 8 * x.numbers(), Some(g));
                    self.update(scale, share);
                    if let Some(added) = added {
                        self.arrive(&mut gradients, added, g);
                    }
                    self.arrive(&mut gradients, x, gx);
                }
                Keep::Pool { chosen } => {
                    let gx = made(self);
                    self.op("pool backward", &[g, chosen], &[gx], x.numbers(), None);
                    self.arrive(&mut gradients, x, gx);
                }
                Keep::Mean => {
                    let gx = made(self);
                    self.op("mean backward", &[g], &[gx], x.numbers(), None);
                    self.arrive(&mut gradients, x, gx);
                }
            }
        }
    }
}

fn resnet50() -> Problem {
    let mut net = Net { step: Problem::new(), ops: Vec::new() };
    let id = net.resident("images", BATCH * 3 * 224 * 224, Kind::Input);
    let labels = net.resident("labels", BATCH, Kind::Input);
    let input = Map { id, channels: 3, side: 224 };
    let mut x = net.product(input, 64, 7, 2);
    x = net.normalization(x, None, true);
    let pooled = net.map("pooled", 64, 56);
    let chosen = net.transient("chosen", pooled.numbers());
    net.op("pool", &[x.id], &[pooled.id, chosen], 9 * pooled.numbers(), None);
    net.ops.push((x, pooled, Keep::Pool { chosen }));
    x = pooled;
    for (width, blocks, stride) in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)] {
        for block in 0..blocks {
            x = net.block(x, width, if block == 0 { stride } else { 1 });
        }
    }
    let mean = net.map("mean", 2048, 1);
    net.op("mean", &[x.id], &[mean.id], x.numbers(), None);
    net.ops.push((x, mean, Keep::Mean));
    let logits = net.product(mean, 1000, 1, 1);
    let loss = net.step.tensor(Tensor { home: Home::Output, ..Tensor::transient("loss", 4) });
    let gradient = net.map("gradient", 1000, 1);
    net.op("loss", &[logits.id, labels], &[loss, gradient.id], 20 * logits.numbers(), None);
    net.backward(logits, gradient.id, input.id);
    net.step
}

#[test]
fn resnet_50_runs_in_a_third_of_its_memory_for_less_than_twelve_percent_of_time() {
    let step = resnet50();
    step.check().unwrap();
    let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
    let top = planner.unlimited_bytes();
    println!("{} ops, {top} bytes without a budget, {} ms", step.ops.len(), step.unlimited_ns() / 1_000_000);
    let mut over = Vec::new();
    for share in [0.665, 0.598, 0.532, 0.464, 0.398, 0.331] {
        let f = planner.plan((top as f64 * share) as u64).unwrap().figures;
        let time = |ns: u64| 100.0 * (ns as f64 / f.unlimited_ns as f64 - 1.0);
        over.push(time(f.predicted_ns));
        println!(
            "{share} of the bytes: +{:.2} % (no plan under +{:.2} %)",
            time(f.predicted_ns),
            time(f.lower_bound_ns)
        );
    }
    println!("floor {:.3}", planner.floor_bytes() as f64 / top as f64);
    // What MONeT reports for ResNet-50 with batch 184 at the same shares of its 15.06 GB.
    let known = [3.22, 4.68, 5.56, 7.28, 9.31, 11.95];
    for (ours, known) in over.iter().zip(known) {
        assert!(*ours <= known, "+{ours:.2} % where +{known} % is known");
    }
}
