//! Turns a problem and an order into the flat arrays the solvers work on.
//!
//! Ops are numbered by their position in the order and transient tensors by their first appearance; residents
//! and views are gone: residents are a constant, and a view's uses are uses of the tensor behind it.

use crate::copy_price::CopyPrice;
use crate::problem::{Carry, Home, OpId, Problem, TensorId};

/// Lists of numbers, one list an index, in one allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    pub fn new(lists: impl Iterator<Item = Vec<u32>>) -> Lists {
        let mut all = Lists { start: vec![0], items: Vec::new() };
        for list in lists {
            all.items.extend(list);
            all.start.push(all.items.len() as u32);
        }
        all
    }

    #[inline]
    pub fn of(&self, index: u32) -> &[u32] {
        &self.items[self.start[index as usize] as usize..self.start[index as usize + 1] as usize]
    }
}

/// The copy that an op is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// What is copied.
    pub tensor: u32,
    /// Whether to the host.
    pub out: bool,
    pub ns: u64,
}

/// A problem in a given order, in the solvers' numbering.
#[derive(Clone, Debug)]
pub(crate) struct IndexedProblem {
    /// Number of ops.
    pub ops: u32,
    /// Transients each op reads, each once.
    pub ins: Lists,
    /// Position in the order -> the problem's op, or `u32::MAX` for a stage that is there for replays alone.
    pub op_id: Vec<OpId>,
    /// Transients each op writes.
    pub outs: Lists,
    /// Time of each op; nothing for ops that are copies, which run beside the others.
    pub ns: Vec<u64>,
    /// In-place pairs of each op, flattened: read, written, read, written. No tensor is in two pairs.
    pub pairs: Lists,
    /// Scratch of each op, padded.
    pub scratch: Vec<u64>,
    /// Each op may be replayed just before any op up to this one; its own position if never.
    pub replay_until: Vec<u32>,
    /// Ops that are copies.
    pub carried: Vec<Option<Carried>>,
    /// Bytes of all residents, packed, padded.
    pub resident_bytes: u64,
    /// Transient -> the problem's tensor.
    pub tensor_id: Vec<TensorId>,
    /// Transient bytes, padded.
    pub size: Vec<u64>,
    /// Transient alignment.
    pub alignment: Vec<u64>,
    /// What the search counts copies for: most of a copy runs beside ops.
    pub copy_price: CopyPrice,
    /// The op that makes each transient first.
    pub producer: Vec<u32>,
    /// The ops that make each transient anew, in their order.
    pub anew: Lists,
    /// Whether each transient must be there at the end.
    pub keep: Vec<bool>,
    /// Whether each transient comes from the host or goes there anyway, or is made anew, so that no copy of it is left to the search.
    pub is_carried: Vec<bool>,
    /// Time to copy each transient over the link, if there is one.
    pub copy_ns: Option<Vec<u64>>,
}

