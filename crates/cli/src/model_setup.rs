//! The model that a run names, fitted to its data.

use std::path::Path;
use std::sync::Arc;

use plimsoll::data::FieldSpec;
use plimsoll::keras::{Compiled, KerasLoss, KerasModel};
use plimsoll::nn::zoo::{Entry, Kind};
use plimsoll::nn::{
    Loss, Measure, Optimizer, Outputs, Param, Precisions, QuantizeAware, TrainOnly, Training, dice, zoo,
};
use plimsoll::onnx::OnnxModel;
use plimsoll::prelude::*;
use plimsoll::torch::TorchModel;

use crate::Failure;
use crate::config::Config;
use crate::form::Form;
use crate::keras_file::{
    Named, advised, fits, follows_file, keep_metrics, name_metrics, named_loss, not_counted, not_followed,
};
use crate::request::{is_onnx, is_tflite, is_torch};
use crate::task::Task;
use crate::{names, onnx_file, sizes, torch_file};

/// The models, for the help.
pub fn help() -> String {
    let names: Vec<&str> = zoo::ALL.iter().map(|entry| entry.name).collect();
    format!(
        "Models: demo, {} (plimsoll models has their sizes and data), or a .keras, .h5, .onnx or .pt2 file.",
        names.join(", ")
    )
}

/// What a model is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Train,
    Evaluate,
    Predict,
}

/// A model with what goes with it.
pub struct ModelSetup {
    pub name: String,
    pub model: Arc<dyn Model>,
    pub loss: Arc<dyn Loss>,
    pub metrics: Vec<Measure>,
    /// The precision that a recipe should have.
    pub precision: Precision,
    /// Whether the zoo's model says classes, by scores that a softmax makes probabilities.
    pub is_classifier: bool,
    /// What a Keras file says of its training.
    pub keras: Option<Compiled>,
    /// The model of an ONNX file, whose weights are the file's.
    pub onnx: Option<OnnxModel>,
    /// The model of an exported PyTorch program, whose weights are the file's.
    pub torch: Option<TorchModel>,
}

/// The demo's model, for small images.
struct Demo {
    classes: usize,
}

impl Model for Demo {
    fn forward(&self, net: &mut Net, x: &[Tensor]) -> plimsoll::internals::run::Result<Outputs> {
        Ok(zoo::batch_norm_cnn(net, &x[0], &[32, 64], self.classes)?.into())
    }
}

/// An entry of the zoo that takes data as it comes: vectors are made of images where it reads vectors.
struct Fitted(Entry);

impl Model for Fitted {
    fn forward(&self, net: &mut Net, x: &[Tensor]) -> plimsoll::internals::run::Result<Outputs> {
        match (self.0.kind, x) {
            (Kind::Vectors, [x]) if x.shape().rank() > 2 => self.0.forward(net, &[x.flatten(1)?]),
            _ => self.0.forward(net, x),
        }
    }
}

impl ModelSetup {
    /// Whether a trained model is also written as a file of its own kind, value by value of what all ranks have.
    pub fn is_written_whole(&self) -> bool {
        self.keras.is_some() || self.torch.is_some()
    }

    /// The parameters of a training as files of others have them: weights that are kept in bf16 are f32 there.
    pub fn to_write(&self, training: &Training) -> Result<(Vec<Param>, Vec<Tensor>), Failure> {
        let is_narrow = |param: &Param| self.precision == Precision::Bf16 && param.ty.dtype == DType::BF16;
        let mut all = (Vec::new(), Vec::new());
        for (param, value) in training.params().iter().zip(training.values()) {
            let (mut param, mut value) = (param.clone(), value.clone());
            if is_narrow(&param) {
                param.ty = param.ty.with_dtype(DType::F32);
                value = value.cast(DType::F32)?;
            }
            all.0.push(param);
            all.1.push(value);
        }
        Ok(all)
    }

    /// Finds the model and fits it to the form of its data: sides of images, classes, tokens. A Keras file is opened already.
    pub fn new(
        config: &Config,
        file: Option<KerasModel>,
        form: &Form,
        purpose: Purpose,
    ) -> Result<ModelSetup, Failure> {
        let name = config.model.as_deref().unwrap_or("demo");
        if let Some(opened) = file {
            return ModelSetup::keras(config, name, opened, &form.spec()?, purpose);
        }
        if is_onnx(name) {
            return onnx_file::setup(config, name, form, purpose);
        }
        if is_torch(name) {
            return torch_file::setup(config, name, form, purpose);
        }
        let entry = find(name)?;
        let task = Task::new(config, entry.as_ref(), name, form)?;
        let model: Arc<dyn Model> = match entry {
            None => Arc::new(Demo { classes: task.outputs }),
            Some(entry) => Arc::new(Fitted(sized(entry, config, &task, form)?)),
        };
        let (all, layers) = config.precision()?;
        let precisions = Precisions { all: all.unwrap_or_default(), layers };
        let precision = precisions.of_recipe();
        let model: Arc<dyn Model> = match precisions.layers.is_empty() {
            true => model,
            false => Arc::new(precisions.over(model)),
        };
        let metrics = config.metrics(&task.metrics)?.into_iter().map(Measure::from).collect();
        let (loss, is_classifier) = (task.loss()?, task.is_classes());
        Ok(ModelSetup {
            name: name.into(),
            model,
            loss,
            metrics,
            precision,
            is_classifier,
            keras: None,
            onnx: None,
            torch: None,
        })
    }

