//! Turns inbound nodes into a list of calls: which layer, for which time, on what.

use super::Reason;
use super::config::{Layer, Model};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};

/// One call of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The layer, as an index into the model's list.
    pub layer: usize,
    /// For the how manyth time the layer is called, from 0. A layer called twice shares its variables.
    pub call: usize,
    /// What it is called on.
    pub args: Vec<Argument>,
    /// What it is called on by name, sorted by name.
    pub kwargs: Vec<(String, Argument)>,
}

/// What a layer is called on.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A result of another call.
    Tensor(TensorRef),
    /// Several of them, or of anything.
    List(Vec<Argument>),
    /// Several of them by name, sorted by name.
    Map(Vec<(String, Argument)>),
    /// Anything else, as stored.
    Value(Value),
}

/// A result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorRef {
    /// The layer that was called, as an index into the model's list.
    pub layer: usize,
    /// For the how manyth time, from 0.
    pub call: usize,
    /// Which of its results.
    pub output: usize,
}

/// A tensor that goes into or comes out of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name, if the model's inputs or outputs are given by name.
    pub name: Option<String>,
    /// The tensor.
    pub tensor: TensorRef,
}

impl Call {
    /// The results of other calls that this one takes, in the order of its arguments.
    pub fn tensors(&self) -> Vec<TensorRef> {
        let mut found = Vec::new();
        self.args
            .iter()
            .chain(self.kwargs.iter().map(|(_, arg)| arg))
            .for_each(|arg| arg.tensors(&mut found));
        found
    }
}

impl Argument {
    fn tensors(&self, found: &mut Vec<TensorRef>) {
        match self {
            Argument::Tensor(tensor) => found.push(*tensor),
            Argument::List(list) => list.iter().for_each(|arg| arg.tensors(found)),
            Argument::Map(map) => map.iter().for_each(|(_, arg)| arg.tensors(found)),
            Argument::Value(_) => {}
        }
    }
}

/// The calls of a Sequential model: each layer on the result of the one before it.
pub(super) fn chain(layers: Vec<Layer>) -> Model {
    let tensor = |layer| TensorRef { layer, call: 0, output: 0 };
    let port = |layer| Port { name: None, tensor: tensor(layer) };
    let calls = (0..layers.len()).map(|layer| {
        let args = layer.checked_sub(1).map(|before| Argument::Tensor(tensor(before))).into_iter().collect();
        Call { layer, call: 0, args, kwargs: Vec::new() }
    });
    Model {
        calls: calls.collect(),
        inputs: layers.first().filter(|first| first.is_input()).map(|_| port(0)).into_iter().collect(),
        outputs: layers.len().checked_sub(1).map(port).into_iter().collect(),
        layers,
    }
}

/// The calls of a Functional model, from the `inbound_nodes` of its layers.
pub(super) fn resolve(
    model: &str,
    layers: Vec<Layer>,
    nodes: Vec<Value>,
    inputs: &Value,
    outputs: &Value,
    keras2: bool,
) -> Result<Model, Reason> {
    let mut nodes_of = Vec::with_capacity(layers.len());
    for (layer, nodes) in layers.iter().zip(nodes) {
        nodes_of.push(match nodes {
            // An input is called by nobody, but it has one result.
            _ if layer.is_input() => vec![Value::Null],
            Value::Array(nodes) => nodes,
            Value::Null => Vec::new(),
            _ => return Err(Reason::config(&layer.name, "its inbound nodes are not a list")),
        });
    }
    let resolver = Resolver {
        by_name: layers.iter().enumerate().map(|(i, layer)| (layer.name.as_str(), i)).collect(),
        n_calls: nodes_of.iter().map(Vec::len).collect(),
        layers: &layers,
        keras2,
    };
    let mut calls = Vec::new();
    for (layer, nodes) in nodes_of.into_iter().enumerate() {
        for (call, node) in nodes.into_iter().enumerate() {
            calls.push(resolver.call(layer, call, node)?);
        }
    }
    let inputs = resolver.ports(model, inputs)?;
    let outputs = resolver.ports(model, outputs)?;
    let calls = in_order(calls, &layers)?;
    Ok(Model { layers, calls, inputs, outputs })
}

/// Arguments by name.
type Named = Vec<(String, Argument)>;

struct Resolver<'a> {
    by_name: HashMap<&'a str, usize>,
    n_calls: Vec<usize>,
    layers: &'a [Layer],
    keras2: bool,
}

