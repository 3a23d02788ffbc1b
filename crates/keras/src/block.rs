//! Turns a tree of models and layers into calls that can be run, and runs them.

use std::collections::{HashMap, HashSet};

use plimsoll_formats::Element;
use plimsoll_formats::keras::{Argument, Layer, Model, TensorRef};
use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::{Precision, View};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use crate::error::{Error, Result, refuse};
use crate::layer::{Arg, Args, Cx, Made, Masks, Pass};
use crate::layers;

/// Models inside models at most.
const MOST_DEPTH: usize = 16;
/// The largest tensor that a model may make: what is larger is a damaged file.
const MOST_ELEMENTS: usize = 1 << 40;

/// The argument by which a call is told whether it trains by the code that made it. What is stored as `training` itself counts for nothing.
const TRAINING: &str = "plimsoll_training";

/// A model whose layers are all understood.
pub(crate) struct Block {
    pub nodes: Vec<Node>,
    calls: Vec<Step>,
    /// Which calls are needed where nothing is trained and where something is; none where all are.
    needed: Option<[Vec<bool>; 2]>,
    inputs: Vec<TensorRef>,
    outputs: Vec<TensorRef>,
    /// Names of the inputs and outputs, where the file gives them, and of the layers that make them.
    pub input_names: Vec<String>,
    pub output_names: Vec<String>,
}

/// What a layer gives.
type Results = RunResult<Vec<Masked>>;

/// A layer, or a model inside the model.
pub(crate) struct Node {
    pub name: String,
    pub class: String,
    /// Its names from the outermost model on, which is also where its parameters are.
    pub place: String,
    /// Where its variables are in the file.
    pub path: String,
    pub trainable: bool,
    pub precision: Option<Precision>,
    pub body: Body,
}

pub(crate) enum Body {
    Input,
    Layer(Made),
    Model(Block),
}

struct Step {
    node: usize,
    call: usize,
    args: Vec<Argument>,
    kwargs: Vec<(String, Argument)>,
    /// Whether the layer is to train, where the code that called it says so against the run.
    training: Option<bool>,
}

impl Step {
    /// What is read of the arguments by place: of what is computed either while a model trains or otherwise, the one of the two.
    fn read(&self, node: &Node, is_training: bool) -> &[Argument] {
        match (&self.args[..], layers::is_either(&node.class)) {
            ([trained, _], true) if is_training => std::slice::from_ref(trained),
            ([_, used], true) => std::slice::from_ref(used),
            (args, _) => args,
        }
    }
}

/// A tensor, and the mask that goes with it.
type Masked = (Tensor, Option<Tensor>);

impl Block {
    /// Makes a model of its layers. Each has a name unique in the model; `place` is empty for the outermost.
    pub(crate) fn build(model: &Model, place: &str, depth: usize) -> Result<Block> {
        if depth > MOST_DEPTH {
            return Err(Error::config(place, format!("models are nested more than {MOST_DEPTH} deep")));
        }
        let nodes =
            model.layers.iter().map(|layer| Node::build(layer, place, depth)).collect::<Result<Vec<_>>>()?;
        let mut calls = Vec::new();
        for call in &model.calls {
            let node = &nodes[call.layer];
            node.check_kwargs(&call.kwargs)?;
            let (said, kwargs): (Vec<_>, Vec<_>) =
                call.kwargs.iter().cloned().partition(|(key, _)| key == TRAINING);
            let training = said.iter().find_map(|(_, arg)| match arg {
                Argument::Value(Value::Bool(flag)) => Some(*flag),
                _ => None,
            });
            calls.push(Step { node: call.layer, call: call.call, args: call.args.clone(), kwargs, training });
        }
        let name = |port: &plimsoll_formats::keras::Port| {
            port.name.clone().unwrap_or_else(|| model.layers[port.tensor.layer].name.clone())
        };
        if model.outputs.is_empty() {
            return Err(Error::config(place, "the model has no outputs"));
        }
        let outputs: Vec<TensorRef> = model.outputs.iter().map(|port| port.tensor).collect();
        let needed = nodes
            .iter()
            .any(|node| layers::is_either(&node.class))
            .then(|| [false, true].map(|is_training| needed(&nodes, &calls, &outputs, is_training)));
        Ok(Block {
            nodes,
            calls,
            needed,
            inputs: model.inputs.iter().map(|port| port.tensor).collect(),
            outputs,
            input_names: model.inputs.iter().map(name).collect(),
            output_names: model.outputs.iter().map(name).collect(),
        })
    }

