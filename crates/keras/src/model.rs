//! A Keras file as a model of ours.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_formats::keras::{KerasFile, Kind, Layer, Limits};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{Model, Net, Outputs, Param, Precision};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use crate::bind::{self, Binding};
use crate::block::Block;
use crate::error::{Error, Result, refuse};
use crate::layer::{Cx, Pass, Penalty, WeightKind};

/// A model from a Keras file: its layers are understood, its weights stay in the file until they are asked for.
///
/// Parameters are named by the names of models, layer and weight: `backbone/conv1/kernel`. The model computes what
/// Keras computes; `trainable: false` layers are frozen, and every layer computes in the type its policy names.
///
/// ```
/// use plimsoll_graph::TensorOps;
/// use plimsoll_keras::KerasModel;
/// use plimsoll_nn::{Model, Net};
/// use plimsoll_run::Tensor;
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mlp.keras");
/// let model = KerasModel::open(path)?;
/// let x = Tensor::zeros(model.inputs(3)?[0].clone())?;
/// let mut net = Net::bound(model.params(), &model.values()?, false);
/// let y = model.forward(&mut net, &[x])?.one()?;
/// assert_eq!(y.shape()[0], 3);
/// # Ok::<(), plimsoll_keras::Error>(())
/// ```
#[derive(Clone)]
pub struct KerasModel {
    pub(crate) file: Arc<KerasFile>,
    pub(crate) name: String,
    block: Arc<Block>,
    pub(crate) bindings: Arc<Vec<Binding>>,
    penalties: Arc<HashMap<String, Penalty>>,
    inputs: Vec<InputSpec>,
    params: Vec<Param>,
    /// What comes out for one sample, as far as lengths are known.
    outputs: Vec<Type>,
    /// Values that were loaded from another file, by parameter.
    weights: Option<Arc<KerasFile>>,
    precision: Option<Precision>,
    /// Which outputs are given without their last softmax or sigmoid.
    pub(crate) logits: Vec<bool>,
    /// Whether the regularizers' sum is given as a last output in training.
    pub(crate) gives_penalty: bool,
}

/// Notes what comes out of a model while its parameters are found.
struct Probe<'a> {
    model: &'a KerasModel,
    /// What the model gives, and what each layer gives.
    seen: Mutex<(Vec<Type>, HashMap<String, Vec<Type>>)>,
}

impl<'a> Probe<'a> {
    fn new(model: &'a KerasModel) -> Probe<'a> {
        Probe { model, seen: Mutex::default() }
    }

    fn seen(self) -> (Vec<Type>, HashMap<String, Vec<Type>>) {
        self.seen.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model for Probe<'_> {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        let (outputs, layers) = self.model.run(net, inputs, true)?;
        let types = outputs.iter().map(|y| y.ty().clone()).collect();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = (types, layers);
        Ok(outputs)
    }
}

/// What a model takes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InputSpec {
    dtype: DType,
    /// Without the batch; an axis of unknown length is `None`.
    shape: Vec<Option<usize>>,
}

impl KerasModel {
    /// Opens a `.keras` archive or a legacy `.h5` file.
    ///
    /// # Errors
    /// The file is damaged, a layer is not known here (named with its place), or weights are missing or left over.
    pub fn open(path: impl AsRef<Path>) -> Result<KerasModel> {
        KerasModel::of(KerasFile::open(path.as_ref())?, &path.as_ref().display().to_string(), None)
    }

    /// As [`KerasModel::open`], for inputs of these types: a file may leave axes open, or not say what it takes.
    pub fn open_for(path: impl AsRef<Path>, inputs: &[Type]) -> Result<KerasModel> {
        KerasModel::of(KerasFile::open(path.as_ref())?, &path.as_ref().display().to_string(), Some(inputs))
    }

    /// A file that is in memory; `name` stands for it in errors.
    pub fn from_bytes(bytes: Vec<u8>, name: &str, limits: &Limits) -> Result<KerasModel> {
        KerasModel::of(KerasFile::from_bytes(bytes, name, limits)?, name, None)
    }

