//! Ops of a program that run graphs of their own: regions, choices and loops. A plan is one list of ops, so both sides of a choice are computed
//! and a loop is written out, round for round.

use plimsoll_graph::{DType, GradientOps, Shape, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Error as RunError, Result as RunResult, named};
use rustc_hash::FxHashMap;

use crate::error::refuse;
use crate::known::Known;
use crate::ops::join::joined;
use crate::schema::{Argument, Graph, Node};
use crate::value::Value;
use crate::walk::{Env, Run, argument, bind, name_of};

/// A loop that is written out more often than this would take longer to plan than anyone waits.
const MOST_ROUNDS: usize = 10_000;

impl<'a> Run<'a, '_> {
    /// Ops that run a graph of their own.
    pub fn higher_order(&mut self, op: &str, node: &'a Node, env: &mut Env<'a>) -> RunResult<()> {
        match op {
            "higher_order.cond" => return self.cond(node, env),
            "higher_order.scan" => return self.scan(node, env),
            "higher_order.while_loop" => return self.while_loop(node, env),
            _ => {}
        }
        let graph_at = node.inputs.iter().position(|input| matches!(input.arg, Argument::AsGraph(_)));
        let is_on =
            |at: usize| matches!(node.inputs.get(at).map(|input| &input.arg), Some(Argument::AsBool(true)));
        let (at, is_detached) = match (op, graph_at) {
            ("higher_order.wrap_with_set_grad_enabled", Some(at)) => (at, !is_on(0)),
            // What is kept and what is computed again is the planner's to say.
            (
                "higher_order.tag_activation_checkpoint" | "higher_order.wrap_activation_checkpoint",
                Some(at),
            ) => (at, false),
            _ => return Err(refuse("is not known here")),
        };
        let Argument::AsGraph(inner) = &node.inputs[at].arg else { return Err(refuse("has no graph")) };
        let given = node.inputs[at + 1..].iter().map(|outer| argument(&outer.arg, env));
        let given = given.collect::<RunResult<Vec<_>>>()?;
        let detached = |value| {
            Ok(match value {
                Value::Tensor(laid, _) if is_detached => {
                    Value::Tensor(laid.map(|t| t.stop_gradient())?, false)
                }
                Value::Complex(pair, _) if is_detached => {
                    let stopped = |laid: &Laid| laid.map(|t| t.stop_gradient());
                    Value::complex(stopped(&pair.0)?, stopped(&pair.1)?)
                }
                other => other,
            })
        };
        let known: Vec<_> =
            node.inputs[at + 1..].iter().map(|outer| self.numbers().get(&outer.arg)).collect();
        let results = self.results_of(&inner.graph, &given, &known)?;
        let results = results.into_iter().map(detached).collect::<RunResult<Vec<Value>>>()?;
        let is_learned = !is_detached && results.iter().any(Value::is_learned);
        bind(node, results, is_learned, env)
    }

    /// One of two graphs by a truth value: both are computed, and what the value says is taken, element for element.
    fn cond(&mut self, node: &'a Node, env: &mut Env<'a>) -> RunResult<()> {
        let [condition, yes, no, operands] = &node.inputs[..] else {
            return Err(refuse("has a condition, two graphs and what they are given"));
        };
        let (Argument::AsGraph(yes), Argument::AsGraph(no)) = (&yes.arg, &no.arg) else {
            return Err(refuse("has no two graphs"));
        };
        let (given, known) = (list(&operands.arg, env)?, self.numbers().list(&operands.arg));
        let condition = match argument(&condition.arg, env)? {
            Value::Tensor(laid, _) if laid.shape().elements() == 1 => laid.reshape(Shape::scalar())?,
            Value::Bool(is_true) => {
                let results =
                    self.results_of(if is_true { &yes.graph } else { &no.graph }, &given, &known)?;
                let is_learned = results.iter().any(Value::is_learned);
                return bind(node, results, is_learned, env);
            }
            other => return Err(refuse(format!("chooses by {}, and not by a truth value", other.kind()))),
        };
        let truth = condition.map(|t| t.cast(DType::Bool))?;
        let sides =
            [self.results_of(&yes.graph, &given, &known)?, self.results_of(&no.graph, &given, &known)?];
        let is_learned = sides.iter().flatten().any(Value::is_learned);
        let [yes, no] = sides;
        if yes.len() != no.len() {
            return Err(refuse(format!(
                "gives {} results on one side and {} on the other",
                yes.len(),
                no.len()
            )));
        }
        let chosen = yes.into_iter().zip(no).map(|(yes, no)| match (yes, no) {
            (Value::Tensor(yes, _), Value::Tensor(no, _))
                if yes.shape() == no.shape() && yes.dtype() == no.dtype() =>
            {
                Ok(Value::from(Laid::zip(&[&truth, &yes, &no], |t| t[0].select(&t[1], &t[2]))?))
            }
            (yes, no) => {
                Err(refuse(format!("gives {} on one side and {} on the other", yes.kind(), no.kind())))
            }
        });
        let chosen = chosen.collect::<RunResult<Vec<_>>>()?;
        bind(node, chosen, is_learned, env)
    }

    /// A graph over the slices of tensors along their first axis, with what is carried from one to the next.
    fn scan(&mut self, node: &'a Node, env: &mut Env<'a>) -> RunResult<()> {
        let [body, init, over, more] = &node.inputs[..] else {
            return Err(refuse("has a graph, what is carried, what it runs over and what else it reads"));
        };
        let Argument::AsGraph(body) = &body.arg else { return Err(refuse("has no graph")) };
        let known = self.numbers().list(&more.arg);
        let (mut carried, more) = (list(&init.arg, env)?, list(&more.arg, env)?);
        let over = list(&over.arg, env)?.into_iter().map(slices).collect::<RunResult<Vec<_>>>()?;
        let n = over.first().map_or(0, Vec::len);
        if n == 0 || over.iter().any(|slices| slices.len() != n) {
            return Err(refuse("runs over nothing, or over tensors of other lengths"));
        }
        if n > MOST_ROUNDS {
            return Err(too_many_rounds());
        }
        // Numbers that are carried are those of the data from the first round on.
        let known: Vec<_> = vec![None; carried.len() + over.len()].into_iter().chain(known).collect();
        let mut rounds: Vec<Vec<Laid>> = Vec::new();
        let mut is_learned = false;
        for round in 0..n {
            let slices = over.iter().map(|slices| slices[round].clone());
            let given: Vec<Value> =
                carried.iter().cloned().chain(slices).chain(more.iter().cloned()).collect();
            let run = || self.results_of(&body.graph, &given, &known);
            let mut results = named("scan", || named(&round.to_string(), run))?;
            if results.len() < carried.len() {
                return Err(refuse("carries on less than it was given"));
            }
            is_learned |= results.iter().any(Value::is_learned);
            let beside = results.split_off(carried.len());
            carries_on(&carried, &results)?;
            carried = results;
            rounds.push(beside.iter().map(line).collect::<RunResult<_>>()?);
        }
        let columns = rounds.first().map_or(0, Vec::len);
        if rounds.iter().any(|round| round.len() != columns) {
            return Err(refuse("gives other numbers of results in other rounds"));
        }
        for column in 0..columns {
            let all: Vec<Laid> = rounds.iter().map(|round| round[column].clone()).collect();
            let out = all[0].dtype();
            carried.push(joined(&all, 0, out)?.into());
        }
        bind(node, carried, is_learned, env)
    }

    /// A graph as long as another says so, where how often that is follows from constants and lengths.
    fn while_loop(&mut self, node: &'a Node, env: &mut Env<'a>) -> RunResult<()> {
        let [goes_on, body, carried, more] = &node.inputs[..] else {
            return Err(refuse("has two graphs, what is carried and what else it reads"));
        };
        let (Argument::AsGraph(goes_on), Argument::AsGraph(body)) = (&goes_on.arg, &body.arg) else {
            return Err(refuse("has no two graphs"));
        };
        let beside = self.numbers().list(&more.arg);
        let mut known = self.numbers().list(&carried.arg);
        let (mut carried, more) = (list(&carried.arg, env)?, list(&more.arg, env)?);
        let mut is_learned = carried.iter().any(Value::is_learned);
        for round in 0..=MOST_ROUNDS {
            let numbers: Vec<_> = known.iter().chain(&beside).copied().collect();
            match Known::results(&goes_on.graph, &numbers)[..] {
                [Some(0)] => {
                    return bind(node, carried, is_learned, env);
                }
                [Some(_)] => {}
                _ => {
                    return Err(refuse(
                        "goes on as long as the data says; a plan is one list of ops, so how often must follow from constants and lengths (a counter below a fixed number)",
                    ));
                }
            }
            let given: Vec<Value> = carried.iter().chain(&more).cloned().collect();
            let run = || self.results_of(&body.graph, &given, &numbers);
            let results = named("while", || named(&round.to_string(), run))?;
            is_learned |= results.iter().any(Value::is_learned);
            carries_on(&carried, &results)?;
            carried = results;
            known = Known::results(&body.graph, &numbers);
        }
        Err(too_many_rounds())
    }

    /// The whole numbers that are known of the graph that is read.
    fn numbers(&self) -> Known<'a> {
        self.known.last().cloned().unwrap_or_default()
    }

    /// What a graph inside of a node makes of what it is given, of which some numbers may be known.
    fn results_of(
        &mut self,
        graph: &'a Graph,
        given: &[Value],
        known: &[Option<i64>],
    ) -> RunResult<Vec<Value>> {
        let mut own: Env<'a> = FxHashMap::default();
        for (input, outer) in graph.inputs.iter().zip(given) {
            if let Some(name) = name_of(input) {
                own.insert(name, outer.clone());
            }
        }
        self.types.push(&graph.tensor_values);
        self.known.push(Known::inside(graph, known));
        let done = self.graph(graph, &mut own);
        self.known.pop();
        self.types.pop();
        done?;
        graph.outputs.iter().map(|output| argument(output, &own)).collect()
    }
}

