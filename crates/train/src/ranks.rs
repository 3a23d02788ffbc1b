//! What ranks that train together decide together: whether they were started alike, whether to stop, what the learning rate becomes.
//!
//! Every step and every sum is the same on all ranks, and what is not (a signal that one of them gets, a clock, a callback that only the first
//! has) is asked of all or of the first, so that none goes on where another does not.

use std::borrow::Borrow;
use std::sync::Arc;

use plimsoll_data::Dataset;
use plimsoll_device::backend::Fault;
use plimsoll_device::{Peers, process};
use plimsoll_graph::ops::Rank;
use plimsoll_nn::Training;
use plimsoll_run::record::{RankRow, Ranks};
use plimsoll_run::{Counted, StepPlan};

use crate::error::{Error, Result};
use crate::program;
use crate::terms::Terms;
use crate::trainer::Trainer;

/// The rank whose word counts, which also prints and writes.
const FIRST: usize = 0;

impl Trainer {
    /// The ranks that this one trains with; none where it trains alone.
    pub(crate) fn ranks(&self) -> Result<Option<Arc<dyn Peers>>> {
        Ok(self.on()?.ranks().filter(|peers| peers.rank().ranks > 1).cloned())
    }

    /// Which samples of a batch this rank is given, as one of so many: all of them where ranks have parts of the weights or stages of the model.
    pub(crate) fn samples_of(&self) -> Result<Rank> {
        Ok(self.parallel.samples_of(self.on()?.rank()))
    }

    /// Whether files are written here: by the first rank alone, since all have the same state.
    pub(crate) fn is_first(&self) -> Result<bool> {
        Ok(self.on()?.rank().rank == FIRST)
    }

    /// Whether somebody wants the run to end: any rank.
    pub(crate) fn any_wants_to_stop(&mut self) -> Result<bool> {
        let own = self.wants_to_stop();
        match self.ranks()? {
            Some(ranks) => ranks.any(own).map_err(failed),
            None => Ok(own),
        }
    }

    /// The first rank's answer to a question that only its callbacks may have one to.
    pub(crate) fn as_first<const N: usize>(&self, own: [f64; N]) -> Result<[f64; N]> {
        let mut said = own;
        if let Some(ranks) = self.ranks()? {
            ranks.of_rank(FIRST, &mut said).map_err(failed)?;
        }
        Ok(said)
    }

    /// What the first rank says, where ranks have to do it together because each has its shard of the state; else what this one does.
    pub(crate) fn of_first_if_sharded(&self, own: bool) -> Result<bool> {
        match self.training.as_ref().is_some_and(Training::is_sharded) {
            true => Ok(self.as_first([f64::from(u8::from(own))])?[0] > 0.0),
            false => Ok(own),
        }
    }

    /// What each rank has come to in the epoch at hand; none where it trains alone.
    pub(crate) fn rank_rows(&self, counted: &Counted) -> Result<Option<Ranks>> {
        const FIGURES: usize = 7;
        let Some(ranks) = self.ranks()? else { return Ok(None) };
        let Rank { rank, ranks: n, .. } = ranks.rank();
        let (traffic, progress) = (ranks.traffic(), &self.progress);
        let planned = self.training.as_ref().map_or(0, |training| training.info().planned.get());
        let own: [f64; FIGURES] = [
            planned as f64,
            counted.peak.get() as f64,
            process::peak_resident().map_or(0, |bytes| bytes.get()) as f64,
            traffic.sent as f64,
            traffic.received as f64,
            progress.stepping,
            progress.waiting,
        ];
        let mut all = vec![0.0; FIGURES * n];
        all[FIGURES * rank..][..FIGURES].copy_from_slice(&own);
        ranks.sum(&mut all).map_err(failed)?;
        let row = |(rank, figures): (usize, &[f64])| RankRow {
            rank: rank as u64,
            planned_bytes: figures[0] as u64,
            peak_bytes: figures[1] as u64,
            host_peak_bytes: figures[2] as u64,
            sent_bytes: figures[3] as u64,
            received_bytes: figures[4] as u64,
            step_seconds: figures[5],
            waiting_seconds: figures[6],
        };
        Ok(Some(Ranks {
            epoch: progress.epoch + 1,
            by: ranks.by().to_string(),
            parallel: self.parallel.to_string(),
            rows: all.chunks(FIGURES).enumerate().map(row).collect(),
            ..Ranks::default()
        }))
    }

    /// Adds up numbers of all ranks.
    pub(crate) fn over_ranks(&self, numbers: &mut [f64]) -> Result<()> {
        match self.ranks()? {
            Some(ranks) => ranks.sum(numbers).map_err(failed),
            None => Ok(()),
        }
    }