impl Resolver<'_> {
    fn call(&self, layer: usize, call: usize, node: Value) -> Result<Call, Reason> {
        let name = &self.layers[layer].name;
        let (args, kwargs) = match node {
            Value::Null => (Vec::new(), Vec::new()),
            Value::Object(mut node) => {
                let Some(Value::Array(args)) = node.remove("args") else {
                    return Err(Reason::config(name, format!("its call {call} has no arguments")));
                };
                let args = args.into_iter().map(|arg| self.argument(name, arg)).collect::<Result<_, _>>()?;
                let kwargs = match node.remove("kwargs") {
                    Some(Value::Object(kwargs)) => self.map(name, kwargs)?,
                    _ => Vec::new(),
                };
                (args, kwargs)
            }
            Value::Array(tensors) => self.keras2_node(name, tensors)?,
            _ => return Err(Reason::config(name, format!("its call {call} is not one"))),
        };
        Ok(Call { layer, call, args, kwargs })
    }

    /// A node as Keras 2 wrote it: a list of `[layer, call, output, {kwargs}]`.
    fn keras2_node(&self, name: &str, node: Vec<Value>) -> Result<(Vec<Argument>, Named), Reason> {
        // A single tensor may come without the list around it.
        let tensors =
            if node.first().is_some_and(Value::is_string) { vec![Value::Array(node)] } else { node };
        let mut args = Vec::new();
        let mut kwargs = Vec::new();
        for mut tensor in tensors {
            if let Some(Value::Object(named)) = tensor.get_mut(3).map(Value::take) {
                kwargs = self.map(name, named)?;
            }
            let constant = tensor.get(0).is_some_and(|name| name == "_CONSTANT_VALUE");
            args.push(match tensor.get_mut(2).map(Value::take) {
                Some(value) if constant => Argument::Value(value),
                Some(output) => {
                    Argument::Tensor(self.tensor(name, tensor.get(0), tensor.get(1), Some(&output), false)?)
                }
                None => return Err(Reason::config(name, "an inbound node is not a list of tensors")),
            });
        }
        let args = if args.len() > 1 { vec![Argument::List(args)] } else { args };
        Ok((args, kwargs))
    }

    fn argument(&self, name: &str, value: Value) -> Result<Argument, Reason> {
        match value {
            Value::Array(list) => {
                let list =
                    list.into_iter().map(|value| self.argument(name, value)).collect::<Result<_, _>>()?;
                Ok(Argument::List(list))
            }
            Value::Object(map) if map.get("class_name").is_some_and(|class| class == "__keras_tensor__") => {
                let history = map.get("config").and_then(|config| config.get("keras_history"));
                let at = |i: usize| history.and_then(|history| history.get(i));
                Ok(Argument::Tensor(self.tensor(name, at(0), at(1), at(2), false)?))
            }
            // Other objects with a class (slices, dtypes) are values; without one it is a dictionary of arguments.
            Value::Object(map) if !map.contains_key("class_name") => Ok(Argument::Map(self.map(name, map)?)),
            value => Ok(Argument::Value(value)),
        }
    }

    fn map(&self, name: &str, map: serde_json::Map<String, Value>) -> Result<Named, Reason> {
        let mut named = map
            .into_iter()
            .map(|(key, value)| Ok((key, self.argument(name, value)?)))
            .collect::<Result<Vec<_>, Reason>>()?;
        named.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(named)
    }

    fn tensor(
        &self,
        name: &str,
        producer: Option<&Value>,
        call: Option<&Value>,
        output: Option<&Value>,
        is_port: bool,
    ) -> Result<TensorRef, Reason> {
        let number =
            |value: Option<&Value>| value.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let (Some(producer), Some(call), Some(output)) =
            (producer.and_then(Value::as_str), number(call), number(output))
        else {
            return Err(Reason::config(name, "a tensor it takes is not given as layer, call and output"));
        };
        let Some(&layer) = self.by_name.get(producer) else {
            return Err(Reason::config(
                name,
                format!("it takes a result of {producer:?}, which is not there"),
            ));
        };
        // Keras 2 counts the calls of a model from 1, since the model's own making was call 0. Keras 3 does so only for
        // Functional models, and only in the lists of a model's inputs and outputs.
        let producer_layer = &self.layers[layer];
        let from_one = producer_layer.model.is_some()
            && (self.keras2 || (is_port && producer_layer.class_name != "Sequential"));
        let call = call.saturating_sub(usize::from(from_one));
        if call >= self.n_calls[layer] {
            let times = self.n_calls[layer];
            let reason =
                format!("it takes the result of call {call} of {producer:?}, which is called {times} times");
            return Err(Reason::config(name, reason));
        }
        Ok(TensorRef { layer, call, output })
    }

    fn ports(&self, model: &str, value: &Value) -> Result<Vec<Port>, Reason> {
        let mut ports = Vec::new();
        self.collect_ports(model, None, value, &mut ports)?;
        Ok(ports)
    }

    fn collect_ports(
        &self,
        model: &str,
        name: Option<&str>,
        value: &Value,
        ports: &mut Vec<Port>,
    ) -> Result<(), Reason> {
        match value {
            Value::Array(leaf) if leaf.len() == 3 && leaf[0].is_string() => {
                let tensor = self.tensor(model, leaf.first(), leaf.get(1), leaf.get(2), true)?;
                ports.push(Port { name: name.map(str::to_string), tensor });
                Ok(())
            }
            Value::Array(list) => {
                list.iter().try_for_each(|item| self.collect_ports(model, name, item, ports))
            }
            Value::Object(map) => {
                let mut named: Vec<(&String, &Value)> = map.iter().collect();
                named.sort_by_key(|(name, _)| *name);
                named
                    .into_iter()
                    .try_for_each(|(name, item)| self.collect_ports(model, Some(name), item, ports))
            }
            _ => Err(Reason::config(model, "its inputs or outputs are not a list of tensors")),
        }
    }
}

