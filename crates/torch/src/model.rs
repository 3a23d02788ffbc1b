//! An exported program as a model of ours: kept tensors are state by name, nodes are ops over tensors, one after the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use plimsoll_graph::{DType, GradientOps, TensorOps, Type};
use plimsoll_nn::blocks::{Laid, reordered};
use plimsoll_nn::{Init, Loss, Model, Net, Outputs, Param, Training};
use plimsoll_run::{Result as RunResult, Tensor, asked_at, named};
use rustc_hash::FxHashMap;

use crate::call::Call;
use crate::error::{Error, Result, refuse};
use crate::ops;
use crate::orders::{inverse, stored_orders, stored_type};
use crate::place;
use crate::program::{Held, Kind, Length, Level, Program, dtype, short};
use crate::schema::{Argument, Graph, Node, OptionalTensor, SymBool, SymFloat, SymInt};
use crate::value::Value;

/// A model from an exported program.
///
/// Parameters and buffers have the names that they have in the module. Weights of convolutions are kept in the order of axes in which
/// they are read at every step; [`TorchModel::bytes`] and [`TorchModel::in_order`] give and take them as PyTorch has them.
///
/// ```
/// use plimsoll_nn::{Model, Net};
/// use plimsoll_run::{Tensor, TensorOps};
/// use plimsoll_torch::TorchModel;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mlp.pt2");
/// let model = TorchModel::open(path)?;
/// let inputs = model.input_types(3)?;
/// let inputs: Vec<Tensor> = inputs.into_iter().map(Tensor::zeros).collect::<Result<_, _>>()?;
/// let mut net = Net::bound(model.params(), &model.values()?, false);
/// assert_eq!(model.forward(&mut net, &inputs)?.len(), model.program().outputs().len());
/// # Ok::<(), plimsoll_torch::Error>(())
/// ```
#[derive(Clone)]
pub struct TorchModel {
    program: Arc<Program>,
    /// One for each kept tensor, in their order, but for those without elements.
    params: Vec<Param>,
    /// Of each kept tensor, the order in which the axes of what is stored here are read.
    orders: Arc<Vec<Vec<usize>>>,
    /// Whether only the loss is given.
    gives_loss: bool,
    /// What is run in the place of this where the model is not trained: the module as it is in eval mode. All clones share them.
    others: Arc<OtherModes>,
    /// Whether this stands in for another, which keeps the state.
    is_other_mode: bool,
}

#[derive(Default)]
struct OtherModes {
    evaluated: OnceLock<TorchModel>,
    predicted: OnceLock<TorchModel>,
}

impl TorchModel {
    /// Opens a `.pt2` file.
    ///
    /// # Errors
    /// The file is damaged, of another version, or has an op that is not known here (named with the line of the user's source).
    pub fn open(path: impl AsRef<Path>) -> Result<TorchModel> {
        TorchModel::new(Program::open(path)?)
    }

    /// A program as a model.
    ///
    /// # Errors
    /// It has an op that is not known here.
    pub fn new(program: Program) -> Result<TorchModel> {
        if program.level() == Level::Training {
            let why = "it is at the level of torch.export.export, where ops write over their inputs; make it functional with .run_decompositions({}) before torch.export.save, or export it with plimsoll.torch.export";
            return Err(program.wrong(why));
        }
        ops::check(&program)?;
        let orders = stored_orders(&program);
        let param = |(held, order): (&Held, &Vec<usize>)| Param {
            name: held.name.clone(),
            ty: stored_type(held, order),
            init: Init::Constant(0.0),
            trained: held.kind == Kind::Trained,
        };
        let kept = program.held().iter().zip(&orders).filter(|(held, _)| held.ty.elements() > 0);
        let params = kept.map(param).collect();
        Ok(TorchModel {
            program: Arc::new(program),
            params,
            orders: Arc::new(orders),
            gives_loss: false,
            others: Arc::default(),
            is_other_mode: false,
        })
    }

    /// Gives this model and its clones another program for where its loss is only measured, one with a loss: the module as it is in eval
    /// mode. It is given once.
    ///
    /// # Errors
    /// That program has an op that is not known here, or keeps something that this one does not.
    pub fn set_evaluation(&self, program: Program) -> Result<()> {
        let model = self.other_mode(program)?.on_loss()?;
        self.others
            .evaluated
            .set(model)
            .map_err(|model| model.program.wrong("there is an evaluation already"))
    }

    /// Gives this model and its clones another program for predictions, whose outputs are what is predicted. It is given once.
    ///
    /// # Errors
    /// As for [`TorchModel::set_evaluation`].
    pub fn set_prediction(&self, program: Program) -> Result<()> {
        let model = self.other_mode(program)?;
        self.others.predicted.set(model).map_err(|model| model.program.wrong("there is a prediction already"))
    }