    /// Refuses ranks that were not started alike, by what differs.
    pub(crate) fn agree(&self, terms: &Terms, content: &Dataset, epochs: u64) -> Result<()> {
        let (Some(ranks), Some(training)) = (self.ranks()?, &self.training) else { return Ok(()) };
        let limit = self.request.limit.map_or("none".into(), |limit| limit.to_string());
        let parameters = training.params().iter().map(|p| format!("{} {}", p.name, p.ty));
        let data = &terms.data;
        let fields: [(&str, String); 15] = [
            ("the version", env!("CARGO_PKG_VERSION").into()),
            ("the program", program::digest()),
            ("the memory limit", limit),
            ("the way to share the training (--parallel)", self.parallel.to_string()),
            ("whether batch norm is of all ranks (--sync-batch-norm)", self.sync_batch_norm.to_string()),
            ("the optimizer", terms.optimizer.clone()),
            ("the seed", terms.seed.to_string()),
            ("the batch size", data.batch.map_or("none".into(), |n| n.to_string())),
            ("the number of samples", data.samples.map_or("unknown".into(), |n| n.to_string())),
            ("the digest of the data's pipeline", format!("{:016x}", data.pipeline)),
            ("the digest of the data's samples", format!("{:016x}", content.content_digest()?)),
            ("the digest of the parameters", digest(parameters)),
            ("the step that it goes on from", self.progress.step.to_string()),
            ("the number of epochs", epochs.to_string()),
            ("the digest of what the plan exchanges", digest(training.exchanges().into_iter())),
        ];
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        match ranks.differ(&fields).map_err(failed)? {
            Some(why) => Err(Error::RanksDiffer(why)),
            None => Ok(()),
        }
    }

    /// As [`Trainer::plan`], of all ranks together: where one cannot keep the memory limit none goes on, and of several the one says why that needs most.
    /// All ranks call it; of one alone it is the same as [`Trainer::plan`].
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::Trainer;
    /// let x = Column::memory("x", vec![0.5f32; 6400], [64])?;
    /// let data = Dataset::columns([x, Column::memory("y", vec![0i64; 100], [])?])?.batch(20);
    /// let trainer = Trainer::new(Sequential::new([64]).dense(2), softmax_cross_entropy, Adam::new(1e-2));
    /// assert_eq!(trainer.plan_together(&data)?.figures.arena, trainer.plan(&data)?.figures.arena);
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    pub fn plan_together(&self, data: impl Borrow<Dataset>) -> Result<StepPlan> {
        self.together(self.plan(data))
    }

    /// What this rank has, unless somewhere nothing can be had. Where the memory limit cannot be kept: the refusal of the rank that needs most, or the word that
    /// there is one. Where anything else is wrong: what is wrong here, unless a rank before this one says the same, or the word that it is said.
    pub(crate) fn together<T>(&self, own: Result<T>) -> Result<T> {
        let least = match &own {
            Ok(_) => 0.0,
            Err(Error::Run(plimsoll_run::Error::Infeasible { least, .. })) => least.get() as f64,
            Err(error) if is_of_ranks(error) => return own,
            Err(error) => -(1.0 + (short_digest(&error.to_string()) as f64)),
        };
        let Some(ranks) = self.ranks()? else { return own };
        let Rank { rank, ranks: n, .. } = ranks.rank();
        let mut all = vec![0.0; n];
        all[rank] = least;
        if let Err(fault) = ranks.sum(&mut all) {
            // One may have been lost: what this rank has to say is said all the same.
            return own.and(Err(failed(fault)));
        }
        if all.iter().any(|&of_rank| of_rank != 0.0) {
            // Nobody stops before all have heard. Whoever fails here has.
            ranks.sum(&mut [0.0]).ok();
        }
        if all.iter().any(|&of_rank| of_rank < 0.0) {
            // Those that have something else to say say it, each text once.
            let speaker = match least < 0.0 {
                true => all.iter().position(|&other| other == least),
                false => all.iter().position(|&other| other < 0.0),
            };
            return match speaker {
                Some(other) if other != rank => Err(Error::RefusedBy(other)),
                _ => own,
            };
        }
        let most = all.iter().fold(0.0, |most: f64, &least| most.max(least));
        match all.iter().position(|&least| least == most) {
            Some(other) if most > 0.0 && other != rank => Err(Error::RefusedBy(other)),
            _ => own,
        }
    }

    /// Lets all ranks have the first one's parameters: after it read them from a file that the others may not see.
    pub(crate) fn take_parameters_of_first(&mut self) -> Result<()> {
        let Some(ranks) = self.ranks()? else { return Ok(()) };
        let Some(training) = &mut self.training else { return Ok(()) };
        let names: Vec<String> = training.params().iter().map(|p| p.name.clone()).collect();
        for (i, name) in names.iter().enumerate() {
            let mut bytes = training.values()[i].to_bytes()?;
            ranks.of_rank(FIRST, &mut bytes).map_err(failed)?;
            training.restore(name, &bytes)?;
        }
        Ok(())
    }
}

/// Why ranks failed, as an error of a run.
pub(crate) fn failed(fault: Fault) -> Error {
    Error::Run(plimsoll_run::Error::Ranks(fault))
}

/// Whether an error says that ranks failed: then a step may have been done by half.
pub(crate) fn is_of_ranks(error: &Error) -> bool {
    matches!(error, Error::Run(plimsoll_run::Error::Ranks(_)))
}

/// A short number that tells texts from others, in words.
fn digest(texts: impl Iterator<Item = String>) -> String {
    format!("{:016x}", hashed(texts.flat_map(|text| text.into_bytes().into_iter().chain([0]))))
}

/// A number that tells texts from others, as f64 has it to the last digit.
fn short_digest(text: &str) -> u64 {
    hashed(text.bytes()) >> 12
}

/// FNV-1a.
fn hashed(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
