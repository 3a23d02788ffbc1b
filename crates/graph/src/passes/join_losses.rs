//! Makes the losses of a linear layer with cross-entropy together with their gradients, so that its logits are made once.

use super::rewrite::{Rewrite, leaving, readers};
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::ops::JointCrossEntropy;

/// The graph with [`JointCrossEntropy`] for every loss and its gradient, where the gradient of each loss does not depend on the losses: a mean's does not,
/// that of a mean's square does.
///
/// What is made of the losses moves behind their gradients. That takes nothing away: on the way back these are the first there are.
pub fn join_losses(graph: &Graph) -> Result<Graph> {
    let (readers, leaves) = (readers(graph), leaving(graph));
    let nodes = graph.nodes();
    // By node of gradients, the node of their losses.
    let mut of: Vec<Option<usize>> = vec![None; nodes.len()];
    let mut is_joined = vec![false; nodes.len()];
    let is_later = behind_losses(graph);
    for (i, node) in nodes.iter().enumerate() {
        let Some(losses) = losses_of(graph, node) else { continue };
        let lse = nodes[losses].outputs[1];
        let is_known_before = [0, 1, 2, 4].iter().all(|&at| !is_later[node.inputs[at].index()]);
        if !leaves[lse.index()] && readers[lse.index()][..] == [i] && is_known_before {
            of[i] = Some(losses);
            is_joined[losses] = true;
        }
    }
    let mut rewrite = Rewrite::new(graph);
    let mut waiting: Vec<&Node> = Vec::new();
    for (i, node) in nodes.iter().enumerate() {
        if is_joined[i] {
            continue;
        }
        if let (Some(losses), Op::LinearCrossEntropyGrad(op)) = (of[i], &node.op) {
            let inputs = [node.inputs[0], node.inputs[1], node.inputs[2], node.inputs[4]];
            let outputs = [nodes[losses].outputs[0]].into_iter().chain(node.outputs.iter().copied());
            let outputs: Vec<Option<ValueId>> = outputs.map(Some).collect();
            rewrite.replace(node, JointCrossEntropy { cap: op.cap, dx: op.dx }.into(), &inputs, &outputs)?;
        } else if node.inputs.iter().any(|&v| rewrite.at(v).is_err()) {
            waiting.push(node);
            continue;
        } else {
            rewrite.keep(node)?;
        }
        // Whoever waited for what is there now, in the order in which they were.
        let mut left = Vec::new();
        for node in waiting {
            match node.inputs.iter().all(|&v| rewrite.at(v).is_ok()) {
                true => rewrite.keep(node)?,
                false => left.push(node),
            }
        }
        waiting = left;
    }
    rewrite.finish()
}

/// The node that made the losses of which a node makes the gradients, the layer's among them.
fn losses_of(graph: &Graph, node: &Node) -> Option<usize> {
    let Op::LinearCrossEntropyGrad(gradients) = &node.op else { return None };
    let (losses, output) = graph.info(node.inputs[3]).producer?;
    let made = &graph.nodes()[losses.index()];
    let Op::LinearCrossEntropy(op) = &made.op else { return None };
    let is_same = output == 1 && op.cap == gradients.cap && made.inputs[..] == node.inputs[..3];
    (gradients.dw && is_same).then_some(losses.index())
}

