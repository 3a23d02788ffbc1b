//! Turns a graph whose parameters are gathered anew where a gradient reads them into one where each is there before the way back reads anything made of it.
//!
//! What the way back reads of the way there may be computed again instead of being kept, and that reads the parameters it was made of. Gathered a little
//! earlier, they serve for both, and nothing that was gathered on the way there has to stay.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::rewrite::{Rewrite, leaving, readers};
use crate::error::Result;
use crate::graph::{Graph, Node, Phase, ValueId};
use crate::op::Op;
use crate::ops::{Binary, ExchangeKind};

/// How many ops may lie between parameters and what is looked at as made of them.
const AWAY: usize = 10;

/// Moves what is gathered anew on the way back to before the first op there that reads what was made of it, and leaves out what nobody reads there. Sums of two
/// branches are taken to be kept: what lies before them is not looked at.
pub fn gather_ahead(graph: &Graph) -> Result<Graph> {
    let mut later: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for (i, node) in graph.nodes().iter().enumerate() {
        if node.phase == Phase::Backward && is_gathered_anew(node) {
            later.entry(node.inputs[0]).or_default().push(i);
        }
    }
    if later.is_empty() {
        return Ok(graph.clone());
    }
    let mut order = Vec::with_capacity(graph.nodes().len());
    let mut is_done = vec![false; graph.nodes().len()];
    let mut origins = Origins { graph, seen: vec![false; graph.values().len()], found: Vec::new() };
    for (i, node) in graph.nodes().iter().enumerate() {
        if node.phase == Phase::Backward && !node.op.is_exchange() {
            node.inputs.iter().for_each(|&v| origins.of(v, AWAY));
        }
        for shard in origins.found.drain(..) {
            for &gather in later.get(&shard).into_iter().flatten().filter(|&&gather| gather > i) {
                if !std::mem::replace(&mut is_done[gather], true) {
                    order.push(gather);
                }
            }
        }
        if !std::mem::replace(&mut is_done[i], true) {
            order.push(i);
        }
    }
    let (readers, leaves) = (readers(graph), leaving(graph));
    let is_unread = |node: &Node| {
        let made = node.outputs[0].index();
        node.phase == Phase::Backward && is_gathered_anew(node) && readers[made].is_empty() && !leaves[made]
    };
    let mut rewrite = Rewrite::new(graph);
    let mut token = None;
    for node in order.into_iter().map(|i| &graph.nodes()[i]).filter(|node| !is_unread(node)) {
        if !node.op.is_exchange() {
            rewrite.keep(node)?;
            continue;
        }
        // Exchanges keep their order by the token of the one before.
        let mut inputs: SmallVec<[ValueId; 2]> = SmallVec::from_iter([rewrite.at(node.inputs[0])?]);
        inputs.extend(token);
        let outputs: SmallVec<[Option<ValueId>; 2]> = node.outputs.iter().map(|&v| Some(v)).collect();
        token = rewrite.push(node, node.op.clone(), &inputs, &outputs)?.get(1).copied();
    }
    rewrite.finish()
}

fn is_gathered_anew(node: &Node) -> bool {
    matches!(&node.op, Op::Exchange(exchange)
        if exchange.anew && exchange.of.ranks > 1 && matches!(exchange.kind, ExchangeKind::Gather(_)))
}

/// Looks for the shards that values of the way there were made of.
struct Origins<'a> {
    graph: &'a Graph,
    /// Values that were looked at.
    seen: Vec<bool>,
    found: Vec<ValueId>,
}

