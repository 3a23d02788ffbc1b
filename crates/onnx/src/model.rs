//! An ONNX file as a model of ours: its weights are parameters by name, its graph is run over them.

use std::path::Path;
use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::blocks::{Laid, read_back, reordered};
use plimsoll_nn::{Init, Model, Net, Outputs, Param, Precision, Training, View};
use plimsoll_run::{Result as RunResult, Tensor};
use rustc_hash::FxHashMap;

use crate::bind::{self, Lengths};
use crate::constant::Constant;
use crate::error::{Error, Result, refuse};
use crate::file::{Axis, Node, OnnxFile, Port};
use crate::limits::Limits;
use crate::roles::{self, Weight};
use crate::run::{self, Scope, lookup};
use crate::value::Value;

/// A model from an ONNX file. Weights stay in the file until they are asked for; parameters have the names of the file's initializers.
///
/// ```
/// use plimsoll_graph::TensorOps;
/// use plimsoll_nn::{Model, Net};
/// use plimsoll_onnx::OnnxModel;
/// use plimsoll_run::Tensor;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mlp.onnx");
/// let model = OnnxModel::open(path)?;
/// let x = Tensor::zeros(model.inputs(3)?[0].clone())?;
/// let mut net = Net::bound(model.params(), &model.values()?, false);
/// let y = model.forward(&mut net, &[x])?.one()?;
/// assert_eq!(y.shape()[0], 3);
/// # Ok::<(), plimsoll_onnx::Error>(())
/// ```
#[derive(Clone)]
pub struct OnnxModel {
    pub(crate) file: Arc<OnnxFile>,
    pub(crate) weights: Arc<FxHashMap<String, Weight>>,
    constants: Arc<FxHashMap<String, Constant>>,
    lengths: Lengths,
    params: Vec<Param>,
    outputs: Vec<Type>,
    precision: Precision,
    /// Which outputs are given without their last softmax or sigmoid.
    logits: Vec<bool>,
    /// Which inputs are given channels last where the file has them channels first.
    channels_last: Vec<bool>,
}

impl OnnxModel {
    /// Opens a file whose axes have lengths, but for the batch.
    ///
    /// # Errors
    /// The file is damaged, an op is not known here (named with its node), or an axis is open.
    pub fn open(path: impl AsRef<Path>) -> Result<OnnxModel> {
        OnnxModel::open_for(path, &Lengths::default())
    }

    /// As [`OnnxModel::open`], with lengths of axes that the file leaves open.
    pub fn open_for(path: impl AsRef<Path>, lengths: &Lengths) -> Result<OnnxModel> {
        OnnxModel::of(OnnxFile::open(path)?, lengths)
    }

    /// A file that is in memory; `name` stands for it in errors.
    pub fn from_bytes(bytes: Vec<u8>, name: &str, limits: &Limits, lengths: &Lengths) -> Result<OnnxModel> {
        OnnxModel::of(OnnxFile::from_bytes(bytes, name, limits)?, lengths)
    }

    /// A file that has been read.
    pub fn of(file: OnnxFile, lengths: &Lengths) -> Result<OnnxModel> {
        let model = OnnxModel::unbound(file, lengths)?;
        let sample = bind::types(&model.file.graph.inputs, &model.lengths, None)?;
        model.bound(&sample)
    }

    /// A file whose graph has not been looked through: lengths that it leaves open come with its data, see [`OnnxModel::bound`].
    pub fn unbound(file: OnnxFile, lengths: &Lengths) -> Result<OnnxModel> {
        lengths.check(&file.graph.inputs)?;
        if file.graph.outputs.is_empty() {
            return Err(Error::damaged(&file.name, "its graph gives nothing"));
        }
        let weights = roles::weights(&file);
        let mut constants = FxHashMap::default();
        for (name, stored) in file.graph.initializers.iter().filter(|(name, _)| !weights.contains_key(name)) {
            constants.insert(name.clone(), file.read(stored)?);
        }
        let is_double = weights.values().any(|weight| weight.dtype == DType::F64);
        let n_outputs = file.graph.outputs.len();
        let n_inputs = file.graph.inputs.len();
        Ok(OnnxModel {
            file: Arc::new(file),
            weights: Arc::new(weights),
            constants: Arc::new(constants),
            lengths: lengths.clone(),
            params: Vec::new(),
            outputs: Vec::new(),
            precision: if is_double { Precision::F64 } else { Precision::F32 },
            logits: vec![false; n_outputs],
            channels_last: vec![false; n_inputs],
        })
    }

