//! Turns an ONNX file into a description of what is in it: ops, weights, bytes.

use std::path::Path;

use plimsoll_graph::DType;
use serde::Serialize;

use crate::bind::{self, Lengths};
use crate::error::Result;
use crate::file::OnnxFile;
use crate::model::OnnxModel;
use crate::roles;

/// What is in an ONNX file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// `onnx`.
    pub kind: &'static str,
    /// What wrote it.
    pub producer: String,
    /// The version of the standard ops.
    pub opset: i64,
    /// Its inputs, with types.
    pub inputs: Vec<String>,
    /// Its outputs, with types.
    pub outputs: Vec<String>,
    /// How often each op comes up, the most frequent first.
    pub ops: Vec<(String, usize)>,
    /// The weights, in the order of the file.
    pub weights: Vec<WeightInfo>,
    /// Elements and bytes of weights that train.
    pub trained: (u64, u64),
    /// Elements and bytes of weights that do not: statistics.
    pub statistics: (u64, u64),
    /// Elements and bytes of constants.
    pub constants: (u64, u64),
    /// Why it cannot be used here, if it cannot.
    pub problem: Option<String>,
}

/// A weight in a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeightInfo {
    /// Its name.
    pub name: String,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// Its element type in the file.
    pub element: &'static str,
    /// Whether the optimizer moves it.
    pub trained: bool,
}

/// Looks at a file; lengths of open axes say whether it can be used.
///
/// # Errors
/// The file cannot be read at all.
pub fn inspect(path: impl AsRef<Path>, lengths: &Lengths) -> Result<Inspection> {
    let file = OnnxFile::open(path)?;
    let weights = roles::weights(&file);
    let (mut trained, mut statistics, mut constants) = ((0, 0), (0, 0), (0, 0));
    let mut infos = Vec::new();
    for (name, stored) in &file.graph.initializers {
        let weight = weights.get(name);
        let sum = match weight {
            Some(weight) if weight.trained => &mut trained,
            Some(_) => &mut statistics,
            None => &mut constants,
        };
        sum.0 += stored.ty.elements() as u64;
        sum.1 += stored.ty.bytes() as u64;
        infos.extend(weight.map(|weight| WeightInfo {
            name: name.clone(),
            shape: stored.ty.shape.to_vec(),
            element: DType::name(stored.ty.dtype),
            trained: weight.trained,
        }));
    }
    let mut ops: Vec<(String, usize)> = Vec::new();
    for node in &file.graph.nodes {
        match ops.iter_mut().find(|(op, _)| *op == node.op) {
            Some((_, n)) => *n += 1,
            None => ops.push((node.op.clone(), 1)),
        }
    }
    ops.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let (producer, opset) = (file.producer.clone(), file.opset);
    let shown = |ports: &[crate::file::Port]| ports.iter().map(bind::shown).collect();
    let (inputs, outputs) = (shown(&file.graph.inputs), shown(&file.graph.outputs));
    let problem = OnnxModel::of(file, lengths).err().map(|error| error.to_string());
    Ok(Inspection {
        kind: "onnx",
        producer,
        opset,
        inputs,
        outputs,
        ops,
        weights: infos,
        trained,
        statistics,
        constants,
        problem,
    })
}
