//! What a user asks for: a model, a loss, an optimizer, a line, data.

use std::borrow::Borrow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_graph::Type;
use plimsoll_nn::{Clip, Loss, Measure, Model, Net, Optimizer, Param, Precision, Recipe, Schedule, Training};
use plimsoll_run::{Device, Exactness, Frontier, StepInfo, Tensor};

use crate::callback::Callback;
use crate::checkpoint::{Checkpoint, Checkpoints, Progress, load_tensors, save_tensors};
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::staging::Staging;

/// A number of passes over the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs(pub u64);

/// Trains a model inside a line.
///
/// ```
/// use plimsoll_data::{Column, Dataset};
/// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
/// use plimsoll_train::{Epochs, Trainer};
/// // Which of two numbers is larger?
/// let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
/// let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
/// let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?;
/// let model = Sequential::new([2]).dense(8).relu().dense(2);
/// let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2));
/// let history = trainer.fit(&data.shuffle(100, 1).batch(20), Epochs(30))?;
/// assert!(history.last().map(|epoch| epoch.loss) < history.first().map(|epoch| epoch.loss));
/// # Ok::<(), plimsoll_train::Error>(())
/// ```
pub struct Trainer {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) loss: Arc<dyn Loss>,
    pub(crate) optimizer: Arc<dyn Optimizer>,
    pub(crate) device: Option<Device>,
    pub(crate) memory: Option<Bytes>,
    pub(crate) host_memory: Option<Bytes>,
    pub(crate) precision: Precision,
    pub(crate) exactness: Exactness,
    pub(crate) micro_batch: Option<usize>,
    pub(crate) clip: Option<Clip>,
    pub(crate) metrics: Vec<Measure>,
    pub(crate) schedule: Schedule,
    pub(crate) seed: u64,
    pub(crate) validation: Option<Dataset>,
    pub(crate) callbacks: Vec<Box<dyn Callback>>,
    pub(crate) checkpoints: Option<Checkpoints>,
    pub(crate) fault: Option<Fault>,
    /// Whether the device has failed for good.
    pub(crate) is_device_lost: bool,
    pub(crate) training: Option<Training>,
    pub(crate) progress: Progress,
    pub(crate) staging: Staging,
    /// How many fields of a sample are inputs, and how many after them are labels.
    pub(crate) n_inputs: usize,
    pub(crate) n_labels: usize,
    pub(crate) resumed: Option<Checkpoint>,
    /// Whether pipelines must do with the least they can, because the line is tight.
    pub(crate) lean_pipelines: bool,
    /// What the process takes for other things.
    pub(crate) beside: Bytes,
    /// What of the line is not for pipelines: weights of a model that is only used, and the program.
    pub(crate) taken: Bytes,
}

impl Trainer {
    /// A trainer without a line.
    pub fn new(
        model: impl Model + 'static,
        loss: impl Loss + 'static,
        optimizer: impl Optimizer + 'static,
    ) -> Trainer {
        Trainer {
            model: Arc::new(model),
            loss: Arc::new(loss),
            optimizer: Arc::new(optimizer),
            device: None,
            memory: None,
            host_memory: None,
            precision: Precision::F32,
            exactness: Exactness::Reassociated,
            micro_batch: None,
            clip: None,
            metrics: Vec::new(),
            schedule: Schedule::constant(),
            seed: 42,
            validation: None,
            callbacks: Vec::new(),
            checkpoints: None,
            fault: None,
            is_device_lost: false,
            training: None,
            progress: Progress { rate_factor: 1.0, ..Progress::default() },
            staging: Staging::default(),
            n_inputs: 1,
            n_labels: 1,
            resumed: None,
            lean_pipelines: false,
            beside: Bytes::ZERO,
            taken: Bytes::ZERO,
        }
    }

    /// Where it runs; without a word, on the best device of the machine.
    #[must_use]
    pub fn device(mut self, device: Device) -> Trainer {
        self.device = Some(device);
        self
    }

    /// The line: the most that the process may take, as the system counts it. `200MiB`, `1.5GiB`, or plain bytes.
    pub fn memory(mut self, line: &str) -> Result<Trainer> {
        self.memory = Some(line.parse()?);
        Ok(self)
    }

    /// The line in bytes, or none.
    #[must_use]
    pub fn line(mut self, line: Option<Bytes>) -> Trainer {
        self.memory = line;
        self
    }

