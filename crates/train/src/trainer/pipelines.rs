//! How a memory limit is shared between a step and its input pipelines.

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_graph::ops::Rank;
use plimsoll_run::{Device, MemoryRequest, PlanFigures};

use crate::error::Result;

/// The most that pipelines take without a word from the user, and their part of the limit: one of so many.
const MOST: u64 = 64 << 20;
const PART: u64 = 8;

/// What was found out about pipelines when a training was planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Whether pipelines must do with the least they can, because the limit is tight.
    pub(crate) is_lean: bool,
    /// The least with which a smaller last batch can be run, where there is one.
    pub(crate) others_floor: Bytes,
    /// What of the limit is not for pipelines: weights of a model that is only used, and the program.
    pub(crate) taken: Bytes,
}

/// The pipelines of a training.
pub(crate) struct Pipelines<'a> {
    pub(crate) request: &'a MemoryRequest,
    pub(crate) device: Device,
    /// Which samples of a batch are given.
    pub(crate) rank: Rank,
    pub(crate) validation: Option<&'a Dataset>,
    pub(crate) share: Share,
}

impl Pipelines<'_> {
    fn shared(&self, data: &Dataset) -> Dataset {
        data.clone().shared(self.rank)
    }

    /// The data with the memory that its pipeline may take. The pipeline for validation runs while that for training
    /// waits, so with both, each has half.
    ///
    /// Where several ranks train together it gives this one's samples.
    pub(crate) fn bounded(&self, data: &Dataset) -> Result<Dataset> {
        let data = &self.shared(data);
        let share = if self.validation.is_some() { 2 } else { 1 };
        let part = |bytes: Bytes| Bytes((bytes.get() / PART).min(MOST) / share);
        let wanted = match (self.request.host_limit, self.request.limit) {
            (Some(_), _) if self.device.has_own_memory() && self.share.is_lean => Bytes::ZERO,
            (Some(bytes), _) if self.device.has_own_memory() => part(bytes),
            (Some(bytes), _) => return Ok(data.clone().memory(Bytes(bytes.get() / share))),
            (None, None) => return Ok(data.clone()),
            (None, Some(_)) if self.share.is_lean => Bytes::ZERO,
            (None, Some(limit)) => part(limit.saturating_sub(self.share.taken)),
        };
        Ok(data.clone().memory(wanted.max(least(data)?)))
    }

    /// What all pipelines take together at most, with a limit or without: what is announced counts them.
    pub(crate) fn declared(&self, data: &Dataset) -> Result<Bytes> {
        let mut bytes = self.bounded(data)?.declared_bytes()?;
        if let Some(validation) = self.validation {
            bytes += self.bounded(validation)?.declared_bytes()?;
        }
        Ok(in_pages(bytes))
    }

    /// The least that all pipelines can do with together. Where the user has said what they take, that.
    pub(crate) fn least(&self, data: &Dataset) -> Result<Bytes> {
        if self.request.host_limit.is_some() {
            return self.declared(data);
        }
        let validation = self.validation.map(|data| least(&self.shared(data))).transpose()?;
        Ok(in_pages(least(&self.shared(data))? + validation.unwrap_or_default()))
    }

    /// A plan whose least is that with pipelines that take the least.
    pub(crate) fn with_least(&self, mut figures: PlanFigures, data: &Dataset) -> Result<PlanFigures> {
        // Of a device's own memory pipelines take nothing.
        if !self.device.has_own_memory() {
            let more = self.declared(data)?.saturating_sub(self.least(data)?);
            figures.floor = figures.floor.saturating_sub(more);
        }
        figures.floor = figures.floor.max(self.share.others_floor);
        Ok(figures)
    }
}

/// In whole pages, so that the least with other pipelines is the same to the byte, however the rest is aligned.
fn in_pages(bytes: Bytes) -> Bytes {
    Bytes(bytes.get().next_multiple_of(4096))
}

/// The least that a pipeline over this data can do with.
fn least(data: &Dataset) -> Result<Bytes> {
    match data.clone().memory(Bytes(1)).declared_bytes() {
        Ok(bytes) => Ok(bytes),
        Err(plimsoll_data::Error::Budget { least, .. }) => Ok(least),
        Err(error) => Err(error.into()),
    }
}
