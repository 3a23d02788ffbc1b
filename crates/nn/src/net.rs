//! Hands a model its parameters by name: finds out which there are, then binds them to values.
//!
//! Layers are methods of `Net`, so that a model reads as a list of calls; each family stands in a file of its own under `layers/`.
//! What they do over several ranks is in `synced`, how they round while a model learns to run in eight bits in `quantize_aware`.

use std::sync::Arc;

use plimsoll_graph::ops::Rank;
use plimsoll_graph::{DType, Shape, Site, TensorOps, Type};
use plimsoll_run::{Result, Sketch, Tensor, asked_at, asked_from, named};
use rustc_hash::FxHashMap;

use crate::description::{LayerKind, Noted};
use crate::error::refuse;
use crate::init::stream;
use crate::precision::names_layer;
use crate::synced::Synced;
use crate::training::shards;
use crate::{Init, Model, Outputs, Patterns, Precision, Precisions, Start};

/// A parameter that a model asked for.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its path: `block1/conv/weight`.
    pub name: String,
    /// Element type and shape.
    pub ty: Type,
    /// How it starts.
    pub init: Init,
    /// Whether the optimizer moves it; statistics that a layer keeps itself are not.
    pub trained: bool,
}

impl Param {
    /// Whether its values are those of a file and stay so: whoever keeps a training need not keep them.
    pub fn is_given(&self) -> bool {
        !self.trained && self.init == Init::Given
    }
}

/// The context in which a model's function runs. Layers are its methods: each opens a scope of the given name for its
/// parameters.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Type};
/// use plimsoll_nn::{Init, Net, model};
/// let found = Net::discover(&[Type::new(DType::F32, [8, 4])], &model(|net, x| {
///     let w = net.param("w", [4, 2], Init::fan_in(4))?;
///     x[0].matmul(&w)
/// }))?;
/// assert_eq!(found[0].name, "w");
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub struct Net {
    params: Vec<Param>,
    index: FxHashMap<String, usize>,
    values: Vec<Tensor>,
    updates: Vec<Option<Tensor>>,
    /// Where parameters come from while they are being discovered.
    sketch: Option<Sketch>,
    path: Vec<String>,
    training: bool,
    predicting: bool,
    precision: Precision,
    /// Precisions of layers by name, and the layers met under them.
    policies: Vec<(String, Precision)>,
    layers: Vec<String>,
    start: Start,
    /// Seed, step and first sample of random layers.
    key: Option<Tensor>,
    /// The index of the first sample of the batch at hand, where nothing is trained: what is drawn all the same depends on it.
    first: Option<Tensor>,
    /// Whether what layers set is kept though nothing is trained.
    carries: bool,
    /// How often each path has drawn random numbers.
    draws: FxHashMap<String, usize>,
    /// The layers that were called, where somebody asked.
    noted: Option<Vec<Noted>>,
    /// Which places of sequences are filled, where some are padding.
    filled: Option<Tensor>,
    /// The weights that are trained, where not all are.
    trains: Option<Arc<Patterns>>,
    /// Ranks that statistics of batches are taken with.
    pub(crate) synced: Option<Synced>,
    /// The ranks that have shards of parameters, and of which: those are gathered where they are asked for.
    gathered: Option<(Rank, Arc<[bool]>)>,
    /// Other shapes of parameters than are asked for, by name.
    pub(crate) shapes: Option<Arc<FxHashMap<String, Shape>>>,
    /// How many layers have rounded to eight bits so far, where the model is trained so.
    pub(crate) rounds: Option<usize>,
}

/// A model's outputs, its parameters with their tensors, its layers.
type Described = (Outputs, Vec<(Param, Tensor)>, Vec<Noted>);

impl Net {
    /// The parameters that a model asks for on inputs of these types. Nothing is computed.
    pub fn discover(inputs: &[Type], model: &(impl Model + ?Sized)) -> Result<Vec<Param>> {
        Net::discover_in(Precision::default(), inputs, model)
    }

