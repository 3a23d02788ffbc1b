//! Turns the graph of a model's loss into the weights to cut: columns of one weight and rows of the next, heads of attention, rows of tables of words.
//!
//! A weight is cut on trial; what follows is walked until nothing is cut any more, and what stands beside it (the bias, the other factor of a gate, keys
//! and values) is cut along. Where the walk meets an op that needs all of a value on its way to the loss, the trial is dropped.

use std::collections::BTreeSet;

use plimsoll_graph::{Graph, Node, Op, Type, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::Cut;
use super::rules::{self, Way, Whole};

/// How many blocks the columns of a weight may be: gates of two, queries with keys and values of three.
const BLOCKS: [usize; 3] = [1, 2, 3];

/// What is known of a graph while it is searched.
pub(super) struct Search<'g> {
    graph: &'g Graph,
    ranks: usize,
    /// Values that may be cut from the start.
    params: FxHashSet<ValueId>,
    readers: Vec<SmallVec<[u32; 4]>>,
    /// By node: whether the loss depends on it. What does not may read whole values.
    to_loss: Vec<bool>,
    cuts: FxHashMap<ValueId, Cut>,
}

/// Cuts on trial, beside those that are settled.
struct Trial<'s, 'g> {
    search: &'s Search<'g>,
    cuts: FxHashMap<ValueId, Cut>,
    queue: BTreeSet<usize>,
}

/// The cuts of a model's parameters among so many ranks. `wanted` are the outputs that must be whole.
pub(super) fn find(
    graph: &Graph,
    params: &[ValueId],
    wanted: &[ValueId],
    ranks: usize,
) -> FxHashMap<ValueId, Cut> {
    let mut search = Search::new(graph, params, wanted, ranks);
    for i in 0..graph.nodes().len() {
        search.try_node(&graph.nodes()[i]);
    }
    search.cuts
}

impl<'g> Search<'g> {
    fn new(graph: &'g Graph, params: &[ValueId], wanted: &[ValueId], ranks: usize) -> Search<'g> {
        let mut readers = vec![SmallVec::new(); graph.values().len()];
        for (i, node) in graph.nodes().iter().enumerate() {
            node.inputs.iter().for_each(|v| readers[v.index()].push(i as u32));
        }
        let (params, to_loss) = (params.iter().copied().collect(), graph.leading_to(wanted));
        Search { graph, ranks, params, readers, to_loss, cuts: FxHashMap::default() }
    }

    /// Cuts the weight that an op reads, where it reads one that is whole and what follows lets it.
    fn try_node(&mut self, node: &Node) {
        let types: SmallVec<[&Type; 4]> = node.inputs.iter().map(|v| self.graph.ty(*v)).collect();
        let output = self.graph.ty(node.outputs[0]);
        let whole = Whole { op: &node.op, inputs: &types, output, ranks: self.ranks };
        let (weight, cuts): (ValueId, SmallVec<[Cut; 4]>) = match &node.op {
            op if rules::product(op).is_some() && self.cuts.contains_key(&node.inputs[0]) => return,
            Op::Gather(op) if op.axis == 0 => (node.inputs[0], [Cut::at(0)].into_iter().collect()),
            Op::LinearCrossEntropy(_) | Op::FrozenCrossEntropy(_) => {
                (node.inputs[1], [Cut::at(0)].into_iter().collect())
            }
            op => {
                let Some(product) = rules::product(op) else { return };
                let columns = whole.columns_axis(&product);
                let rows = 2 * types[1].shape.rank() - 3 - columns;
                let cuts = BLOCKS.iter().map(|&blocks| Cut { axis: columns, blocks });
                (node.inputs[1], cuts.chain([Cut::at(rows)]).collect())
            }
        };
        if self.cuts.contains_key(&weight) || !self.is_weight(weight) {
            return;
        }
        for cut in cuts {
            let mut trial = Trial { search: self, cuts: FxHashMap::default(), queue: BTreeSet::new() };
            if trial.ask(weight, cut) == Some(true) && trial.holds() {
                let found = trial.cuts;
                self.cuts.extend(found);
                return;
            }
        }
    }

    /// Whether a value is a parameter, in whatever type and shape.
    fn is_weight(&self, mut v: ValueId) -> bool {
        while let Some((node, _)) = self.graph.info(v).producer {
            let node = self.graph.node(node);
            if !rules::hands_on(&node.op) {
                return false;
            }
            v = node.inputs[0];
        }
        self.params.contains(&v) && self.graph.ty(v).shape.rank() > 1
    }
}

impl Trial<'_, '_> {
    fn cut(&self, v: ValueId) -> Option<Cut> {
        self.cuts.get(&v).or_else(|| self.search.cuts.get(&v)).copied()
    }

