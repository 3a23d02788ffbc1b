//! Turns a training step traced over a part of a batch into a pass over that part and one update for all parts.
//!
//! [`splits`] says whether the parts' passes add up to the whole batch's, [`shares`] whether those of ranks do; [`cut`] makes the two graphs.

mod cut;
mod interleave;
mod samples;

pub use cut::{Cut, Frame, cut};
pub use interleave::{Run, interleave};
pub use samples::{Splits, shares, splits};

use crate::graph::{Graph, Phase, ValueId};

/// What of a step depends on the batch, and what waits for all of it.
struct Parts {
    /// By value: whether it depends on an input of the step.
    on_batch: Vec<bool>,
    /// By node: whether it runs once a step although it depends on the batch: the update, which reads gradients.
    once: Vec<bool>,
}

impl Parts {
    fn new(graph: &Graph, frame: &Frame) -> Parts {
        let mut on_batch = vec![false; graph.values().len()];
        let mut after_backward = on_batch.clone();
        for &v in &graph.inputs()[frame.batch()] {
            on_batch[v.index()] = true;
        }
        for node in graph.nodes() {
            let any = |flags: &[bool]| node.inputs.iter().any(|v| flags[v.index()]);
            let batch = any(&on_batch);
            // What ranks exchange is exchanged once a step, of the whole batch.
            let begins = node.phase == Phase::Backward || node.op.is_exchange();
            let after = (batch && begins) || any(&after_backward);
            for v in &node.outputs {
                on_batch[v.index()] = batch;
                after_backward[v.index()] = after;
            }
        }
        // What a gradient is taken through, and what its rules read, belongs to the pass, even if it stands behind another gradient.
        let mut before_backward = vec![false; graph.values().len()];
        let mut once = vec![false; graph.nodes().len()];
        for (i, node) in graph.nodes().iter().enumerate().rev() {
            let read = node.outputs.iter().any(|v| before_backward[v.index()]);
            if read || node.phase == Phase::Backward || node.is_differentiated {
                node.inputs.iter().for_each(|v| before_backward[v.index()] = true);
            } else {
                once[i] = node.outputs.iter().any(|v| after_backward[v.index()] && on_batch[v.index()]);
            }
        }
        Parts { on_batch, once }
    }

    /// Whether a value is made for every part of the batch.
    fn of_pass(&self, graph: &Graph, v: ValueId) -> bool {
        self.on_batch[v.index()] && graph.info(v).producer.is_none_or(|(node, _)| !self.once[node.index()])
    }

    /// Whether a node runs for every part of the batch.
    fn each(&self, graph: &Graph, node: usize) -> bool {
        !self.once[node] && graph.nodes()[node].outputs.iter().any(|v| self.on_batch[v.index()])
    }
}
