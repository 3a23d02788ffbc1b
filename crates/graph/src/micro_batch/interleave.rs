//! Turns the traces of a step's micro-batches into one graph of the whole step, in which they run side by side.
//!
//! Passes that run one after the other cannot take statistics over the whole batch. Side by side they can: every micro-batch goes as far
//! as a batch norm, their statistics are merged, and every micro-batch goes on with those; the sums of its gradient likewise. Between two
//! such meetings one micro-batch runs after the other, so that what is not kept takes the memory of one. What is kept or recomputed
//! is for a planner to say, as in any graph.

use super::{Frame, Parts};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::methods::TensorOps;
use crate::ops::{BatchNorm, BatchNormGrad};
use crate::passes::rewrite::Rewrite;
use crate::{DType, Op, Sym, Trace};

/// Micro-batches of equal size.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The step traced for one of them.
    pub graph: &'a Graph,
    /// Samples in each.
    pub samples: usize,
    /// How many there are.
    pub runs: usize,
}

/// When a node runs: after how many meetings of the micro-batches, and for which of them (0: for all, before the first).
type Turn = (usize, usize);

/// What stands for a value of the step.
#[derive(Clone, Default)]
struct Value {
    /// The whole step's.
    one: Option<Sym>,
    /// Each micro-batch's own.
    each: Option<Vec<Sym>>,
    /// Meetings before it is there.
    stage: usize,
}

