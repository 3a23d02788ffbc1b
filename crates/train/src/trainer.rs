//! What a user asks for: a model, a loss, an optimizer, a memory limit, data.
//!
//! A trainer is one object to its user and several subjects to its reader, one file each: what can be said of it (`options`), how its
//! memory is planned (`planning`, `host`, `batch_sizes`, `ways_out`), what several of them decide together (`ranks`) and put together (`gathered_state`), weights and checkpoints (`weights`), a run (`session`), using the model (`predict`), looking
//! into it (`parity`, `rate_finder`), what is kept beside its steps (`best`, `average`, `pruning`).

mod batch_sizes;
mod host;
mod options;
mod pipelines;
mod planning;
mod ways_out;
mod weights;

pub use batch_sizes::{BatchSizes, SizedPlan};
pub(crate) use planning::{Values, check_rate};
pub use ways_out::{MeasuredTraining, Way};

use std::sync::Arc;

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_nn::{Clip, Loss, Measure, Model, Optimizer, Parallel, Param, Schedule, Training};
use plimsoll_run::{Device, HostAccount, MemoryRequest, Tensor, record};

use crate::best::BestCheckpoint;
use crate::callback::Callback;
use crate::checkpoint::{Checkpoints, Progress};
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::pruning::PruningOf;
use crate::staging::Staging;
use crate::stop::{Ended, StopFlag};
use crate::terms::Terms;
use pipelines::Share;

/// A number of passes over the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs(pub u64);

/// Trains a model inside a memory limit.
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
/// let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).memory_limit("200MiB")?;
/// let history = trainer.fit(&data.shuffle(100, 1).batch(20), Epochs(30))?;
/// assert!(history.last().map(|epoch| epoch.loss) < history.first().map(|epoch| epoch.loss));
/// # Ok::<(), plimsoll_train::Error>(())
/// ```
///
/// Its methods can be called in any order. To fine-tune, load the weights of another training and fit: they are kept, and
/// the optimizer starts anew.
///
/// ```
/// # use plimsoll_data::{Column, Dataset};
/// # use plimsoll_nn::{Adam, Sequential, Sgd, softmax_cross_entropy};
/// # use plimsoll_train::{Epochs, Trainer};
/// # let file = std::env::temp_dir().join(format!("plimsoll-fine-tune-{}.safetensors", std::process::id()));
/// # let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
/// # let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
/// # let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(20);
/// let model = || Sequential::new([2]).dense(8).relu().dense(2);
/// let mut first = Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-2));
/// first.fit(&data, Epochs(30))?;
/// first.save(&file)?;
///
/// let mut second = Trainer::new(model(), softmax_cross_entropy, Sgd::new(1e-3));
/// second.load(&file, &data)?;
/// assert_eq!(second.evaluate(&data)?.loss, first.evaluate(&data)?.loss);
/// let history = second.fit(&data, Epochs(3))?;
/// assert_eq!(history.len(), 3);
/// # std::fs::remove_file(&file).ok();
/// # Ok::<(), plimsoll_train::Error>(())
/// ```
pub struct Trainer {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) loss: Arc<dyn Loss>,
    pub(crate) optimizer: Arc<dyn Optimizer>,
    pub(crate) request: MemoryRequest,
    pub(crate) clip: Option<Clip>,
    /// What ranks have of each other's.
    pub(crate) parallel: Parallel,
    pub(crate) sync_batch_norm: bool,
    pub(crate) metrics: Vec<Measure>,
    pub(crate) schedule: Schedule,
    pub(crate) seed: u64,
    pub(crate) validation: Option<Dataset>,
    pub(crate) callbacks: Vec<Box<dyn Callback>>,
    pub(crate) checkpoints: Option<Checkpoints>,
    pub(crate) best: Option<BestCheckpoint>,
    pub(crate) fault: Option<Fault>,
    /// Whether the device has failed for good.
    pub(crate) is_device_lost: bool,
    pub(crate) training: Option<Training>,
    pub(crate) progress: Progress,
    pub(crate) staging: Staging,
    /// How many fields of a sample are inputs, and how many after them are labels.
    pub(crate) n_inputs: usize,
    pub(crate) n_labels: usize,
    /// What the run at hand, or the last one, stands on.
    pub(crate) terms: Option<Terms>,
    pub(crate) stop: StopFlag,
    pub(crate) ended: Option<Ended>,
    /// How the memory limit is shared with pipelines, since it was planned.
    pub(crate) share: Share,
    /// What was planned of the host's memory beside a device's own, since it was.
    pub(crate) host: Option<HostAccount>,
    /// What the process takes for other things.
    pub(crate) reserved: Bytes,
    /// How many steps of the next run are to be measured.
    pub(crate) profile: Option<usize>,
    /// Whether weights are read back from a file while the step's memory is taken.
    pub(crate) reads_back: bool,
    /// Whether the optimizer keeps averages of the weights.
    pub(crate) is_averaged: bool,
    /// Which weights are held at zero, and when.
    pub(crate) pruning: Option<Arc<PruningOf>>,
}

