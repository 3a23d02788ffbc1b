//! Turns batches of a pipeline into tensors that are written over again and again.
//!
//! A smaller batch, the last of an epoch, lies in the bytes of a full one: there is one set of tensors, whatever comes. On a
//! device that copies beside its kernels there are two, and the next batch is written to the one while a step reads the
//! other.

use plimsoll_data::Batch;
use plimsoll_graph::{TensorOps, Type};
use plimsoll_run::{Device, HostUploader, Tensor};
use smallvec::SmallVec;

use crate::error::{Error, Result};

/// Tensors in which batches are handed to a step.
#[derive(Default)]
pub(crate) struct Staging {
    // Declared before the tensors: it waits for a copy under way before they go.
    feed: Option<HostUploader>,
    /// The one that was handed out last, and the one for the next batch.
    sets: [Vec<Tensor>; 2],
    current: usize,
    /// Whether the next batch is on its way.
    is_ahead: bool,
}

impl Staging {
    /// The first `fields` fields of a batch as tensors.
    pub(crate) fn stage(&mut self, batch: &Batch, fields: usize) -> Result<&mut [Tensor]> {
        let types = types(batch, fields)?;
        let set = &mut self.sets[self.current];
        retype(set, &types)?;
        if batch.is_random() {
            for (i, tensor) in set.iter_mut().enumerate() {
                tensor.fill_bytes(|bytes| batch.write_field(i, bytes))?;
            }
            return Ok(set);
        }
        for (tensor, field) in set.iter_mut().zip(batch.fields()) {
            tensor.set_bytes(field.bytes)?;
        }
        Ok(set)
    }

    /// The tensors that were handed out last, and the place for the batch after them.
    pub(crate) fn both<'a>(&'a mut self, fields: usize, device: &'a Device) -> (&'a [Tensor], Next<'a>) {
        let Staging { feed, sets: [first, second], current, is_ahead } = self;
        let (now, set) = if *current == 0 { (&*first, second) } else { (&*second, first) };
        (now, Next { now, set, feed, is_ahead, fields, device })
    }

    /// Bytes of pinned host memory that it holds.
    pub(crate) fn pinned_bytes(&self) -> usize {
        self.feed.as_ref().map_or(0, HostUploader::bytes)
    }

    /// Lets go of a batch that is on its way and that nobody will ask for: the run that took it has ended.
    pub(crate) fn forget(&mut self) -> Result<()> {
        self.staged_ahead().map(|_| ())
    }

    /// The batch that was on its way.
    pub(crate) fn staged_ahead(&mut self) -> Result<Option<&mut [Tensor]>> {
        if !std::mem::take(&mut self.is_ahead) {
            return Ok(None);
        }
        if let Some(feed) = &mut self.feed {
            feed.finish()?;
        }
        self.current = 1 - self.current;
        Ok(Some(&mut self.sets[self.current]))
    }
}

/// Where the next batch goes while a step reads the one before.
pub(crate) struct Next<'a> {
    now: &'a [Tensor],
    set: &'a mut Vec<Tensor>,
    feed: &'a mut Option<HostUploader>,
    is_ahead: &'a mut bool,
    fields: usize,
    device: &'a Device,
}

impl Next<'_> {
    /// Starts to write a batch. `false` where the device cannot, or the batch is not like the one before.
    pub(crate) fn start(&mut self, batch: &Batch) -> Result<bool> {
        let types = types(batch, self.fields)?;
        // Random numbers are written when they are wanted: there is one set of tensors for them.
        if *self.is_ahead || batch.is_random() || !are(self.now, &types) {
            return Ok(false);
        }
        if self.feed.is_none() {
            *self.feed = HostUploader::new(self.device, &types)?;
        }
        let Some(feed) = self.feed else { return Ok(false) };
        if types.iter().map(Type::bytes).sum::<usize>() > feed.bytes() {
            return Ok(false);
        }
        retype(self.set, &types)?;
        feed.start(self.set, batch.fields().take(self.fields).map(|field| field.bytes))?;
        *self.is_ahead = true;
        Ok(true)
    }
}

fn types(batch: &Batch, fields: usize) -> Result<SmallVec<[Type; 8]>> {
    if batch.len() < fields {
        let why = format!("a sample has {} fields where {fields} are needed", batch.len());
        return Err(Error::Mismatch(why));
    }
    let types = (0..fields).filter_map(|i| batch.field_type(i));
    Ok(types.map(|(dtype, shape)| Type::new(dtype, &shape[..])).collect())
}

fn are(set: &[Tensor], types: &[Type]) -> bool {
    set.len() == types.len() && set.iter().zip(types).all(|(tensor, ty)| tensor.ty() == ty)
}

/// Makes a set one of these types, in the bytes that it has where they are enough.
fn retype(set: &mut Vec<Tensor>, types: &[Type]) -> Result<()> {
    if are(set, types) {
        return Ok(());
    }
    if set.len() != types.len() {
        set.clear();
        for ty in types {
            set.push(Tensor::zeros(ty.clone())?);
        }
        return Ok(());
    }
    let old = std::mem::take(set);
    for (tensor, ty) in old.into_iter().zip(types) {
        set.push(tensor.in_place_of(ty.clone())?);
    }
    Ok(())
}

/// References to tensors, as steps take them.
pub(crate) fn borrowed(tensors: &[Tensor]) -> SmallVec<[&Tensor; 8]> {
    tensors.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_data::{Column, Dataset};
    use plimsoll_device::Bytes;

    #[test]
    fn a_batch_is_sent_ahead_and_arrives_when_it_is_asked_for() {
        let emulated = Device::cuda_emulated(Bytes::mib(16));
        let Some(device) = plimsoll_testing::group("emulator", emulated) else { return };
        let column = Column::memory("x", (0..12i64).collect::<Vec<i64>>(), []).unwrap();
        let mut batches = Dataset::columns([column]).unwrap().batch(2).batches().unwrap();
        // A pipeline waits for batches to be given back, so none is held longer than it is needed.
        let mut take = || batches.next().unwrap().unwrap();
        device.scope(|| {
            let mut staging = Staging::default();
            let numbers = |set: &[Tensor]| set[0].to_vec::<i64>().unwrap();
            assert_eq!(numbers(staging.stage(&take(), 1).unwrap()), [0, 1]);
            let (now, mut next) = staging.both(1, &device);
            assert!(next.start(&take()).unwrap());
            assert!(!next.start(&take()).unwrap(), "one is on its way");
            assert_eq!(numbers(now), [0, 1]);
            assert_eq!(numbers(staging.staged_ahead().unwrap().unwrap()), [2, 3]);
            assert!(staging.staged_ahead().unwrap().is_none());
            // What a run that has ended left on its way is not what the next one is given, and does not stand in its way.
            assert!(staging.both(1, &device).1.start(&take()).unwrap());
            staging.forget().unwrap();
            assert_eq!(numbers(staging.stage(&take(), 1).unwrap()), [8, 9]);
            assert!(staging.both(1, &device).1.start(&take()).unwrap());
            assert_eq!(numbers(staging.staged_ahead().unwrap().unwrap()), [10, 11]);
        });
    }
}