    /// The same model looked through for inputs of these types: its parameters are found, and what does not fit is refused. Images that
    /// are given channels last, `[N, H, W, C]`, where the file has `[N, C, H, W]`, are read in that order.
    pub fn bound(mut self, inputs: &[Type]) -> Result<OnnxModel> {
        if inputs.len() != self.n_inputs() {
            let why = format!("{} inputs are given to a model of {}", inputs.len(), self.n_inputs());
            return Err(Error::Input { name: self.input_names().join(", "), why });
        }
        for (i, (port, ty)) in self.file.graph.inputs.iter().zip(inputs).enumerate() {
            let fits = |shape: &[usize]| {
                port.axes.as_ref().is_none_or(|axes| {
                    axes.len() == shape.len()
                        && axes
                            .iter()
                            .zip(shape)
                            .all(|(axis, n)| !matches!(axis, Axis::Fixed(own) if own != n))
                })
            };
            let turned = match ty.shape[..] {
                [n, ref places @ .., c] if !places.is_empty() => Some([&[n, c], places].concat()),
                _ => None,
            };
            self.channels_last[i] = !fits(&ty.shape) && turned.is_some_and(|turned| fits(&turned));
            if !fits(&ty.shape) && !self.channels_last[i] {
                let why = format!("it is {ty}, but the file takes {}", bind::shown(port));
                return Err(Error::Input { name: port.name.clone(), why });
            }
        }
        let found = plimsoll_nn::Description::new(inputs, &self)?;
        self.outputs = found.graph.outputs().iter().map(|&id| found.graph.ty(id).clone()).collect();
        self.params = found.params.into_iter().map(|(param, _)| param).collect();
        Ok(self)
    }

    /// The types of a batch of inputs.
    ///
    /// # Errors
    /// The file fixes another size of batches.
    pub fn inputs(&self, batch: usize) -> Result<Vec<Type>> {
        bind::types(&self.file.graph.inputs, &self.lengths, Some(batch))
    }

    /// The size of batches, where the file fixes it.
    pub fn fixed_batch(&self) -> Option<usize> {
        let fixed = |port: &Port| match port.axes.as_deref()?.first()? {
            Axis::Fixed(n) => Some(*n),
            _ => None,
        };
        self.file.graph.inputs.iter().find_map(fixed)
    }

    /// What it is called: the path of its file, or the name that it was read under.
    pub fn file_name(&self) -> &str {
        &self.file.name
    }

    /// The file.
    pub fn file(&self) -> &OnnxFile {
        &self.file
    }

