//! Lets layer norm write 16 bits where its f32 result is only read rounded, and its gradient read 16 bits where they were widened for it.
//!
//! Under autocast the residual stream is f32 and products are 16-bit: without this, every norm of a transformer is written wide, read and written again,
//! once each way.

use super::rewrite::{Rewrite, leaving, readers};
use crate::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::ops::{Cast, LayerNorm};

/// The graph with no cast behind a layer norm whose result is only read in one 16-bit type, and none before its gradient.
///
/// The norm is computed in f32 in any case and rounded once, when it is written: these are the same bits.
pub fn narrow_norms(graph: &Graph) -> Result<Graph> {
    let (readers, leaves) = (readers(graph), leaving(graph));
    // The 16-bit type in which all that reads a value reads it.
    let read_as = |value: ValueId| {
        let mut types = readers[value.index()].iter().map(|&at| narrowed(&graph.nodes()[at]));
        let first = types.next().flatten().filter(|_| !leaves[value.index()])?;
        types.all(|to| to == Some(first)).then_some(first)
    };
    // What a value was before it was widened.
    let mut before = vec![None; graph.values().len()];
    let mut rewrite = Rewrite::new(graph);
    for node in graph.nodes() {
        let source = node.inputs.first().copied();
        match (&node.op, source) {
            (Op::LayerNorm(norm @ LayerNorm { to: None, .. }), Some(x))
                if graph.ty(x).dtype == DType::F32 =>
            {
                let to = read_as(node.outputs[0]);
                let op = LayerNorm { to, ..*norm };
                let outputs: Vec<Option<ValueId>> = node.outputs.iter().copied().map(Some).collect();
                rewrite.replace(node, op.into(), &node.inputs, &outputs)?;
                for &at in readers[node.outputs[0].index()].iter().filter(|_| to.is_some()) {
                    before[graph.nodes()[at].outputs[0].index()] = Some(node.outputs[0]);
                }
            }
            // A cast of what is in its type already.
            (Op::Cast(_), Some(x)) if before[node.outputs[0].index()] == Some(x) => {
                rewrite.alias(node.outputs[0], x);
            }
            (Op::Cast(Cast(DType::F32)), Some(x)) if is_narrow(graph.ty(x).dtype) => {
                before[node.outputs[0].index()] = Some(x);
                rewrite.keep(node)?;
            }
            (Op::LayerNormGrad(_), Some(_)) => {
                let mut inputs = node.inputs.clone();
                inputs[4] = before[inputs[4].index()].unwrap_or(inputs[4]);
                let outputs: Vec<Option<ValueId>> = node.outputs.iter().copied().map(Some).collect();
                rewrite.replace(node, node.op.clone(), &inputs, &outputs)?;
            }
            _ => rewrite.keep(node)?,
        }
    }
    rewrite.finish()
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// The 16-bit type that a node rounds to; none where it does something else.
pub(super) fn narrowed(node: &Node) -> Option<DType> {
    match node.op {
        Op::Cast(Cast(to)) if is_narrow(to) => Some(to),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::gradient;
    use crate::methods::TensorOps;
    use crate::ops::NormOps;
    use crate::passes::testing::assert_same;
    use crate::passes::{optimize, remove_dead};
    use crate::{Sym, Trace, Type};

    /// A norm of an f32 stream whose result goes into a product in 16 bits, with all gradients.
    fn block(more: impl Fn(&Sym) -> Sym) -> Graph {
        let trace = Trace::new();
        let wide = |name: &str, shape: &[usize]| trace.input(name, Type::new(DType::F32, shape));
        let (x, gamma, beta) = (wide("x", &[2, 5, 8]), wide("gamma", &[8]), wide("beta", &[8]));
        let w = trace.input("w", Type::new(DType::BF16, [8, 3]));
        let y = x.layer_norm(&gamma, &beta, 1e-5).unwrap();
        let z = y.cast(DType::BF16).unwrap().matmul(&w).unwrap().cast(DType::F32).unwrap();
        let loss = z.square().unwrap().sum(&[], false).unwrap().add(&more(&y)).unwrap();
        let grads = gradient(&loss, None, &[&x, &gamma, &beta, &w]).unwrap();
        let outs: Vec<_> = std::iter::once(&loss).chain(grads.iter().flatten()).collect();
        trace.finish(&outs).unwrap()
    }

    /// How many values of the size of x are f32, but for x and its gradient.
    fn wide(graph: &Graph) -> usize {
        let made = graph.nodes().iter().flat_map(|node| &node.outputs);
        made.filter(|v| graph.ty(**v).dtype == DType::F32 && graph.ty(**v).elements() == 80).count() - 1
    }

    #[test]
    fn a_norm_between_a_wide_stream_and_a_narrow_product_is_never_held_wide() {
        let graph = block(|y| y.full_like(Type::new(DType::F32, []), 0.0).unwrap());
        let narrowed = remove_dead(&narrow_norms(&graph).unwrap()).unwrap();
        assert_eq!((wide(&graph), wide(&narrowed)), (2, 0), "{narrowed}");
        assert_same(&graph, &narrowed);
        assert_eq!(wide(&optimize(&graph).unwrap()), 0);
    }

    #[test]
    fn a_norm_that_something_reads_wide_stays_wide() {
        let graph = block(|y| y.square().unwrap().sum(&[], false).unwrap());
        let narrowed = remove_dead(&narrow_norms(&graph).unwrap()).unwrap();
        assert_eq!(narrowed.nodes().len(), graph.nodes().len(), "{narrowed}");
        assert!(
            narrowed.nodes().iter().all(|n| !matches!(n.op, Op::LayerNorm(LayerNorm { to: Some(_), .. })))
        );
    }
}
