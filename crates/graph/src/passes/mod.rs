//! Turns a graph into a better graph that computes the same bits.
//!
//! Read in the order they run: [`share`] (equal nodes once), [`read_narrow`] (16-bit logits as they are), [`narrow_norms`] (norms that are read in 16 bits), [`fold_relu_into_norm`], [`compact`] (bits instead of values for relu),
//! [`fold_tails`] (bias and activation into products), [`fuse`] (elementwise chains), [`exchange_early`] (between ranks), [`remove_dead`]. Every pass
//! keeps names, source lines, scopes and phases, the order of inputs and outputs, and the order of what it does not
//! touch: that order is the order of execution.

mod compact;
mod dead;
mod early;
mod fuse;
mod narrow;
mod norm_narrow;
mod norm_relu;
pub(crate) mod rewrite;
pub mod sample;
mod share;
mod tail;

pub use compact::compact;
pub use dead::remove_dead;
pub use early::exchange_early;
pub use fuse::fuse;
pub use narrow::read_narrow;
pub use norm_narrow::narrow_norms;
pub use norm_relu::fold_relu_into_norm;
pub use share::share;
pub use tail::fold_tails;

use crate::{Graph, Result};

/// Runs all passes.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Trace, Type, passes::optimize};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [4]));
/// let y = x.exp()?.add_scalar(1.0)?.log()?;
/// let graph = optimize(&trace.finish(&[&y])?)?;
/// assert_eq!(graph.nodes().len(), 1);
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub fn optimize(graph: &Graph) -> Result<Graph> {
    let graph = remove_dead(graph)?;
    let graph = share(&graph)?;
    let graph = remove_dead(&narrow_norms(&read_narrow(&graph)?)?)?;
    let graph = fold_relu_into_norm(&graph)?;
    let graph = compact(&graph)?;
    let graph = fold_tails(&graph)?;
    let graph = exchange_early(&fuse(&graph)?)?;
    remove_dead(&graph)
}
