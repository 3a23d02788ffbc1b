//! Turns a graph's order into one that updates each parameter as soon as its gradient is complete.
//!
//! A training step is written forward, backward, update; run so, all gradients live at once. Moving each update to the
//! first place where its inputs exist and nobody still needs what it overwrites lets gradients die one by one. Same
//! ops on the same values: the bits stay.

use plimsoll_graph::{Graph, NodeId, Phase, ValueId};

/// The nodes in the order to run them. `overwritten` are the inputs that updates write over.
pub(crate) fn early_updates(graph: &Graph, overwritten: &[ValueId]) -> Vec<NodeId> {
    let n = graph.nodes().len();
    let Some(first_backward) = graph.nodes().iter().position(|node| node.phase == Phase::Backward) else {
        return (0..n).map(|i| NodeId(i as u32)).collect();
    };
    let is_update = |i: usize| i > first_backward && graph.nodes()[i].phase == Phase::Forward;
    let mut is_overwritten = vec![false; graph.values().len()];
    overwritten.iter().for_each(|v| is_overwritten[v.index()] = true);
    // An update waits for the makers of its inputs, and for every other reader of what it overwrites.
    let mut waits = vec![0u32; n];
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut depend = |before: usize, after: usize| {
        waits[after] += 1;
        followers[before].push(after);
    };
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.values().len()];
    for (i, node) in graph.nodes().iter().enumerate() {
        for v in &node.inputs {
            readers[v.index()].push(i);
            if let Some((maker, _)) = graph.info(*v).producer {
                depend(maker.index(), i);
            }
        }
    }
    for v in overwritten {
        let readers = &readers[v.index()];
        for &update in readers.iter().filter(|&&i| is_update(i)) {
            for &reader in readers.iter().filter(|&&i| !is_update(i)) {
                depend(reader, update);
            }
        }
    }
    let mut order = Vec::with_capacity(n);
    let mut done = vec![false; n];
    let mut ready: Vec<usize> = Vec::new();
    for i in 0..n {
        if done[i] || (is_update(i) && waits[i] > 0) {
            continue;
        }
        ready.push(i);
        while let Some(node) = ready.pop() {
            done[node] = true;
            order.push(NodeId(node as u32));
            for &next in &followers[node] {
                waits[next] -= 1;
                if waits[next] == 0 && is_update(next) && !done[next] {
                    ready.push(next);
                }
            }
        }
    }
    let original = || (0..n).map(|i| NodeId(i as u32)).collect();
    // Where something of the backward pass needs an update's result (second derivatives), the early order may not be
    // one; the written order always is.
    if is_an_order(graph, &order) { order } else { original() }
}

/// The order with whatever makes new values of arguments behind `guard`, as far as nobody waits for it: running
/// statistics, which are made in the forward pass, then change after the loss is known.
pub(crate) fn changes_after(
    graph: &Graph,
    order: Vec<NodeId>,
    guard: NodeId,
    replaces: &[Option<usize>],
) -> Vec<NodeId> {
    let mut movable = vec![false; graph.nodes().len()];
    for (&v, _) in graph.outputs().iter().zip(replaces).filter(|(_, replaced)| replaced.is_some()) {
        if let Some((maker, _)) = graph.info(v).producer {
            movable[maker.index()] = true;
        }
    }
    for v in graph.nodes().iter().flat_map(|node| &node.inputs) {
        if let Some((maker, _)) = graph.info(*v).producer {
            movable[maker.index()] = false;
        }
    }
    let Some(at) = order.iter().position(|&id| id == guard) else { return order };
    let (before, after) = order.split_at(at + 1);
    let (late, early): (Vec<NodeId>, Vec<NodeId>) = before.iter().partition(|id| movable[id.index()]);
    if late.contains(&guard) {
        order
    } else {
        early.into_iter().chain(late).chain(after.iter().copied()).collect()
    }
}

/// Whether every node stands after the makers of its inputs, each exactly once.
fn is_an_order(graph: &Graph, order: &[NodeId]) -> bool {
    let mut done = vec![false; graph.nodes().len()];
    for &id in order {
        let ready = |v: &ValueId| graph.info(*v).producer.is_none_or(|(maker, _)| done[maker.index()]);
        if done[id.index()] || !graph.node(id).inputs.iter().all(ready) {
            return false;
        }
        done[id.index()] = true;
    }
    done.into_iter().all(|d| d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{DType, TensorOps, Trace, Type, gradient};

    #[test]
    fn each_parameter_is_updated_before_the_next_gradient_is_made() {
        // y = sum(relu(x w1) w2): the gradient of w2 is complete before that of w1 is begun.
        let trace = Trace::new();
        let f32s = |shape: [usize; 2]| Type::new(DType::F32, shape);
        let x = trace.input("x", f32s([4, 3]));
        let w1 = trace.input("w1", f32s([3, 5]));
        let w2 = trace.input("w2", f32s([5, 2]));
        let y = x.matmul(&w1).unwrap().relu().unwrap().matmul(&w2).unwrap().sum(&[], false).unwrap();
        let grads: Vec<_> = gradient(&y, None, &[&w1, &w2]).unwrap().into_iter().flatten().collect();
        let new1 = w1.sub(&grads[0]).unwrap();
        let new2 = w2.sub(&grads[1]).unwrap();
        let graph = trace.finish(&[&new1, &new2]).unwrap();
        let order = early_updates(&graph, &[w1.id(), w2.id()]);
        let place = |v: ValueId| {
            let maker = graph.info(v).producer.unwrap().0;
            order.iter().position(|&n| n == maker).unwrap()
        };
        assert!(is_an_order(&graph, &order));
        assert!(place(new2.id()) < place(grads[0].id()), "w2 is updated before w1's gradient exists");
    }
}