    /// What predicts in the place of this model, where that was given.
    pub fn prediction(&self) -> Option<&TorchModel> {
        self.others.predicted.get()
    }

    /// A program over this one's state.
    fn other_mode(&self, program: Program) -> Result<TorchModel> {
        let mut model = TorchModel::new(program)?;
        let mut orders = stored_orders(&model.program);
        for (held, order) in model.program.held().iter().zip(&mut orders) {
            if held.kind == Kind::Constant || held.ty.elements() == 0 {
                continue;
            }
            let (own, stored) = self.stored(&held.name)?;
            if own.ty != held.ty {
                let why = format!("{} is {} in one mode and {} in another", held.name, own.ty, held.ty);
                return Err(model.program.wrong(why));
            }
            order.clone_from(stored);
        }
        (model.orders, model.is_other_mode) = (Arc::new(orders), true);
        Ok(model)
    }

    /// Gives a training of this model the values of its parameters and buffers.
    ///
    /// # Errors
    /// The training is of another model, or values cannot be read.
    pub fn restore(&self, training: &mut Training) -> Result<()> {
        for param in &self.params {
            training.restore(&param.name, &self.bytes(&param.name)?)?;
        }
        Ok(())
    }

    /// What [`TorchModel::restore`] takes at most while it runs: the largest tensor, read and put in order.
    pub fn restoring_bytes(&self) -> usize {
        2 * self.program.held().iter().map(|held| held.ty.bytes()).max().unwrap_or(0)
    }

    /// The program itself.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The same model with its loss as its only output: for training, see [`ProgramLoss`].
    ///
    /// # Errors
    /// No output is a single number, or gradients of the program would not be those of the module.
    pub fn on_loss(mut self) -> Result<TorchModel> {
        self.check_gradients()?;
        if self.program.loss().is_none() {
            let why = "none of its outputs is a single number, so that it has no loss of its own; name one";
            return Err(self.program.wrong(why));
        }
        self.gives_loss = true;
        Ok(self)
    }

    /// That gradients through the program are those of the module it was exported from.
    ///
    /// # Errors
    /// It was decomposed into core ATen, where `detach` is lost.
    pub fn check_gradients(&self) -> Result<()> {
        match self.program.level() {
            Level::Core => {
                let why = "it is decomposed into core ATen, where detach() is lost and gradients are silently wrong; use .run_decompositions({}) in the place of .run_decompositions()";
                Err(self.program.wrong(why))
            }
            _ => Ok(()),
        }
    }

    /// The parameters and buffers, in the order of [`TorchModel::values`].
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The types of the inputs for a batch: lengths that are open take the batch where they are those of the first axis of the first
    /// input, and what they were in the export elsewhere.
    ///
    /// # Errors
    /// The program was exported for another batch, and for that alone.
    pub fn input_types(&self, batch: usize) -> Result<Vec<Type>> {
        let first = self.program.inputs().first().and_then(|input| input.shape.first());
        if let Some(Length::Fixed(fixed)) = first
            && *fixed != batch
        {
            let why = format!(
                "it was exported for batches of {fixed}, not {batch}; export it with dynamic_shapes, so that the batch is open"
            );
            return Err(self.program.wrong(why));
        }
        let length = |length: &Length| match length {
            Length::Fixed(n) => *n,
            open @ Length::Open(..) if Some(open) == first => batch,
            Length::Open(_, n) => *n,
        };
        let ty = |input: &crate::Input| {
            Type::new(input.dtype, input.shape.iter().map(length).collect::<Vec<usize>>())
        };
        Ok(self.program.inputs().iter().map(ty).collect())
    }

    /// The values of parameters and buffers as they are stored here.
    pub fn values(&self) -> Result<Vec<Tensor>> {
        let value = |param: &Param| {
            let mut tensor = Tensor::zeros(param.ty.clone())?;
            tensor.set_bytes(&self.bytes(&param.name)?)?;
            Ok(tensor)
        };
        self.params.iter().map(value).collect()
    }