impl Origins<'_> {
    fn maker(&self, v: ValueId) -> Option<&Node> {
        let (maker, _) = self.graph.info(v).producer?;
        Some(self.graph.node(maker)).filter(|node| node.phase == Phase::Forward)
    }

    /// The shard of a parameter that is itself, or is cut, shaped and cast.
    fn shard(&self, v: ValueId, away: usize) -> Option<ValueId> {
        let node = self.maker(v)?;
        match &node.op {
            _ if is_gathered_anew(node) => Some(node.inputs[0]),
            _ if away > 0 && node.inputs.len() == 1 => self.shard(node.inputs[0], away - 1),
            _ => None,
        }
    }

    /// Finds what `v` was made of: parameters that its own op reads, or else those of the ops before it.
    fn of(&mut self, v: ValueId, away: usize) {
        if away == 0 || std::mem::replace(&mut self.seen[v.index()], true) {
            return;
        }
        let Some(node) = self.maker(v) else { return };
        let is_branch = |&input: &ValueId| self.graph.ty(input).shape == self.graph.ty(v).shape;
        if matches!(node.op, Op::Binary(Binary::Add)) && node.inputs.iter().all(is_branch)
            || node.op.is_exchange()
        {
            return;
        }
        let inputs = node.inputs.clone();
        let own: Vec<ValueId> = inputs.iter().filter_map(|&input| self.shard(input, AWAY)).collect();
        if own.is_empty() {
            inputs.iter().for_each(|&input| self.of(input, away - 1));
        }
        self.found.extend(own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::passes::optimize;
    use crate::passes::testing::{FIRST_OF_TWO, assert_same, parameters};
    use crate::{ExchangeOps, Site, Sym, TensorOps, Trace, gradients};

    #[test]
    fn parameters_that_nobody_reads_on_the_way_back_are_not_gathered_there() {
        let trace = Trace::new();
        let (x, shards) = parameters(&trace, 2, &[8]);
        let layer = |x: Sym, shard: &Sym| {
            let weight = shard.all_gather_anew(FIRST_OF_TWO, [16]).unwrap().reshape([4, 4]).unwrap();
            x.matmul(&weight).unwrap().tanh().unwrap()
        };
        let loss = shards.iter().fold(x, layer).square().unwrap().sum(&[], false).unwrap();
        let slopes = gradients(&[(&loss, None)], &shards.iter().collect::<Vec<_>>(), Site::here()).unwrap();
        let slopes: Vec<Sym> = slopes.into_iter().map(Option::unwrap).collect();
        let graph = trace.finish(&slopes.iter().collect::<Vec<_>>()).unwrap();
        let gathered = |graph: &Graph| graph.nodes().iter().filter(|node| is_gathered_anew(node)).count();
        // The gradient of x, which nobody wants, would read the first.
        assert_eq!((gathered(&graph), gathered(&optimize(&graph).unwrap())), (4, 3));
    }

    #[test]
    fn parameters_are_there_before_what_was_made_of_them_is_read() {
        let trace = Trace::new();
        let (x, shards) = parameters(&trace, 4, &[8]);
        let weight =
            |i: usize| shards[i].all_gather_anew(FIRST_OF_TWO, [16]).unwrap().reshape([4, 4]).unwrap();
        let mut y = x.clone();
        for layer in 0..2 {
            let wide = y.matmul(&weight(2 * layer)).unwrap().tanh().unwrap();
            y = y.add(&wide.matmul(&weight(2 * layer + 1)).unwrap()).unwrap();
        }
        let loss = y.square().unwrap().sum(&[], false).unwrap();
        let wants: Vec<&Sym> = std::iter::once(&x).chain(&shards).collect();
        let slopes = gradients(&[(&loss, None)], &wants, Site::here()).unwrap();
        let slopes: Vec<Sym> = slopes.into_iter().map(Option::unwrap).collect();
        let graph = trace.finish(&slopes.iter().collect::<Vec<_>>()).unwrap();
        let ahead = gather_ahead(&graph).unwrap();
        // Of each layer, whether the weight that its inside was made of is gathered before the way back reads that.
        let is_ahead = |graph: &Graph| -> Vec<bool> {
            let back = |find: &dyn Fn(&Node) -> bool| {
                graph.nodes().iter().position(|node| node.phase == Phase::Backward && find(node)).unwrap()
            };
            let inside =
                graph.nodes().iter().filter(|node| node.op.name() == "tanh").map(|node| node.outputs[0]);
            let layers = inside.zip(["w0", "w2"]).map(|(inside, weight)| {
                let gathered = back(&|n| is_gathered_anew(n) && graph.info(n.inputs[0]).name == weight);
                gathered < back(&|n| n.inputs.contains(&inside))
            });
            layers.collect()
        };
        assert_eq!(is_ahead(&graph), [false, false], "{graph}");
        assert_eq!(is_ahead(&ahead), [true, true], "{ahead}");
        let exchanges: Vec<&Node> = ahead.nodes().iter().filter(|node| node.op.is_exchange()).collect();
        assert_eq!(exchanges.len(), 12);
        for pair in exchanges.windows(2) {
            assert_eq!(pair[1].inputs[1], pair[0].outputs[1], "{ahead}");
        }
        assert_same(&graph, &ahead);
    }
}
