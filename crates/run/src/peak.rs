//! Turns a plan into what it holds when it holds most: at which op, by kind and by name.
//!
//! Who holds which bytes at a step is the planner's to say ([`plimsoll_plan::instances`]).

use std::collections::BTreeMap;

use plimsoll_device::Bytes;
use plimsoll_graph::Site;
use plimsoll_plan::{Content, Plan, Problem, Step, instances, live_bytes};
use plimsoll_record::Kind;

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
    /// What each kind holds there, in the order of [`Kind::ALL`]; kinds that hold nothing are left out.
    pub kinds: Vec<(Kind, Bytes)>,
    /// What is taken and holds nothing there: gaps between tensors, the rest of a page, room that only planning needed.
    /// With it, the kinds add up to what was planned.
    pub unused: Bytes,
    /// The heaviest tensors that the op finds in the arena or leaves there.
    pub largest: Vec<(String, Kind, Bytes)>,
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
    pub(crate) kinds: BTreeMap<Kind, u64>,
    pub(crate) largest: Vec<(String, Kind, Bytes)>,
}

/// Finds the fullest step of a plan; the first of equals. None for a plan without ops.
pub(crate) fn fullest(problem: &Problem, plan: &Plan) -> Option<Fullest> {
    let instances = instances(problem, plan);
    let held = live_bytes(&instances, plan.steps.len());
    let live = held.iter().copied().max()?;
    let step = held.iter().position(|bytes| *bytes == live)?;
    // Where most is held during a copy, that is between two ops; the one behind it is named.
    let run = |step: &Step| match step {
        Step::Run { op, .. } => Some(op.index()),
        _ => None,
    };
    let op = plan.steps[step..].iter().chain(plan.steps[..step].iter().rev()).find_map(run)?;
    let mut kinds: BTreeMap<Kind, u64> = BTreeMap::new();
    let mut largest: Vec<(String, Kind, Bytes)> = Vec::new();
    for instance in instances.iter().filter(|i| i.bytes > 0 && i.from <= step && step < i.until) {
        let (name, kind) = match instance.content {
            Content::Tensor(t) => (&problem.tensors[t.index()].name, problem.tensors[t.index()].kind),
            Content::Scratch(op) => (&problem.ops[op.index()].name, Kind::Scratch),
        };
        *kinds.entry(kind).or_default() += instance.bytes;
        largest.push((name.clone(), kind, Bytes(instance.bytes)));
    }
    largest.sort_by(|a, b| (b.2, &a.0).cmp(&(a.2, &b.0)));
    largest.truncate(NAMED);
    Some(Fullest { step, op, live, kinds, largest })
}