impl IndexedProblem {
    /// Numbers `problem` in the order `order`.
    pub fn new(problem: &Problem, order: &[OpId]) -> IndexedProblem {
        const NONE: u32 = u32::MAX;
        let mut number = vec![NONE; problem.tensors.len()];
        let mut indexed = IndexedProblem {
            ops: order.len() as u32,
            op_id: order.to_vec(),
            tensor_id: Vec::new(),
            size: Vec::new(),
            alignment: Vec::new(),
            producer: Vec::new(),
            anew: Lists::default(),
            keep: Vec::new(),
            ins: Lists::default(),
            outs: Lists::default(),
            pairs: Lists::default(),
            ns: order.iter().map(|o| problem.ops[o.index()].own_ns()).collect(),
            carried: Vec::new(),
            is_carried: Vec::new(),
            scratch: Vec::new(),
            replay_until: Vec::new(),
            resident_bytes: resident_offsets(problem).1,
            copy_ns: None,
            copy_price: CopyPrice::WHOLE,
        };
        let mut anew: Vec<Vec<u32>> = Vec::new();
        for (position, op) in order.iter().enumerate() {
            for &tensor in &problem.ops[op.index()].writes {
                if number[tensor.index()] != NONE {
                    anew[number[tensor.index()] as usize].push(position as u32);
                    continue;
                }
                anew.push(Vec::new());
                let t = &problem.tensors[tensor.index()];
                number[tensor.index()] = indexed.size.len() as u32;
                indexed.tensor_id.push(tensor);
                indexed.size.push(t.padded_bytes());
                indexed.alignment.push(t.alignment);
                indexed.producer.push(position as u32);
                indexed.keep.push(t.home == Home::Output);
            }
        }
        indexed.anew = Lists::new(anew.into_iter());
        let op = |o: &OpId| &problem.ops[o.index()];
        indexed.ins = Lists::new(order.iter().map(|o| {
            let roots = op(o).reads.iter().map(|&t| number[problem.root(t).0.index()]);
            let mut list: Vec<u32> = roots.filter(|&t| t != NONE).collect();
            list.sort_unstable();
            list.dedup();
            list
        }));
        indexed.outs =
            Lists::new(order.iter().map(|o| op(o).writes.iter().map(|t| number[t.index()]).collect()));
        indexed.pairs = Lists::new(order.iter().map(|o| {
            let mut list: Vec<u32> = Vec::new();
            for &(read, written) in &op(o).in_place {
                let (root, inside) = problem.root(read);
                let (r, w) = (number[root.index()], number[written.index()]);
                // A smaller tensor in a larger one's place would hold the whole place; equal sizes share freely.
                let fits = r != NONE && inside == 0 && indexed.size[r as usize] == indexed.size[w as usize];
                let stricter = r != NONE && indexed.alignment[w as usize] > indexed.alignment[r as usize];
                if fits && !stricter && !list.contains(&r) && !list.contains(&w) {
                    list.extend([r, w]);
                }
            }
            list
        }));
        indexed.carried = order
            .iter()
            .map(|o| {
                let (op, out) = (op(o), op(o).carry? == Carry::Out);
                let tensor = if out { op.reads[0] } else { op.writes[0] };
                Some(Carried { tensor: number[tensor.index()], out, ns: op.ns })
            })
            .collect();
        indexed.is_carried = (0..indexed.tensors()).map(|t| !indexed.anew.of(t).is_empty()).collect();
        for carried in indexed.carried.iter().flatten() {
            indexed.is_carried[carried.tensor as usize] = true;
        }
        indexed.scratch = order.iter().map(|o| padded_scratch(problem, *o)).collect();
        indexed.replay_until = replay_limits(problem, order);
        if let Some(link) = problem.link {
            let bytes = |t: &TensorId| link.ns(problem.tensors[t.index()].bytes);
            indexed.copy_ns = Some(indexed.tensor_id.iter().map(bytes).collect());
        }
        indexed
    }

    /// The same step in which none of `ops` writes over what it reads.
    pub fn without_in_place(&self, ops: &[u32]) -> IndexedProblem {
        let pairs = |op: u32| if ops.contains(&op) { Vec::new() } else { self.pairs.of(op).to_vec() };
        IndexedProblem { pairs: Lists::new((0..self.ops).map(pairs)), ..self.clone() }
    }

    /// Gives every op and every copy its time in `problem`.
    pub fn time(&mut self, problem: &Problem) {
        for position in 0..self.ops as usize {
            let op = self.op_id[position];
            let Some(op) = problem.ops.get(op.index()) else { continue };
            self.ns[position] = op.own_ns();
            if let Some(carried) = &mut self.carried[position] {
                carried.ns = op.ns;
            }
        }
        let link = problem.link;
        let copy = |t: &TensorId| link.map_or(0, |link| link.ns(problem.tensors[t.index()].bytes));
        if let Some(copy_ns) = &mut self.copy_ns {
            copy_ns.iter_mut().zip(&self.tensor_id).for_each(|(ns, t)| *ns = copy(t));
        }
    }

