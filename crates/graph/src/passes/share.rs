//! Computes equal things once: the same op on the same values has the same result.
//!
//! Only within the forward pass or within the backward pass: what the backward pass computes a second time was let
//! go of on purpose, and holding on to the first result would cost the memory in between.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::rewrite::Rewrite;
use crate::error::Result;
use crate::graph::{Graph, NodeId, Phase, ValueId};
use crate::op::Op;

/// The graph with repeated nodes replaced by their first occurrence.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Trace, Type, passes::share};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [4]));
/// let y = x.exp()?.add(&x.exp()?)?;
/// assert_eq!(share(&trace.finish(&[&y])?)?.nodes().len(), 2);
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub fn share(graph: &Graph) -> Result<Graph> {
    type Key = (Op, SmallVec<[ValueId; 3]>, Phase);
    let mut seen: HashMap<Key, NodeId> = HashMap::new();
    let mut rewrite = Rewrite::new(graph);
    for (i, node) in graph.nodes().iter().enumerate() {
        let inputs =
            node.inputs.iter().map(|&v| rewrite.at(v)).collect::<Result<SmallVec<[ValueId; 3]>>>()?;
        match seen.get(&(node.op.clone(), inputs.clone(), node.phase)) {
            Some(&first) => {
                for (&here, &there) in node.outputs.iter().zip(&graph.node(first).outputs) {
                    rewrite.alias(here, there);
                }
            }
            None => {
                rewrite.keep(node)?;
                seen.insert((node.op.clone(), inputs, node.phase), NodeId(i as u32));
            }
        }
    }
    rewrite.finish()
}
