//! A Keras file as a model of ours.
//!
//! How it is compiled (`compile`), and its state in and out (`state`, `slots`), are subjects of their own.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_formats::keras::{KerasFile, Kind, Layer, Limits, Values, Variable};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{Model, Net, Outputs, Param, Precision, Precisions, View};
use plimsoll_run::{Result as RunResult, Tensor};

use crate::bind::{self, Binding};
use crate::block::{Block, Body, Node};
use crate::constraint::Constraint;
use crate::error::{Error, Result};
use crate::input::{InputSpec, input_specs};
use crate::layer::{Cx, Pass, Penalty, WeightKind};
use crate::layers;

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
    /// The names of all weights that are stored.
    bound: Arc<HashSet<String>>,
    inputs: Vec<InputSpec>,
    params: Vec<Param>,
    /// What comes out for one sample, as far as lengths are known.
    outputs: Vec<Type>,
    /// Values that were loaded from another file, by parameter.
    weights: Option<Arc<KerasFile>>,
    precision: Option<Precision>,
    /// Precisions of some layers, by place.
    layer_precisions: Arc<HashMap<String, Precision>>,
    /// Which outputs are given without their last softmax or sigmoid.
    pub(crate) logits: Vec<bool>,
    /// Whether the regularizers' sum is given as a last output where a loss is taken.
    pub(crate) gives_penalty: bool,
    /// Which outputs carry a mask, which is given behind all outputs where a loss is taken.
    pub(crate) masked: Vec<usize>,
    /// Whether those masks are given.
    pub(crate) gives_masks: bool,
}

/// What layers give, by their place.
pub(crate) type LayerTypes = HashMap<String, Vec<Type>>;

/// Notes what comes out of a model while its parameters are found.
struct Probe<'a> {
    model: &'a KerasModel,
    /// What the model gives, what each layer gives, and which outputs carry a mask.
    seen: Mutex<(Vec<Type>, LayerTypes, Vec<usize>)>,
}

