//! The checkpoint of the best epoch, beside those of the last ones; and its weights back at the end.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::callback::{EpochEvent, Notice};
use crate::checkpoint::{Checkpoint, Checkpoints, hand_shards, number};
use crate::error::{Error, Result};
use crate::trainer::Trainer;
use crate::watched::Watched;

/// Which epoch is kept as the best, and where.
///
/// ```
/// use plimsoll_data::{Column, Dataset};
/// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
/// use plimsoll_train::{BestCheckpoint, EarlyStopping, Epochs, Trainer};
/// # let folder = std::env::temp_dir().join(format!("plimsoll-best-{}", std::process::id()));
/// # let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
/// # let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
/// # let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(20);
/// let model = Sequential::new([2]).dense(8).relu().dense(2);
/// let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(0.5))
///     .validation(data.clone())
///     .callback(EarlyStopping::new("val_loss", 2))
///     .best(BestCheckpoint::new("val_loss", &folder).restore());
/// let history = trainer.fit(&data, Epochs(10))?;
/// // The weights are those of the best epoch, and not those of the last.
/// let best = history.iter().filter_map(|epoch| epoch.metric("val_loss")).fold(f64::INFINITY, f64::min);
/// assert_eq!(trainer.evaluate(&data)?.loss, best);
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok::<(), plimsoll_train::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BestCheckpoint {
    folder: PathBuf,
    watched: Watched,
    pub(crate) is_restored: bool,
}

impl BestCheckpoint {
    /// Keeps the epoch with the best value of a metric, as a checkpoint in a folder of its own. Losses and errors fall, everything
    /// else rises.
    pub fn new(metric: &str, folder: impl Into<PathBuf>) -> BestCheckpoint {
        BestCheckpoint { folder: folder.into(), watched: Watched::new(metric), is_restored: false }
    }

    /// Only what is better by more than this is a new best.
    #[must_use]
    pub fn min_delta(mut self, delta: f64) -> BestCheckpoint {
        self.watched.min_delta = delta.abs();
        self
    }

    /// Lets the weights be those of the best epoch when a run is complete or was stopped early by a callback. The optimizer's state
    /// stays that of the last epoch, and so do checkpoints of it: whoever resumes the run goes on from there.
    #[must_use]
    pub fn restore(mut self) -> BestCheckpoint {
        self.is_restored = true;
        self
    }
}

/// The best epoch so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestEpoch {
    /// What it is the best of.
    pub metric: String,
    /// The metric's value.
    #[serde(with = "number")]
    pub value: f64,
    /// The epoch, from 1.
    pub epoch: u64,
    /// Updates done at its end.
    pub step: u64,
}

impl Trainer {
    /// Writes the checkpoint of an epoch that is the best so far.
    pub(crate) fn keep_best(&mut self, event: &EpochEvent) -> Result<()> {
        let Some(best) = self.best.clone() else { return Ok(()) };
        let value = best.watched.value(event, "the best checkpoint")?;
        let metric = &best.watched.metric;
        let known = self.progress.best.as_ref().filter(|known| known.metric == *metric);
        if value.is_nan() || !best.watched.is_better(value, known.map(|known| known.value)) {
            return Ok(());
        }
        let (epoch, step) = (event.epoch, event.step);
        self.progress.best = Some(BestEpoch { metric: metric.clone(), value, epoch, step });
        let (ranks, Some(training)) = (self.ranks()?, &self.training) else { return Ok(()) };
        if !self.is_first()? {
            return hand_shards(training, ranks.as_ref());
        }
        let checkpoint = Checkpoint::new(self.progress.clone(), self.terms.clone(), &self.callbacks);
        let path = Checkpoints::new(&best.folder).keep(1).save(&checkpoint, training, ranks.as_ref())?;
        self.tell(&Notice::Best { step, epoch, metric: metric.clone(), value, path })
    }

    /// Puts the weights of the best epoch back, where that is asked for and it is not the last.
    pub(crate) fn restore_best(&mut self) -> Result<()> {
        let Some(best) = self.best.clone().filter(|best| best.is_restored) else { return Ok(()) };
        let Some(known) = self.progress.best.clone().filter(|known| known.metric == best.watched.metric)
        else {
            return Ok(());
        };
        if known.step == self.progress.step {
            return Ok(());
        }
        if !self.is_first()? {
            return self.take_parameters_of_first();
        }
        let path = checkpoint_of(&best.folder, known.step)?;
        let Some(training) = &mut self.training else { return Ok(()) };
        Checkpoint::read(&path)?.restore_weights(&path, training)?;
        self.take_parameters_of_first()?;
        self.tell(&Notice::Restored { step: known.step, epoch: known.epoch, path })
    }
}

/// The checkpoint of a step in the folder of the best.
fn checkpoint_of(folder: &Path, step: u64) -> Result<PathBuf> {
    let path = plimsoll_formats::durable::step_path(folder, step);
    match path.is_dir() {
        true => Ok(path),
        false => Err(Error::Damaged { path, why: "the checkpoint of the best epoch is gone".into() }),
    }
}