    /// As [`Net::discover`], for a model that computes in a precision: under [`Precision::F64`] parameters are f64.
    pub fn discover_in(
        precision: Precision,
        inputs: &[Type],
        model: &(impl Model + ?Sized),
    ) -> Result<Vec<Param>> {
        let sketch = Sketch::new();
        let inputs: Vec<Tensor> = inputs.iter().map(|ty| sketch.tensor("input", ty.clone())).collect();
        let mut net = Net::over(Vec::new(), Vec::new(), true).precision(precision);
        net.key = Some(sketch.tensor("key", Net::key_type()));
        net.sketch = Some(sketch);
        Site::anew(|| model.forward(&mut net, &inputs))?;
        Ok(net.params)
    }

    /// Runs a model on tensors of a sketch: its outputs, its parameters with their tensors, its layers.
    pub(crate) fn described(
        sketch: &Sketch,
        inputs: &[Tensor],
        model: &(impl Model + ?Sized),
    ) -> Result<Described> {
        let mut net = Net::over(Vec::new(), Vec::new(), true);
        net.key = Some(sketch.tensor("key", Net::key_type()));
        net.sketch = Some(sketch.clone());
        net.noted = Some(Vec::new());
        let outputs = model.forward(&mut net, inputs)?;
        Ok((outputs, net.params.into_iter().zip(net.values).collect(), net.noted.unwrap_or_default()))
    }

    /// Runs a model, and also gives what each of its layers gave, by path.
    pub(crate) fn noting(
        mut self,
        inputs: &[Tensor],
        model: &(impl Model + ?Sized),
    ) -> Result<(Outputs, Vec<(String, Tensor)>)> {
        self.noted = Some(Vec::new());
        let outputs = model.forward(&mut self, inputs)?;
        let noted = self.noted.unwrap_or_default();
        Ok((outputs, noted.into_iter().map(|noted| (noted.path, noted.output)).collect()))
    }

    /// Notes that a layer of this name gave an output, where a description was asked for.
    pub(crate) fn note(
        &mut self,
        name: &str,
        kind: LayerKind,
        inputs: &[&Tensor],
        output: Result<Tensor>,
    ) -> Result<Tensor> {
        let path = self.path_of(name);
        if let (Some(noted), Ok(output)) = (&mut self.noted, &output) {
            let inputs = inputs.iter().map(|&x| x.clone()).collect();
            noted.push(Noted { path, kind, inputs, output: output.clone() });
        }
        output
    }

    /// A net whose parameters have these values, in the order of `params`.
    pub fn bound(params: &[Param], values: &[Tensor], training: bool) -> Net {
        Net::over(params.to_vec(), values.to_vec(), training)
    }

    fn over(params: Vec<Param>, values: Vec<Tensor>, training: bool) -> Net {
        let index = params.iter().enumerate().map(|(i, p)| (p.name.clone(), i)).collect();
        let updates = vec![None; params.len()];
        Net {
            params,
            index,
            values,
            updates,
            sketch: None,
            path: Vec::new(),
            training,
            predicting: false,
            precision: Precision::default(),
            policies: Vec::new(),
            layers: Vec::new(),
            start: Start::default(),
            key: None,
            first: None,
            carries: false,
            draws: FxHashMap::default(),
            noted: None,
            filled: None,
            trains: None,
            synced: None,
            gathered: None,
            shapes: None,
            rounds: None,
        }
    }

    /// The same net computing in a precision.
    pub fn precision(mut self, precision: Precision) -> Net {
        self.precision = precision;
        self
    }

    /// The same net for predictions: only the outputs themselves are wanted, nothing that goes into a loss beside them.
    pub fn predicting(mut self) -> Net {
        self.predicting = true;
        self
    }

    /// The same net with a key for random layers: seed, step and the index of the first sample of the batch at hand.
    /// Masks depend on the sample's index, not on its place in a batch, so a batch that is run in pieces is given the
    /// key with each piece's first index and draws what the whole batch would.
    pub fn key(mut self, key: Tensor) -> Net {
        self.key = Some(key);
        self
    }

    /// The same net knowing the index of the first sample of the batch at hand: see [`Net::reseed`].
    pub(crate) fn first(mut self, first: &Tensor) -> Net {
        self.first = Some(first.clone());
        self
    }

