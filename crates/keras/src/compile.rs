//! Turns what a model was compiled with in Keras into what trains it here.

use std::sync::Arc;

use plimsoll_graph::{Shape, Type};
use plimsoll_nn::{Clip, Loss, Metric, Optimizer, Precision, Recipe, Schedule, Training};
use plimsoll_run::Exactness;
use serde_json::{Map, Value};

use crate::KerasModel;
use crate::error::{Error, Result};
use crate::loss::{KerasLoss, OutputLoss};
use crate::optimizer::{KerasOptimizer, Rule};

/// How a model was to be trained, from its file. Every field can be replaced.
///
/// The model gives logits where the file's loss is about probabilities and the last layer is a softmax or sigmoid: that is
/// what Keras computes the loss from, too. Losses and metrics here fit that. For predictions as Keras gives them use the
/// model that was opened.
pub struct Compiled {
    /// The model, as the loss wants it.
    pub model: KerasModel,
    /// What is made smaller, regularizers included.
    pub loss: Arc<dyn Loss>,
    /// How.
    pub optimizer: Arc<dyn Optimizer>,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// A bound on all gradients together.
    pub clip: Option<Clip>,
    /// What is counted beside the loss, of the first output.
    pub metrics: Vec<Metric>,
    /// Metrics of the file that have no counterpart here.
    pub other_metrics: Vec<String>,
    /// In which element type the loss scale is decided; layers keep their own policies.
    pub precision: Precision,
}

impl KerasModel {
    /// What the model was compiled with.
    ///
    /// ```
    /// use plimsoll_graph::{DType, Type};
    /// use plimsoll_keras::KerasModel;
    /// use plimsoll_run::Tensor;
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mlp.keras");
    /// let compiled = KerasModel::open(path)?.compiled()?;
    /// let labels = Type::new(DType::I64, [4]);
    /// let mut training = compiled.training(4, vec![labels.clone()])?;
    /// let x = Tensor::zeros(compiled.model.inputs(4)?[0].clone())?;
    /// let first = training.step(&[&x], &Tensor::zeros(labels.clone())?)?;
    /// assert!(training.step(&[&x], &Tensor::zeros(labels)?)? < first);
    /// # Ok::<(), plimsoll_keras::Error>(())
    /// ```
    ///
    /// # Errors
    /// It was not compiled, or with a loss or optimizer that is not known here. Then name them yourself: see
    /// [`KerasModel::with_loss`] and [`Compiled::new`].
    pub fn compiled(&self) -> Result<Compiled> {
        let config = self.compile_config("name a loss and an optimizer")?;
        let (optimizer, schedule, clip) = KerasOptimizer::read(optimizer_config(config))?;
        let mut compiled = Compiled::new(self, self.compiled_loss(config)?, optimizer);
        compiled.schedule = schedule;
        compiled.clip = clip.map(Clip::PlainNorm);
        compiled.read_metrics(config);
        Ok(compiled)
    }

    /// The loss and the metrics that the model was compiled with, to measure it as Keras's `evaluate` does: regularizers
    /// count in every pass. The file's optimizer is not read, and may be any.
    ///
    /// # Errors
    /// It was not compiled, or with a loss that is not known here. Then name one yourself: see [`Compiled::measuring`].
    pub fn measured(&self) -> Result<Compiled> {
        let config = self.compile_config("name a loss")?;
        let mut compiled = Compiled::measuring(self, self.compiled_loss(config)?);
        compiled.read_metrics(config);
        Ok(compiled)
    }

    fn compile_config(&self, advice: &str) -> Result<&Value> {
        let config = self.file.compile_config();
        let none = || Error::config(&self.name, format!("the model was not compiled; {advice}"));
        let is_empty = config.as_object().is_some_and(Map::is_empty);
        if config.is_null() || is_empty { Err(none()) } else { Ok(config) }
    }

    fn compiled_loss(&self, config: &Value) -> Result<KerasLoss> {
        KerasLoss::read(
            config.get("loss").unwrap_or(&Value::Null),
            config.get("loss_weights").unwrap_or(&Value::Null),
            self.output_names(),
        )
    }

