//! Turns copies that everything waits for into copies that run beside the ops.
//!
//! A device copies each way by an engine of its own, one copy at a time, while it computes. A schedule as the search makes
//! it waits for every copy at once, which is right on any device and slow. Here the wait for a copy to the host is put off
//! until it should be done, as long as its bytes can stay so long; and a copy back is started earlier, as long as there is
//! room for it. The search itself prices copies as if they were waited for, so that what it finds only gets faster here.

use crate::dense::{Carried, Dense};
use crate::lifespan::{Act, lifespans, profile};

/// The time of a schedule: ops one after the other, copies beside them, and what is waited for.
pub(crate) fn makespan(dense: &Dense, acts: &[Act]) -> u64 {
    // One engine a way, and when what each has last been given of a tensor is done.
    let mut engines = [0u64; 2];
    let copies = dense.copy_ns.is_some() || dense.carries();
    let mut done: Vec<[u64; 2]> = vec![[0, 0]; if copies { dense.size.len() } else { 0 }];
    let mut now = 0u64;
    for act in acts {
        if let Some(Carried { tensor, out, ns }) = copy(dense, act) {
            let engine = &mut engines[usize::from(out)];
            *engine = (*engine).max(now) + ns;
            done[tensor as usize][usize::from(out)] = *engine;
            continue;
        }
        match *act {
            Act::Run(op) => now += dense.ns[op as usize],
            Act::Stored(t) => now = now.max(done[t as usize][1]),
            Act::Loaded(t) => now = now.max(done[t as usize][0]),
            Act::Store(_) | Act::Load(_) => {}
        }
    }
    now
}

/// The copy that an act starts, if it does.
fn copy(dense: &Dense, act: &Act) -> Option<Carried> {
    let ns = |t: u32| dense.copy_ns.as_ref().map_or(0, |ns| ns[t as usize]);
    match *act {
        Act::Run(op) => dense.carried[op as usize],
        Act::Store(tensor) => Some(Carried { tensor, out: true, ns: ns(tensor) }),
        Act::Load(tensor) => Some(Carried { tensor, out: false, ns: ns(tensor) }),
        Act::Stored(_) | Act::Loaded(_) => None,
    }
}

/// The schedule in which every op that is a copy is awaited at once.
pub(crate) fn awaited(dense: &Dense, acts: Vec<Act>) -> Vec<Act> {
    if !dense.carries() {
        return acts;
    }
    let wait = |act: Act| {
        let Act::Run(op) = act else { return [Some(act), None] };
        let wait = |c: Carried| if c.out { Act::Stored(c.tensor) } else { Act::Loaded(c.tensor) };
        [Some(act), dense.carried[op as usize].map(wait)]
    };
    acts.into_iter().flat_map(wait).flatten().collect()
}

/// The schedule with its copies beside its ops as far as `budget` allows, and the most that it holds at once. It is `acts`
/// itself where that is no slower.
pub(crate) fn overlap(dense: &Dense, acts: Vec<Act>, budget: u64) -> (Vec<Act>, u64) {
    let live = |acts: &[Act]| {
        let spans = lifespans(dense, acts, 1);
        dense.resident_bytes + profile(&spans.buffers, acts.len()).into_iter().max().unwrap_or(0)
    };
    let moved = Moves::new(dense, &acts, budget).apply(dense, &acts);
    let moved_live = live(&moved);
    if moved_live <= budget && makespan(dense, &moved) < makespan(dense, &acts) {
        return (moved, moved_live);
    }
    let live = live(&acts);
    (acts, live)
}

/// When the tensors that are copied are made and used, in order.
struct Events {
    made: Vec<Vec<u32>>,
    used: Vec<Vec<u32>>,
}

impl Events {
    fn new(dense: &Dense, acts: &[Act]) -> Events {
        let mut is_copied = vec![false; dense.size.len()];
        acts.iter().filter_map(|act| copy(dense, act)).for_each(|c| is_copied[c.tensor as usize] = true);
        let lists = || vec![Vec::new(); dense.size.len()];
        let mut events = Events { made: lists(), used: lists() };
        for (at, act) in acts.iter().enumerate() {
            match *act {
                Act::Run(op) => {
                    let copied = |t: &&u32| is_copied[**t as usize];
                    let (ins, outs) = (dense.ins.of(op), dense.outs.of(op));
                    ins.iter().filter(copied).for_each(|&t| events.used[t as usize].push(at as u32));
                    outs.iter().filter(copied).for_each(|&t| events.made[t as usize].push(at as u32));
                }
                Act::Load(t) => events.made[t as usize].push(at as u32),
                Act::Store(_) | Act::Stored(_) | Act::Loaded(_) => {}
            }
        }
        events
    }
}

/// Where waits and starts go: before which of the acts.
struct Moves {
    stored: Vec<Vec<u32>>,
    /// Starts of copies back, and of ops that are such copies.
    loads: Vec<Vec<Act>>,
}

