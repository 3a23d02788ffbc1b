//! Turns one part and a goal into the lowest packing that the effort allows.
//!
//! Cheap ways first: dives along several orders, which reach the lower bound on most training steps; then
//! dives led by a *core*, the few sections that are nearly full; then first fit; then restarts of the search
//! and of dives along orders that learn from the sections that failed. On request orders are polished before that: changed a
//! little where a dive fails, again and again, which is poor at hard puzzles and quick with the long nests of training steps. The best packing so far is always at
//! hand, so the effort may run out anywhere.

use super::dive::{Diver, LOOKAHEAD};
use super::effort::Effort;
use super::greedy::first_fit;
use super::index::Index;
use super::part::Part;
use super::rank::{AREA, LEARNED, LONG, Ranker, Rule, SIZE, STATIC, TIGHT_AREA};
use super::search::{Outcome, Search};
use std::rc::Rc;

/// The largest index the search is given: some 120 MB.
const INDEX_LIMIT: u64 = 30_000_000;

/// How full, in percent of the goal, a section of each core is at least.
const CORES: [u64; 7] = [99, 98, 97, 95, 92, 88, 80];

/// Restarts come in episodes of so many that learn from each other. What was learned leads to a packing soon
/// or not at all, so each episode forgets what the one before it knew.
const EPISODE: u64 = 8;

/// The rule of each episode in turn, the noise on it in percent, and whether the last failing section is blamed.
const EPISODES: [(Rule, u64, bool); 8] = [
    (Rule::FailedTight, 10, false),
    (Rule::FailedLong, 0, false),
    (Rule::FailedTight, 10, true),
    (Rule::FailedLong, 0, true),
    (Rule::FailedTight, 0, false),
    (Rule::FailedLong, 10, false),
    (Rule::FailedTight, 5, true),
    (Rule::FailedLong, 10, true),
];

/// After so many changes to an order that did not help, another order is polished.
const IN_VAIN: u32 = 100;

/// A packing of one part.
#[derive(Debug)]
pub(super) struct Solved {
    pub offsets: Vec<u64>,
    pub height: u64,
    /// A height below which there is no packing.
    pub lower: u64,
}

/// What a packing is wanted for.
#[derive(Clone, Copy)]
pub(super) struct Aim {
    /// A height that is low enough.
    pub goal: u64,
    /// Packings of this height or more are of no use.
    pub below: u64,
    /// Whether a packing above the goal is worth lowering.
    pub lower_is_better: bool,
    /// Whether most of the effort goes to small changes of orders.
    pub polish: bool,
}

/// Packs `part`, no lower than the goal asks for; nothing where no packing of use is found.
pub(super) fn solve(part: &Part, aim: Aim, effort: &mut Effort) -> Option<Solved> {
    let Aim { goal, below, lower_is_better, polish } = aim;
    let mut solver = Solver {
        part,
        goal: goal.max(part.live()),
        below,
        lower_is_better,
        ranker: Ranker::new(part),
        diver: Diver::new(part),
        orders: Default::default(),
        failures: vec![0; part.total.len()],
        best: Solved { offsets: Vec::new(), height: u64::MAX, lower: part.live() },
        effort,
    };
    solver.dives(LOOKAHEAD);
    if !solver.is_done() {
        solver.cores();
    }
    if !solver.is_done() {
        solver.dives(1);
    }
    if !solver.is_done() {
        solver.greedies();
    }
    if polish && !solver.is_done() {
        solver.polish();
    }
    if !solver.is_done() {
        solver.restarts();
    }
    (solver.best.height != u64::MAX).then_some(solver.best)
}

struct Solver<'a, 'e> {
    part: &'a Part,
    goal: u64,
    /// Packings of this height or more are of no use.
    below: u64,
    /// Whether a packing above the goal is worth lowering.
    lower_is_better: bool,
    ranker: Ranker<'a>,
    diver: Diver<'a>,
    /// The static orders, each made when first asked for.
    orders: [Option<Rc<[u32]>>; STATIC.len()],
    /// How often each section was what a dive or a search failed in.
    failures: Vec<u64>,
    best: Solved,
    effort: &'e mut Effort,
}

impl Solver<'_, '_> {
    fn is_done(&self) -> bool {
        let reached = self.best.height <= self.goal.max(self.best.lower);
        let hopeless = self.below <= self.best.lower;
        // The first packing is found whatever that takes, unless only low ones are of use.
        let has_one = self.best.height != u64::MAX || self.below != u64::MAX;
        reached || hopeless || has_one && self.effort.is_spent()
    }

