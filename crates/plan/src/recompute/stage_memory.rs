//! Keeps the most bytes that each stage of a schedule holds at once.
//!
//! They have two parts: what is held across a whole stage, which changes by ranges and is kept in a tree, and the peak of what is made
//! or dropped inside the stage, which is found again by walking the stage whenever one of its operands has changed. A stage whose changes
//! were undone is not walked: what was known of it before them is put back.

use super::state::Remake;
use super::tree::MaxTree;
use super::uses::Uses;
use crate::indexed_problem::IndexedProblem;
use crate::steps::count;

/// The memory of every stage.
#[derive(Clone)]
pub(crate) struct StageMemory {
    tree: MaxTree,
    /// Peak of what is made or dropped inside each stage.
    inside: Vec<i64>,
    /// Stages that have changed since memory was last looked at, and how.
    dirty: Vec<u32>,
    change: Vec<Change>,
    /// How many of them have to be walked again.
    to_walk: usize,
    /// The peaks that walks have found anew, with what was known before them, since changes were last kept.
    log: Vec<(u32, i64)>,
    /// The number of the last walk.
    walk: u32,
    /// What that knows of each transient.
    notes: Vec<Note>,
}

/// How a stage has changed since memory was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    None,
    /// It is another one, and has to be walked.
    Other,
    /// It has changed and is as it was: its peak is known. It counts as work like one that is walked, so that what a search finds does
    /// not depend on what it remembers.
    Back,
}

/// What a walk knows of a transient: they lie together because they are looked at together.
#[derive(Clone, Copy, Default)]
struct Note {
    /// The last walk that read it.
    seen: u32,
    /// Where that read it last.
    last_at: u32,
    /// Whether it is held after that.
    stays: bool,
}

impl StageMemory {
    /// That of the schedule without replays, whose stages have still to be walked.
    pub fn new(indexed: &IndexedProblem, uses: &Uses) -> StageMemory {
        let (ops, tensors) = (indexed.ops as usize, indexed.tensors() as usize);
        let mut across = vec![0i64; ops + 2];
        for t in 0..indexed.tensors() {
            for (made, last) in indexed.spans(t, uses.of(t)).filter(|(made, last)| *last > made + 1) {
                across[made as usize + 1] += indexed.size[t as usize] as i64;
                across[last as usize] -= indexed.size[t as usize] as i64;
            }
        }
        let held = across[..ops].iter().scan(indexed.resident_bytes as i64, |held, across| {
            *held += across;
            Some(*held)
        });
        StageMemory {
            tree: MaxTree::new(&held.collect::<Vec<i64>>()),
            inside: vec![0; ops],
            dirty: Vec::new(),
            change: vec![Change::None; ops + 1],
            to_walk: 0,
            log: Vec::new(),
            walk: 0,
            notes: vec![Note::default(); tensors],
        }
    }

    /// The most of all stages.
    pub fn top(&self) -> i64 {
        self.tree.top().max(0)
    }

    /// The most of stages `from..=to`.
    pub fn most_in(&self, from: u32, to: u32) -> i64 {
        debug_assert!(self.dirty.is_empty());
        self.tree.max(from, to)
    }

    /// The first stage that holds most.
    pub fn worst(&self) -> u32 {
        self.tree.worst()
    }

    /// Holds `bytes` more across stages `from..=to`.
    pub fn add(&mut self, from: u32, to: u32, bytes: i64) {
        self.tree.add(from, to, bytes);
    }

    /// Notes that something inside `stage` has changed.
    pub fn touch(&mut self, stage: u32) {
        match std::mem::replace(&mut self.change[stage as usize], Change::Other) {
            Change::Other => {}
            Change::Back => self.to_walk += 1,
            Change::None => {
                self.to_walk += 1;
                self.dirty.push(stage);
            }
        }
    }

    /// Where the log stands, if the peaks of all stages are known as they are now.
    pub fn known(&self) -> Option<usize> {
        (self.to_walk == 0).then_some(self.log.len())
    }