    /// How many tensors go in. A Sequential model that was never built takes one.
    pub(crate) fn n_inputs(&self) -> usize {
        self.inputs.len().max(1)
    }

    pub(crate) fn n_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// All layers in Keras's order, models entered.
    pub(crate) fn all(&self) -> Vec<&Node> {
        fn collect<'a>(block: &'a Block, all: &mut Vec<&'a Node>) {
            for node in &block.nodes {
                all.push(node);
                if let Body::Model(inner) = &node.body {
                    collect(inner, all);
                }
            }
        }
        let mut all = Vec::new();
        collect(self, &mut all);
        all
    }

    /// The layer that ends in a softmax or sigmoid, and which of them, where an output is that and nobody else reads it, so that what goes into
    /// it can be given instead.
    pub(crate) fn probabilities(&self, output: usize) -> Option<(&Node, View)> {
        let tensor = *self.outputs.get(output)?;
        let used = self.outputs.iter().filter(|t| **t == tensor).count()
            + self.calls.iter().map(|c| uses(c, tensor)).sum::<usize>();
        let node = self.nodes.get(tensor.layer).filter(|_| used == 1)?;
        match &node.body {
            Body::Model(inner) => inner.probabilities(tensor.output),
            // What goes out adds to the loss, so it must be what Keras gives.
            Body::Layer(made) if made.activity.is_some() => None,
            Body::Layer(made) => made.probabilities.map(|view| (node, view)),
            Body::Input => None,
        }
    }

    /// Runs all calls. `logits` says of which outputs a last softmax or sigmoid is to be left out.
    pub(crate) fn run(&self, cx: &mut Cx<'_>, inputs: &[Masked], logits: &[bool]) -> RunResult<Vec<Masked>> {
        if inputs.len() != self.n_inputs() {
            let (given, own) = (inputs.len(), self.n_inputs());
            return Err(refuse(format!("gives {given} inputs to a model of {own}")));
        }
        let mut values: HashMap<(usize, usize), Vec<Masked>> = HashMap::new();
        let wants = std::mem::take(&mut cx.pass.wants_logits);
        let is_training = cx.is_training();
        // All parameters are to be found, whenever they are used.
        let needed = self.needed.as_ref().filter(|_| !cx.net.is_discovering());
        for (i, step) in self.calls.iter().enumerate() {
            if needed.is_some_and(|both| !both[usize::from(is_training)][i]) {
                continue;
            }
            let node = &self.nodes[step.node];
            if let Body::Input = node.body {
                let place = self.inputs.iter().position(|t| t.layer == step.node).unwrap_or(0);
                values.insert((step.node, step.call), vec![inputs[place].clone()]);
                continue;
            }
            let mut args = Args {
                args: step
                    .read(node, is_training)
                    .iter()
                    .map(|arg| resolve(arg, &values))
                    .collect::<RunResult<_>>()?,
                kwargs: step
                    .kwargs
                    .iter()
                    .map(|(key, arg)| Ok((key.clone(), resolve(arg, &values)?)))
                    .collect::<RunResult<_>>()?,
            };
            if step.args.is_empty() && step.kwargs.is_empty() {
                // The first layer of a model that was never built reads its input.
                let (x, mask) = inputs[0].clone();
                args = Args::of(x, mask);
            }
            let wanted: Vec<bool> = (0..self.outputs.len())
                .map(|i| {
                    let t = self.outputs[i];
                    logits.get(i).copied().unwrap_or(false) && (t.layer, t.call) == (step.node, step.call)
                })
                .collect();
            let result = match step.training {
                None => node.run(cx, &args, &self.outputs, &wanted),
                Some(training) => {
                    let pass = &mut *cx.pass;
                    cx.net.with_training(training, |net| {
                        node.run(&mut Cx { net, pass }, &args, &self.outputs, &wanted)
                    })
                }
            };
            cx.pass.wants_logits = false;
            let result = result.map_err(|error| node.at(error, cx.pass))?;
            if let Some(seen) = &mut cx.pass.seen {
                let types = || result.iter().map(|(y, _)| y.ty().clone()).collect();
                seen.entry(node.place.clone()).or_insert_with(types);
            }
            values.insert((step.node, step.call), result);
        }
        cx.pass.wants_logits = wants;
        self.outputs.iter().map(|t| find(t, &values)).collect()
    }
}

