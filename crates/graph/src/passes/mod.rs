//! Turns a graph into a better graph that computes the same bits.
//!
//! Read in the order they run: [`share`] (equal nodes once), [`join_losses`] (losses of a linear layer with their gradients), [`add_where_indexed`] (sums by index to what they are added to), [`gather_ahead`] (parameters of ranks before what was made of them), [`read_narrow`] (16-bit logits as they are, weights of ranks gathered in 16 bits), [`narrow_norms`] (norms that are read in 16 bits), [`add_to_norms`] (residuals in the gradients of norms), [`fold_relu_into_norm`], [`compact`] (bits instead of values for relu),
//! [`fold_tails`] (bias and activation into products), [`fuse`] (elementwise chains), [`exchange_early`] (between ranks), [`remove_dead`]. Every pass
//! keeps names, source lines, scopes and phases, the order of inputs and outputs, and the order of what it does not
//! touch: that order is the order of execution.

mod ahead;
mod compact;
mod dead;
mod early;
mod fuse;
mod indexed_sum;
mod join_losses;
mod narrow;
mod norm_add;
mod norm_narrow;
mod norm_relu;
pub(crate) mod rewrite;
pub mod sample;
mod share;
mod tail;
#[cfg(test)]
mod testing;

pub use ahead::gather_ahead;
pub use compact::compact;
pub use dead::remove_dead;
pub use early::exchange_early;
pub use fuse::fuse;
pub use indexed_sum::add_where_indexed;
pub use join_losses::join_losses;
pub use narrow::read_narrow;
pub use norm_add::add_to_norms;
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
    let passes = [
        share,
        join_losses,
        add_where_indexed,
        gather_ahead,
        read_narrow,
        narrow_norms,
        remove_dead,
        add_to_norms,
        fold_relu_into_norm,
        compact,
        fold_tails,
        fuse,
        exchange_early,
        remove_dead,
    ];
    // No more than two of the graphs on the way are there at a time: a deep model's take most of what planning takes.
    passes.iter().try_fold(remove_dead(graph)?, |graph, pass| pass(&graph))
}
