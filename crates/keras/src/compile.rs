//! Turns what a model was compiled with in Keras into what trains it here.

use std::sync::Arc;

use plimsoll_graph::Type;
use plimsoll_nn::{
    Clip, Count, Loss, Measure, Optimizer, Precision, Recipe, Schedule, ScheduleShape, Training,
};
use plimsoll_run::MemoryRequest;
use serde_json::{Map, Value};

use crate::KerasModel;
use crate::constraint::Constrained;
use crate::error::{Error, Result};
use crate::loss::OutputLoss;
use crate::metrics::{self, Metrics};
use crate::model_loss::KerasLoss;
use crate::optimizer::{KerasOptimizer, Rule};
use crate::optimizer_config::OptimizerConfig;
use crate::settings::Settings;

/// How a model was to be trained, from its file. Every field can be replaced.
///
/// The model gives logits where the file's loss is about probabilities and the last layer is a softmax or sigmoid: that is
/// what Keras computes the loss from, too. Losses and metrics here fit that. For predictions as Keras gives them use the
/// model that was opened.
pub struct Compiled {
    /// The model, as the loss wants it.
    pub model: KerasModel,
    /// In which element type the loss scale is decided; layers keep their own policies.
    pub precision: Precision,
    /// What is made smaller, regularizers included.
    pub loss: Arc<dyn Loss>,
    /// How.
    pub optimizer: Arc<dyn Optimizer>,
    /// The file's optimizer.
    own: Option<KerasOptimizer>,
    /// How the learning rate changes, from the number of updates on that the file's optimizer has behind it. For a `Trainer`; who
    /// runs steps by himself sets [`Compiled::rate`] before each.
    pub schedule: Schedule,
    /// The outputs that have labels, in the order in which those are given.
    pub labelled: Vec<usize>,
    /// A bound on all gradients together.
    pub clip: Option<Clip>,
    /// What is counted beside the loss, under Keras's names: the loss of every output where several have one, and metrics.
    /// Labels count among those of `labelled`.
    pub metrics: Vec<Measure>,
    /// Metrics of the file that have no counterpart here, with what is wrong with them.
    pub other_metrics: Vec<String>,
    /// What the file says or holds that is not followed here, in sentences: to be shown to the user.
    pub notices: Vec<String>,
}