/// The step as one graph over its micro-batches, which add up to the batch of `whole`. Its inputs are those of `whole`, then what each
/// of the `runs` has beyond the step's own (`frame`); its outputs are those of `whole`, up to rounding.
///
/// Nothing if the step changes state with every micro-batch other than by statistics of the whole batch.
pub fn interleave(whole: &Graph, runs: &[Run<'_>], frame: &Frame) -> Result<Option<Graph>> {
    if runs.iter().any(|run| !alike(whole, run.graph)) {
        return Ok(None);
    }
    let mut building = Interleaving::new(whole, runs, frame)?;
    let parts = Parts::new(whole, frame);
    for i in 0..whole.nodes().len() {
        if !building.node(&parts, i)? {
            return Ok(None);
        }
    }
    building.finish(frame)
}

/// Whether two traces do the same with other shapes.
fn alike(one: &Graph, two: &Graph) -> bool {
    let same = |(a, b): (&Node, &Node)| a.op.name() == b.op.name() && a.inputs == b.inputs;
    one.nodes().len() == two.nodes().len()
        && one.values().len() == two.values().len()
        && one.inputs() == two.inputs()
        && one.outputs() == two.outputs()
        && one.nodes().iter().zip(two.nodes()).all(same)
}

struct Interleaving<'a> {
    whole: &'a Graph,
    /// By micro-batch: the trace of one like it, and its share of the samples.
    parts: Vec<(&'a Graph, f64)>,
    trace: Trace,
    /// By node of the new graph.
    turns: Vec<Turn>,
    values: Vec<Value>,
    /// By value: its weighted sum over the micro-batches, once one was asked for.
    sums: Vec<Option<Value>>,
}

impl<'a> Interleaving<'a> {
    fn new(whole: &'a Graph, runs: &[Run<'a>], frame: &Frame) -> Result<Interleaving<'a>> {
        let batch: usize = runs.iter().map(|run| run.samples * run.runs).sum();
        let each = |run: &Run<'a>| std::iter::repeat_n((run.graph, run.samples), run.runs);
        let sizes: Vec<(&Graph, usize)> = runs.iter().flat_map(each).collect();
        let parts = sizes.iter().map(|&(graph, samples)| (graph, samples as f64 / batch as f64)).collect();
        let n = whole.values().len();
        let (values, sums) = (vec![Value::default(); n], vec![None; n]);
        let mut new = Interleaving { whole, parts, trace: Trace::new(), turns: Vec::new(), values, sums };
        for &v in whole.inputs() {
            new.values[v.index()].one = Some(new.input(whole, v));
        }
        let (inputs, others) = whole.inputs()[frame.state..].split_at(frame.inputs);
        // What a trace captured may be another constant for another number of samples.
        let mut captured: Vec<Vec<Sym>> = Vec::new();
        for run in runs {
            let own: Vec<Sym> = others.iter().map(|&v| new.input(run.graph, v)).collect();
            captured.extend(std::iter::repeat_n(own, run.runs));
        }
        for (i, &v) in others.iter().enumerate() {
            new.values[v.index()].each = Some(captured.iter().map(|own| own[i].clone()).collect());
        }
        for (i, &v) in inputs.iter().enumerate() {
            let Some(all) = new.values[v.index()].one.take() else { continue };
            let mut rows = Vec::new();
            let mut start = 0;
            for (c, &(_, samples)) in sizes.iter().enumerate() {
                let from = new.trace.lock().nodes().len();
                // The last of them is the position of the first sample.
                let part = match i + 1 == inputs.len() {
                    true => all.add_scalar(start as f64)?,
                    false => all.narrow(0, start, start + samples)?,
                };
                rows.push(part);
                new.file(from, (0, c + 1), None);
                start += samples;
            }
            new.values[v.index()].each = Some(rows);
        }
        Ok(new)
    }

    fn input(&self, graph: &Graph, v: ValueId) -> Sym {
        let info = graph.info(v);
        let id = self.trace.lock().input(&info.name, info.ty.clone(), info.site);
        self.trace.value(id)
    }

    /// Files what was pushed since the graph had `from` nodes under a turn and, if there is one, the node that it stands for.
    fn file(&mut self, from: usize, turn: Turn, like: Option<&Node>) {
        let mut graph = self.trace.lock();
        let n = graph.nodes().len();
        if let Some(like) = like {
            graph.attribute(from, like.site);
            if like.is_differentiated {
                (from..n).for_each(|i| graph.differentiate(NodeId(i as u32)));
            }
        }
        self.turns.resize(n, turn);
    }

    /// Pushes ops in a node's place.
    fn push<T>(&mut self, turn: Turn, like: &Node, body: impl FnOnce(&Trace) -> Result<T>) -> Result<T> {
        let from = {
            let mut graph = self.trace.lock();
            graph.set_scope(&like.scope);
            graph.set_phase(like.phase);
            graph.nodes().len()
        };
        let made = body(&self.trace)?;
        self.file(from, turn, Some(like));
        Ok(made)
    }

    /// Whether a value is each micro-batch's own and nothing else.
    fn is_apart(&self, v: ValueId) -> bool {
        self.values[v.index()].one.is_none()
    }

    fn one(&self, v: ValueId) -> Result<Sym> {
        let missing = || Error::Internal(format!("%{} of a step is not there for the whole batch", v.0));
        self.values[v.index()].one.clone().ok_or_else(missing)
    }

    fn of(&self, v: ValueId, c: usize) -> Result<Sym> {
        match &self.values[v.index()].each {
            Some(each) => Ok(each[c].clone()),
            None => self.one(v),
        }
    }

    /// Meetings before a node's inputs are there.
    fn stage(&self, node: &Node) -> usize {
        node.inputs.iter().map(|v| self.values[v.index()].stage).max().unwrap_or(0)
    }

    /// Makes what stands for a node of the step; returns whether that can be done.
    fn node(&mut self, parts: &Parts, i: usize) -> Result<bool> {
        let whole = self.whole;
        let node = &whole.nodes()[i];
        let is_apart = node.inputs.iter().any(|&v| self.is_apart(v));
        if !is_apart || parts.once[i] {
            self.for_all(i)?;
            // What does not depend on the batch may yet depend on its size.
            let depends = node.outputs.iter().any(|v| parts.on_batch[v.index()]);
            if !depends && self.has_own_form(i) {
                self.for_each(i)?;
            }
            return Ok(true);
        }
        match &node.op {
            Op::BatchNorm(norm) => self.batch_norm(node, *norm),
            Op::BatchNormGrad(grad) => self.batch_norm_grad(node, *grad),
            _ => self.for_each(i).map(|()| true),
        }
    }

    /// Whether a node is another one for a micro-batch than for the whole batch, or reads something that is.
    fn has_own_form(&self, i: usize) -> bool {
        let node = &self.whole.nodes()[i];
        let differs = |(graph, _): &(&Graph, f64)| {
            let part = &graph.nodes()[i];
            part.op != node.op || node.outputs.iter().any(|&v| graph.ty(v) != self.whole.ty(v))
        };
        node.inputs.iter().any(|v| self.values[v.index()].each.is_some()) || self.parts.iter().any(differs)
    }

    /// A node once, for the whole batch; what it reads of each micro-batch is summed.
    fn for_all(&mut self, i: usize) -> Result<()> {
        let whole = self.whole;
        let node = &whole.nodes()[i];
        let (mut inputs, mut stage) = (Vec::new(), 0);
        let is_total = matches!(&node.op, Op::Exchange(exchange) if exchange.is_total);
        for &v in &node.inputs {
            let value = self.sum(v, !is_total)?;
            stage = stage.max(value.stage);
            inputs.extend(value.one);
        }
        let made = self.push((stage, 0), node, |trace| {
            trace.push(node.op.clone(), &inputs.iter().collect::<Vec<_>>(), node.site)
        })?;
        for (&v, new) in node.outputs.iter().zip(made) {
            self.rename(&new, v);
            self.values[v.index()] = Value { one: Some(new), each: None, stage };
        }
        Ok(())
    }

    /// A node for each micro-batch.
    fn for_each(&mut self, i: usize) -> Result<()> {
        let whole = self.whole;
        let outputs = &whole.nodes()[i].outputs;
        let stage = self.stage(&whole.nodes()[i]);
        let mut made: Vec<Vec<Sym>> = vec![Vec::new(); outputs.len()];
        for c in 0..self.parts.len() {
            let node = &self.parts[c].0.nodes()[i];
            let inputs = node.inputs.iter().map(|&v| self.of(v, c)).collect::<Result<Vec<Sym>>>()?;
            let new = self.push((stage, c + 1), node, |trace| {
                trace.push(node.op.clone(), &inputs.iter().collect::<Vec<_>>(), node.site)
            })?;
            for ((all, new), &v) in made.iter_mut().zip(new).zip(outputs) {
                self.rename(&new, v);
                all.push(new);
            }
        }
        for (&v, each) in outputs.iter().zip(made) {
            let value = &mut self.values[v.index()];
            (value.each, value.stage) = (Some(each), stage);
        }
        Ok(())
    }

    fn rename(&self, new: &Sym, old: ValueId) {
        let info = self.whole.info(old);
        self.trace.lock().rename(new.id(), &info.name, info.site);
    }

    /// A value of the whole batch: the sum over the micro-batches where it is each one's own, weighted by its share of the samples
    /// unless it is a total.
    fn sum(&mut self, v: ValueId, weighted: bool) -> Result<Value> {
        if let Some(known) = self.sums[v.index()].clone().filter(|_| weighted) {
            return Ok(known);
        }
        let Value { one: None, each: Some(each), stage } = self.values[v.index()].clone() else {
            return Ok(self.values[v.index()].clone());
        };
        let whole = self.whole;
        let Some((maker, _)) = whole.info(v).producer else {
            return Err(Error::Internal(format!("%{} is summed and is an input", v.0)));
        };
        let sum = self.sum_of(&each, stage, whole.node(maker), weighted)?;
        let value = Value { one: Some(sum), each: None, stage: stage + 1 };
        if weighted {
            self.sums[v.index()] = Some(value.clone());
        }
        Ok(value)
    }

    fn sum_of(&mut self, each: &[Sym], stage: usize, like: &Node, weighted: bool) -> Result<Sym> {
        // A sum in a 16-bit type would lose small shares.
        let dtype = each.first().map_or(DType::F32, |first| first.dtype());
        let wide = if matches!(dtype, DType::BF16 | DType::F16) { DType::F32 } else { dtype };
        let mut sum: Option<Sym> = None;
        for (c, value) in each.iter().enumerate() {
            let weight = if weighted { self.parts[c].1 } else { 1.0 };
            let before = sum.take();
            sum = Some(self.push((stage, c + 1), like, |_| {
                let value = value.cast(wide)?;
                let share = if weight == 1.0 { value } else { value.mul_scalar(weight)? };
                before.map_or(Ok(share.clone()), |before| before.add(&share))
            })?);
        }
        let sum = sum.ok_or_else(|| Error::Internal("a batch without micro-batches".into()))?;
        self.push((stage + 1, 0), like, |_| sum.cast(dtype))
    }

    /// Batch norm with the statistics of all micro-batches.
    fn batch_norm(&mut self, node: &Node, norm: BatchNorm) -> Result<bool> {
        let [x, gamma, beta] = [0, 1, 2].map(|i| node.inputs[i]);
        if !self.is_apart(x) || self.is_apart(gamma) || self.is_apart(beta) {
            return Ok(false);
        }
        let (stage, n) = (self.stage(node), self.parts.len());
        let (gamma, beta) = (self.one(gamma)?, self.one(beta)?);
        let (mut xs, mut means, mut variances) = (Vec::new(), Vec::new(), Vec::new());
        for c in 0..n {
            let x = self.of(x, c)?;
            // The kernel that takes statistics also normalises by them, which nobody reads.
            let op = Op::from(BatchNorm { relu: false, ..norm });
            let made =
                self.push((stage, c + 1), node, |trace| trace.push(op, &[&x, &gamma, &beta], node.site))?;
            means.push(made[1].clone());
            variances.push(made[2].clone());
            xs.push(x);
        }
        let weights: Vec<f64> = self.parts.iter().map(|part| part.1).collect();
        let [mean, variance, rstd] = self.push((stage + 1, 0), node, |_| {
            let mean = weighted(&means, &weights)?;
            // The squares of what the means are apart, never the difference of two large squares.
            let spread = |(mean_c, variance): (&Sym, &Sym)| variance.add(&mean_c.sub(&mean)?.square()?);
            let spreads = means.iter().zip(&variances).map(spread).collect::<Result<Vec<Sym>>>()?;
            let variance = weighted(&spreads, &weights)?;
            let rstd = variance.add_scalar(norm.eps.0)?.rsqrt()?;
            Ok([mean, variance, rstd])
        })?;
        let mut ys = Vec::new();
        for (c, x) in xs.iter().enumerate() {
            let y = self.push((stage + 1, c + 1), node, |_| {
                let y = normalised(x, &mean, &gamma.mul(&rstd)?, &beta)?;
                let y = if norm.relu { y.relu()? } else { y };
                y.cast(x.dtype())
            })?;
            self.rename(&y, node.outputs[0]);
            ys.push(y);
        }
        self.values[node.outputs[0].index()] = Value { one: None, each: Some(ys), stage: stage + 1 };
        self.known(&node.outputs[1..], [mean, variance, rstd], stage + 1);
        Ok(true)
    }

    /// The gradient of batch norm with the sums of all micro-batches.
    fn batch_norm_grad(&mut self, node: &Node, grad: BatchNormGrad) -> Result<bool> {
        let [x, gamma, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| node.inputs[i]);
        let known = || node.inputs.iter().copied().filter(|v| ![x, dy].contains(v));
        if !self.is_apart(x) || !self.is_apart(dy) || known().any(|v| self.is_apart(v)) {
            return Ok(false);
        }
        let stage = self.stage(node);
        let (gamma, mean, rstd) = (self.one(gamma)?, self.one(mean)?, self.one(rstd)?);
        let beta = node.inputs.get(5).map(|&v| self.one(v)).transpose()?;
        let (mut parts, mut dgammas, mut dbetas) = (Vec::new(), Vec::new(), Vec::new());
        for c in 0..self.parts.len() {
            let (x, dy) = (self.of(x, c)?, self.of(dy, c)?);
            let mut inputs = vec![&x, &gamma, &mean, &rstd, &dy];
            inputs.extend(&beta);
            // The kernel that takes the sums also makes a gradient by them alone, which nobody reads.
            let made =
                self.push((stage, c + 1), node, |trace| trace.push(Op::from(grad), &inputs, node.site))?;
            dgammas.push(made[1].clone());
            dbetas.push(made[2].clone());
            parts.push((x, dy));
        }
        let dgamma = self.sum_of(&dgammas, stage, node, true)?;
        let dbeta = self.sum_of(&dbetas, stage, node, true)?;
        let mut dxs = Vec::new();
        for (c, (x, dy)) in parts.iter().enumerate() {
            let dx = self.push((stage + 1, c + 1), node, |_| {
                // A micro-batch's gradients are those of its own mean, larger than the whole batch's by as much as it is smaller:
                // so are the sums, divided by its own rows instead of the batch's.
                let rows = x.ty().elements() / gamma.ty().elements().max(1);
                let scale = gamma.mul(&rstd)?;
                let wide = gamma.dtype();
                let mut dy = dy.cast(wide)?;
                if let Some(beta) = beta.as_ref().filter(|_| grad.relu) {
                    let y = normalised(x, &mean, &scale, beta)?;
                    dy = y.greater(&y.mul_scalar(0.0)?)?.select(&dy, &dy.mul_scalar(0.0)?)?;
                }
                let share = 1.0 / rows as f64;
                let slope = rstd.mul(&dgamma)?.mul_scalar(share)?;
                let along = x.cast(wide)?.sub(&mean)?.mul(&slope)?;
                dy.sub(&dbeta.mul_scalar(share)?)?.sub(&along)?.mul(&scale)?.cast(x.dtype())
            })?;
            self.rename(&dx, node.outputs[0]);
            dxs.push(dx);
        }
        self.values[node.outputs[0].index()] = Value { one: None, each: Some(dxs), stage: stage + 1 };
        self.known(&node.outputs[1..], [dgamma, dbeta], stage + 1);
        Ok(true)
    }

    /// What is known of the whole batch from a stage on.
    fn known<const N: usize>(&mut self, outputs: &[ValueId], values: [Sym; N], stage: usize) {
        for (&v, one) in outputs.iter().zip(values) {
            self.rename(&one, v);
            self.values[v.index()] = Value { one: Some(one), each: None, stage };
        }
    }

    /// The graph in the order of its turns.
    fn finish(mut self, frame: &Frame) -> Result<Option<Graph>> {
        let whole = self.whole;
        let totals = whole.outputs().len() - frame.totals;
        let mut outputs = Vec::with_capacity(whole.outputs().len());
        for (r, &v) in whole.outputs().iter().enumerate() {
            if self.is_apart(v) && r < frame.state {
                return Ok(None);
            }
            outputs.extend(self.sum(v, r < totals)?.one);
        }
        let graph = self.trace.finish(&outputs.iter().collect::<Vec<_>>())?;
        let mut turns = self.turns;
        wait(&graph, &mut turns);
        let mut order: Vec<usize> = (0..graph.nodes().len()).collect();
        order.sort_by_key(|&i| turns[i]);
        let mut rewrite = Rewrite::new(&graph);
        order.into_iter().try_for_each(|i| rewrite.keep(&graph.nodes()[i]))?;
        rewrite.finish().map(Some)
    }
}

