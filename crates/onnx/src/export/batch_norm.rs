//! Finds batch norms among the ops of a model as it predicts, so that they are written as such and can be trained again.

use plimsoll_graph::ops::{Binary, Unary};
use plimsoll_graph::{Graph, Node, Op, ValueId};
use rustc_hash::FxHashMap;

use super::emit::{Emitter, float, ints};
use crate::error::Result;

/// A batch norm with known statistics.
#[derive(Clone, Copy)]
pub(super) struct BatchNorm {
    /// What is normed, then scale, shift, mean and variance.
    pub reads: [ValueId; 5],
    eps: f64,
}

/// All batch norms of a graph, by the value that each gives: x s + (β - mean s) with s = γ / √(var + ε).
pub(super) fn find(graph: &Graph) -> FxHashMap<ValueId, BatchNorm> {
    let makers: FxHashMap<ValueId, &Node> =
        graph.nodes().iter().flat_map(|node| node.outputs.iter().map(move |&id| (id, node))).collect();
    let two = |id: ValueId, wanted: Binary| match makers.get(&id) {
        Some(node) if node.op == Op::Binary(wanted) => Some((node.inputs[0], node.inputs[1])),
        _ => None,
    };
    let one = |id: ValueId| match makers.get(&id) {
        Some(node) => match &node.op {
            Op::Unary(f) => Some((*f, node.inputs[0])),
            _ => None,
        },
        None => None,
    };
    let of = |out: ValueId| {
        let (scaled, shift) = two(out, Binary::Add)?;
        let (x, scale) = two(scaled, Binary::Mul)?;
        let (beta, moved) = two(shift, Binary::Sub)?;
        let (mean, same) = two(moved, Binary::Mul)?;
        let (root, gamma) = two(scale, Binary::Mul)?;
        let (Unary::Rsqrt, sum) = one(root)? else { return None };
        let (Unary::AddScalar(eps), var) = one(sum)? else { return None };
        let is_known = (2..=4).contains(&graph.ty(x).shape.rank()) && same == scale;
        is_known.then_some(BatchNorm { reads: [x, gamma, beta, mean, var], eps: eps.0 })
    };
    let outputs = graph.nodes().iter().flat_map(|node| node.outputs.iter().copied());
    outputs.filter_map(|out| Some((out, of(out)?))).collect()
}

impl Emitter<'_> {
    pub(super) fn batch_norm(&mut self, norm: BatchNorm, out: ValueId) -> Result<()> {
        let [x, rest @ ..] = norm.reads;
        let rank = self.graph.ty(x).shape.rank();
        let turn = || vec![ints("perm", &[0, 2, 1])];
        let mut inputs = vec![match rank {
            4 => self.first(x)?,
            3 => {
                let plain = self.plain(x)?;
                self.node("Transpose", &[&plain], turn())
            }
            _ => self.plain(x)?,
        }];
        for id in rest {
            inputs.push(self.plain(id)?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let name = self.node("BatchNormalization", &inputs, vec![float("epsilon", norm.eps)]);
        match rank {
            4 => self.set_first(out, name),
            3 => {
                let last = self.node("Transpose", &[&name], turn());
                self.set(out, last);
            }
            _ => self.set(out, name),
        }
        Ok(())
    }
}