/// Puts calls after the calls they need; among those that are ready, layers in the model's order come first.
fn in_order(calls: Vec<Call>, layers: &[Layer]) -> Result<Vec<Call>, Reason> {
    let index: HashMap<(usize, usize), usize> =
        calls.iter().enumerate().map(|(i, call)| ((call.layer, call.call), i)).collect();
    let mut waits_for = vec![0; calls.len()];
    let mut needed_by = vec![Vec::new(); calls.len()];
    for (i, call) in calls.iter().enumerate() {
        let needs: BTreeSet<usize> = call.tensors().iter().map(|t| index[&(t.layer, t.call)]).collect();
        waits_for[i] = needs.len();
        needs.into_iter().for_each(|need| needed_by[need].push(i));
    }
    let mut ready: BTreeSet<usize> = (0..calls.len()).filter(|i| waits_for[*i] == 0).collect();
    let mut order = Vec::with_capacity(calls.len());
    while let Some(i) = ready.pop_first() {
        order.push(i);
        for &next in &needed_by[i] {
            waits_for[next] -= 1;
            if waits_for[next] == 0 {
                ready.insert(next);
            }
        }
    }
    if let Some(stuck) = (0..calls.len()).find(|i| waits_for[*i] > 0) {
        return Err(Reason::config(&layers[calls[stuck].layer].name, "its calls go round in a circle"));
    }
    let mut calls: Vec<Option<Call>> = calls.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|i| calls[i].take()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::config;
    use super::*;
    use serde_json::json;

    fn entry(name: &str, class: &str, nodes: Value) -> Value {
        json!({"name": name, "class_name": class, "config": {"name": name}, "inbound_nodes": nodes})
    }

    fn parse(layers: Vec<Value>, outputs: Value, keras2: bool) -> Result<Model, Reason> {
        let config =
            json!({"name": "m", "layers": layers, "input_layers": [["x", 0, 0]], "output_layers": outputs});
        let text = json!({"class_name": "Functional", "config": config}).to_string();
        config::model(&text, keras2).map(|(root, _)| *root.model.expect("a Functional model"))
    }

    fn tensor(layer: usize, call: usize) -> TensorRef {
        TensorRef { layer, call, output: 0 }
    }

    #[test]
    fn nodes_of_keras_2_are_lists_and_count_the_calls_of_models_from_one() {
        let inner = json!({
            "name": "inner",
            "class_name": "Sequential",
            "config": {"name": "inner", "layers": [{"class_name": "Dense", "config": {"name": "d"}}]},
            "inbound_nodes": [[["x", 0, 0, {}]], [["inner", 1, 0, {"training": true}]]],
        });
        let constant = json!([[["inner", 2, 0, {}], ["_CONSTANT_VALUE", -1, 3.5, {}]]]);
        let layers = vec![entry("x", "InputLayer", json!([])), inner, entry("add", "TFOpLambda", constant)];
        let model = parse(layers, json!([["add", 0, 0], ["inner", 2, 0]]), true).expect("a model");
        assert_eq!(model.calls[1].tensors(), [tensor(0, 0)]);
        assert_eq!(model.calls[2].tensors(), [tensor(1, 0)]);
        assert_eq!(model.calls[2].kwargs, [("training".to_string(), Argument::Value(json!(true)))]);
        let both = vec![Argument::Tensor(tensor(1, 1)), Argument::Value(json!(3.5))];
        assert_eq!(model.calls[3].args, [Argument::List(both)]);
        assert_eq!(model.outputs[1].tensor, tensor(1, 1));
    }

    #[test]
    fn results_of_nobody_and_of_calls_that_are_not_made_are_refused_by_name() {
        let takes = |history: Value| {
            let arg = json!({"class_name": "__keras_tensor__", "config": {"keras_history": history}});
            let node = json!([{"args": [arg], "kwargs": {}}]);
            let layers = vec![entry("x", "InputLayer", json!([])), entry("d", "Dense", node)];
            parse(layers, json!(["d", 0, 0]), false).map(drop).expect_err("a refusal").to_string()
        };
        assert_eq!(
            takes(json!(["y", 0, 0])),
            "the configuration of d: it takes a result of \"y\", which is not there"
        );
        assert!(takes(json!(["x", 1, 0])).contains("call 1 of \"x\", which is called 1 times"));
        assert!(takes(json!(["x", -1, 0])).contains("is not given as layer, call and output"));
        assert!(takes(json!(["d", 0, 0])).contains("configuration of d: its calls go round in a circle"));
        assert!(takes(json!(null)).contains("is not given"));
    }
}