    /// The number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.file.graph.inputs.len()
    }

    /// The element types of the inputs.
    pub fn input_dtypes(&self) -> Vec<DType> {
        self.file.graph.inputs.iter().filter_map(|port| port.dtype).collect()
    }

    /// The names of the inputs.
    pub fn input_names(&self) -> Vec<String> {
        self.file.graph.inputs.iter().map(|port| port.name.clone()).collect()
    }

    /// The number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.file.graph.outputs.len()
    }

    /// The names of the outputs.
    pub fn output_names(&self) -> Vec<String> {
        self.file.graph.outputs.iter().map(|port| port.name.clone()).collect()
    }

    /// The types of the outputs for one sample.
    pub fn outputs(&self) -> &[Type] {
        &self.outputs
    }

    /// The parameters, in the order in which the model asks for them.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The precision that a recipe should have.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The same model computing in another precision.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> OnnxModel {
        self.precision = precision;
        self
    }

    /// The same model whose outputs that end in a softmax, or in a sigmoid, are given without it where a loss is taken, which does the
    /// same with better numbers.
    #[must_use]
    pub fn on_logits(mut self, view: View) -> OnnxModel {
        let ends = |i: usize| self.ending(i).is_some_and(|(_, own)| own == view);
        self.logits = (0..self.n_outputs()).map(ends).collect();
        self
    }

    /// Whether an output is what goes into a last softmax or sigmoid.
    pub fn gives_logits(&self, output: usize) -> bool {
        self.logits.get(output).copied().unwrap_or(false)
    }

    /// What an output must be seen through to be what the file gives.
    pub fn view(&self, output: usize) -> View {
        match self.ending(output) {
            Some((_, view)) if self.gives_logits(output) => view,
            _ => View::Plain,
        }
    }

    /// The node of the softmax or sigmoid that an output ends in, if it does.
    fn ending(&self, output: usize) -> Option<(&Node, View)> {
        let graph = &self.file.graph;
        let name = &graph.outputs.get(output)?.name;
        let node = graph.nodes.iter().find(|node| node.outputs.contains(name))?;
        let rank = graph.outputs[output]
            .axes
            .as_ref()
            .map(Vec::len)
            .or(self.outputs.get(output).map(|ty| ty.shape.rank()));
        let axis = node.attributes.iter().find(|a| a.name.as_deref() == Some("axis")).and_then(|a| a.i);
        let is_last = |axis: i64| axis == -1 || rank.is_some_and(|rank| axis == rank as i64 - 1);
        let default = if self.file.opset < 13 { 1 } else { -1 };
        match node.op.as_str() {
            "Softmax" if node.domain.is_empty() && is_last(axis.unwrap_or(default)) => {
                Some((node, View::Softmax))
            }
            "Sigmoid" if node.domain.is_empty() => Some((node, View::Sigmoid)),
            _ => None,
        }
    }

    /// The parameters' values in the file, in the order of [`OnnxModel::params`].
    pub fn values(&self) -> Result<Vec<Tensor>> {
        read_back::values(&self.params, |name| self.value_bytes(name))
    }

    /// The elements of one parameter in the file, as bytes of what is kept here.
    pub(crate) fn value_bytes(&self, name: &str) -> Result<Vec<u8>> {
        let missing = || Error::damaged(&self.file.name, format!("there is no weight {name}"));
        let weight = self.weights.get(name).ok_or_else(missing)?;
        let (_, stored) = self.file.graph.initializers.get(weight.index).ok_or_else(missing)?;
        let constant = self.file.read(stored)?;
        let wide = widened(&constant);
        // From the order of the file to that in which it is kept.
        Ok(reordered(&wide, weight.ty.dtype.bytes(), &constant.ty.shape, &inverse(&weight.order))
            .into_owned())
    }

    /// Sets the weights of a training of this model to what the file holds, one after the other.
    pub fn restore(&self, training: &mut Training) -> Result<()> {
        for param in &self.params {
            training.restore(&param.name, &self.value_bytes(&param.name)?)?;
        }
        Ok(())
    }

    /// The most bytes that [`OnnxModel::restore`] holds beside the training.
    pub fn restoring_bytes(&self) -> Bytes {
        let of = |param: &Param| 3 * param.ty.bytes() as u64;
        Bytes(self.params.iter().map(of).max().unwrap_or(0))
    }

    /// Writes the same file with the weights of a training, all tensors inside. Whole or not at all.
    ///
    /// # Errors
    /// The file is not there any more, or what would be written is larger than the format allows.
    pub fn save(&self, path: impl AsRef<Path>, training: &Training) -> Result<()> {
        let path = path.as_ref();
        let mut model = self.file.messages()?;
        let state: FxHashMap<&str, &Tensor> = training.state().collect();
        let tensors = model.graph.iter_mut().flat_map(|graph| graph.initializer.iter_mut());
        for tensor in tensors {
            let name = tensor.name.clone().unwrap_or_default();
            let (Some(weight), Some(value)) = (self.weights.get(&name), state.get(name.as_str())) else {
                continue;
            };
            let kept = value.to_bytes()?;
            // From the order in which it is kept to that of the file.
            let plain = reordered(&kept, weight.ty.dtype.bytes(), &weight.ty.shape, &weight.order);
            let dtype = weight.dtype;
            let bytes: Vec<u8> = match dtype {
                DType::F16 | DType::BF16 => {
                    let wide = plain.chunks_exact(4).map(|x| f32::from_ne_bytes([x[0], x[1], x[2], x[3]]));
                    wide.flat_map(|x| match dtype {
                        DType::F16 => half::f16::from_f32(x).to_ne_bytes(),
                        _ => half::bf16::from_f32(x).to_ne_bytes(),
                    })
                    .collect()
                }
                _ => plain.into_owned(),
            };
            let shape: plimsoll_graph::Shape = tensor.dims.iter().map(|&n| n as usize).collect();
            let constant = Constant { ty: Type::new(dtype, shape), bytes: bytes.into() };
            tensor.raw_data = Some(constant.to_le().into());
            tensor.float_data.clear();
            tensor.double_data.clear();
            tensor.int32_data.clear();
        }
        crate::write::whole(path, &model)
    }

    /// A training of this model from the file's weights.
    pub fn training(&self, recipe: plimsoll_nn::Recipe) -> Result<Training> {
        Ok(Training::with_values(self.clone(), recipe, self.params.clone(), self.values()?)?)
    }

    /// A model's inputs as people read them.
    pub fn described_inputs(&self) -> Vec<String> {
        self.file.graph.inputs.iter().map(bind::shown).collect()
    }

    fn run(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        let graph = &self.file.graph;
        if inputs.len() != graph.inputs.len() {
            return Err(refuse(format!(
                "gives {} inputs to a model of {}",
                inputs.len(),
                graph.inputs.len()
            )));
        }
        let mut scope = Scope::default();
        for (i, (port, x)) in graph.inputs.iter().zip(inputs).enumerate() {
            let x = match port.dtype {
                // Where the model computes in halves, so are its inputs.
                Some(DType::F32) => net.compute(x)?,
                Some(dtype) => x.cast(dtype)?,
                None => x.clone(),
            };
            let laid = if self.channels_last[i] { Laid::channels_last(x) } else { Laid::from(x) };
            scope.insert(port.name.clone(), laid.into());
        }
        for (name, constant) in self.constants.iter() {
            scope.insert(name.clone(), constant.clone().into());
        }
        // In the order of the file, so that parameters are found in the same order every time.
        for (name, _) in &graph.initializers {
            let Some(weight) = self.weights.get(name) else { continue };
            let kept = net.given(name, weight.ty.clone(), Init::Constant(0.0), weight.trained)?;
            let laid = Laid::ordered(kept, &weight.order);
            scope.insert(name.clone(), Value::Weight(laid, weight.dtype));
        }
        let mut scopes = vec![scope];
        run::graph(&self.file, graph, net, &mut scopes)?;
        let mut outputs = Vec::with_capacity(graph.outputs.len());
        for (i, port) in graph.outputs.iter().enumerate() {
            let ending = if self.gives_logits(i) && !net.is_predicting() { self.ending(i) } else { None };
            let name = match ending {
                Some((node, _)) => node.inputs.first().map_or("", String::as_str),
                None => &port.name,
            };
            let value =
                lookup(&scopes, name).ok_or_else(|| refuse(format!("gives {name}, which is not there")))?;
            let tensor = match value {
                // Beside what is traced, so that it is an output like others.
                Value::Known(constant) => constant.tensor()?,
                Value::Weight(laid, _) | Value::Run(laid) => laid.plain()?,
            };
            outputs.push(match port.dtype {
                Some(DType::F32) if ending.is_none() => tensor.cast(DType::F32)?,
                _ => tensor,
            });
        }
        Ok(outputs.into())
    }
}

