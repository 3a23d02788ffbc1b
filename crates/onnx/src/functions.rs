//! Turns calls of a model's own functions into their bodies.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::file::is_standard;
use crate::limits::Limits;
use crate::messages::{AttributeProto, FunctionProto, GraphProto, NodeProto};

/// How deep functions may call each other. Recursion is not allowed by the format, so this ends it.
const DEPTH: usize = 32;

/// Replaces every call of a function in a graph by the function's nodes.
pub(crate) fn inline(
    graph: &mut GraphProto,
    functions: &[FunctionProto],
    opset: i64,
    file: &str,
    limits: &Limits,
) -> Result<()> {
    if functions.is_empty() {
        return Ok(());
    }
    let mut known = HashMap::new();
    for function in functions {
        for set in function.opset_import.iter().filter(|set| is_standard(set.domain.as_deref().unwrap_or("")))
        {
            if set.version != Some(opset) {
                let name = function.name.as_deref().unwrap_or_default();
                let own = set.version.unwrap_or(1);
                let why = format!("function {name} is written in opset {own}, the model in {opset}");
                return Err(Error::damaged(file, why));
            }
        }
        known.insert(key(&function.domain, &function.name, &function.overload), function);
    }
    let mut inliner = Inliner { known, file, left: limits.fields, calls: 0 };
    inliner.graph(graph, 0)
}

type Key = (String, String, String);

fn key(domain: &Option<String>, name: &Option<String>, overload: &Option<String>) -> Key {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    (text(domain), text(name), text(overload))
}

struct Inliner<'a> {
    known: HashMap<Key, &'a FunctionProto>,
    file: &'a str,
    /// Nodes that may still be made.
    left: u64,
    calls: usize,
}

impl Inliner<'_> {
    fn graph(&mut self, graph: &mut GraphProto, depth: usize) -> Result<()> {
        graph.node = self.nodes(std::mem::take(&mut graph.node), depth)?;
        Ok(())
    }

    fn nodes(&mut self, nodes: Vec<NodeProto>, depth: usize) -> Result<Vec<NodeProto>> {
        if depth > DEPTH {
            return Err(Error::damaged(self.file, "its functions call each other without an end"));
        }
        let mut made = Vec::with_capacity(nodes.len());
        for mut node in nodes {
            self.left = self.left.checked_sub(1).ok_or_else(|| {
                Error::damaged(
                    self.file,
                    "its functions are called so often that the graph grows without bounds",
                )
            })?;
            for attribute in &mut node.attribute {
                if let Some(graph) = &mut attribute.g {
                    self.graph(graph, depth + 1)?;
                }
            }
            match self.known.get(&key(&node.domain, &node.op_type, &node.overload)) {
                None => made.push(node),
                Some(function) => {
                    let body = self.body(&node, function)?;
                    made.extend(self.nodes(body, depth + 1)?);
                }
            }
        }
        Ok(made)
    }

    /// A function's nodes with the names of a call.
    fn body(&mut self, call: &NodeProto, function: &FunctionProto) -> Result<Vec<NodeProto>> {
        self.calls += 1;
        let own = call.name.as_deref().filter(|name| !name.is_empty()).unwrap_or("call");
        let prefix = format!("{own}#{}/", self.calls);
        if call.input.len() > function.input.len() || call.output.len() > function.output.len() {
            let name = function.name.as_deref().unwrap_or_default();
            let why = format!("node {own} gives function {name} more than it takes");
            return Err(Error::damaged(self.file, why));
        }
        let mut names: HashMap<String, String> = HashMap::new();
        for (i, name) in function.input.iter().enumerate() {
            names.insert(name.clone(), call.input.get(i).cloned().unwrap_or_default());
        }
        for (name, given) in function.output.iter().zip(&call.output).filter(|(_, given)| !given.is_empty()) {
            names.insert(name.clone(), given.clone());
        }
        let given: HashMap<&str, &AttributeProto> = function
            .attribute_proto
            .iter()
            .chain(&call.attribute)
            .filter_map(|attribute| Some((attribute.name.as_deref()?, attribute)))
            .collect();
        let inlined = Inlined { names, prefix, given };
        Ok(function.node.iter().map(|node| inlined.node(node)).collect())
    }
}