    /// The elements of one parameter or buffer, in the order in which they are stored here.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let (held, order) = self.stored(name)?;
        let bytes = self.program.value(held)?;
        // Axis i of what is stored is axis `order`⁻¹[i] of what PyTorch has.
        Ok(reordered(bytes, held.ty.dtype.bytes(), &held.ty.shape, &inverse(order)).into_owned())
    }

    /// Elements of one parameter or buffer (or of an optimizer's state of its shape) as PyTorch has them, from those stored here.
    pub fn in_order(&self, name: &str, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let (held, order) = self.stored(name)?;
        let unit = bytes.len() / held.ty.elements().max(1);
        Ok(reordered(bytes, unit, &stored_type(held, order).shape, order).into_owned())
    }

    /// Elements as they are stored here, from those that PyTorch has.
    pub fn as_stored(&self, name: &str, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let (held, order) = self.stored(name)?;
        let unit = bytes.len() / held.ty.elements().max(1);
        Ok(reordered(bytes, unit, &held.ty.shape, &inverse(order)).into_owned())
    }

    fn stored(&self, name: &str) -> Result<(&Held, &Vec<usize>)> {
        let at = self.program.held().iter().position(|held| held.name == name);
        let at = at.ok_or_else(|| self.program.wrong(format!("it has no tensor {name}")))?;
        Ok((&self.program.held()[at], &self.orders[at]))
    }

    fn run(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        let program = &*self.program;
        if inputs.len() != program.inputs().len() {
            let (given, wanted) = (inputs.len(), program.inputs().len());
            return Err(refuse(format!("gives {given} inputs to {}, which takes {wanted}", program.file())));
        }
        let mut env: Env<'_> = FxHashMap::default();
        for (input, given) in program.inputs().iter().zip(inputs) {
            check_input(input, given)?;
            let given = if given.dtype() == input.dtype { given.clone() } else { given.cast(input.dtype)? };
            env.insert(&input.name, Value::Tensor(given.into(), false));
        }
        let mut kept = Vec::with_capacity(program.held().len());
        for (held, order) in program.held().iter().zip(self.orders.iter()) {
            let is_trained = held.kind == Kind::Trained;
            kept.push(match held.ty.elements() {
                0 => None,
                _ => {
                    let ty = stored_type(held, order);
                    // Constants of two modes are other ones, be their names the same.
                    let tensor = match self.is_other_mode && held.kind == Kind::Constant {
                        true => {
                            let mut tensor = Tensor::zeros(ty)?;
                            tensor.set_bytes(&self.bytes(&held.name)?)?;
                            tensor
                        }
                        false => net.given(&held.name, ty, Init::Constant(0.0), is_trained)?,
                    };
                    Some(Laid::ordered(tensor, order))
                }
            });
        }
        let anchor =
            inputs.first().cloned().or_else(|| kept.iter().flatten().next().map(|laid| laid.lying().clone()));
        let Some(anchor) = anchor else { return Err(refuse("runs a program without inputs and parameters")) };
        for (name, &at) in &program.bound {
            let held = &program.held()[at];
            let laid = match &kept[at] {
                Some(laid) => laid.clone(),
                None => anchor.full_like(held.ty.clone(), 0.0)?.into(),
            };
            env.insert(name, Value::Tensor(laid, held.kind == Kind::Trained));
        }
        let mut run = Run { net, anchor: &anchor, types: vec![&program.graph.tensor_values] };
        run.graph(&program.graph, &mut env)?;
        let is_training = run.net.is_training();
        for (name, at) in program.changes.iter().filter(|_| is_training) {
            let held = &program.held()[*at];
            if held.ty.elements() == 0 {
                continue;
            }
            let value = laid_of(&env, name)?.in_order(&inverse(&self.orders[*at]))?;
            let value = value.cast(held.ty.dtype)?.stop_gradient()?;
            run.net.update(&held.name, value)?;
        }
        let wanted = |i: &usize| !self.gives_loss || Some(*i) == program.loss();
        let outputs = (0..program.outputs().len())
            .filter(wanted)
            .map(|i| laid_of(&env, &program.outputs()[i].name)?.plain())
            .collect::<RunResult<Vec<Tensor>>>()?;
        Ok(outputs.into())
    }
}

impl Model for TorchModel {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        let other = match (net.is_predicting(), net.is_training()) {
            (true, _) => self.others.predicted.get(),
            (_, false) => self.others.evaluated.get(),
            _ => None,
        };
        other.unwrap_or(self).run(net, inputs)
    }
}

impl std::fmt::Debug for TorchModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TorchModel({}: {} parameters and buffers)", self.program.file(), self.params.len())
    }
}

/// The loss of a program that returns it: its only output ([`TorchModel::on_loss`]). Parameters that it does not depend on stay as they are.
#[derive(Clone, Copy, Debug)]
pub struct ProgramLoss;

impl Loss for ProgramLoss {
    fn loss(&self, outputs: &[Tensor], _: &[Tensor]) -> RunResult<Tensor> {
        match outputs {
            [loss] => loss.cast(if loss.dtype() == DType::F64 { DType::F64 } else { DType::F32 }),
            _ => Err(refuse(format!("has {} outputs and not a loss alone", outputs.len()))),
        }
    }

    fn leaves_out(&self) -> bool {
        true
    }
}

/// Names and what they stand for.
type Env<'a> = FxHashMap<&'a str, Value>;

