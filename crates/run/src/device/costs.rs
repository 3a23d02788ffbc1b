//! How long kernels take on a device: from a roofline at first, then from timing each distinct one once.
//!
//! Times are kept in a file from run to run, named after the device, so that the same request gives the same plan. A time that was
//! taken on a busy machine, or that steps have contradicted, is taken again by the next process that plans the kernel. Of the file only
//! what a step asks for is held (`asked`, `filed`).
//!
//! Nobody waits for all kernels of a large step: a process times them for so long and no longer, those first that say most, and the rest
//! are scaled from like ones (`likes`). Such estimates are kept too, so that the next process plans alike; one that has more
//! time takes their time in turn.

mod asked;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_device::Bytes;
use plimsoll_device::backend::Backend;
use plimsoll_graph::{Graph, Node, Op, Site, Type};
use plimsoll_plan::Link;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Device;
use super::buffer::Buffer;
use super::filed::{KernelId, Near};
use super::likes::{Likes, factor, scaled};
use super::times::{Facts, Timed, Times, Trust};
use super::timing::{Measured, drift};
use super::trial::{kernels, most, needs, time, types};
use super::usage::own;
use crate::error::Result;

/// A kernel that is estimated to take longer than this is not timed.
const MOST_SECONDS: f64 = 0.3;
/// Under what name the time of copies to the host and back is kept: seconds for so many bytes, the slower way.
pub(crate) const LINK: &str = "copy of a GiB between device and host";
pub(crate) const LINK_BYTES: f64 = (1u64 << 30) as f64;
/// The same of copies to a disk, before the name of its folder.
const DISK_LINK: &str = "copy of a GiB between memory and ";
/// Bytes of a copy that is timed: at most, so that starting it costs nothing, and at least, or it is not timed.
const MOST_COPIED: Bytes = Bytes::mib(64);
const LEAST_COPIED: Bytes = Bytes::mib(1);
/// What a copy takes beside its bytes: the kernels' stream waits for it by an event. With 1,460 waits a step for 2.7 GB each way on an H200, a wait took 3.7 us of the
/// kernels' time; and a copy is started on a stream of its own. Without this, hundreds of small values were copied that could as well stay.
const COPY_START_NS: u64 = 10_000;
/// For how long a process times kernels, unless somebody says otherwise.
const PATIENCE: Duration = Duration::from_secs(2);
/// What timing a kernel takes, in calls of it, and in bytes of its operands that are filled in a second.
const CALLS: f64 = 5.0;
const FILLED: f64 = 2e9;

/// The times that are known of a device's kernels.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    /// By kernel: of those that were asked for.
    known: FxHashMap<KernelId, Timed>,
    /// Of those that were asked for and never timed: which kernel of the file stands for it.
    near: FxHashMap<KernelId, Near>,
    /// Kernels that were looked for in the file.
    looked_for: FxHashSet<KernelId>,
    /// Kernels that this process has timed: it times none of them again.
    tried: FxHashSet<KernelId>,
    /// Where they are kept; without a place nothing is timed.
    file: Option<PathBuf>,
    /// Whether they are those of an earlier run, which are neither added to nor taken anew.
    is_recalled: bool,
    /// What was recorded of a device of the same kind, for kernels that this one has no times of.
    record: Option<&'static str>,
    /// Those that this process has timed, to scale others from.
    likes: Likes,
    /// For how long kernels may be timed, and for how long they were.
    patience: Option<Duration>,
    spent: Duration,
}

/// A kernel that has not been timed.
struct Fresh<'g> {
    key: String,
    node: &'g Node,
    /// Seconds that it is predicted to take, once and in the whole graph.
    seconds: f64,
    all: f64,
    /// Whether it is the first of its op.
    is_first: bool,
    /// Whether there is an estimate of it that was kept.
    is_estimated: bool,
}

impl Costs {
    /// Times kept in a folder for a device of this name. A file that cannot be read is as good as none: its kernels are
    /// timed again.
    pub(crate) fn kept_in(folder: &Path, device: &str) -> Costs {
        let file = file_in(folder, device);
        let known = timed_links(&file).into_iter().map(|(key, timed)| (KernelId::of(&key), timed)).collect();
        Costs { known, file: Some(file), ..Costs::default() }
    }

