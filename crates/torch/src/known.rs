//! Whole numbers that are the same in every step, worked out as a program is read: how often a loop runs is one.

use plimsoll_graph::DType;
use rustc_hash::FxHashMap;

use crate::Kind;
use crate::program::{Program, part_dtype, short};
use crate::schema::{Argument, Graph, Node, SymBool, SymInt};
use crate::value::Value;
use crate::walk::{Env, name_of};

/// Names of a graph and their numbers; truth values are 0 and 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known<'a>(FxHashMap<&'a str, i64>);

impl<'a> Known<'a> {
    /// What the constants of a program say.
    pub fn of(program: &'a Program) -> crate::Result<Known<'a>> {
        let mut known = Known::default();
        for (name, &at) in &program.bound {
            let held = &program.held()[at];
            if held.kind != Kind::Constant || held.ty.shape.rank() > 0 || held.is_changed {
                continue;
            }
            let number = match (held.ty.dtype, &program.value(held)?[..]) {
                (DType::Bool, [byte]) => i64::from(*byte != 0),
                (DType::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]).into(),
                (DType::I64, bytes) => match bytes.try_into() {
                    Ok(bytes) => i64::from_le_bytes(bytes),
                    Err(_) => continue,
                },
                _ => continue,
            };
            known.0.insert(name, number);
        }
        Ok(known)
    }

    /// What an argument of a node is.
    pub fn get(&self, argument: &Argument) -> Option<i64> {
        match argument {
            Argument::AsTensor(named) => self.0.get(named.name.as_str()).copied(),
            Argument::AsInt(n) | Argument::AsSymInt(SymInt::AsInt(n)) => Some(*n),
            Argument::AsBool(flag) | Argument::AsSymBool(SymBool::AsBool(flag)) => Some(i64::from(*flag)),
            other => self.0.get(name_of(other)?).copied(),
        }
    }

    /// What the elements of a list are.
    pub fn list(&self, argument: &Argument) -> Vec<Option<i64>> {
        match argument {
            Argument::AsTensors(all) => all.iter().map(|n| self.0.get(n.name.as_str()).copied()).collect(),
            Argument::AsInts(all) => all.iter().map(|n| Some(*n)).collect(),
            Argument::AsSymInts(all) => {
                all.iter().map(|n| self.get(&Argument::AsSymInt(n.clone()))).collect()
            }
            Argument::AsNone(_) => Vec::new(),
            other => vec![self.get(other)],
        }
    }

    /// Those of a graph inside that is given numbers.
    pub fn inside(graph: &'a Graph, given: &[Option<i64>]) -> Known<'a> {
        let pair = |(input, n): (&'a Argument, &Option<i64>)| Some((name_of(input)?, (*n)?));
        Known(graph.inputs.iter().zip(given).filter_map(pair).collect())
    }

    /// What a graph gives for numbers, as far as it can be said without running it.
    pub fn results(graph: &'a Graph, given: &[Option<i64>]) -> Vec<Option<i64>> {
        let mut known = Known::inside(graph, given);
        for node in &graph.nodes {
            known.node(graph, node);
        }
        graph.outputs.iter().map(|output| known.get(output)).collect()
    }

    /// Takes up what a node gives, where that is one number that follows from others.
    pub fn node(&mut self, graph: &'a Graph, node: &'a Node) {
        let [output] = &node.outputs[..] else { return };
        let Some(name) = name_of(output) else { return };
        let Some(meta) = graph.tensor_values.get(name).filter(|meta| meta.sizes.is_empty()) else { return };
        let Some(n) = self.folded(node) else { return };
        match part_dtype(meta.dtype) {
            Ok(DType::Bool) => self.0.insert(name, i64::from(n != 0)),
            Ok(DType::I32) if i32::try_from(n).is_ok() => self.0.insert(name, n),
            Ok(DType::I64) => self.0.insert(name, n),
            _ => None,
        };
    }

    /// Takes up the lengths that a node gives.
    pub fn lengths(&mut self, node: &'a Node, env: &Env<'a>) {
        for name in node.outputs.iter().filter_map(name_of) {
            if let Some(Value::Int(n)) = env.get(name) {
                self.0.insert(name, *n);
            }
        }
    }

    fn folded(&self, node: &Node) -> Option<i64> {
        let given = |name: &str| {
            let input = node.inputs.iter().find(|input| input.name == name)?;
            self.get(&input.arg)
        };
        let op = short(&node.target);
        let (base, _) = op.strip_prefix("aten.").unwrap_or(op).split_once('.').unwrap_or((op, ""));
        match base {
            "clone" | "detach" | "alias" | "lift_fresh_copy" | "_to_copy" => return given("self"),
            "full" => return given("fill_value"),
            "scalar_tensor" => return given("s"),
            "zeros" => return Some(0),
            "ones" => return Some(1),
            "logical_not" => return Some(i64::from(given("self")? == 0)),
            _ => {}
        }
        let (a, b) = (given("self")?, given("other")?);
        let scaled = |b: i64| match node.inputs.iter().any(|input| input.name == "alpha") {
            true => b.checked_mul(given("alpha")?),
            false => Some(b),
        };
        Some(match base {
            "add" => a.checked_add(scaled(b)?)?,
            "sub" => a.checked_sub(scaled(b)?)?,
            "mul" => a.checked_mul(b)?,
            "minimum" => a.min(b),
            "maximum" => a.max(b),
            "lt" => i64::from(a < b),
            "le" => i64::from(a <= b),
            "gt" => i64::from(a > b),
            "ge" => i64::from(a >= b),
            "eq" => i64::from(a == b),
            "ne" => i64::from(a != b),
            "logical_and" => i64::from(a != 0 && b != 0),
            "logical_or" => i64::from(a != 0 || b != 0),
            _ => return None,
        })
    }
}
