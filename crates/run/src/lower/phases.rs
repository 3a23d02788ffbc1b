//! Which phase of a training step each node of a graph belongs to: one answer for plans and for records.

use plimsoll_graph::{Graph, NodeId, Phase as GraphPhase};
use plimsoll_record::Phase;

/// How much of a step a graph computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it.
    #[default]
    Step,
    /// Forward and backward over a part of the batch, added to sums.
    Pass,
    /// What follows when the whole batch has been passed.
    Update,
}

impl Extent {
    /// Its name in records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Extent::Step => "step",
            Extent::Pass => "pass",
            Extent::Update => "update",
        }
    }
}

/// Tells the phases of a graph's nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phases {
    extent: Extent,
    first_backward: usize,
}

impl Phases {
    pub(crate) fn new(graph: &Graph, extent: Extent) -> Phases {
        let backward = graph.nodes().iter().position(|node| node.phase == GraphPhase::Backward);
        Phases { extent, first_backward: backward.unwrap_or(usize::MAX) }
    }

    /// The phase of a node. Code of the model that runs behind the first gradient is the update's, or in a pass of a split batch,
    /// adds to the sums.
    pub(crate) fn of(&self, graph: &Graph, id: NodeId) -> Phase {
        match (self.extent, graph.node(id).phase) {
            (Extent::Update, _) => Phase::Update,
            (_, GraphPhase::Backward) => Phase::Backward,
            (_, GraphPhase::Forward) if id.index() < self.first_backward => Phase::Forward,
            (Extent::Pass, _) => Phase::Backward,
            (Extent::Step, _) => Phase::Update,
        }
    }
}