    /// Packings of this height or more are of no use, or no better than the best so far.
    fn limit(&self) -> u64 {
        self.best.height.min(self.below)
    }

    fn offer(&mut self, offsets: &[u64]) {
        let height = self.part.height(offsets);
        if height < self.limit() {
            self.best.height = height;
            self.best.offsets.clear();
            self.best.offsets.extend_from_slice(offsets);
        }
    }

    fn static_order(&mut self, which: usize) -> Rc<[u32]> {
        let order =
            self.orders[which].take().unwrap_or_else(|| self.ranker.order(STATIC[which], &[], 0).into());
        self.orders[which] = Some(Rc::clone(&order));
        order
    }

    fn dive(&mut self, order: &[u32], lookahead: usize) {
        let found = self.diver.dive(order, self.goal, self.limit(), lookahead, &mut self.failures);
        let steps = self.diver.take_steps();
        self.effort.spend(steps);
        if found.is_some() {
            let offsets = std::mem::take(&mut self.diver.offsets);
            self.offer(&offsets);
            self.diver.offsets = offsets;
        }
    }

    /// Dives along the static orders, looking ahead or not.
    fn dives(&mut self, lookahead: usize) {
        for which in 0..STATIC.len() {
            let order = self.static_order(which);
            self.dive(&order, lookahead);
            if self.is_done() {
                return;
            }
        }
    }

    /// Dives that follow a packing of the nearly full sections.
    fn cores(&mut self) {
        let mut size = 0;
        for percent in CORES {
            let core = self.core(percent);
            if core.len() == size {
                continue;
            }
            size = core.len();
            if 4 * size > 3 * self.part.len() {
                return;
            }
            let mut ranker = Ranker::new(&core);
            let mut diver = Diver::new(&core);
            let mut failures = vec![0; core.total.len()];
            for rule in [Rule::TightLong, Rule::TightArea, Rule::Long, Rule::Size, Rule::Area] {
                let order = ranker.order(rule, &failures, 0);
                let found = diver.dive(&order, self.goal, self.goal + 1, LOOKAHEAD, &mut failures);
                self.effort.spend(diver.take_steps());
                if found.is_some() {
                    for rest in [SIZE, TIGHT_AREA] {
                        self.follow(&core, &diver.offsets, rest);
                        if self.is_done() {
                            return;
                        }
                    }
                }
                if self.is_done() {
                    return;
                }
            }
        }
    }

    /// The part as seen by the sections that are at least so full, or have failed.
    fn core(&self, percent: u64) -> Part {
        let full = (u128::from(self.goal) * u128::from(percent)).div_ceil(100);
        let keep: Vec<bool> = (self.part.total.iter().zip(&self.failures))
            .map(|(&total, &failures)| u128::from(total) >= full || failures > 0)
            .collect();
        self.part.restrict(&keep)
    }

    /// Dives along the offsets of a core, what is not in the core coming last.
    fn follow(&mut self, core: &Part, offsets: &[u64], rest: usize) {
        let mut order: Vec<u32> = (0..core.len() as u32).collect();
        order.sort_by_key(|&b| (offsets[b as usize], b));
        let mut inside = vec![false; self.part.len()];
        for b in &mut order {
            *b = core.items[*b as usize].id as u32;
            inside[*b as usize] = true;
        }
        let rest = self.static_order(rest);
        order.extend(rest.iter().copied().filter(|&b| !inside[b as usize]));
        self.dive(&order, LOOKAHEAD);
    }

    /// First fit along the orders that suit it.
    fn greedies(&mut self) {
        for which in [SIZE, AREA, LONG] {
            let order = self.static_order(which);
            if let Some(offsets) = first_fit(self.part, &order, self.below, self.effort) {
                self.offer(&offsets);
            }
            if self.is_done() {
                return;
            }
        }
    }

    /// Dives along an order, changes it a little where the dive failed and dives again, order after order.
    fn polish(&mut self) {
        let until = self.effort.left() / 4;
        for start in 0.. {
            let mut order = match start % (STATIC.len() + 1) {
                0 if start == 0 && !self.best.offsets.is_empty() => self.best_order(),
                0 => self.ranker.order(LEARNED[start / 6 % 3], &self.failures, 10),
                which => self.static_order(which - 1).to_vec(),
            };
            self.polish_order(&mut order, until);
            if self.is_done() || self.effort.left() <= until {
                return;
            }
        }
    }