    fn of(file: KerasFile, name: &str, inputs: Option<&[Type]>) -> Result<KerasModel> {
        let (block, bindings, specs) = {
            let root = file.root().ok_or_else(|| Error::NoModel { file: name.to_string() })?;
            let Some(model) = &root.model else {
                let why = "which is not a Sequential or Functional model";
                return Err(Error::unsupported(&root.name, &root.class_name, why));
            };
            let block = Block::build(model, "", 0)?;
            let bindings = bind::bind(&file, root, &block)?;
            let specs = match inputs {
                Some(types) => types.iter().map(InputSpec::of).collect(),
                None => input_specs(root)?,
            };
            (block, bindings, specs)
        };
        let penalties = bindings.iter().filter_map(|b| b.penalty.map(|p| (b.name.clone(), p))).collect();
        let n_outputs = block.n_outputs();
        let mut model = KerasModel {
            file: Arc::new(file),
            name: name.to_string(),
            block: Arc::new(block),
            bindings: Arc::new(bindings),
            penalties: Arc::new(penalties),
            inputs: specs,
            params: Vec::new(),
            outputs: Vec::new(),
            weights: None,
            precision: None,
            logits: vec![false; n_outputs],
            gives_penalty: false,
        };
        let probe = Probe::new(&model);
        let params = Net::discover(&model.sample_inputs(), &probe)?;
        let (outputs, _) = probe.seen();
        (model.params, model.outputs) = (params, outputs);
        model.check_params()?;
        Ok(model)
    }

    /// Every parameter is a weight of the file with its shape, and every weight is a parameter.
    fn check_params(&self) -> Result<()> {
        for param in &self.params {
            let binding = self.binding(&param.name)?;
            let shape = &self.file.variable(&binding.path)?.shape;
            if param.ty.shape[..] != shape[..] {
                let why = format!(
                    "{} should have the shape {}, but the file holds {shape:?}",
                    param.name, param.ty.shape
                );
                return Err(Error::variables(&binding.layer, why));
            }
        }
        let idle = self.bindings.iter().filter(|b| b.kind == WeightKind::Idle).count();
        if self.params.len() + idle != self.bindings.len() {
            let known: std::collections::HashSet<&str> =
                self.params.iter().map(|p| p.name.as_str()).collect();
            let missing =
                self.bindings.iter().find(|b| b.kind != WeightKind::Idle && !known.contains(b.name.as_str()));
            let name = missing.map_or("", |b| b.name.as_str());
            return Err(Error::variables(name, "the file holds this weight, but its layer is never called"));
        }
        Ok(())
    }

    fn binding(&self, param: &str) -> Result<&Binding> {
        let found = self.bindings.iter().find(|b| b.name == param);
        found.ok_or_else(|| Error::variables(param, "the model has this parameter, but no layer lists it"))
    }

    /// Types with which shapes can be checked: one sample, and some length for axes that are open.
    pub(crate) fn sample_inputs(&self) -> Vec<Type> {
        let ty = |spec: &InputSpec| {
            // Images are usually open along height and width, sequences along time.
            let guess = if spec.shape.len() >= 3 { 64 } else { 16 };
            let shape: Vec<usize> =
                std::iter::once(1).chain(spec.shape.iter().map(|n| n.unwrap_or(guess))).collect();
            Type::new(spec.dtype, &shape[..])
        };
        self.inputs.iter().map(ty).collect()
    }

    /// The types of a batch of inputs.
    ///
    /// # Errors
    /// The file leaves an axis open; then the caller must say, see [`KerasModel::open_for`].
    pub fn inputs(&self, batch: usize) -> Result<Vec<Type>> {
        let ty = |spec: &InputSpec| {
            let mut shape = vec![batch];
            for length in &spec.shape {
                let open =
                    || Error::config(&self.name, "an input has an axis of unknown length; name its shape");
                shape.push(length.ok_or_else(open)?);
            }
            Ok(Type::new(spec.dtype, &shape[..]))
        };
        self.inputs.iter().map(ty).collect()
    }