impl Moves {
    fn new(dense: &Dense, acts: &[Act], budget: u64) -> Moves {
        let spans = lifespans(dense, acts, 1);
        let mut held = profile(&spans.buffers, acts.len());
        held.iter_mut().for_each(|h| *h += dense.resident_bytes);
        // When each act would begin if nothing were waited for.
        let mut clock = Vec::with_capacity(acts.len());
        let mut now = 0;
        for act in acts {
            clock.push(now);
            now += if let Act::Run(op) = *act { dense.ns[op as usize] } else { 0 };
        }
        let mut moves =
            Moves { stored: vec![Vec::new(); acts.len() + 1], loads: vec![Vec::new(); acts.len() + 1] };
        let events = Events::new(dense, acts);
        // The wait of each copy to the host goes where the copy should be done, or where its bytes cannot stay.
        let mut stored_at = vec![0; dense.size.len()];
        let mut engine = 0;
        for (at, act) in acts.iter().enumerate() {
            let Some(Carried { tensor: t, ns, .. }) = copy(dense, act).filter(|copy| copy.out) else {
                continue;
            };
            engine = clock[at].max(engine) + ns;
            let again = events.made[t as usize].iter().map(|&k| k as usize).find(|&k| k >= at + 2);
            let again = again.unwrap_or(acts.len());
            let due = clock.partition_point(|&ns| ns < engine).max(at + 2).min(again);
            let used = events.used[t as usize].iter().rev().map(|&k| k as usize);
            let last = used.into_iter().find(|&k| k < again).filter(|&k| k >= at + 2).unwrap_or(at + 1);
            // Where its last user would have taken its place, there are two of them from then on.
            let shared = matches!(acts[last], Act::Run(op) if dense.pairs.of(op).contains(&t));
            let from = if shared { last } else { last + 1 };
            let size = dense.size[t as usize];
            let end = (from..due).find(|&k| held[k] + size > budget).unwrap_or(due);
            (from..end).for_each(|k| held[k] += size);
            stored_at[t as usize] = end;
            moves.stored[end].push(t);
        }
        // The start of each copy back goes where it is in time, the last ones first.
        let mut engine = u64::MAX;
        for (at, act) in acts.iter().enumerate().rev() {
            let Some(Carried { tensor: t, ns, .. }) = copy(dense, act).filter(|copy| !copy.out) else {
                continue;
            };
            engine = clock[at].min(engine).saturating_sub(ns);
            let size = dense.size[t as usize];
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
            moves.loads[start].push(*act);
        }
        moves
    }

    fn apply(&self, dense: &Dense, acts: &[Act]) -> Vec<Act> {
        let moves = |act: &Act| match act {
            Act::Stored(_) => true,
            act => copy(dense, act).is_some_and(|copy| !copy.out),
        };
        let mut moved = Vec::with_capacity(acts.len());
        for at in 0..=acts.len() {
            moved.extend(self.stored[at].iter().map(|&t| Act::Stored(t)));
            // They were found from the end, so the first that is wanted was added last.
            moved.extend(self.loads[at].iter().rev());
            moved.extend(acts.get(at).filter(|act| !moves(act)));
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Link, Op, OpId, Problem, Tensor};

    /// A tensor that is made first and wanted last, with six ops between; a copy takes as long as two of them.
    fn step() -> Dense {
        let mut step = Problem::new();
        step.link = Some(Link { bytes_per_second: 1_000_000_000 });
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
        Dense::new(&step, &order)
    }

    fn waited_for() -> Vec<Act> {
        let mut acts = vec![Act::Run(0), Act::Store(0), Act::Stored(0)];
        acts.extend((1..7).map(Act::Run));
        acts.extend([Act::Load(0), Act::Loaded(0), Act::Run(7)]);
        acts
    }

    #[test]
    fn a_copy_beside_ops_takes_no_time() {
        let dense = step();
        let ops = 10 + 6 * 64 + 10;
        assert_eq!(makespan(&dense, &waited_for()), ops + 2 * 128);
        let (acts, live) = overlap(&dense, waited_for(), 1024);
        assert_eq!(makespan(&dense, &acts), ops);
        assert_eq!(live, 128 + 2 * 64);
        let at = |wanted: Act| acts.iter().position(|act| *act == wanted);
        // Two ops run beside each copy, and neither way are the bytes held longer than that.
        assert_eq!(at(Act::Stored(0)), at(Act::Run(3)).map(|at| at - 1));
        assert_eq!(at(Act::Load(0)), at(Act::Run(5)).map(|at| at - 1));
    }

    #[test]
    fn without_room_a_copy_is_waited_for() {
        let dense = step();
        assert_eq!(overlap(&dense, waited_for(), 128), (waited_for(), 128));
        // With room beside one op, a copy runs beside that one.
        let (acts, live) = overlap(&dense, waited_for(), 128 + 64);
        assert_eq!((makespan(&dense, &acts), live), (10 + 6 * 64 + 10 + 128 + 64, 128 + 64));
    }
}
