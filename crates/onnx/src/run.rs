//! Runs the nodes of a graph one after the other: at once where everything is known, else as ops of the model.

use std::sync::OnceLock;

use plimsoll_device::{AllocatorKind, Bytes};
use plimsoll_nn::Net;
use plimsoll_run::{Device, Error as RunError, Result, named};
use rustc_hash::FxHashMap;

use crate::call::Call;
use crate::constant::Constant;
use crate::error::refuse;
use crate::file::{Graph, Node, OnnxFile};
use crate::ops;
use crate::value::Value;

/// The most bytes that are computed with while a model is read.
const FOLDED: Bytes = Bytes::mib(256);

/// Values by name: those of graphs that are inside of others behind those.
pub(crate) type Scope = FxHashMap<String, Value>;

/// Ops that are not computed beforehand, whatever is known.
const NEVER_FOLDED: [&str; 2] = ["Dropout", "BatchNormalization"];

/// Runs a graph over the values of its inputs and initializers, which stand in the last of the scopes.
pub(crate) fn graph(file: &OnnxFile, graph: &Graph, net: &mut Net, scopes: &mut Vec<Scope>) -> Result<()> {
    for node in &graph.nodes {
        let outputs = if node.op == "If" && node.domain.is_empty() {
            branch(file, node, net, scopes)
        } else {
            one(file, node, net, scopes)
        };
        let outputs = outputs.map_err(|error| placed(node, error))?;
        let Some(scope) = scopes.last_mut() else { return Err(refuse("runs nowhere")) };
        for (name, value) in node.outputs.iter().zip(outputs).filter(|(name, _)| !name.is_empty()) {
            scope.insert(name.clone(), value);
        }
    }
    Ok(())
}

/// The value of a name, of the innermost graph that has it.
pub(crate) fn lookup<'a>(scopes: &'a [Scope], name: &str) -> Option<&'a Value> {
    scopes.iter().rev().find_map(|scope| scope.get(name))
}

/// An error of the engine that says which node it is about.
fn placed(node: &Node, error: RunError) -> RunError {
    match error {
        RunError::Signature { why, .. } => refuse(format!("of node {} ({}) {why}", node.name, node.op)),
        RunError::Graph(why) => refuse(format!("of node {} ({}): {why}", node.name, node.op)),
        other => other,
    }
}

fn one(file: &OnnxFile, node: &Node, net: &mut Net, scopes: &[Scope]) -> Result<Vec<Value>> {
    let handler = ops::find(&node.op).filter(|_| node.domain.is_empty());
    let handler = handler.ok_or_else(|| {
        let of = if node.domain.is_empty() { String::new() } else { format!(" of {}", node.domain) };
        refuse(format!("is an op{of} that is not known here; docs/onnx.md lists those that are"))
    })?;
    let mut inputs: Vec<Option<Value>> = Vec::with_capacity(node.inputs.len());
    for name in &node.inputs {
        inputs.push(match name.is_empty() {
            true => None,
            false => {
                let missing = || refuse(format!("reads {name}, which is not there"));
                Some(lookup(scopes, name).ok_or_else(missing)?.clone())
            }
        });
    }
    let is_known = inputs.iter().flatten().all(|value| value.known().is_some());
    let folds = is_known && !NEVER_FOLDED.contains(&node.op.as_str());
    let mut run = || -> Result<Vec<Value>> {
        let mut call = Call::new(node, file.opset, &inputs, net, folds);
        let outputs = handler(&mut call)?;
        call.finish()?;
        Ok(outputs)
    };
    let outputs = if folds {
        folding()?.scope(|| run()?.into_iter().map(settled).collect())
    } else {
        named(&node.name, run)
    }?;
    let missing = (outputs.len()..node.outputs.len()).find(|&i| !node.outputs[i].is_empty());
    match missing {
        Some(i) => Err(refuse(format!("is asked for output {i}, which is not made here"))),
        None => Ok(outputs),
    }
}

/// The device on which constants are computed.
fn folding() -> Result<Device> {
    static FOLDING: OnceLock<Device> = OnceLock::new();
    if let Some(device) = FOLDING.get() {
        return Ok(device.clone());
    }
    // From the system as it is wanted: one region for all of it would be taken at once.
    let device = Device::cpu_allocating(1, Some(FOLDED), AllocatorKind::System)?;
    Ok(FOLDING.get_or_init(|| device).clone())
}

/// What was computed beforehand, as a constant.
fn settled(value: Value) -> Result<Value> {
    match value {
        Value::Run(laid) => Ok(Constant::of(&laid.plain()?)?.into()),
        other => Ok(other),
    }
}

/// The branch of an `If` whose condition is known.
fn branch(file: &OnnxFile, node: &Node, net: &mut Net, scopes: &mut Vec<Scope>) -> Result<Vec<Value>> {
    if scopes.len() > 32 {
        return Err(refuse("is nested too deep"));
    }
    let condition = node.inputs.first().and_then(|name| lookup(scopes, name));
    let condition = condition.and_then(Value::known).and_then(Constant::one);
    let condition = condition.ok_or_else(|| {
        refuse("chooses by what is computed from data; here the choice must be known when the model is read")
    })?;
    let wanted = if condition != 0.0 { "then_branch" } else { "else_branch" };
    let inner = node.graphs.iter().find(|(name, _)| name == wanted);
    let (_, inner) = inner.ok_or_else(|| refuse(format!("has no {wanted}")))?;
    let mut scope = Scope::default();
    for (name, stored) in &inner.initializers {
        let value = file.read(stored).map_err(|why| refuse(format!("cannot read {name}: {why}")))?;
        scope.insert(name.clone(), value.into());
    }
    scopes.push(scope);
    let ran = graph(file, inner, net, scopes);
    let value = |port: &crate::file::Port| {
        let missing = || refuse(format!("gives {}, which is not there", port.name));
        lookup(scopes, &port.name).cloned().ok_or_else(missing)
    };
    let outputs = ran.and_then(|()| inner.outputs.iter().map(value).collect());
    scopes.pop();
    outputs
}
