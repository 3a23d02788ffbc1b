//! Holds a schedule with replays, and its memory at every stage, under single changes.
//!
//! Stage `j` is the stretch of the step that ends with op `j`'s first run; before it, the stage replays some earlier ops and loads some
//! offloaded tensors. A set of pairs (stage, what is made again there) is a whole schedule: every use is served by the latest making
//! before it, and an instance is held from its making to the last such use. So any set is valid, and only its memory and its time are
//! to be judged.

use super::stage_memory::StageMemory;
use super::uses::Uses;
use crate::indexed_problem::IndexedProblem;
use crate::lifespan::Action;
use crate::steps::count;
use smallvec::SmallVec;

/// What a stage makes again: an op below `indexed.ops`, or a load of transient `x - indexed.ops`.
pub(crate) type Remake = u32;

/// What one stage makes again: mostly little, which then lies in the list itself.
pub(crate) type Remakes = SmallVec<[Remake; 6]>;

/// A schedule with replays.
#[derive(Clone)]
pub(crate) struct State<'a> {
    pub indexed: &'a IndexedProblem,
    pub uses: Uses,
    /// What each stage makes again, ascending (so ops in program order, loads at the end of the list).
    remakes: Vec<Remakes>,
    /// How many loads each transient has.
    loads: Vec<u32>,
    /// Bytes of all transients that have loads.
    pub host_bytes: u64,
    /// Time that all copies take the link, both ways together.
    copied_ns: u64,
    memory: StageMemory,
    /// Time added by replays and copies.
    pub extra_ns: u64,
    /// Changes since the last [`State::keep_changes`], for undoing.
    journal: Vec<(u32, Remake, bool)>,
    /// By change of the journal: what [`StageMemory::known`] said before it.
    known: Vec<Option<usize>>,
    /// How many pairs (stage, what is made again there) there are.
    pub pairs: usize,
    /// Work done so far, in changes and stages walked.
    pub work: u64,
}

/// A schedule that was put aside: what each stage makes again.
#[derive(Clone)]
pub(crate) struct SavedReplays(Vec<Remakes>);