/// What a compile configuration may say that changes nothing in what is computed: how steps are compiled and counted, and that a
/// loss is scaled in 16 bits, which is always so here. The optimizer is read where the model is to be trained.
const IDLE: [&str; 8] = [
    "optimizer",
    "optimizer_config",
    "run_eagerly",
    "steps_per_execution",
    "jit_compile",
    "auto_scale_loss",
    "from_serialized",
    "pss_evaluation_shards",
];

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
        self.compiled_with(false)
    }

    /// As [`KerasModel::compiled`]; where `weights` says so, samples bring weights as one more label behind all others, and the loss of
    /// each is multiplied by its own. Keras's `metrics` count all samples the same, its `weighted_metrics` by their weights where they are means;
    /// others are among [`Compiled::other_metrics`].
    ///
    /// # Errors
    /// As of [`KerasModel::compiled`].
    pub fn compiled_with(&self, weights: bool) -> Result<Compiled> {
        let config = self.compile_config("name a loss and an optimizer")?;
        let OptimizerConfig { mut optimizer, schedule, is_scheduled, clip, .. } =
            OptimizerConfig::read(optimizer_config(config))?;
        for part in &mut optimizer.parts {
            let own = self.bindings.iter().filter(|b| part.paths.contains(&b.path));
            part.names = own.map(|b| b.name.clone()).collect();
        }
        let (updates, rate) = self.stored_progress()?;
        // The rate may have been changed since the model was compiled.
        if let (Some(rate), false) = (rate, is_scheduled) {
            optimizer.lr = rate;
        }
        let (mut loss, metrics) = self.compiled_loss(config)?;
        loss.is_weighted = weights;
        let mut compiled = Compiled::new(self, loss, optimizer.clone());
        compiled.own = Some(optimizer);
        compiled.schedule = schedule.after(updates);
        compiled.clip = clip.map(Clip::PlainNorm);
        compiled.notices.extend(self.state_left());
        compiled.take(metrics, weights);
        Ok(compiled)
    }

    /// The loss and the metrics that the model was compiled with, to measure it as Keras's `evaluate` does: regularizers
    /// count in every pass. The file's optimizer is not read, and may be any.
    ///
    /// # Errors
    /// It was not compiled, or with a loss that is not known here. Then name one yourself: see [`Compiled::measuring`].
    pub fn measured(&self) -> Result<Compiled> {
        self.measured_with(false)
    }

    /// As [`KerasModel::measured`], for samples that bring weights where `weights` says so: see [`KerasModel::compiled_with`].
    pub fn measured_with(&self, weights: bool) -> Result<Compiled> {
        let config = self.compile_config("name a loss")?;
        let (mut loss, metrics) = self.compiled_loss(config)?;
        loss.is_weighted = weights;
        let mut compiled = Compiled::measuring(self, loss);
        compiled.take(metrics, weights);
        Ok(compiled)
    }

    /// For each output, whether its labels are a sequence of another length than the output's, as CTC takes them.
    ///
    /// # Errors
    /// As of [`KerasModel::measured`].
    pub fn labels_are_spelled(&self) -> Result<Vec<bool>> {
        let (loss, _) = self.compiled_loss(self.compile_config("name a loss")?)?;
        Ok(loss.outputs.iter().map(|loss| loss.as_ref().is_some_and(OutputLoss::takes_spelled)).collect())
    }

    /// For each output, whether its labels are numbers of classes, as the loss that the model was compiled with takes them.
    ///
    /// # Errors
    /// As of [`KerasModel::measured`].
    pub fn labels_are_classes(&self) -> Result<Vec<bool>> {
        let (loss, _) = self.compiled_loss(self.compile_config("name a loss")?)?;
        Ok(loss.outputs.iter().map(|loss| loss.as_ref().is_some_and(OutputLoss::takes_classes)).collect())
    }

    /// Whether the file says how the model is to be trained.
    pub fn is_compiled(&self) -> bool {
        let config = self.file.compile_config();
        !config.is_null() && !config.as_object().is_some_and(Map::is_empty)
    }

    fn compile_config(&self, advice: &str) -> Result<&Value> {
        if !self.is_compiled() {
            return Err(Error::config(&self.name, format!("the model was not compiled; {advice}")));
        }
        Ok(self.file.compile_config())
    }

    /// The loss, and the metrics, which may be of outputs that have no loss.
    fn compiled_loss<'a>(&self, config: &'a Value) -> Result<(KerasLoss, Metrics<'a>)> {
        let empty = Map::new();
        let place = "what the model was compiled with";
        let settings = Settings::new(place, "model", config.as_object().unwrap_or(&empty));
        let of = |key: &str| {
            settings.get(key);
            config.get(key).unwrap_or(&Value::Null)
        };
        let mut loss = KerasLoss::read(of("loss"), of("loss_weights"), self.output_names())?;
        let metrics = metrics::lists(of("metrics"), of("weighted_metrics"), self.output_names());
        loss.measured = metrics.by_output.iter().map(|own| !own.is_empty()).collect();
        settings.finish(&IDLE)?;
        Ok((loss, metrics))
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
        (
            model,
            Arc::new(Penalized {
                loss,
                n,
                is_masked: !self.masked.is_empty(),
                is_held: !self.constraints().is_empty(),
            }),
        )
    }
}

/// A loss over the outputs, and the regularizers' sum after them.
struct Penalized<L> {
    loss: L,
    n: usize,
    /// Whether an output carries a mask, of which a loss of one's own knows nothing.
    is_masked: bool,
    /// Whether weights have constraints.
    is_held: bool,
}

