//! The model that a run names, fitted to its data.

use plimsoll::nn::zoo::{Entry, Kind};
use plimsoll::nn::{Loss, Metric};
use plimsoll::prelude::*;

use crate::Failure;
use crate::config::Config;
use crate::source::count_classes;
use std::sync::Arc;

/// A model with what goes with it.
pub struct Chosen {
    pub name: String,
    pub model: Arc<dyn Model>,
    pub loss: Arc<dyn Loss>,
    pub metrics: Vec<Metric>,
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
        Ok(Chosen { name: name.into(), model, loss: loss(config)?, metrics })
    }

    /// A trainer for it, with everything that the settings say but where it runs and who follows it.
    pub fn trainer(&self, config: &Config) -> Result<Trainer, Failure> {
        let named = config.optimizer.as_deref().unwrap_or("adam");
        let lr =
            config.lr.unwrap_or(if named.ends_with("sgd") || named.contains("ero") { 0.05 } else { 1e-3 });
        let Some(optimizer) = plimsoll::nn::optimizer(named, lr) else {
            let known = "sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, lion and adafactor";
            return Err(Failure(format!("there is no optimizer {named}; there are {known}")));
        };
        Ok(Trainer::new(self.model.clone(), self.loss.clone(), optimizer)
            .line(config.line()?)
            .host_memory(config.host_memory()?)
            .precision(config.precision()?)
            .exactness(config.exact.map_or(Exactness::Reassociated, Exactness::from))
            .micro_batch(config.micro_batch)
            .clip(config.clip())
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
