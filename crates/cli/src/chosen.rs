//! The model that a run names, fitted to its data.

use std::path::Path;
use std::sync::Arc;

use plimsoll::data::{FieldKind, FieldSpec, Fields, Wanted};
use plimsoll::keras::{Compiled, KerasLoss, KerasModel, OutputLoss};
use plimsoll::nn::zoo::{Entry, Kind};
use plimsoll::nn::{Count, Loss, Measure, Metric, Precisions};
use plimsoll::prelude::*;

use crate::Failure;
use crate::config::Config;
use crate::plan::is_keras;
use crate::source::count_classes;

/// What a model is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Train,
    Evaluate,
    Predict,
}

/// A model with what goes with it.
pub struct Chosen {
    pub name: String,
    pub model: Arc<dyn Model>,
    pub loss: Arc<dyn Loss>,
    pub metrics: Vec<Measure>,
    /// The precision that a recipe should have.
    precision: Precision,
    /// What a Keras file says of its training.
    pub keras: Option<Compiled>,
}

/// The demo's model, for small images.
struct Demo {
    classes: usize,
}

impl Model for Demo {
    fn forward(&self, net: &mut Net, x: &[Tensor]) -> plimsoll::run::Result<Outputs> {
        Ok(zoo::batch_norm_cnn(net, &x[0], &[32, 64], self.classes)?.into())
    }
}

/// An entry of the zoo that takes data as it comes: vectors are made of images where it reads vectors.
struct Fitted(Entry);

impl Model for Fitted {
    fn forward(&self, net: &mut Net, x: &[Tensor]) -> plimsoll::run::Result<Outputs> {
        match (self.0.kind, x) {
            (Kind::Vectors, [x]) if x.shape().rank() > 2 => self.0.forward(net, &[x.flatten(1)?]),
            _ => self.0.forward(net, x),
        }
    }
}