    /// Where nothing is trained, has layers that draw random numbers draw them from this seed, a single number, from here on. A training has
    /// its own.
    #[track_caller]
    pub fn reseed(&mut self, seed: &Tensor) -> Result<()> {
        let Some(first) = self.first.as_ref().filter(|_| !self.training) else { return Ok(()) };
        let step = seed.full_like(Type::new(DType::I64, [1]), 0.0)?;
        self.key = Some(Tensor::concat(&[&seed.cast(DType::I64)?.reshape([1])?, &step, first], 0)?);
        Ok(())
    }

    /// The same net over parameters some of which are a rank's shards: those are gathered wherever they are asked for.
    pub(crate) fn gathering(mut self, rank: Rank, which: &Arc<[bool]>) -> Net {
        self.gathered = which.contains(&true).then(|| (rank, which.clone()));
        self
    }

    /// The type of a key: i64\[3\], seed, step and first sample.
    pub fn key_type() -> Type {
        Type::new(DType::I64, [3])
    }

    pub(crate) fn filled(&self) -> Option<&Tensor> {
        self.filled.as_ref()
    }

    /// Says which places of sequences are filled from here on; what was said before.
    pub(crate) fn replace_filled(&mut self, filled: Option<Tensor>) -> Option<Tensor> {
        std::mem::replace(&mut self.filled, filled)
    }

    /// Whether the model is being trained: batch norm uses the batch's statistics, dropout drops.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Runs `body` as a part of the model that is trained, or that is not, whatever the others are.
    pub fn with_training<T>(&mut self, on: bool, body: impl FnOnce(&mut Net) -> Result<T>) -> Result<T> {
        self.with(|net| &mut net.training, on, body)
    }

    /// Whether its parameters are being found, so that nothing is computed.
    pub fn is_discovering(&self) -> bool {
        self.sketch.is_some()
    }

    /// Whether outputs are for a user and no loss is taken of them.
    pub fn is_predicting(&self) -> bool {
        self.predicting
    }

    /// The element type of activations here.
    pub fn dtype(&self) -> DType {
        self.precision.compute()
    }

    /// The element type of biases, norms and statistics here: f32, or f64 under [`Precision::F64`].
    pub fn master_dtype(&self) -> DType {
        self.precision.master()
    }

    /// A floating-point tensor in the element type of activations here; others as they are.
    #[track_caller]
    pub fn compute(&self, x: &Tensor) -> Result<Tensor> {
        if x.dtype().is_float() { x.cast(self.dtype()) } else { Ok(x.clone()) }
    }

    /// As [`Net::compute`], in the element type of activations in the scope of this name.
    pub(crate) fn compute_in(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let dtype = self.precision_in(name).compute();
        if x.dtype().is_float() { x.cast(dtype) } else { Ok(x.clone()) }
    }

    fn precision_in(&self, name: &str) -> Precision {
        if self.policies.is_empty() {
            return self.precision;
        }
        let path = self.path_of(name);
        // The last that names it; within a layer that is named, layers compute as it does unless they are named too.
        let own = self.policies.iter().rev().find(|(layer, _)| names_layer(layer, &path));
        own.map_or(self.precision, |(_, precision)| *precision)
    }

    /// A parameter that the optimizer moves, in the element type of activations. It is kept as f32, as f64 under
    /// [`Precision::F64`], or with two axes or more as bf16 under [`Precision::Bf16`].
    #[track_caller]
    pub fn param(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        let dtype = self.dtype();
        self.master(name, shape, init)?.cast(dtype)
    }

    /// A parameter that the optimizer moves, in the type in which it is kept: norms read their scale so.
    #[track_caller]
    pub fn master(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        let shape = shape.into();
        self.get(name, Type::new(self.precision.weight(shape.rank()), shape), init, true)
    }

    /// The weight of a layer with these fans; [`Net::with_start`] says how it starts.
    #[track_caller]
    pub fn weight(&mut self, shape: impl Into<Shape>, fan_in: usize, fan_out: usize) -> Result<Tensor> {
        let init = self.start.weight(fan_in, fan_out);
        self.param("weight", shape, init)
    }

    /// The bias of such a layer, where it has one.
    #[track_caller]
    pub fn bias(&mut self, wanted: bool, units: usize, fan_in: usize) -> Result<Option<Tensor>> {
        let init = self.start.bias(fan_in);
        if wanted { Ok(Some(self.param("bias", [units], init)?)) } else { Ok(None) }
    }