/// Runs the graph of a file once on values, op by op: those that must be known beforehand are, the others are computed with.
///
/// # Errors
/// Values that do not fit, or an op that is not known here.
pub fn evaluate(file: &OnnxFile, inputs: &[(String, Constant)]) -> Result<Vec<Constant>> {
    let graph = &file.graph;
    let known = roles::known_names(graph);
    let mut scope = Scope::default();
    for port in &graph.inputs {
        let given = inputs.iter().find(|(name, _)| *name == port.name);
        let (_, value) =
            given.ok_or_else(|| Error::Input { name: port.name.clone(), why: "it is not given".into() })?;
        let value = match known.contains(&port.name) {
            true => Value::Known(value.clone()),
            false => Laid::from(value.tensor()?).into(),
        };
        scope.insert(port.name.clone(), value);
    }
    for (name, stored) in &graph.initializers {
        scope.insert(name.clone(), file.read(stored)?.into());
    }
    let mut net = Net::bound(&[], &[], false).predicting();
    let mut scopes = vec![scope];
    run::graph(file, graph, &mut net, &mut scopes)?;
    let value = |port: &Port| match lookup(&scopes, &port.name) {
        Some(Value::Known(constant)) => Ok(constant.clone()),
        Some(Value::Weight(laid, _) | Value::Run(laid)) => Ok(Constant::of(&laid.plain()?)?),
        None => Err(Error::damaged(&file.name, format!("output {} is not there", port.name))),
    };
    graph.outputs.iter().map(value).collect()
}

impl Model for OnnxModel {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        match self.precision {
            Precision::F32 => self.run(net, inputs),
            own => net.with_precision(own, |net| self.run(net, inputs)),
        }
    }
}

impl std::fmt::Debug for OnnxModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (nodes, params) = (self.file.graph.nodes.len(), self.params.len());
        write!(f, "OnnxModel({}: {nodes} nodes, {params} parameters)", self.file.name)
    }
}

/// Halves as f32; others as they are.
fn widened(constant: &Constant) -> Vec<u8> {
    match constant.ty.dtype {
        DType::F16 | DType::BF16 => {
            constant.to_f64().iter().flat_map(|&x| (x as f32).to_ne_bytes()).collect()
        }
        _ => constant.bytes.to_vec(),
    }
}

/// The order that undoes another.
pub(crate) fn inverse(order: &[usize]) -> Vec<usize> {
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
    back
}