    /// Times kernels for so long, all together, and estimates the rest.
    pub(crate) fn time_for(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// What is left of the time for timing; as much as is left has somebody who said nothing.
    fn left(&self) -> Duration {
        self.patience.unwrap_or(PATIENCE).saturating_sub(self.spent)
    }

    /// Whether somebody asks in passing: estimates are good enough.
    fn is_in_passing(&self) -> bool {
        self.patience.unwrap_or(PATIENCE) < PATIENCE
    }

    /// Seconds of a kernel: as timed, else as like ones were, else as the device predicts.
    pub(crate) fn seconds(&self, backend: &dyn Backend, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> f64 {
        let id = KernelId::of(&key_on(backend, op, inputs));
        match self.known.get(&id) {
            Some(timed) => timed.seconds,
            None => self.estimate(id, backend, op, inputs, outputs),
        }
    }

    fn estimate(
        &self,
        id: KernelId,
        backend: &dyn Backend,
        op: &Op,
        inputs: &[&Type],
        outputs: &[&Type],
    ) -> f64 {
        // What was measured of the link says it.
        if op.is_exchange() {
            return backend.predict(op, inputs, outputs);
        }
        let speed = backend.speed();
        match self.stands_for(id, op, inputs, outputs) {
            Some(timed) => scaled(timed, factor(&timed, speed, op, inputs, outputs), speed),
            None => backend.predict(op, inputs, outputs),
        }
    }

    /// Bytes a second that the link to the host was timed at.
    pub(super) fn timed_link(&self, backend: &dyn Backend) -> Option<f64> {
        self.known.get(&KernelId::of(&link_key(backend))).map(link_speed)
    }

    /// The link to the host: as timed, else as the device says it roughly is; none where there is none.
    pub(crate) fn link(&self, backend: &dyn Backend) -> Option<Link> {
        let rough = backend.rough_link()?.slower();
        let speed = self.timed_link(backend).unwrap_or(rough);
        Some(Link { bytes_per_second: speed as u64, start_ns: COPY_START_NS })
    }

    /// Times the link, if that has not been done, with at most so many bytes on either side.
    pub(crate) fn time_link(&mut self, device: &Device, room: Bytes) -> Result<()> {
        let is_known = self.is_recalled || self.timed_link(device.backend()).is_some();
        let Some(file) = self.file.clone().filter(|_| !is_known) else { return Ok(()) };
        let bytes = room.min(MOST_COPIED);
        if bytes < LEAST_COPIED {
            return Ok(());
        }
        let (bytes, site) = (bytes.get() as usize, Site::here());
        let buffer = Buffer::new(device, bytes, "calibration", site)?;
        // SAFETY: the buffer is fresh, has as many bytes, and nobody else knows it.
        let link = unsafe { device.backend().time_link(buffer.ptr(), bytes) }
            .map_err(|fault| crate::error::Error::Fault { fault, site })?;
        drop(buffer);
        device.memory().release_unused();
        if let Some(link) = link {
            let seconds = kept(LINK_BYTES / link.slower().max(1.0));
            let timed = Timed { seconds, scratch: 0, flops: 0.0, bytes: LINK_BYTES, trust: Trust::default() };
            self.keep(&file, device, vec![(link_key(device.backend()), timed)]);
        }
        Ok(())
    }

    /// Remembers times, here and in the file. A cache that cannot be written costs the next run its time and nothing else.
    fn keep(&mut self, file: &Path, device: &Device, timed: Vec<(String, Timed)>) {
        let own = own(device).unwrap_or(Bytes::ZERO);
        let facts = Facts::new(device.backend(), device.memory().page(), own);
        Times::append(file, &facts, &timed).ok();
        timed.into_iter().for_each(|(key, timed)| self.remember(&key, timed));
    }

    fn remember(&mut self, key: &str, timed: Timed) {
        let old = self.known.insert(KernelId::of(key), timed);
        if let Some(old) = old.filter(|old| is_timed(key, old)) {
            self.likes.remove(key, &old);
        }
        if is_timed(key, &timed) {
            self.likes.add(key, timed);
        }
    }

    /// Holds the times of kernels, each run so often in a step, against what steps took: undisturbed, and usually. Where that is
    /// far from their sum, the times are corrected for the next plan. Of kernels that were never timed nothing is known, and where
    /// they are most of a step its time says nothing of the others.
    pub(crate) fn compare<'g>(
        &mut self,
        device: &Device,
        kernels: impl Iterator<Item = (&'g Graph, &'g Node, usize)>,
        (least, usual): (f64, f64),
    ) {
        // What a step waits for other ranks says nothing of kernels.
        let Some(file) = self.file.clone().filter(|_| device.rank().ranks == 1) else { return };
        let (mut known, mut all) = (0.0, 0.0);
        let mut keys = FxHashSet::default();
        for (graph, node, runs) in kernels {
            let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
            let key = key(&node.op, &inputs);
            let seconds = runs as f64 * self.seconds(device.backend(), &node.op, &inputs, &outputs);
            all += seconds;
            if self.known.get(&KernelId::of(&key)).is_some_and(|timed| timed.trust != Trust::Estimated) {
                known += seconds;
                keys.insert(key);
            }
        }
        let Some(factor) = drift(all, least, usual).filter(|_| known > all / 2.0) else { return };
        let correct = |key: String| Some((self.known.get(&KernelId::of(&key))?.corrected(factor), key));
        let mut corrected: Vec<(String, Timed)> =
            keys.into_iter().filter_map(correct).map(|(timed, key)| (key, timed)).collect();
        corrected.sort_by(|a, b| a.0.cmp(&b.0));
        self.keep(&file, device, corrected);
    }

    /// The bytes that timing each kernel of a graph takes, whether it has been timed or not: what a process announces must not
    /// depend on what is in a file. Nothing where nothing is timed.
    pub(crate) fn needs(&self, graph: &Graph, device: &Device) -> Result<Vec<Bytes>> {
        if self.file.is_none() {
            return Ok(Vec::new());
        }
        let most = most(device);
        let kernels = graph.nodes().iter().filter(|node| is_timed_alone(node));
        let needs = kernels.map(|node| Ok(Bytes::from(needs(graph, node, device)?)));
        let mut needs = needs.collect::<Result<Vec<Bytes>>>()?;
        needs.retain(|bytes| *bytes <= most);
        needs.sort_unstable();
        needs.dedup();
        Ok(needs)
    }

    /// Times the kernels of a graph that have not been timed, as far as their operands fit into `room` and there is time; estimates
    /// the rest of those that fit.
    pub(crate) fn time(&mut self, graph: &Graph, device: &Device, room: Option<Bytes>) -> Result<()> {
        self.look_up(graph, device)?;
        let Some(file) = self.file.clone().filter(|_| !self.is_recalled) else { return Ok(()) };
        let fresh = self.fresh(graph, device)?;
        let (mut timed, mut late) = (Vec::new(), Vec::new());
        let total = fresh.len();
        for (done, kernel) in fresh.into_iter().enumerate() {
            let node = kernel.node;
            let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
            let backend = kernels(graph, node, device)?;
            // By what was timed just now.
            let seconds = self.seconds(backend, &node.op, &inputs, &outputs);
            // Of what takes long anyway, the roofline says enough.
            if seconds > MOST_SECONDS {
                continue;
            }
            let wait = CALLS * seconds + needs(graph, node, device)? as f64 / FILLED;
            if wait > self.left().as_secs_f64() {
                late.push(kernel);
                continue;
            }
            let start = Instant::now();
            device.tell_timing(done, total, node.op.name());
            if let Some(Measured { seconds, is_noisy }) = time(graph, node, device, room, self.left())? {
                let fresh = described(graph, node, device, kept(seconds))?;
                let id = KernelId::of(&kernel.key);
                let known = self.known.get(&id).copied().filter(|known| known.trust != Trust::Estimated);
                let new = known.unwrap_or(fresh).timed_again(kept(seconds), is_noisy);
                self.tried.insert(id);
                self.near.remove(&id);
                self.remember(&kernel.key, new);
                timed.push((kernel.key, new));
            }
            // The next operands may not fit where these were, and both together may be more than was announced.
            device.memory().release_unused();
            self.spent += start.elapsed();
        }
        // What is kept of the others is what like ones took by now.
        let known = timed.len();
        for kernel in late.into_iter().filter(|kernel| !kernel.is_estimated) {
            let (inputs, outputs) = (types(graph, &kernel.node.inputs), types(graph, &kernel.node.outputs));
            let backend = kernels(graph, kernel.node, device)?;
            let seconds = self.seconds(backend, &kernel.node.op, &inputs, &outputs);
            let fresh = described(graph, kernel.node, device, kept(seconds))?;
            timed.push((kernel.key, Timed { trust: Trust::Estimated, ..fresh }));
        }
        if known > 0 {
            device.tell_timing(total, total, "");
        }
        if !timed.is_empty() {
            let (facts_own, page) = (own(device).unwrap_or(Bytes::ZERO), device.memory().page());
            Times::append(&file, &Facts::new(device.backend(), page, facts_own), &timed).ok();
            self.known.extend(timed.drain(known..).map(|(key, timed)| (KernelId::of(&key), timed)));
        }
        Ok(())
    }

    /// The kernels of a graph that have not been timed, those first that say most: the first of each op, since others are scaled from
    /// it, then those that take most of the step. Estimates, and times from a busy machine, are taken up by whoever has time for it:
    /// who asks in passing gets the same answer again.
    fn fresh<'g>(&self, graph: &'g Graph, device: &Device) -> Result<Vec<Fresh<'g>>> {
        let takes_up = !self.is_in_passing();
        let mut fresh: Vec<Fresh<'g>> = Vec::new();
        let mut seen: FxHashMap<String, Option<usize>> = FxHashMap::default();
        for node in graph.nodes().iter().filter(|node| is_timed_alone(node)) {
            let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
            let backend = kernels(graph, node, device)?;
            let key = key_on(backend, &node.op, &inputs);
            if let Some(at) = seen.get(&key) {
                if let Some(at) = *at {
                    fresh[at].all += fresh[at].seconds;
                }
                continue;
            }
            let id = KernelId::of(&key);
            let trust = self.known.get(&id).map(|timed| timed.trust);
            let is_estimated = trust == Some(Trust::Estimated);
            let wants = match trust {
                None => true,
                Some(trust) => takes_up && (is_estimated || trust.wants_timing()),
            };
            let is_fresh = wants && !self.tried.contains(&id);
            seen.insert(key.clone(), is_fresh.then_some(fresh.len()));
            if is_fresh {
                let seconds = self.seconds(backend, &node.op, &inputs, &outputs);
                let is_timed = trust.is_some_and(|trust| trust != Trust::Estimated);
                let is_first = !is_timed && !self.near.contains_key(&id) && !self.likes.knows(&node.op);
                fresh.push(Fresh { key, node, seconds, all: seconds, is_first, is_estimated });
            }
        }
        fresh.sort_by(|a, b| b.all.total_cmp(&a.all));
        // Of the ops of which nothing is known, one each.
        let mut firsts: FxHashSet<&str> = FxHashSet::default();
        for kernel in &mut fresh {
            kernel.is_first &= firsts.insert(kernel.node.op.variant());
        }
        fresh.sort_by_key(|kernel| !kernel.is_first);
        Ok(fresh)
    }
}