    /// A model from a Keras file, with the loss, optimizer and metrics that it was compiled with; for predictions with none
    /// of them, and outputs as Keras gives them.
    fn keras(
        config: &Config,
        path: &str,
        opened: KerasModel,
        spec: &[FieldSpec],
        purpose: Purpose,
    ) -> Result<ModelSetup, Failure> {
        let labels = spec.get(opened.n_inputs()..).unwrap_or_default();
        let mut compiled = match (purpose, named_loss(config, path, &opened, labels)?) {
            (Purpose::Predict, _) => Compiled::measuring(&opened, KerasLoss::none(opened.n_outputs())),
            (Purpose::Evaluate, None) => opened.measured().map_err(|e| advised(e, path, "--loss"))?,
            (Purpose::Train, None) => {
                opened.compiled().map_err(|e| advised(e, path, "--loss and --optimizer"))?
            }
            (Purpose::Evaluate, Some(Named::Loss(loss))) => Compiled::measuring(&opened, loss),
            (Purpose::Train, Some(Named::Loss(loss))) => Compiled::new(&opened, loss, Adam::new(1e-3)),
            (_, Some(Named::Dice)) => {
                let mut labelled = KerasLoss::none(opened.n_outputs());
                labelled.measured[0] = true;
                let mut compiled = Compiled::new(&opened.on_logits(), labelled, Adam::new(1e-3));
                (compiled.model, compiled.loss) = compiled.model.with_loss(dice);
                compiled
            }
        };
        if config.loss.is_some() && purpose != Purpose::Predict {
            // Of what the file was compiled with, what goes with another loss stays.
            if let Ok(kept) = opened.measured() {
                keep_metrics(&mut compiled, kept);
            }
            // A file that was never compiled has none; then a rate is Adam's.
            let is_needed = opened.is_compiled() || config.lr.is_none();
            if purpose == Purpose::Train && config.optimizer.is_none() && is_needed {
                compiled.take_optimizer(opened.compiled().map_err(|e| advised(e, path, "--optimizer"))?);
            }
        }
        if let (Purpose::Train, None, Some(lr)) = (purpose, &config.optimizer, config.lr)
            && compiled.set_rate(lr) == Some(true)
        {
            let why =
                format!("the file's own schedule of the learning rate is not followed: --lr {lr} stands");
            compiled.notices.push(why);
        }
        fits(&compiled, spec.len(), purpose)?;
        if purpose != Purpose::Predict {
            not_counted(config, &compiled.other_metrics);
        }
        if purpose == Purpose::Train {
            not_followed(config, &compiled);
        }
        name_metrics(config, path, &mut compiled)?;
        let metrics = if purpose == Purpose::Predict { Vec::new() } else { compiled.metrics.clone() };
        let (model, loss) = (Arc::new(compiled.model.clone()), compiled.loss.clone());
        let name = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or("keras").to_string();
        let precision = compiled.precision;
        let keras = Some(compiled);
        Ok(ModelSetup {
            name,
            model,
            loss,
            metrics,
            precision,
            is_classifier: false,
            keras,
            onnx: None,
            torch: None,
        })
    }

    /// The optimizer: the one that is named, or else the Keras file's, at the rate that is named, or else Adam; with its state as is said.
    pub fn optimizer(&self, config: &Config) -> Result<Arc<dyn Optimizer>, Failure> {
        names::with_state(self.plain_optimizer(config)?, config)
    }

    fn plain_optimizer(&self, config: &Config) -> Result<Arc<dyn Optimizer>, Failure> {
        if let (Some(compiled), None) = (&self.keras, &config.optimizer)
            && config.lr.is_none_or(|lr| compiled.optimizer.rate() == lr)
        {
            return match config.weight_decay {
                None => Ok(compiled.optimizer.clone()),
                Some(_) => {
                    let why = "a Keras file's optimizer has its own; name another with --optimizer";
                    Err(Failure(format!("--weight-decay: {why}")))
                }
            };
        }
        let named = config.optimizer.as_deref().unwrap_or("adam");
        let plain = ["sgd", "momentum", "nesterov"].contains(&named);
        let lr = config.lr.unwrap_or(if plain { 0.05 } else { 1e-3 });
        names::optimizer(named, lr, config.weight_decay)
    }

