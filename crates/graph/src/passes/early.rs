//! Turns a graph whose exchanges stand behind the whole backward pass into one where each stands as early as its values are there.
//!
//! What ranks make of gradients is traced when all of them are there. Each is complete long before, and an exchange that is started then goes on
//! beside the rest of the way back. Exchanges keep their order among each other.

use super::rewrite::Rewrite;
use crate::error::Result;
use crate::graph::{Graph, Phase};
use crate::op::Op;
use crate::ops::{Exchange, ExchangeKind};

/// Moves exchanges between several ranks, with what only they wait for, to where their values are complete. Gathered parameters stay where they are asked for,
/// and messages between two ranks where they stand: what is received early lies there long.
pub fn exchange_early(graph: &Graph) -> Result<Graph> {
    let exchange = |i: usize| match &graph.nodes()[i].op {
        Op::Exchange(exchange) if exchange.of.ranks > 1 => Some(exchange),
        _ => None,
    };
    let exchanges: Vec<usize> = (0..graph.nodes().len()).filter(|&i| exchange(i).is_some()).collect();
    if exchanges.is_empty() {
        return Ok(graph.clone());
    }
    let stays = |i: usize| {
        let is_asked = |e: &Exchange| e.anew && matches!(e.kind, ExchangeKind::Gather(_));
        exchange(i).is_some_and(|e| is_asked(e) || e.is_between_two())
    };
    let mut order = Order { graph, is_done: vec![false; graph.nodes().len()], all: Vec::new() };
    let mut next = exchanges.iter().copied().peekable();
    // Until this node is done, nothing is gained by looking at the next exchange again.
    let mut blocked_by: Option<usize> = None;
    for i in 0..graph.nodes().len() {
        order.put(i);
        while let Some(&wanted) = next.peek() {
            if order.is_done[wanted] {
                next.next();
                blocked_by = None;
                continue;
            }
            if stays(wanted) || blocked_by.is_some_and(|blocker| !order.is_done[blocker]) {
                break;
            }
            match order.waits_for(wanted) {
                Ok(ancestors) => ancestors.into_iter().for_each(|node| order.put(node)),
                Err(blocker) => {
                    blocked_by = Some(blocker);
                    break;
                }
            }
        }
    }
    let mut rewrite = Rewrite::new(graph);
    for i in order.all {
        rewrite.keep(&graph.nodes()[i])?;
    }
    rewrite.finish()
}

/// Nodes in their new order.
struct Order<'a> {
    graph: &'a Graph,
    is_done: Vec<bool>,
    all: Vec<usize>,
}

impl Order<'_> {
    fn put(&mut self, node: usize) {
        if !std::mem::replace(&mut self.is_done[node], true) {
            self.all.push(node);
        }
    }

    /// What is still to be done for a node, with itself, in order; or a node of the way there or back that it has to wait for.
    fn waits_for(&self, node: usize) -> Result<Vec<usize>, usize> {
        let (mut found, mut left) = (vec![node], vec![node]);
        while let Some(at) = left.pop() {
            for v in &self.graph.nodes()[at].inputs {
                let Some((maker, _)) = self.graph.info(*v).producer else { continue };
                let maker = maker.index();
                if self.is_done[maker] || found.contains(&maker) {
                    continue;
                }
                let made = &self.graph.nodes()[maker];
                if made.phase == Phase::Backward || made.is_differentiated || made.op.is_exchange() {
                    return Err(maker);
                }
                found.push(maker);
                left.push(maker);
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::optimize;
    use crate::passes::testing::{FIRST_OF_TWO, assert_same, parameters};
    use crate::{ExchangeOps, Site, TensorOps, Trace, gradients};

    #[test]
    fn a_gradient_is_exchanged_while_the_way_back_goes_on() {
        let trace = Trace::new();
        let (x, weights) = parameters(&trace, 3, &[4, 4]);
        let mut y = x.clone();
        for w in &weights {
            y = y.matmul(w).unwrap().tanh().unwrap();
        }
        let loss = y.square().unwrap().mean(&[0, 1], false).unwrap();
        let slopes = gradients(&[(&loss, None)], &weights.iter().collect::<Vec<_>>(), Site::here()).unwrap();
        // As ranks do it: the loss, then gradients, the last first, each with its share.
        let mut outputs = vec![loss.mul_scalar(0.5).unwrap().all_reduce(FIRST_OF_TWO).unwrap()];
        for slope in slopes.into_iter().rev() {
            outputs.push(slope.unwrap().mul_scalar(0.5).unwrap().all_reduce(FIRST_OF_TWO).unwrap());
        }
        let graph = trace.finish(&outputs.iter().collect::<Vec<_>>()).unwrap();
        let early = optimize(&graph).unwrap();
        let places: Vec<usize> =
            (0..early.nodes().len()).filter(|&i| early.nodes()[i].op.is_exchange()).collect();
        let last_back = early.nodes().iter().rposition(|node| node.phase == Phase::Backward).unwrap();
        assert_eq!(places.len(), 4);
        // The loss and two gradients are on their way before the last is complete.
        assert!(places[2] < last_back && last_back < places[3], "{early}");
        for pair in places.windows(2) {
            assert_eq!(early.nodes()[pair[1]].inputs[1], early.nodes()[pair[0]].outputs[1], "{early}");
        }
        assert_same(&graph, &early);
    }
}