/// Whether a line of the file is the time of a kernel that was run.
pub(super) fn is_timed(key: &str, timed: &Timed) -> bool {
    !is_link(key) && timed.trust != Trust::Estimated
}

/// What the time of copies away from a device is filed under: those to a disk by its folder.
fn link_key(backend: &dyn Backend) -> String {
    backend.disk().map_or_else(|| LINK.into(), |disk| format!("{DISK_LINK}{}", disk.folder().display()))
}

fn is_link(key: &str) -> bool {
    key == LINK || key.starts_with(DISK_LINK)
}

/// Whether a node's kernel can be timed by itself: a view has none, and for an exchange all ranks would have to time it at once.
fn is_timed_alone(node: &Node) -> bool {
    !node.op.is_view() && !node.op.is_exchange()
}

/// A kernel of so many seconds, with what tells its work.
fn described(graph: &Graph, node: &Node, device: &Device, seconds: f64) -> Result<Timed> {
    let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
    let cost = node.op.cost(&inputs, &outputs);
    let scratch = kernels(graph, node, device)?.scratch(&node.op, &inputs, &outputs)?;
    Ok(Timed { seconds, scratch, flops: cost.flops, bytes: cost.bytes, trust: Trust::default() })
}

/// What a file says of links, each under its key.
fn timed_links(file: &Path) -> Vec<(String, Timed)> {
    let mut found = Vec::new();
    Times::each(file, |entry| {
        if let Some(timed) = entry.timed().filter(|_| is_link(entry.kernel)) {
            found.push((entry.kernel.to_string(), timed));
        }
    });
    found
}

