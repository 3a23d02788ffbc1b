//! Turns what ranks came to in an epoch into a file that reports read.

use std::path::PathBuf;

use plimsoll_formats::durable;

use crate::callback::{Callback, EpochEvent, Verdict};
use crate::error::{Error, Result};

/// Writes what each of several ranks came to, anew after every epoch. Of one rank alone there is no such file.
pub struct RankLog {
    path: PathBuf,
}

impl RankLog {
    /// A log at a path.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::{Epochs, RankLog, Trainer};
    /// let x = Column::memory("x", vec![0.5f32; 40], [2])?;
    /// let data = Dataset::columns([x, Column::memory("y", vec![0i64; 20], [])?])?.batch(10);
    /// let path = std::env::temp_dir().join(format!("plimsoll-ranks-{}.json", std::process::id()));
    /// let trainer = Trainer::new(Sequential::new([2]).dense(2), softmax_cross_entropy, Adam::new(1e-2));
    /// trainer.callback(RankLog::new(&path)).fit(&data, Epochs(1))?;
    /// assert!(!path.exists(), "one rank alone");
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    pub fn new(path: impl Into<PathBuf>) -> RankLog {
        RankLog { path: path.into() }
    }
}

impl Callback for RankLog {
    fn on_epoch(&mut self, epoch: &EpochEvent) -> Result<Verdict> {
        let done: std::io::Result<()> = match &epoch.ranks {
            Some(ranks) => durable::write_file(&self.path, |out| Ok(serde_json::to_writer(out, ranks)?)),
            // A run that several began and one goes on with.
            None => match std::fs::remove_file(&self.path) {
                Err(why) if why.kind() != std::io::ErrorKind::NotFound => Err(why),
                _ => Ok(()),
            },
        };
        done.map_err(Error::file(&self.path))?;
        Ok(Verdict::GoOn)
    }
}
