//! Turns a traced training step (JSON lines) into a problem.
//!
//! The first line names the model; then come storages (`s`, `size`, `kind`, `output`) and ops in executed order
//! (`op`, `name`, `ns`, `ins`, `outs`, `mut`, and where they are not the usual `scratch` bytes and `replayable`). A storage that is written in place becomes a new tensor for each
//! version, with an in-place pair that lets the versions share their bytes; a constant that is written in place
//! becomes a resident that is updated.

use crate::plan::{Plan, Step};
use crate::problem::{Home, Op, Problem, Tensor, TensorId};
use plimsoll_record::Kind;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use thiserror::Error;

/// Why a trace cannot be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// A line is not JSON of the expected form.
    #[error("line {line} of the trace is not a storage or an op: {reason}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        reason: String,
    },
    /// An op names a storage that no line defines, or reads one before it is made.
    #[error("op {op} on line {line} uses storage {storage}, which is not defined or not made yet")]
    Storage {
        /// Counted from 1.
        line: usize,
        /// The op's number.
        op: u64,
        /// The storage's number.
        storage: u64,
    },
    /// The result contradicts itself.
    #[error("the trace makes no valid step: {0}")]
    Problem(#[from] crate::check::ProblemError),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Op {
        op: u64,
        name: String,
        ns: u64,
        ins: Vec<u64>,
        outs: Vec<u64>,
        #[serde(rename = "mut")]
        mutated: Vec<u64>,
        #[serde(default)]
        scratch: u64,
        #[serde(default = "usually")]
        replayable: bool,
    },
    Storage {
        s: u64,
        size: u64,
        kind: String,
        output: bool,
    },
    Header {
        #[serde(rename = "model")]
        _model: String,
    },
}

/// An op may run again unless its line says otherwise.
fn usually() -> bool {
    true
}

/// A traced step as a problem, and the way back from it to the trace's own numbers.
#[derive(Clone, Debug)]
pub struct TracedStep {
    /// What the planner sees.
    pub problem: Problem,
    /// The storage of each tensor of the problem.
    pub storages: Vec<u64>,
    /// The number that the trace gives each op of the problem.
    pub ops: Vec<u64>,
}

struct Storage {
    size: u64,
    constant: bool,
    output: bool,
    /// The tensor that holds its present version.
    now: Option<TensorId>,
}

/// Reads the text of a trace. Every offset is aligned to `alignment` bytes.
pub fn read_trace(text: &str, alignment: u64) -> Result<TracedStep, TraceError> {
    let mut problem = Problem::new();
    let (mut numbers, mut ops) = (Vec::new(), Vec::new());
    problem.scratch_alignment = alignment;
    let mut storages: HashMap<u64, Storage> = HashMap::new();
    for (index, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let line = index + 1;
        let parsed = serde_json::from_str(text)
            .map_err(|error| TraceError::Line { line, reason: error.to_string() })?;
        match parsed {
            Line::Header { .. } => {}
            Line::Storage { s, size, kind, output } => {
                let constant = kind == "const";
                let tensor = Tensor { alignment, ..Tensor::resident(format!("s{s}"), size) };
                let now = constant.then(|| problem.tensor(tensor));
                numbers.extend(now.map(|_| s));
                storages.insert(s, Storage { size, constant, output, now });
            }
            Line::Op { op: number, name, ns, ins, outs, mutated, scratch, replayable } => {
                let missing = |storage: u64| TraceError::Storage { line, op: number, storage };
                let mut op = Op { scratch, replayable, ..Op::new(name, &[], &[], ns) };
                for s in ins {
                    let tensor = storages.get(&s).and_then(|s| s.now).ok_or_else(|| missing(s))?;
                    op.reads.push(tensor);
                }
                for (s, fresh) in outs.iter().map(|&s| (s, true)).chain(mutated.iter().map(|&s| (s, false))) {
                    let storage = storages.get_mut(&s).ok_or_else(|| missing(s))?;
                    if storage.constant {
                        op.updates.extend(storage.now);
                        continue;
                    }
                    let home = Home::Transient;
                    let kind = Kind::Activation;
                    let tensor =
                        Tensor { alignment, home, kind, ..Tensor::transient(format!("s{s}"), storage.size) };
                    let made = problem.tensor(tensor);
                    numbers.push(s);
                    op.writes.push(made);
                    match storage.now.replace(made) {
                        Some(old) if !fresh => {
                            if !op.reads.contains(&old) {
                                op.reads.push(old);
                            }
                            op.in_place.push((old, made));
                        }
                        None if !fresh => return Err(missing(s)),
                        _ => {}
                    }
                }
                problem.op(op);
                ops.push(number);
            }
        }
    }
    for storage in storages.values().filter(|s| s.output && !s.constant) {
        if let Some(tensor) = storage.now {
            problem.tensors[tensor.index()].home = Home::Output;
        }
    }
    problem.check()?;
    Ok(TracedStep { problem, storages: numbers, ops })
}

/// One op of a plan in the trace's own numbers, for whoever runs the step elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instruction {
    /// The op.
    pub op: u64,
    /// Whether it has run before in this step: it makes its results again, and must not change constants again.
    pub replay: bool,
    /// Storages that it reads, each with its offset in the arena.
    pub reads: Vec<(u64, u64)>,
    /// Storages that it makes, likewise.
    pub writes: Vec<(u64, u64)>,
    /// Where its scratch begins, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch: Option<u64>,
    /// Storages that nobody reads after it, until they are made again: whoever has no arena frees them here.
    pub last: Vec<u64>,
}

