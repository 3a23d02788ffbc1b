//! Folds the relu after a batch norm into it, and the relu's gradient into the norm's: two passes over memory less each way.

use super::rewrite::{Rewrite, leaving, readers};
use crate::DType;
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::ops::{BatchNorm, BatchNormGrad, ReluGrad, Unary};

/// What becomes of a node.
#[derive(Clone, Copy)]
enum Fate {
    Stays,
    Goes,
    /// A batch norm whose first result is now this value.
    Norm(ValueId),
    /// The gradient of such a norm, which reads this dy, and this β.
    Gradient {
        dy: ValueId,
        beta: ValueId,
    },
}

/// The graph with single-use batch norms and their relus as one node each.
///
/// The relu of a rounded number is the rounded relu, and the gradient asks only for its sign, which is computed again from
/// the norm's input by the same arithmetic: the same bits. Not in f16, where small numbers round to zero.
pub fn fold_relu_into_norm(graph: &Graph) -> Result<Graph> {
    let (readers, leaves) = (readers(graph), leaving(graph));
    let mut fates = vec![Fate::Stays; graph.nodes().len()];
    for (i, norm) in graph.nodes().iter().enumerate() {
        let Op::BatchNorm(BatchNorm { relu: false, .. }) = norm.op else { continue };
        let y = norm.outputs[0];
        let &[relu] = readers[y.index()].as_slice() else { continue };
        let node = &graph.nodes()[relu];
        let plain = node.op == Op::Unary(Unary::Relu) && node.phase == norm.phase && !leaves[y.index()];
        if !plain || graph.ty(y).dtype == DType::F16 {
            continue;
        }
        let z = node.outputs[0];
        let gradients = readers[z.index()].iter().filter(|&&r| is_relu_grad(&graph.nodes()[r], z));
        let pairs: Option<Vec<(usize, usize)>> = gradients
            .map(|&r| {
                let masked = graph.nodes()[r].outputs[0];
                let &[reader] = readers[masked.index()].as_slice() else { return None };
                let gradient = &graph.nodes()[reader];
                let same = gradient.op == Op::BatchNormGrad(BatchNormGrad { relu: false })
                    && gradient.inputs[..4]
                        == [norm.inputs[0], norm.inputs[1], norm.outputs[1], norm.outputs[3]]
                    && gradient.inputs[4] == masked
                    && !leaves[masked.index()];
                same.then_some((r, reader))
            })
            .collect();
        // Where the relu's gradient goes elsewhere, its sign is wanted from z; folding the norm alone would still do, but
        // then z must stay alive for it: left as it is, the relu may keep bits only.
        let Some(pairs) = pairs else { continue };
        fates[i] = Fate::Norm(z);
        fates[relu] = Fate::Goes;
        for (mask, gradient) in pairs {
            fates[mask] = Fate::Goes;
            let (dy, beta) = (graph.nodes()[mask].inputs[1], norm.inputs[2]);
            fates[gradient] = Fate::Gradient { dy, beta };
        }
    }
    let mut rewrite = Rewrite::new(graph);
    for (node, fate) in graph.nodes().iter().zip(fates) {
        match (fate, &node.op) {
            (Fate::Goes, _) => {}
            (Fate::Norm(z), Op::BatchNorm(norm)) => {
                let outputs: Vec<Option<ValueId>> =
                    std::iter::once(z).chain(node.outputs[1..].iter().copied()).map(Some).collect();
                let op = BatchNorm { relu: true, ..*norm };
                rewrite.replace(node, op.into(), &node.inputs, &outputs)?;
            }
            (Fate::Gradient { dy, beta }, _) => {
                let mut inputs = node.inputs.clone();
                inputs[4] = dy;
                inputs.push(beta);
                let outputs: Vec<Option<ValueId>> = node.outputs.iter().copied().map(Some).collect();
                rewrite.replace(node, BatchNormGrad { relu: true }.into(), &inputs, &outputs)?;
            }
            _ => rewrite.keep(node)?,
        }
    }
    rewrite.finish()
}

/// Whether a node is the gradient of a relu with result `z`.
fn is_relu_grad(node: &Node, z: ValueId) -> bool {
    matches!(node.op, Op::ReluGrad(ReluGrad { slope }) if slope.0 == 0.0)
        && node.inputs[0] == z
        && node.inputs[1] != z
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{Dice, Domain};
    use crate::gradient::gradient;
    use crate::methods::TensorOps;
    use crate::ops::NormOps;
    use crate::reference::interpret;
    use crate::{Trace, Type};

    /// A norm, a relu and a product, with all gradients.
    fn block(dtype: DType) -> Graph {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(dtype, [10, 8]));
        let (gamma, beta) = (
            trace.input("gamma", Type::new(DType::F32, [8])),
            trace.input("beta", Type::new(DType::F32, [8])),
        );
        let w = trace.input("w", Type::new(dtype, [8, 3]));
        let (y, _, _) = x.batch_norm(&gamma, &beta, 1e-3).unwrap();
        let z = y.relu().unwrap().matmul(&w).unwrap().sum(&[], false).unwrap();
        let grads = gradient(&z, None, &[&x, &gamma, &beta, &w]).unwrap();
        let outs: Vec<_> = std::iter::once(&z).chain(grads.iter().flatten()).collect();
        trace.finish(&outs).unwrap()
    }

    #[test]
    fn a_relu_after_a_norm_costs_no_pass_of_its_own() {
        let graph = block(DType::F32);
        let folded = fold_relu_into_norm(&graph).unwrap();
        let relus = |g: &Graph| {
            g.nodes().iter().filter(|n| matches!(n.op, Op::Unary(Unary::Relu) | Op::ReluGrad(_))).count()
        };
        assert_eq!((relus(&graph), relus(&folded)), (2, 0), "{folded}");
        let mut dice = Dice::new(3);
        let inputs: Vec<_> =
            graph.inputs().iter().map(|&v| Domain::Normal.fill(graph.ty(v), &mut dice)).collect();
        assert_eq!(interpret(&graph, &inputs), interpret(&folded, &inputs));
    }

    #[test]
    fn a_norm_that_is_read_elsewhere_too_stays() {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [10, 8]));
        let (gamma, beta) = (
            trace.input("gamma", Type::new(DType::F32, [8])),
            trace.input("beta", Type::new(DType::F32, [8])),
        );
        let (y, _, _) = x.batch_norm(&gamma, &beta, 1e-3).unwrap();
        let z = y.relu().unwrap().add(&y).unwrap();
        let graph = trace.finish(&[&z]).unwrap();
        assert_eq!(fold_relu_into_norm(&graph).unwrap().nodes().len(), graph.nodes().len());
        let half = block(DType::F16);
        assert_eq!(fold_relu_into_norm(&half).unwrap().nodes().len(), half.nodes().len());
    }
}
