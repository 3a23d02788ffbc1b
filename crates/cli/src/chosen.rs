//! The model that a run names, fitted to its data.

use std::path::Path;
use std::sync::Arc;

use plimsoll::data::FieldSpec;
use plimsoll::keras::{Compiled, KerasLoss, KerasModel, OutputLoss};
use plimsoll::nn::zoo::{Entry, Kind};
use plimsoll::nn::{Loss, Metric, Precisions};
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
    pub metrics: Vec<Metric>,
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
    /// Finds the model and fits it to the data: sides of images, classes, tokens.
    pub fn new(
        config: &Config,
        data: &Dataset,
        classes: Option<usize>,
        purpose: Purpose,
    ) -> Result<Chosen, Failure> {
        let name = config.model.as_deref().unwrap_or("demo");
        if is_keras(name) {
            return Chosen::keras(config, name, data, purpose);
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
        Ok(Chosen { name: name.into(), model, loss: loss(config)?, metrics, precision, keras: None })
    }

    /// A model from a Keras file, with the loss, optimizer and metrics that it was compiled with; for predictions with none
    /// of them, and outputs as Keras gives them.
    fn keras(config: &Config, path: &str, data: &Dataset, purpose: Purpose) -> Result<Chosen, Failure> {
        let (all, layers) = config.precision()?;
        let mut opened = KerasModel::open(path)?.with_layer_precisions(&layers)?;
        if let Some(all) = all {
            opened = opened.with_precision(all);
        }
        let spec = data.spec()?;
        fits(&opened, spec.len(), purpose)?;
        let mut compiled = match (purpose, named_loss(config, path, &opened, spec.last())?) {
            (Purpose::Predict, _) => Compiled::measuring(&opened, KerasLoss::none(opened.n_outputs())),
            (Purpose::Evaluate, None) => opened.measured().map_err(|e| advised(e, path, "--loss"))?,
            (Purpose::Train, None) => {
                opened.compiled().map_err(|e| advised(e, path, "--loss and --optimizer"))?
            }
            (Purpose::Evaluate, Some(Named::Loss(loss))) => Compiled::measuring(&opened, loss),
            (Purpose::Train, Some(Named::Loss(loss))) => Compiled::new(&opened, loss, Adam::new(1e-3)),
            (_, Some(Named::Dice)) => {
                let none = KerasLoss::none(opened.n_outputs());
                let mut compiled = Compiled::new(&opened.on_logits(), none, Adam::new(1e-3));
                (compiled.model, compiled.loss) = compiled.model.with_loss(dice);
                compiled
            }
        };
        if config.loss.is_some() && purpose != Purpose::Predict {
            // Of what the file was compiled with, what goes with another loss stays.
            if let Ok(kept) = opened.measured()
                && kept.model.gives_logits(0) == compiled.model.gives_logits(0)
            {
                (compiled.metrics, compiled.other_metrics) = (kept.metrics, kept.other_metrics);
            }
            if purpose == Purpose::Train && config.optimizer.is_none() && config.lr.is_none() {
                let kept = opened.compiled().map_err(|e| advised(e, path, "--optimizer"))?;
                (compiled.optimizer, compiled.schedule, compiled.clip) =
                    (kept.optimizer, kept.schedule, kept.clip);
            }
        }
        if purpose != Purpose::Predict {
            not_counted(config, &compiled.other_metrics);
        }
        let metrics = match purpose {
            Purpose::Predict => Vec::new(),
            _ => config.metrics(&compiled.metrics)?,
        };
        check_metrics(path, &compiled.model, &metrics)?;
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
        let known = "sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, lion and adafactor";
        let none = || Failure(format!("there is no optimizer {named}; there are {known}"));
        plimsoll::nn::optimizer(named, lr).ok_or_else(none)
    }

    /// A trainer for it, with everything that the settings say but where it runs and who follows it.
    pub fn trainer(&self, config: &Config) -> Result<Trainer, Failure> {
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
            .seed(config.seed.unwrap_or(42)))
    }
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
    labels: Option<&FieldSpec>,
) -> Result<Option<Named>, Failure> {
    let Some(name) = config.loss.as_deref() else { return Ok(None) };
    let from_logits = !model.gives_probabilities(0);
    let own = match name {
        // Labels are classes, or distributions over them.
        "cross-entropy" if labels.is_some_and(|field| field.dtype.is_float()) => {
            OutputLoss::Categorical { from_logits, smoothing: 0.0 }
        }
        "cross-entropy" => OutputLoss::SparseCategorical { from_logits },
        "binary-cross-entropy" => OutputLoss::Binary { from_logits, smoothing: 0.0 },
        "mse" => OutputLoss::Mse,
        "mae" => OutputLoss::Mae,
        "dice" if !model.on_logits().gives_probabilities(0) => return Ok(Some(Named::Dice)),
        "dice" => {
            let why = "dice takes what goes into the last sigmoid, which is not to be had in 16 bits";
            return Err(Failure(format!("{path}: {why}; name another loss, or --precision f32")));
        }
        _ => return loss(config).map(|_| None),
    };
    Ok(Some(Named::Loss(KerasLoss::of_first(own, model.n_outputs()))))
}

/// Whether samples of so many fields have what the model takes.
fn fits(model: &KerasModel, fields: usize, purpose: Purpose) -> Result<(), Failure> {
    let inputs = model.n_inputs();
    let labelled = fields == inputs + 1;
    let bare = purpose == Purpose::Predict && inputs == 1 && fields == 1;
    if labelled || bare {
        return Ok(());
    }
    let then = match purpose {
        Purpose::Predict => "and then labels, which are not read",
        _ => "and then labels",
    };
    Err(Failure(format!(
        "a sample of the data has {fields} arrays, but the model takes {inputs} as inputs, {then}"
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

/// Refuses metrics that would compare other numbers than Keras does.
fn check_metrics(path: &str, model: &KerasModel, metrics: &[Metric]) -> Result<(), Failure> {
    for metric in metrics {
        let why = match metric {
            Metric::Mae | Metric::Mse | Metric::Rmse | Metric::R2 if model.gives_logits(0) => {
                "compares probabilities, but the loss is over what goes into the last softmax or sigmoid"
            }
            Metric::BinaryAccuracy if model.gives_probabilities(0) => {
                "is over what goes into a last sigmoid, but the loss is over what comes out of it"
            }
            _ => continue,
        };
        return Err(Failure(format!(
            "{path}: the metric {} {why}; name other metrics or another loss",
            metric.name()
        )));
    }
    Ok(())
}

fn loss(config: &Config) -> Result<Arc<dyn Loss>, Failure> {
    Ok(match config.loss.as_deref().unwrap_or("cross-entropy") {
        "cross-entropy" => Arc::new(softmax_cross_entropy),
        "mse" => Arc::new(mse),
        "mae" => Arc::new(mae),
        "binary-cross-entropy" => Arc::new(binary_cross_entropy),
        "dice" => Arc::new(dice),
        other => {
            let known = "cross-entropy, mse, mae, binary-cross-entropy and dice";
            return Err(Failure(format!("there is no loss {other}; there are {known}")));
        }
    })
}