fn laid_of(env: &Env<'_>, name: &str) -> RunResult<Laid> {
    match env.get(name) {
        Some(Value::Tensor(laid, _)) => Ok(laid.clone()),
        _ => Err(refuse(format!("returns {name}, which no node of the program makes"))),
    }
}

/// One pass over a program.
struct Run<'a, 'n> {
    net: &'n mut Net,
    anchor: &'a Tensor,
    /// Types of values, innermost graph last.
    types: Vec<&'a BTreeMap<String, crate::schema::TensorMeta>>,
}

impl<'a> Run<'a, '_> {
    fn graph(&mut self, graph: &'a Graph, env: &mut Env<'a>) -> RunResult<()> {
        for node in &graph.nodes {
            let module = place::module(&node.metadata);
            let mut step = || self.node(graph, node, env);
            let site = place::line(&node.metadata);
            let done = named(module, || match site {
                Some(site) => asked_at(site, &mut step),
                None => step(),
            });
            done.map_err(|error| placed(error, node))?;
        }
        Ok(())
    }

    fn node(&mut self, graph: &'a Graph, node: &'a Node, env: &mut Env<'a>) -> RunResult<()> {
        let op = short(&node.target);
        if op.starts_with("higher_order.") {
            return self.higher_order(op, node, env);
        }
        let Some(run) = ops::find(op) else { return Err(refuse("is not known here")) };
        let given = node.inputs.iter().map(|input| Ok((input.name.as_str(), argument(&input.arg, env)?)));
        let given = given.collect::<RunResult<Vec<_>>>()?;
        let mut call = Call::new(op, node, given, &graph.tensor_values, self.anchor, self.net);
        let results = run(&mut call)?;
        call.finish()?;
        let is_learned = call.any_learned() && op != "aten.detach.default";
        bind(node, results, is_learned, env)
    }

    /// Ops that run a graph of their own.
    fn higher_order(&mut self, op: &str, node: &'a Node, env: &mut Env<'a>) -> RunResult<()> {
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
        let graph = &inner.graph;
        let mut own: Env<'a> = FxHashMap::default();
        for (input, outer) in graph.inputs.iter().zip(&node.inputs[at + 1..]) {
            if let Some(name) = name_of(input) {
                own.insert(name, argument(&outer.arg, env)?);
            }
        }
        self.types.push(&graph.tensor_values);
        self.graph(graph, &mut own)?;
        self.types.pop();
        let result = |output: &Argument| {
            let value = argument(output, &own)?;
            Ok(match value {
                Value::Tensor(laid, _) if is_detached => {
                    Value::Tensor(laid.map(|t| t.stop_gradient())?, false)
                }
                other => other,
            })
        };
        let results = graph.outputs.iter().map(result).collect::<RunResult<Vec<Value>>>()?;
        let is_learned = !is_detached && results.iter().any(Value::is_learned);
        bind(node, results, is_learned, env)
    }
}

fn name_of(argument: &Argument) -> Option<&str> {
    match argument {
        Argument::AsTensor(named) => Some(&named.name),
        Argument::AsSymInt(SymInt::AsName(name))
        | Argument::AsSymFloat(SymFloat::AsName(name))
        | Argument::AsSymBool(SymBool::AsName(name)) => Some(name),
        _ => None,
    }
}

/// Gives a node's results their names.
fn bind<'a>(node: &'a Node, results: Vec<Value>, is_learned: bool, env: &mut Env<'a>) -> RunResult<()> {
    let marked = |value: Value| match value {
        Value::Tensor(laid, _) => {
            let is_float = laid.dtype().is_float();
            Value::Tensor(laid, is_learned && is_float)
        }
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
fn argument(argument: &Argument, env: &Env<'_>) -> RunResult<Value> {
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
            dtype(*code).map(|_| Value::DType).map_err(|why| refuse(format!("asks for what {why}")))
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

fn check_input(input: &crate::Input, given: &Tensor) -> RunResult<()> {
    let fits = |(length, n): (&Length, &usize)| match length {
        Length::Fixed(fixed) => fixed == n,
        Length::Open(..) => true,
    };
    let shape = given.shape();
    if shape.rank() == input.shape.len() && input.shape.iter().zip(shape.iter()).all(fits) {
        return Ok(());
    }
    let length = |length: &Length| match length {
        Length::Fixed(n) => n.to_string(),
        Length::Open(..) => "any".into(),
    };
    let wanted: Vec<String> = input.shape.iter().map(length).collect();
    Err(refuse(format!(
        "gives {shape} for the input {}, which was exported as [{}]; export the program for such inputs, with dynamic_shapes for axes that change",
        input.name,
        wanted.join(", ")
    )))
}

impl From<Error> for plimsoll_run::Error {
    fn from(error: Error) -> plimsoll_run::Error {
        match error {
            Error::Run(error) => error,
            other => refuse(format!("reads a program, and {other}")),
        }
    }
}
