//! Lets 16-bit numbers stay as they are where they were widened, or are gathered from ranks only to be rounded to them: the widest values of a language
//! model are held and read once less, and half as many bytes go between ranks.

use std::collections::HashMap;

use super::rewrite::{Rewrite, leaving, readers};
use crate::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::ops::{Cast, ExchangeKind};

/// The graph without casts to f32 before cross-entropy, with none that undo another, and with values of ranks gathered in the type that all who read them
/// round them to.
///
/// To round numbers before they are gathered is to round them afterwards. The loss of 16-bit logits is computed in f32 in any case, and so is its gradient, which is rounded when it is written: where all that reads it rounds
/// it to the same type, these are the same bits. What else reads the wide values still finds them.
pub fn read_narrow(graph: &Graph) -> Result<Graph> {
    let wants = Wants { graph, readers: readers(graph), leaves: leaving(graph) };
    let mut rewrite = Rewrite::new(graph);
    // Of old values that are f32: the new value with the same numbers in 16 bits.
    let mut narrow: HashMap<ValueId, (ValueId, DType)> = HashMap::new();
    for node in graph.nodes() {
        let first = node.inputs.first().copied();
        let known = first.and_then(|v| narrow.get(&v).copied());
        match (&node.op, known) {
            (Op::Cast(Cast(DType::F32)), None) => {
                rewrite.keep(node)?;
                let from = graph.ty(node.inputs[0]).dtype;
                if matches!(from, DType::BF16 | DType::F16) {
                    narrow.insert(node.outputs[0], (rewrite.at(node.inputs[0])?, from));
                }
            }
            // Back to what it was.
            (Op::Cast(Cast(to)), Some((value, dtype))) if *to == dtype => {
                rewrite.stand_in(node.outputs[0], value);
            }
            (op, Some((value, dtype))) if is_layout(op) => {
                rewrite.keep(node)?;
                let made = rewrite.push(node, op.clone(), &[value], &[None])?;
                narrow.insert(node.outputs[0], (made[0], dtype));
            }
            (Op::CrossEntropy(_), Some((value, _))) => {
                let inputs = with_logits(&rewrite, node, value)?;
                rewrite.push(
                    node,
                    node.op.clone(),
                    &inputs,
                    &[Some(node.outputs[0]), Some(node.outputs[1])],
                )?;
            }
            (Op::CrossEntropyGrad(_), Some((value, dtype))) if wants.only(node.outputs[0], dtype) => {
                let inputs = with_logits(&rewrite, node, value)?;
                let made = rewrite.push(node, node.op.clone(), &inputs, &[None])?;
                rewrite.push(node, Cast(DType::F32).into(), &made, &[Some(node.outputs[0])])?;
                narrow.insert(node.outputs[0], (made[0], dtype));
            }
            (Op::Exchange(exchange), None)
                if exchange.of.ranks > 1 && matches!(exchange.kind, ExchangeKind::Gather(_)) =>
            {
                let Some(dtype) = wants.rounded(node.outputs[0]) else {
                    rewrite.keep(node)?;
                    continue;
                };
                let mut inputs =
                    rewrite.push(node, Cast(dtype).into(), &[rewrite.at(node.inputs[0])?], &[])?;
                inputs.extend(node.inputs[1..].iter().map(|&v| rewrite.at(v)).collect::<Result<Vec<_>>>()?);
                let token = node.outputs[1];
                let made = rewrite.push(node, node.op.clone(), &inputs, &[None, Some(token)])?;
                let wide = Cast(graph.ty(node.outputs[0]).dtype);
                rewrite.push(node, wide.into(), &made[..1], &[Some(node.outputs[0])])?;
                narrow.insert(node.outputs[0], (made[0], dtype));
            }
            _ => rewrite.keep(node)?,
        }
    }
    rewrite.finish()
}

/// The new inputs of a node, with other logits.
fn with_logits(rewrite: &Rewrite<'_>, node: &Node, logits: ValueId) -> Result<Vec<ValueId>> {
    let rest = node.inputs[1..].iter().map(|&v| rewrite.at(v));
    std::iter::once(Ok(logits)).chain(rest).collect()
}

/// Ops of one input that move numbers, change none, and add nothing but zeros.
fn is_layout(op: &Op) -> bool {
    match op {
        Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) => true,
        Op::Pad(pad) => pad.value.0 == 0.0,
        _ => false,
    }
}

/// Who reads what.
struct Wants<'a> {
    graph: &'a Graph,
    readers: Vec<Vec<usize>>,
    leaves: Vec<bool>,
}