fn too_many_rounds() -> RunError {
    refuse(format!("runs more than {MOST_ROUNDS} rounds; a plan has every round's ops in it"))
}

/// An argument that is several values, or none.
fn list(given: &Argument, env: &Env<'_>) -> RunResult<Vec<Value>> {
    match argument(given, env)? {
        Value::List(all) => Ok(all),
        Value::None => Ok(Vec::new()),
        other => Err(refuse(format!("gives its graphs {}, and not a list", other.kind()))),
    }
}

/// A tensor's slices along the first axis that is read.
fn slices(value: Value) -> RunResult<Vec<Value>> {
    let Value::Tensor(laid, is_learned) = value else {
        return Err(refuse(format!("runs over {}, and only tensors have slices", value.kind())));
    };
    let Some((&axis, lengths)) = laid.order().first().zip(laid.shape().get(1..)) else {
        return Err(refuse("runs over a single number"));
    };
    let all = laid.lying().split(axis as isize, &vec![1; laid.shape()[0]])?;
    let one = |slice| {
        let narrow = Laid::ordered(slice, laid.order()).reshape(lengths)?;
        Ok(Value::Tensor(narrow, is_learned))
    };
    all.into_iter().map(one).collect()
}

/// A result as one line of those that will stand one below the other.
fn line(value: &Value) -> RunResult<Laid> {
    let Value::Tensor(laid, _) = value else {
        return Err(refuse(format!("gives {} in a round, and only tensors are taken", value.kind())));
    };
    let mut lengths = laid.shape().to_vec();
    lengths.insert(0, 1);
    laid.reshape(lengths)
}

/// Refuses a round that carries on other tensors than it was given.
fn carries_on(given: &[Value], back: &[Value]) -> RunResult<()> {
    if given.len() != back.len() {
        let (given, back) = (given.len(), back.len());
        return Err(refuse(format!("is given {given} values and carries on {back}")));
    }
    for (given, back) in given.iter().zip(back) {
        let is_same = match (given, back) {
            (Value::Tensor(a, _), Value::Tensor(b, _)) => a.shape() == b.shape() && a.dtype() == b.dtype(),
            (a, b) => a.kind() == b.kind(),
        };
        if !is_same {
            let (given, back) = (given.kind(), back.kind());
            return Err(refuse(format!("is given {given} and carries on {back} of another shape or type")));
        }
    }
    Ok(())
}
