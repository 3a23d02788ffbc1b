//! Turns an archive's texts, or those of a running PyTorch, into a program: nodes over named values, and the tensors that it keeps.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use plimsoll_graph::{DType, Shape, Type};
use rustc_hash::FxHashMap;

use crate::archive::{Archive, Limits};
use crate::error::{Error, Result};
use crate::schema::{
    Argument, Exported, Graph, Hint, InputSpec, MAJOR, OutputSpec, Size, TensorMeta, Version,
};
use crate::stored::Stored;

/// What a kept tensor is to the module it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A parameter that the optimizer moves.
    Trained,
    /// A parameter with `requires_grad` off.
    Frozen,
    /// A buffer: statistics, tables.
    Buffer,
    /// A tensor that the module's code holds.
    Constant,
}

/// A tensor that the program keeps from call to call.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its name in the module: `layer1.0.conv.weight`. Of tied weights the first.
    pub name: String,
    /// Element type and shape; of complex numbers that of their parts, which are the last axis.
    pub ty: Type,
    /// Whether its elements are complex numbers.
    pub is_complex: bool,
    /// What it is.
    pub kind: Kind,
    /// Whether the program gives it a new value: a statistic.
    pub is_changed: bool,
}

/// A length of an input: known, or bound to the batch at hand.
#[derive(Clone, Debug, PartialEq)]
pub enum Length {
    /// Always this.
    Fixed(usize),
    /// A symbol, with the length it had when the program was exported.
    Open(String, usize),
}

/// An input that a caller gives.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its lengths.
    pub shape: Vec<Length>,
}

/// An output that a caller is given.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its lengths at the sizes of the export.
    pub shape: Shape,
    pub(crate) is_loss: bool,
}

/// At which level of PyTorch's export a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As `torch.export.export` gives it: ops may write over their inputs.
    Training,
    /// Functional, as `run_decompositions({})` gives it.
    Functional,
    /// Decomposed into core ATen, where `detach` is lost.
    Core,
}

/// Where the values of kept tensors come from: each contiguous, in the order of its axes.
pub trait Values: Send + Sync {
    /// Fills a buffer with the elements of a tensor by name.
    fn read_into(&self, name: &str, buffer: &mut [u8]) -> io::Result<()>;
}

/// An exported program.
pub struct Program {
    pub(crate) file: String,
    pub(crate) graph: Graph,
    pub(crate) held: Vec<Held>,
    /// Kept tensors by the name that the graph has for them.
    pub(crate) bound: FxHashMap<String, usize>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) outputs: Vec<Output>,
    /// New values of kept tensors.
    pub(crate) changes: Vec<(String, usize)>,
    level: Level,
    torch_version: String,
    values: Arc<dyn Values>,
}

impl Program {
    /// Opens a `.pt2` file.
    ///
    /// # Errors
    /// The file is damaged, or of a version that is not read here.
    pub fn open(path: impl AsRef<Path>) -> Result<Program> {
        let limits = Limits::default();
        Program::of_archive(Archive::open(path.as_ref(), &limits)?, &limits)
    }

    /// A `.pt2` file that is in memory; `name` stands for it in errors.
    pub fn from_bytes(bytes: Vec<u8>, name: &str, limits: &Limits) -> Result<Program> {
        Program::of_archive(Archive::from_bytes(bytes, name, limits)?, limits)
    }

    /// A program of a running PyTorch: the text of its `model.json`, and where the tensors are that it keeps. `tied` names tensors
    /// that are others under a second name.
    pub fn live(
        name: &str,
        json: &str,
        tied: &BTreeMap<String, String>,
        values: Arc<dyn Values>,
    ) -> Result<Program> {
        let wrong = |error: serde_json::Error| Error::Program { file: name.into(), why: error.to_string() };
        check_version(name, &serde_json::from_str::<Version>(json).map_err(wrong)?)?;
        let exported: Exported = serde_json::from_str(json).map_err(wrong)?;
        Program::new(name, exported, tied, values)
    }

