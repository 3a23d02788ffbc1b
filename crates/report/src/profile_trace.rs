//! Turns a measured profile into a Chrome trace: every instruction of every step at the time at which it ran, copies beside kernels on
//! tracks of their own. It is written piece by piece, so that it may be written while a memory limit holds.

use std::io::Write;

use plimsoll_record::{Action, Profile, ProfiledRun, Step};
use serde_json::json;

/// The tracks, by number from 1.
const TRACKS: [&str; 5] =
    ["kernels", "copies to the host", "copies from the host", "steps", "exchanges between ranks"];
const KERNELS: usize = 1;
const STEPS: usize = 4;
const EXCHANGES: usize = 5;

/// Ops that ranks exchange values by.
const EXCHANGED: [&str; 6] = ["all_reduce", "reduce_scatter", "all_gather", "of_rank", "send", "receive"];

/// Writes the trace of a profile. It must be of that step ([`Profile::check`]). Perfetto (ui.perfetto.dev) and chrome://tracing open it.
///
/// # Errors
/// It cannot be written.
pub fn write_profile_trace(out: &mut impl Write, step: &Step, profile: &Profile) -> std::io::Result<()> {
    let title = format!("{} profiled steps on {}", profile.steps.len(), profile.device);
    write!(
        out,
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[",
        json!({
            "device": profile.device, "steps": profile.steps.len(), "mean": profile.mean,
            "predicted_ms": profile.predicted_ms, "planned_bytes": profile.memory.planned_bytes, "taken_bytes": profile.memory.taken_bytes,
        })
    )?;
    write!(out, "{}", json!({ "ph": "M", "pid": 1, "name": "process_name", "args": { "name": title } }))?;
    for (i, name) in TRACKS.iter().enumerate() {
        let track =
            json!({ "ph": "M", "pid": 1, "tid": i + 1, "name": "thread_name", "args": { "name": name } });
        write!(out, ",{track}")?;
    }
    let mut begin = 0.0;
    for profiled in &profile.steps {
        // What was waited for data lies before the step.
        begin += profiled.spent.data_waiting_ms * 1e3;
        let name = format!("step {}", profiled.step);
        let whole = json!({
            "ph": "X", "pid": 1, "tid": STEPS, "ts": begin, "dur": profiled.spent.step_ms * 1e3, "name": name,
            "cat": "step", "args": profiled.spent,
        });
        write!(out, ",{whole}")?;
        for run in &profiled.runs {
            write_run(out, step, run, begin + run.start_us)?;
        }
        begin += profiled.spent.step_ms * 1e3;
    }
    writeln!(out, "]}}")
}

/// The instructions of one run, which begins at `begin`. A copy that has a time of its own is shown with that.
fn write_run(out: &mut impl Write, step: &Step, run: &ProfiledRun, begin: f64) -> std::io::Result<()> {
    let Some(section) = step.section(run.section as usize) else { return Ok(()) };
    let mut at = begin;
    let mut copies = run.copies.iter().peekable();
    // Exchanges that were started and not waited for yet, each with its time.
    let mut under_way: Vec<(usize, f64)> = Vec::new();
    for ((i, us), number) in run.us.iter().enumerate().zip(section) {
        let us = f64::from(*us);
        let copy = copies.next_if(|copy| copy.instruction as usize == i);
        let line = &step.instructions[number];
        let (track, start, took) = match (copy, line.what) {
            (Some(copy), Action::Offload) => (2, begin + f64::from(copy.start_us), f64::from(copy.us)),
            (Some(copy), _) => (3, begin + f64::from(copy.start_us), f64::from(copy.us)),
            (None, _) => (KERNELS, at, us),
        };
        let layer = &step.names[line.layer as usize];
        let name = if layer.is_empty() { line.op.to_string() } else { format!("{layer}/{}", line.op) };
        let source = line.site.map_or("", |site| step.sites[site as usize].as_str());
        let event = json!({
            "ph": "X", "pid": 1, "tid": track, "ts": start, "dur": took, "name": name, "cat": line.what,
            "args": { "instruction": number, "phase": line.phase, "source": source, "predicted_us": line.us },
        });
        write!(out, ",{event}")?;
        let began = match line.what {
            Action::Run if EXCHANGED.contains(&&*line.op) => {
                under_way.push((number, at));
                None
            }
            // It is told like the exchange that it waits for.
            Action::Await if copy.is_none() => {
                let is_its = |(exchange, _): &(usize, f64)| {
                    let exchange = &step.instructions[*exchange];
                    (exchange.layer, exchange.site) == (line.layer, line.site)
                };
                under_way.iter().position(is_its).map(|i| under_way.remove(i))
            }
            _ => None,
        };
        at += us;
        if let Some((exchange, began)) = began {
            let line = &step.instructions[exchange];
            let name = if layer.is_empty() { line.op.to_string() } else { format!("{layer}/{}", line.op) };
            let event = json!({
                "ph": "X", "pid": 1, "tid": EXCHANGES, "ts": began, "dur": at - began, "name": name, "cat": "exchange",
                "args": { "instruction": exchange, "waited_us": us, "predicted_us": line.us },
            });
            write!(out, ",{event}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use plimsoll_record::{Instruction, Phase, ProfiledCopy, ProfiledStep, Section, Spent};
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_trace_has_an_event_an_instruction_at_the_time_at_which_it_ran() {
        let line = |op: &'static str, what| Instruction {
            op: op.into(),
            layer: 0,
            site: Some(0),
            us: 1.0,
            what,
            phase: Phase::Forward,
        };
        let step = Step {
            names: vec!["dense".into()],
            sites: vec!["model.rs:7".into()],
            instructions: vec![
                line("matmul", Action::Run),
                line("offload", Action::Offload),
                line("tanh", Action::Run),
            ],
            sections: vec![Section { name: "step".into(), first: 0, samples: 1, runs: 1 }],
            ..Step::default()
        };
        let copies = vec![ProfiledCopy { instruction: 1, start_us: 10.0, us: 25.0 }];
        let run = ProfiledRun { section: 0, start_us: 3.0, us: vec![10.0, 0.5, 20.0], copies };
        let spent = Spent { step_ms: 0.04, data_waiting_ms: 0.01, ..Spent::default() };
        let profiled = |n| ProfiledStep { step: n, spent, runs: vec![run.clone()] };
        let profile = Profile {
            steps: vec![profiled(2), profiled(3)],
            instructions_us: vec![0.0; 3],
            ..Profile::default()
        };
        profile.check(&step, "profile").unwrap();
        let mut text = Vec::new();
        write_profile_trace(&mut text, &step, &profile).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |cat: &str| events.iter().filter(|e| e["cat"] == cat).collect::<Vec<_>>();
        assert_eq!((of("run").len(), of("offload").len(), of("step").len()), (4, 2, 2));
        let near = |value: &Value, wanted: f64| (value.as_f64().unwrap() - wanted).abs() < 1e-6;
        // The second step begins behind the first, and behind what was waited for its batch.
        let (first, second) = (of("run")[1], of("run")[2]);
        assert!(near(&first["ts"], 10.0 + 3.0 + 10.5) && near(&first["dur"], 20.0), "{first}");
        assert!(near(&second["ts"], 60.0 + 3.0), "{second}");
        let copy = of("offload")[0];
        assert!(near(&copy["ts"], 23.0) && near(&copy["dur"], 25.0) && copy["tid"] == 2, "{copy}");
        assert_eq!(first["name"], "dense/tanh");
        assert_eq!(first["args"]["source"], "model.rs:7");
    }

    #[test]
    fn an_exchange_is_drawn_from_its_start_to_the_end_of_its_wait() {
        let line = |op: &'static str, what, site| Instruction {
            op: op.into(),
            layer: 0,
            site: Some(site),
            us: 1.0,
            what,
            phase: Phase::Backward,
        };
        let step = Step {
            names: vec!["dense".into()],
            sites: vec!["model.rs:7".into(), "model.rs:8".into()],
            instructions: vec![
                line("all_reduce", Action::Run, 0),
                line("all_reduce", Action::Run, 1),
                line("matmul", Action::Run, 0),
                line("await", Action::Await, 1),
                line("await", Action::Await, 0),
            ],
            sections: vec![Section { name: "step".into(), first: 0, samples: 1, runs: 1 }],
            ..Step::default()
        };
        let us = vec![2.0, 3.0, 40.0, 1.0, 5.0];
        let run = ProfiledRun { section: 0, start_us: 0.0, us, copies: Vec::new() };
        let profiled = ProfiledStep { step: 1, spent: Spent::default(), runs: vec![run] };
        let profile = Profile { steps: vec![profiled], instructions_us: vec![0.0; 5], ..Profile::default() };
        let mut text = Vec::new();
        write_profile_trace(&mut text, &step, &profile).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let all = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["cat"] == "exchange");
        let found: Vec<(f64, f64, f64)> = all
            .map(|e| ["ts", "dur"].map(|key| e[key].as_f64().unwrap()))
            .map(|[ts, dur]| (ts, dur, ts + dur))
            .collect();
        assert_eq!(found, [(2.0, 44.0, 46.0), (0.0, 51.0, 51.0)]);
    }
}
