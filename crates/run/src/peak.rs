//! Turns a plan into what it holds when it holds most: at which op, by kind and by name.
//!
//! A plan is an order with offsets; who is there at a step is read off it: a tensor is held from the op that makes it to
//! the last one that reads it before it is made anew, and an output that takes an input's place takes over its bytes.

use std::collections::BTreeMap;

use plimsoll_device::{Bytes, Kind as LedgerKind};
use plimsoll_graph::Site;
use plimsoll_plan::{Kind, Plan, Problem, Step};

/// How many of the tensors that are there at the peak are named.
const NAMED: usize = 5;

/// What a plan holds when it holds most. Bytes are of the whole process, as the system will count it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peak {
    /// The op during which most is held: its layer's path and what it computes.
    pub op: String,
    /// The line that made the op; of the forward op, where it is that one's gradient.
    pub site: Option<Site>,
    /// Whether it is of the backward pass.
    pub backward: bool,
    /// Its position in the order of the plan, from zero.
    pub step: usize,
    /// How many ops the plan runs in that part of the step.
    pub steps: usize,
    /// What each kind holds there, in the order of [`LedgerKind::ALL`]; kinds that hold nothing are left out.
    pub kinds: Vec<(LedgerKind, Bytes)>,
    /// What is taken and holds nothing there: gaps between tensors, the rest of a page, room that only planning needed.
    /// With it, the kinds add up to what was planned.
    pub unused: Bytes,
    /// The heaviest tensors that the op finds in the arena or leaves there.
    pub largest: Vec<(String, LedgerKind, Bytes)>,
}

impl Peak {
    /// Nothing planned, nothing held.
    pub const NOTHING: Peak = Peak {
        op: String::new(),
        site: None,
        backward: false,
        step: 0,
        steps: 0,
        kinds: Vec::new(),
        unused: Bytes::ZERO,
        largest: Vec::new(),
    };
}

/// What the arena holds at the step at which it holds most. Residents have bytes of their own and are not among it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fullest {
    /// The position in the plan.
    pub(crate) step: usize,
    /// Which op that is, in the problem's numbering.
    pub(crate) op: usize,
    /// The sum of what is live there.
    pub(crate) live: u64,
    pub(crate) kinds: BTreeMap<LedgerKind, u64>,
    pub(crate) largest: Vec<(String, LedgerKind, Bytes)>,
}

/// One making of a tensor: from the step that makes it up to, not including, `until`.
struct Instance {
    tensor: usize,
    from: usize,
    until: usize,
    at: u64,
}

/// Finds the fullest step of a plan; the first of equals. None for a plan without ops.
pub(crate) fn fullest(problem: &Problem, plan: &Plan) -> Option<Fullest> {
    let instances = instances(problem, plan);
    let scratch: Vec<u64> = plan.steps.iter().map(|step| scratch(problem, step)).collect();
    let mut change = vec![0i64; plan.steps.len() + 1];
    for instance in &instances {
        let bytes = problem.tensors[instance.tensor].padded_bytes() as i64;
        change[instance.from] += bytes;
        change[instance.until] -= bytes;
    }
    let mut held = 0;
    let mut best: Option<(u64, usize)> = None;
    for (step, scratch) in scratch.iter().enumerate() {
        held += change[step];
        let live = held as u64 + scratch;
        if best.is_none_or(|(most, _)| live > most) {
            best = Some((live, step));
        }
    }
    let (live, step) = best?;
    // Where most is held during a copy, that is between two ops; the one behind it is named.
    let run = |step: &Step| match step {
        Step::Run { op, .. } => Some(op.index()),
        _ => None,
    };
    let op = plan.steps[step..].iter().chain(plan.steps[..step].iter().rev()).find_map(run)?;
    let mut kinds: BTreeMap<LedgerKind, u64> = BTreeMap::new();
    let mut largest: Vec<(String, LedgerKind, Bytes)> = Vec::new();
    for instance in instances.iter().filter(|i| i.from <= step && step < i.until) {
        let tensor = &problem.tensors[instance.tensor];
        let (kind, bytes) = (ledger_kind(tensor.kind), tensor.padded_bytes());
        *kinds.entry(kind).or_default() += bytes;
        largest.push((tensor.name.clone(), kind, Bytes(bytes)));
    }
    if scratch[step] > 0 {
        kinds.insert(LedgerKind::Scratch, scratch[step]);
        largest.push((problem.ops[op].name.clone(), LedgerKind::Scratch, Bytes(scratch[step])));
    }
    largest.sort_by(|a, b| (b.2, &a.0).cmp(&(a.2, &b.0)));
    largest.truncate(NAMED);
    Some(Fullest { step, op, live, kinds, largest })
}

fn instances(problem: &Problem, plan: &Plan) -> Vec<Instance> {
    let mut current: Vec<Option<usize>> = vec![None; problem.tensors.len()];
    let mut instances: Vec<Instance> = Vec::new();
    // Instances that lie where one that the same op makes will lie, if nobody reads them later.
    let mut shared: Vec<(usize, usize)> = Vec::new();
    for (time, step) in plan.steps.iter().enumerate() {
        let (op, writes) = match step {
            Step::Run { op, writes, .. } => (op, writes),
            // What is copied to the host stays until the copy has been waited for, and what comes back is there from the
            // start of its copy on.
            Step::Offload { tensor, .. } | Step::Await { tensor, .. } => {
                if let Some(i) = current[tensor.index()] {
                    instances[i].until = time + 1;
                }
                continue;
            }
            Step::Prefetch { tensor, to, .. } => {
                current[tensor.index()] = Some(instances.len());
                instances.push(Instance { tensor: tensor.index(), from: time, until: time + 1, at: *to });
                continue;
            }
        };
        let planned = &problem.ops[op.index()];
        for tensor in &planned.reads {
            if let Some(i) = current[tensor.index()] {
                instances[i].until = time + 1;
            }
        }
        for (tensor, &at) in planned.writes.iter().zip(writes) {
            for (read, _) in planned.in_place.iter().filter(|pair| pair.1 == *tensor) {
                if let Some(old) = current[read.index()].filter(|&old| instances[old].at == at) {
                    shared.push((old, time));
                }
            }
            current[tensor.index()] = Some(instances.len());
            instances.push(Instance { tensor: tensor.index(), from: time, until: time + 1, at });
        }
    }
    for (old, time) in shared {
        if instances[old].until == time + 1 {
            instances[old].until = time;
        }
    }
    instances
}

/// What a step needs beside its operands.
fn scratch(problem: &Problem, step: &Step) -> u64 {
    let Step::Run { op, .. } = step else { return 0 };
    problem.ops[op.index()].scratch.next_multiple_of(problem.scratch_alignment.max(1))
}

/// The ledger's word for what a tensor of a plan is for.
pub(crate) fn ledger_kind(kind: Kind) -> LedgerKind {
    match kind {
        Kind::Parameter => LedgerKind::Parameter,
        Kind::Gradient => LedgerKind::Gradient,
        Kind::Optimizer => LedgerKind::Optimizer,
        Kind::Activation => LedgerKind::Activation,
        Kind::Input => LedgerKind::Input,
        Kind::Other => LedgerKind::Program,
    }
}