fn uses(step: &Step, tensor: TensorRef) -> usize {
    let all = step.args.iter().chain(step.kwargs.iter().map(|(_, arg)| arg));
    tensors(all).into_iter().filter(|t| *t == tensor).count()
}

/// All tensors among arguments.
fn tensors<'a>(args: impl Iterator<Item = &'a Argument>) -> Vec<TensorRef> {
    fn collect(arg: &Argument, found: &mut Vec<TensorRef>) {
        match arg {
            Argument::Tensor(t) => found.push(*t),
            Argument::List(list) => list.iter().for_each(|arg| collect(arg, found)),
            Argument::Map(map) => map.iter().for_each(|(_, arg)| collect(arg, found)),
            Argument::Value(_) => {}
        }
    }
    let mut found = Vec::new();
    args.for_each(|arg| collect(arg, &mut found));
    found
}

/// Which calls the outputs depend on while something is trained, or while nothing is. Calls stand behind those that they read.
fn needed(nodes: &[Node], calls: &[Step], outputs: &[TensorRef], is_training: bool) -> Vec<bool> {
    let mut read: HashSet<(usize, usize)> = outputs.iter().map(|t| (t.layer, t.call)).collect();
    let mut needed = vec![false; calls.len()];
    for (step, needed) in calls.iter().zip(&mut needed).rev() {
        *needed = read.contains(&(step.node, step.call));
        if *needed {
            let all = step.read(&nodes[step.node], is_training).iter();
            let all = all.chain(step.kwargs.iter().map(|(_, arg)| arg));
            read.extend(tensors(all).into_iter().map(|t| (t.layer, t.call)));
        }
    }
    needed
}

fn find(t: &TensorRef, values: &HashMap<(usize, usize), Vec<Masked>>) -> RunResult<Masked> {
    let found = values.get(&(t.layer, t.call)).and_then(|outputs| outputs.get(t.output));
    found.cloned().ok_or_else(|| refuse(format!("reads output {} of a layer that has fewer", t.output)))
}

fn resolve(arg: &Argument, values: &HashMap<(usize, usize), Vec<Masked>>) -> RunResult<Arg> {
    Ok(match arg {
        Argument::Tensor(t) => {
            let (x, mask) = find(t, values)?;
            Arg::Tensor(x, mask)
        }
        Argument::List(list) => {
            Arg::List(list.iter().map(|arg| resolve(arg, values)).collect::<RunResult<_>>()?)
        }
        // A model's inputs by name come in the order of their names, as the model's own list has them.
        Argument::Map(map) => {
            Arg::List(map.iter().map(|(_, arg)| resolve(arg, values)).collect::<RunResult<_>>()?)
        }
        Argument::Value(value) => match constant(value)? {
            Some(constant) => Arg::Tensor(constant, None),
            None => Arg::Value(value.clone()),
        },
    })
}

/// The most elements of a constant in a configuration.
const MOST_CONSTANT: usize = 1 << 20;