    /// The same model without the softmax or sigmoid that outputs end in, where it can be left out: for losses over logits.
    #[must_use]
    pub fn on_logits(&self) -> KerasModel {
        let mut model = self.clone();
        model.logits = model.removable();
        model
    }

    /// The model and a loss of one's own over its outputs, made to fit: regularizers are added to the loss.
    pub fn with_loss(&self, loss: impl Loss + 'static) -> (KerasModel, Arc<dyn Loss>) {
        let mut model = self.clone();
        model.gives_penalty = self.has_penalty();
        let n = self.n_outputs();
        (model, Arc::new(Penalized { loss, n }))
    }
}

/// A loss over the outputs, and the regularizers' sum after them.
struct Penalized<L> {
    loss: L,
    n: usize,
}

impl<L: Loss> Loss for Penalized<L> {
    fn loss(
        &self,
        outputs: &[plimsoll_run::Tensor],
        labels: &[plimsoll_run::Tensor],
    ) -> plimsoll_run::Result<plimsoll_run::Tensor> {
        let (own, penalty) = outputs.split_at(self.n.min(outputs.len()));
        let loss = self.loss.loss(own, labels)?;
        match penalty.first() {
            Some(penalty) => crate::layer::add_wide(&loss, penalty),
            None => Ok(loss),
        }
    }
}

/// The optimizer of a compile configuration; legacy files have it under another key.
pub(crate) fn optimizer_config(config: &Value) -> &Value {
    config.get("optimizer").or_else(|| config.get("optimizer_config")).unwrap_or(&Value::Null)
}

impl Compiled {
    /// A model with a loss and an optimizer, no metrics.
    pub fn new(model: &KerasModel, mut loss: KerasLoss, optimizer: impl Optimizer + 'static) -> Compiled {
        let mut model = model.clone();
        for (i, removable) in model.removable().into_iter().enumerate() {
            if let Some(own) = loss.outputs.get_mut(i).and_then(Option::as_mut)
                && own.wants_logits()
                && removable
            {
                *own = own.on_logits();
                model.logits[i] = true;
            }
        }
        model.gives_penalty = model.has_penalty();
        let precision = model.precision();
        Compiled {
            model,
            loss: Arc::new(loss),
            optimizer: Arc::new(optimizer),
            schedule: Schedule::constant(),
            clip: None,
            metrics: Vec::new(),
            other_metrics: Vec::new(),
            precision,
        }
    }

    /// A model with a loss to measure it by; it is not to be trained.
    pub fn measuring(model: &KerasModel, loss: KerasLoss) -> Compiled {
        let rule = Rule::Sgd { momentum: 0.0, nesterov: false };
        let idle = KerasOptimizer { rule, lr: 0.0, weight_decay: None, clip_norm: None, clip_value: None };
        let mut compiled = Compiled::new(model, loss, idle);
        compiled.model.always_gives_penalty = compiled.model.gives_penalty;
        compiled
    }

    /// A recipe for batches of these types. Metrics that compare elements take labels of the outputs' shape, but for a last axis
    /// of length 1; they are left out where labels are of another kind, which losses allow.
    pub fn recipe(&self, inputs: Vec<Type>, labels: Vec<Type>) -> Recipe {
        let alike = match (self.model.outputs().first(), labels.first()) {
            (Some(output), Some(labels)) => {
                let inner = |shape: &Shape| {
                    let own = shape.get(1..).unwrap_or_default();
                    own.strip_suffix(&[1]).unwrap_or(own).to_vec()
                };
                inner(&output.shape) == inner(&labels.shape)
            }
            _ => false,
        };
        let of_classes = |m: &Metric| matches!(m, Metric::Accuracy | Metric::TopK(_) | Metric::CrossEntropy);
        let has_classes = self.model.outputs().first().and_then(|y| y.shape.last()).is_some_and(|&n| n > 1);
        let fits = |m: &Metric| if of_classes(m) { has_classes } else { alike };
        let metrics = self.metrics.iter().copied().filter(fits).collect();
        Recipe {
            loss: self.loss.clone(),
            optimizer: self.optimizer.clone(),
            precision: self.precision,
            clip: self.clip,
            metrics,
            inputs,
            labels,
            memory: None,
            exactness: Exactness::Reassociated,
            micro_batch: None,
            beside: plimsoll_device::Bytes::ZERO,
        }
    }

