//! Keeps one bit an element of a relu where the backward pass asks only for the sign of its result.

use super::rewrite::{Rewrite, leaving, readers};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Phase, ValueId};
use crate::op::Op;
use crate::ops::{ReluGrad, ReluMask, ReluMaskGrad, Unary};

/// Elements from which on a mask is worth a value of its own.
const WORTHWHILE: usize = 64;

/// The graph with such relus as [`ReluMask`] and their gradients as [`ReluMaskGrad`].
///
/// Where something else in the backward pass reads the result too (the next layer's weight gradient, say), it is
/// alive anyway and a mask would only add to it.
pub fn compact(graph: &Graph) -> Result<Graph> {
    let (readers, leaves) = (readers(graph), leaving(graph));
    let by_sign = |v: ValueId, reader: usize| {
        let node = &graph.nodes()[reader];
        is_relu_grad(node) && node.inputs[0] == v && node.inputs[1] != v
    };
    let wants_mask = |node: &Node| {
        let v = node.outputs[0];
        let mut backward =
            readers[v.index()].iter().filter(|&&r| graph.nodes()[r].phase == Phase::Backward).peekable();
        node.op == Op::Unary(Unary::Relu)
            && node.phase == Phase::Forward
            && graph.ty(v).dtype.is_float()
            && graph.ty(v).elements() >= WORTHWHILE
            && !leaves[v.index()]
            && backward.peek().is_some()
            && backward.all(|&r| by_sign(v, r))
            && !is_viewed_backward(graph, &readers, &leaves, v)
    };
    let mut rewrite = Rewrite::new(graph);
    let mut masks: Vec<Option<ValueId>> = vec![None; graph.values().len()];
    for node in graph.nodes() {
        if wants_mask(node) {
            let y = node.outputs[0];
            let made = rewrite.replace(node, ReluMask.into(), &node.inputs, &[Some(y)])?;
            masks[y.index()] = Some(made[1]);
            continue;
        }
        match node.inputs.first().and_then(|y| masks[y.index()]) {
            Some(mask) if node.phase == Phase::Backward && is_relu_grad(node) => {
                let dy = rewrite.at(node.inputs[1])?;
                rewrite.push(node, ReluMaskGrad.into(), &[mask, dy], &[Some(node.outputs[0])])?;
            }
            Some(_) if node.phase == Phase::Backward => {
                return Err(Error::Internal("a relu that was made a mask is read as a number".into()));
            }
            _ => rewrite.keep(node)?,
        }
    }
    rewrite.finish()
}

fn is_relu_grad(node: &Node) -> bool {
    matches!(node.op, Op::ReluGrad(ReluGrad { slope }) if slope.0 == 0.0)
}

/// Whether a value is alive in the backward pass under another shape.
fn is_viewed_backward(graph: &Graph, readers: &[Vec<usize>], leaves: &[bool], v: ValueId) -> bool {
    readers[v.index()].iter().map(|&r| &graph.nodes()[r]).filter(|node| node.op.is_view()).any(|view| {
        let seen = view.outputs[0];
        leaves[seen.index()]
            || readers[seen.index()].iter().any(|&r| graph.nodes()[r].phase == Phase::Backward)
            || is_viewed_backward(graph, readers, leaves, seen)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::gradient;
    use crate::methods::TensorOps;
    use crate::reference::interpret;
    use crate::{DType, Trace, Type};

    fn input() -> (Trace, crate::Sym) {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [10, 20]));
        (trace, x)
    }

    #[test]
    fn a_relu_before_a_sum_keeps_bits_only() {
        let (trace, x) = input();
        let y = x.relu().unwrap().sum(&[], false).unwrap();
        let dx = gradient(&y, None, &[&x]).unwrap().remove(0).unwrap();
        let graph = trace.finish(&[&y, &dx]).unwrap();
        let small = compact(&graph).unwrap();
        let has = |g: &Graph, name: &str| g.nodes().iter().any(|n| n.op.variant() == name);
        assert!(has(&small, "ReluMask") && has(&small, "ReluMaskGrad") && !has(&small, "ReluGrad"));
        let mut dice = crate::example::Dice::new(1);
        let x = crate::example::Domain::Normal.fill(&Type::new(DType::F32, [10, 20]), &mut dice);
        assert_eq!(interpret(&graph, std::slice::from_ref(&x)), interpret(&small, &[x]));
    }

    #[test]
    fn a_relu_that_the_next_layer_keeps_stays() {
        let (trace, x) = input();
        let w = trace.input("w", Type::new(DType::F32, [20, 3]));
        let y = x.relu().unwrap().matmul(&w).unwrap().sum(&[], false).unwrap();
        let grads = gradient(&y, None, &[&x, &w]).unwrap();
        let outs: Vec<_> = grads.iter().flatten().collect();
        let small = compact(&trace.finish(&outs).unwrap()).unwrap();
        assert!(small.nodes().iter().all(|n| n.op.variant() != "ReluMask"));
    }
}
