//! Turns copies that everything waits for into copies that run beside the ops.
//!
//! A device copies each way by an engine of its own, one copy at a time, while it computes. A schedule as the search makes
//! it waits for every copy at once, which is right on any device and slow. Here the wait for a copy to the host is put off
//! until it should be done, as long as its bytes can stay so long; and a copy back is started earlier, as long as there is
//! room for it. The search itself prices copies as if they were waited for, so that what it finds only gets faster here.

use crate::indexed_problem::{Carried, IndexedProblem};
use crate::lifespan::{Action, lifespans, profile};

/// The time of a schedule: ops one after the other, copies beside them, and what is waited for.
pub(crate) fn makespan(indexed: &IndexedProblem, actions: &[Action]) -> u64 {
    // One engine a way, and when what each has last been given of a tensor is done.
    let mut engines = [0u64; 2];
    let copies = indexed.copy_ns.is_some() || indexed.carries();
    let mut done: Vec<[u64; 2]> = vec![[0, 0]; if copies { indexed.size.len() } else { 0 }];
    let mut now = 0u64;
    for action in actions {
        if let Some(Carried { tensor, out, ns }) = copy(indexed, action) {
            let engine = &mut engines[usize::from(out)];
            *engine = (*engine).max(now) + ns;
            done[tensor as usize][usize::from(out)] = *engine;
            continue;
        }
        match *action {
            Action::Run(op) => now += indexed.ns[op as usize],
            Action::Stored(t) => now = now.max(done[t as usize][1]),
            Action::Loaded(t) => now = now.max(done[t as usize][0]),
            Action::Store(_) | Action::Load(_) => {}
        }
    }
    now
}

/// The copy that an action starts, if it does.
fn copy(indexed: &IndexedProblem, action: &Action) -> Option<Carried> {
    let ns = |t: u32| indexed.copy_ns.as_ref().map_or(0, |ns| ns[t as usize]);
    match *action {
        Action::Run(op) => indexed.carried[op as usize],
        Action::Store(tensor) => Some(Carried { tensor, out: true, ns: ns(tensor) }),
        Action::Load(tensor) => Some(Carried { tensor, out: false, ns: ns(tensor) }),
        Action::Stored(_) | Action::Loaded(_) => None,
    }
}

/// The schedule in which every op that is a copy is awaited at once.
pub(crate) fn awaited(indexed: &IndexedProblem, actions: Vec<Action>) -> Vec<Action> {
    if !indexed.carries() {
        return actions;
    }
    let wait = |action: Action| {
        let Action::Run(op) = action else { return [Some(action), None] };
        let wait = |c: Carried| if c.out { Action::Stored(c.tensor) } else { Action::Loaded(c.tensor) };
        [Some(action), indexed.carried[op as usize].map(wait)]
    };
    actions.into_iter().flat_map(wait).flatten().collect()
}

/// The schedule with its copies beside its ops as far as `budget` allows, and the most that it holds at once. It is `actions`
/// itself where that is no slower.
pub(crate) fn overlap(indexed: &IndexedProblem, actions: Vec<Action>, budget: u64) -> (Vec<Action>, u64) {
    let live = |actions: &[Action]| {
        let spans = lifespans(indexed, actions, 1);
        indexed.resident_bytes + profile(&spans.buffers, actions.len()).into_iter().max().unwrap_or(0)
    };
    let moved = Moves::new(indexed, &actions, budget).apply(indexed, &actions);
    let moved_live = live(&moved);
    if moved_live <= budget && makespan(indexed, &moved) < makespan(indexed, &actions) {
        return (moved, moved_live);
    }
    let live = live(&actions);
    (actions, live)
}

/// When the tensors that are copied are made and used, in order.
struct Events {
    made: Vec<Vec<u32>>,
    used: Vec<Vec<u32>>,
}

impl Events {
    fn new(indexed: &IndexedProblem, actions: &[Action]) -> Events {
        let mut is_copied = vec![false; indexed.size.len()];
        actions
            .iter()
            .filter_map(|action| copy(indexed, action))
            .for_each(|c| is_copied[c.tensor as usize] = true);
        let lists = || vec![Vec::new(); indexed.size.len()];
        let mut events = Events { made: lists(), used: lists() };
        for (at, action) in actions.iter().enumerate() {
            match *action {
                Action::Run(op) => {
                    let copied = |t: &&u32| is_copied[**t as usize];
                    let (ins, outs) = (indexed.ins.of(op), indexed.outs.of(op));
                    ins.iter().filter(copied).for_each(|&t| events.used[t as usize].push(at as u32));
                    outs.iter().filter(copied).for_each(|&t| events.made[t as usize].push(at as u32));
                }
                Action::Load(t) => events.made[t as usize].push(at as u32),
                Action::Store(_) | Action::Stored(_) | Action::Loaded(_) => {}
            }
        }
        events
    }
}

/// Where waits and starts go: before which of the actions.
struct Moves {
    stored: Vec<Vec<u32>>,
    /// Starts of copies back, and of ops that are such copies.
    loads: Vec<Vec<Action>>,
}