impl Wants<'_> {
    /// The narrower type that all who read a value round it to first, if there is one.
    fn rounded(&self, value: ValueId) -> Option<DType> {
        let mut at = value;
        let to = loop {
            let node = &self.graph.nodes()[*self.readers[at.index()].first()?];
            match &node.op {
                Op::Cast(Cast(to)) => break *to,
                op if is_layout(op) => at = node.outputs[0],
                _ => return None,
            }
        };
        let from = self.graph.ty(value).dtype;
        let is_narrower = from.is_float() && to.is_float() && to.bytes() < from.bytes();
        (is_narrower && self.only(value, to)).then_some(to)
    }

    /// Whether all that reads a value rounds it to this type first.
    fn only(&self, value: ValueId, dtype: DType) -> bool {
        !self.leaves[value.index()]
            && self.readers[value.index()].iter().all(|&at| {
                let node = &self.graph.nodes()[at];
                match &node.op {
                    Op::Cast(Cast(to)) => *to == dtype,
                    op if is_layout(op) => self.only(node.outputs[0], dtype),
                    _ => false,
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::gradient;
    use crate::methods::TensorOps;
    use crate::ops::{LossOps, Rank};
    use crate::passes::testing::assert_same;
    use crate::passes::{optimize, remove_dead};
    use crate::{ExchangeOps, Trace, Type};

    /// A product in 16 bits, widened, cut and flattened, with its loss and the gradients of both factors.
    fn model(more: impl Fn(&crate::Sym) -> Result<crate::Sym>) -> Graph {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::BF16, [2, 5, 8]));
        let w = trace.input("w", Type::new(DType::BF16, [8, 12]));
        let labels = trace.input("labels", Type::new(DType::I64, [8]));
        let logits = x.matmul(&w).unwrap().cast(DType::F32).unwrap();
        let rows = logits.narrow(1, 0, 4).unwrap().reshape([8, 12]).unwrap();
        let loss = rows.softmax_cross_entropy(&labels).unwrap().mean(&[], false).unwrap();
        let loss = loss.add(&more(&logits).unwrap()).unwrap();
        let grads = gradient(&loss, None, &[&x, &w]).unwrap();
        let outs: Vec<_> = std::iter::once(&loss).chain(grads.iter().flatten()).collect();
        trace.finish(&outs).unwrap()
    }

    fn wide(graph: &Graph) -> usize {
        let values = graph.nodes().iter().flat_map(|node| &node.outputs);
        values.filter(|v| graph.ty(**v).dtype == DType::F32 && graph.ty(**v).elements() >= 96).count()
    }

    #[test]
    fn widened_logits_are_never_held() {
        let graph = model(|logits| logits.full_like(Type::new(DType::F32, []), 0.0));
        let narrowed = remove_dead(&read_narrow(&graph).unwrap()).unwrap();
        assert!(wide(&graph) >= 5, "{graph}");
        assert_eq!(wide(&narrowed), 0, "{narrowed}");
        assert_same(&graph, &narrowed);
        assert_eq!(wide(&optimize(&graph).unwrap()), 0);
    }

    /// A weight that ranks have shards of, gathered and read in 16 bits there and back, and what else is made of it.
    fn gathered(more: impl Fn(&crate::Sym) -> Option<crate::Sym>) -> Graph {
        let of = Rank::new(0, 2);
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::BF16, [3, 4]));
        let own = trace.input("w", Type::new(DType::F32, [11]));
        let all = own.all_gather_anew(of, [22]).unwrap();
        let w = all.narrow(0, 0, 20).unwrap().reshape([4, 5]).unwrap();
        let y = x.matmul(&w.cast(DType::BF16).unwrap()).unwrap().cast(DType::F32).unwrap();
        let loss = y.square().unwrap().sum(&[], false).unwrap();
        let grads = gradient(&loss, None, &[&x, &own]).unwrap();
        let more = more(&w);
        let outs: Vec<_> = std::iter::once(&loss).chain(grads.iter().flatten()).chain(&more).collect();
        trace.finish(&outs).unwrap()
    }

    fn exchanged(graph: &Graph) -> Vec<(&'static str, DType)> {
        let all = graph.nodes().iter().filter(|node| node.op.is_exchange());
        all.map(|node| (node.op.name(), graph.ty(node.outputs[0]).dtype)).collect()
    }

    #[test]
    fn what_ranks_read_in_16_bits_is_gathered_in_16_bits_and_its_gradient_added_up_in_32() {
        let graph = gathered(|_| None);
        let narrowed = optimize(&graph).unwrap();
        let wide = [("all_gather", DType::F32), ("all_gather", DType::F32), ("reduce_scatter", DType::F32)];
        let narrow =
            [("all_gather", DType::BF16), ("all_gather", DType::BF16), ("reduce_scatter", DType::F32)];
        assert_eq!(exchanged(&graph), wide, "{graph}");
        assert_eq!(exchanged(&narrowed), narrow, "{narrowed}");
        assert_same(&graph, &narrowed);
    }

    #[test]
    fn what_somebody_reads_wide_is_gathered_wide() {
        let graph = gathered(|w| w.square().ok());
        let found = exchanged(&optimize(&graph).unwrap());
        assert_eq!(found[0], ("all_gather", DType::F32));
        // On the way back only the product reads it.
        assert_eq!(found[1], ("all_gather", DType::BF16));
    }

    #[test]
    fn a_gradient_that_others_add_to_stays_wide() {
        let graph = model(|logits| logits.square()?.mean(&[], false));
        let narrowed = remove_dead(&read_narrow(&graph).unwrap()).unwrap();
        let is_wide = |node: &Node| {
            matches!(node.op, Op::CrossEntropyGrad(_)) && graph.ty(node.inputs[0]).dtype == DType::F32
        };
        assert!(graph.nodes().iter().any(is_wide));
        let grads = narrowed.nodes().iter().filter(|node| matches!(node.op, Op::CrossEntropyGrad(_)));
        assert!(grads.into_iter().all(|node| narrowed.ty(node.outputs[0]).dtype == DType::F32), "{narrowed}");
        assert_same(&graph, &narrowed);
    }
}
