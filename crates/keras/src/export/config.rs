//! Turns layers into the configuration that Keras reads, in the order in which Keras counts them.

use plimsoll_graph::DType;
use serde_json::{Map, Value, json};

use super::emit::{Argument, Weight, Written};

/// The name of an element type in a configuration.
pub(super) fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "float64",
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        DType::I64 => "int64",
        DType::I32 => "int32",
        DType::I16 => "int16",
        DType::I8 => "int8",
        DType::U32 => "uint32",
        DType::U16 => "uint16",
        DType::U8 => "uint8",
        DType::Bool => "bool",
        DType::F32 => "float32",
    }
}

/// A layer's dtype policy.
pub(super) fn policy(dtype: DType) -> Value {
    let name = type_name(dtype);
    json!({"module": "keras", "class_name": "DTypePolicy", "config": {"name": name}, "registered_name": null})
}

/// The order in which Keras lists the layers of a Functional model, and so numbers their weights: those farthest from the
/// outputs first, those equally far as a walk from the outputs backwards meets them.
pub(super) fn order(layers: &[Written]) -> Vec<usize> {
    let inputs: Vec<Vec<usize>> = layers.iter().map(Written::inputs).collect();
    let (mut met, mut done) = (vec![None; layers.len()], vec![false; layers.len()]);
    let (mut n_met, mut finished) = (0, Vec::new());
    for start in (0..layers.len()).filter(|&i| layers[i].is_output) {
        // A layer and how many of its inputs were walked.
        let mut stack = vec![(start, 0)];
        while let Some((at, next)) = stack.pop() {
            if done[at] {
                continue;
            }
            if met[at].is_none() {
                met[at] = Some(n_met);
                n_met += 1;
            }
            match inputs[at].get(next) {
                Some(&input) => stack.extend([(at, next + 1), (input, 0)]),
                None => {
                    done[at] = true;
                    finished.push(at);
                }
            }
        }
    }
    let mut depths = vec![0usize; layers.len()];
    for &at in finished.iter().rev() {
        for &input in &inputs[at] {
            depths[input] = depths[input].max(depths[at] + 1);
        }
    }
    // A layer that is called again is met where the walk first meets a call of it.
    for (at, layer) in layers.iter().enumerate() {
        if let (Some(first), Some(here)) = (layer.again, met[at]) {
            met[first] = Some(met[first].map_or(here, |there: usize| there.min(here)));
        }
    }
    let mut order: Vec<usize> = (0..layers.len()).filter(|&i| layers[i].again.is_none()).collect();
    // What no output depends on, an input then, comes first among the last.
    order.sort_by_key(|&i| (std::cmp::Reverse(depths[i]), met[i]));
    order
}

/// The weights of all layers, with their places in the file.
pub(super) fn weights<'a>(layers: &'a [Written], order: &[usize]) -> Vec<(String, &'a Weight)> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    let mut found = Vec::new();
    for layer in order.iter().map(|&i| &layers[i]).filter(|layer| !layer.weights.is_empty()) {
        let n = match counts.iter_mut().find(|(snake, _)| *snake == layer.snake) {
            Some((_, n)) => {
                *n += 1;
                *n
            }
            None => {
                counts.push((layer.snake, 0));
                0
            }
        };
        let number = if n == 0 { String::new() } else { format!("_{n}") };
        for (i, weight) in layer.weights.iter().enumerate() {
            let place = layer.weights[..i].iter().filter(|other| other.holder == weight.holder).count();
            let snake = layer.snake;
            found.push((format!("layers/{snake}{number}/{}vars/{place}", weight.holder), weight));
        }
    }
    found
}

/// The configuration of the whole model.
pub(super) fn model(name: &str, layers: &[Written], order: &[usize], dtype: DType) -> Value {
    let ends = |wanted: &dyn Fn(&Written) -> Option<usize>| {
        let mut ends: Vec<(usize, Value)> = layers
            .iter()
            .enumerate()
            .filter_map(|(i, layer)| wanted(layer).map(|place| (place, history(layers, i))))
            .collect();
        ends.sort_by_key(|(place, _)| *place);
        match &ends[..] {
            [(_, one)] => one.clone(),
            _ => ends.into_iter().map(|(_, end)| end).collect(),
        }
    };
    let listed: Vec<Value> = order.iter().map(|&i| layer(i, layers, dtype)).collect();
    json!({
        "module": "keras.src.models.functional", "class_name": "Functional", "registered_name": "Functional",
        "config": {
            "name": name, "trainable": true, "layers": listed,
            "input_layers": ends(&|layer| layer.input),
            "output_layers": ends(&|layer| layer.output),
        },
        "build_config": {"input_shape": null},
    })
}

/// Which result of a layer stands for a call: the layer's name, which of its calls, and the place among what that gives.
fn history(layers: &[Written], at: usize) -> Value {
    let first = layers[at].again.unwrap_or(at);
    let calls_before = (0..at).filter(|&i| i == first || layers[i].again == Some(first)).count();
    json!([layers[first].name, calls_before, 0])
}

fn layer(at: usize, all: &[Written], dtype: DType) -> Value {
    let layer = &all[at];
    let mut config: Map<String, Value> = layer.config.clone();
    config.insert("name".into(), json!(layer.name));
    let is_function = layer.module != "keras.layers";
    if !is_function && layer.input.is_none() {
        // These take no such argument.
        if !layer.class.starts_with("SpatialDropout") {
            config.insert("trainable".into(), json!(true));
        }
        config.insert("dtype".into(), policy(dtype));
    }
    let tensor = |i: usize| {
        let from = &all[i];
        json!({"class_name": "__keras_tensor__", "config": {
            "shape": shape(&from.shape), "dtype": type_name(from.dtype), "keras_history": history(all, i),
        }})
    };
    let argument = |argument: &Argument| match argument {
        Argument::Tensor(i) => tensor(*i),
        Argument::List(list) => list.iter().map(|&i| tensor(i)).collect(),
        Argument::Value(value) => value.clone(),
    };
    let node = |call: &Written| {
        let args: Vec<Value> = call.args.iter().map(argument).collect();
        json!({"args": args, "kwargs": call.kwargs})
    };
    let calls = all.iter().enumerate().filter(|(i, call)| *i == at || call.again == Some(at));
    let nodes: Vec<Value> = match layer.input {
        Some(_) => Vec::new(),
        None => calls.map(|(_, call)| node(call)).collect(),
    };
    json!({
        "module": layer.module, "class_name": layer.class, "config": config,
        "registered_name": if is_function { json!(layer.class) } else { Value::Null },
        "name": layer.name, "inbound_nodes": nodes,
    })
}

/// A shape with its batch open.
pub(super) fn shape(sample: &[usize]) -> Value {
    std::iter::once(Value::Null).chain(sample.iter().map(|n| json!(n))).collect()
}