impl TracedStep {
    /// The instructions of a plan of this step. Such a plan copies nothing to the host: a trace has no link to it.
    pub fn instructions(&self, plan: &Plan) -> Vec<Instruction> {
        let tensors = &self.problem.tensors;
        let mut is_wanted: Vec<bool> = tensors.iter().map(|tensor| tensor.home == Home::Output).collect();
        let mut instructions: Vec<Instruction> = Vec::with_capacity(plan.steps.len());
        // From the end, so that the first reader that is met is the last one.
        for step in plan.steps.iter().rev() {
            let Step::Run { op, replay, reads, writes, scratch } = step else { continue };
            let ran = &self.problem.ops[op.index()];
            let mut last = Vec::new();
            for made in &ran.writes {
                if !std::mem::replace(&mut is_wanted[made.index()], false) {
                    last.push(self.storages[made.index()]);
                }
            }
            for read in &ran.reads {
                let is_first = !std::mem::replace(&mut is_wanted[read.index()], true);
                // Bytes that a later version has taken over are not free.
                let goes_on = ran.in_place.iter().any(|(old, made)| {
                    let at = |of: &[TensorId], places: &[u64], tensor| {
                        of.iter().position(|other| *other == tensor).map(|index| places[index])
                    };
                    old == read && at(&ran.reads, reads, *old) == at(&ran.writes, writes, *made)
                });
                if is_first && !goes_on && tensors[read.index()].home == Home::Transient {
                    last.push(self.storages[read.index()]);
                }
            }
            let placed = |of: &[TensorId], places: &[u64]| {
                of.iter().zip(places).map(|(tensor, at)| (self.storages[tensor.index()], *at)).collect()
            };
            instructions.push(Instruction {
                op: self.ops[op.index()],
                replay: *replay,
                reads: placed(&ran.reads, reads),
                writes: placed(&ran.writes, writes),
                scratch: (ran.scratch > 0).then_some(*scratch),
                last,
            });
        }
        instructions.reverse();
        instructions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"model": "tiny", "source": "x", "ops": 3, "storages": 3}
{"s": 0, "size": 100, "kind": "const", "output": true}
{"s": 1, "size": 10, "kind": "action", "output": false}
{"s": 2, "size": 4, "kind": "action", "output": true}
{"op": 0, "name": "mul", "ns": 5, "ins": [0], "outs": [1], "mut": [], "bwd": false}
{"op": 1, "name": "relu_", "ns": 3, "ins": [1], "outs": [], "mut": [1], "bwd": false}
{"op": 2, "name": "sgd_", "ns": 2, "ins": [0, 1], "outs": [2], "mut": [0], "bwd": true}"#;

    #[test]
    fn versions_share_their_bytes_and_constants_are_updated() {
        let TracedStep { problem, storages, ops } = read_trace(TRACE, 1).unwrap();
        assert_eq!((storages, ops), (vec![0, 1, 1, 2], vec![0, 1, 2]));
        assert_eq!(problem.tensors.len(), 4);
        assert_eq!(problem.ops[1].in_place, [(TensorId(1), TensorId(2))]);
        assert_eq!(problem.ops[2].updates, [TensorId(0)]);
        assert_eq!(problem.tensors[3].home, Home::Output);
    }

    #[test]
    fn scratch_counts_and_an_op_that_may_not_run_again_does_not() {
        let chain = r#"{"model": "chain"}
{"s": 0, "size": 8, "kind": "const", "output": false}
{"s": 1, "size": 100, "kind": "action", "output": false}
{"s": 2, "size": 100, "kind": "action", "output": false}
{"s": 3, "size": 100, "kind": "action", "output": false}
{"s": 4, "size": 100, "kind": "action", "output": true}
{"op": 10, "name": "a", "ns": 5, "ins": [0], "outs": [1], "mut": []}
{"op": 20, "name": "b", "ns": 5, "ins": [1], "outs": [2], "mut": [], "scratch": 40}
{"op": 30, "name": "c", "ns": 5, "ins": [2], "outs": [3], "mut": [], "scratch": 150}
{"op": 40, "name": "d", "ns": 5, "ins": [1, 3], "outs": [4], "mut": []}"#;
        let at_least = |text: &str| {
            let step = read_trace(text, 1).unwrap();
            let mut planner = crate::Planner::new(&step.problem, &crate::Request::within(0)).unwrap();
            let least = planner.floor_bytes();
            let plan = planner.plan(least).unwrap();
            (least, step.instructions(&plan))
        };
        // The peak of c is what it reads, makes and works in, where a is made again for d.
        let (least, instructions) = at_least(chain);
        assert_eq!(least, 8 + 100 + 100 + 150);
        let ran: Vec<(u64, bool)> = instructions.iter().map(|one| (one.op, one.replay)).collect();
        assert_eq!(ran, [(10, false), (20, false), (30, false), (10, true), (40, false)]);
        let freed: Vec<&[u64]> = instructions.iter().map(|one| &one.last[..]).collect();
        assert_eq!(freed, [&[][..], &[1], &[2], &[], &[1, 3]]);
        assert_eq!(instructions[0].scratch, None);
        assert!(instructions[2].scratch.is_some());
        let once =
            chain.replace("\"outs\": [1], \"mut\": []", "\"outs\": [1], \"mut\": [], \"replayable\": false");
        let (least, instructions) = at_least(&once);
        assert_eq!(least, 8 + 100 + 100 + 100 + 150);
        assert!(instructions.iter().all(|one| !one.replay));
    }

    #[test]
    fn a_storage_that_nobody_made_is_named_with_its_line() {
        let text = TRACE.replace("\"ins\": [1]", "\"ins\": [7]");
        let error = read_trace(&text, 1).unwrap_err();
        assert_eq!(error.to_string(), "op 1 on line 6 uses storage 7, which is not defined or not made yet");
    }
}
