//! Holds a schedule with replays, and its memory at every stage, under single changes.
//!
//! Stage `j` is the stretch of the step that ends with op `j`'s first run; before it, the stage replays some
//! earlier ops and loads some offloaded tensors. A set of pairs (stage, what is made again there) is a whole
//! schedule: every use is served by the latest making before it, and an instance is held from its making to the
//! last such use. So any set is valid, and only its memory and its time are to be judged.
//!
//! Memory is kept in two parts: what is held across a whole stage (changed by ranges, in a tree), and the peak of
//! what is made or dropped inside the stage (found again by walking it whenever one of its operands changes).

use super::tree::MaxTree;
use crate::indexed_problem::IndexedProblem;
use crate::lifespan::Action;
use crate::steps::count;

/// What a stage makes again: an op below `indexed.ops`, or a load of transient `x - indexed.ops`.
pub(crate) type Remake = u32;

/// A schedule with replays.
#[derive(Clone)]
pub(crate) struct State<'a> {
    pub indexed: &'a IndexedProblem,
    /// What each stage makes again, ascending (so ops in program order, loads at the end of the list).
    again: Vec<Vec<Remake>>,
    /// The stages in which each transient is made, ascending.
    made: Vec<Vec<u32>>,
    /// The stages in which each transient is used, ascending, once for each use.
    used: Vec<Vec<u32>>,
    /// How many loads each transient has.
    loads: Vec<u32>,
    /// Bytes of all transients that have loads.
    pub host_bytes: u64,
    /// Peak of what is made or dropped inside each stage.
    local: Vec<i64>,
    memory: MaxTree,
    /// Time added by replays and copies.
    pub extra_ns: u64,
    /// Changes since the last [`State::keep_changes`], for undoing.
    journal: Vec<(u32, Remake, bool)>,
    pub pairs: usize,
    // Scratch space of `walk`.
    stamp: u32,
    mark: Vec<u32>,
    last_at: Vec<u32>,
    stays: Vec<bool>,
    /// Stages whose inner peak must be found again before memory is looked at.
    dirty: Vec<u32>,
    is_dirty: Vec<bool>,
    /// Work done so far, in changes and stages walked.
    pub work: u64,
}

/// A schedule at rest: what each stage makes again.
#[derive(Clone)]
pub(crate) struct SavedReplays(Vec<Vec<Remake>>);

impl SavedReplays {
    /// The schedule that makes `again[stage]` again in each stage; lists are ascending.
    pub fn new(again: Vec<Vec<Remake>>) -> SavedReplays {
        SavedReplays(again)
    }

    /// The schedule with its memory, on the arrays it was made for.
    pub fn restore<'a>(&self, indexed: &'a IndexedProblem) -> State<'a> {
        let mut state = State::new(indexed);
        for (stage, list) in self.0.iter().enumerate() {
            list.iter().for_each(|&what| state.insert(stage as u32, what));
        }
        state.keep_changes();
        state
    }
}

