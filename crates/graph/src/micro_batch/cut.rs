//! Cuts a step at its gradients: before them is run for every micro-batch, behind them once.

use std::ops::Range;

use super::Parts;
use crate::error::{Error, Result};
use crate::graph::{Graph, ValueId};
use crate::methods::TensorOps;
use crate::passes::rewrite::Rewrite;
use crate::{DType, NodeId, Op, Trace, Type, ops};

/// How the inputs and outputs of a step are arranged.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The first inputs are the state; the first outputs are its new values.
    pub state: usize,
    /// The inputs after them depend on the batch. What comes after those does not.
    pub inputs: usize,
    /// The last outputs are totals over the samples, where all others are means: counts for a metric, say.
    pub totals: usize,
}

impl Frame {
    pub(super) fn batch(&self) -> Range<usize> {
        self.state..self.state + self.inputs
    }
}

/// A step in two graphs. Both take the step's inputs and, after them, the sums.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Adds a micro-batch's share to the sums; its outputs are the new values of `passed` state, then of all sums.
    pub pass: Graph,
    /// Reads the sums; its outputs are the new values of `updated` state, then all that the step gives beside state.
    pub update: Graph,
    /// The types of the sums: gradients and whatever else the update reads of a pass.
    pub sums: Vec<Type>,
    /// For each output of the step beside state, the sum it is, if it is one.
    pub outputs: Vec<Option<usize>>,
    /// Which state changes with every pass: running statistics.
    pub passed: Vec<usize>,
    /// Which state changes once.
    pub updated: Vec<usize>,
}

/// Cuts a step that was traced for a micro-batch; `weight` is the micro-batch's share of the samples.
pub fn cut(graph: &Graph, frame: &Frame, weight: f64) -> Result<Cut> {
    let parts = Parts::new(graph, frame);
    let each = |v: ValueId| graph.info(v).producer.is_some_and(|(node, _)| parts.each(graph, node.index()));
    let (mut passed, mut updated) = (Vec::new(), Vec::new());
    for (i, &v) in graph.outputs()[..frame.state].iter().enumerate() {
        if v != graph.inputs()[i] {
            if each(v) { &mut passed } else { &mut updated }.push(i);
        }
    }
    let mut crossing: Vec<ValueId> = Vec::new();
    let mut weights: Vec<f64> = Vec::new();
    let mut cross = |v: ValueId, weight: f64| {
        if each(v) && !crossing.contains(&v) {
            crossing.push(v);
            weights.push(weight);
        }
    };
    for (node, _) in graph.nodes().iter().zip(&parts.once).filter(|(_, once)| **once) {
        let is_total = matches!(&node.op, Op::Exchange(exchange) if exchange.is_total);
        node.inputs.iter().for_each(|&v| cross(v, if is_total { 1.0 } else { weight }));
    }
    let (means, totals) = graph.outputs().split_at(graph.outputs().len() - frame.totals);
    means[frame.state..].iter().for_each(|&v| cross(v, weight));
    totals.iter().for_each(|&v| cross(v, 1.0));
    // A sum in a 16-bit type would lose small shares.
    let sum_type = |v: ValueId| {
        let ty = graph.ty(v);
        let narrow = matches!(ty.dtype, DType::BF16 | DType::F16);
        if narrow { ty.with_dtype(DType::F32) } else { ty.clone() }
    };
    let sums: Vec<Type> = crossing.iter().map(|&v| sum_type(v)).collect();
    let pass = pass(graph, &passed, &crossing, &sums, &weights)?;
    let update = update(graph, frame, &parts, &updated, &crossing, &sums)?;
    let sum_of = |v: &ValueId| crossing.iter().position(|c| c == v);
    let outputs = graph.outputs()[frame.state..].iter().map(sum_of).collect();
    Ok(Cut { pass, update, sums, outputs, passed, updated })
}

fn pass(
    graph: &Graph,
    passed: &[usize],
    crossing: &[ValueId],
    sums: &[Type],
    weights: &[f64],
) -> Result<Graph> {
    let trace = Trace::of(graph.clone());
    let mut outputs: Vec<_> = passed.iter().map(|&i| trace.value(graph.outputs()[i])).collect();
    for ((&v, ty), &weight) in crossing.iter().zip(sums).zip(weights) {
        let (value, info) = (trace.value(v), graph.info(v));
        let scope = info.producer.map_or("", |(node, _)| graph.node(node).scope.as_str());
        trace.lock().set_scope(scope);
        let sum = trace.input(&format!("sum of {}", info.name), ty.clone());
        let value = value.cast(ty.dtype)?;
        let share = if weight == 1.0 { value } else { value.mul_scalar(weight)? };
        outputs.push(sum.add(&share)?);
    }
    trace.lock().set_scope("");
    trace.finish(&outputs.iter().collect::<Vec<_>>())
}