    /// What the input pipeline may take of it. Without a word it takes an eighth of the line, or as little as it can.
    ///
    /// On a device with memory of its own the line is of that, and this is of the host's: the pipelines take an eighth of it,
    /// at most 64 MiB, and activations may be copied to the rest and fetched back.
    #[must_use]
    pub fn host_memory(mut self, bytes: Option<Bytes>) -> Trainer {
        self.host_memory = bytes;
        self
    }

    /// What the process will take beside the training and its pipelines, so that the line holds for all of it: a callback
    /// that draws, say.
    #[must_use]
    pub fn beside(mut self, bytes: Bytes) -> Trainer {
        self.beside += bytes;
        self
    }

    /// In which element type the model computes.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Trainer {
        self.precision = precision;
        self
    }

    /// How far plans may depart from the bits of an unlimited run. Without a word, batches may be split where that changes
    /// nothing but the order of sums.
    #[must_use]
    pub fn exactness(mut self, exactness: Exactness) -> Trainer {
        self.exactness = exactness;
        self
    }

    /// Samples in a micro-batch, where that is not for the planner to choose.
    #[must_use]
    pub fn micro_batch(mut self, samples: Option<usize>) -> Trainer {
        self.micro_batch = samples;
        self
    }

    /// A bound on gradients.
    #[must_use]
    pub fn clip(mut self, clip: Option<Clip>) -> Trainer {
        self.clip = clip;
        self
    }

    /// What is counted beside the loss: metrics of the first output, or measures of any.
    #[must_use]
    pub fn metrics<M: Into<Measure>>(mut self, metrics: impl IntoIterator<Item = M>) -> Trainer {
        self.metrics = metrics.into_iter().map(Into::into).collect();
        self
    }

    /// How many of the last fields of a sample are labels; without a word one. All others are inputs.
    #[must_use]
    pub fn labels(mut self, n: usize) -> Trainer {
        self.n_labels = n;
        self
    }

    /// How the learning rate changes from step to step.
    #[must_use]
    pub fn schedule(mut self, schedule: Schedule) -> Trainer {
        self.schedule = schedule;
        self
    }

    /// Where all randomness starts.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Trainer {
        self.seed = seed;
        self
    }

    /// Data on which the model is evaluated after every epoch.
    #[must_use]
    pub fn validation(mut self, data: Dataset) -> Trainer {
        self.validation = Some(data);
        self
    }

    /// Someone who follows the run. They are called in the order in which they were added.
    #[must_use]
    pub fn callback(mut self, callback: impl Callback + 'static) -> Trainer {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Where checkpoints go.
    #[must_use]
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Trainer {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// A fault to rehearse. [`Fault::Alloc`] is the device's part: see `plimsoll_device::Failing`.
    #[must_use]
    pub fn fault(mut self, fault: Option<Fault>) -> Trainer {
        self.fault = fault;
        self
    }

    /// What a step on such data will take, before it starts; or a refusal that says the least and ways out.
    pub fn plan(&mut self, data: impl Borrow<Dataset>) -> Result<StepInfo> {
        let device = self.on()?;
        device.scope(|| self.ready(data.borrow()))?;
        let none = || Error::Mismatch("there is no model to plan for".into());
        self.info(data.borrow())?.ok_or_else(none)
    }

    /// What memory buys in a step on such data: the plans that no other beats in both memory and time, of `lines` lines, as
    /// many as are found within `limit`. Nothing is run and no memory is taken for a step.
    pub fn frontier(
        &mut self,
        data: impl Borrow<Dataset>,
        lines: usize,
        limit: Option<Duration>,
    ) -> Result<Frontier> {
        let device = self.on()?;
        device.scope(|| {
            let mut recipe = self.recipe(data.borrow(), true)?;
            // With pipelines that take the least, as for the least that a plan names.
            recipe.beside = self.beside + self.least_pipelines(data.borrow())?;
            Ok(Training::frontier(self.model.clone(), recipe, lines, limit)?)
        })
    }

    /// Sets another line between two calls of [`Trainer::fit`], or from a callback's owner: the step is planned anew and
    /// goes on, with the same bits where the plan does not split the batch.
    ///
    /// # Errors
    /// The line cannot be kept; training can go on under the old one.
    pub fn set_memory(&mut self, line: Option<Bytes>) -> Result<()> {
        if let Some(training) = &mut self.training {
            training.set_memory(line)?;
        }
        self.memory = line;
        Ok(())
    }

    /// The line in force, in bytes.
    pub fn line_bytes(&self) -> Option<u64> {
        self.memory.map(Bytes::get)
    }

    /// How far the training has come.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The compiled training, once data was seen.
    pub fn training(&self) -> Option<&Training> {
        self.training.as_ref()
    }

    /// The compiled training to change, once data was seen: to set weights that come from elsewhere, say.
    pub fn training_mut(&mut self) -> Option<&mut Training> {
        self.training.as_mut()
    }

    /// The parameters with their values, once data was seen.
    pub fn parameters(&self) -> impl Iterator<Item = (&Param, &Tensor)> {
        self.training.iter().flat_map(|training| training.params().iter().zip(training.values()))
    }

    /// Goes on from the newest checkpoint of a folder when [`Trainer::fit`] is called next. `false` if there is none.
    pub fn resume(&mut self, folder: &Path, data: &Dataset) -> Result<bool> {
        let Some(path) = Checkpoint::newest(folder)? else { return Ok(false) };
        let device = self.on()?;
        device.scope(|| self.ready(data))?;
        let Some(training) = &mut self.training else { return Ok(false) };
        let checkpoint = Checkpoint::restore(&path, training)?;
        self.progress = checkpoint.progress.clone();
        for (callback, state) in self.callbacks.iter_mut().zip(&checkpoint.callbacks) {
            if let Some(state) = state {
                callback.restore(state);
            }
        }
        let step = self.progress.step;
        self.tell(&crate::Notice::Resumed { step, path })?;
        self.resumed = Some(checkpoint);
        Ok(true)
    }

    /// Writes the parameters as safetensors, whole or not at all.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let Some(training) = &self.training else {
            return Err(Error::Mismatch("there is nothing to save before data was seen".into()));
        };
        let names = training.params().iter().map(|p| p.name.as_str());
        plimsoll_formats::durable::write_file(path, |out| {
            save_tensors(out, names.zip(training.values()), path)
        })
    }

    /// Reads parameters that [`Trainer::save`] or a checkpoint wrote, for data like this.
    pub fn load(&mut self, path: impl AsRef<Path>, data: &Dataset) -> Result<()> {
        let device = self.on()?;
        device.scope(|| self.usable(data))?;
        match &mut self.training {
            Some(training) => load_tensors(path.as_ref(), training, false),
            None => Ok(()),
        }
    }

    /// Gets ready to evaluate or to predict on data like this, without a training step. Parameters are to be set then: by
    /// [`Trainer::load`], or through [`Trainer::training_mut`].
    pub fn prepare(&mut self, data: &Dataset) -> Result<()> {
        let device = self.on()?;
        device.scope(|| self.usable(data)).map(|_| ())
    }

    pub(crate) fn on(&self) -> Result<Device> {
        match &self.device {
            Some(device) => Ok(device.clone()),
            None => Ok(Device::best()?),
        }
    }

    pub(crate) fn tell(&mut self, notice: &crate::Notice) -> Result<()> {
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_notice(notice))
    }

    /// The data with the memory that its pipeline may take. The pipeline for validation runs while that for training
    /// waits, so with both, each has half.
    pub(crate) fn bounded(&self, data: &Dataset) -> Result<Dataset> {
        let share = if self.validation.is_some() { 2 } else { 1 };
        let wanted = match (self.host_memory, self.memory) {
            (Some(bytes), _) if self.on()?.copies_to_host() => Bytes((bytes.get() / 8).min(64 << 20) / share),
            (Some(bytes), _) => return Ok(data.clone().memory(Bytes(bytes.get() / share))),
            (None, None) => return Ok(data.clone()),
            (None, Some(_)) if self.lean_pipelines => Bytes::ZERO,
            (None, Some(line)) => Bytes((line.saturating_sub(self.taken).get() / 8).min(64 << 20) / share),
        };
        Ok(data.clone().memory(wanted.max(least_pipeline(data)?)))
    }

    /// What was planned. The least is that with pipelines that take the least.
    pub(crate) fn info(&self, data: &Dataset) -> Result<Option<StepInfo>> {
        let Some(training) = &self.training else { return Ok(None) };
        let mut info = training.info().clone();
        // Of a device's own memory pipelines take nothing.
        if !self.on()?.has_own_memory() {
            let more = self.pipelines(data)?.saturating_sub(self.least_pipelines(data)?);
            info.floor = info.floor.saturating_sub(more);
        }
        Ok(Some(info))
    }

    /// The least that all pipelines can do with together. Where the user has said what they take, that.
    fn least_pipelines(&self, data: &Dataset) -> Result<Bytes> {
        if self.host_memory.is_some() {
            return self.pipelines(data);
        }
        let validation = self.validation.as_ref().map(least_pipeline).transpose()?;
        Ok(least_pipeline(data)? + validation.unwrap_or_default())
    }

    /// What all pipelines take together at most, with a line or without: what is announced counts them.
    fn pipelines(&self, data: &Dataset) -> Result<Bytes> {
        let mut bytes = self.bounded(data)?.declared_bytes()?;
        if let Some(validation) = &self.validation {
            bytes += self.bounded(validation)?.declared_bytes()?;
        }
        Ok(bytes)
    }

    /// What of the host's memory is left for copies of activations, where the device has a use for it.
    fn for_copies(&self, data: &Dataset) -> Result<Option<Bytes>> {
        match self.host_memory {
            Some(bytes) if self.on()?.copies_to_host() => {
                Ok(Some(bytes.saturating_sub(self.pipelines(data)?)))
            }
            _ => Ok(None),
        }
    }

    /// The recipe for data like this.
    pub(crate) fn recipe(&mut self, data: &Dataset, labelled: bool) -> Result<Recipe> {
        let Some(batch) = data.batch_size() else {
            return Err(Error::Mismatch("the data makes no batches; call .batch(n) on it".into()));
        };
        let batch = data.samples()?.map_or(batch, |n| batch.min(n.max(1) as usize));
        let spec = data.spec()?;
        if labelled && (spec.len() < 2 || spec.len() <= self.n_labels) {
            let (n, labels) = (spec.len(), self.n_labels);
            let why =
                format!("a sample has {n} fields, of which {labels} are labels; there must be inputs too");
            return Err(Error::Mismatch(why));
        }
        let ty = |field: &plimsoll_data::FieldSpec| {
            let shape: Vec<usize> = std::iter::once(batch).chain(field.shape.iter().copied()).collect();
            Type::new(field.dtype, &shape[..])
        };
        // What has fewer fields has no labels.
        let n_labels = if spec.len() > self.n_labels { self.n_labels } else { 0 };
        let (inputs, labels) = spec.split_at(spec.len() - n_labels);
        self.n_inputs = inputs.len();
        Ok(Recipe {
            loss: self.loss.clone(),
            optimizer: self.optimizer.clone(),
            precision: self.precision,
            clip: self.clip,
            metrics: self.metrics.clone(),
            inputs: inputs.iter().map(ty).collect(),
            labels: labels.iter().map(ty).collect(),
            memory: self.memory,
            host_memory: self.for_copies(data)?,
            exactness: self.exactness,
            micro_batch: self.micro_batch,
            beside: Bytes::ZERO,
            // A device with memory of its own is given the next batch while it computes.
            ahead: labelled && self.on()?.has_own_memory(),
        })
    }

    /// Compiles the training for data like this, if that has not been done. Returns the data with the memory its
    /// pipeline has.
    pub(crate) fn ready(&mut self, data: &Dataset) -> Result<Dataset> {
        if self.training.is_none() {
            let mut recipe = self.recipe(data, true)?;
            recipe.beside = self.beside + self.pipelines(data)?;
            let training = match Training::new(self.model.clone(), recipe.clone(), self.seed) {
                // The pipelines' wish may be what is too much: they make do with the least.
                Err(plimsoll_run::Error::Infeasible { .. }) if self.host_memory.is_none() => {
                    self.lean_pipelines = true;
                    recipe.beside = self.beside + self.pipelines(data)?;
                    Training::new(self.model.clone(), recipe, self.seed)?
                }
                made => made?,
            };
            self.training = Some(training);
        }
        self.bounded(data)
    }

    /// As [`Trainer::ready`], for a model that is only to be used.
    pub(crate) fn usable(&mut self, data: &Dataset) -> Result<Dataset> {
        if self.training.is_none() {
            let mut recipe = self.recipe(data, false)?;
            let params = Net::discover_in(recipe.precision, &recipe.inputs, &self.model)?;
            let weights = params.iter().map(|param| param.ty.bytes() as u64).sum();
            self.taken = self.beside + Bytes(weights) + plimsoll_run::PROGRAM;
            recipe.beside = self.beside + self.pipelines(data)?;
            self.training = Some(Training::idle(self.model.clone(), recipe, self.seed)?);
        }
        self.bounded(data)
    }
}

/// The least that a pipeline over this data can do with.
fn least_pipeline(data: &Dataset) -> Result<Bytes> {
    match data.clone().memory(Bytes(1)).declared_bytes() {
        Ok(bytes) => Ok(bytes),
        Err(plimsoll_data::Error::Budget { least, .. }) => Ok(least),
        Err(error) => Err(error.into()),
    }
}