    /// A value that nobody moves, in the type in which it is kept: a weight of a pretrained model, say. It comes from a file
    /// ([`Init::Given`]), and has no gradient, no state of an optimizer, no copy in another type and none in checkpoints.
    #[track_caller]
    pub fn frozen(&mut self, name: &str, ty: Type) -> Result<Tensor> {
        self.get(name, ty, Init::Given, false)
    }

    /// A value, f32 or f64 as parameters are, that a layer keeps from step to step by itself ([`Net::update`]).
    #[track_caller]
    pub fn state(&mut self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Tensor> {
        self.get(name, Type::new(self.master_dtype(), shape), init, false)
    }

    /// A value of any type that comes from elsewhere: a parameter of an imported model, which the optimizer moves where it is `trained`,
    /// or a buffer that the model keeps by itself ([`Net::update`]). Its value is given before a step runs; `init` is what it is until then.
    #[track_caller]
    pub fn given(&mut self, name: &str, ty: Type, init: Init, trained: bool) -> Result<Tensor> {
        self.get(name, ty, init, trained)
    }

    /// Sets what [`Net::state`] of that name will give in the next step. Of a parameter, sets the value that the optimizer moves in this
    /// one.
    #[track_caller]
    pub fn update(&mut self, name: &str, value: Tensor) -> Result<()> {
        let path = self.path_of(name);
        let Some(&index) = self.index.get(&path) else { return Err(unknown(&path)) };
        self.updates[index] = Some(value);
        Ok(())
    }

    /// As [`Net::update`], and also kept where nothing is trained: what one batch of an evaluation or a prediction leaves to the next.
    #[track_caller]
    pub fn carry(&mut self, name: &str, value: Tensor) -> Result<()> {
        self.carries = true;
        self.update(name, value)
    }

    /// A key and a stream for a random op of the current layer. The stream depends on the layer's path alone (and on
    /// how often the path has drawn before, where a layer is used twice).
    #[track_caller]
    pub fn draw(&mut self, name: &str) -> Result<(Tensor, u32)> {
        let path = self.path_of(name);
        let Some(key) = &self.key else {
            return Err(refuse(format!(
                "draws random numbers for {path} from a net without a key; give it one with Net::key"
            )));
        };
        let n = self.draws.entry(path.clone()).or_insert(0);
        *n += 1;
        let stream = if *n == 1 { stream(&path) } else { stream(&format!("{path}#{n}")) };
        Ok((key.clone(), stream))
    }

    /// Runs `body` with a name added to the path of all parameters asked for in it.
    pub fn scope<T>(&mut self, name: &str, body: impl FnOnce(&mut Net) -> Result<T>) -> Result<T> {
        let own = self.precision_in(name);
        self.path.push(name.into());
        if !self.policies.is_empty() {
            self.layers.push(self.path.join("/"));
        }
        let outer = std::mem::replace(&mut self.precision, own);
        let result = named(name, || body(self));
        self.precision = outer;
        self.path.pop();
        result
    }

    /// A layer: as [`Net::scope`], and what it computes carries the line of the model that asked for it, unless that is part
    /// of a layer itself.
    #[track_caller]
    pub(crate) fn layer<T>(&mut self, name: &str, body: impl FnOnce(&mut Net) -> Result<T>) -> Result<T> {
        asked_at(asked_from().unwrap_or(Site::here()), || self.scope(name, body))
    }

    /// Several layers that were asked for as one thing: a model of the zoo. What they compute carries the line that asked for all
    /// of them, unless that is part of something larger.
    #[track_caller]
    pub(crate) fn together<T>(&mut self, body: impl FnOnce(&mut Net) -> Result<T>) -> Result<T> {
        asked_at(asked_from().unwrap_or(Site::here()), || body(self))
    }

    /// Runs `body` in a precision, and layers of some names in others. A name that no layer has is an error.
    #[track_caller]
    pub(crate) fn with_precisions<T>(
        &mut self,
        precisions: &Precisions,
        body: impl FnOnce(&mut Net) -> Result<T>,
    ) -> Result<T> {
        let outer = std::mem::replace(&mut self.policies, precisions.layers.clone());
        self.layers.clear();
        let result = self.with_precision(precisions.all, body);
        self.policies = outer;
        let layers = std::mem::take(&mut self.layers);
        let result = result?;
        precisions.check(&layers).map_err(refuse)?;
        Ok(result)
    }

    /// Runs `body` in another precision than the rest of the model.
    pub fn with_precision<T>(
        &mut self,
        precision: Precision,
        body: impl FnOnce(&mut Net) -> Result<T>,
    ) -> Result<T> {
        self.with(|net| &mut net.precision, precision, body)
    }

    /// Runs `body` with another value of a setting.
    fn with<S, T>(
        &mut self,
        setting: impl Fn(&mut Net) -> &mut S,
        value: S,
        body: impl FnOnce(&mut Net) -> Result<T>,
    ) -> Result<T> {
        let before = std::mem::replace(setting(self), value);
        let result = body(self);
        *setting(self) = before;
        result
    }

    /// Runs `body` with another start of weights and biases than PyTorch's.
    pub fn with_start<T>(&mut self, start: Start, body: impl FnOnce(&mut Net) -> Result<T>) -> Result<T> {
        let outer = std::mem::replace(&mut self.start, start);
        let result = body(self);
        self.start = outer;
        result
    }

    /// The values of the next step: updated ones where a layer set them.
    pub(crate) fn updates(self) -> Vec<Option<Tensor>> {
        self.updates
    }

    /// What layers have set for the next batch, though nothing is trained.
    pub(crate) fn carried(self) -> Vec<Option<Tensor>> {
        if self.carries { self.updates } else { Vec::new() }
    }

    /// How many channels the layer of this name has, where it is asked for with so many: a model may have been made narrower.
    pub(crate) fn width_of(&self, name: &str, asked: usize) -> usize {
        let own =
            self.shapes.as_ref().and_then(|shapes| shapes.get(&format!("{}/weight", self.path_of(name))));
        own.and_then(|shape| shape.last().copied()).unwrap_or(asked)
    }

    /// From here on the optimizer moves only weights of these names.
    pub(crate) fn train_only(&mut self, patterns: &Arc<Patterns>) {
        self.trains = Some(patterns.clone());
    }

    /// The names of all parameters, while they are being found.
    pub(crate) fn found(&self) -> Option<Vec<String>> {
        self.sketch.as_ref().map(|_| self.params.iter().map(|param| param.name.clone()).collect())
    }

    #[track_caller]
    fn get(&mut self, name: &str, ty: Type, init: Init, trained: bool) -> Result<Tensor> {
        let path = self.path_of(name);
        let ty = match self.shapes.as_ref().and_then(|shapes| shapes.get(&path)) {
            Some(shape) => ty.with_shape(shape.clone()),
            None => ty,
        };
        if let Some(&i) = self.index.get(&path) {
            if self.params[i].ty != ty {
                let other = &self.params[i].ty;
                return Err(refuse(format!("asks for parameter {path} as {ty}, which is {other} elsewhere")));
            }
            let missing = || refuse(format!("asks for parameter {path}, for which no value was given"));
            let value = self.values.get(i).ok_or_else(missing)?;
            return match &self.gathered {
                Some((rank, which)) if which[i] => shards::gathered_anew(value, &ty, *rank),
                _ => Ok(value.clone()),
            };
        }
        if ty.elements() == 0 {
            return Err(refuse(format!(
                "makes parameter {path} as {ty}, which is empty: give it a size above 0"
            )));
        }
        if ty.is_too_large() {
            return Err(refuse(format!(
                "makes parameter {path} as {ty}, which no machine can hold: give it a smaller size"
            )));
        }
        let trained = trained && self.trains.as_ref().is_none_or(|patterns| patterns.have(&path));
        let Some(sketch) = &self.sketch else { return Err(unknown(&path)) };
        let value = sketch.tensor(&path, ty.clone());
        self.index.insert(path.clone(), self.params.len());
        self.params.push(Param { name: path, ty, init, trained });
        self.values.push(value.clone());
        self.updates.push(None);
        Ok(value)
    }

    /// The path of something of this name here.
    pub fn path_of(&self, name: &str) -> String {
        let mut path = self.path.join("/");
        if !path.is_empty() {
            path.push('/');
        }
        path + name
    }
}

#[track_caller]
fn unknown(path: &str) -> plimsoll_run::Error {
    refuse(format!("asks for parameter {path}, which the model did not have when it was first traced"))
}