impl Chosen {
    /// Finds the model and fits it to the data: sides of images, classes, tokens. A Keras file is opened already.
    pub fn new(
        config: &Config,
        file: Option<KerasModel>,
        data: &Dataset,
        classes: Option<usize>,
        purpose: Purpose,
    ) -> Result<Chosen, Failure> {
        let name = config.model.as_deref().unwrap_or("demo");
        if let Some(opened) = file {
            return Chosen::keras(config, name, opened, data, purpose);
        }
        let classes = || match config.classes.or(classes) {
            Some(classes) => Ok(classes),
            None => count_classes(data),
        };
        let (model, metrics): (Arc<dyn Model>, Vec<Metric>) = if name == "demo" {
            (Arc::new(Demo { classes: classes()? }), vec![Metric::Accuracy])
        } else {
            let Some(entry) = zoo::find(name) else {
                let names: Vec<&str> = zoo::ALL.iter().map(|entry| entry.name).collect();
                return Err(Failure(format!(
                    "there is no model {name}; there are demo, {}",
                    names.join(", ")
                )));
            };
            let classes = classes()?;
            let shape = data.spec()?.first().map(|x| x.shape.clone()).unwrap_or_default();
            let entry = entry.sized(|size| {
                size.classes = classes;
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
            let metrics = match entry.kind {
                Kind::Pixels => vec![Metric::Accuracy, Metric::MeanIou],
                _ => vec![Metric::Accuracy],
            };
            (Arc::new(Fitted(entry)), metrics)
        };
        let (all, layers) = config.precision()?;
        let precisions = Precisions { all: all.unwrap_or_default(), layers };
        let precision = precisions.of_recipe();
        let model: Arc<dyn Model> = match precisions.layers.is_empty() {
            true => model,
            false => Arc::new(precisions.over(model)),
        };
        let metrics = if config.loss.is_some() { config.metrics(&[])? } else { config.metrics(&metrics)? };
        let metrics = metrics.into_iter().map(Measure::from).collect();
        Ok(Chosen { name: name.into(), model, loss: loss(config)?, metrics, precision, keras: None })
    }

    /// A model from a Keras file, with the loss, optimizer and metrics that it was compiled with; for predictions with none
    /// of them, and outputs as Keras gives them.
    fn keras(
        config: &Config,
        path: &str,
        opened: KerasModel,
        data: &Dataset,
        purpose: Purpose,
    ) -> Result<Chosen, Failure> {
        let spec = data.spec()?;
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
            if purpose == Purpose::Train && config.optimizer.is_none() && config.lr.is_none() {
                let kept = opened.compiled().map_err(|e| advised(e, path, "--optimizer"))?;
                (compiled.optimizer, compiled.schedule, compiled.clip) =
                    (kept.optimizer, kept.schedule, kept.clip);
            }
        }
        fits(&compiled, spec.len(), purpose)?;
        if purpose != Purpose::Predict {
            not_counted(config, &compiled.other_metrics);
        }
        name_metrics(config, path, &mut compiled)?;
        let metrics = if purpose == Purpose::Predict { Vec::new() } else { compiled.metrics.clone() };
        let (model, loss) = (Arc::new(compiled.model.clone()), compiled.loss.clone());
        let name = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or("keras").to_string();
        let precision = compiled.precision;
        Ok(Chosen { name, model, loss, metrics, precision, keras: Some(compiled) })
    }

    /// The optimizer: the one that is named, or else the Keras file's, or else Adam.
    fn optimizer(&self, config: &Config) -> Result<Arc<dyn Optimizer>, Failure> {
        if let (Some(compiled), None, None) = (&self.keras, &config.optimizer, config.lr) {
            return Ok(compiled.optimizer.clone());
        }
        let named = config.optimizer.as_deref().unwrap_or("adam");
        let plain = ["sgd", "momentum", "nesterov"].contains(&named);
        let lr = config.lr.unwrap_or(if plain { 0.05 } else { 1e-3 });
        let known = "sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, ftrl, lion and adafactor";
        let none = || Failure(format!("there is no optimizer {named}; there are {known}"));
        plimsoll::nn::optimizer(named, lr).ok_or_else(none)
    }

    /// The names of the outputs, of a Keras file.
    pub fn output_names(&self) -> Vec<String> {
        self.keras.as_ref().map_or(Vec::new(), |compiled| compiled.model.output_names().to_vec())
    }

    /// A trainer for it over such data, with everything that the settings say but where it runs and who follows it.
    pub fn trainer(&self, config: &Config, data: &Dataset) -> Result<Trainer, Failure> {
        let labels = match &self.keras {
            Some(compiled) => data.spec()?.len().saturating_sub(compiled.model.n_inputs()),
            None => 1,
        };
        let optimizer = self.optimizer(config)?;
        let kept = self.keras.as_ref();
        Ok(Trainer::new(self.model.clone(), self.loss.clone(), optimizer)
            .line(config.line()?)
            .host_memory(config.host_memory()?)
            .precision(self.precision)
            .exactness(config.exact.map_or(Exactness::Reassociated, Exactness::from))
            .micro_batch(config.micro_batch)
            .clip(config.clip().or(kept.and_then(|compiled| compiled.clip)))
            .metrics(self.metrics.clone())
            .labels(labels)
            .seed(config.seed.unwrap_or(42)))
    }
}

/// The Keras file that a run names, in the precision that it names; none where it names another model.
pub fn keras_model(config: &Config) -> Result<Option<KerasModel>, Failure> {
    let Some(path) = config.model.as_deref().filter(|name| is_keras(name)) else { return Ok(None) };
    let (all, layers) = config.precision()?;
    let opened = KerasModel::open(path)?.with_layer_precisions(&layers)?;
    Ok(Some(match all {
        Some(all) => opened.with_precision(all),
        None => opened,
    }))
}

/// The arrays that a Keras model takes of a data set: its inputs, and labels for the outputs that have a loss or a metric.
pub fn fields(config: &Config, model: &KerasModel, purpose: Purpose) -> Result<Fields, Failure> {
    let path = config.model.as_deref().unwrap_or_default();
    let input = |(name, ty): (String, &DType)| {
        let kind = if ty.is_float() { FieldKind::Numbers } else { FieldKind::Indices };
        Wanted { name, kind }
    };
    let names = model.input_names().into_iter();
    let inputs = names.zip(model.input_dtypes().iter()).map(input).collect();
    let labelled: Vec<usize> = match (purpose, losses(config, model)?) {
        (Purpose::Predict, _) => Vec::new(),
        (_, Some(named)) => (0..named.len()).filter(|&i| named[i].is_some()).collect(),
        (_, None) => model.measured().map_err(|e| advised(e, path, "--loss"))?.labelled,
    };
    let names = labelled.iter().filter_map(|&i| model.output_names().get(i));
    let labels = names.map(|name| Wanted { name: name.clone(), kind: FieldKind::Label }).collect();
    Ok(Fields { inputs, labels })
}

/// The losses that are named, by output: one for all, or those of some by name.
fn losses<'a>(config: &'a Config, model: &KerasModel) -> Result<Option<Vec<Option<&'a str>>>, Failure> {
    let Some(text) = config.loss.as_deref() else { return Ok(None) };
    let names = model.output_names();
    if !text.contains('=') {
        return Ok(Some(vec![Some(text); names.len()]));
    }
    let mut all = vec![None; names.len()];
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((output, loss)) = part.split_once('=') else {
            let why = "names a loss without its output; one is written as name=mse";
            return Err(Failure(format!("--loss {text} {why}")));
        };
        all[output_of(output.trim(), names)?] = Some(loss.trim());
    }
    Ok(Some(all))
}

/// The number of the output of a name.
fn output_of(name: &str, names: &[String]) -> Result<usize, Failure> {
    let none = || Failure(format!("the model has no output {name}; there are {}", names.join(", ")));
    names.iter().position(|own| own == name).ok_or_else(none)
}

/// A loss that was named for a Keras model.
enum Named {
    Loss(KerasLoss),
    Dice,
}