/// Bytes a second of a link that was timed.
fn link_speed(timed: &Timed) -> f64 {
    LINK_BYTES / timed.seconds.max(1e-9)
}

/// What the newest file of a folder, of a device whose signature begins so, says of the link: bytes a second.
pub(super) fn measured_link(folder: &Path, signature: &str) -> Option<f64> {
    let modified = |path: &PathBuf| path.metadata().and_then(|about| about.modified()).ok();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "times"))
        .collect();
    files.sort_by_key(modified);
    files.iter().rev().find_map(|file| {
        let facts = Times::each(file, |_| {})?;
        let (_, timed) = timed_links(file).into_iter().rfind(|(key, _)| key == LINK)?;
        facts.signature.starts_with(signature).then(|| link_speed(&timed))
    })
}

/// Where a folder keeps the times of a device.
pub(crate) fn file_in(folder: &Path, device: &str) -> PathBuf {
    let name: String = device.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    folder.join(format!("{name}.times"))
}

/// A time as the file keeps it, in whole nanoseconds: the run that takes it must plan as the next one, which reads it.
fn kept(seconds: f64) -> f64 {
    (seconds * 1e9).ceil() / 1e9
}

/// What the time of a kernel is filed under.
fn key_on(backend: &dyn Backend, op: &Op, inputs: &[&Type]) -> String {
    match backend.times_prefix() {
        "" => key(op, inputs),
        prefix => format!("{prefix}{}", key(op, inputs)),
    }
}

/// What tells kernels apart: the op with its attributes, and the types of its inputs.
pub(crate) fn key(op: &Op, inputs: &[&Type]) -> String {
    let mut key = format!("{op:?}");
    inputs.iter().for_each(|ty| key += &format!(" {ty}"));
    key
}

#[cfg(test)]
mod tests;