impl Trainer {
    /// A trainer without a memory limit.
    pub fn new(
        model: impl Model + 'static,
        loss: impl Loss + 'static,
        optimizer: impl Optimizer + 'static,
    ) -> Trainer {
        Trainer {
            model: Arc::new(model),
            loss: Arc::new(loss),
            optimizer: Arc::new(optimizer),
            request: MemoryRequest::default(),
            clip: None,
            parallel: Parallel::Data,
            sync_batch_norm: false,
            metrics: Vec::new(),
            schedule: Schedule::constant(),
            seed: 42,
            validation: None,
            callbacks: Vec::new(),
            checkpoints: None,
            best: None,
            fault: None,
            is_device_lost: false,
            training: None,
            progress: Progress::start(),
            staging: Staging::default(),
            n_inputs: 1,
            n_labels: 1,
            terms: None,
            stop: StopFlag::new(),
            ended: None,
            share: Share::default(),
            host: None,
            reserved: Bytes::ZERO,
            profile: None,
            reads_back: false,
            is_averaged: false,
            pruning: None,
        }
    }

    /// Data on which the model is evaluated after every epoch from now on, or none. See [`Trainer::validation`].
    pub fn set_validation(&mut self, data: Option<Dataset>) {
        self.validation = data;
    }

    /// Sets another memory limit between two calls of [`Trainer::fit`], or from a callback's owner: the step is planned anew and
    /// goes on, with the same bits where the plan does not split the batch.
    ///
    /// # Errors
    /// The limit cannot be kept; training can go on under the old one.
    pub fn set_memory_limit(&mut self, limit: Option<Bytes>) -> Result<()> {
        if let Some(training) = &mut self.training {
            training.set_memory_limit(limit)?;
        }
        self.request.limit = limit;
        Ok(())
    }

    /// What is asked of memory.
    pub fn request(&self) -> &MemoryRequest {
        &self.request
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

    /// What was measured of the steps that [`Trainer::profile`] asked for, with the record of the step that they are runs of; none
    /// where that was not asked for or no step was run. It takes memory of its own.
    pub fn take_profile(&mut self) -> Option<(record::Step, record::Profile)> {
        self.training.as_mut()?.take_profile()
    }

    /// The parameters with their values, once data was seen.
    pub fn parameters(&self) -> impl Iterator<Item = (&Param, &Tensor)> {
        self.training.iter().flat_map(|training| training.params().iter().zip(training.values()))
    }

    /// What asks a run of this trainer to end: from another thread, say.
    pub fn stop_handle(&self) -> StopFlag {
        self.stop.clone()
    }

    /// How the last run of [`Trainer::fit`] ended; none before there was one.
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// The device that it runs on, from its first use on: one that is named, or what [`Device::best`] says then.
    pub(crate) fn pinned(&mut self) -> Result<Device> {
        let device = self.on()?;
        let device = match self.fault {
            Some(Fault::Alloc(n)) if device.fails() != Some(n) => match self.training {
                None => device.failing(n),
                Some(_) => {
                    let why = format!("alloc:{n} must be asked for before the model has seen data");
                    return Err(Error::Mismatch(why));
                }
            },
            _ => device,
        };
        self.request.device = Some(device.clone());
        Ok(device)
    }

    pub(crate) fn on(&self) -> Result<Device> {
        match &self.request.device {
            Some(device) => Ok(device.clone()),
            None => Ok(Device::best()?),
        }
    }

    pub(crate) fn tell(&mut self, notice: &crate::Notice) -> Result<()> {
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_notice(notice))
    }
}
