//! Turns a schedule and offsets into the steps of a plan.

use crate::indexed_problem::{IndexedProblem, resident_offsets};
use crate::lifespan::{Action, Lifespans};
use crate::overlap::makespan;
use crate::place::Places;
use crate::plan::{Figures, Placed, Plan, Step};
use crate::problem::{Home, Problem, TensorId};

/// Writes the plan of `actions`, whose buffers are `spans` at `places`. Its figures say only what the steps themselves do.
pub(crate) fn emit(
    problem: &Problem,
    indexed: &IndexedProblem,
    actions: &[Action],
    spans: &Lifespans,
    places: &Places,
) -> Plan {
    let (residents, _) = resident_offsets(problem);
    let mut at = vec![0u64; problem.tensors.len()];
    let mut arena_bytes = 0;
    for &(tensor, offset) in &residents {
        at[tensor.index()] = offset;
        arena_bytes = arena_bytes.max(offset + problem.tensors[tensor.index()].padded_bytes());
    }
    for (b, buffer) in spans.buffers.iter().enumerate() {
        arena_bytes = arena_bytes.max(places.offsets[b] + buffer.size);
    }
    let mut all = Plan {
        residents: residents.iter().map(|&(tensor, offset)| Placed { tensor, offset }).collect(),
        steps: Vec::with_capacity(actions.len()),
        figures: Figures { predicted_ns: makespan(indexed, actions), arena_bytes, ..Figures::default() },
        ..Plan::default()
    };
    let mut ran = vec![false; indexed.ops as usize];
    let mut host: Vec<u64> = vec![0; indexed.tensors() as usize];
    for (time, action) in actions.iter().enumerate() {
        let operands = &spans.operands[spans.start[time] as usize..spans.start[time + 1] as usize];
        let offset = |k: usize| places.offsets[operands[k] as usize];
        match *action {
            Action::Run(position) => {
                let id = indexed.op_id[position as usize];
                let op = &problem.ops[id.index()];
                let (ins, outs) = (indexed.ins.of(position), indexed.outs.of(position));
                for (k, &t) in ins.iter().enumerate() {
                    at[indexed.tensor_id[t as usize].index()] = offset(k);
                }
                let find = |t: &TensorId| {
                    let (root, inside) = problem.root(*t);
                    at[root.index()] + inside
                };
                let reads = op.reads.iter().map(find).collect();
                let writes: Vec<u64> = (0..outs.len()).map(|k| offset(ins.len() + k)).collect();
                let has_scratch = indexed.scratch[position as usize] > 0;
                let scratch = if has_scratch { offset(ins.len() + outs.len()) } else { 0 };
                let replay = std::mem::replace(&mut ran[position as usize], true);
                all.steps.push(Step::Run { op: id, replay, reads, writes, scratch });
                all.figures.recomputed_ops += u64::from(replay);
            }
            Action::Store(t) => {
                let unit = indexed.alignment[t as usize];
                host[t as usize] = all.figures.host_bytes.next_multiple_of(unit);
                all.figures.host_bytes = host[t as usize] + indexed.size[t as usize];
                let (tensor, from, to) = (indexed.tensor_id[t as usize], offset(0), host[t as usize]);
                all.steps.push(Step::Offload { tensor, from, to });
                all.figures.offloaded_tensors += 1;
            }
            Action::Load(t) => {
                let (tensor, from, to) = (indexed.tensor_id[t as usize], host[t as usize], offset(0));
                all.steps.push(Step::Prefetch { tensor, from, to });
            }
            Action::Stored(t) | Action::Loaded(t) => {
                let (tensor, offload) = (indexed.tensor_id[t as usize], matches!(action, Action::Stored(_)));
                all.steps.push(Step::Await { tensor, offload });
            }
        }
    }
    for (t, &tensor) in indexed.tensor_id.iter().enumerate() {
        if problem.tensors[tensor.index()].home == Home::Output {
            let offset = places.offsets[spans.last[t] as usize];
            all.outputs.push(Placed { tensor, offset });
        }
    }
    all
}
