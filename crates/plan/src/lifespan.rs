//! Turns a sequence of actions into buffers with half-open lifespans, and those into a memory profile.
//!
//! A tensor that is made several times (once and again by replays) has one instance for each time: from the
//! action that makes it to the last one that uses it before it is made anew. An instance that takes another's
//! place is the same buffer.

use crate::indexed_problem::IndexedProblem;
use crate::steps::count;

/// One action of a schedule, in the solvers' numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Runs an op.
    Run(u32),
    /// Starts to copy a transient to the host.
    Store(u32),
    /// Waits for that.
    Stored(u32),
    /// Starts to copy a transient back from the host.
    Load(u32),
    /// Waits for that.
    Loaded(u32),
}

/// A piece of the arena that is held from action `lower` up to, not including, action `upper`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub lower: u32,
    pub upper: u32,
    pub size: u64,
    pub alignment: u64,
}

/// Which buffer each operand of each action uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lifespans {
    pub buffers: Vec<Buffer>,
    /// For each action: buffers of its `ins`, then of its `outs`, then its scratch if it has any.
    pub operands: Vec<u32>,
    /// Where each action's operands begin.
    pub start: Vec<u32>,
    /// The buffer in which each transient ends the step, `u32::MAX` if it was never made.
    pub last: Vec<u32>,
}

/// Follows `actions` and finds the buffers. A read of something that was never made panics: the caller's defect.
pub(crate) fn lifespans(indexed: &IndexedProblem, actions: &[Action], scratch_alignment: u64) -> Lifespans {
    const NONE: u32 = u32::MAX;
    count(actions.len() as u64);
    // First the instances, then the sharing, because whether an input dies is known only at the end.
    let mut instance = vec![NONE; indexed.tensors() as usize];
    let mut birth: Vec<u32> = Vec::new();
    let mut death: Vec<u32> = Vec::new();
    let mut tensor: Vec<u32> = Vec::new();
    let mut operands: Vec<u32> = Vec::new();
    let mut start = Vec::with_capacity(actions.len() + 1);
    for (time, action) in actions.iter().enumerate() {
        start.push(operands.len() as u32);
        let single;
        let (ins, outs): (&[u32], &[u32]) = match *action {
            Action::Run(op) => (indexed.ins.of(op), indexed.outs.of(op)),
            // What is copied stays until the copy has been awaited.
            Action::Store(t) | Action::Stored(t) | Action::Loaded(t) => {
                single = [t];
                (&single, &[])
            }
            Action::Load(t) => {
                single = [t];
                (&[], &single)
            }
        };
        for &t in ins {
            let i = instance[t as usize];
            death[i as usize] = time as u32 + 1;
            operands.push(i);
        }
        for &t in outs {
            instance[t as usize] = birth.len() as u32;
            operands.push(birth.len() as u32);
            birth.push(time as u32);
            death.push(time as u32 + 1);
            tensor.push(t);
        }
    }
    start.push(operands.len() as u32);
    for (t, &i) in instance.iter().enumerate() {
        if indexed.keep[t] && i != NONE {
            // Past the last action, so that not even that one may take its place.
            death[i as usize] = actions.len() as u32 + 1;
        }
    }
    let (buffer_of, mut buffers) = share(indexed, actions, &operands, &start, &birth, &death, &tensor);
    let mut all = Lifespans { last: instance, ..Lifespans::default() };
    for l in all.last.iter_mut().filter(|l| **l != NONE) {
        *l = buffer_of[*l as usize];
    }
    for (time, action) in actions.iter().enumerate() {
        all.start.push(all.operands.len() as u32);
        let range = start[time] as usize..start[time + 1] as usize;
        all.operands.extend(operands[range].iter().map(|&i| buffer_of[i as usize]));
        if let Action::Run(op) = *action
            && indexed.scratch[op as usize] > 0
        {
            all.operands.push(buffers.len() as u32);
            let (lower, size) = (time as u32, indexed.scratch[op as usize]);
            buffers.push(Buffer { lower, upper: lower + 1, size, alignment: scratch_alignment });
        }
    }
    all.start.push(all.operands.len() as u32);
    all.buffers = buffers;
    all
}

/// Gives every instance a buffer; an output takes its input's where the op allows it and the input dies.
fn share(
    indexed: &IndexedProblem,
    actions: &[Action],
    operands: &[u32],
    start: &[u32],
    birth: &[u32],
    death: &[u32],
    tensor: &[u32],
) -> (Vec<u32>, Vec<Buffer>) {
    let mut buffer_of = vec![u32::MAX; birth.len()];
    let mut buffers: Vec<Buffer> = Vec::new();
    for (time, action) in actions.iter().enumerate() {
        let operands = &operands[start[time] as usize..start[time + 1] as usize];
        if let Action::Run(op) = *action {
            for pair in indexed.pairs.of(op).chunks_exact(2) {
                let find = |t: u32| operands.iter().find(|&&i| tensor[i as usize] == t);
                if let (Some(&read), Some(&made)) = (find(pair[0]), find(pair[1]))
                    && death[read as usize] == time as u32 + 1
                {
                    let b = buffer_of[read as usize];
                    buffer_of[made as usize] = b;
                    let upper = &mut buffers[b as usize].upper;
                    *upper = (*upper).max(death[made as usize].min(actions.len() as u32));
                }
            }
        }
        for &i in operands {
            if birth[i as usize] == time as u32 && buffer_of[i as usize] == u32::MAX {
                let t = tensor[i as usize] as usize;
                buffer_of[i as usize] = buffers.len() as u32;
                let (lower, upper) = (birth[i as usize], death[i as usize].min(actions.len() as u32));
                buffers.push(Buffer { lower, upper, size: indexed.size[t], alignment: indexed.alignment[t] });
            }
        }
    }
    (buffer_of, buffers)
}

/// The ops that write over what they read and need not: apart, what they read and what they make fit `room` beside all
/// else that is held, every time the op runs.
pub(crate) fn separable(
    indexed: &IndexedProblem,
    actions: &[Action],
    spans: &Lifespans,
    room: u64,
) -> Vec<u32> {
    let held = profile(&spans.buffers, actions.len());
    let mut shares = vec![false; indexed.ops as usize];
    let mut fits = vec![true; indexed.ops as usize];
    for (time, action) in actions.iter().enumerate() {
        let Action::Run(op) = *action else { continue };
        let operands = &spans.operands[spans.start[time] as usize..spans.start[time + 1] as usize];
        let (ins, outs) = (indexed.ins.of(op), indexed.outs.of(op));
        let buffer = |list: &[u32], t: u32| list.iter().position(|&other| other == t);
        let mut more = 0;
        for pair in indexed.pairs.of(op).chunks_exact(2) {
            if let (Some(read), Some(made)) = (buffer(ins, pair[0]), buffer(outs, pair[1]))
                && operands[read] == operands[ins.len() + made]
            {
                more += indexed.size[pair[1] as usize];
            }
        }
        shares[op as usize] |= more > 0;
        fits[op as usize] &= held[time] + more <= room;
    }
    (0..indexed.ops).filter(|&op| shares[op as usize] && fits[op as usize]).collect()
}

/// The bytes held during each action, residents not counted.
pub(crate) fn profile(buffers: &[Buffer], actions: usize) -> Vec<u64> {
    let mut change = vec![0i64; actions + 1];
    for b in buffers {
        change[b.lower as usize] += b.size as i64;
        change[b.upper as usize] -= b.size as i64;
    }
    let mut held = 0;
    let sum = |c: i64| {
        held += c;
        held as u64
    };
    change[..actions].iter().copied().map(sum).collect()
}