    fn of_archive(archive: Archive, limits: &Limits) -> Result<Program> {
        const MODEL: &str = "models/model.json";
        let missing = || archive.broken(format!("{MODEL} is missing"));
        check_version(archive.file(), &archive.json::<Version>(MODEL, limits)?.ok_or_else(missing)?)?;
        let exported: Exported = archive.json(MODEL, limits)?.ok_or_else(missing)?;
        let file = archive.file().to_string();
        let (stored, tied) = Stored::open(archive, limits)?;
        let program = Program::new(&file, exported, &tied, stored.clone())?;
        for held in &program.held {
            stored.check(held)?;
        }
        Ok(program)
    }

    fn new(
        file: &str,
        exported: Exported,
        tied: &BTreeMap<String, String>,
        values: Arc<dyn Values>,
    ) -> Result<Program> {
        let wrong = |why: String| Error::Program { file: file.into(), why };
        let Exported { graph_module, verifiers, torch_version } = exported;
        let (graph, signature) = (graph_module.graph, graph_module.signature);
        let mut program = Program {
            file: file.into(),
            level: level(&graph, &verifiers),
            graph,
            held: Vec::new(),
            bound: FxHashMap::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            changes: Vec::new(),
            torch_version,
            values,
        };
        let mut by_name: FxHashMap<String, usize> = FxHashMap::default();
        for spec in signature.input_specs {
            let (arg, name, is_parameter, is_constant) = match spec {
                InputSpec::Parameter { arg, parameter_name } => (arg.name, parameter_name, true, false),
                InputSpec::Buffer { arg, buffer_name } => (arg.name, buffer_name, false, false),
                InputSpec::TensorConstant { arg, tensor_constant_name } => {
                    (arg.name, tensor_constant_name, false, true)
                }
                InputSpec::UserInput { arg: Argument::AsTensor(named) } => {
                    let input = program.input(&named.name).map_err(&wrong)?;
                    program.inputs.push(input);
                    continue;
                }
                // A Python number or None that the program was exported with: it is part of the program.
                InputSpec::ConstantInput(_) | InputSpec::UserInput { arg: Argument::AsNone(_) } => {
                    continue;
                }
                InputSpec::UserInput { arg } => {
                    let why = format!(
                        "an input is {arg:?}, and only tensors are taken; make it a constant of the module"
                    );
                    return Err(wrong(why));
                }
                InputSpec::CustomObj(_) => {
                    return Err(wrong("it holds an object of a class of its own, which is not taken".into()));
                }
                InputSpec::Token(_) => {
                    return Err(wrong(NO_EFFECTS.into()));
                }
            };
            let meta = program.meta(&arg).map_err(&wrong)?;
            let ty = fixed_type(meta).map_err(|why| wrong(format!("{name} {why}")))?;
            let is_complex = is_complex(meta.dtype);
            let kind = match (is_parameter, is_constant, meta.requires_grad) {
                (true, _, true) => Kind::Trained,
                (true, _, false) => Kind::Frozen,
                (_, true, _) => Kind::Constant,
                _ => Kind::Buffer,
            };
            let first = tied.get(&name).unwrap_or(&name);
            if let Some(&known) = by_name.get(first) {
                if program.held[known].ty != ty {
                    return Err(wrong(format!(
                        "{name} and {first} share their elements, yet have other shapes"
                    )));
                }
                program.bound.insert(arg, known);
                by_name.insert(name, known);
                continue;
            }
            let at = program.held.len();
            program.held.push(Held { name: name.clone(), ty, is_complex, kind, is_changed: false });
            by_name.insert(first.clone(), at);
            by_name.insert(name, at);
            program.bound.insert(arg, at);
        }
        for spec in signature.output_specs {
            let (value, name) = match spec {
                OutputSpec::UserOutput { arg: Argument::AsTensor(named) } => {
                    let output = program.output(named.name, false).map_err(&wrong)?;
                    program.outputs.push(output);
                    continue;
                }
                OutputSpec::LossOutput { arg } => {
                    let output = program.output(arg.name, true).map_err(&wrong)?;
                    program.outputs.push(output);
                    continue;
                }
                // A number or None beside the tensors.
                OutputSpec::UserOutput { .. } => continue,
                OutputSpec::BufferMutation { arg, buffer_name } => (arg.name, buffer_name),
                OutputSpec::ParameterMutation { arg, parameter_name } => (arg.name, parameter_name),
                OutputSpec::UserInputMutation { user_input_name } => {
                    let why =
                        format!("it writes over its input {user_input_name}; copy it first, with clone()");
                    return Err(wrong(why));
                }
                OutputSpec::GradientToParameter(_) | OutputSpec::GradientToUserInput(_) => {
                    let why = "it holds gradients already; export the forward pass, gradients are made here";
                    return Err(wrong(why.into()));
                }
                OutputSpec::Token(_) => {
                    return Err(wrong(NO_EFFECTS.into()));
                }
            };
            let Some(&at) = by_name.get(&name) else {
                return Err(wrong(format!("it changes {name}, which it does not have")));
            };
            program.held[at].is_changed = true;
            program.changes.push((value, at));
        }
        if !program.outputs.iter().any(|output| output.is_loss) {
            let is_scalar = |output: &&mut Output| output.dtype.is_float() && output.shape.rank() == 0;
            if let Some(output) = program.outputs.iter_mut().find(is_scalar) {
                output.is_loss = true;
            }
        }
        Ok(program)
    }

