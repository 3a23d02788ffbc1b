//! What can be said of a training before it begins.

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_nn::{Clip, Kept, Measure, Parallel, Precision, Schedule};
use plimsoll_run::{Device, Exactness, MemoryRequest, profile_room};

use super::Trainer;
use crate::best::BestCheckpoint;
use crate::callback::Callback;
use crate::checkpoint::Checkpoints;
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::stop::StopFlag;

impl Trainer {
    /// Where it runs. Without a word, on the device of the scope in which it is first used, or on the best of the machine: see
    /// [`Device::best`].
    #[must_use]
    pub fn device(mut self, device: Device) -> Trainer {
        self.request.device = Some(device);
        self
    }

    /// The memory limit: the most that the process may take, as the system counts it; on a card, of the card's memory. `200MiB`,
    /// `1.5GiB`, or plain bytes.
    pub fn memory_limit(mut self, limit: &str) -> Result<Trainer> {
        self.request.limit = Some(limit.parse()?);
        Ok(self)
    }

    /// The memory limit in bytes, or none.
    #[must_use]
    pub fn memory_limit_bytes(mut self, limit: Option<Bytes>) -> Trainer {
        self.request.limit = limit;
        self
    }

    /// Everything that is asked of memory at once: limits, exactness, micro-batches, precision, the device.
    #[must_use]
    pub fn memory_request(mut self, request: &MemoryRequest) -> Trainer {
        self.request = request.clone();
        self
    }

    /// What the input pipeline may take of it. Without a word it takes an eighth of the memory limit, or as little as it can.
    ///
    /// On a device with memory of its own the memory limit is of that, and this is the limit of the host's: the most that the process
    /// may take of it, everything counted. The program with the device's driver and libraries comes first, then a batch in staging, then
    /// the pipelines with an eighth of it (at most 64 MiB, or as little as they can where it is tight); activations and optimizer state
    /// may be kept in the rest. What cannot be kept is refused with the least that can. Without a word nothing is copied, and the limit
    /// is what the machine or its control group has: [`PlanFigures::host`](plimsoll_run::PlanFigures::host) has the account.
    #[must_use]
    pub fn host_limit(mut self, bytes: Option<Bytes>) -> Trainer {
        self.request.host_limit = bytes;
        self
    }

    /// What the process will take beside the training and its pipelines, so that the memory limit holds for all of it: a callback
    /// that draws, say.
    #[must_use]
    pub fn reserve(mut self, bytes: Bytes) -> Trainer {
        self.reserved += bytes;
        self
    }

    /// Measures so many steps of the next [`Trainer::fit`], after a few to warm up: the time of every instruction, bytes to and from the
    /// device, waiting. What it takes of the host's memory counts in the plan. [`Trainer::take_profile`] gives what was measured.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::{Epochs, Trainer};
    /// let x = Column::memory("x", vec![0.5f32; 6400], [64])?;
    /// let data = Dataset::columns([x, Column::memory("y", vec![0i64; 100], [])?])?.batch(10);
    /// let model = Sequential::new([64]).dense(256).relu().dense(2);
    /// let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).profile(5);
    /// trainer.fit(&data, Epochs(1))?;
    /// let (_, profile) = trainer.take_profile().unwrap();
    /// assert_eq!(profile.steps.len(), 5);
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    #[must_use]
    pub fn profile(mut self, steps: usize) -> Trainer {
        self.reserved += profile_room(steps);
        self.profile = Some(steps);
        self
    }

    /// Plans for room to read weights back from a file while it trains, for who will call [`Trainer::find_rate`] or
    /// [`Trainer::training_mut`] for that: the size of the largest parameter.
    #[must_use]
    pub fn reading_back(mut self) -> Trainer {
        self.reads_back = true;
        self
    }

    /// In which element type the model computes.
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Trainer {
        self.request.precision = precision;
        self
    }