/// An array that a configuration holds, if this is one.
fn constant(value: &Value) -> RunResult<Option<Tensor>> {
    fn collect(value: &Value, depth: usize, shape: &mut Vec<usize>, numbers: &mut Vec<f64>) -> Option<()> {
        match value {
            Value::Array(list) => {
                if shape.len() == depth {
                    shape.push(list.len());
                }
                if depth >= 8 || shape[depth] != list.len() || numbers.len() + list.len() > MOST_CONSTANT {
                    return None;
                }
                list.iter().try_for_each(|one| collect(one, depth + 1, shape, numbers))
            }
            Value::Bool(truth) => {
                numbers.push(f64::from(u8::from(*truth)));
                Some(())
            }
            one => {
                numbers.push(one.as_f64()?);
                (shape.len() == depth).then_some(())
            }
        }
    }
    let is_array = value.get("class_name").is_some_and(|class| class == "__numpy__" || class == "__tensor__");
    let Some(config) = value.get("config").filter(|_| is_array) else { return Ok(None) };
    let (mut shape, mut numbers) = (Vec::new(), Vec::new());
    let found = collect(config.get("value").unwrap_or(&Value::Null), 0, &mut shape, &mut numbers);
    let wrong = || refuse("computes with an array that is no block of numbers, or too large");
    found.filter(|()| shape.iter().product::<usize>() == numbers.len()).ok_or_else(wrong)?;
    let name = config.get("dtype").and_then(Value::as_str).unwrap_or("float32");
    let dtype = Element::from_numpy(name).and_then(Element::dtype);
    let dtype =
        dtype.ok_or_else(|| refuse(format!("computes with an array of {name}, which is not supported")))?;
    let wide = Tensor::from_slice(&numbers, &shape[..])?;
    Ok(Some(match dtype {
        DType::Bool => wide.not_equal(&wide.full_like(wide.ty().with_shape([]), 0.0)?)?,
        DType::BF16 | DType::F16 => wide.cast(DType::F32)?.cast(dtype)?,
        dtype => wide.cast(dtype)?,
    }))
}

impl Node {
    fn build(layer: &Layer, place: &str, depth: usize) -> Result<Node> {
        let own = if place.is_empty() { layer.name.clone() } else { format!("{place}/{}", layer.name) };
        let body = match &layer.model {
            Some(model) => {
                layers::check_model(layer, &own)?;
                Body::Model(Block::build(model, &own, depth + 1)?)
            }
            None if layer.is_input() => {
                layers::check_input(layer, &own)?;
                Body::Input
            }
            None => Body::Layer(layers::make(layer, &own)?),
        };
        Ok(Node {
            name: layer.name.clone(),
            class: layer.class_name.clone(),
            precision: precision(layer, &own)?,
            place: own,
            path: layer.path.clone(),
            trainable: layer.trainable,
            body,
        })
    }

    fn check_kwargs(&self, kwargs: &[(String, Argument)]) -> Result<()> {
        for (key, arg) in kwargs {
            let known = match &self.body {
                // Training is what the outermost call says, whatever is stored here: so Keras 3 runs it.
                _ if key == "training" => true,
                _ if key == TRAINING => matches!(arg, Argument::Value(Value::Bool(_))),
                _ if matches!(arg, Argument::Value(Value::Null)) => true,
                // Functional models name masks among the arguments.
                Body::Layer(made) if key == "mask" && !made.kwargs.contains(&"mask") => {
                    matches!(made.masks, Masks::Read | Masks::Pass) && matches!(arg, Argument::Tensor(_))
                }
                Body::Layer(made) => made.kwargs.contains(&key.as_str()),
                Body::Model(_) => false,
                Body::Input => false,
            };
            if !known {
                return Err(Error::config(
                    &self.place,
                    format!("it is called with {key:?}, which is not supported"),
                ));
            }
        }
        Ok(())
    }

    /// The layer on its arguments, in its own precision.
    fn run(&self, cx: &mut Cx<'_>, args: &Args, outputs: &[TensorRef], wanted: &[bool]) -> Results {
        // Models and operations have no precision of their own.
        let named = cx.pass.layer_precisions.get(&self.place).copied().or(cx.pass.precision);
        let precision = self.precision.map(|own| named.unwrap_or(own));
        let Some(precision) = precision else { return self.run_in(cx, args, outputs, wanted) };
        let pass = &mut *cx.pass;
        cx.net.with_precision(precision, |net| self.run_in(&mut Cx { net, pass }, args, outputs, wanted))
    }