    /// Whether no op has its first run at `position`: the stage is there for replays alone.
    pub fn is_replay_stage(&self, position: u32) -> bool {
        self.op_id[position as usize] == OpId(u32::MAX)
    }

    /// Where `t` is made, each time with the last of `uses`, ascending, before it is made anew.
    pub fn spans<'a>(&'a self, t: u32, uses: &'a [u32]) -> impl Iterator<Item = (u32, u32)> + 'a {
        let later = self.anew.of(t);
        let made = std::iter::once(self.producer[t as usize]).chain(later.iter().copied());
        made.enumerate().map(move |(k, made)| {
            let end = later.get(k).copied().unwrap_or(u32::MAX);
            let last = uses[..uses.partition_point(|&used| used < end)].last();
            (made, last.map_or(made, |&last| last.max(made)))
        })
    }

    /// The first op behind `position` that makes `t` anew.
    pub fn anew_after(&self, t: u32, position: u32) -> Option<u32> {
        self.anew.of(t).iter().copied().find(|&made| made > position)
    }

    /// For each transient the ops that read it; the number of ops too for what is kept.
    pub fn uses(&self) -> Vec<Vec<u32>> {
        let mut uses = vec![Vec::new(); self.size.len()];
        for op in 0..self.ops {
            self.ins.of(op).iter().for_each(|&t| uses[t as usize].push(op));
        }
        for (uses, _) in uses.iter_mut().zip(&self.keep).filter(|(_, keep)| **keep) {
            uses.push(self.ops);
        }
        uses
    }

    /// Whether any op is a copy.
    pub fn carries(&self) -> bool {
        self.carried.iter().any(Option::is_some)
    }

    /// Number of transients.
    pub fn tensors(&self) -> u32 {
        self.size.len() as u32
    }

    /// Time of all ops, each run once.
    pub fn base_ns(&self) -> u64 {
        self.ns.iter().sum()
    }
}

/// Scratch of an op, rounded up.
fn padded_scratch(problem: &Problem, op: OpId) -> u64 {
    problem.ops[op.index()].scratch.next_multiple_of(problem.scratch_alignment)
}

/// Where residents lie (the strictest alignment first, so that nothing is lost), and where they end.
pub(crate) fn resident_offsets(problem: &Problem) -> (Vec<(TensorId, u64)>, u64) {
    let own = |(i, t): (usize, &crate::problem::Tensor)| {
        (t.home == Home::Resident && t.view.is_none()).then_some(TensorId(i as u32))
    };
    let mut ids: Vec<TensorId> = problem.tensors.iter().enumerate().filter_map(own).collect();
    ids.sort_by_key(|t| std::cmp::Reverse(problem.tensors[t.index()].alignment));
    let mut end = 0u64;
    let mut places = Vec::with_capacity(ids.len());
    for id in ids {
        let t = &problem.tensors[id.index()];
        places.push((id, end));
        end += t.padded_bytes();
    }
    places.sort_unstable();
    // Transients begin at a place that suits them all, so that offsets can be searched from zero.
    let widest =
        problem.tensors.iter().map(|t| t.alignment).max().unwrap_or(1).max(problem.scratch_alignment);
    let transients = problem.ops.iter().any(|op| !op.writes.is_empty());
    (places, if transients { end.next_multiple_of(widest) } else { end })
}

/// The last position before which each op may be replayed: state it reads must still be as it was promised.
fn replay_limits(problem: &Problem, order: &[OpId]) -> Vec<u32> {
    let mut next_update = vec![order.len() as u32; problem.tensors.len()];
    let mut limit = vec![0; order.len()];
    for (position, id) in order.iter().enumerate().rev() {
        let op = &problem.ops[id.index()];
        for t in &op.updates {
            next_update[t.index()] = position as u32;
        }
        let state = op.reads.iter().map(|&t| next_update[problem.root(t).0.index()]).min();
        let useful = op.replayable && !op.writes.is_empty();
        limit[position] = if useful { state.unwrap_or(order.len() as u32) } else { position as u32 };
    }
    limit
}
