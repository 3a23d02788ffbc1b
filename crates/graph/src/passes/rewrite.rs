//! Builds the new graph of a pass: what stays is copied with its name, line, scope and phase.

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::op::Op;
use crate::{Site, Type};

/// The values that an op makes.
type Made = SmallVec<[ValueId; 2]>;
/// The old value whose place each output takes, if it takes one's.
type Olds<'a> = &'a [Option<ValueId>];

/// A graph under reconstruction: the old one, the new one, and which new value stands for which old one.
pub(crate) struct Rewrite<'a> {
    pub old: &'a Graph,
    new: Graph,
    map: Vec<Option<ValueId>>,
}

impl<'a> Rewrite<'a> {
    /// Starts with the inputs, in their order.
    pub(crate) fn new(old: &'a Graph) -> Rewrite<'a> {
        let mut rewrite = Rewrite { old, new: Graph::as_large_as(old), map: vec![None; old.values().len()] };
        for &v in old.inputs() {
            let info = old.info(v);
            rewrite.map[v.index()] = Some(rewrite.new.input(&info.name, info.ty.clone(), info.site));
        }
        rewrite
    }

    /// The new value of an old one.
    pub(crate) fn at(&self, old: ValueId) -> Result<ValueId> {
        let missing = || Error::Internal(format!("a pass reads %{} before it is made", old.0));
        self.map[old.index()].ok_or_else(missing)
    }

    /// Appends a node unchanged.
    pub(crate) fn keep(&mut self, node: &Node) -> Result<()> {
        let outputs: SmallVec<[Option<ValueId>; 2]> = node.outputs.iter().map(|&v| Some(v)).collect();
        self.replace(node, node.op.clone(), &node.inputs, &outputs)?;
        Ok(())
    }

    /// Appends an op in a node's place: same line, scope and phase. Its inputs are old values; each of its outputs
    /// takes an old value's place and name, or is new.
    pub(crate) fn replace(
        &mut self,
        like: &Node,
        op: Op,
        inputs: &[ValueId],
        olds: Olds<'_>,
    ) -> Result<Made> {
        let inputs = inputs.iter().map(|&v| self.at(v)).collect::<Result<SmallVec<[ValueId; 8]>>>()?;
        self.push(like, op, &inputs, olds)
    }

    /// Like [`Rewrite::replace`] with inputs that are new values.
    pub(crate) fn push(&mut self, like: &Node, op: Op, inputs: &[ValueId], olds: Olds<'_>) -> Result<Made> {
        self.new.set_scope(&like.scope);
        let phase = self.new.set_phase(like.phase);
        let made = self.new.push(op, inputs, like.site);
        self.new.set_phase(phase);
        let made = made?;
        if like.is_differentiated {
            self.new.differentiate(NodeId(self.new.nodes().len() as u32 - 1));
        }
        for (&new, old) in made.iter().zip(olds) {
            if let Some(old) = old {
                let info = self.old.info(*old);
                self.new.rename(new, &info.name, info.site);
                self.map[old.index()] = Some(new);
            }
        }
        Ok(made)
    }

    /// Adds an input that the old graph does not have.
    pub(crate) fn input(&mut self, name: &str, ty: Type, site: Site) -> ValueId {
        self.new.input(name, ty, site)
    }

    /// Lets a new value stand for an old one.
    pub(crate) fn stand_in(&mut self, old: ValueId, new: ValueId) {
        self.map[old.index()] = Some(new);
    }

    /// Lets an old value be another old value's new one.
    pub(crate) fn alias(&mut self, old: ValueId, same_as: ValueId) {
        self.map[old.index()] = self.map[same_as.index()];
    }

    /// The new graph, with the outputs in their order.
    pub(crate) fn finish(self) -> Result<Graph> {
        let old = self.old;
        self.finish_with(old.outputs())
    }

    /// The new graph, with other outputs: old values.
    pub(crate) fn finish_with(mut self, outputs: &[ValueId]) -> Result<Graph> {
        let outputs = outputs.iter().map(|&v| self.at(v)).collect::<Result<Vec<ValueId>>>()?;
        self.new.set_scope("");
        self.new.set_outputs(outputs);
        Ok(self.new)
    }
}

/// For every value, the nodes that read it, in order; a node that reads it twice stands there twice.
pub(crate) fn readers(graph: &Graph) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); graph.values().len()];
    for (i, node) in graph.nodes().iter().enumerate() {
        for v in &node.inputs {
            readers[v.index()].push(i);
        }
    }
    readers
}

/// For every value, whether it leaves the graph.
pub(crate) fn leaving(graph: &Graph) -> Vec<bool> {
    let mut leaves = vec![false; graph.values().len()];
    graph.outputs().iter().for_each(|v| leaves[v.index()] = true);
    leaves
}
