//! Writes a plan as text that stays the same as long as the plan does, one step a line, for people and for diffs.

use crate::plan::{Plan, Step};
use crate::problem::{Carry, Problem, TensorId};
use std::fmt::Write;

/// Writes `plan` for `problem`.
///
/// ```
/// use plimsoll_plan::{Op, Problem, Request, Tensor, plan, text::write_plan};
/// let mut step = Problem::new();
/// let y = step.tensor(Tensor::output("y", 64));
/// step.op(Op::new("make", &[], &[y], 10));
/// let plan = plan(&step, &Request::within(64)).unwrap();
/// assert!(write_plan(&step, &plan).contains("run make -> y@0"));
/// ```
pub fn write_plan(problem: &Problem, plan: &Plan) -> String {
    let figures = &plan.figures;
    let mut text = String::new();
    // Writing to a string does not fail.
    let mut line = |s: String| _ = writeln!(text, "{s}");
    line(format!("budget {} arena {} live {}", plan.budget, figures.arena_bytes, figures.live_bytes));
    line(format!(
        "floor {} bound {} unlimited {}",
        figures.floor_bytes, figures.bound_bytes, figures.unlimited_bytes
    ));
    line(format!(
        "ns {} lower bound {} unlimited {}",
        figures.predicted_ns, figures.lower_bound_ns, figures.unlimited_ns
    ));
    line(format!("host {}", figures.host_bytes));
    let name = |t: TensorId| problem.tensors.get(t.index()).map_or("?", |t| t.name.as_str());
    let placed = |t: TensorId, offset: u64| format!("{}@{offset}", name(t));
    for resident in &plan.residents {
        line(format!("resident {}", placed(resident.tensor, resident.offset)));
    }
    for step in &plan.steps {
        match step {
            Step::Run { op, replay, reads, writes, scratch } => {
                let Some(o) = problem.ops.get(op.index()) else { continue };
                let list = |ids: &[TensorId], at: &[u64]| {
                    ids.iter().zip(at).map(|(t, at)| format!(" {}", placed(*t, *at))).collect::<String>()
                };
                let verb = match o.carry {
                    Some(Carry::In) => "fetch",
                    Some(Carry::Out) => "store",
                    None if *replay => "replay",
                    None => "run",
                };
                let mut s = format!("{verb} {}{}", o.name, list(&o.reads, reads));
                if !o.writes.is_empty() {
                    s += &format!(" ->{}", list(&o.writes, writes));
                }
                if o.scratch > 0 {
                    s += &format!(" scratch {}@{scratch}", o.scratch);
                }
                line(s);
            }
            Step::Offload { tensor, from, to } => line(format!("offload {} to {to}", placed(*tensor, *from))),
            Step::Prefetch { tensor, from, to } => {
                line(format!("prefetch {} from {from}", placed(*tensor, *to)))
            }
            Step::Await { tensor, offload } => {
                line(format!("await {} of {}", if *offload { "offload" } else { "prefetch" }, name(*tensor)))
            }
        }
    }
    for output in &plan.outputs {
        line(format!("output {}", placed(output.tensor, output.offset)));
    }
    text
}