    /// Whether an output is a score for each class.
    pub fn gives_classes(&self, output: usize) -> bool {
        match &self.keras {
            Some(compiled) => compiled.model.gives_probabilities(output),
            None => self.is_classifier,
        }
    }

    /// How the learning rate changes over so many steps: as is named, or else as the Keras file says, where its optimizer is
    /// used at its own rate.
    pub fn schedule(&self, config: &Config, steps: u64) -> Result<Schedule, Failure> {
        match &self.keras {
            Some(compiled) if follows_file(config) => Ok(compiled.schedule.clone()),
            _ => config.schedule(steps),
        }
    }

    /// The names of the outputs, of a Keras, ONNX or PyTorch file.
    pub fn output_names(&self) -> Vec<String> {
        match (&self.keras, &self.onnx, &self.torch) {
            (Some(compiled), ..) => compiled.model.output_names().to_vec(),
            (None, Some(model), _) => model.output_names(),
            (None, None, Some(model)) => {
                torch_file::predicted(model).map(|output| output.name.clone()).collect()
            }
            (None, None, None) => Vec::new(),
        }
    }

    /// A trainer for it over such data on a device, with everything that the settings say but who follows it.
    pub fn trainer(&self, config: &Config, data: &Dataset, device: Device) -> Result<Trainer, Failure> {
        let inputs = match (&self.keras, &self.onnx, &self.torch) {
            (Some(compiled), ..) => Some(compiled.model.n_inputs()),
            (None, Some(model), _) => Some(model.n_inputs()),
            (None, None, Some(model)) => Some(model.program().inputs().len()),
            (None, None, None) => None,
        };
        let labels = match inputs {
            Some(inputs) => data.spec()?.len().saturating_sub(inputs),
            None => 1,
        };
        let optimizer = self.optimizer(config)?;
        let kept = self.keras.as_ref();
        let model: Arc<dyn Model> = match config.patterns()? {
            Some(patterns) => Arc::new(TrainOnly::new(self.model.clone(), patterns)),
            None => self.model.clone(),
        };
        let model: Arc<dyn Model> = match config.quantize_aware {
            Some(true) if inputs.is_some() => {
                let why = "is for models of the zoo; layers of a Keras, ONNX or PyTorch file do not round";
                return Err(Failure(format!("--quantize-aware {why}")));
            }
            Some(true) => Arc::new(QuantizeAware::new(model)),
            _ => model,
        };
        Ok(Trainer::new(model, self.loss.clone(), optimizer)
            .memory_request(&config.memory_request(self.precision, &device)?)
            .parallel(crate::ranks::parallel(config))
            .sync_batch_norm(config.sync_batch_norm == Some(true))
            .clip(config.clip().or(kept.and_then(|compiled| compiled.clip)))
            .metrics(self.metrics.clone())
            .labels(labels)
            .seed(config.seed.unwrap_or(42)))
    }
}

/// The zoo's model of a name; none for the demo's own.
pub fn find(name: &str) -> Result<Option<Entry>, Failure> {
    if name == "demo" {
        return Ok(None);
    }
    if is_tflite(name) {
        let why = "runs and is not trained: plimsoll inspect, predict and evaluate take it";
        return Err(Failure(format!("{name} {why}")));
    }
    zoo::find(name).map(Some).ok_or_else(|| {
        let names: Vec<&str> = zoo::ALL.iter().map(|entry| entry.name).collect();
        let files = "or a .keras, .h5, .onnx, .pt2 or .toml file";
        Failure(format!("there is no model {name}; there are demo, {}, {files}", names.join(", ")))
    })
}

/// A model of the zoo at the sizes that are asked for and that the data has.
fn sized(entry: Entry, config: &Config, task: &Task, form: &Form) -> Result<Entry, Failure> {
    let shape = form.input()?.shape;
    let sized = entry.sized(|size| {
        size.classes = task.outputs;
        let set = |field: &mut usize, value: Option<usize>| *field = value.unwrap_or(*field);
        set(&mut size.width, config.width);
        set(&mut size.depth, config.depth);
        set(&mut size.heads, config.heads);
        set(&mut size.patch, config.patch);
        match entry.kind {
            Kind::Tokens => set(&mut size.sequence, shape.first().copied()),
            _ => set(&mut size.image, shape.first().copied()),
        }
    });
    sizes::fits(&sized, &form.data, &shape)?;
    Ok(sized)
}
