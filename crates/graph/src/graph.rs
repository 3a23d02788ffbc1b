//! The graph: ops in execution order over values that are written once.
//!
//! Append-only, so a node's index is its place in the order and ids are plain numbers. Nothing here holds a tensor's
//! bytes.

use std::fmt;

use smallvec::SmallVec;

use crate::error::Result;
use crate::{Op, Site, Type};

/// A value's index in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A node's index in its graph, and so its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl ValueId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which part of a training step a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// What the model's code asked for.
    #[default]
    Forward,
    /// What a gradient rule added.
    Backward,
}

/// One op with its operands.
#[derive(Clone, Debug)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// What it reads.
    pub inputs: SmallVec<[ValueId; 3]>,
    /// What it writes.
    pub outputs: SmallVec<[ValueId; 2]>,
    /// The user's line that asked for it.
    pub site: Site,
    /// The path of scopes it was made in, `""` at the top.
    pub scope: String,
    /// The part of the step it belongs to.
    pub phase: Phase,
    /// Whether a gradient was taken through it.
    pub is_differentiated: bool,
}

/// One value: written once, by a node or from outside.
#[derive(Clone, Debug)]
pub struct ValueInfo {
    /// Element type and shape.
    pub ty: Type,
    /// The node that writes it and the number of the output there; `None` for an input of the graph.
    pub producer: Option<(NodeId, usize)>,
    /// The name it was given: an input's name, or the layer path and op that made it.
    pub name: String,
    /// The user's line that made it.
    pub site: Site,
}

/// A recorded computation.
///
/// ```
/// use plimsoll_graph::{DType, Graph, Op, Site, Type, ops::Unary};
/// let mut graph = Graph::default();
/// let x = graph.input("x", Type::new(DType::F32, [2, 3]), Site::here());
/// let y = graph.push(Op::Unary(Unary::Exp), &[x], Site::here())?[0];
/// graph.set_outputs(vec![y]);
/// assert_eq!(graph.to_string(), "input  %0 x: f32[2, 3]\n%1: f32[2, 3] = exp(%0)\noutput %1\n");
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    values: Vec<ValueInfo>,
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    scope: Vec<String>,
    phase: Phase,
}

impl Graph {
    /// An empty graph with room for as much as another has: one that grows by doubling takes up to twice what it needs.
    pub(crate) fn as_large_as(other: &Graph) -> Graph {
        let (nodes, values) = (Vec::with_capacity(other.nodes.len()), Vec::with_capacity(other.values.len()));
        Graph { nodes, values, ..Graph::default() }
    }

    /// Adds an input: a value that comes from outside.
    pub fn input(&mut self, name: &str, ty: Type, site: Site) -> ValueId {
        let id = self.value(ValueInfo { ty, producer: None, name: name.into(), site });
        self.inputs.push(id);
        id
    }

    /// Appends an op and returns its outputs' ids.
    pub fn push(&mut self, op: Op, inputs: &[ValueId], site: Site) -> Result<SmallVec<[ValueId; 2]>> {
        let outputs = {
            let types: SmallVec<[&Type; 4]> = inputs.iter().map(|&v| self.ty(v)).collect();
            let outputs = op.infer(&types).map_err(|why| op.mismatch(&types, why, site))?;
            if let Some(ty) = outputs.iter().find(|ty| ty.is_too_large()) {
                return Err(op.mismatch(
                    &types,
                    format!("it would make {ty}, which no machine can hold"),
                    site,
                ));
            }
            outputs
        };
        let node = NodeId(self.nodes.len() as u32);
        let scope = self.scope.join("/");
        let name = if scope.is_empty() { op.name().into() } else { format!("{scope}/{}", op.name()) };
        let outputs = outputs
            .into_iter()
            .enumerate()
            .map(|(i, ty)| self.value(ValueInfo { ty, producer: Some((node, i)), name: name.clone(), site }))
            .collect::<SmallVec<[ValueId; 2]>>();
        self.nodes.push(Node {
            op,
            inputs: inputs.into(),
            outputs: outputs.clone(),
            site,
            scope,
            phase: self.phase,
            is_differentiated: false,
        });
        Ok(outputs)
    }