impl SavedReplays {
    /// The schedule that makes `remakes[stage]` again in each stage; lists are ascending.
    pub fn new(remakes: Vec<Remakes>) -> SavedReplays {
        SavedReplays(remakes)
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

    /// The time that the schedule adds to a step, on arrays like those it was made for.
    pub fn extra_ns(&self, indexed: &IndexedProblem) -> u64 {
        let mut copied = vec![false; indexed.tensors() as usize];
        let (mut replayed_ns, mut copied_ns) = (0, 0);
        for &what in self.0.iter().flatten() {
            let Some(t) = what.checked_sub(indexed.ops) else {
                replayed_ns += indexed.ns[what as usize];
                continue;
            };
            let once = indexed.copy_ns.as_ref().map_or(u64::MAX / 8, |ns| ns[t as usize]);
            copied_ns += if std::mem::replace(&mut copied[t as usize], true) { once } else { 2 * once };
        }
        replayed_ns + indexed.copy_price.of(copied_ns)
    }
}

impl<'a> State<'a> {
    /// The schedule without replays.
    pub fn new(indexed: &'a IndexedProblem) -> State<'a> {
        let uses = Uses::new(indexed);
        let memory = StageMemory::new(indexed, &uses);
        let mut state = State {
            indexed,
            uses,
            remakes: vec![Remakes::new(); indexed.ops as usize],
            loads: vec![0; indexed.tensors() as usize],
            host_bytes: 0,
            copied_ns: 0,
            memory,
            extra_ns: 0,
            journal: Vec::new(),
            known: Vec::new(),
            pairs: 0,
            work: 0,
        };
        for stage in 0..indexed.ops {
            state.work += state.memory.walk(indexed, &state.uses, stage, &[]);
        }
        state.memory.keep();
        state
    }

    /// The schedule without its tie to the step's arrays.
    pub fn save(self) -> SavedReplays {
        SavedReplays(self.remakes)
    }

    /// What a stage makes again.
    pub fn remakes(&self, stage: u32) -> &[Remake] {
        &self.remakes[stage as usize]
    }

    /// All pairs of a stage and what it makes again.
    pub fn all_remakes(&self) -> impl Iterator<Item = (u32, Remake)> {
        (0..self.indexed.ops).flat_map(|stage| self.remakes(stage).iter().map(move |&what| (stage, what)))
    }

    /// The time that one more making of `what` costs.
    pub fn ns(&self, what: Remake) -> u64 {
        match what.checked_sub(self.indexed.ops) {
            None => self.indexed.ns[what as usize],
            Some(t) => {
                let price = self.indexed.copy_price;
                price.of(self.copied_ns + self.copy_ns(t)) - price.of(self.copied_ns)
            }
        }
    }

    /// The time that one more load of `t` takes the link; the first one takes a copy to the host too.
    fn copy_ns(&self, t: u32) -> u64 {
        let once = self.indexed.copy_ns.as_ref().map_or(u64::MAX / 8, |ns| ns[t as usize]);
        if self.loads[t as usize] == 0 { 2 * once } else { once }
    }

    /// Whether `t` is on the host already.
    pub fn is_offloaded(&self, t: u32) -> bool {
        self.loads[t as usize] > 0
    }

    /// Whether `stage` makes `what` again.
    pub fn has(&self, stage: u32, what: Remake) -> bool {
        self.remakes[stage as usize].binary_search(&what).is_ok()
    }

    /// Whether `what` can be made again in `stage`.
    pub fn can_insert(&self, stage: u32, what: Remake) -> bool {
        let indexed = self.indexed;
        if stage >= indexed.ops || self.has(stage, what) {
            return false;
        }
        let free = |t: u32| !self.uses.is_made_in(t, stage);
        // What a stage's own op makes anew is not there for what the stage makes again before it.
        let comes_late = |op: u32| indexed.outs.of(stage).iter().any(|t| indexed.ins.of(op).contains(t));
        match what.checked_sub(indexed.ops) {
            None => {
                stage > what
                    && stage <= indexed.replay_until[what as usize]
                    && indexed.outs.of(what).iter().all(|&t| free(t))
                    && !comes_late(what)
            }
            Some(t) => {
                let copies = indexed.copy_ns.is_some() && !indexed.is_carried[t as usize];
                copies && stage > indexed.producer[t as usize] && free(t)
            }
        }
    }

    /// The most that is held at once; nothing in a step without ops.
    pub fn peak(&mut self) -> i64 {
        self.settle();
        self.memory.top()
    }

    /// The most that is held at once in stages `from..=to`.
    pub fn peak_in(&mut self, from: u32, to: u32) -> i64 {
        self.settle();
        self.memory.most_in(from, to)
    }

    /// Like [`State::peak_in`], for a state whose memory is up to date.
    pub fn settled_peak_in(&self, from: u32, to: u32) -> i64 {
        self.memory.most_in(from, to)
    }

    /// The first stage that holds most.
    pub fn worst_stage(&mut self) -> u32 {
        self.settle();
        self.memory.worst()
    }

    /// Whether the schedule might fit `budget` without `what` in `stage`. A no is certain, and quickly found.
    pub fn might_remove(&mut self, stage: u32, what: Remake, budget: i64) -> bool {
        self.settle();
        let indexed = self.indexed;
        let load = load_of(indexed, what);
        let (ins, outs) = operands(indexed, what, &load);
        // Its inputs may go too, which frees at most their bytes.
        let freed: i64 = ins.iter().map(|&t| indexed.size[t as usize] as i64).sum();
        self.work += outs.len() as u64;
        count(outs.len() as u64);
        outs.iter().all(|&t| {
            let next = self.uses.from(t, stage).unwrap_or(u32::MAX);
            if self.uses.made_after(t, stage).is_some_and(|made| made <= next) || next == u32::MAX {
                return true;
            }
            let before = self.uses.made_before(t, stage - 1);
            let last = self.uses.last_use_before(t, before, stage);
            let room = budget - indexed.size[t as usize] as i64 + freed;
            self.memory.most_in(last.max(before + 1), stage.saturating_sub(1)) <= room
        })
    }

    /// Brings the memory of all stages that changes have touched up to date.
    fn settle(&mut self) {
        let remakes = |stage: u32| self.remakes.get(stage as usize).map_or(&[][..], |list| list);
        self.work += self.memory.settle(self.indexed, &self.uses, remakes);
    }

    /// Makes `what` again in `stage`.
    pub fn insert(&mut self, stage: u32, what: Remake) {
        self.note(stage, what, true);
        self.change(stage, what, true);
    }

    /// Lets `stage` make `what` no more.
    pub fn remove(&mut self, stage: u32, what: Remake) {
        self.note(stage, what, false);
        self.change(stage, what, false);
    }

    fn note(&mut self, stage: u32, what: Remake, inserted: bool) {
        self.known.push(self.memory.known());
        self.journal.push((stage, what, inserted));
    }

    /// A point to which [`State::undo_to`] can return.
    pub fn journal_mark(&self) -> usize {
        self.journal.len()
    }

    /// Undoes every change since `mark`.
    pub fn undo_to(&mut self, mark: usize) {
        let Some(known) = self.known.get(mark).copied() else { return };
        self.known.truncate(mark);
        while self.journal.len() > mark {
            let Some((stage, what, inserted)) = self.journal.pop() else { return };
            self.change(stage, what, !inserted);
        }
        if let Some(known) = known {
            self.memory.put_back(known);
        }
    }

    /// The changes since the last that were kept: stage, what, whether it was inserted.
    pub fn changes(&self) -> &[(u32, Remake, bool)] {
        &self.journal
    }

    /// Forgets how to undo.
    pub fn keep_changes(&mut self) {
        self.journal.clear();
        self.known.clear();
        self.memory.keep();
    }

    fn change(&mut self, stage: u32, what: Remake, insert: bool) {
        self.work += 1;
        count(1);
        let indexed = self.indexed;
        let load = load_of(indexed, what);
        let (ins, outs) = operands(indexed, what, &load);
        if !insert {
            self.count(stage, what, false);
        }
        self.memory.touch(stage);
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
        let list = &mut self.remakes[stage as usize];
        let at = list.partition_point(|&w| w < what);
        let load = what.checked_sub(self.indexed.ops).map(|t| t as usize);
        if insert {
            list.insert(at, what);
            self.pairs += 1;
            self.extra_ns += self.ns(what);
            if let Some(t) = load {
                self.copied_ns += self.copy_ns(t as u32);
                self.host_bytes += if self.loads[t] == 0 { self.indexed.size[t] } else { 0 };
                self.loads[t] += 1;
            }
        } else {
            list.remove(at);
            self.pairs -= 1;
            if let Some(t) = load {
                self.loads[t] -= 1;
                self.host_bytes -= if self.loads[t] == 0 { self.indexed.size[t] } else { 0 };
                self.copied_ns -= self.copy_ns(t as u32);
            }
            self.extra_ns -= self.ns(what);
        }
    }

    /// One making of `t` more or less in `stage`: the instance before it ends earlier or goes on.
    fn change_making(&mut self, t: u32, stage: u32, insert: bool) {
        let (before, after) = self.uses.change_making(t, stage, insert);
        let shorter = self.uses.last_use_before(t, before, stage);
        let longer = self.uses.last_use_before(t, before, after);
        if longer >= stage {
            let bytes = self.indexed.size[t as usize] as i64;
            let from = shorter.max(before + 1);
            let to = stage.min(longer - 1);
            self.memory.add(from, to, if insert { -bytes } else { bytes });
            self.memory.touch(shorter);
            self.memory.touch(before);
        }
    }

    /// One use of `t` more or less in `stage`: the instance that serves it may end later or earlier.
    fn change_use(&mut self, t: u32, stage: u32, insert: bool) {
        let before = self.uses.made_before(t, stage);
        let after = self.uses.made_after(t, stage).unwrap_or(u32::MAX);
        if !insert {
            self.uses.remove(t, stage);
        }
        let last = self.uses.last_use_before(t, before, after);
        if insert {
            self.uses.add(t, stage);
        }
        if stage > last {
            let bytes = self.indexed.size[t as usize] as i64;
            self.memory.add(last.max(before + 1), stage - 1, if insert { bytes } else { -bytes });
            self.memory.touch(last);
            self.memory.touch(before);
        }
    }

    /// The schedule as a plain sequence.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::with_capacity(self.indexed.ops as usize + self.pairs);
        for stage in 0..self.indexed.ops {
            let remakes = &self.remakes[stage as usize];
            let (replays, loads) = remakes.split_at(remakes.partition_point(|&w| w < self.indexed.ops));
            for t in loads.iter().map(|&w| w - self.indexed.ops) {
                actions.extend([Action::Load(t), Action::Loaded(t)]);
            }
            actions.extend(replays.iter().map(|&w| Action::Run(w)));
            if self.indexed.is_replay_stage(stage) {
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

/// The transient that `what` loads, if it is a load.
fn load_of(indexed: &IndexedProblem, what: Remake) -> Option<u32> {
    what.checked_sub(indexed.ops)
}

/// What making `what` again reads and makes; `load` is what [`load_of`] says of it.
fn operands<'a>(indexed: &'a IndexedProblem, what: Remake, load: &'a Option<u32>) -> (&'a [u32], &'a [u32]) {
    match load {
        None => (indexed.ins.of(what), indexed.outs.of(what)),
        Some(_) => (&[], load.as_slice()),
    }
}