impl<L: Loss> Loss for Penalized<L> {
    fn loss(
        &self,
        outputs: &[plimsoll_run::Tensor],
        labels: &[plimsoll_run::Tensor],
    ) -> plimsoll_run::Result<plimsoll_run::Tensor> {
        if self.is_held {
            return Err(crate::error::refuse(
                "has constraints on weights, which an optimizer of one's own does not keep; leave them out of the model",
            ));
        }
        if self.is_masked {
            return Err(crate::error::refuse(
                "has a mask that reaches the model's output, where Keras masks the loss; a loss of one's own does not read it",
            ));
        }
        let (own, penalty) = outputs.split_at(self.n.min(outputs.len()));
        let loss = self.loss.loss(own, labels)?;
        match penalty.first() {
            Some(penalty) => crate::layer::add_wide(&loss, penalty),
            None => Ok(loss),
        }
    }
}

/// An optimizer after whose updates the model's constraints hold.
fn held(model: &KerasModel, optimizer: Arc<dyn Optimizer>) -> Arc<dyn Optimizer> {
    let constraints = model.constraints();
    if constraints.is_empty() {
        return optimizer;
    }
    Arc::new(Constrained { optimizer, constraints: Arc::new(constraints) })
}

/// The optimizer of a compile configuration; legacy files have it under another key.
pub(crate) fn optimizer_config(config: &Value) -> &Value {
    config.get("optimizer").or_else(|| config.get("optimizer_config")).unwrap_or(&Value::Null)
}

impl Compiled {
    /// A model with a loss and an optimizer; no metrics but the losses of single outputs, where several have one.
    pub fn new(model: &KerasModel, mut loss: KerasLoss, optimizer: impl Optimizer + 'static) -> Compiled {
        let mut model = model.clone();
        for (i, removable) in model.removable().into_iter().enumerate() {
            if let Some(own) = loss.outputs.get_mut(i).and_then(Option::as_mut)
                && removable
                && own.takes_off() == model.ending(i)
            {
                *own = own.clone().on_logits();
                model.logits[i] = true;
            }
        }
        model.gives_penalty = model.has_penalty();
        model.gives_masks = !model.masked.is_empty();
        loss.masked = model.masked.clone();
        let precision = model.precision();
        let parts: Vec<usize> = loss.parts_of().collect();
        let part = |(part, &output): (usize, &usize)| {
            let name = model.output_names().get(output).map_or("", String::as_str);
            Measure { name: format!("{name}_loss"), count: Count::Part(part), output, ..metrics::blank() }
        };
        // Of one loss alone, the whole says everything.
        let metrics = if parts.len() > 1 { parts.iter().enumerate().map(part).collect() } else { Vec::new() };
        let optimizer = held(&model, Arc::new(optimizer));
        Compiled {
            labelled: loss.labelled(),
            model,
            loss: Arc::new(loss),
            optimizer,
            schedule: Schedule::constant(),
            clip: None,
            metrics,
            other_metrics: Vec::new(),
            notices: Vec::new(),
            precision,
            own: None,
        }
    }

    /// A model with a loss to measure it by; it is not to be trained.
    pub fn measuring(model: &KerasModel, loss: KerasLoss) -> Compiled {
        let rule = Rule::Sgd { momentum: 0.0, nesterov: false };
        let idle = KerasOptimizer {
            rule,
            lr: 0.0,
            weight_decay: None,
            clip_norm: None,
            clip_value: None,
            average: None,
            accumulate: None,
            growth: None,
            parts: Vec::new(),
        };
        Compiled::new(model, loss, idle)
    }

    /// The learning rate of a step, counted from 0: by the schedule, where there is one.
    ///
    /// ```
    /// use plimsoll_graph::{DType, TensorOps, Type};
    /// use plimsoll_keras::KerasModel;
    /// use plimsoll_run::Tensor;
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mlp.keras");
    /// let compiled = KerasModel::open(path)?.compiled()?;
    /// let labels = Tensor::zeros(Type::new(DType::I64, [4]))?;
    /// let x = Tensor::zeros(compiled.model.inputs(4)?[0].clone())?;
    /// let mut training = compiled.training(4, vec![labels.ty().clone()])?;
    /// for step in 0..10 {
    ///     training.set_rate(compiled.rate(step))?;
    ///     training.step(&[&x], &labels)?;
    /// }
    /// # Ok::<(), plimsoll_keras::Error>(())
    /// ```
    pub fn rate(&self, step: u64) -> f64 {
        self.schedule.rate(self.optimizer.rate(), step)
    }