    /// The number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.block.n_outputs()
    }

    /// The types of the outputs for one sample; where the file leaves an input's axis open, for some length of it.
    pub fn outputs(&self) -> &[Type] {
        &self.outputs
    }

    /// The names of the outputs: those of the layers that make them, or those the file gives.
    pub fn output_names(&self) -> &[String] {
        &self.block.output_names
    }

    /// The parameters, in the order in which the model asks for them: that of [`Net::discover`].
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The names of the parameters that training moves, in the order of Keras's `trainable_variables`.
    pub fn trained(&self) -> impl Iterator<Item = &str> {
        self.bindings.iter().filter(|b| b.trained).map(|b| b.name.as_str())
    }

    /// The parameters' values in the file, in the order of [`KerasModel::params`].
    pub fn values(&self) -> Result<Vec<Tensor>> {
        let source = self.weights.as_ref().unwrap_or(&self.file);
        let read = |param: &Param| {
            let binding = self.binding(&param.name)?;
            bind::read(source, source.variable(&binding.path)?)
        };
        self.params.iter().map(read).collect()
    }

    /// Takes the weights of a `.weights.h5` file, or of another file of the same model, from now on.
    ///
    /// # Errors
    /// A variable is missing, left over or of another shape. Then the weights stay as they were.
    pub fn load_weights(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let weights = KerasFile::open(path)?;
        if (weights.kind() == Kind::Legacy) != (self.file.kind() == Kind::Legacy) {
            let why = "a legacy file's weights go onto a legacy file's model, others onto others";
            return Err(Error::variables(&self.name, why));
        }
        for binding in self.bindings.iter() {
            let own = self.file.variable(&binding.path)?;
            let other = weights.variable(&binding.path)?;
            if own.shape != other.shape {
                let why = format!("the model has the shape {:?}, the weights {:?}", own.shape, other.shape);
                return Err(Error::variables(&binding.name, why));
            }
        }
        let known = |path: &str| self.bindings.iter().any(|b| b.path == path) || bind::is_aside(path);
        if let Some(extra) = weights.variables().iter().find(|v| !known(&v.path)) {
            return Err(Error::variables(
                &extra.path,
                "the weights hold this variable, but the model has none such",
            ));
        }
        self.weights = Some(Arc::new(weights));
        Ok(())
    }

    /// The same model with all layers in one precision, whatever their policies say.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> KerasModel {
        self.precision = Some(precision);
        self
    }

    /// The precision that a recipe should have: half precision anywhere needs a scaled loss.
    pub fn precision(&self) -> Precision {
        let all = self.block.all();
        let mut policies = all.iter().filter_map(|(node, _)| node.precision);
        match self.precision {
            Some(precision) => precision,
            None if policies.clone().any(|p| p == Precision::MixedF16) => Precision::MixedF16,
            None if policies.any(|p| p == Precision::MixedBf16) => Precision::MixedBf16,
            None => Precision::F32,
        }
    }

    /// Whether regularizers add to the loss.
    pub fn has_penalty(&self) -> bool {
        self.bindings.iter().any(|b| b.trained && b.penalty.is_some())
    }

    /// What every layer gives for one sample, by its place.
    pub(crate) fn layer_outputs(&self) -> Result<HashMap<String, Vec<Type>>> {
        let probe = Probe::new(self);
        Net::discover(&self.sample_inputs(), &probe)?;
        Ok(probe.seen().1)
    }

    /// The outputs, and where it is asked for what every layer gave.
    fn run(
        &self,
        net: &mut Net,
        inputs: &[Tensor],
        noted: bool,
    ) -> RunResult<(Outputs, HashMap<String, Vec<Type>>)> {
        let penalties = if self.gives_penalty { self.penalties.clone() } else { Arc::default() };
        let mut pass = Pass::new(self.precision, penalties);
        pass.seen = noted.then(HashMap::new);
        let inputs: Vec<(Tensor, Option<Tensor>)> = inputs.iter().map(|x| (x.clone(), None)).collect();
        let training = net.is_training();
        let outputs = self.block.run(&mut Cx { net, pass: &mut pass }, &inputs, &self.logits)?;
        if outputs.iter().any(|(_, mask)| mask.is_some()) {
            return Err(refuse(
                "has a mask that reaches the model's output, where Keras masks the loss; this is not supported",
            ));
        }
        let mut tensors: Vec<Tensor> = outputs.into_iter().map(|(y, _)| y).collect();
        if let Some(penalty) = pass.penalty.filter(|_| training) {
            tensors.push(penalty);
        }
        Ok((tensors.into(), pass.seen.unwrap_or_default()))
    }

    /// Of each output, whether it ends in a softmax or sigmoid that a loss can take off: of a layer that computes in f32.
    pub(crate) fn removable(&self) -> Vec<bool> {
        let f32_only = self.precision() == Precision::F32;
        (0..self.n_outputs()).map(|i| f32_only && self.block.ends_in_probabilities(i)).collect()
    }
}