    /// The items as they lie in the best packing, from the bottom up.
    fn best_order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.part.len() as u32).collect();
        order.sort_by_key(|&b| (self.best.offsets[b as usize], b));
        order
    }

    /// Moves some items that live where a dive along `order` failed to the front, as long as that helps now and then.
    fn polish_order(&mut self, order: &mut [u32], until: u64) {
        let part = self.part;
        let mut failures = vec![0; part.total.len()];
        let mut failed: Vec<u32> = Vec::new();
        let mut there: Vec<usize> = Vec::new();
        let mut next = order.to_vec();
        let (mut height, mut in_vain) = (u64::MAX, 0);
        while in_vain <= IN_VAIN {
            failures.fill(0);
            // Equal heights are taken too: most changes do not change the height.
            let limit = height.saturating_add(1).min(self.below);
            let found = self.diver.dive(&next, self.goal, limit, LOOKAHEAD, &mut failures);
            let steps = self.diver.take_steps();
            self.effort.spend(steps);
            in_vain += 1;
            if let Some(found) = found {
                in_vain = if found < height { 0 } else { in_vain };
                height = found;
                order.copy_from_slice(&next);
                failed.clear();
                failed.extend((0..failures.len() as u32).filter(|&f| failures[f as usize] > 0));
                let offsets = std::mem::take(&mut self.diver.offsets);
                self.offer(&offsets);
                self.diver.offsets = offsets;
            }
            if self.is_done() || self.effort.left() <= until || failed.is_empty() {
                return;
            }
            next.copy_from_slice(order);
            for _ in 0..=self.below(3) {
                let section = failed[self.below(failed.len())];
                let lives = |b: usize| part.first[b] <= section && section < part.last[b];
                there.clear();
                there.extend((0..next.len()).filter(|&at| lives(next[at] as usize)));
                let from = there[self.below(there.len())];
                let to = self.below(from + 1);
                next[to..=from].rotate_right(1);
            }
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.ranker.next() % limit.max(1) as u64) as usize
    }

    /// Restarts, along one order after the other, until the goal is reached or the effort spent.
    fn restarts(&mut self) {
        let entries = Index::entries(self.part);
        let mut search = (entries <= INDEX_LIMIT).then(|| Search::new(self.part));
        self.effort.spend(if search.is_some() { 4 * entries } else { 0 });
        let mut weights = [vec![0; self.failures.len()], vec![0; self.failures.len()]];
        for round in 0u64.. {
            let episode = round / EPISODE;
            let (rule, noise, blame_last) = EPISODES[(episode % EPISODES.len() as u64) as usize];
            if round.is_multiple_of(EPISODE) {
                weights[0].fill(0);
                weights[1].fill(0);
            }
            if let Some(search) = &mut search {
                search.state.blame_last = blame_last;
                let nodes = (3000 + 5 * self.part.len() as u64) * (1 + episode / 8);
                let goal = self.goal.max(self.best.lower);
                let order = self.ranker.order(rule, &weights[0], noise);
                self.search(search, &order, goal, nodes, &mut weights[0]);
                if self.is_done() {
                    return;
                }
                if self.lower_is_better {
                    // As much effort goes to what lies between the goal and the best so far.
                    let goal = self.goal.max(self.best.lower);
                    let order = self.ranker.order(rule, &weights[1], noise);
                    let below = self.limit().saturating_sub(goal).div_ceil(2 << (round % 3));
                    self.search(search, &order, self.limit() - below, nodes, &mut weights[1]);
                }
            }
            if self.is_done() {
                return;
            }
            let order =
                self.ranker.order(LEARNED[(round % 3) as usize], &self.failures, 10 * (round / 3 % 2));
            self.dive(&order, LOOKAHEAD);
            if self.is_done() {
                return;
            }
        }
    }

    fn search(&mut self, search: &mut Search, order: &[u32], capacity: u64, nodes: u64, weights: &mut [u64]) {
        let capacity = capacity.min(self.limit() - 1);
        match search.run(order, capacity, nodes, weights, self.effort) {
            Outcome::Found => self.offer(&search.state.offsets),
            Outcome::Impossible => self.best.lower = self.best.lower.max(capacity + 1),
            Outcome::Stopped => {}
        }
    }
}
