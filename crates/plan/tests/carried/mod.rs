//! Training steps whose updates have state on the host.

use plimsoll_plan::{Kind, Op, Phase, Problem, Tensor};

/// The same step with state of every update on the host: brought before the update, and taken back after it.
pub fn with_carried_state(mut step: Problem, ns: u64) -> Problem {
    for (layer, mut op) in std::mem::take(&mut step.ops).into_iter().enumerate() {
        if op.phase == Phase::Each || op.updates.is_empty() {
            step.op(op);
            continue;
        }
        let bytes = step.tensors[op.updates[0].index()].bytes;
        let moment = |name: &str| Tensor { kind: Kind::Optimizer, ..Tensor::transient(name, bytes) };
        let (old, new) = (step.tensor(moment("moment")), step.tensor(moment("new moment")));
        op.reads.push(old);
        op.writes.push(new);
        op.in_place.push((old, new));
        let once = |op: Op| Op { phase: Phase::Once, ..op };
        step.op(once(Op::fetch(format!("fetch{layer}"), old, ns)));
        step.op(op);
        step.op(once(Op::store(format!("store{layer}"), new, ns)));
    }
    step
}
