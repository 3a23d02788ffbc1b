//! How the line is shared between a step and its input pipelines.

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_run::StepInfo;

use super::Trainer;
use crate::error::Result;

impl Trainer {
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
        self.with_least_pipelines(training.info().clone(), data).map(Some)
    }

    /// A plan whose least is that with pipelines that take the least.
    pub(crate) fn with_least_pipelines(&self, mut info: StepInfo, data: &Dataset) -> Result<StepInfo> {
        // Of a device's own memory pipelines take nothing.
        if !self.on()?.has_own_memory() {
            let more = self.pipelines(data)?.saturating_sub(self.least_pipelines(data)?);
            info.floor = info.floor.saturating_sub(more);
        }
        info.floor = info.floor.max(self.last_batch_floor);
        Ok(info)
    }

    /// The least that all pipelines can do with together. Where the user has said what they take, that.
    pub(crate) fn least_pipelines(&self, data: &Dataset) -> Result<Bytes> {
        if self.host_memory.is_some() {
            return self.pipelines(data);
        }
        let validation = self.validation.as_ref().map(least_pipeline).transpose()?;
        Ok(in_pages(least_pipeline(data)? + validation.unwrap_or_default()))
    }

    /// What all pipelines take together at most, with a line or without: what is announced counts them.
    pub(crate) fn pipelines(&self, data: &Dataset) -> Result<Bytes> {
        let mut bytes = self.bounded(data)?.declared_bytes()?;
        if let Some(validation) = &self.validation {
            bytes += self.bounded(validation)?.declared_bytes()?;
        }
        Ok(in_pages(bytes))
    }

    /// What of the host's memory is left for copies of activations, where the device has a use for it.
    pub(super) fn for_copies(&self, data: &Dataset) -> Result<Option<Bytes>> {
        match self.host_memory {
            Some(bytes) if self.on()?.copies_to_host() => {
                Ok(Some(bytes.saturating_sub(self.pipelines(data)?)))
            }
            _ => Ok(None),
        }
    }
}

/// In whole pages, so that the least with other pipelines is the same to the byte, however the rest is aligned.
fn in_pages(bytes: Bytes) -> Bytes {
    Bytes(bytes.get().next_multiple_of(4096))
}

/// The least that a pipeline over this data can do with.
fn least_pipeline(data: &Dataset) -> Result<Bytes> {
    match data.clone().memory(Bytes(1)).declared_bytes() {
        Ok(bytes) => Ok(bytes),
        Err(plimsoll_data::Error::Budget { least, .. }) => Ok(least),
        Err(error) => Err(error.into()),
    }
}