    /// The token of the last exchange with other ranks, where there is one.
    pub(crate) fn last_token(&self) -> Option<ValueId> {
        let last = self.nodes.iter().rev().find(|node| node.op.is_exchange())?;
        last.outputs.get(1).copied()
    }

    /// Names the values that leave the graph.
    pub fn set_outputs(&mut self, outputs: Vec<ValueId>) {
        self.outputs = outputs;
    }

    /// Opens a naming scope; nodes made until [`Graph::leave`] carry it in their path.
    pub fn enter(&mut self, scope: &str) {
        self.scope.push(scope.into());
    }

    /// Closes the innermost scope.
    pub fn leave(&mut self) {
        self.scope.pop();
    }

    /// Sets the scope path of what is pushed from here on (`""` for the top): passes use it to keep names.
    pub fn set_scope(&mut self, path: &str) {
        self.scope = if path.is_empty() { Vec::new() } else { vec![path.into()] };
    }

    /// Sets the phase of what is pushed from here on, and returns the one before.
    pub fn set_phase(&mut self, phase: Phase) -> Phase {
        std::mem::replace(&mut self.phase, phase)
    }

    /// Says that a gradient is taken through a node.
    pub(crate) fn differentiate(&mut self, id: NodeId) {
        self.nodes[id.index()].is_differentiated = true;
    }

    /// Files everything that was pushed after the first `n_nodes` under a line: a gradient under that of the op it is of.
    pub(crate) fn attribute(&mut self, n_nodes: usize, site: Site) {
        for node in &mut self.nodes[n_nodes..] {
            node.site = site;
            node.outputs.iter().for_each(|v| self.values[v.index()].site = site);
        }
    }

    /// Gives a value the name and line it had before a pass changed how it is made.
    pub(crate) fn rename(&mut self, id: ValueId, name: &str, site: Site) {
        let info = &mut self.values[id.index()];
        info.name = name.into();
        info.site = site;
    }

    /// The nodes in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// All values, by id.
    pub fn values(&self) -> &[ValueInfo] {
        &self.values
    }

    /// What is known of one value.
    pub fn info(&self, id: ValueId) -> &ValueInfo {
        &self.values[id.index()]
    }

    /// The type of one value.
    pub fn ty(&self, id: ValueId) -> &Type {
        &self.values[id.index()].ty
    }

    /// The values that come from outside, in the order they were added.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The values that leave, in order.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// By node: whether one of these values is made of it.
    pub fn leading_to(&self, values: &[ValueId]) -> Vec<bool> {
        let mut wanted = vec![false; self.values.len()];
        values.iter().for_each(|v| wanted[v.index()] = true);
        let mut leads = vec![false; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            leads[i] = node.outputs.iter().any(|v| wanted[v.index()]);
            if leads[i] {
                node.inputs.iter().for_each(|v| wanted[v.index()] = true);
            }
        }
        leads
    }

    fn value(&mut self, info: ValueInfo) -> ValueId {
        let id = ValueId(self.values.len() as u32);
        self.values.push(info);
        id
    }
}

/// One line a node, stable and diffable.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |ids: &[ValueId]| ids.iter().map(|v| format!("%{}", v.0)).collect::<Vec<_>>().join(", ");
        for &v in &self.inputs {
            writeln!(f, "input  %{} {}: {}", v.0, self.info(v).name, self.ty(v))?;
        }
        for node in &self.nodes {
            let outs: Vec<String> =
                node.outputs.iter().map(|&v| format!("%{}: {}", v.0, self.ty(v))).collect();
            writeln!(f, "{} = {}({})", outs.join(", "), node.op, list(&node.inputs))?;
        }
        writeln!(f, "output {}", list(&self.outputs))
    }
}