/// By value: whether it depends on losses, of whichever layer.
fn behind_losses(graph: &Graph) -> Vec<bool> {
    let mut is_later = vec![false; graph.values().len()];
    for node in graph.nodes() {
        if matches!(node.op, Op::LinearCrossEntropy(_)) || node.inputs.iter().any(|v| is_later[v.index()]) {
            node.outputs.iter().for_each(|v| is_later[v.index()] = true);
        }
    }
    is_later
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient::gradient;
    use crate::methods::TensorOps;
    use crate::ops::{GradientOps, LinearCrossEntropyOps};
    use crate::passes::remove_dead;
    use crate::passes::testing::assert_same;
    use crate::{DType, Sym, Trace, Type};

    /// A layer over tanh of samples, some loss of its cross-entropies, and the gradients of both.
    fn step(cap: Option<f64>, loss: impl Fn(&Sym, &Sym) -> Result<Sym>) -> Graph {
        let trace = Trace::new();
        let of = |name: &str, shape: &[usize]| trace.input(name, Type::new(DType::F64, shape));
        let (x, w, weights) = (of("x", &[2, 3, 4]), of("w", &[12, 4]), of("weights", &[2, 3]));
        let labels = trace.input("labels", Type::new(DType::I64, [2, 3]));
        let losses = x.tanh().unwrap().linear_cross_entropy(&w, &labels, cap).unwrap();
        let loss = loss(&losses, &weights).unwrap();
        let mut grads = gradient(&loss, None, &[&x, &w]).unwrap().into_iter().flatten();
        let (dx, dw) = (grads.next().unwrap(), grads.next().unwrap());
        remove_dead(&trace.finish(&[&loss, &dx, &w.sub(&dw).unwrap()]).unwrap()).unwrap()
    }

    /// Three samples, two layers and labels.
    fn operands(trace: &Trace) -> [Sym; 4] {
        let of = |name: &str, shape: &[usize]| trace.input(name, Type::new(DType::F64, shape));
        let labels = trace.input("labels", Type::new(DType::I64, [3]));
        [of("x", &[3, 4]), of("w", &[12, 4]), of("v", &[12, 4]), labels]
    }

    fn joined(graph: &Graph) -> [usize; 2] {
        let count = |is: fn(&Op) -> bool| graph.nodes().iter().filter(|node| is(&node.op)).count();
        [
            count(|op| matches!(op, Op::JointCrossEntropy(_))),
            count(|op| matches!(op, Op::LinearCrossEntropy(_) | Op::LinearCrossEntropyGrad(_))),
        ]
    }

    #[test]
    fn losses_that_are_weighted_and_averaged_are_made_with_their_gradients() {
        for cap in [None, Some(2.0)] {
            let before = step(cap, |losses, weights| losses.mul(weights)?.sum(&[1], false)?.mean(&[], false));
            let after = join_losses(&before).unwrap();
            assert_eq!((joined(&before), joined(&after)), ([0, 2], [1, 0]), "{after}");
            assert_eq!(before.nodes().len(), after.nodes().len() + 1);
            assert_same(&before, &after);
        }
    }

    #[test]
    fn losses_that_their_own_gradients_depend_on_stay_apart() {
        let before = step(None, |losses, _| losses.square()?.mean(&[], false));
        let after = join_losses(&before).unwrap();
        assert_eq!(joined(&after), [0, 2], "{after}");
        assert_same(&before, &after);
    }

    #[test]
    fn a_layer_over_what_was_made_of_another_ones_losses_stays_apart() {
        let trace = Trace::new();
        let [x, w, v, labels] = operands(&trace);
        let first = x.linear_cross_entropy(&w, &labels, None).unwrap().mean(&[], false).unwrap();
        let scaled = x.mul(&first.stop_gradient().unwrap()).unwrap();
        let second = scaled.linear_cross_entropy(&v, &labels, None).unwrap().mean(&[], false).unwrap();
        let loss = first.add(&second).unwrap();
        let grads = gradient(&loss, None, &[&x, &w, &v]).unwrap();
        let outputs: Vec<&Sym> = std::iter::once(&loss).chain(grads.iter().flatten()).collect();
        let before = remove_dead(&trace.finish(&outputs).unwrap()).unwrap();
        let after = join_losses(&before).unwrap();
        assert_eq!(joined(&after), [1, 2], "{after}");
        assert_same(&before, &after);
    }

    #[test]
    fn a_gradient_without_the_layers_and_losses_alone_stay_as_they_are() {
        let trace = Trace::new();
        let [x, w, _, labels] = operands(&trace);
        let losses = x.linear_cross_entropy(&w, &labels, None).unwrap();
        let dx = gradient(&losses.mean(&[], false).unwrap(), None, &[&x]).unwrap().remove(0).unwrap();
        let graph = trace.finish(&[&losses, &dx]).unwrap();
        assert_eq!(joined(&join_losses(&graph).unwrap()), [0, 2]);
    }
}
