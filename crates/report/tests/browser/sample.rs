//! Records to draw: a made-up step of any length, with a run around it.

use plimsoll_report::record::{
    Action, Epoch, Event, Frontier, Instruction, Interval, Kind, LedgerRow, Phase, Plan, PlanParts, Point,
    RankBytes, RankRow, Ranks, Record, Refusal, Resident, Run, Section, Step, Steps, Strategy,
};

/// A step of `n` instructions: a forward pass whose activations are kept, and a backward pass that lets go of them, the
/// last first.
pub fn record(n: u32) -> Record {
    let half = n / 2;
    let mut step = Step::default();
    step.bytes.program_bytes = 15 << 20;
    step.names = vec!["scratch".into(), "weights".into()];
    step.sites = (0..40).map(|line| format!("src/model.rs:{line}")).collect();
    let mut top = 0;
    let bytes = |i: u32| 64 * (1 + u64::from(i) * 7919 % 4096);
    for i in 0..half {
        let name = |i: u32| format!("block{}/conv{}", i % 50, i);
        step.names.push(name(i));
        let layer = 2 + i;
        let site = Some(i % 40);
        step.instructions.push(instruction("conv", layer, site, Phase::Forward));
        step.tensors.push(tensor(layer, Kind::Activation, bytes(i), top, i, n - i, site));
        top += bytes(i);
        if i % 5 == 0 {
            step.tensors
                .push(Interval { name: 0, ..tensor(layer, Kind::Scratch, 4096, top, i, i + 1, site) });
        }
    }
    for i in half..n {
        let layer = 2 + (n - 1 - i);
        let site = Some(i % 40);
        let what = if i % 9 == 0 { Action::Again } else { Action::Run };
        let done = instruction("conv_grad", layer, site, Phase::Backward);
        step.instructions.push(Instruction { what, ..done });
        let at = step.tensors.iter().filter(|t| t.from <= i && i < t.to).map(|t| t.offset + t.bytes).max();
        let gradient = tensor(layer, Kind::Gradient, 8192, at.unwrap_or(0), i, i + 1, site);
        step.tensors.push(Interval { again: i % 9 == 0, ..gradient });
    }
    step.residents.push(Resident {
        name: 1,
        kind: Kind::Parameter,
        shape: [1 << 20].into(),
        dtype: "f32".into(),
        bytes: 4 << 20,
        site: Some(3),
    });
    step.sections.push(Section { name: "step".into(), first: 0, samples: 32, runs: 1 });
    step.bytes.arena_bytes = step.tensors.iter().map(|t| t.offset + t.bytes).max().unwrap_or(1);
    step.bytes.planned_bytes = (19 << 20) + step.bytes.arena_bytes;
    step.memory_limit_bytes = Some(step.bytes.planned_bytes + (1 << 20));
    let plan = Plan {
        model: "sample".into(),
        batch: 32,
        memory_limit_bytes: step.memory_limit_bytes,
        planned_bytes: step.bytes.planned_bytes,
        floor_bytes: step.bytes.planned_bytes / 2,
        unlimited_bytes: step.bytes.planned_bytes + (9 << 20),
        parts: PlanParts {
            arena_bytes: step.bytes.arena_bytes,
            live_bytes: step.peak().1,
            ..PlanParts::default()
        },
        predicted_ms: 12.5,
        unlimited_ms: 11.25,
        micro_batches: 1,
        recomputed_ops: 7,
        exactness: Some("bitwise".into()),
        parallel: Some("shard".into()),
        strategies: vec![way("data", true), way("shard", true), way("pipeline", false)],
        ..Plan::default()
    };
    let point =
        |planned_bytes: u64, predicted_ms: f64| Point { planned_bytes, predicted_ms, ..Point::default() };
    let points = vec![point(plan.floor_bytes, 20.0), point(plan.planned_bytes, 12.5)];
    let frontier = Some(Frontier { points, ..Frontier::default() });
    Record { run: Some(run(&plan)), plan, step: Some(step), frontier, ..Record::default() }
}

fn instruction(op: &'static str, layer: u32, site: Option<u32>, phase: Phase) -> Instruction {
    Instruction { op: op.into(), layer, site, us: 12.5, what: Action::Run, phase }
}

fn tensor(
    layer: u32,
    kind: Kind,
    bytes: u64,
    offset: u64,
    from: u32,
    to: u32,
    site: Option<u32>,
) -> Interval {
    let (shape, dtype) = ([bytes / 4].into(), "f32".into());
    Interval { name: layer, layer, kind, shape, dtype, bytes, offset, from, to, again: false, site }
}

fn way(name: &str, fits: bool) -> Strategy {
    let refusal = Refusal { floor_bytes: (!fits).then_some(7 << 20), ..Refusal::default() };
    let bytes = RankBytes { planned_bytes: 6 << 20, ..RankBytes::default() };
    Strategy { parallel: name.into(), fits, refusal, bytes, ..Strategy::default() }
}

/// Two ranks, of which the second took more.
fn ranks(planned_bytes: u64) -> Ranks {
    let row = |rank: u64| RankRow {
        rank,
        planned_bytes,
        peak_bytes: planned_bytes - 1000 + 10 * rank,
        sent_bytes: 5 << 20,
        step_seconds: 1.5,
        ..RankRow::default()
    };
    let rows = (0..2).map(row).collect();
    Ranks { epoch: 3, by: "tcp".into(), parallel: "shard".into(), rows, ..Ranks::default() }
}

fn run(plan: &Plan) -> Run {
    let n = 300;
    let real = |f: &dyn Fn(u64) -> f64| (1..=n).map(|i| Some(f(i))).collect::<Vec<_>>();
    let steps = Steps {
        step: (1..=n).collect(),
        loss: real(&|i| 2.0 / i as f64),
        rate: real(&|_| 1e-3),
        samples_s: real(&|i| 900.0 + (i % 7) as f64),
        waiting: real(&|i| 0.01 * (i % 3) as f64),
        resident_bytes: vec![plan.planned_bytes - 1000; n as usize],
        resident_peak_bytes: vec![plan.planned_bytes - 500; n as usize],
        device_bytes: vec![plan.planned_bytes / 2; n as usize],
        device_peak_bytes: Vec::new(),
    };
    let epoch = |epoch: u64| {
        let values = [("loss", 1.0 / epoch as f64), ("accuracy", 0.9), ("val_loss", 0.5)];
        let values = values.map(|(name, value)| (name.to_string(), Some(value))).into();
        Epoch { epoch, step: epoch * 100, values }
    };
    let event = |event: &'static str, step: u64| Event::new(event).at(step);
    let row = |kind: Kind, planned_bytes: u64| LedgerRow {
        kind,
        name: kind.name().into(),
        planned_bytes,
        measured_bytes: (kind != Kind::Program).then(|| planned_bytes - 64),
    };
    Run {
        steps,
        epochs: (1..=3).map(epoch).collect(),
        events: vec![event("started", 0), event("skipped", 17), event("saved", 100)],
        ledger: vec![
            row(Kind::Parameter, 4 << 20),
            row(Kind::Activation, plan.parts.arena_bytes),
            row(Kind::Program, 15 << 20),
        ],
        peak_bytes: Some(plan.planned_bytes - 500),
        host_peak_bytes: Some(plan.planned_bytes - 500),
        measured_ms: Some(35.5),
        unread_lines: 0,
        ranks: Some(ranks(plan.planned_bytes)),
    }
}
