//! Lets cross-entropy read 16-bit logits as they are where they were widened before it: the widest values of a language model are held and read once less.

use std::collections::HashMap;

use super::rewrite::{Rewrite, leaving, readers};
use crate::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::ops::Cast;

/// The graph without casts to f32 before cross-entropy, and with none that undo another.
///
/// The loss of 16-bit logits is computed in f32 in any case, and so is its gradient, which is rounded when it is written: where all that reads it rounds
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
    use crate::example::{Dice, Domain};
    use crate::gradient::gradient;
    use crate::methods::TensorOps;
    use crate::ops::LossOps;
    use crate::passes::{optimize, remove_dead};
    use crate::reference::interpret;
    use crate::{Trace, Type};

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

    fn given(graph: &Graph) -> Vec<crate::reference::Array> {
        let mut dice = Dice::new(5);
        let domain = |v| if graph.ty(v).dtype == DType::I64 { Domain::Index(12) } else { Domain::Normal };
        graph.inputs().iter().map(|&v| domain(v).fill(graph.ty(v), &mut dice)).collect()
    }

    #[test]
    fn widened_logits_are_never_held() {
        let graph = model(|logits| logits.full_like(Type::new(DType::F32, []), 0.0));
        let narrowed = remove_dead(&read_narrow(&graph).unwrap()).unwrap();
        assert!(wide(&graph) >= 5, "{graph}");
        assert_eq!(wide(&narrowed), 0, "{narrowed}");
        assert_eq!(interpret(&graph, &given(&graph)), interpret(&narrowed, &given(&graph)));
        assert_eq!(wide(&optimize(&graph).unwrap()), 0);
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
        assert_eq!(interpret(&graph, &given(&graph)), interpret(&narrowed, &given(&graph)));
    }
}
