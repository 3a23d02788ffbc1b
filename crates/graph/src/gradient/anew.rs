//! Turns values of the way there into ones that are made anew on the way back: what was exchanged ([`Again`]), and what was computed of it.
//!
//! A rank that gathers a parameter where it is used, and drops it, must not need it for what is computed once more either. So what is made of gathered values
//! is made of what is gathered anew, back to values that are kept: those that are there where fewest bytes are, what one block hands to the next.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::Site;
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;
use crate::ops::Again;
use crate::trace::{Sym, Trace};

/// How many ops a value may be away from the exchange that is made anew for it alone: what is gathered is cut, shaped and cast.
const AWAY: usize = 6;
/// Values stay where at most so many times the fewest bytes are.
const FEW: f64 = 1.2;
/// What has so many times fewer bytes than that stays, wherever it is: statistics of rows, sums of exponentials.
const SMALL: usize = 8;

/// What is made anew, and what stands for it.
pub(super) struct Anew {
    /// By value of the way there; nothing where nothing is exchanged anew.
    remade: Vec<bool>,
    made: RefCell<BTreeMap<ValueId, Sym>>,
}

impl Anew {
    pub(super) fn new(trace: &Trace) -> Anew {
        let graph = trace.lock();
        let most = graph.nodes().iter().filter_map(exchanged_anew).max_by_key(|again| *again as u8);
        let remade = match most {
            None => Vec::new(),
            Some(Again::Computed) => Gathered::new(&graph).not_kept(&graph),
            Some(_) => Gathered::new(&graph).near,
        };
        Anew { remade, made: RefCell::default() }
    }

    /// What stands for a value on the way back; nothing where it is itself there.
    pub(super) fn of(&self, trace: &Trace, value: ValueId, site: Site) -> Result<Option<Sym>> {
        if !self.remade.get(value.index()).copied().unwrap_or(false) {
            return Ok(None);
        }
        if let Some(made) = self.made.borrow().get(&value) {
            return Ok(Some(made.clone()));
        }
        let node = {
            let graph = trace.lock();
            let Some((maker, _)) = graph.info(value).producer else { return Ok(None) };
            graph.node(maker).clone()
        };
        // Of an exchange's inputs the last is the token of another one.
        let read = if node.op.is_exchange() { 1 } else { node.inputs.len() };
        let mut inputs = Vec::with_capacity(read);
        for v in &node.inputs[..read] {
            inputs.push(self.of(trace, *v, site)?.unwrap_or_else(|| trace.value(*v)));
        }
        let made = trace.push(node.op.clone(), &inputs.iter().collect::<Vec<_>>(), site)?;
        self.made.borrow_mut().extend(node.outputs.iter().copied().zip(made));
        Ok(self.made.borrow().get(&value).cloned())
    }
}

fn exchanged_anew(node: &Node) -> Option<Again> {
    match &node.op {
        Op::Exchange(exchange) if exchange.anew != Again::Never => Some(exchange.anew),
        _ => None,
    }
}

/// What is made of exchanges that are made anew, by value.
struct Gathered {
    /// Of them alone, a few ops away.
    near: Vec<bool>,
    /// Of them and whatever else.
    all: Vec<bool>,
}

impl Gathered {
    fn new(graph: &Graph) -> Gathered {
        let n = graph.values().len();
        let (mut away, mut all) = (vec![None; n], vec![false; n]);
        for node in graph.nodes() {
            let far = match &node.inputs[..] {
                _ if exchanged_anew(node).is_some() => Some(0),
                _ if node.op.is_exchange() => continue,
                [only] => away[only.index()].map(|far: usize| far + 1).filter(|far| *far <= AWAY),
                _ => None,
            };
            let is_made = far.is_some() || node.inputs.iter().any(|v| all[v.index()]);
            // The other result of an exchange is its token.
            let results = if node.op.is_exchange() { 1 } else { node.outputs.len() };
            for v in &node.outputs[..results] {
                (away[v.index()], all[v.index()]) = (far, is_made);
            }
        }
        Gathered { near: away.iter().map(Option::is_some).collect(), all }
    }

    /// All but those that stay: where fewest bytes are, and small ones.
    fn not_kept(self, graph: &Graph) -> Vec<bool> {
        let mut last_read = vec![None; graph.values().len()];
        for (i, node) in graph.nodes().iter().enumerate() {
            node.inputs.iter().for_each(|v| last_read[v.index()] = Some(i));
        }
        let counts = |v: &ValueId| self.all[v.index()] && !self.near[v.index()];
        let bytes = |v: &ValueId| graph.ty(*v).bytes();
        // Behind each node: what was made by then of gathered values and is read later on.
        let behind = |visit: &mut dyn FnMut(usize, &BTreeSet<ValueId>)| {
            let (mut here, mut sum) = (BTreeSet::new(), 0);
            for (i, node) in graph.nodes().iter().enumerate() {
                for v in node.outputs.iter().filter(|v| counts(v) && last_read[v.index()] > Some(i)) {
                    here.insert(*v);
                    sum += bytes(v);
                }
                for v in node.inputs.iter().filter(|v| last_read[v.index()] == Some(i)) {
                    if here.remove(v) {
                        sum -= bytes(v);
                    }
                }
                visit(sum, &here);
            }
        };
        let mut fewest = usize::MAX;
        // The way to the loss ends in values of a few bytes, which say nothing of what blocks hand on.
        let mut most = 0;
        behind(&mut |sum, _| most = most.max(sum));
        behind(&mut |sum, _| {
            if sum * 1000 > most {
                fewest = fewest.min(sum);
            }
        });
        let mut remade = self.all.clone();
        behind(&mut |sum, here| {
            if sum as f64 <= FEW * fewest as f64 {
                here.iter().for_each(|v| remade[v.index()] = false);
            }
        });
        for (i, value) in graph.values().iter().enumerate() {
            remade[i] &= self.near[i] || value.ty.bytes() * SMALL > fewest;
        }
        remade
    }
}