/// A body that takes the place of a call.
struct Inlined<'a> {
    /// What names of the function's inputs and outputs are at the call.
    names: HashMap<String, String>,
    /// Stands before all others.
    prefix: String,
    /// The call's attributes, and the function's where the call has none.
    given: HashMap<&'a str, &'a AttributeProto>,
}

impl Inlined<'_> {
    fn node(&self, node: &NodeProto) -> NodeProto {
        let Inlined { names, prefix, given } = self;
        let new = |name: &String| match (name.is_empty(), names.get(name)) {
            (true, _) => String::new(),
            (_, Some(known)) => known.clone(),
            (_, None) => format!("{prefix}{name}"),
        };
        let mut attributes = Vec::new();
        for attribute in &node.attribute {
            let referred = attribute.ref_attr_name.as_deref().filter(|name| !name.is_empty());
            let mut own = match referred {
                None => attribute.clone(),
                // One that the call leaves out is left out in the body.
                Some(referred) => match given.get(referred) {
                    Some(value) => AttributeProto { name: attribute.name.clone(), ..(*value).clone() },
                    None => continue,
                },
            };
            if let (Some(graph), None) = (&mut own.g, referred) {
                *graph = self.graph(graph);
            }
            attributes.push(own);
        }
        let name = node.name.as_ref().map(|name| format!("{prefix}{name}"));
        NodeProto {
            input: node.input.iter().map(new).collect(),
            output: node.output.iter().map(new).collect(),
            name,
            attribute: attributes,
            ..node.clone()
        }
    }

    fn graph(&self, graph: &GraphProto) -> GraphProto {
        let Inlined { names, prefix, .. } = self;
        let mut made = graph.clone();
        let new = |name: &mut Option<String>| {
            if let Some(name) = name.as_mut().filter(|name| !name.is_empty()) {
                *name = names.get(name).cloned().unwrap_or_else(|| format!("{prefix}{name}"));
            }
        };
        made.input.iter_mut().chain(&mut made.output).for_each(|info| new(&mut info.name));
        made.initializer.iter_mut().for_each(|tensor| new(&mut tensor.name));
        made.node = graph.node.iter().map(|node| self.node(node)).collect();
        made
    }
}

/// Exporters store equal tensors once and pass them on by `Identity`, though they are weights of different layers. Each becomes a stored tensor
/// of its own again, so that one is not moved with the other.
pub(crate) fn separate(graph: &mut GraphProto) {
    /// More than any exporter writes; what is beyond stays as it is.
    const MOST: usize = 1 << 14;
    let stored: HashMap<String, usize> = graph
        .initializer
        .iter()
        .enumerate()
        // Bytes are shared with the file; lists of numbers would be copied.
        .filter(|(_, tensor)| tensor.raw_data.is_some() || !tensor.external_data.is_empty())
        .filter_map(|(i, tensor)| Some((tensor.name.clone()?, i)))
        .collect();
    let is_output = |name: &String| graph.output.iter().any(|port| port.name.as_ref() == Some(name));
    let (mut made, mut kept) = (Vec::new(), Vec::with_capacity(graph.node.len()));
    for node in std::mem::take(&mut graph.node) {
        let is_plain =
            node.op_type.as_deref() == Some("Identity") && is_standard(node.domain.as_deref().unwrap_or(""));
        match (&node.input[..], &node.output[..]) {
            ([from], [to]) if is_plain && made.len() < MOST && !to.is_empty() && !is_output(to) => {
                match stored.get(from) {
                    Some(&i) => {
                        let tensor = &graph.initializer[i];
                        made.push(crate::messages::TensorProto { name: Some(to.clone()), ..tensor.clone() });
                    }
                    None => kept.push(node),
                }
            }
            _ => kept.push(node),
        }
    }
    graph.node = kept;
    graph.initializer.extend(made);
}