    /// The file, or the name that it was read under.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The PyTorch that exported it.
    pub fn torch_version(&self) -> &str {
        &self.torch_version
    }

    /// Its level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The inputs that a caller gives.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The outputs that a caller is given.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The output that is the loss: the one that is marked as such, or the first that is a single number.
    pub fn loss(&self) -> Option<usize> {
        self.outputs.iter().position(|output| output.is_loss)
    }

    /// The tensors that it keeps, tied ones once.
    pub fn held(&self) -> &[Held] {
        &self.held
    }

    /// The same program with these parameters left as they are: frozen, as with `requires_grad` off.
    ///
    /// # Errors
    /// It has no parameter of one of these names.
    pub fn frozen<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Result<Program> {
        for name in names {
            match self.held.iter_mut().find(|held| held.name == name) {
                Some(held) if matches!(held.kind, Kind::Trained | Kind::Frozen) => held.kind = Kind::Frozen,
                _ => return Err(self.wrong(format!("it has no parameter {name} to freeze"))),
            }
        }
        Ok(self)
    }

    /// How many nodes it has.
    pub fn n_nodes(&self) -> usize {
        self.graph.nodes.len()
    }

    /// The ops that it calls, each with how often.
    pub fn ops(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.graph.nodes {
            *counts.entry(short(&node.target)).or_insert(0) += 1;
        }
        counts
    }

    /// Reads the value of a kept tensor.
    pub fn value(&self, held: &Held) -> Result<Vec<u8>> {
        let mut bytes = vec![0; held.ty.bytes()];
        let read = self.values.read_into(&held.name, &mut bytes);
        read.map_err(|error| self.wrong(format!("{}: {error}", held.name)))?;
        Ok(bytes)
    }

    pub(crate) fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Program { file: self.file.clone(), why: why.into() }
    }

    fn meta(&self, name: &str) -> Result<&TensorMeta, String> {
        self.graph.tensor_values.get(name).ok_or_else(|| format!("it does not say what {name} is"))
    }

    fn input(&self, name: &str) -> Result<Input, String> {
        let meta = self.meta(name)?;
        let length = |size: &Size| match size {
            Size::AsInt(n) => Ok(Length::Fixed(natural(*n)?)),
            Size::AsExpr(expr) => Ok(Length::Open(expr.expr_str.clone(), hint(size)?)),
        };
        let shape = meta.sizes.iter().map(length).collect::<Result<_, String>>()?;
        Ok(Input { name: name.into(), dtype: dtype(meta.dtype)?, shape })
    }

    fn output(&self, name: String, is_loss: bool) -> Result<Output, String> {
        let meta = self.meta(&name)?;
        let shape: Shape = meta.sizes.iter().map(hint).collect::<Result<_, String>>()?;
        Ok(Output { dtype: dtype(meta.dtype)?, shape, is_loss, name })
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({}: {} nodes, {} tensors)", self.file, self.graph.nodes.len(), self.held.len())
    }
}