impl<'a> Probe<'a> {
    fn new(model: &'a KerasModel) -> Probe<'a> {
        Probe { model, seen: Mutex::default() }
    }

    fn seen(self) -> (Vec<Type>, LayerTypes, Vec<usize>) {
        self.seen.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model for Probe<'_> {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        let (outputs, layers, masked) = self.model.run(net, inputs, true)?;
        let types = outputs.iter().map(|y| y.ty().clone()).collect();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = (types, layers, masked);
        Ok(outputs)
    }
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

    /// A model that is in the memory of a running Keras: see [`KerasFile::live`]. Weights are read from there when they are asked for.
    /// Where `inputs` are given, axes that the configuration leaves open have their lengths.
    pub fn live(
        name: &str,
        config: &str,
        version: &str,
        variables: Vec<Variable>,
        values: Arc<dyn Values>,
        inputs: Option<&[Type]>,
    ) -> Result<KerasModel> {
        KerasModel::of(KerasFile::live(name, config, version, variables, values)?, name, inputs)
    }

    fn of(file: KerasFile, name: &str, inputs: Option<&[Type]>) -> Result<KerasModel> {
        let (block, bindings, specs) = {
            let root = file.root().ok_or_else(|| Error::NoModel { file: name.to_string() })?;
            let Some(model) = &root.model else {
                let why = "which is not a Sequential or Functional model";
                return Err(Error::unsupported(&root.name, &root.class_name, why));
            };
            layers::check_model(root, &root.name)?;
            let block = Block::build(model, "", 0)?;
            let bindings = bind::bind(&file, root, &block, trains(root))?;
            let specs = match inputs {
                Some(types) => types.iter().map(InputSpec::of).collect(),
                None => input_specs(root)?,
            };
            (block, bindings, specs)
        };
        let penalties =
            bindings.iter().filter_map(|b| b.weight.penalty.map(|p| (b.name.clone(), p))).collect();
        let bound = bindings.iter().map(|b| b.name.clone()).collect();
        let n_outputs = block.n_outputs();
        let mut model = KerasModel {
            file: Arc::new(file),
            name: name.to_string(),
            block: Arc::new(block),
            bindings: Arc::new(bindings),
            penalties: Arc::new(penalties),
            bound: Arc::new(bound),
            inputs: specs,
            params: Vec::new(),
            outputs: Vec::new(),
            weights: None,
            precision: None,
            layer_precisions: Arc::default(),
            logits: vec![false; n_outputs],
            gives_penalty: false,
            masked: Vec::new(),
            gives_masks: false,
        };
        let probe = Probe::new(&model);
        let params = Net::discover(&model.sample_inputs(), &probe)?;
        let (outputs, _, masked) = probe.seen();
        (model.params, model.outputs, model.masked) = (params, outputs, masked);
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
        let known: HashSet<&str> = self.params.iter().map(|p| p.name.as_str()).collect();
        // A weight may stand in the file twice: a wrapper lists one of the layer inside it again.
        let is_missing = |b: &&Binding| b.weight.kind != WeightKind::Idle && !known.contains(b.name.as_str());
        match self.bindings.iter().find(is_missing) {
            Some(Binding { name, .. }) => {
                Err(Error::variables(name, "the file holds this weight, but its layer is never called"))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn binding(&self, param: &str) -> Result<&Binding> {
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

    /// What it is called: the path of its file, or the name that it was read under.
    pub fn file_name(&self) -> &str {
        &self.name
    }

    /// The number of inputs.
    pub fn n_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The element types of the inputs.
    pub fn input_dtypes(&self) -> Vec<DType> {
        self.inputs.iter().map(|spec| spec.dtype).collect()
    }

    /// The number of outputs.
    pub fn n_outputs(&self) -> usize {
        self.block.n_outputs()
    }

    /// The types of the outputs for one sample; where the file leaves an input's axis open, for some length of it.
    pub fn outputs(&self) -> &[Type] {
        &self.outputs
    }

    /// The names of the inputs: those of their layers, or those the file gives; `x` where there is no input layer.
    pub fn input_names(&self) -> Vec<String> {
        match &self.block.input_names[..] {
            [] => vec!["x".into()],
            names => names.to_vec(),
        }
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
        let read = |param: &Param| {
            let mut value = Tensor::zeros(param.ty.clone())?;
            value.set_bytes(&self.value_bytes(param)?)?;
            Ok(value)
        };
        self.params.iter().map(read).collect()
    }

    /// The elements of one parameter in the file, as bytes of its type here.
    pub(crate) fn value_bytes(&self, param: &Param) -> Result<Vec<u8>> {
        let source = self.weights.as_ref().unwrap_or(&self.file);
        let variable = source.variable(&self.binding(&param.name)?.path)?;
        bind::read_as(source, variable, param.ty.dtype)
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
        self.retype();
        self
    }

    /// Gives parameters the type in which they are kept under the precisions that now stand.
    fn retype(&mut self) {
        let places: HashMap<String, Precision> = self
            .block
            .all()
            .into_iter()
            .filter_map(|node| Some((node.place.clone(), self.precision_of(node)?)))
            .collect();
        let layers: HashMap<&str, &str> =
            self.bindings.iter().map(|b| (b.name.as_str(), b.layer.as_str())).collect();
        for param in &mut self.params {
            let own = layers.get(param.name.as_str()).and_then(|layer| places.get(*layer));
            param.ty.dtype = own.map_or(param.ty.dtype, |precision| precision.master());
        }
    }

    /// The same model with some layers in precisions of their own, before all others. Layers are named by their place, which
    /// names all layers in it too; a `*` at the end stands for any rest.
    ///
    /// # Errors
    /// A name is no layer's; the error lists some that there are.
    pub fn with_layer_precisions(mut self, layers: &[(String, Precision)]) -> Result<KerasModel> {
        let named = Precisions { layers: layers.to_vec(), ..Precisions::default() };
        let places: Vec<String> = self.block.all().iter().map(|node| node.place.clone()).collect();
        named.check(&places).map_err(|why| Error::config(&self.name, format!("the caller {why}")))?;
        let own = places.into_iter().filter_map(|place| named.of_layer(&place).map(|own| (place, own)));
        self.layer_precisions = Arc::new(own.collect());
        self.retype();
        Ok(self)
    }

    /// The precision in which a layer computes; none for what has none of its own.
    fn precision_of(&self, node: &Node) -> Option<Precision> {
        let own = node.precision?;
        Some(self.layer_precisions.get(&node.place).copied().or(self.precision).unwrap_or(own))
    }

    /// The precision that a recipe should have: half precision anywhere needs a scaled loss.
    pub fn precision(&self) -> Precision {
        let all = self.block.all();
        let policies: Vec<Precision> = all.iter().filter_map(|node| self.precision_of(node)).collect();
        match [Precision::MixedF16, Precision::MixedBf16].into_iter().find(|p| policies.contains(p)) {
            Some(precision) => precision,
            None if !policies.is_empty() && policies.iter().all(|p| *p == Precision::F64) => Precision::F64,
            None => Precision::F32,
        }
    }

    /// What holds weights after every update, by parameter.
    pub(crate) fn constraints(&self) -> HashMap<String, Constraint> {
        let held =
            |b: &Binding| b.weight.constraint.clone().filter(|_| b.trained).map(|own| (b.name.clone(), own));
        self.bindings.iter().filter_map(held).collect()
    }

    /// Whether regularizers add to the loss.
    pub fn has_penalty(&self) -> bool {
        let has_activity = |node: &&Node| {
            matches!(&node.body, Body::Layer(made) if made.activity.is_some())
                || layers::adds_loss(&node.class)
        };
        self.bindings.iter().any(|b| b.trained && b.weight.penalty.is_some())
            || self.block.all().iter().any(has_activity)
    }

    /// What every layer gives for one sample, by its place.
    pub(crate) fn layer_outputs(&self) -> Result<LayerTypes> {
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
    ) -> RunResult<(Outputs, LayerTypes, Vec<usize>)> {
        let penalties = if self.gives_penalty { self.penalties.clone() } else { Arc::default() };
        let trains = self.file.root().is_none_or(trains);
        let mut pass = Pass::new(trains, self.precision, penalties);
        pass.layer_precisions = self.layer_precisions.clone();
        pass.counts_activity = self.gives_penalty;
        pass.bound = self.bound.clone();
        pass.seen = noted.then(HashMap::new);
        // What comes in as f32 goes on in f64 where that is what the file says.
        let given = |(i, x): (usize, &Tensor)| {
            let is_f64 = self.inputs.get(i).is_some_and(|spec| spec.dtype == DType::F64);
            Ok((if is_f64 && x.dtype().is_float() { x.cast(DType::F64)? } else { x.clone() }, None))
        };
        let inputs: Vec<(Tensor, Option<Tensor>)> =
            inputs.iter().enumerate().map(given).collect::<RunResult<_>>()?;
        // Keras's `evaluate` counts it too.
        let counts_penalty = !net.is_predicting();
        let outputs = self.block.run(&mut Cx { net, pass: &mut pass }, &inputs, &self.logits)?;
        let masked: Vec<usize> = (0..outputs.len()).filter(|&i| outputs[i].1.is_some()).collect();
        let (mut tensors, masks): (Vec<Tensor>, Vec<Option<Tensor>>) = outputs.into_iter().unzip();
        if let Some(penalty) = pass.penalty.filter(|_| counts_penalty) {
            tensors.push(penalty);
        }
        // Keras's loss leaves out what is masked.
        if self.gives_masks && counts_penalty {
            tensors.extend(masks.into_iter().flatten());
        }
        Ok((tensors.into(), pass.seen.unwrap_or_default(), masked))
    }

    /// Whether an output is what goes into a last softmax or sigmoid, which is left to the loss: see [`crate::Compiled`].
    pub fn gives_logits(&self, output: usize) -> bool {
        self.logits.get(output).copied().unwrap_or(false)
    }

    /// Whether an output comes out of a last softmax or sigmoid.
    pub fn gives_probabilities(&self, output: usize) -> bool {
        output < self.n_outputs() && !self.gives_logits(output) && self.block.probabilities(output).is_some()
    }

    /// What an output must be seen through to be what Keras gives: the last softmax or sigmoid, where that was left out.
    pub fn view(&self, output: usize) -> View {
        match self.block.probabilities(output) {
            Some((_, view)) if self.gives_logits(output) => view,
            _ => View::Plain,
        }
    }

    /// The softmax or sigmoid that an output ends in, if it does.
    pub(crate) fn ending(&self, output: usize) -> Option<View> {
        self.block.probabilities(output).map(|(_, view)| view)
    }

    /// Of each output, whether it ends in a softmax or sigmoid that a loss can take off: of a layer that computes in f32 or f64.
    pub(crate) fn removable(&self) -> Vec<bool> {
        let is_wide = |node: &Node| matches!(self.precision_of(node), Some(Precision::F32 | Precision::F64));
        let ends = |i: usize| self.block.probabilities(i).is_some_and(|(node, _)| is_wide(node));
        (0..self.n_outputs()).map(ends).collect()
    }
}

/// Whether a model trains anything at all. Keras loses this flag of a Sequential model when it opens the file.
pub(crate) fn trains(root: &Layer) -> bool {
    root.trainable || root.class_name == "Sequential"
}

impl Model for KerasModel {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> RunResult<Outputs> {
        self.run(net, inputs, false).map(|(outputs, ..)| outputs)
    }
}

impl std::fmt::Debug for KerasModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (layers, params) = (self.block.all().len(), self.params.len());
        write!(f, "KerasModel({}: {layers} layers, {params} parameters)", self.name)
    }
}
