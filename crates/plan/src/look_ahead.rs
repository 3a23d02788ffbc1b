//! Turns a step and a budget into a schedule at once: ops in their order, and where bytes are short the tensor goes that is cheap to make
//! again, large, and wanted late.
//!
//! One pass over the step, without a search: what a plan is at least as good as, however little time there is for searching.

use crate::indexed_problem::IndexedProblem;
use crate::lifespan::Action;

/// How much the distance to the next use counts, and how much the bytes, in the order in which they are tried. Which is best depends on
/// the step, and a pass is cheap.
pub(crate) const WEIGHTS: [(f64, f64); 5] = [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.25, 1.0), (0.0, 1.0)];

/// How many dropped tensors are followed when the time to make one again is added up; beyond that it is far too much anyway.
const FOLLOWED: usize = 48;

/// How many replays a pass may make for each op before it gives up: it is going round in circles then.
const MOST_REPLAYS: usize = 24;

/// How many replays may wait for one another.
const DEEPEST: u32 = 1000;

/// The sequence of ops that fits `budget` by looking ahead with such weights, if there is one and it takes no more than `most_ns`.
pub(crate) fn look_ahead(
    indexed: &IndexedProblem,
    budget: u64,
    weights: (f64, f64),
    most_ns: u64,
) -> Option<Vec<Action>> {
    let room = budget.checked_sub(indexed.resident_bytes)?;
    Pass::new(indexed, room, weights, most_ns).run()
}

/// One pass over the step.
struct Pass<'a> {
    indexed: &'a IndexedProblem,
    room: u64,
    weights: (f64, f64),
    /// The time that is left for replays.
    replay_ns: u64,
    /// By tensor: the ops that read it, in order.
    uses: Vec<Vec<u32>>,
    /// By tensor: the last op for which it can surely be made again. Whatever it is made from is there by then, or can be made again.
    again_until: Vec<u32>,
    /// By tensor: how many of its uses are done.
    done: Vec<usize>,
    held: Vec<bool>,
    /// What is held, in no order, and where each tensor stands there.
    all: Vec<u32>,
    place: Vec<usize>,
    /// Of how many ops under way each tensor is an operand: it goes only if nothing else can.
    pinned: Vec<u32>,
    bytes: u64,
    /// The op of the order that is next, for which others are replayed.
    now: u32,
    actions: Vec<Action>,
    /// When a tensor was last added up, so that it counts once.
    seen: Vec<u32>,
    stamp: u32,
    /// What is being added up.
    open: Vec<u32>,
}