    /// The training, from the file's weights and the optimizer's state in it, for batches of so many samples.
    pub fn training(&self, batch: usize, labels: Vec<Type>) -> Result<Training> {
        self.model.training(self.recipe(self.model.inputs(batch)?, labels))
    }

    fn read_metrics(&mut self, config: &Value) {
        let loss = self.first_loss(config);
        let first_on_logits = self.model.logits.first().copied().unwrap_or(false);
        let mut listed = Vec::new();
        collect(config.get("metrics").unwrap_or(&Value::Null), &mut listed);
        for (name, settings) in listed {
            match metric(&name, &settings, loss, first_on_logits) {
                Some(metric) if !self.metrics.contains(&metric) => self.metrics.push(metric),
                Some(_) => {}
                None => self.other_metrics.push(name),
            }
        }
    }

    fn first_loss(&self, config: &Value) -> Option<OutputLoss> {
        let loss = config.get("loss").unwrap_or(&Value::Null);
        KerasLoss::read(loss, &Value::Null, self.model.output_names())
            .ok()?
            .outputs
            .first()
            .copied()
            .flatten()
    }
}

/// Metrics with their settings, however they are nested.
fn collect(value: &Value, found: &mut Vec<(String, Map<String, Value>)>) {
    match value {
        Value::String(name) => found.push((name.clone(), Map::new())),
        Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
        Value::Object(map) => match map.get("class_name").and_then(Value::as_str) {
            Some("CompileMetrics") | None => map.values().for_each(|value| collect(value, found)),
            Some("function") => {
                let name = map.get("config").and_then(Value::as_str).unwrap_or("function");
                found.push((name.to_string(), Map::new()));
            }
            Some(class) => {
                let config = map.get("config").and_then(Value::as_object).cloned().unwrap_or_default();
                found.push((class.to_string(), config));
            }
        },
        _ => {}
    }
}

fn metric(
    name: &str,
    settings: &Map<String, Value>,
    loss: Option<OutputLoss>,
    on_logits: bool,
) -> Option<Metric> {
    let known: String = name.chars().filter(|c| *c != '_').collect::<String>().to_lowercase();
    let half = settings.get("threshold").is_none_or(|t| t.as_f64() == Some(0.5));
    let binary = (on_logits && half).then_some(Metric::BinaryAccuracy);
    match known.as_str() {
        "accuracy" | "acc" => match loss? {
            OutputLoss::SparseCategorical { .. } | OutputLoss::Categorical { .. } => Some(Metric::Accuracy),
            OutputLoss::Binary { .. } => binary,
            _ => None,
        },
        "sparsecategoricalaccuracy" | "categoricalaccuracy" => Some(Metric::Accuracy),
        "binaryaccuracy" => binary,
        "sparsetopkcategoricalaccuracy" | "topkcategoricalaccuracy" => {
            let k = settings.get("k").map_or(Some(5), Value::as_u64)?;
            Some(Metric::TopK(usize::try_from(k).ok()?))
        }
        "sparsecategoricalcrossentropy" | "categoricalcrossentropy" => {
            on_logits.then_some(Metric::CrossEntropy)
        }
        "mse" | "meansquarederror" if !on_logits => Some(Metric::Mse),
        "mae" | "meanabsoluteerror" if !on_logits => Some(Metric::Mae),
        "rootmeansquarederror" if !on_logits => Some(Metric::Rmse),
        "r2score" if !on_logits => Some(Metric::R2),
        _ => None,
    }
}
