//! Drops the nodes of which no result reaches an output.

use super::rewrite::{Rewrite, leaving};
use crate::error::Result;
use crate::graph::Graph;

/// The graph without nodes whose results nobody reads.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Trace, Type, passes::remove_dead};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [4]));
/// let (y, _unused) = (x.exp()?, x.log()?);
/// let graph = remove_dead(&trace.finish(&[&y])?)?;
/// assert_eq!(graph.nodes().len(), 1);
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub fn remove_dead(graph: &Graph) -> Result<Graph> {
    let mut is_live = leaving(graph);
    let mut keep = vec![false; graph.nodes().len()];
    for (i, node) in graph.nodes().iter().enumerate().rev() {
        keep[i] = node.outputs.iter().any(|v| is_live[v.index()]);
        if keep[i] {
            node.inputs.iter().for_each(|v| is_live[v.index()] = true);
        }
    }
    let mut rewrite = Rewrite::new(graph);
    for (node, _) in graph.nodes().iter().zip(keep).filter(|(_, keep)| *keep) {
        rewrite.keep(node)?;
    }
    rewrite.finish()
}
