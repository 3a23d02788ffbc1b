//! Turns a description of a model into layers and functions of Keras: layers in `layers`, what is between them in `ops`. Each is called once, but for
//! embeddings that are read the other way round too.

use std::collections::{BTreeSet, HashMap, HashSet};

use plimsoll_graph::{DType, Op, ValueId};
use plimsoll_nn::{Description, LayerCall};
use serde_json::{Map, Value, json};

use super::source::Source;
use crate::error::{Error, Result};

/// A call of a layer or function of Keras.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub name: String,
    pub class: &'static str,
    pub module: &'static str,
    /// The class as Keras files its weights: in snake case.
    pub snake: &'static str,
    pub config: Map<String, Value>,
    pub args: Vec<Argument>,
    pub kwargs: Value,
    pub weights: Vec<Weight>,
    /// What it gives, without the batch.
    pub shape: Vec<usize>,
    pub dtype: DType,
    /// Its place among the model's inputs and outputs.
    pub input: Option<usize>,
    pub output: Option<usize>,
    pub is_output: bool,
    /// The layer of which this is one more call, with its weights.
    pub again: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) enum Argument {
    Tensor(usize),
    List(Vec<usize>),
    Value(Value),
}

#[derive(Clone, Debug)]
pub(super) struct Weight {
    /// The object below the layer that holds it, with a slash: "", `cell/`.
    pub holder: &'static str,
    pub shape: Vec<usize>,
    pub source: Source,
}

impl Weight {
    pub(super) fn new(shape: impl Into<Vec<usize>>, source: Source) -> Weight {
        Weight { holder: "", shape: shape.into(), source }
    }
}

impl Written {
    /// The layers it reads, in the order of its arguments.
    pub(super) fn inputs(&self) -> Vec<usize> {
        let of = |argument: &Argument| match argument {
            Argument::Tensor(i) => vec![*i],
            Argument::List(list) => list.clone(),
            Argument::Value(_) => Vec::new(),
        };
        self.args.iter().flat_map(of).collect()
    }
}

/// What stands for a value of the graph.
#[derive(Clone, Debug)]
pub(super) enum Made {
    /// What a layer gives.
    Layer(usize),
    /// A parameter by itself, without a batch.
    Param(String, Vec<usize>),
    /// A constant number.
    Number(f64),
}

/// A layer that is to be added.
pub(super) struct New {
    pub class: &'static str,
    pub module: &'static str,
    pub snake: &'static str,
    pub config: Value,
    pub args: Vec<Argument>,
    pub kwargs: Value,
    pub weights: Vec<Weight>,
}

impl New {
    /// A layer of one tensor, without weights.
    pub(super) fn layer(class: &'static str, config: Value, x: usize) -> New {
        New {
            class,
            module: "keras.layers",
            snake: "",
            config,
            args: vec![Argument::Tensor(x)],
            kwargs: json!({}),
            weights: Vec::new(),
        }
    }

    /// A function of `keras.ops`.
    pub(super) fn function(
        class: &'static str,
        module: &'static str,
        config: Value,
        args: Vec<Argument>,
    ) -> New {
        New { module, args, ..New::layer(class, config, 0) }
    }

    pub(super) fn weights(mut self, snake: &'static str, weights: Vec<Weight>) -> New {
        (self.snake, self.weights) = (snake, weights);
        self
    }
}

pub(super) struct Emitter<'a> {
    pub from: &'a Description,
    pub batch: usize,
    layers: Vec<Written>,
    names: HashSet<String>,
    made: HashMap<ValueId, Made>,
    /// An index of zeros `[N, 1]`, by which parameters that no layer owns are looked up.
    zeros: Option<usize>,
    /// Parameters that were brought into the batch, by rank.
    tables: HashMap<(String, usize), usize>,
    /// The type of weights and of what layers compute.
    pub dtype: DType,
}

