//! Which part of a model every value belongs to, where its parameters are told to belong somewhere.
//!
//! A value belongs where the last of the parameters does that it is made of: so nothing is ever read by an earlier part than it is made in, whatever is asked
//! of the model. What is made of no parameter, or of nothing but parameters, belongs nowhere: each part makes it for itself.

use plimsoll_graph::{Graph, ValueId};

use super::whole::Whole;

pub(super) struct Places {
    /// By value: where it belongs.
    of: Vec<Option<usize>>,
    /// By value that nothing of the batch is in: the parameters that it is made of.
    made_of: Vec<Vec<usize>>,
    on_batch: Vec<bool>,
}

impl Places {
    /// Where values belong. `first` is asked for the place of a parameter when a value that belongs somewhere is first made of it, with the node and the place
    /// it would have otherwise.
    pub(super) fn new(
        whole: &Whole,
        mut first: impl FnMut(usize, usize, Option<usize>) -> Option<usize>,
    ) -> Places {
        let (graph, n) = (&whole.graph, whole.graph.values().len());
        let mut places = Places { of: vec![None; n], made_of: vec![Vec::new(); n], on_batch: vec![false; n] };
        for v in whole.batch.iter().chain([&whole.key]) {
            places.on_batch[v.index()] = true;
        }
        for (i, v) in whole.params.iter().enumerate() {
            places.made_of[v.index()] = vec![i];
        }
        for (at, node) in graph.nodes().iter().enumerate() {
            let on_batch = node.inputs.iter().any(|v| places.on_batch[v.index()]);
            let mut params: Vec<usize> =
                node.inputs.iter().flat_map(|v| places.made_of[v.index()].iter().copied()).collect();
            params.sort_unstable();
            params.dedup();
            let place = on_batch.then(|| {
                let before = node.inputs.iter().filter_map(|v| places.of[v.index()]).max();
                params.iter().filter_map(|&i| first(i, at, before)).chain(before).max()
            });
            for v in &node.outputs {
                places.on_batch[v.index()] = on_batch;
                places.of[v.index()] = place.flatten();
                if !on_batch {
                    places.made_of[v.index()] = params.clone();
                }
            }
        }
        places
    }

    /// Where a value belongs: nowhere where every part can make it.
    pub(super) fn of(&self, v: ValueId) -> Option<usize> {
        self.of[v.index()]
    }

    /// Where a node does.
    pub(super) fn of_node(&self, graph: &Graph, node: usize) -> Option<usize> {
        graph.nodes()[node].outputs.first().and_then(|v| self.of(*v))
    }
}
