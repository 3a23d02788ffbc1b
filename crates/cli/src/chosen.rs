//! The model that a run names, fitted to its data.

use std::path::Path;
use std::sync::Arc;

use plimsoll::keras::{Compiled, KerasModel};
use plimsoll::nn::zoo::{Entry, Kind};
use plimsoll::nn::{Loss, Metric};
use plimsoll::prelude::*;

use crate::Failure;
use crate::config::Config;
use crate::plan::is_keras;
use crate::source::count_classes;

/// A model with what goes with it.
pub struct Chosen {
    pub name: String,
    pub model: Arc<dyn Model>,
    pub loss: Arc<dyn Loss>,
    pub metrics: Vec<Metric>,
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
    pub fn new(config: &Config, data: &Dataset, classes: Option<usize>) -> Result<Chosen, Failure> {
        let name = config.model.as_deref().unwrap_or("demo");
        if is_keras(name) {
            return Chosen::keras(config, name);
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
        let metrics = if config.loss.is_some() { config.metrics(&[])? } else { config.metrics(&metrics)? };
        Ok(Chosen { name: name.into(), model, loss: loss(config)?, metrics, keras: None })
    }

    /// A model from a Keras file, with the loss, optimizer and metrics that it was compiled with.
    fn keras(config: &Config, path: &str) -> Result<Chosen, Failure> {
        let opened = KerasModel::open(path)?;
        let mut compiled = opened.compiled()?;
        if config.loss.is_some() {
            (compiled.model, compiled.loss) = opened.with_loss(loss(config)?);
        }
        let metrics = config.metrics(&compiled.metrics)?;
        let (model, loss) = (Arc::new(compiled.model.clone()), compiled.loss.clone());
        let name = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or("keras").to_string();
        Ok(Chosen { name, model, loss, metrics, keras: Some(compiled) })
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
        let precision = match (&config.precision, kept) {
            (None, Some(compiled)) => compiled.precision,
            _ => config.precision()?,
        };
        Ok(Trainer::new(self.model.clone(), self.loss.clone(), optimizer)
            .line(config.line()?)
            .host_memory(config.host_memory()?)
            .precision(precision)
            .exactness(config.exact.map_or(Exactness::Reassociated, Exactness::from))
            .micro_batch(config.micro_batch)
            .clip(config.clip().or(kept.and_then(|compiled| compiled.clip)))
            .metrics(self.metrics.clone())
            .seed(config.seed.unwrap_or(42)))
    }
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
