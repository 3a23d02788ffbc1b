//! Says why no plan fits, in figures and in words: the floor, where it is, and who holds what there.

use crate::budget_grid::BudgetGrid;
use crate::lifespan::{Action, lifespans, profile};
use crate::problem::{Home, OpId, Problem, Tensor, TensorId};
use crate::schedule::Schedule;
use plimsoll_record::Kind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A tensor that is there when memory is shortest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Which one.
    pub tensor: TensorId,
    /// Its name.
    pub name: String,
    /// Its bytes, padded.
    pub bytes: u64,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Infeasible {
    /// The budget that was asked for.
    pub budget: u64,
    /// The least budget that the planner can keep to.
    pub floor_bytes: u64,
    /// Predicted nanoseconds of the smallest plan found: an upper bound on the time at the floor.
    pub floor_ns: u64,
    /// What no plan of this order can go below, whatever the planner.
    pub bound_bytes: u64,
    /// The op during which the floor's plan holds most.
    pub op: OpId,
    /// Its name.
    pub op_name: String,
    /// How many bytes of each kind are held there, most first. Scratch is counted apart.
    pub held: Vec<(Kind, u64)>,
    /// Scratch bytes of that op.
    pub scratch_bytes: u64,
    /// The largest tensors that are held there.
    pub largest: Vec<Holder>,
}

impl Infeasible {
    /// A refusal about which nothing is known.
    pub(crate) fn empty(budget: u64) -> Infeasible {
        Infeasible {
            budget,
            floor_bytes: 0,
            floor_ns: 0,
            bound_bytes: 0,
            op: OpId(0),
            op_name: String::new(),
            held: Vec::new(),
            scratch_bytes: 0,
            largest: Vec::new(),
        }
    }
}

/// Finds out what the floor is made of.
pub(crate) fn explain(budget: u64, bound_bytes: u64, grid: &mut BudgetGrid) -> Infeasible {
    let mut refusal =
        Infeasible { bound_bytes, floor_bytes: grid.floor_bytes(), ..Infeasible::empty(budget) };
    let step = grid.step.problem.clone();
    let schedule = grid.floor_schedule();
    refusal.floor_ns = schedule.ns;
    at_peak(&step, schedule, &mut refusal);
    refusal
}

/// Fills in who holds what at the action where the schedule's schedule holds most.
fn at_peak(problem: &Problem, schedule: &Schedule, refusal: &mut Infeasible) {
    let indexed = &schedule.indexed;
    let spans = lifespans(indexed, &schedule.actions, problem.scratch_alignment);
    let profile = profile(&spans.buffers, schedule.actions.len());
    let Some(peak) = (0..profile.len()).max_by_key(|&at| (profile[at], std::cmp::Reverse(at))) else {
        return;
    };
    let mut holders: Vec<Holder> = Vec::new();
    let mut add = |tensor: TensorId| {
        let t = &problem.tensors[tensor.index()];
        holders.push(Holder { tensor, name: t.name.clone(), bytes: t.padded_bytes() });
    };
    let resident = |t: &&(usize, &Tensor)| t.1.home == Home::Resident && t.1.view.is_none();
    problem.tensors.iter().enumerate().filter(|t| resident(&t)).for_each(|t| add(TensorId(t.0 as u32)));
    // Which tensor a buffer holds at the peak: the one last written to it by then.
    let mut inside: Vec<Option<TensorId>> = vec![None; spans.buffers.len()];
    for (time, action) in schedule.actions.iter().enumerate().take(peak + 1) {
        let operands = &spans.operands[spans.start[time] as usize..spans.start[time + 1] as usize];
        match *action {
            Action::Run(op) => {
                let ins = indexed.ins.of(op).len();
                for (k, &t) in indexed.outs.of(op).iter().enumerate() {
                    inside[operands[ins + k] as usize] = Some(indexed.tensor_id[t as usize]);
                }
                refusal.op = indexed.op_id[op as usize];
                refusal.scratch_bytes = indexed.scratch[op as usize];
            }
            Action::Load(t) => inside[operands[0] as usize] = Some(indexed.tensor_id[t as usize]),
            Action::Store(_) | Action::Stored(_) | Action::Loaded(_) => {}
        }
    }
    for (b, buffer) in spans.buffers.iter().enumerate() {
        if (buffer.lower as usize) <= peak && peak < buffer.upper as usize {
            inside[b].into_iter().for_each(&mut add);
        }
    }
    refusal.op_name = problem.ops[refusal.op.index()].name.clone();
    let mut held: BTreeMap<Kind, u64> = BTreeMap::new();
    for holder in &holders {
        *held.entry(problem.tensors[holder.tensor.index()].kind).or_default() += holder.bytes;
    }
    refusal.held = held.into_iter().filter(|h| h.1 > 0).collect();
    refusal.held.sort_by_key(|h| std::cmp::Reverse(h.1));
    holders.sort_by_key(|h| (std::cmp::Reverse(h.bytes), h.tensor));
    holders.truncate(5);
    refusal.largest = holders;
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "budget {} cannot hold this step: ", Bytes(self.budget))?;
        write!(f, "floor is {} at {} ({}); held there: ", Bytes(self.floor_bytes), self.op, self.op_name)?;
        let mut parts: Vec<String> =
            self.held.iter().map(|(kind, b)| format!("{} {}", kind.plural(), Bytes(*b))).collect();
        if self.scratch_bytes > 0 {
            parts.push(format!("scratch {}", Bytes(self.scratch_bytes)));
        }
        f.write_str(&parts.join(", "))?;
        let largest: Vec<String> =
            self.largest.iter().map(|h| format!("{} {}", h.name, Bytes(h.bytes))).collect();
        write!(f, "; largest: {}", largest.join(", "))?;
        write!(f, "; raising the budget to {} would fit", self.floor_bytes)
    }
}

impl std::error::Error for Infeasible {}

/// Bytes as people read them, with the exact number where rounding would hide it.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        match units.into_iter().find(|(_, size)| self.0 >= *size) {
            Some((unit, size)) if self.0.is_multiple_of(size) => write!(f, "{} {unit}", self.0 / size),
            Some((unit, size)) => write!(f, "{:.2} {unit}", self.0 as f64 / size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}
