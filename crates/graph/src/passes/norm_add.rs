//! Adds the gradient of a layer norm to the one that goes past the norm where it is made, and rounds the sum there for products that read it in 16 bits.
//!
//! Every norm of a transformer stands beside a residual: without this, its gradient is written, read and written again as a sum, and under autocast the sum is
//! passed once more to be rounded.

use super::norm_narrow::narrowed;
use super::rewrite::{Rewrite, leaving, readers};
use crate::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::ops::{Binary, LayerNormGradAdd};

/// The graph with [`LayerNormGradAdd`] for gradients of layer norms that are only read to be added to something.
///
/// Only in f32 and f64, where the gradient has the same bits before it is added; in 16 bits it would be rounded once instead of twice.
pub fn add_to_norms(graph: &Graph) -> Result<Graph> {
    let (readers, leaves) = (readers(graph), leaving(graph));
    let nodes = graph.nodes();
    let mut is_folded = vec![false; nodes.len()];
    let mut rewrite = Rewrite::new(graph);
    for (i, node) in nodes.iter().enumerate() {
        if is_folded[i] {
            continue;
        }
        let sum = match (&node.op, node.outputs.first()) {
            (Op::LayerNormGrad(_), Some(dx)) if !leaves[dx.index()] => match readers[dx.index()][..] {
                [reader] if nodes[reader].phase == node.phase => {
                    added_to(graph, &nodes[reader], *dx).map(|added| (reader, added))
                }
                _ => None,
            },
            _ => None,
        };
        let (Op::LayerNormGrad(norm), Some((at, added))) = (&node.op, sum) else {
            rewrite.keep(node)?;
            continue;
        };
        // What is made after the norm's gradient cannot be added in it.
        if rewrite.at(added).is_err() {
            rewrite.keep(node)?;
            continue;
        }
        let sum = nodes[at].outputs[0];
        let is_f32 = graph.ty(sum).dtype == DType::F32;
        let casts = || {
            let of_sum = readers[sum.index()].iter().filter(|&&r| nodes[r].phase == node.phase);
            of_sum.filter_map(|&r| Some((r, narrowed(&nodes[r]).filter(|_| is_f32)?)))
        };
        let to = casts().next().map(|(_, to)| to);
        let rounded: Vec<usize> = casts().filter(|(_, type_)| Some(*type_) == to).map(|(r, _)| r).collect();
        let outputs = [sum, node.outputs[1], node.outputs[2]].into_iter();
        let outputs = outputs.chain(rounded.first().map(|&r| nodes[r].outputs[0]));
        let outputs: Vec<Option<ValueId>> = outputs.map(Some).collect();
        let inputs: Vec<ValueId> = node.inputs.iter().copied().chain([added]).collect();
        rewrite.replace(node, LayerNormGradAdd { axes: norm.axes, to }.into(), &inputs, &outputs)?;
        is_folded[at] = true;
        for &r in &rounded {
            rewrite.alias(nodes[r].outputs[0], nodes[rounded[0]].outputs[0]);
            is_folded[r] = true;
        }
    }
    rewrite.finish()
}

/// What a node adds to `dx`, where that is all it does and both are wide and of one shape.
fn added_to(graph: &Graph, node: &Node, dx: ValueId) -> Option<ValueId> {
    let added = match (&node.op, node.inputs.as_slice()) {
        (Op::Binary(Binary::Add), &[a, b]) if a == dx => b,
        (Op::Binary(Binary::Add), &[a, b]) if b == dx => a,
        _ => return None,
    };
    let is_exact = matches!(graph.ty(dx).dtype, DType::F32 | DType::F64);
    (is_exact && graph.ty(added) == graph.ty(dx)).then_some(added)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::gradient;
    use crate::methods::TensorOps;
    use crate::ops::{Cast, NormOps};
    use crate::passes::testing::assert_same;
    use crate::passes::{narrow_norms, optimize, remove_dead, share};
    use crate::{Sym, Trace, Type};

    /// Two blocks with residuals around an f32 stream, with products in another type, and all gradients.
    fn blocks(wide: DType, narrow: DType) -> Graph {
        let trace = Trace::new();
        let of = |name: &str, shape: &[usize]| trace.input(name, Type::new(wide, shape));
        let (x, gamma, beta) = (of("x", &[2, 5, 8]), of("gamma", &[8]), of("beta", &[8]));
        let w = trace.input("w", Type::new(narrow, [8, 8]));
        let block = |x: &Sym| {
            let y = x.layer_norm(&gamma, &beta, 1e-5).unwrap();
            let y = y.cast(narrow).unwrap().matmul(&w).unwrap().cast(wide).unwrap();
            x.add(&y).unwrap()
        };
        let loss = block(&block(&x)).square().unwrap().sum(&[], false).unwrap();
        let grads = gradient(&loss, None, &[&x, &gamma, &beta, &w]).unwrap();
        let outs: Vec<_> = std::iter::once(&loss).chain(grads.iter().flatten()).collect();
        trace.finish(&outs).unwrap()
    }

    fn count(graph: &Graph, is: impl Fn(&Op) -> bool) -> usize {
        graph.nodes().iter().filter(|node| is(&node.op)).count()
    }

    fn sums(graph: &Graph) -> usize {
        count(graph, |op| matches!(op, Op::LayerNormGradAdd(_)))
    }

    #[test]
    fn residuals_are_added_and_rounded_where_the_norms_gradient_is_made() {
        let graph = blocks(DType::F32, DType::BF16);
        let before = remove_dead(&narrow_norms(&share(&graph).unwrap()).unwrap()).unwrap();
        let after = remove_dead(&add_to_norms(&before).unwrap()).unwrap();
        assert_same(&before, &after);
        assert_eq!(sums(&after), 2, "{after}");
        // Of the later block's sum the earlier one's product reads a rounded one; the first sum is read by nobody in 16 bits.
        let rounds = |op: &Op| matches!(op, Op::LayerNormGradAdd(LayerNormGradAdd { to: Some(_), .. }));
        assert_eq!(count(&after, rounds), 1, "{after}");
        let is_cast = |op: &Op| matches!(op, Op::Cast(Cast(DType::BF16)));
        assert_eq!(count(&before, is_cast) - count(&after, is_cast), 1, "{after}");
        assert_eq!(sums(&optimize(&graph).unwrap()), 2);
    }

    #[test]
    fn wide_products_have_no_rounded_sum_and_16_bit_streams_stay_as_they_are() {
        let wide = optimize(&blocks(DType::F32, DType::F32)).unwrap();
        assert_eq!(sums(&wide), 2, "{wide}");
        assert_eq!(
            count(&wide, |op| matches!(op, Op::LayerNormGradAdd(LayerNormGradAdd { to: Some(_), .. }))),
            0
        );
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::BF16, [4, 8]));
        let scale = trace.input("scale", Type::new(DType::F32, [8]));
        let y = x.layer_norm(&scale, &scale, 1e-5).unwrap().add(&x).unwrap();
        let loss = y.square().unwrap().sum(&[], false).unwrap();
        let dx = gradient(&loss, None, &[&x]).unwrap().remove(0).unwrap();
        assert_eq!(sums(&optimize(&trace.finish(&[&dx]).unwrap()).unwrap()), 0);
    }
}
