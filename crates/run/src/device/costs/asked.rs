//! What is known of the kernels that somebody asks for: looked up in the file, or in the record of such a device; and written down for a run.

use std::path::Path;

use plimsoll_device::Bytes;
use plimsoll_graph::{Graph, Op, Type};
use plimsoll_plan::Digest;
use rustc_hash::FxHashMap;

use super::{Costs, file_in, is_timed_alone, key_on};
use crate::device::Device;
use crate::device::filed::{self, Asked, KernelId, Near, Place};
use crate::device::likes::Work;
use crate::device::times::{Facts, Timed, Times, Trust};
use crate::device::trial::{kernels, types};
use crate::device::usage::own;
use crate::error::Result;

impl Costs {
    /// How many kernels were asked for, and how many of them somebody who asks in passing had no time to time on the device, where a record is gone by
    /// instead. As many as he has time for are timed all the same: libraries load code when it first runs, and what that takes is part of an answer.
    pub(crate) fn recorded(&self) -> Option<(usize, usize)> {
        let is_timed =
            |id: &KernelId| self.known.get(id).is_some_and(|timed| timed.trust != Trust::Estimated);
        let untimed = self.looked_for.iter().filter(|id| !is_timed(id)).count();
        let goes_by_record = self.record.is_some() && self.file.is_some() && self.is_in_passing();
        (goes_by_record && untimed > 0).then_some((self.looked_for.len(), untimed))
    }

    /// The record that is gone by.
    pub(crate) fn its_record(&self) -> Option<&'static str> {
        self.record
    }

    /// Goes by a record where there are no times, if it is of a device of the kind that the signature names; returns whether it is.
    pub(crate) fn record(&mut self, record: &'static str, signature: &str) -> bool {
        let Some(facts) = Times::each_of(record, |_| {}) else { return false };
        let is_alike = kind(&facts.signature) == kind(signature);
        self.record = self.record.or(Some(record).filter(|_| is_alike));
        is_alike
    }

    /// Times that were kept in a folder, with every one taken as it stands: plans that were made by them are made again. A record that was
    /// gone by then, where there were none, is gone by now.
    pub(crate) fn recalled_from(folder: &Path, device: &str, record: Option<&'static str>) -> Costs {
        Costs { is_recalled: true, record, ..Costs::kept_in(folder, device) }
    }

    /// Writes the times that this process went by to a folder, as [`Costs::kept_in`] reads them there: of all kernels that were asked
    /// for, and of those that stood for others.
    pub(crate) fn write_to(&self, folder: &Path, device: &Device) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let facts = Facts::new(device.backend(), device.memory().page(), own(device).unwrap_or(Bytes::ZERO));
        let stands: FxHashMap<KernelId, Timed> =
            self.near.values().map(|near| (near.id, near.like.timed)).collect();
        Times::copy(file, &file_in(folder, &device.backend().signature()), &facts, |entry| {
            let id = KernelId::of(entry.kernel);
            self.known.get(&id).or_else(|| stands.get(&id)).copied()
        })
    }

    /// Looks in the file for the kernels of a graph that nobody has asked for yet.
    pub(crate) fn look_up(&mut self, graph: &Graph, device: &Device) -> Result<()> {
        let Some(file) = self.file.clone() else { return Ok(()) };
        let mut asked = FxHashMap::default();
        for node in graph.nodes().iter().filter(|node| is_timed_alone(node)) {
            let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
            let id = KernelId::of(&key_on(kernels(graph, node, device)?, &node.op, &inputs));
            if self.looked_for.insert(id) && !self.known.contains_key(&id) {
                asked.insert(id, Asked::new(&node.op, &inputs, &outputs));
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        for Near { id, like } in filed::find(Place::File(&file), &asked) {
            if like.timed.trust != Trust::Estimated {
                asked.remove(&id);
            }
            self.known.insert(id, like.timed);
        }
        // The same kernel on a device of this kind says more than one like it on this device, and that more than one like it elsewhere.
        let record = self.record.map(Place::Record);
        let recorded = record.map(|record| filed::find(record, &asked)).unwrap_or_default();
        for recorded in recorded {
            asked.remove(&recorded.id);
            self.near.insert(recorded.id, recorded);
        }
        for place in [Place::File(&file)].into_iter().chain(record) {
            if asked.is_empty() {
                break;
            }
            for (id, near) in filed::nearest(place, &asked) {
                asked.remove(&id);
                self.near.insert(id, near);
            }
        }
        Ok(())
    }

    /// What tells these times, and all others of the file, from others: which kernels will be asked for is not known before.
    pub(crate) fn digest(&self) -> Digest {
        // A sum, since they are in no order.
        let mut sum = 0u128;
        if let Some(file) = &self.file {
            Times::each(file, |entry| {
                let id = KernelId::of(entry.kernel);
                if !self.known.contains_key(&id)
                    && let Some(timed) = entry.timed()
                {
                    sum = sum.wrapping_add(id.with(timed.seconds));
                }
            });
        }
        Digest(self.known.iter().fold(sum, |sum, (id, timed)| sum.wrapping_add(id.with(timed.seconds))))
    }

    /// The kernel that stands for one that was not timed: of the file, or timed just now.
    pub(super) fn stands_for(
        &self,
        id: KernelId,
        op: &Op,
        inputs: &[&Type],
        outputs: &[&Type],
    ) -> Option<Timed> {
        let work = Work::of(op, inputs, outputs);
        // It may have been timed again since it was read.
        let filed = self.near.get(&id).map(|near| {
            let again = self.known.get(&near.id).filter(|timed| timed.trust != Trust::Estimated);
            again.map_or(near.like, |timed| near.like.timed_as(*timed))
        });
        let like = match (filed, self.likes.nearest(op, &work)) {
            (Some(filed), Some(own)) => Some(if work.prefers(&own, &filed) { own } else { filed }),
            (filed, own) => filed.or(own),
        };
        like.map(|like| like.timed)
    }
}

/// What kind of device a signature is of: its make and its architecture, whatever is installed, and whether products are rounded.
fn kind(signature: &str) -> (&str, bool) {
    (signature.split(" driver ").next().unwrap_or_default(), signature.contains(" tf32 "))
}