    /// Puts the peaks back that were known when the log stood at `known`; all other changes since then have been undone.
    pub fn put_back(&mut self, known: usize) {
        while self.log.len() > known
            && let Some((stage, peak)) = self.log.pop()
        {
            self.set_peak(stage, peak);
        }
        self.dirty.iter().for_each(|&stage| self.change[stage as usize] = Change::Back);
        self.to_walk = 0;
    }

    /// Forgets what was known before.
    pub fn keep(&mut self) {
        self.log.clear();
    }

    /// Brings every stage up to date, of which `remakes` says what it makes again; returns the work that took.
    pub fn settle<'a>(
        &mut self,
        indexed: &IndexedProblem,
        uses: &Uses,
        remakes: impl Fn(u32) -> &'a [Remake],
    ) -> u64 {
        let mut work = 0;
        while let Some(stage) = self.dirty.pop() {
            let change = std::mem::replace(&mut self.change[stage as usize], Change::None);
            work += match change {
                Change::Back => walk_work(indexed, stage, remakes(stage)),
                _ => self.walk(indexed, uses, stage, remakes(stage)),
            };
        }
        self.to_walk = 0;
        work
    }

    fn set_peak(&mut self, stage: u32, peak: i64) -> i64 {
        let old = std::mem::replace(&mut self.inside[stage as usize], peak);
        self.tree.add(stage, stage, peak - old);
        old
    }

    /// Finds the peak inside `stage` again, which makes `remakes` again; returns the work that took.
    pub fn walk(&mut self, indexed: &IndexedProblem, uses: &Uses, stage: u32, remakes: &[Remake]) -> u64 {
        let work = walk_work(indexed, stage, remakes);
        if stage >= indexed.ops {
            return work;
        }
        let (replays, loads) = remakes.split_at(remakes.partition_point(|&what| what < indexed.ops));
        let runs = || replays.iter().copied().chain([stage]);
        let mut held = self.enter(indexed, uses, stage, runs());
        let mut peak = held;
        for t in loads.iter().map(|&what| what - indexed.ops) {
            held += indexed.size[t as usize] as i64;
            peak = peak.max(held);
            if self.notes[t as usize].seen != self.walk && !uses.is_held_after(t, stage) {
                held -= indexed.size[t as usize] as i64;
            }
        }
        for (position, op) in runs().enumerate() {
            let dies = |t: u32| {
                let note = self.notes[t as usize];
                note.last_at == position as u32 && !note.stays
            };
            let mut during = held + indexed.scratch[op as usize] as i64;
            for &t in indexed.outs.of(op) {
                let bytes = indexed.size[t as usize] as i64;
                during += bytes;
                if self.notes[t as usize].seen == self.walk || uses.is_held_after(t, stage) {
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
        let old = self.set_peak(stage, peak);
        if old != peak {
            self.log.push((stage, old));
        }
        work
    }

    /// Notes where `runs` of `stage` read each transient last and whether it stays; returns the bytes that come into the stage and end
    /// in it, which the tree's sum for the stage does not have.
    fn enter(
        &mut self,
        indexed: &IndexedProblem,
        uses: &Uses,
        stage: u32,
        runs: impl Iterator<Item = u32>,
    ) -> i64 {
        self.walk += 1;
        let mut held = 0i64;
        for (position, op) in runs.enumerate() {
            for &t in indexed.ins.of(op) {
                let note = &mut self.notes[t as usize];
                if note.seen != self.walk {
                    let stays = uses.is_held_after(t, stage);
                    (note.seen, note.stays) = (self.walk, stays);
                    if !stays && !uses.is_made_in(t, stage) {
                        held += indexed.size[t as usize] as i64;
                    }
                }
                note.last_at = position as u32;
            }
        }
        held
    }
}

/// The work of walking a stage that makes `remakes` again.
fn walk_work(indexed: &IndexedProblem, stage: u32, remakes: &[Remake]) -> u64 {
    if stage >= indexed.ops {
        return 0;
    }
    let replays = remakes.iter().take_while(|&&what| what < indexed.ops);
    let reads = |op: &u32| indexed.ins.of(*op).len() as u64;
    let work = 1 + reads(&stage) + replays.map(reads).sum::<u64>();
    count(work);
    work
}
