//! Joins elementwise ops into chains that pass memory once.
//!
//! Nodes are taken in order; each joins the groups that make its operands where that is allowed, else it starts a
//! group of its own. A group runs where its last member stood, so it may join only if nobody outside reads a member
//! before that place. A member's value that is read outside the group leaves it as an output: nothing is computed
//! twice. Constants and broadcasts become operands of the steps and are never written to memory.
//!
//! Waiting for the last member must not cost memory: a group spans other nodes only if what it keeps alive meanwhile
//! (operands that would have been let go of) is not more than what it does not write meanwhile. And no group spans
//! the forward and the backward pass; but what only casts a finished gradient joins the update that reads it.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::rewrite::{Rewrite, leaving, readers};
use crate::error::Result;
use crate::graph::{Graph, Node, Phase, ValueId};
use crate::op::Op;
use crate::ops::{Arg, Chain, ElementOp, Full, Fused, Step};
use crate::{DType, Shape};

/// Operands of a chain at most.
const MOST_INPUTS: usize = 12;
/// Steps of a chain at most.
const MOST_STEPS: usize = 40;

/// The graph with chains of elementwise ops as [`Fused`] nodes.
pub fn fuse(graph: &Graph) -> Result<Graph> {
    let plan = Grouping::of(graph);
    let mut rewrite = Rewrite::new(graph);
    for (i, node) in graph.nodes().iter().enumerate() {
        match plan.group_of[i] {
            None => rewrite.keep(node)?,
            Some(g) if plan.groups[g].members.last() != Some(&i) => {}
            Some(g) if plan.is_worthwhile(&plan.groups[g]) => plan.emit(&plan.groups[g], &mut rewrite)?,
            Some(_) => rewrite.keep(node)?,
        }
    }
    rewrite.finish()
}

/// What an elementwise node computes, if it may be a step.
fn step_op(graph: &Graph, node: &Node) -> Option<ElementOp> {
    let op = match &node.op {
        Op::Unary(f) => ElementOp::Unary(*f),
        Op::Binary(f) => ElementOp::Binary(*f),
        Op::Compare(f) => ElementOp::Compare(*f),
        Op::Select(_) => ElementOp::Select,
        Op::ReluGrad(r) => ElementOp::ReluGrad(r.slope),
        // Numbers to bytes and truth values are rare, and not rounding alone.
        Op::Cast(c) if c.0.is_float() => ElementOp::Cast,
        _ => return None,
    };
    let fits = |v: &ValueId| {
        matches!(graph.ty(*v).dtype, DType::F32 | DType::BF16 | DType::F16 | DType::Bool | DType::U8)
    };
    node.inputs.iter().chain(&node.outputs).all(fits).then_some(op)
}

/// Nodes that become one.
struct Group {
    shape: Shape,
    phase: Phase,
    /// In order.
    members: Vec<usize>,
}

struct Grouping<'a> {
    graph: &'a Graph,
    readers: Vec<Vec<usize>>,
    leaves: Vec<bool>,
    groups: Vec<Group>,
    group_of: Vec<Option<usize>>,
}