impl<'a> State<'a> {
    /// The schedule without replays.
    pub fn new(indexed: &'a IndexedProblem) -> State<'a> {
        let (ops, tensors) = (indexed.ops as usize, indexed.tensors() as usize);
        let mut used: Vec<Vec<u32>> = vec![Vec::new(); tensors];
        for op in 0..indexed.ops {
            indexed.ins.of(op).iter().for_each(|&t| used[t as usize].push(op));
        }
        for (t, used) in used.iter_mut().enumerate().filter(|(t, _)| indexed.keep[*t]) {
            debug_assert!(indexed.keep[t]);
            used.push(indexed.ops);
        }
        let mut across = vec![0i64; ops + 2];
        for t in 0..tensors {
            let (made, last) = (indexed.producer[t], *used[t].last().unwrap_or(&indexed.producer[t]));
            if last > made + 1 {
                across[made as usize + 1] += indexed.size[t] as i64;
                across[last as usize] -= indexed.size[t] as i64;
            }
        }
        let mut held = indexed.resident_bytes as i64;
        let memory: Vec<i64> = (0..ops)
            .map(|s| {
                held += across[s];
                held
            })
            .collect();
        let mut state = State {
            indexed,
            again: vec![Vec::new(); ops],
            made: indexed.producer.iter().map(|&p| vec![p]).collect(),
            used,
            loads: vec![0; tensors],
            host_bytes: 0,
            local: vec![0; ops],
            memory: MaxTree::new(&memory),
            extra_ns: 0,
            journal: Vec::new(),
            pairs: 0,
            stamp: 0,
            mark: vec![0; tensors],
            last_at: vec![0; tensors],
            stays: vec![false; tensors],
            dirty: Vec::new(),
            is_dirty: vec![false; ops + 1],
            work: 0,
        };
        for stage in 0..indexed.ops {
            state.walk(stage);
        }
        state
    }

    /// What a stage makes again.
    pub fn again(&self, stage: u32) -> &[Remake] {
        &self.again[stage as usize]
    }

    /// The time that one more making of `what` costs.
    pub fn ns(&self, what: Remake) -> u64 {
        match what.checked_sub(self.indexed.ops) {
            None => self.indexed.ns[what as usize],
            Some(t) => {
                let once = self.indexed.copy_ns.as_ref().map_or(u64::MAX / 8, |ns| ns[t as usize]);
                let once = once.div_ceil(self.indexed.copy_overlap_divisor);
                if self.loads[t as usize] == 0 { 2 * once } else { once }
            }
        }
    }

    /// Whether `t` is on the host already.
    pub fn is_offloaded(&self, t: u32) -> bool {
        self.loads[t as usize] > 0
    }

    /// Whether `stage` makes `what` again.
    pub fn has(&self, stage: u32, what: Remake) -> bool {
        self.again[stage as usize].binary_search(&what).is_ok()
    }

    /// The stage of the latest making of `t` at or before `stage`.
    pub fn made_before(&self, t: u32, stage: u32) -> u32 {
        let made = &self.made[t as usize];
        made[made.partition_point(|&m| m <= stage) - 1]
    }

    /// The stage of the first making of `t` after `stage`.
    pub fn made_after(&self, t: u32, stage: u32) -> Option<u32> {
        let made = &self.made[t as usize];
        made.get(made.partition_point(|&m| m <= stage)).copied()
    }

    /// The stages in which `t` is used.
    pub fn used(&self, t: u32) -> &[u32] {
        &self.used[t as usize]
    }

    /// The first use of the instance of `t` that is held after `stage`, if one is.
    pub fn next_use(&self, t: u32, stage: u32) -> Option<u32> {
        let used = &self.used[t as usize];
        let next = *used.get(used.partition_point(|&u| u <= stage))?;
        match self.made_after(t, stage) {
            Some(made) if made <= next => None,
            _ => Some(next),
        }
    }

    /// The last use before `stage` of an instance made at `made`, or `made` itself.
    pub fn last_use_before(&self, t: u32, made: u32, stage: u32) -> u32 {
        let used = &self.used[t as usize];
        match used.partition_point(|&u| u < stage) {
            0 => made,
            k => used[k - 1].max(made),
        }
    }

    /// Whether `t` is in memory at some time in `stage` without a change.
    pub fn is_held(&self, t: u32, stage: u32) -> bool {
        if self.made[t as usize].binary_search(&stage).is_ok() {
            return true;
        }
        let used = &self.used[t as usize];
        let Some(&next) = used.get(used.partition_point(|&u| u < stage)) else { return false };
        self.made_after(t, stage).is_none_or(|made| next < made)
    }

    /// Whether `what` may be made again in `stage`.
    pub fn may(&self, stage: u32, what: Remake) -> bool {
        let indexed = self.indexed;
        if stage >= indexed.ops || self.has(stage, what) {
            return false;
        }
        match what.checked_sub(indexed.ops) {
            None => {
                let free = |t: &u32| self.made[*t as usize].binary_search(&stage).is_err();
                stage > what
                    && stage <= indexed.replay_until[what as usize]
                    && indexed.outs.of(what).iter().all(free)
            }
            Some(t) => {
                let free = self.made[t as usize].binary_search(&stage).is_err();
                let may = indexed.copy_ns.is_some() && !indexed.is_carried[t as usize];
                may && stage > indexed.producer[t as usize] && free
            }
        }
    }

    /// The most that is held at once; nothing in a step without ops.
    pub fn peak(&mut self) -> i64 {
        self.settle();
        self.memory.top().max(0)
    }

    /// The most that is held at once in stages `from..=to`.
    pub fn peak_in(&mut self, from: u32, to: u32) -> i64 {
        self.settle();
        self.memory.max(from, to)
    }

    /// Like [`State::peak_in`], for a state that has been settled.
    pub fn settled_peak_in(&self, from: u32, to: u32) -> i64 {
        debug_assert!(self.dirty.is_empty());
        self.memory.max(from, to)
    }

    /// The first stage that holds most.
    pub fn worst_stage(&mut self) -> u32 {
        self.settle();
        self.memory.worst()
    }

    /// A quick no to whether doing without `what` in `stage` could fit `budget`.
    pub fn may_go(&mut self, stage: u32, what: Remake, budget: i64) -> bool {
        self.settle();
        let indexed = self.indexed;
        let load;
        let (ins, outs): (&[u32], &[u32]) = match what.checked_sub(indexed.ops) {
            None => (indexed.ins.of(what), indexed.outs.of(what)),
            Some(t) => {
                load = [t];
                (&[], &load)
            }
        };
        // Its inputs may go too, which frees at most their bytes.
        let freed: i64 = ins.iter().map(|&t| indexed.size[t as usize] as i64).sum();
        self.work += outs.len() as u64;
        count(outs.len() as u64);
        outs.iter().all(|&t| {
            let used = &self.used[t as usize];
            let next = used.get(used.partition_point(|&u| u < stage)).copied().unwrap_or(u32::MAX);
            if self.made_after(t, stage).is_some_and(|made| made <= next) || next == u32::MAX {
                return true;
            }
            let before = self.made_before(t, stage - 1);
            let last = self.last_use_before(t, before, stage);
            let room = budget - indexed.size[t as usize] as i64 + freed;
            self.memory.max(last.max(before + 1), stage.saturating_sub(1)) <= room
        })
    }

    /// Finds the inner peaks of all stages that changes have touched.
    pub fn settle(&mut self) {
        while let Some(stage) = self.dirty.pop() {
            self.is_dirty[stage as usize] = false;
            self.walk(stage);
        }
    }

    fn touch(&mut self, stage: u32) {
        if !std::mem::replace(&mut self.is_dirty[stage as usize], true) {
            self.dirty.push(stage);
        }
    }

    /// Makes `what` again in `stage`.
    pub fn insert(&mut self, stage: u32, what: Remake) {
        self.journal.push((stage, what, true));
        self.change(stage, what, true);
    }

    /// Lets `stage` make `what` no more.
    pub fn remove(&mut self, stage: u32, what: Remake) {
        self.journal.push((stage, what, false));
        self.change(stage, what, false);
    }

    /// A point to which [`State::undo_to`] can return.
    pub fn journal_mark(&self) -> usize {
        self.journal.len()
    }

    /// Undoes every change since `mark`.
    pub fn undo_to(&mut self, mark: usize) {
        while self.journal.len() > mark {
            let Some((stage, what, inserted)) = self.journal.pop() else { return };
            self.change(stage, what, !inserted);
        }
    }

    /// The changes since `mark`: stage, what, whether it was inserted.
    pub fn changes(&self, mark: usize) -> &[(u32, Remake, bool)] {
        &self.journal[mark..]
    }

    /// Forgets how to undo.
    pub fn keep_changes(&mut self) {
        self.journal.clear();
    }

    fn change(&mut self, stage: u32, what: Remake, insert: bool) {
        self.work += 1;
        count(1);
        let indexed = self.indexed;
        let load;
        let (ins, outs): (&[u32], &[u32]) = match what.checked_sub(indexed.ops) {
            None => (indexed.ins.of(what), indexed.outs.of(what)),
            Some(t) => {
                load = [t];
                (&[], &load)
            }
        };
        if !insert {
            self.count(stage, what, false);
        }
        self.touch(stage);
        for &t in outs {
            self.change_making(t, stage, insert);
        }
        for &t in ins {
            self.change_use(t, stage, insert);
        }
        if insert {
            self.count(stage, what, true);
        }
    }

    /// Keeps the lists and sums of what is made again.
    fn count(&mut self, stage: u32, what: Remake, insert: bool) {
        let list = &mut self.again[stage as usize];
        let at = list.partition_point(|&w| w < what);
        let load = what.checked_sub(self.indexed.ops).map(|t| t as usize);
        if insert {
            list.insert(at, what);
            self.pairs += 1;
            self.extra_ns += self.ns(what);
            if let Some(t) = load {
                self.host_bytes += if self.loads[t] == 0 { self.indexed.size[t] } else { 0 };
                self.loads[t] += 1;
            }
        } else {
            list.remove(at);
            self.pairs -= 1;
            if let Some(t) = load {
                self.loads[t] -= 1;
                self.host_bytes -= if self.loads[t] == 0 { self.indexed.size[t] } else { 0 };
            }
            self.extra_ns -= self.ns(what);
        }
    }

    /// One making of `t` more or less in `stage`: the instance before it ends earlier or goes on.
    fn change_making(&mut self, t: u32, stage: u32, insert: bool) {
        let made = &mut self.made[t as usize];
        let at = made.partition_point(|&m| m < stage);
        let before = made[at - 1];
        if insert {
            made.insert(at, stage);
        } else {
            made.remove(at);
        }
        let after = made.get(at + usize::from(insert)).copied().unwrap_or(u32::MAX);
        let shorter = self.last_use_before(t, before, stage);
        let longer = self.last_use_before(t, before, after);
        if longer >= stage {
            let bytes = self.indexed.size[t as usize] as i64;
            let from = shorter.max(before + 1);
            let to = stage.min(longer - 1);
            self.memory.add(from, to, if insert { -bytes } else { bytes });
            self.touch(shorter);
            self.touch(before);
        }
    }

    /// One use of `t` more or less in `stage`: the instance that serves it may end later or earlier.
    fn change_use(&mut self, t: u32, stage: u32, insert: bool) {
        let before = self.made_before(t, stage);
        let after = self.made_after(t, stage).unwrap_or(u32::MAX);
        if !insert {
            let used = &mut self.used[t as usize];
            let at = used.partition_point(|&u| u < stage);
            used.remove(at);
        }
        let last = self.last_use_before(t, before, after);
        if insert {
            let used = &mut self.used[t as usize];
            let at = used.partition_point(|&u| u < stage);
            used.insert(at, stage);
        }
        if stage > last {
            let bytes = self.indexed.size[t as usize] as i64;
            self.memory.add(last.max(before + 1), stage - 1, if insert { bytes } else { -bytes });
            self.touch(last);
            self.touch(before);
        }
    }

    /// Finds a stage's inner peak again.
    fn walk(&mut self, stage: u32) {
        if stage >= self.indexed.ops {
            return;
        }
        let indexed = self.indexed;
        let again = std::mem::take(&mut self.again[stage as usize]);
        let loads_from = again.partition_point(|&w| w < indexed.ops);
        let runs = || again[..loads_from].iter().copied().chain([stage]);
        self.stamp += 1;
        let mut held = 0i64;
        self.work += 1;
        count(1 + runs().map(|op| indexed.ins.of(op).len() as u64).sum::<u64>());
        for (position, op) in runs().enumerate() {
            self.work += indexed.ins.of(op).len() as u64;
            for &t in indexed.ins.of(op) {
                if self.mark[t as usize] != self.stamp {
                    self.mark[t as usize] = self.stamp;
                    let stays = self.next_use(t, stage).is_some();
                    self.stays[t as usize] = stays;
                    // What comes in and ends here is not in the tree's sum for this stage.
                    if !stays && self.made[t as usize].binary_search(&stage).is_err() {
                        held += indexed.size[t as usize] as i64;
                    }
                }
                self.last_at[t as usize] = position as u32;
            }
        }
        let mut peak = held;
        for &what in &again[loads_from..] {
            let t = what - indexed.ops;
            held += indexed.size[t as usize] as i64;
            peak = peak.max(held);
            if self.mark[t as usize] != self.stamp && self.next_use(t, stage).is_none() {
                held -= indexed.size[t as usize] as i64;
            }
        }
        for (position, op) in runs().enumerate() {
            let dies = |t: u32| self.last_at[t as usize] == position as u32 && !self.stays[t as usize];
            let mut during = held + indexed.scratch[op as usize] as i64;
            for &t in indexed.outs.of(op) {
                let bytes = indexed.size[t as usize] as i64;
                during += bytes;
                if self.mark[t as usize] == self.stamp || self.next_use(t, stage).is_some() {
                    held += bytes;
                }
            }
            for pair in indexed.pairs.of(op).chunks_exact(2) {
                if dies(pair[0]) {
                    during -= indexed.size[pair[1] as usize] as i64;
                }
            }
            peak = peak.max(during);
            for &t in indexed.ins.of(op) {
                if dies(t) {
                    held -= indexed.size[t as usize] as i64;
                }
            }
        }
        self.again[stage as usize] = again;
        let old = std::mem::replace(&mut self.local[stage as usize], peak);
        self.memory.add(stage, stage, peak - old);
    }

    /// The schedule without its tie to the step's arrays.
    pub fn save(self) -> SavedReplays {
        SavedReplays(self.again)
    }

    /// The schedule as a plain sequence.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::with_capacity(self.indexed.ops as usize + self.pairs);
        for stage in 0..self.indexed.ops {
            let again = &self.again[stage as usize];
            let loads_from = again.partition_point(|&w| w < self.indexed.ops);
            for t in again[loads_from..].iter().map(|&w| w - self.indexed.ops) {
                actions.extend([Action::Load(t), Action::Loaded(t)]);
            }
            actions.extend(again[..loads_from].iter().map(|&w| Action::Run(w)));
            if self.indexed.is_rest(stage) {
                continue;
            }
            actions.push(Action::Run(stage));
            let stored = |t: &&u32| self.loads[**t as usize] > 0;
            for &t in self.indexed.outs.of(stage).iter().filter(stored) {
                actions.extend([Action::Store(t), Action::Stored(t)]);
            }
        }
        actions
    }
}