    /// Cuts a value; whether it can be.
    fn set(&mut self, v: ValueId, cut: Cut) -> bool {
        match self.cut(v) {
            Some(known) => known == cut,
            None if !cut.fits(self.search.graph.ty(v), self.search.ranks) => false,
            None => {
                self.cuts.insert(v, cut);
                self.queue.extend(self.search.readers[v.index()].iter().map(|i| *i as usize));
                true
            }
        }
    }

    /// Cuts the parameters from which a value would come out cut so. Whether there were any; nothing where it cannot be had so.
    fn ask(&mut self, v: ValueId, cut: Cut) -> Option<bool> {
        let mut found = Vec::new();
        if !self.sources(v, cut, &mut found) {
            return None;
        }
        let before = self.cuts.len();
        found.into_iter().all(|(v, cut)| self.set(v, cut)).then_some(self.cuts.len() > before)
    }

    /// The parameters to cut for a value to be cut so; false where it is made of something else that is whole.
    fn sources(&self, v: ValueId, cut: Cut, found: &mut Vec<(ValueId, Cut)>) -> bool {
        if let Some(known) = self.cut(v) {
            return known == cut;
        }
        let graph = self.search.graph;
        if !cut.fits(graph.ty(v), self.search.ranks) {
            return false;
        }
        if self.search.params.contains(&v) {
            found.push((v, cut));
            return true;
        }
        let Some((node, _)) = graph.info(v).producer else {
            // What every rank has anyway is cut where it is read.
            return true;
        };
        let node = graph.node(node);
        if node.inputs.is_empty() {
            return true;
        }
        if !rules::is_passed(&node.op) {
            return false;
        }
        let types: SmallVec<[&Type; 4]> = node.inputs.iter().map(|v| graph.ty(*v)).collect();
        let output = graph.ty(v);
        let whole = Whole { op: &node.op, inputs: &types, output, ranks: self.search.ranks };
        let Some(needs) = whole.needs(cut) else { return false };
        let is_any = needs.iter().any(Option::is_some);
        let mut asked = node.inputs.iter().zip(&needs).filter_map(|(v, need)| need.map(|need| (*v, need)));
        is_any && asked.all(|(v, need)| self.sources(v, need, found))
    }

    /// Walks on from what was cut. Whether nothing on the way to the loss needs all of what is.
    fn holds(&mut self) -> bool {
        let graph = self.search.graph;
        while let Some(i) = self.queue.pop_first() {
            let node = &graph.nodes()[i];
            let cuts: SmallVec<[Option<Cut>; 4]> = node.inputs.iter().map(|v| self.cut(*v)).collect();
            let types: SmallVec<[&Type; 4]> = node.inputs.iter().map(|v| graph.ty(*v)).collect();
            let output = graph.ty(node.outputs[0]);
            let whole = Whole { op: &node.op, inputs: &types, output, ranks: self.search.ranks };
            let way = match whole.way(&cuts) {
                Some(way) => way,
                None if self.search.to_loss[i] => return false,
                None => continue,
            };
            let (needs, made) = match way {
                Way::Local { needs, made, .. } => (needs, Some(made)),
                Way::Summed { needs } => (needs, None),
                Way::Dropped { cut } => (SmallVec::new(), Some(cut)),
                Way::Rows | Way::Loss | Way::LinearLoss | Way::Largest => (SmallVec::new(), None),
            };
            let missing =
                needs.iter().zip(&cuts).zip(&node.inputs).filter_map(|((need, cut), v)| match cut {
                    None => need.map(|need| (*v, need)),
                    Some(_) => None,
                });
            let missing: SmallVec<[(ValueId, Cut); 4]> = missing.collect();
            // What is made of parameters alone is cut there; the rest where it is read.
            let is_more =
                missing.into_iter().fold(false, |more, (v, need)| self.ask(v, need) == Some(true) || more);
            if is_more {
                self.queue.insert(i);
                continue;
            }
            if let Some(made) = made
                && !node.outputs.iter().take(outputs_of(&node.op, node)).all(|v| self.set(*v, made))
            {
                return false;
            }
        }
        true
    }
}

/// How many outputs of an op are cut with its first: what others say of rows is read by gradients alone.
pub(super) fn outputs_of(op: &Op, node: &Node) -> usize {
    if matches!(op, Op::Split(_)) { node.outputs.len() } else { 1 }
}
