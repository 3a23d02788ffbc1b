//! A part of a model that another system's files have no counterpart for: where it is, and what stands against it.

use plimsoll_graph::Node;

/// What cannot be written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritable {
    /// The layer and op, or the parameter; empty until whoever walks the graph says it.
    pub place: String,
    /// What stands against it.
    pub why: String,
}

impl Unwritable {
    /// A part at a place, and the reason.
    pub fn new(place: impl Into<String>, why: impl Into<String>) -> Unwritable {
        Unwritable { place: place.into(), why: why.into() }
    }

    /// At the place of a node, unless it has a place already.
    pub fn at(self, node: &Node) -> Unwritable {
        let place = if self.place.is_empty() { place_of(node) } else { self.place };
        Unwritable { place, why: self.why }
    }
}

/// The layer and op of a node: `block/conv2d`.
pub fn place_of(node: &Node) -> String {
    let op = node.op.name();
    if node.scope.is_empty() { op.into() } else { format!("{}/{op}", node.scope) }
}