impl<'a> Emitter<'a> {
    /// All layers of a model that was described by a batch of so many samples.
    pub(super) fn emit(from: &'a Description, batch: usize, dtype: DType) -> Result<Vec<Written>> {
        let mut emitter = Emitter {
            from,
            batch,
            layers: Vec::new(),
            names: HashSet::new(),
            made: HashMap::new(),
            zeros: None,
            tables: HashMap::new(),
            dtype,
        };
        for (place, &id) in from.inputs.iter().enumerate() {
            let ty = from.graph.ty(id);
            let dtype = if ty.dtype.is_float() { emitter.dtype } else { ty.dtype };
            let shape = ty.shape.iter().skip(1).copied().collect::<Vec<usize>>();
            let config = json!({
                "batch_shape": super::config::shape(&shape), "dtype": super::config::type_name(dtype), "sparse": false,
            });
            let name = if from.inputs.len() == 1 { "input".into() } else { format!("input{}", place + 1) };
            let mut new = New::layer("InputLayer", config, 0);
            new.args.clear();
            let at = emitter.add(&name, new, &shape, dtype);
            emitter.layers[at].input = Some(place);
            emitter.made.insert(id, Made::Layer(at));
        }
        for (param, id) in &from.params {
            emitter.made.insert(*id, Made::Param(param.name.clone(), param.ty.shape.to_vec()));
        }
        let calls: HashMap<ValueId, &LayerCall> = from.calls.iter().map(|call| (call.output, call)).collect();
        for id in emitter.needed(&calls) {
            let made = match calls.get(&id) {
                Some(call) => Made::Layer(emitter.call(call)?),
                None => emitter.value(id)?,
            };
            emitter.made.insert(id, made);
        }
        for (place, &id) in from.graph.outputs().iter().enumerate() {
            let at = emitter.tensor(id, "an output")?;
            if emitter.layers[at].input.is_some() || emitter.layers[at].is_output {
                return Err(Error::export("an output", "it is an input, or another output, as it is"));
            }
            (emitter.layers[at].output, emitter.layers[at].is_output) = (Some(place), true);
        }
        Ok(emitter.layers)
    }

    /// The values that outputs depend on and that are to be made, in the order in which they were.
    fn needed(&self, calls: &HashMap<ValueId, &LayerCall>) -> BTreeSet<ValueId> {
        let graph = &self.from.graph;
        let mut needed = BTreeSet::new();
        let mut open: Vec<ValueId> = graph.outputs().to_vec();
        while let Some(id) = open.pop() {
            if self.made.contains_key(&id) || !needed.insert(id) {
                continue;
            }
            match (calls.get(&id), graph.info(id).producer) {
                (Some(call), _) => open.extend(&call.inputs),
                (None, Some((node, _))) => open.extend(graph.node(node).inputs.iter()),
                (None, None) => {}
            }
        }
        needed
    }

    fn value(&mut self, id: ValueId) -> Result<Made> {
        let graph = &self.from.graph;
        let Some((node, output)) = graph.info(id).producer else {
            let why = "it is a tensor of constants, for which there is no layer; compute it from the inputs";
            return Err(Error::export(graph.info(id).name.clone(), why));
        };
        let node = graph.node(node);
        if let Op::Full(full) = &node.op
            && full.ty.shape.is_empty()
        {
            return Ok(Made::Number(full.value.0));
        }
        self.op(node, output, id)
    }

    pub(super) fn add(&mut self, name: &str, new: New, shape: &[usize], dtype: DType) -> usize {
        // Names of ours are paths, which Keras does not allow.
        let base = name.replace('/', "_");
        let name = (0..)
            .map(|n| if n == 0 { base.clone() } else { format!("{base}_{n}") })
            .find(|name| !self.names.contains(name))
            .unwrap_or_default();
        self.names.insert(name.clone());
        let New { class, module, snake, config, args, kwargs, weights } = new;
        let config = config.as_object().cloned().unwrap_or_default();
        self.layers.push(Written {
            name,
            class,
            module,
            snake,
            config,
            args,
            kwargs,
            weights,
            shape: shape.to_vec(),
            dtype,
            input: None,
            output: None,
            is_output: false,
            again: None,
        });
        self.layers.len() - 1
    }

    /// Adds a layer that gives a value of the graph.
    pub(super) fn give(&mut self, name: &str, new: New, id: ValueId) -> Result<usize> {
        let ty = self.from.graph.ty(id);
        if ty.shape.first() != Some(&self.batch) {
            let why = format!("it gives {ty}, which is not a result for each sample");
            return Err(Error::export(name, why));
        }
        let dtype = if ty.dtype.is_float() { self.dtype } else { ty.dtype };
        let shape = ty.shape[1..].to_vec();
        Ok(self.add(name, new, &shape, dtype))
    }