    /// Keeps the optimizer's state as bytes with a scale for every 256 of them, a quarter of the memory of f32: see [`plimsoll_nn::EightBit`].
    /// Parameters of fewer than 4096 elements keep theirs in f32. Losses differ a little from those of a training in f32.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adagrad, Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::Trainer;
    /// # let x = Column::memory("x", vec![0.5f32; 6400], [64])?;
    /// # let data = Dataset::columns([x, Column::memory("y", vec![0i64; 100], [])?])?.batch(20);
    /// let model = || Sequential::new([64]).dense(2048).relu().dense(2);
    /// let adam = || Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-2));
    /// assert!(adam().eight_bit_state()?.least(&data)? < adam().least(&data)?);
    /// // Not every optimizer has such a form.
    /// let adagrad = Trainer::new(model(), softmax_cross_entropy, Adagrad::new(1e-2));
    /// assert!(adagrad.eight_bit_state().is_err_and(|why| why.to_string().contains("adagrad has no 8-bit state")));
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// The optimizer has no such form, or keeps no state.
    pub fn eight_bit_state(self) -> Result<Trainer> {
        self.state(Kept::EightBit)
    }

    /// Keeps the optimizer's state so: in bf16 ([`plimsoll_nn::Bf16State`], half the memory of f32), as bytes
    /// ([`Trainer::eight_bit_state`]), or as it is. Losses of what is narrower differ a little from those of a training in f32.
    ///
    /// ```
    /// use plimsoll_nn::{Adam, Kept, Sequential, Sgd, softmax_cross_entropy};
    /// use plimsoll_train::Trainer;
    /// let model = || Sequential::new([64]).dense(2);
    /// assert!(Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-2)).state(Kept::Bf16).is_ok());
    /// // What keeps no state has none in bf16.
    /// let sgd = Trainer::new(model(), softmax_cross_entropy, Sgd::new(1e-2));
    /// assert!(sgd.state(Kept::Bf16).is_err_and(|why| why.to_string().contains("sgd has no bf16 state")));
    /// ```
    ///
    /// # Errors
    /// The optimizer has no such form, or keeps no state.
    pub fn state(mut self, kept: Kept) -> Result<Trainer> {
        if kept == self.optimizer.kept() {
            return Ok(self);
        }
        let Some(optimizer) = self.optimizer.with_state(kept) else {
            let (name, state) = (self.optimizer.name(), kept.state());
            let why = format!("{name} has no {state}; adam, adamw, momentum, nesterov and lion have");
            return Err(Error::Mismatch(why));
        };
        self.optimizer = optimizer;
        Ok(self)
    }

    /// How far plans may depart from the bits of an unlimited run. Without a word, batches may be split where that changes
    /// nothing but the order of sums.
    #[must_use]
    pub fn exactness(mut self, exactness: Exactness) -> Trainer {
        self.request.exactness = exactness;
        self
    }

    /// Samples in a micro-batch, where that is not for the planner to choose.
    #[must_use]
    pub fn micro_batch(mut self, samples: Option<usize>) -> Trainer {
        self.request.micro_batch = samples;
        self
    }

    /// What ranks that train together have of each other's: with [`Parallel::Shard`], shards of gradients and of the optimizer's state; with
    /// [`Parallel::Parameters`], of parameters, too; with [`Parallel::Tensor`], parts of the weights that they compute with. On one rank it changes nothing.
    #[must_use]
    pub fn parallel(mut self, parallel: Parallel) -> Trainer {
        self.parallel = parallel;
        self
    }

    /// Whether batch norms take their statistics over the samples of all ranks that share a batch, as one rank with all of them would. Without
    /// a word each rank takes those of its own.
    #[must_use]
    pub fn sync_batch_norm(mut self, is_synced: bool) -> Trainer {
        self.sync_batch_norm = is_synced;
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

    /// Keeps the checkpoint of the best epoch, beside those of the last ones.
    #[must_use]
    pub fn best(mut self, best: BestCheckpoint) -> Trainer {
        self.best = Some(best);
        self
    }

    /// A fault to rehearse. Notices and errors that follow from it say that it was asked for.
    #[must_use]
    pub fn fault(mut self, fault: Option<Fault>) -> Trainer {
        self.fault = fault;
        self
    }

    /// What asks the run to end from outside; without a word a flag of its own, which [`Trainer::stop_handle`] gives.
    #[must_use]
    pub fn stop_flag(mut self, flag: impl Into<StopFlag>) -> Trainer {
        self.stop = flag.into();
        self
    }
}