impl Moves {
    fn new(indexed: &IndexedProblem, actions: &[Action], budget: u64) -> Moves {
        let spans = lifespans(indexed, actions, 1);
        let mut held = profile(&spans.buffers, actions.len());
        held.iter_mut().for_each(|h| *h += indexed.resident_bytes);
        // When each action would begin if nothing were waited for.
        let mut clock = Vec::with_capacity(actions.len());
        let mut now = 0;
        for action in actions {
            clock.push(now);
            now += if let Action::Run(op) = *action { indexed.ns[op as usize] } else { 0 };
        }
        let mut moves =
            Moves { stored: vec![Vec::new(); actions.len() + 1], loads: vec![Vec::new(); actions.len() + 1] };
        let events = Events::new(indexed, actions);
        // The wait of each copy to the host goes where the copy should be done, or where its bytes cannot stay.
        let mut stored_at = vec![0; indexed.size.len()];
        let mut engine = 0;
        for (at, action) in actions.iter().enumerate() {
            let Some(Carried { tensor: t, ns, .. }) = copy(indexed, action).filter(|copy| copy.out) else {
                continue;
            };
            engine = clock[at].max(engine) + ns;
            let again = events.made[t as usize].iter().map(|&k| k as usize).find(|&k| k >= at + 2);
            let again = again.unwrap_or(actions.len());
            let due = clock.partition_point(|&ns| ns < engine).max(at + 2).min(again);
            let used = events.used[t as usize].iter().rev().map(|&k| k as usize);
            let last = used.into_iter().find(|&k| k < again).filter(|&k| k >= at + 2).unwrap_or(at + 1);
            // Where its last user would have taken its place, there are two of them from then on.
            let shared = matches!(actions[last], Action::Run(op) if indexed.pairs.of(op).contains(&t));
            let from = if shared { last } else { last + 1 };
            let size = indexed.size[t as usize];
            let end = (from..due).find(|&k| held[k] + size > budget).unwrap_or(due);
            (from..end).for_each(|k| held[k] += size);
            stored_at[t as usize] = end;
            moves.stored[end].push(t);
        }
        // The start of each copy back goes where it is in time, the last ones first.
        let mut engine = u64::MAX;
        for (at, action) in actions.iter().enumerate().rev() {
            let Some(Carried { tensor: t, ns, .. }) = copy(indexed, action).filter(|copy| !copy.out) else {
                continue;
            };
            engine = clock[at].min(engine).saturating_sub(ns);
            let size = indexed.size[t as usize];
            let earlier =
                |list: &[u32]| list.iter().rev().find(|&&k| (k as usize) < at).map_or(0, |&k| k as usize + 1);
            let (used, made) = (&events.used[t as usize], &events.made[t as usize]);
            let first = stored_at[t as usize].max(earlier(used)).max(earlier(made));
            let mut start = at;
            while start > first && clock[start] > engine {
                let before = start - 1;
                if held[before] + size > budget {
                    break;
                }
                held[before] += size;
                start = before;
            }
            moves.loads[start].push(*action);
        }
        moves
    }

    fn apply(&self, indexed: &IndexedProblem, actions: &[Action]) -> Vec<Action> {
        let moves = |action: &Action| match action {
            Action::Stored(_) => true,
            action => copy(indexed, action).is_some_and(|copy| !copy.out),
        };
        let mut moved = Vec::with_capacity(actions.len());
        for at in 0..=actions.len() {
            moved.extend(self.stored[at].iter().map(|&t| Action::Stored(t)));
            // They were found from the end, so the first that is wanted was added last.
            moved.extend(self.loads[at].iter().rev());
            moved.extend(actions.get(at).filter(|action| !moves(action)));
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Link, Op, OpId, Problem, Tensor};

    /// A tensor that is made first and wanted last, with six ops between; a copy takes as long as two of them.
    fn step() -> IndexedProblem {
        let mut step = Problem::new();
        step.link = Some(Link::new(1_000_000_000));
        let kept = step.tensor(Tensor::transient("kept", 128));
        step.op(Op::new("make", &[], &[kept], 10));
        let mut last = None;
        for n in 0..6 {
            let next = step.tensor(Tensor::transient(format!("x{n}"), 64));
            let reads: Vec<_> = last.into_iter().collect();
            step.op(Op::new(format!("f{n}"), &reads, &[next], 64));
            last = Some(next);
        }
        step.op(Op::new("use", &[kept], &[], 10));
        let order: Vec<OpId> = (0..step.ops.len() as u32).map(OpId).collect();
        IndexedProblem::new(&step, &order)
    }

    fn waited_for() -> Vec<Action> {
        let mut actions = vec![Action::Run(0), Action::Store(0), Action::Stored(0)];
        actions.extend((1..7).map(Action::Run));
        actions.extend([Action::Load(0), Action::Loaded(0), Action::Run(7)]);
        actions
    }

    #[test]
    fn a_copy_beside_ops_takes_no_time() {
        let indexed = step();
        let ops = 10 + 6 * 64 + 10;
        assert_eq!(makespan(&indexed, &waited_for()), ops + 2 * 128);
        let (actions, live) = overlap(&indexed, waited_for(), 1024);
        assert_eq!(makespan(&indexed, &actions), ops);
        assert_eq!(live, 128 + 2 * 64);
        let at = |wanted: Action| actions.iter().position(|action| *action == wanted);
        // Two ops run beside each copy, and neither way are the bytes held longer than that.
        assert_eq!(at(Action::Stored(0)), at(Action::Run(3)).map(|at| at - 1));
        assert_eq!(at(Action::Load(0)), at(Action::Run(5)).map(|at| at - 1));
    }

    #[test]
    fn without_room_a_copy_is_waited_for() {
        let indexed = step();
        assert_eq!(overlap(&indexed, waited_for(), 128), (waited_for(), 128));
        // With room beside one op, a copy runs beside that one.
        let (actions, live) = overlap(&indexed, waited_for(), 128 + 64);
        assert_eq!((makespan(&indexed, &actions), live), (10 + 6 * 64 + 10 + 128 + 64, 128 + 64));
    }
}