    fn run_in(&self, cx: &mut Cx<'_>, args: &Args, outputs: &[TensorRef], wanted: &[bool]) -> Results {
        cx.pass.enter(self.trainable);
        match &self.body {
            Body::Input => Err(refuse("calls an input as a layer")),
            Body::Model(block) => {
                let inputs = positional(args)?;
                // Which of the inner model's outputs are the outer one's.
                let logits: Vec<bool> = (0..block.n_outputs())
                    .map(|i| outputs.iter().zip(wanted).any(|(t, wanted)| *wanted && t.output == i))
                    .collect();
                cx.scope(&self.name, |cx| block.run(cx, &inputs, &logits))
            }
            Body::Layer(made) => {
                // Keras casts what a layer reads to the type it computes in.
                let dtype = cx.dtype();
                let cast = self.precision.is_some();
                let mut args = args.map(&|x: &Tensor| {
                    if cast && x.dtype().is_float() { x.cast(dtype) } else { Ok(x.clone()) }
                })?;
                if made.masks == Masks::Refuse && args.has_mask() {
                    return Err(refuse(format!(
                        "leads a mask into {}, a {}, which does not read masks here",
                        self.place, self.class
                    )));
                }
                args.take_mask();
                cx.pass.wants_logits = wanted.iter().any(|w| *w);
                cx.pass.mask = None;
                let results = cx.scope(&self.name, |cx| (made.body)(cx, &args))?;
                if let Some(activity) = made.activity.filter(|_| cx.pass.counts_activity) {
                    for y in &results {
                        cx.penalize_samples(activity, &y.cast(y.dtype().accumulator())?)?;
                    }
                }
                let mask = match made.masks {
                    Masks::Drop | Masks::Refuse => None,
                    Masks::Pass => args.mask().cloned(),
                    Masks::Read => cx.pass.mask.take(),
                };
                for y in &results {
                    let size = y.shape().iter().try_fold(1usize, |n, d| n.checked_mul(*d));
                    if size.is_none_or(|n| n > MOST_ELEMENTS) {
                        return Err(refuse(format!("makes {} of a layer, which is too large", y.ty())));
                    }
                }
                let masked = |(i, y): (usize, Tensor)| (y, if i == 0 { mask.clone() } else { None });
                Ok(results.into_iter().enumerate().map(masked).collect())
            }
        }
    }

    /// An error of the engine with the layer's place. Of a model inside a model, the innermost layer is named.
    fn at(&self, error: plimsoll_run::Error, pass: &mut Pass) -> plimsoll_run::Error {
        if std::mem::replace(&mut pass.has_failed, true) {
            return error;
        }
        match error {
            plimsoll_run::Error::Graph(graph) => {
                refuse(format!("runs {}, a {}: {graph}", self.place, self.class))
            }
            plimsoll_run::Error::Signature { site, why } => plimsoll_run::Error::Signature {
                site,
                why: format!("runs {}, a {}: it {why}", self.place, self.class),
            },
            other => other,
        }
    }
}

/// The tensors among the arguments of a model, with their masks.
fn positional(args: &Args) -> RunResult<Vec<Masked>> {
    fn collect(arg: &Arg, found: &mut Vec<Masked>) {
        match arg {
            Arg::Tensor(x, mask) => found.push((x.clone(), mask.clone())),
            Arg::List(list) => list.iter().for_each(|arg| collect(arg, found)),
            Arg::Value(_) => {}
        }
    }
    let mut found = Vec::new();
    args.args.iter().for_each(|arg| collect(arg, &mut found));
    if found.is_empty() {
        return Err(refuse("calls a model on nothing"));
    }
    Ok(found)
}

/// The precision that a layer's policy names; none for operations and models, which have none of their own.
fn precision(layer: &Layer, place: &str) -> Result<Option<Precision>> {
    // A function's dtype is what it casts to.
    let has_own = layer.model.is_none() && !layer.is_input() && !layers::is_function(layer);
    let Some(policy) = layer.policy.as_ref().filter(|_| has_own) else {
        return Ok(None);
    };
    let refused = || {
        let why = format!(
            "this {} has the dtype policy {:?}, which is not taken; build it with float64, float32, bfloat16, float16 or a mixed one",
            layer.class_name, policy.name
        );
        Error::config(place, why)
    };
    match policy.compute {
        Some(Element::F32) => Ok(Some(Precision::F32)),
        Some(Element::F64) => Ok(Some(Precision::F64)),
        Some(Element::BF16) => Ok(Some(Precision::MixedBf16)),
        Some(Element::F16) => Ok(Some(Precision::MixedF16)),
        // Layers of indices, an embedding's neighbours, may have an integer type.
        Some(Element::I32 | Element::I64) => Ok(None),
        _ => Err(refused()),
    }
}