    /// Reads the table of an embedding the other way round, as one more call of its layer; nothing if no layer has this parameter as its table.
    pub(super) fn reversed(
        &mut self,
        table: &str,
        shape: &[usize],
        x: usize,
        id: ValueId,
    ) -> Result<Option<usize>> {
        let is_own = |layer: &Written| match &layer.weights[..] {
            [weight] => {
                layer.class.ends_with("Embedding")
                    && weight.shape == shape
                    && matches!(&weight.source, Source::Param(name) if name == table)
            }
            _ => false,
        };
        let Some(at) = self.layers.iter().position(is_own) else { return Ok(None) };
        let layer = &mut self.layers[at];
        (layer.class, layer.snake) = ("ReversibleEmbedding", "reversible_embedding");
        layer.config.insert("tie_weights".into(), json!(true));
        let name = layer.name.clone();
        let new = New { kwargs: json!({"reverse": true}), ..New::layer("ReversibleEmbedding", json!({}), x) };
        let call = self.give(&name, new, id)?;
        self.layers[call].again = Some(at);
        Ok(Some(call))
    }

    pub(super) fn made(&self, id: ValueId, place: &str) -> Result<&Made> {
        let missing = || Error::export(place, "it reads what is not known here");
        self.made.get(&id).ok_or_else(missing)
    }

    /// The layer that gives a value.
    pub(super) fn tensor(&self, id: ValueId, place: &str) -> Result<usize> {
        match self.made(id, place)? {
            Made::Layer(at) => Ok(*at),
            Made::Param(name, _) => {
                Err(Error::export(place, format!("it reads the parameter {name} by itself")))
            }
            Made::Number(_) => Err(Error::export(place, "it reads a constant")),
        }
    }

    pub(super) fn is_relu(&self, at: usize) -> bool {
        let layer = &self.layers[at];
        layer.class == "ReLU" || layer.config.get("activation").is_some_and(|f| f == "relu")
    }

    /// A parameter that no layer owns, as a tensor of this rank with a batch: the only row of a table, looked up for every
    /// sample.
    pub(super) fn batched(&mut self, name: &str, shape: &[usize], rank: usize, place: &str) -> Result<usize> {
        if let Some(&at) = self.tables.get(&(name.to_string(), rank)) {
            return Ok(at);
        }
        let own = match shape {
            [1, rest @ ..] if shape.len() == rank => rest,
            shape if shape.len() < rank => shape,
            _ => {
                let why = format!("it reads the parameter {name}, whose first axis would be the batch's");
                return Err(Error::export(place, why));
            }
        };
        let full: Vec<usize> =
            std::iter::repeat_n(1, rank - 1 - own.len()).chain(own.iter().copied()).collect();
        let elements: usize = full.iter().product();
        let zeros = self.zeros()?;
        let config = json!({"input_dim": 1, "output_dim": elements, "mask_zero": false});
        let weights = vec![Weight::new([1, elements], Source::Param(name.to_string()))];
        let table = New::layer("Embedding", config, zeros).weights("embedding", weights);
        let row = self.add(name, table, &[1, elements], self.dtype);
        let reshape = New::layer("Reshape", json!({"target_shape": full}), row);
        let at = self.add(&format!("{name}_reshape"), reshape, &full, self.dtype);
        self.tables.insert((name.to_string(), rank), at);
        Ok(at)
    }

    fn zeros(&mut self) -> Result<usize> {
        if let Some(at) = self.zeros {
            return Ok(at);
        }
        let none = || Error::export("the model", "it has no inputs");
        let input = self.layers.iter().position(|layer| layer.input == Some(0)).ok_or_else(none)?;
        let all = json!({"class_name": "__slice__", "config": {"start": null, "stop": null, "step": null}});
        let first = json!({"class_name": "__slice__", "config": {"start": 0, "stop": 1, "step": null}});
        let rank = self.layers[input].shape.len();
        if rank == 0 {
            return Err(Error::export("the model", "its input has no axis but the batch"));
        }
        // The first number of every sample: [N, 1].
        let mut key = vec![all];
        key.extend(std::iter::repeat_n(json!(0), rank - 1));
        key.push(first);
        let args = vec![Argument::Tensor(input), Argument::Value(Value::Array(key))];
        let dtype = self.layers[input].dtype;
        let item = self.add("sample", New::function("GetItem", NUMPY, json!({}), args), &[1], dtype);
        let zeros =
            New::function("ZerosLike", NUMPY, json!({"dtype": "int32"}), vec![Argument::Tensor(item)]);
        let at = self.add("sample_zeros", zeros, &[1], DType::I32);
        self.zeros = Some(at);
        Ok(at)
    }
}

pub(super) const NUMPY: &str = "keras.src.ops.numpy";
pub(super) const MATH: &str = "keras.src.ops.math";
pub(super) const NN: &str = "keras.src.ops.nn";
