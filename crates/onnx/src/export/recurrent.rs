//! LSTMs and GRUs as ONNX's: time in front, one direction, gates in another order.

use plimsoll_graph::{DType, Node, ValueId};
use rustc_hash::FxHashSet;

use super::emit::{Emitter, int, ints};
use super::ops::refuse;
use crate::error::Result;

impl Emitter<'_> {
    /// Weights `[.., G · H]` as `[1, G · H, ..]` with their gates in another order; of biases, one behind the other.
    fn gates(&mut self, ids: &[Option<ValueId>], order: &[usize], units: usize) -> Result<String> {
        if ids.iter().flatten().any(|&id| self.graph.ty(id).dtype != DType::F32) {
            return refuse("its weights are not f32");
        }
        let sizes = self.list(&vec![units as i64; order.len()]);
        let mut parts = Vec::new();
        for id in ids {
            let Some(id) = id else {
                // A bias that is not there.
                let length = self.list(&[(order.len() * units) as i64]);
                parts.push(self.node("ConstantOfShape", &[&length], vec![]));
                continue;
            };
            let rank = self.graph.ty(*id).shape.rank();
            let rows = if rank == 2 { self.turned(*id, &[1, 0])? } else { self.plain(*id)? };
            let gates = self.node_of("Split", &[&rows, &sizes], order.len(), vec![int("axis", 0)]);
            let ordered: Vec<&str> = order.iter().map(|&gate| gates[gate].as_str()).collect();
            parts.push(self.node("Concat", &ordered, vec![int("axis", 0)]));
        }
        let names: Vec<&str> = parts.iter().map(String::as_str).collect();
        let all = if names.len() == 1 {
            parts[0].clone()
        } else {
            self.node("Concat", &names, vec![int("axis", 0)])
        };
        let front = self.list(&[0]);
        Ok(self.node("Unsqueeze", &[&all, &front], vec![]))
    }

    fn first_state(&mut self, id: ValueId) -> Result<String> {
        let (state, front) = (self.plain(id)?, self.list(&[0]));
        Ok(self.node("Unsqueeze", &[&state, &front], vec![]))
    }

    /// `[T, 1, B, H]` as `[B, T, H]`, and `[1, B, H]` as `[B, H]`.
    fn last(&mut self, node: &Node, names: &[String], n: usize) {
        let (first, second) = (self.list(&[0]), self.list(&[1]));
        let y = self.node("Squeeze", &[&names[0], &second], vec![]);
        let y = self.node("Transpose", &[&y], vec![ints("perm", &[1, 0, 2])]);
        self.set(node.outputs[0], y);
        for i in 1..=n {
            let state = self.node("Squeeze", &[&names[i], &first], vec![]);
            self.set(node.outputs[i], state);
        }
    }

    /// The sequence with its steps first, and the units of the first state (the input `state`). Only the first `n` outputs may be used.
    fn sequence(
        &mut self,
        node: &Node,
        wanted: &FxHashSet<ValueId>,
        n: usize,
        state: usize,
    ) -> Result<(String, usize)> {
        if node.outputs[n..].iter().any(|id| wanted.contains(id)) {
            return refuse("what it keeps for a gradient is used");
        }
        let units = self.graph.ty(node.inputs[state]).shape[1];
        let x = self.plain(node.inputs[0])?;
        Ok((self.node("Transpose", &[&x], vec![ints("perm", &[1, 0, 2])]), units))
    }

    /// Gates i, f, g, o become i, o, f, g.
    pub(super) fn lstm(&mut self, node: &Node, wanted: &FxHashSet<ValueId>) -> Result<()> {
        let (x, units) = self.sequence(node, wanted, 3, 4)?;
        let order = [0, 3, 1, 2];
        let w = self.gates(&[Some(node.inputs[1])], &order, units)?;
        let r = self.gates(&[Some(node.inputs[2])], &order, units)?;
        let b = self.gates(&[Some(node.inputs[3]), None], &order, units)?;
        let (h, c) = (self.first_state(node.inputs[4])?, self.first_state(node.inputs[5])?);
        let hidden = vec![int("hidden_size", units as i64)];
        let names = self.node_of("LSTM", &[&x, &w, &r, &b, "", &h, &c], 3, hidden);
        self.last(node, &names, 2);
        Ok(())
    }

    /// Gates r, z, n become z, r, n.
    pub(super) fn gru(&mut self, node: &Node, wanted: &FxHashSet<ValueId>) -> Result<()> {
        let (x, units) = self.sequence(node, wanted, 2, 5)?;
        let order = [1, 0, 2];
        let w = self.gates(&[Some(node.inputs[1])], &order, units)?;
        let r = self.gates(&[Some(node.inputs[2])], &order, units)?;
        let b = self.gates(&[Some(node.inputs[3]), Some(node.inputs[4])], &order, units)?;
        let h = self.first_state(node.inputs[5])?;
        let attributes = vec![int("hidden_size", units as i64), int("linear_before_reset", 1)];
        let names = self.node_of("GRU", &[&x, &w, &r, &b, "", &h], 2, attributes);
        self.last(node, &names, 1);
        Ok(())
    }
}