impl<'a> Pass<'a> {
    fn new(indexed: &'a IndexedProblem, room: u64, weights: (f64, f64), most_ns: u64) -> Pass<'a> {
        let tensors = indexed.tensors() as usize;
        let mut uses = vec![Vec::new(); tensors];
        for op in 0..indexed.ops {
            indexed.ins.of(op).iter().for_each(|&t| uses[t as usize].push(op));
        }
        Pass {
            indexed,
            room,
            weights,
            replay_ns: most_ns.saturating_sub(indexed.base_ns()),
            again_until: again_until(indexed, &uses),
            uses,
            done: vec![0; tensors],
            held: vec![false; tensors],
            all: Vec::new(),
            place: vec![0; tensors],
            pinned: vec![0; tensors],
            bytes: 0,
            now: 0,
            actions: Vec::new(),
            seen: vec![0; tensors],
            stamp: 0,
            open: Vec::new(),
        }
    }

    fn run(mut self) -> Option<Vec<Action>> {
        for op in 0..self.indexed.ops {
            self.now = op;
            self.execute(op, 0)?;
            for &t in self.indexed.ins.of(op) {
                self.done[t as usize] += 1;
            }
            let indexed = self.indexed;
            indexed.ins.of(op).iter().chain(indexed.outs.of(op)).for_each(|&t| self.drop_if_done(t));
        }
        Some(self.actions)
    }

    /// The next op of the order that reads a tensor as it is there now.
    fn next_use(&self, t: u32) -> Option<u32> {
        let next = self.uses[t as usize].get(self.done[t as usize]).copied()?;
        let anew = self.indexed.anew_after(t, self.now);
        anew.is_none_or(|anew| next < anew).then_some(next)
    }

    fn drop_if_done(&mut self, t: u32) {
        let wanted = self.indexed.keep[t as usize] || self.next_use(t).is_some();
        if !wanted && self.pinned[t as usize] == 0 {
            self.let_go(t);
        }
    }

    fn let_go(&mut self, t: u32) {
        if std::mem::replace(&mut self.held[t as usize], false) {
            self.bytes -= self.indexed.size[t as usize];
            let at = self.place[t as usize];
            self.all.swap_remove(at);
            if let Some(&moved) = self.all.get(at) {
                self.place[moved as usize] = at;
            }
        }
    }

    fn take(&mut self, t: u32) {
        if !std::mem::replace(&mut self.held[t as usize], true) {
            self.bytes += self.indexed.size[t as usize];
            self.place[t as usize] = self.all.len();
            self.all.push(t);
        }
    }

    /// Runs an op, for the first time or again, with whatever has to be made again for it.
    fn execute(&mut self, op: u32, depth: u32) -> Option<()> {
        let indexed = self.indexed;
        if depth > DEEPEST || self.actions.len() > (MOST_REPLAYS + 1) * indexed.ops as usize {
            return None;
        }
        let (ins, outs) = (indexed.ins.of(op), indexed.outs.of(op));
        ins.iter().for_each(|&t| self.pinned[t as usize] += 1);
        // What is made again for one operand may have cost another one its place.
        while let Some(&t) = ins.iter().find(|&&t| !self.held[t as usize]) {
            let maker = indexed.producer[t as usize];
            if maker >= indexed.ops || indexed.replay_until[maker as usize] < self.now {
                return None;
            }
            self.execute(maker, depth + 1)?;
        }
        outs.iter().for_each(|&t| self.pinned[t as usize] += 1);
        // What is written over an operand that nobody wants any more takes no bytes of its own.
        let over: u64 = indexed
            .pairs
            .of(op)
            .chunks_exact(2)
            .filter(|pair| op == self.now && self.is_last_use(pair[0]) && !self.held[pair[1] as usize])
            .map(|pair| indexed.size[pair[1] as usize].min(indexed.size[pair[0] as usize]))
            .sum();
        let new: u64 =
            outs.iter().filter(|&&t| !self.held[t as usize]).map(|&t| indexed.size[t as usize]).sum();
        let need = new - over.min(new) + indexed.scratch[op as usize];
        while self.bytes + need > self.room {
            let worst = self.least_missed(op, false).or_else(|| self.least_missed(op, true))?;
            self.let_go(worst);
        }
        outs.iter().for_each(|&t| self.take(t));
        self.actions.push(Action::Run(op));
        ins.iter().chain(outs).for_each(|&t| self.pinned[t as usize] -= 1);
        if depth > 0 {
            self.replay_ns = self.replay_ns.checked_sub(indexed.ns[op as usize])?;
            // Of a replay, and of what was made again for it, only what is still wanted stays.
            ins.iter().chain(outs).for_each(|&t| self.drop_if_done(t));
        }
        Some(())
    }

    /// Whether the op that is next is the last one to read a tensor.
    fn is_last_use(&self, t: u32) -> bool {
        let last = self.uses[t as usize].last() == Some(&self.now);
        last && !self.indexed.keep[t as usize]
    }

    /// What is held and missed least if it goes; none if nothing can. `pinned` says whether it may be something that ops wait with,
    /// other than the one that is to run.
    fn least_missed(&mut self, op: u32, pinned: bool) -> Option<u32> {
        let mut best: Option<(f64, u32)> = None;
        let (ins, outs) = (self.indexed.ins.of(op), self.indexed.outs.of(op));
        for i in 0..self.all.len() {
            let t = self.all[i];
            // What only waits for a replay has no use of its own.
            let Some(next) = self.next_use(t).or(pinned.then_some(self.now)) else { continue };
            let may_go = (self.pinned[t as usize] > 0) == pinned
                && !(pinned && (ins.contains(&t) || outs.contains(&t)))
                && self.again_until[t as usize] >= next
                && self.indexed.size[t as usize] > 0;
            if !may_go {
                continue;
            }
            let (late, large) = (f64::from(next - self.now + 1), self.indexed.size[t as usize] as f64);
            let gain = late.powf(self.weights.0) * large.powf(self.weights.1);
            let cheap = best.map_or(f64::INFINITY, |(score, _)| score * gain);
            if let Some(ns) = self.time_to_make(t, cheap)
                && best.is_none_or(|(score, _)| ns / gain < score)
            {
                best = Some((ns / gain, t));
            }
        }
        best.map(|(_, t)| t)
    }

    /// The time to make a tensor again, with what was dropped before it; none if that is more than `most`.
    fn time_to_make(&mut self, t: u32, most: f64) -> Option<f64> {
        self.stamp += 1;
        self.seen[t as usize] = self.stamp;
        self.open.clear();
        self.open.push(t);
        let (mut ns, mut at) = (0.0, 0);
        while let Some(&t) = self.open.get(at) {
            at += 1;
            let maker = self.indexed.producer[t as usize];
            if maker >= self.indexed.ops {
                return None;
            }
            ns += self.indexed.ns[maker as usize] as f64 + 1.0;
            if ns > most {
                return None;
            }
            for &input in self.indexed.ins.of(maker) {
                let new = !self.held[input as usize] && self.seen[input as usize] != self.stamp;
                if new && self.open.len() < FOLLOWED {
                    self.seen[input as usize] = self.stamp;
                    self.open.push(input);
                }
            }
        }
        Some(ns)
    }
}

/// By tensor: the last op of the order for which it can be made again, 0 if it never can. An operand of its maker may have been read for
/// the last time and be gone by then: it must be made again too.
fn again_until(indexed: &IndexedProblem, uses: &[Vec<u32>]) -> Vec<u32> {
    let mut until = vec![0; uses.len()];
    for op in 0..indexed.ops {
        let there = |&t: &u32| match (indexed.keep[t as usize], uses[t as usize].last()) {
            (true, _) => u32::MAX,
            (false, last) => until[t as usize].max(last.copied().unwrap_or(0)),
        };
        let own = indexed.ins.of(op).iter().map(there).fold(indexed.replay_until[op as usize], u32::min);
        indexed.outs.of(op).iter().for_each(|&t| until[t as usize] = own);
    }
    until
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifespan::lifespans;
    use crate::place::{place, usual_work};
    use crate::plan::Request;
    use crate::planner::Planner;
    use crate::problem::{Op, Problem, Tensor, TensorId};
    use crate::recompute::replay_stages::one_replay_a_stage_of;

    /// A forward pass whose results are all wanted again backwards, every third of them dear to make.
    fn step(layers: usize) -> Problem {
        let mut step = Problem::new();
        let made: Vec<TensorId> = (0..layers)
            .map(|i| step.tensor(Tensor::transient(format!("a{i}"), 1000 + 100 * (i as u64 % 5))))
            .collect();
        for (i, &out) in made.iter().enumerate() {
            let ns = if i % 3 == 0 { 900 } else { 100 };
            let ins = i.checked_sub(1).map(|before| made[before]);
            step.op(Op::new(format!("f{i}"), ins.as_slice(), &[out], ns));
        }
        let mut gradient = None;
        for i in (0..layers).rev() {
            let next = step.tensor(if i == 0 {
                Tensor::output("d0", 1000)
            } else {
                Tensor::transient(format!("d{i}"), 1000)
            });
            let ins: Vec<TensorId> = gradient.into_iter().chain([made[i]]).collect();
            step.op(Op::new(format!("b{i}"), &ins, &[next], 200));
            gradient = Some(next);
        }
        step
    }

    #[test]
    fn a_pass_fits_its_budget_and_makes_again_what_is_cheap() {
        let step = step(24);
        let order: Vec<_> = (0..step.ops.len() as u32).map(crate::problem::OpId).collect();
        let indexed = IndexedProblem::new(&step, &order);
        let mut found = 0;
        for budget in (8_000..30_000).step_by(1000) {
            for actions in WEIGHTS.iter().filter_map(|&how| look_ahead(&indexed, budget, how, u64::MAX)) {
                let (wide, saved) = one_replay_a_stage_of(&indexed, &actions);
                let mut state = saved.restore(&wide);
                assert!(state.peak() as u64 <= budget, "{} in {budget}", state.peak());
                let replays = actions.len() - indexed.ops as usize;
                assert!(
                    replays == 0 || state.extra_ns < 400 * replays as u64,
                    "{} for {replays}",
                    state.extra_ns
                );
                found += 1;
            }
        }
        assert!(found > 50, "{found}");
        assert!(WEIGHTS.iter().all(|&how| look_ahead(&indexed, 1500, how, u64::MAX).is_none()));
        let (how, base) = (WEIGHTS[0], indexed.base_ns());
        assert!(look_ahead(&indexed, 12_000, how, u64::MAX).is_some());
        assert!(look_ahead(&indexed, 12_000, how, base + 50).is_none(), "too long is as good as none");
    }

    #[test]
    fn a_search_that_is_cut_off_at_once_is_no_worse_than_looking_ahead() {
        let step = step(200);
        let planned = |deadline_ms: Option<u64>, budget: u64| {
            let request = Request { deadline_ms, ..Request::within(0) };
            Planner::new(&step, &request).unwrap().plan(budget).unwrap().figures.predicted_ns
        };
        for budget in [60_000, 100_000, 160_000] {
            let (at_once, searched) = (planned(Some(0), budget), planned(None, budget));
            assert!(at_once as f64 <= 1.05 * searched as f64, "{at_once} and {searched} in {budget}");
        }
    }

    /// Rounds, each with an update of the weights at its end. A summary of each round is wanted at the very end: cheap to make again while
    /// the round lasts, and not at all after the update, though the op that made it reads no weights itself.
    fn unrolled(rounds: usize, layers: usize) -> Problem {
        let mut step = Problem::new();
        let weights = step.tensor(Tensor::resident("weights", 512));
        let mut summaries = Vec::new();
        for r in 0..rounds {
            let mut tensor = |name: &str, bytes| step.tensor(Tensor::transient(format!("{name} {r}"), bytes));
            let made: Vec<TensorId> = (0..layers).map(|i| tensor(&format!("a{i}"), 1024)).collect();
            let gradients: Vec<TensorId> = (0..layers).map(|i| tensor(&format!("d{i}"), 1024)).collect();
            let summary = tensor("summary", 4096);
            for (i, &out) in made.iter().enumerate() {
                let from = i.checked_sub(1).map_or(weights, |before| made[before]);
                step.op(Op::new(format!("f{i} {r}"), &[from], &[out], 100 + 50 * (i as u64 % 3)));
                if i == 1 {
                    step.op(Op::new(format!("sum {r}"), &[out], &[summary], 10));
                }
            }
            for i in (0..layers).rev() {
                let ins: Vec<TensorId> = gradients.get(i + 1).copied().into_iter().chain([made[i]]).collect();
                step.op(Op::new(format!("b{i} {r}"), &ins, &[gradients[i]], 200));
            }
            let update = Op::new(format!("update {r}"), &[gradients[0], weights], &[], 50);
            step.op(Op { updates: vec![weights], ..update });
            summaries.push(summary);
        }
        let all = step.tensor(Tensor::output("all", 64));
        step.op(Op::new("together", &summaries, &[all], 50));
        step
    }

    #[test]
    fn nothing_goes_that_cannot_be_made_again_when_it_is_wanted() {
        let step = unrolled(4, 16);
        let order: Vec<_> = (0..step.ops.len() as u32).map(crate::problem::OpId).collect();
        let indexed = IndexedProblem::new(&step, &order);
        for budget in (26_000..40_000).step_by(2000) {
            for how in WEIGHTS {
                let actions = look_ahead(&indexed, budget, how, u64::MAX);
                let Some(actions) = actions else { panic!("{how:?} finds nothing in {budget}") };
                let (wide, saved) = one_replay_a_stage_of(&indexed, &actions);
                assert!(saved.restore(&wide).peak() as u64 <= budget, "{how:?} in {budget}");
            }
        }
    }

    /// Steps of several kinds: chains whose parts differ in price and size, with ways past them, and with nothing to drop.
    fn steps() -> Vec<Problem> {
        let mut steps: Vec<Problem> = [12, 40, 90].map(step).into();
        for width in [2, 5] {
            let mut branched = step(30);
            let wide: Vec<TensorId> = (0..width)
                .map(|i| branched.tensor(Tensor::transient(format!("w{i}"), 700 + 64 * i)))
                .collect();
            for (i, &out) in wide.iter().enumerate() {
                branched.op(Op::new(format!("wide {i}"), &[TensorId(i as u32 * 3)], &[out], 150));
            }
            let all = branched.tensor(Tensor::output("all", 64));
            branched.op(Op::new("together", &wide, &[all], 50));
            steps.push(branched);
        }
        steps.push(unrolled(4, 16));
        steps
    }

    #[test]
    fn no_simple_policy_beats_a_search_that_has_no_time() {
        let (mut compared, mut beaten) = (0, 0);
        for (n, step) in steps().iter().enumerate() {
            let order: Vec<_> = (0..step.ops.len() as u32).map(crate::problem::OpId).collect();
            let indexed = IndexedProblem::new(step, &order);
            let request = Request { deadline_ms: Some(0), ..Request::within(0) };
            let unlimited = Planner::new(step, &request).unwrap().unlimited_bytes();
            for budget in (3..=10).map(|tenths| unlimited * tenths / 10) {
                let planned = Planner::new(step, &request).unwrap().plan(budget).ok();
                for how in WEIGHTS {
                    let Some(actions) = look_ahead(&indexed, budget, how, u64::MAX) else { continue };
                    let spans = lifespans(&indexed, &actions, step.scratch_alignment);
                    let places =
                        place(&spans, indexed.resident_bytes, budget, usual_work(spans.buffers.len()));
                    // What cannot be laid out in the budget is no plan within it.
                    if places.height > budget {
                        continue;
                    }
                    let ns: u64 = actions
                        .iter()
                        .map(|action| if let Action::Run(op) = action { indexed.ns[*op as usize] } else { 0 })
                        .sum();
                    let ours = planned.as_ref().map_or(u64::MAX, |plan| plan.figures.predicted_ns);
                    assert!(
                        ours <= ns,
                        "step {n} in {budget}: {ours}, and looking ahead by {how:?} takes {ns}"
                    );
                    compared += 1;
                    beaten += usize::from(ours < ns);
                }
            }
        }
        assert!(compared > 100 && beaten > 20, "{compared} policies, {beaten} of them beaten");
    }
}