/// The name of an op without what all of them begin with.
pub(crate) fn short(target: &str) -> &str {
    target.strip_prefix("torch.ops.").unwrap_or(target)
}

fn check_version(file: &str, version: &Version) -> Result<()> {
    let found = version.schema_version;
    if found.major == MAJOR {
        return Ok(());
    }
    let why = format!(
        "it is of schema {}.{} of exported programs, and {MAJOR}.x is read here; export it with another PyTorch (2.9 and later write {MAJOR}.x)",
        found.major, found.minor
    );
    Err(Error::Program { file: file.into(), why })
}

/// Why ops with side effects are refused.
const NO_EFFECTS: &str = "it has ops with side effects (a print, or a check that may end the step), of which a plan knows nothing; leave them out";

/// Ops that only a decomposition into core ATen leaves behind.
const CORE_ONLY: &[&str] = &[
    "aten.convolution.default",
    "aten.native_layer_norm.default",
    "aten.native_group_norm.default",
    "aten._softmax.default",
    "aten._log_softmax.default",
];

fn level(graph: &Graph, verifiers: &[String]) -> Level {
    if verifiers.iter().any(|verifier| verifier == "TRAINING") {
        return Level::Training;
    }
    let is_core = graph.nodes.iter().any(|node| {
        let op = short(&node.target);
        // `linear` stays whole at the functional level.
        let is_linear = op == "aten.addmm.default" && node.metadata.torch_fn.ends_with(".linear");
        CORE_ONLY.contains(&op) || is_linear
    });
    if is_core { Level::Core } else { Level::Functional }
}

/// The element type of PyTorch's number for it.
pub(crate) fn dtype(code: u8) -> Result<DType, String> {
    Ok(match code {
        1 => DType::U8,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        12 => DType::Bool,
        13 => DType::BF16,
        28 => DType::U16,
        34 => DType::U32,
        9..=11 => return Err("is of complex numbers, which there are none of here".into()),
        29..=33 => return Err("is of 8-bit floats, which there are none of here".into()),
        35 => return Err("is of unsigned 64-bit integers, which there are none of here".into()),
        other => return Err(format!("is of an element type number {other}, which is not known")),
    })
}

fn is_complex(code: u8) -> bool {
    matches!(code, 9..=11)
}

/// The element type of values inside a program; of complex numbers that of each part.
pub(crate) fn part_dtype(code: u8) -> Result<DType, String> {
    match code {
        9 => Ok(DType::F16),
        10 => Ok(DType::F32),
        11 => Ok(DType::F64),
        code => dtype(code),
    }
}

pub(crate) fn natural(n: i64) -> Result<usize, String> {
    usize::try_from(n).map_err(|_| format!("has a length of {n}"))
}

/// A length at the sizes of the export.
pub(crate) fn hint(size: &Size) -> Result<usize, String> {
    match size {
        Size::AsInt(n) => natural(*n),
        Size::AsExpr(expr) => match expr.hint {
            Some(Hint::AsInt(n)) => natural(n),
            _ => Err(format!("has a length {} without an example of it", expr.expr_str)),
        },
    }
}

/// The type of a tensor whose lengths are all numbers.
pub(crate) fn fixed_type(meta: &TensorMeta) -> Result<Type, String> {
    let length = |size: &Size| match size {
        Size::AsInt(n) => natural(*n),
        Size::AsExpr(expr) => Err(format!("has a length {}, which is no number", expr.expr_str)),
    };
    let parts = is_complex(meta.dtype).then_some(Ok(2));
    let shape: Shape = meta.sizes.iter().map(length).chain(parts).collect::<Result<_, String>>()?;
    let elements = shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
    if elements.is_none_or(|n| n > isize::MAX as usize / 16) {
        return Err(format!("has the shape {shape}, which no machine can hold"));
    }
    Ok(Type::new(part_dtype(meta.dtype)?, shape))
}
