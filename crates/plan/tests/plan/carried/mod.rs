//! Training steps whose updates have state on the host.

use plimsoll_plan::{Kind, Op, Problem, Tensor};

/// The same step with state of every update on the host: brought before the update, and taken back after it.
pub fn with_carried_state(mut step: Problem, ns: u64) -> Problem {
    for (layer, mut op) in std::mem::take(&mut step.ops).into_iter().enumerate() {
        if !op.writes.is_empty() || op.updates.is_empty() {
            step.op(op);
            continue;
        }
        let bytes = step.tensors[op.updates[0].index()].bytes;
        let moment = |name: &str| Tensor { kind: Kind::Optimizer, ..Tensor::transient(name, bytes) };
        let (old, new) = (step.tensor(moment("moment")), step.tensor(moment("new moment")));
        op.reads.push(old);
        op.writes.push(new);
        op.in_place.push((old, new));
        step.op(Op::fetch(format!("fetch{layer}"), old, ns));
        step.op(op);
        step.op(Op::store(format!("store{layer}"), new, ns));
    }
    step
}
