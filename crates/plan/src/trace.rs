//! Turns a traced training step (JSON lines) into a problem.
//!
//! The first line names the model; then come storages (`s`, `size`, `kind`, `output`) and ops in executed order
//! (`op`, `name`, `ns`, `ins`, `outs`, `mut`). A storage that is written in place becomes a new tensor for each
//! version, with an in-place pair that lets the versions share their bytes; a constant that is written in place
//! becomes a resident that is updated.

use crate::problem::{Home, Op, Problem, Tensor, TensorId};
use plimsoll_record::Kind;
use serde::Deserialize;
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

struct Storage {
    size: u64,
    constant: bool,
    output: bool,
    /// The tensor that holds its present version.
    now: Option<TensorId>,
}

/// Reads the text of a trace. Every offset is aligned to `alignment` bytes.
pub fn read_trace(text: &str, alignment: u64) -> Result<Problem, TraceError> {
    let mut problem = Problem::new();
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
                storages.insert(s, Storage { size, constant, output, now });
            }
            Line::Op { op: number, name, ns, ins, outs, mutated } => {
                let missing = |storage: u64| TraceError::Storage { line, op: number, storage };
                let mut op = Op::new(name, &[], &[], ns);
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
            }
        }
    }
    for storage in storages.values().filter(|s| s.output && !s.constant) {
        if let Some(tensor) = storage.now {
            problem.tensors[tensor.index()].home = Home::Output;
        }
    }
    problem.check()?;
    Ok(problem)
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
        let problem = read_trace(TRACE, 1).unwrap();
        assert_eq!(problem.tensors.len(), 4);
        assert_eq!(problem.ops[1].in_place, [(TensorId(1), TensorId(2))]);
        assert_eq!(problem.ops[2].updates, [TensorId(0)]);
        assert_eq!(problem.tensors[3].home, Home::Output);
    }

    #[test]
    fn a_storage_that_nobody_made_is_named_with_its_line() {
        let text = TRACE.replace("\"ins\": [1]", "\"ins\": [7]");
        let error = read_trace(&text, 1).unwrap_err();
        assert_eq!(error.to_string(), "op 1 on line 6 uses storage 7, which is not defined or not made yet");
    }
}
