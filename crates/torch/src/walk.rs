//! One pass over a program: nodes become ops over tensors, one after the other, each with the user's line and module.

use std::collections::BTreeMap;

use plimsoll_nn::Net;
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result as RunResult, Tensor, asked_at, named};
use rustc_hash::FxHashMap;

use crate::call::Call;
use crate::error::refuse;
use crate::known::Known;
use crate::ops;
use crate::place;
use crate::program::{part_dtype, short};
use crate::schema::{Argument, Graph, Node, OptionalTensor, SymBool, SymFloat, SymInt, TensorMeta};
use crate::value::Value;

/// Names and what they stand for.
pub(crate) type Env<'a> = FxHashMap<&'a str, Value>;

pub(crate) fn laid_of(env: &Env<'_>, name: &str) -> RunResult<Laid> {
    match env.get(name) {
        Some(Value::Tensor(laid, _)) => Ok(laid.clone()),
        _ => Err(refuse(format!("returns {name}, which no node of the program makes"))),
    }
}

/// One pass over a program.
pub(crate) struct Run<'a, 'n> {
    pub net: &'n mut Net,
    anchor: &'a Tensor,
    /// Types of values, innermost graph last.
    pub types: Vec<&'a BTreeMap<String, TensorMeta>>,
    /// Whole numbers that are the same in every step, innermost graph last.
    pub known: Vec<Known<'a>>,
    /// By a loss's name: what a label counts for, sample by sample.
    shares: FxHashMap<String, Tensor>,
}

impl<'a, 'n> Run<'a, 'n> {
    pub fn new(
        net: &'n mut Net,
        anchor: &'a Tensor,
        graph: &'a Graph,
        known: Known<'a>,
        shares: FxHashMap<String, Tensor>,
    ) -> Run<'a, 'n> {
        Run { net, anchor, types: vec![&graph.tensor_values], known: vec![known], shares }
    }

    pub fn graph(&mut self, graph: &'a Graph, env: &mut Env<'a>) -> RunResult<()> {
        for node in &graph.nodes {
            let module = place::module(&node.metadata);
            let mut step = || self.node(graph, node, env);
            let site = place::line(&node.metadata);
            let done = named(module, || match site {
                Some(site) => asked_at(site, &mut step),
                None => step(),
            });
            done.map_err(|error| placed(error, node))?;
            if let Some(known) = self.known.last_mut() {
                known.node(graph, node);
                known.lengths(node, env);
            }
        }
        Ok(())
    }

    pub fn node(&mut self, graph: &'a Graph, node: &'a Node, env: &mut Env<'a>) -> RunResult<()> {
        let op = short(&node.target);
        if op.starts_with("higher_order.") {
            return self.higher_order(op, node, env);
        }
        let Some(run) = ops::find(op) else { return Err(refuse("is not known here")) };
        let given = node.inputs.iter().map(|input| Ok((input.name.as_str(), argument(&input.arg, env)?)));
        let given = given.collect::<RunResult<Vec<_>>>()?;
        let is_learned = given.iter().any(|(_, value)| value.is_learned()) && op != "aten.detach.default";
        let mut called = |given| {
            let mut call = Call::new(op, node, given, &graph.tensor_values, self.anchor, self.net);
            call.share =
                node.outputs.first().and_then(name_of).and_then(|name| self.shares.get(name)).cloned();
            let results = run(&mut call)?;
            call.finish()?;
            Ok(results)
        };
        let has_pairs = given.iter().any(|(_, value)| value.is_complex());
        let results = match has_pairs && !ops::complex::takes(op) {
            true => ops::complex::by_parts(op, given, &mut called)?,
            false => called(given)?,
        };
        bind(node, results, is_learned, env)
    }
}

pub(crate) fn name_of(argument: &Argument) -> Option<&str> {
    match argument {
        Argument::AsTensor(named) => Some(&named.name),
        Argument::AsSymInt(SymInt::AsName(name))
        | Argument::AsSymFloat(SymFloat::AsName(name))
        | Argument::AsSymBool(SymBool::AsName(name)) => Some(name),
        _ => None,
    }
}

/// Gives a node's results their names.
pub(crate) fn bind<'a>(
    node: &'a Node,
    results: Vec<Value>,
    is_learned: bool,
    env: &mut Env<'a>,
) -> RunResult<()> {
    let marked = |value: Value| match value {
        Value::Tensor(laid, _) => {
            let is_float = laid.dtype().is_float();
            Value::Tensor(laid, is_learned && is_float)
        }
        Value::Complex(pair, _) => Value::Complex(pair, is_learned),
        other => other,
    };
    let mut results = results.into_iter();
    for output in &node.outputs {
        if let Argument::AsTensors(all) = output {
            for own in all {
                let value =
                    results.next().ok_or_else(|| refuse("gives fewer tensors than the program says"))?;
                env.insert(&own.name, marked(value));
            }
            continue;
        }
        // What is not wanted of several results need not be made.
        let (Some(name), Some(value)) = (name_of(output), results.next()) else { continue };
        env.insert(name, marked(value));
    }
    match results.next() {
        Some(_) => Err(refuse("gives more than the program says")),
        None => Ok(()),
    }
}