    /// Trains with the file's optimizer at another rate, which stays as it is. Whether the file had an optimizer to change, and if
    /// so, whether it had a schedule, which is no longer followed.
    pub fn set_rate(&mut self, rate: f64) -> Option<bool> {
        // Of several, none is the one that is meant.
        let own = self.own.clone().filter(|own| own.parts.is_empty())?;
        let own = KerasOptimizer { lr: rate, ..own };
        let was_scheduled = self.schedule.shape != ScheduleShape::Constant;
        self.optimizer = held(&self.model, Arc::new(own.clone()));
        self.own = Some(own);
        self.schedule = Schedule::constant();
        Some(was_scheduled)
    }

    /// Takes the optimizer, schedule and bounds of another.
    pub fn take_optimizer(&mut self, other: Compiled) {
        (self.optimizer, self.own, self.schedule, self.clip) =
            (other.optimizer, other.own, other.schedule, other.clip);
        self.notices.extend(other.notices);
    }

    /// Counts a metric of an output under a name, as Keras sees it: where the output is without its last softmax or sigmoid,
    /// through that. Outputs are labelled where they have a loss or a metric.
    ///
    /// # Errors
    /// There is no such output, or it has no labels.
    pub fn measure(&mut self, metric: plimsoll_nn::Metric, output: usize, name: &str) -> Result<()> {
        let Some(label) = self.labelled.iter().position(|own| *own == output) else {
            let names: Vec<&str> = self.labelled_names().collect();
            let why = format!("output {output} has no labels for {name}; those are for {}", names.join(", "));
            return Err(Error::config("the metrics", why));
        };
        let (metric, view) =
            metrics::seen(metric, self.model.view(output), self.model.gives_probabilities(output));
        self.metrics.push(Measure { name: name.into(), label, output, view, ..metric.into() });
        Ok(())
    }

    /// The names of the outputs that have labels, in the order in which those are given.
    pub fn labelled_names(&self) -> impl Iterator<Item = &str> {
        let names = self.model.output_names();
        self.labelled.iter().filter_map(|&i| names.get(i)).map(String::as_str)
    }

    /// A recipe for batches of these types. Labels are those of `labelled` outputs, or one for each output.
    pub fn recipe(&self, inputs: Vec<Type>, labels: Vec<Type>) -> Recipe {
        let mut metrics = self.metrics.clone();
        if labels.len() == self.model.n_outputs() {
            metrics.iter_mut().for_each(|measure| measure.label = measure.output);
        }
        Recipe {
            loss: self.loss.clone(),
            optimizer: self.optimizer.clone(),
            request: MemoryRequest { precision: self.precision, ..MemoryRequest::default() },
            clip: self.clip,
            metrics,
            inputs,
            labels,
            reserved: plimsoll_device::Bytes::ZERO,
            host_beside: plimsoll_device::Bytes::ZERO,
            ahead: false,
            lengths: 1,
            accumulate: 1,
            scales_loss: false,
            rank: plimsoll_graph::ops::Rank::ONLY,
            parallel: plimsoll_nn::Parallel::Data,
            sync_batch_norm: false,
            parts: plimsoll_nn::Parts::default(),
            stages: None,
        }
    }

    /// The training, from the file's weights and the optimizer's state in it, for batches of so many samples. It has the
    /// rate of the first step; see [`Compiled::rate`] for the others.
    pub fn training(&self, batch: usize, labels: Vec<Type>) -> Result<Training> {
        let mut training = self.model.training(self.recipe(self.model.inputs(batch)?, labels))?;
        training.set_rate(self.rate(0))?;
        Ok(training)
    }

    /// Takes up the file's metrics.
    fn take(&mut self, metrics: Metrics<'_>, weights: bool) {
        let (measures, others) = metrics.read(&self.model, &self.labelled, weights);
        self.metrics.extend(measures);
        self.other_metrics = others;
    }
}