/// The loss that is named, over what the model gives: a file's model may end in a softmax or sigmoid of its own.
fn named_loss(
    config: &Config,
    path: &str,
    model: &KerasModel,
    labels: &[FieldSpec],
) -> Result<Option<Named>, Failure> {
    let Some(named) = losses(config, model)? else { return Ok(None) };
    let (mut all, mut labels) = (Vec::new(), labels.iter());
    for (i, name) in named.iter().enumerate() {
        let Some(name) = name else {
            all.push(None);
            continue;
        };
        let label = labels.next();
        let from_logits = !model.gives_probabilities(i);
        all.push(Some(match *name {
            // Labels are classes, or distributions over them.
            "cross-entropy" if label.is_some_and(|field| field.dtype.is_float()) => {
                OutputLoss::Categorical { from_logits, smoothing: 0.0 }
            }
            "cross-entropy" => OutputLoss::SparseCategorical { from_logits },
            "binary-cross-entropy" => OutputLoss::Binary { from_logits, smoothing: 0.0 },
            "mse" => OutputLoss::Mse,
            "mae" => OutputLoss::Mae,
            "dice" if named.len() > 1 => {
                return Err(Failure(format!(
                    "{path}: dice is only for models with one output; name another loss"
                )));
            }
            "dice" if !model.on_logits().gives_probabilities(0) => return Ok(Some(Named::Dice)),
            "dice" => {
                let why = "dice takes what goes into the last sigmoid, which is not to be had in 16 bits";
                return Err(Failure(format!("{path}: {why}; name another loss, or --precision f32")));
            }
            other => return Err(no_loss(other)),
        }));
    }
    Ok(Some(Named::Loss(KerasLoss::of(all))))
}

/// Of the metrics that a file was compiled with, those of outputs that still have labels stay, if they would see the same.
fn keep_metrics(compiled: &mut Compiled, kept: Compiled) {
    for mut measure in kept.metrics {
        let output = measure.output;
        let label = compiled.labelled.iter().position(|own| *own == output);
        let same = kept.model.gives_logits(output) == compiled.model.gives_logits(output);
        if let (Some(label), true, false) = (label, same, matches!(measure.count, Count::Part(_))) {
            measure.label = label;
            compiled.metrics.push(measure);
        }
    }
    compiled.other_metrics = kept.other_metrics;
}

/// Puts the metrics that are named in the place of a file's own.
fn name_metrics(config: &Config, path: &str, compiled: &mut Compiled) -> Result<(), Failure> {
    let Some(named) = config.measures()? else { return Ok(()) };
    compiled.metrics.retain(|measure| matches!(measure.count, Count::Part(_)));
    let names = compiled.model.output_names().to_vec();
    for (output, metric) in named {
        let output = match (output, &compiled.labelled[..]) {
            (Some(name), _) => output_of(&name, &names)?,
            (None, [one]) => *one,
            (None, _) => {
                let (metric, names) = (metric.name(), names.join(", "));
                return Err(Failure(format!(
                    "{path} has several outputs, {names}; say of which {metric} is: {}={metric}",
                    compiled.labelled_names().next().unwrap_or("output")
                )));
            }
        };
        let name = match names.len() {
            1 => metric.name(),
            _ => format!("{}_{}", names[output], metric.name()),
        };
        compiled.measure(metric, output, &name)?;
    }
    Ok(())
}

/// Whether samples of so many fields have what the model takes.
fn fits(compiled: &Compiled, fields: usize, purpose: Purpose) -> Result<(), Failure> {
    let inputs = compiled.model.n_inputs();
    let wanted = inputs + compiled.labelled.len();
    if fields == wanted || (purpose == Purpose::Predict && fields >= inputs) {
        return Ok(());
    }
    let labels: Vec<&str> = compiled.labelled_names().collect();
    let then = match purpose {
        Purpose::Predict => String::new(),
        _ => format!(", and then labels for {}", labels.join(", ")),
    };
    Err(Failure(format!(
        "a sample of the data has {fields} arrays, but the model takes {inputs} as inputs{then}"
    )))
}

/// An error with the file and the flags that help.
fn advised(error: plimsoll::keras::Error, path: &str, flags: &str) -> Failure {
    Failure(format!("{path} cannot be used as it was compiled: {error} ({flags})"))
}

/// Says which metrics of a file have no counterpart, unless others were named.
fn not_counted(config: &Config, others: &[String]) {
    if config.metrics.is_none() && !others.is_empty() {
        eprintln!("plimsoll: these metrics of the file are not counted here: {}", others.join(", "));
    }
}

fn loss(config: &Config) -> Result<Arc<dyn Loss>, Failure> {
    Ok(match config.loss.as_deref().unwrap_or("cross-entropy") {
        "cross-entropy" => Arc::new(softmax_cross_entropy),
        "mse" => Arc::new(mse),
        "mae" => Arc::new(mae),
        "binary-cross-entropy" => Arc::new(binary_cross_entropy),
        "dice" => Arc::new(dice),
        other => return Err(no_loss(other)),
    })
}

fn no_loss(name: &str) -> Failure {
    let known = "cross-entropy, mse, mae, binary-cross-entropy and dice";
    Failure(format!("there is no loss {name}; there are {known}"))
}