impl Model for KerasModel {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        self.run(net, inputs, false).map(|(outputs, _)| outputs)
    }
}

impl std::fmt::Debug for KerasModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (layers, params) = (self.block.all().len(), self.params.len());
        write!(f, "KerasModel({}: {layers} layers, {params} parameters)", self.name)
    }
}

impl InputSpec {
    fn of(ty: &Type) -> InputSpec {
        InputSpec { dtype: ty.dtype, shape: ty.shape.iter().skip(1).map(|n| Some(*n)).collect() }
    }

    fn read(shape: &Value, dtype: &Value, place: &str) -> Result<InputSpec> {
        let wrong = |why: &str| Error::config(place, why);
        let Some(list) = shape.as_array().filter(|list| (1..=8).contains(&list.len())) else {
            return Err(wrong("its input's shape is not a list"));
        };
        let length = |n: &Value| match n {
            Value::Null => Ok(None),
            n => match n.as_u64() {
                Some(n) if (1..=1 << 24).contains(&n) => Ok(Some(n as usize)),
                _ => Err(wrong("its input's shape is not a list of lengths")),
            },
        };
        let shape: Vec<Option<usize>> = list[1..].iter().map(length).collect::<Result<_>>()?;
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(d.unwrap_or(64)));
        if elements.is_none_or(|n| n > 1 << 32) {
            return Err(wrong("a sample of its input is too large"));
        }
        let name = dtype.as_str().or_else(|| dtype.get("config")?.get("name")?.as_str()).unwrap_or("float32");
        let dtype = match name {
            "int32" | "int16" | "int8" => DType::I32,
            "int64" | "uint32" => DType::I64,
            "uint8" => DType::U8,
            "bool" => DType::Bool,
            "float32" | "float16" | "bfloat16" | "mixed_float16" | "mixed_bfloat16" => DType::F32,
            _ => return Err(wrong("its input has an element type that is not taken")),
        };
        Ok(InputSpec { dtype, shape })
    }
}

/// What a model takes, from its input layers; a Sequential model may say so in its first layer or in how it was built.
fn input_specs(root: &Layer) -> Result<Vec<InputSpec>> {
    let Some(model) = &root.model else { return Ok(Vec::new()) };
    let shape_of = |layer: &Layer| {
        let config = &layer.config;
        config.get("batch_shape").or(config.get("batch_input_shape")).cloned().filter(|v| !v.is_null())
    };
    let dtype_of = |layer: &Layer| layer.config.get("dtype").cloned().unwrap_or(Value::Null);
    let mut specs = Vec::new();
    for port in &model.inputs {
        let layer = &model.layers[port.tensor.layer];
        let shape = shape_of(layer).unwrap_or(Value::Null);
        specs.push(InputSpec::read(&shape, &dtype_of(layer), &layer.name)?);
    }
    if !specs.is_empty() {
        return Ok(specs);
    }
    let first = model.layers.first();
    let built = root.config.get("build_input_shape").cloned().filter(|v| !v.is_null());
    let shape = first.and_then(shape_of).or(built);
    let Some(shape) = shape else {
        return Err(Error::config(
            &root.name,
            "the file does not say what the model takes; open it for a type",
        ));
    };
    // Rows of a table are asked for by number.
    let dtype = match first.is_some_and(|layer| layer.class_name == "Embedding") {
        true => Value::from("int64"),
        false => Value::from("float32"),
    };
    Ok(vec![InputSpec::read(&shape, &dtype, &root.name)?])
}