fn update(
    graph: &Graph,
    frame: &Frame,
    parts: &Parts,
    updated: &[usize],
    crossing: &[ValueId],
    sums: &[Type],
) -> Result<Graph> {
    let mut rewrite = Rewrite::new(graph);
    for (&v, ty) in crossing.iter().zip(sums) {
        let (info, Some((producer, _))) = (graph.info(v), graph.info(v).producer) else {
            return Err(Error::Internal(format!("%{} is summed and is an input", v.0)));
        };
        let sum = rewrite.input(&format!("sum of {}", info.name), ty.clone(), info.site);
        if *ty == info.ty {
            rewrite.stand_in(v, sum);
        } else {
            let cast = Op::from(ops::Cast(info.ty.dtype));
            rewrite.push(graph.node(producer), cast, &[sum], &[Some(v)])?;
        }
    }
    let wanted: Vec<ValueId> = updated
        .iter()
        .map(|&i| graph.outputs()[i])
        .chain(graph.outputs()[frame.state..].iter().copied())
        .collect();
    let mut needed = vec![false; graph.values().len()];
    wanted.iter().for_each(|v| needed[v.index()] = true);
    crossing.iter().for_each(|v| needed[v.index()] = false);
    let mut kept: Vec<NodeId> = Vec::new();
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        if !parts.each(graph, i) && node.outputs.iter().any(|v| needed[v.index()]) {
            node.inputs.iter().for_each(|v| needed[v.index()] = true);
            kept.push(NodeId(i as u32));
        }
    }
    for id in kept.into_iter().rev() {
        rewrite.keep(graph.node(id))?;
    }
    rewrite.finish_with(&wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{Dice, Domain};
    use crate::reference::{Array, interpret};
    use crate::{LossOps, Shape, gradient};

    /// Two layers, cross-entropy, momentum; state: w1, w2, m1, m2, count; inputs: x, labels.
    fn step(samples: usize) -> Graph {
        let trace = Trace::new();
        let f32s = |shape: &[usize]| Type::new(DType::F32, Shape::from(shape));
        let state: Vec<_> = [&[3, 5][..], &[5, 4], &[3, 5], &[5, 4], &[1]]
            .iter()
            .enumerate()
            .map(|(i, shape)| trace.input(&format!("state {i}"), f32s(shape)))
            .collect();
        let x = trace.input("x", f32s(&[samples, 3]));
        let y = trace.input("labels", Type::new(DType::I64, [samples]));
        let logits = x.matmul(&state[0]).unwrap().tanh().unwrap().matmul(&state[1]).unwrap();
        let loss = logits.softmax_cross_entropy(&y).unwrap().mean(&[], false).unwrap();
        let grads: Vec<_> =
            gradient(&loss, None, &[&state[0], &state[1]]).unwrap().into_iter().flatten().collect();
        let mut new = state.clone();
        for i in 0..2 {
            new[2 + i] = state[2 + i].mul_scalar(0.9).unwrap().add(&grads[i]).unwrap();
            new[i] = state[i].sub(&new[2 + i].mul_scalar(0.1).unwrap()).unwrap();
        }
        new[4] = state[4].add_scalar(1.0).unwrap();
        new.push(loss);
        new.push(
            logits.argmax(-1).unwrap().equal(&y).unwrap().cast(DType::F32).unwrap().sum(&[], false).unwrap(),
        );
        trace.finish(&new.iter().collect::<Vec<_>>()).unwrap()
    }

    const FRAME: Frame = Frame { state: 5, inputs: 2, totals: 1 };

    fn rows(array: &Array, range: Range<usize>) -> Array {
        let row: usize = array.shape[1..].iter().product();
        let shape = array.shape.with(0, range.len());
        Array::new(shape, array.data[range.start * row..range.end * row].to_vec())
    }

    #[test]
    fn passes_over_uneven_parts_and_one_update_equal_the_whole_step() {
        let whole = step(10);
        let mut dice = Dice::new(7);
        let mut arguments: Vec<Array> =
            whole.inputs()[..6].iter().map(|&v| Domain::Normal.fill(whole.ty(v), &mut dice)).collect();
        arguments.push(Domain::Index(4).fill(whole.ty(whole.inputs()[6]), &mut dice));
        let expected = interpret(&whole, &arguments);

        let (mut sums, mut last): (Vec<Array>, Option<Cut>) = (Vec::new(), None);
        for range in [0..4, 4..8, 8..10] {
            let cut = cut(&step(range.len()), &FRAME, range.len() as f64 / 10.0).unwrap();
            if sums.is_empty() {
                sums = cut
                    .sums
                    .iter()
                    .map(|ty| Array::new(ty.shape.clone(), vec![0.0; ty.elements()]))
                    .collect();
            }
            let mut given: Vec<Array> = arguments[..5].to_vec();
            given.extend(arguments[5..].iter().map(|a| rows(a, range.clone())));
            given.extend(sums);
            sums = interpret(&cut.pass, &given);
            last = Some(cut);
        }
        let cut = last.unwrap();
        assert_eq!((cut.passed.len(), cut.updated.as_slice()), (0, &[0, 1, 2, 3, 4][..]));
        let mut given = arguments.clone();
        given.extend(sums);
        let found = interpret(&cut.update, &given);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            for (a, b) in found.data.iter().zip(&expected.data) {
                assert!((a - b).abs() <= 1e-12 * (1.0 + b.abs()), "{a} and {b}");
            }
        }
    }

    #[test]
    fn the_update_reads_nothing_of_the_batch() {
        let cut = cut(&step(4), &FRAME, 0.4).unwrap();
        for node in cut.update.nodes() {
            assert!(!node.inputs.iter().any(|v| cut.update.inputs()[FRAME.batch()].contains(v)), "{node:?}");
        }
    }
}