/// Lets what is ready before the first micro-batch wait until somebody reads it.
fn wait(graph: &Graph, turns: &mut [Turn]) {
    let mut first: Vec<Option<Turn>> = vec![None; graph.values().len()];
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        if turns[i] == (0, 0) {
            let readers = node.outputs.iter().filter_map(|v| first[v.index()]);
            turns[i] = readers.min().unwrap_or(turns[i]);
        }
        for v in &node.inputs {
            let earliest = first[v.index()].map_or(turns[i], |other| other.min(turns[i]));
            first[v.index()] = Some(earliest);
        }
    }
}

fn weighted(values: &[Sym], weights: &[f64]) -> Result<Sym> {
    let mut sum: Option<Sym> = None;
    for (value, &weight) in values.iter().zip(weights) {
        let share = value.mul_scalar(weight)?;
        sum = Some(sum.map_or(Ok(share.clone()), |sum| sum.add(&share))?);
    }
    sum.ok_or_else(|| Error::Internal("a batch without micro-batches".into()))
}

/// (x - mean) scale + shift, in the wide type of the statistics.
fn normalised(x: &Sym, mean: &Sym, scale: &Sym, shift: &Sym) -> Result<Sym> {
    x.cast(mean.dtype())?.sub(mean)?.mul(scale)?.add(shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{Dice, Domain};
    use crate::reference::{Array, interpret};
    use crate::{LossOps, NormOps, Shape, Type, gradient};

    const FRAME: Frame = Frame { state: 7, inputs: 3, totals: 1 };

    /// Two batch norms with a relu between them, running statistics that count their samples, momentum.
    fn step(samples: usize) -> Graph {
        let trace = Trace::new();
        let f32s = |shape: &[usize]| Type::new(DType::F32, Shape::from(shape));
        let shapes = [&[3, 5][..], &[5, 4], &[5], &[5], &[4], &[4], &[5]];
        let name = |i: usize| format!("state {i}");
        let state: Vec<Sym> =
            shapes.iter().enumerate().map(|(i, shape)| trace.input(&name(i), f32s(shape))).collect();
        let x = trace.input("x", f32s(&[samples, 2, 3]));
        let labels = trace.input("labels", Type::new(DType::I64, [samples]));
        trace.input("first sample", Type::new(DType::I64, [1]));
        let y = x.matmul(&state[0]).unwrap();
        let (y, mean, variance) = y.batch_norm(&state[2], &state[3], 1e-3).unwrap();
        let y = y.relu().unwrap().mean(&[1], false).unwrap().matmul(&state[1]).unwrap();
        let (y, ..) = y.batch_norm(&state[4], &state[5], 1e-3).unwrap();
        let loss = y.softmax_cross_entropy(&labels).unwrap().mean(&[], false).unwrap();
        let decay = state[0].square().unwrap().sum(&[], false).unwrap().mul_scalar(0.01).unwrap();
        let loss = loss.add(&decay).unwrap();
        let grads = gradient(&loss, None, &state[..6].iter().collect::<Vec<_>>()).unwrap();
        let mut new: Vec<Sym> = state[..6]
            .iter()
            .zip(grads)
            .map(|(w, grad)| w.sub(&grad.unwrap().mul_scalar(0.1).unwrap()).unwrap())
            .collect();
        // An unbiased variance, as running statistics have it.
        let rows = (2 * samples) as f64;
        let running = variance.mul_scalar(rows / (rows - 1.0)).unwrap().add(&mean).unwrap();
        new.push(state[6].mul_scalar(0.9).unwrap().add(&running.mul_scalar(0.1).unwrap()).unwrap());
        new.push(loss);
        let right = y.argmax(-1).unwrap().equal(&labels).unwrap().cast(DType::F32).unwrap();
        new.push(right.sum(&[], false).unwrap());
        trace.finish(&new.iter().collect::<Vec<_>>()).unwrap()
    }

    fn arguments(whole: &Graph) -> Vec<Array> {
        let mut dice = Dice::new(3);
        let mut of = |domain: Domain, i: usize| domain.fill(whole.ty(whole.inputs()[i]), &mut dice);
        let mut given: Vec<Array> = (0..8).map(|i| of(Domain::Normal, i)).collect();
        given.push(of(Domain::Index(4), 8));
        given.push(Array::new([1], vec![0.0]));
        given
    }

    #[test]
    fn micro_batches_side_by_side_equal_the_whole_step_with_batch_norm() {
        let whole = step(10);
        let given = arguments(&whole);
        let expected = interpret(&whole, &given);
        for sizes in [&[(5, 2)][..], &[(4, 2), (2, 1)], &[(2, 5)], &[(7, 1), (3, 1)]] {
            let traces: Vec<Graph> = sizes.iter().map(|&(samples, _)| step(samples)).collect();
            let runs: Vec<Run<'_>> = traces
                .iter()
                .zip(sizes)
                .map(|(graph, &(samples, runs))| Run { graph, samples, runs })
                .collect();
            let graph = interleave(&whole, &runs, &FRAME).unwrap().unwrap();
            let optimized = crate::passes::optimize(&graph).unwrap();
            for graph in [&graph, &optimized] {
                let found = interpret(graph, &given);
                assert_eq!(found.len(), expected.len());
                for (r, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    for (a, b) in found.data.iter().zip(&expected.data) {
                        assert!((a - b).abs() <= 1e-9 * (1.0 + b.abs()), "{r} of {sizes:?}: {a} and {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn one_micro_batch_runs_after_the_other_between_two_meetings() {
        let (whole, part) = (step(6), step(2));
        let graph =
            interleave(&whole, &[Run { graph: &part, samples: 2, runs: 3 }], &FRAME).unwrap().unwrap();
        let places = |is: fn(&Op) -> bool| -> Vec<usize> {
            (0..graph.nodes().len()).filter(|&i| is(&graph.nodes()[i].op)).collect()
        };
        let products = places(|op| matches!(op, Op::MatMul(_)));
        let norms = places(|op| matches!(op, Op::BatchNorm(_)));
        // Three products, each with its statistics behind it, and only then the second layer.
        assert_eq!(norms.len(), 6);
        for c in 0..3 {
            assert!(products[c] < norms[c] && norms[c] < products[c + 1], "{products:?} {norms:?}");
        }
    }

    #[test]
    fn a_step_that_does_other_things_for_another_size_is_not_interleaved() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [4]));
        let other = trace.finish(&[&x.exp().unwrap()]).unwrap();
        let whole = step(8);
        assert!(interleave(&whole, &[Run { graph: &other, samples: 4, runs: 2 }], &FRAME).unwrap().is_none());
    }
}