impl<'a> Grouping<'a> {
    fn of(graph: &'a Graph) -> Grouping<'a> {
        let n = graph.nodes().len();
        let (readers, leaves) = (readers(graph), leaving(graph));
        let mut plan = Grouping { graph, readers, leaves, groups: Vec::new(), group_of: vec![None; n] };
        for (i, node) in graph.nodes().iter().enumerate() {
            if step_op(graph, node).is_some() {
                plan.place(i, node);
            }
        }
        plan
    }

    /// Puts a node into the groups of its operands, as many as allowed, or into a new one.
    fn place(&mut self, i: usize, node: &Node) {
        let shape = self.graph.ty(node.outputs[0]).shape.clone();
        let mut members = vec![i];
        for g in self.candidates(i, node) {
            if self.groups[g].shape != shape || !self.goes_on(&self.groups[g], node.phase) {
                continue;
            }
            let mut joined = self.groups[g].members.clone();
            joined.extend(&members);
            joined.sort_unstable();
            if self.is_allowed(&joined) {
                self.groups[g].members.clear();
                members = joined;
            }
        }
        let g = self.groups.len();
        members.iter().for_each(|&m| self.group_of[m] = Some(g));
        self.groups.push(Group { shape, phase: node.phase, members });
    }

    /// Whether a group may end in a phase.
    fn goes_on(&self, group: &Group, phase: Phase) -> bool {
        let is_cast = |m: &usize| matches!(self.graph.nodes()[*m].op, Op::Cast(_));
        group.phase == phase || group.phase == Phase::Backward && group.members.iter().all(is_cast)
    }

    /// The groups that make a node's operands, and the one that ends right before it and reads what it reads.
    fn candidates(&self, i: usize, node: &Node) -> Vec<usize> {
        let mut found = Vec::new();
        for &v in &node.inputs {
            let maker = self.graph.info(v).producer.and_then(|(n, _)| self.group_of[n.index()]);
            found.extend(maker.filter(|g| !found.contains(g)));
        }
        let before = i.checked_sub(1).and_then(|b| self.group_of[b]).filter(|g| !found.contains(g));
        // A shared scalar, a learning rate say, is no reason to tie two things together.
        let is_whole = |v: &ValueId| self.graph.ty(*v).shape == self.graph.ty(node.outputs[0]).shape;
        let reads =
            |m: &usize| self.graph.nodes()[*m].inputs.iter().any(|v| is_whole(v) && node.inputs.contains(v));
        let shares = |g: &usize| {
            self.groups[*g].members.iter().any(reads) && self.graph.ty(node.outputs[0]).elements() > 1
        };
        found.extend(before.filter(shares));
        found
    }

    /// Whether these nodes, in order, may run as one where the last of them stands.
    fn is_allowed(&self, members: &[usize]) -> bool {
        let (Some(&first), Some(&last)) = (members.first(), members.last()) else { return false };
        let is_member = |n: &usize| members.binary_search(n).is_ok();
        let nodes = self.graph.nodes();
        let made = || members.iter().flat_map(|&m| nodes[m].outputs.iter().copied());
        let in_time = |v: ValueId| self.readers[v.index()].iter().all(|r| *r > last || is_member(r));
        if members.len() > MOST_STEPS || !made().all(in_time) || self.inputs(members).len() > MOST_INPUTS {
            return false;
        }
        // Nodes between that cost nothing, or nothing once they are part of a chain, are not waited for.
        let is_free =
            |n: usize| matches!(nodes[n].op, Op::Full(_) | Op::Broadcast(_)) || nodes[n].op.is_view();
        if (first..last).all(|n| is_member(&n) || is_free(n)) {
            return true;
        }
        // What is kept alive until the last member, against what is not written until then.
        let bytes = |v: ValueId| self.graph.ty(v).bytes();
        let is_let_go = |v: &ValueId| {
            self.graph.info(*v).producer.is_some()
                && !self.leaves[v.index()]
                && self.readers[v.index()].last().is_some_and(|&r| r < last)
        };
        let kept: usize = self.inputs(members).into_iter().filter(is_let_go).map(bytes).sum();
        let is_waiting =
            |v: &ValueId| self.leaves[v.index()] || self.readers[v.index()].iter().any(|&r| r >= last);
        let waiting: usize =
            made().filter(|v| !nodes[last].outputs.contains(v)).filter(is_waiting).map(bytes).sum();
        kept <= waiting
    }

    /// What a constant or a broadcast stands for inside a chain.
    fn seen_through(&self, v: ValueId) -> Operand {
        let Some((producer, _)) = self.graph.info(v).producer else { return Operand::Value(v) };
        let node = self.graph.node(producer);
        match &node.op {
            Op::Full(Full { value, .. }) => Operand::Const(*value),
            Op::Broadcast(_) => self.seen_through(node.inputs[0]),
            _ => Operand::Value(v),
        }
    }

    /// The values a group reads from outside.
    fn inputs(&self, members: &[usize]) -> Vec<ValueId> {
        let mut inputs = Vec::new();
        for &m in members {
            for &v in &self.graph.nodes()[m].inputs {
                let maker = self.graph.info(v).producer.map(|(n, _)| n.index());
                if maker.is_some_and(|n| members.binary_search(&n).is_ok()) {
                    continue;
                }
                if let Operand::Value(v) = self.seen_through(v)
                    && !inputs.contains(&v)
                {
                    inputs.push(v);
                }
            }
        }
        inputs
    }

    /// Whether a group is better off as a chain: several steps, or one that saves writing a constant or a broadcast.
    fn is_worthwhile(&self, group: &Group) -> bool {
        let saves =
            |v: &ValueId| self.seen_through(*v) != Operand::Value(*v) && self.graph.ty(*v).elements() > 1;
        group.members.len() > 1 || self.graph.nodes()[group.members[0]].inputs.iter().any(saves)
    }

    /// Appends a group as one node in its last member's place.
    fn emit(&self, group: &Group, rewrite: &mut Rewrite<'_>) -> Result<()> {
        let nodes = self.graph.nodes();
        let inputs = self.inputs(&group.members);
        let mut made: HashMap<ValueId, u16> = HashMap::new();
        let mut steps = Vec::new();
        let mut outputs = Vec::new();
        let mut stands_for: SmallVec<[Option<ValueId>; 4]> = SmallVec::new();
        for &m in &group.members {
            let node = &nodes[m];
            let Some(op) = step_op(self.graph, node) else { continue };
            let arg = |&v: &ValueId| match made.get(&v) {
                Some(&s) => Arg::Step(s),
                None => match self.seen_through(v) {
                    Operand::Const(value) => Arg::Const(value),
                    Operand::Value(v) => Arg::Input(inputs.iter().position(|&x| x == v).unwrap_or(0) as u16),
                },
            };
            let v = node.outputs[0];
            steps.push(Step {
                op,
                args: node.inputs.iter().map(arg).collect(),
                dtype: self.graph.ty(v).dtype,
            });
            let step = (steps.len() - 1) as u16;
            made.insert(v, step);
            let outside = |r: &usize| group.members.binary_search(r).is_err();
            if self.leaves[v.index()]
                || self.readers[v.index()].iter().any(outside)
                || m == group.members[group.members.len() - 1]
            {
                outputs.push(step);
                stands_for.push(Some(v));
            }
        }
        let chain = Chain { shape: group.shape.clone(), n_inputs: inputs.len(), steps, outputs };
        let last = &nodes[group.members[group.members.len() - 1]];
        rewrite.replace(last, Fused::new(chain).into(), &inputs, &stands_for)?;
        Ok(())
    }
}

/// An operand of a step from outside its group.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operand {
    Value(ValueId),
    Const(crate::Scalar),
}

#[cfg(test)]
mod tests;