/// An argument of a node as a value.
pub(crate) fn argument(argument: &Argument, env: &Env<'_>) -> RunResult<Value> {
    let get = |name: &str| {
        let none = || refuse(format!("reads {name}, which no node before it makes"));
        env.get(name).cloned().ok_or_else(none)
    };
    let sym = |given: &SymInt| match given {
        SymInt::AsName(name) => get(name),
        SymInt::AsInt(n) => Ok(Value::Int(*n)),
    };
    let optional = |given: &OptionalTensor| match given {
        OptionalTensor::AsTensor(named) => get(&named.name),
        OptionalTensor::AsNone(_) => Ok(Value::None),
    };
    let list = |values: RunResult<Vec<Value>>| values.map(Value::List);
    match argument {
        Argument::AsNone(_) => Ok(Value::None),
        Argument::AsTensor(named) => get(&named.name),
        Argument::AsTensors(all) => list(all.iter().map(|named| get(&named.name)).collect()),
        Argument::AsInt(n) => Ok(Value::Int(*n)),
        Argument::AsInts(all) => Ok(Value::List(all.iter().map(|n| Value::Int(*n)).collect())),
        Argument::AsFloat(x) => Ok(Value::Float(x.0)),
        Argument::AsFloats(all) => Ok(Value::List(all.iter().map(|x| Value::Float(x.0)).collect())),
        Argument::AsString(text) => Ok(Value::Text(text.clone())),
        Argument::AsStrings(all) => {
            Ok(Value::List(all.iter().map(|text| Value::Text(text.clone())).collect()))
        }
        Argument::AsSymInt(given) => sym(given),
        Argument::AsSymInts(all) => list(all.iter().map(sym).collect()),
        Argument::AsScalarType(code) => {
            part_dtype(*code).map(|_| Value::DType).map_err(|why| refuse(format!("asks for what {why}")))
        }
        Argument::AsMemoryFormat(_) | Argument::AsLayout(_) | Argument::AsDevice(_) => Ok(Value::Aside),
        Argument::AsBool(flag) => Ok(Value::Bool(*flag)),
        Argument::AsBools(all) => Ok(Value::List(all.iter().map(|flag| Value::Bool(*flag)).collect())),
        Argument::AsSymBool(SymBool::AsName(name)) => get(name),
        Argument::AsSymBool(SymBool::AsBool(flag)) => Ok(Value::Bool(*flag)),
        Argument::AsSymFloat(SymFloat::AsName(name)) => get(name),
        Argument::AsSymFloat(SymFloat::AsFloat(x)) => Ok(Value::Float(x.0)),
        Argument::AsOptionalTensors(all) => list(all.iter().map(optional).collect()),
        Argument::AsOptionalTensor(given) => optional(given),
        Argument::AsSymBools(_)
        | Argument::AsSymFloats(_)
        | Argument::AsGraph(_)
        | Argument::AsCustomObj(_)
        | Argument::AsOperator(_)
        | Argument::AsComplex(_)
        | Argument::AsNestedTensors(_)
        | Argument::AsIntLists(_)
        | Argument::AsStringToArgument(_)
        | Argument::AsFloatLists(_) => Err(refuse("takes an argument of a kind that is not known here")),
    }
}

/// An error with the op and the line of the user's source, where it is one of the program and not of the machine.
pub(crate) fn placed(error: plimsoll_run::Error, node: &Node) -> plimsoll_run::Error {
    let why = match &error {
        plimsoll_run::Error::Signature { why, .. } => {
            // One that was placed already, in a graph inside.
            if why.starts_with("runs ") {
                return error;
            }
            why.clone()
        }
        plimsoll_run::Error::Graph(inner) => inner.to_string(),
        _ => return error,
    };
    refuse(format!("runs {}, which {why}", described(node)))
}

/// An op with the line and the module it comes from.
pub(crate) fn described(node: &Node) -> String {
    let (op, module) = (short(&node.target), place::module(&node.metadata));
    let line =
        place::line(&node.metadata).map_or(String::new(), |site| format!(" at {}:{}", site.file, site.line));
    let module = if module.is_empty() { String::new() } else { format!(" in {module}") };
    format!("{op}{line}{module}")
}

/// The names in an argument, one after the other.
pub(crate) fn arguments<'a>(argument: &'a Argument, names: &mut Vec<&'a str>) {
    let sym = |given: &'a SymInt| match given {
        SymInt::AsName(name) => Some(name.as_str()),
        SymInt::AsInt(_) => None,
    };
    let optional = |given: &'a OptionalTensor| match given {
        OptionalTensor::AsTensor(named) => Some(named.name.as_str()),
        OptionalTensor::AsNone(_) => None,
    };
    match argument {
        Argument::AsTensors(all) => names.extend(all.iter().map(|named| named.name.as_str())),
        Argument::AsSymInts(all) => names.extend(all.iter().filter_map(sym)),
        Argument::AsOptionalTensors(all) => names.extend(all.iter().filter_map(optional)),
        Argument::AsOptionalTensor(given) => names.extend(optional(given)),
        other => names.extend(name_of(other)),
    }
}
