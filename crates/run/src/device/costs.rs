//! How long kernels take on a device: from a roofline at first, then from timing each distinct one once.
//!
//! Times are kept in a file from run to run, named after the device, so that the same request gives the same plan. A time that was
//! taken on a busy machine, or that steps have contradicted, is taken again by the next process that plans the kernel.
//!
//! Nobody waits for all kernels of a large step: a process times them for so long and no longer, those first that say most, and the rest
//! are scaled from like ones (`likes`). Such estimates are kept too, so that the next process plans alike; one that has more
//! time takes their time in turn.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_device::backend::{ALIGNMENT, Backend, Call, Fault, Operand};
use plimsoll_device::{Bytes, process};
use plimsoll_graph::{DType, Graph, Node, Op, Site, Type};
use plimsoll_plan::Link;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::Device;
use super::buffer::Buffer;
use super::likes::{Likes, scaled};
use super::times::{Facts, Timed, Times, Trust};
use super::timing::{Measured, Sample, drift, measure};
use super::usage::own;
use crate::error::Result;

/// A kernel that is estimated to take longer than this is not timed.
const MOST_SECONDS: f64 = 0.3;
/// Nor one whose operands take more than this.
const MOST_BYTES: Bytes = Bytes::mib(512);
/// Under what name the time of copies to the host and back is kept: seconds for so many bytes, the slower way.
pub(crate) const LINK: &str = "copy of a GiB between device and host";
pub(crate) const LINK_BYTES: f64 = (1u64 << 30) as f64;
/// Bytes of a copy that is timed: at most, so that starting it costs nothing, and at least, or it is not timed.
const MOST_COPIED: Bytes = Bytes::mib(64);
const LEAST_COPIED: Bytes = Bytes::mib(1);
/// Calls that a device is given at once.
const TOGETHER: usize = 8;
/// For how long a process times kernels, unless somebody says otherwise.
const PATIENCE: Duration = Duration::from_secs(2);
/// What timing a kernel takes, in calls of it, and in bytes of its operands that are filled in a second.
const CALLS: f64 = 5.0;
const FILLED: f64 = 2e9;

/// The times that are known of a device's kernels.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    /// By kernel.
    known: FxHashMap<String, Timed>,
    /// Kernels that this process has timed: it times none of them again.
    tried: FxHashSet<String>,
    /// Where they are kept; without a place nothing is timed.
    file: Option<PathBuf>,
    /// Whether they are those of an earlier run, which are neither added to nor taken anew.
    is_recalled: bool,
    /// Those that were timed, to scale others from.
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
        let known = Times::read(&file).kernels;
        let likes = Likes::new(known.iter().filter(|(key, timed)| is_timed(key, timed)));
        Costs { known, likes, file: Some(file), ..Costs::default() }
    }

    /// Times kernels for so long, all together, and estimates the rest.
    pub(crate) fn time_for(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// What is left of the time for timing; as much as is left has somebody who said nothing.
    fn left(&self) -> Duration {
        self.patience.unwrap_or(PATIENCE).saturating_sub(self.spent)
    }

    /// The same, with every time taken as it stands: plans that were made by them are made again.
    pub(crate) fn recalled_from(folder: &Path, device: &str) -> Costs {
        Costs { is_recalled: true, ..Costs::kept_in(folder, device) }
    }

    /// Writes all that is known to a folder, as [`Costs::kept_in`] reads it there.
    pub(crate) fn write_to(&self, folder: &Path, device: &Device) -> std::io::Result<()> {
        let mut timed: Vec<(&String, &Timed)> = self.known.iter().collect();
        timed.sort_by_key(|(key, _)| *key);
        let facts = Facts::new(device.backend(), device.memory().page(), own(device).unwrap_or(Bytes::ZERO));
        Times::write(&file_in(folder, &device.backend().signature()), &facts, &timed)
    }

    /// Seconds of a kernel: as timed, else as like ones were, else as the device predicts.
    pub(crate) fn seconds(&self, backend: &dyn Backend, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> f64 {
        match self.known.get(&key_on(backend, op, inputs)) {
            Some(timed) => timed.seconds,
            None => self.estimate(backend, op, inputs, outputs),
        }
    }

    fn estimate(&self, backend: &dyn Backend, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> f64 {
        let speed = backend.speed();
        let like = self.likes.nearest(speed, op, inputs, outputs);
        like.map_or_else(
            || backend.predict(op, inputs, outputs),
            |(timed, factor)| scaled(timed, factor, speed),
        )
    }

    /// Bytes a second that the link to the host was timed at.
    pub(super) fn timed_link(&self) -> Option<f64> {
        self.known.get(LINK).map(link_speed)
    }

    /// The link to the host: as timed, else as the device says it roughly is; none where there is none.
    pub(crate) fn link(&self, backend: &dyn Backend) -> Option<Link> {
        let rough = backend.rough_link()?.slower();
        let speed = self.timed_link().unwrap_or(rough);
        Some(Link { bytes_per_second: speed as u64 })
    }

    /// Times the link, if that has not been done, with at most so many bytes on either side.
    pub(crate) fn time_link(&mut self, device: &Device, room: Bytes) -> Result<()> {
        let is_known = self.is_recalled || self.known.contains_key(LINK);
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
            self.keep(&file, device, vec![(LINK.to_string(), timed)]);
        }
        Ok(())
    }

    /// Remembers times, here and in the file. A cache that cannot be written costs the next run its time and nothing else.
    fn keep(&mut self, file: &Path, device: &Device, timed: Vec<(String, Timed)>) {
        let own = own(device).unwrap_or(Bytes::ZERO);
        let facts = Facts::new(device.backend(), device.memory().page(), own);
        Times::append(file, &facts, &timed).ok();
        timed.into_iter().for_each(|(key, timed)| self.remember(key, timed));
    }

    fn remember(&mut self, key: String, timed: Timed) {
        if let Some(old) = self.known.get(&key).filter(|old| is_timed(&key, old)) {
            self.likes.remove(&key, old);
        }
        if is_timed(&key, &timed) {
            self.likes.add(&key, timed);
        }
        self.known.insert(key, timed);
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
        let Some(file) = self.file.clone() else { return };
        let (mut known, mut all) = (0.0, 0.0);
        let mut keys = FxHashSet::default();
        for (graph, node, runs) in kernels {
            let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
            let key = key(&node.op, &inputs);
            let seconds = runs as f64 * self.seconds(device.backend(), &node.op, &inputs, &outputs);
            all += seconds;
            if self.known.get(&key).is_some_and(|timed| timed.trust != Trust::Estimated) {
                known += seconds;
                keys.insert(key);
            }
        }
        let Some(factor) = drift(all, least, usual).filter(|_| known > all / 2.0) else { return };
        let correct = |key: String| Some((self.known.get(&key)?.corrected(factor), key));
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
        let kernels = graph.nodes().iter().filter(|node| !node.op.is_view());
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
            device.tell_timing(done, total, node.op.name());
            let start = Instant::now();
            if let Some(Measured { seconds, is_noisy }) = time(graph, node, device, room, self.left())? {
                let fresh = described(graph, node, device, kept(seconds))?;
                let known =
                    self.known.get(&kernel.key).copied().filter(|known| known.trust != Trust::Estimated);
                let new = known.unwrap_or(fresh).timed_again(kept(seconds), is_noisy);
                self.tried.insert(kernel.key.clone());
                self.remember(kernel.key.clone(), new);
                timed.push((kernel.key, new));
            }
            self.spent += start.elapsed();
            // The next operands may not fit where these were, and both together may be more than was announced.
            device.memory().release_unused();
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
            self.known.extend(timed.drain(known..));
        }
        Ok(())
    }

    /// The kernels of a graph that have not been timed, those first that say most: the first of each op, since others are scaled from
    /// it, then those that take most of the step. Estimates, and times from a busy machine, are taken up by whoever has time for it:
    /// who asks in passing gets the same answer again.
    fn fresh<'g>(&self, graph: &'g Graph, device: &Device) -> Result<Vec<Fresh<'g>>> {
        let takes_up = self.patience.unwrap_or(PATIENCE) >= PATIENCE;
        let mut fresh: Vec<Fresh<'g>> = Vec::new();
        let mut seen: FxHashMap<String, Option<usize>> = FxHashMap::default();
        for node in graph.nodes().iter().filter(|node| !node.op.is_view()) {
            let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
            let backend = kernels(graph, node, device)?;
            let key = key_on(backend, &node.op, &inputs);
            if let Some(at) = seen.get(&key) {
                if let Some(at) = *at {
                    fresh[at].all += fresh[at].seconds;
                }
                continue;
            }
            let trust = self.known.get(&key).map(|timed| timed.trust);
            let is_estimated = trust == Some(Trust::Estimated);
            let wants = match trust {
                None => true,
                Some(trust) => takes_up && (is_estimated || trust.wants_timing()),
            };
            let is_fresh = wants && !self.tried.contains(&key);
            seen.insert(key.clone(), is_fresh.then_some(fresh.len()));
            if is_fresh {
                let seconds = self.seconds(backend, &node.op, &inputs, &outputs);
                let is_first = !self.likes.knows(&node.op);
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
fn is_timed(key: &str, timed: &Timed) -> bool {
    key != LINK && timed.trust != Trust::Estimated
}

/// A kernel of so many seconds, with what tells its work.
fn described(graph: &Graph, node: &Node, device: &Device, seconds: f64) -> Result<Timed> {
    let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
    let cost = node.op.cost(&inputs, &outputs);
    let scratch = kernels(graph, node, device)?.scratch(&node.op, &inputs, &outputs)?;
    Ok(Timed { seconds, scratch, flops: cost.flops, bytes: cost.bytes, trust: Trust::default() })
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
        let times = Times::read(file);
        let is_of_it = times.facts.is_some_and(|facts| facts.signature.starts_with(signature));
        times.kernels.get(LINK).filter(|_| is_of_it).map(link_speed)
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

/// A kernel that takes more is not timed: a device of its own is timed with whatever fits; of the host's memory others live too.
fn most(device: &Device) -> Bytes {
    if device.backend().is_host() { MOST_BYTES } else { Bytes(u64::MAX) }
}

/// Bytes that timing a kernel takes: operands and scratch, each padded.
fn needs(graph: &Graph, node: &Node, device: &Device) -> Result<usize> {
    let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
    let scratch = kernels(graph, node, device)?.scratch(&node.op, &inputs, &outputs)?;
    let operands: usize = inputs.iter().chain(&outputs).map(|ty| padded(ty.bytes())).sum();
    Ok((operands + padded(scratch)).max(ALIGNMENT))
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

fn types<'g>(graph: &'g Graph, ids: &[plimsoll_graph::ValueId]) -> SmallVec<[&'g Type; 4]> {
    ids.iter().map(|&v| graph.ty(v)).collect()
}

/// The kernels that a node runs with.
fn kernels<'d>(graph: &Graph, node: &Node, device: &'d Device) -> Result<&'d dyn Backend> {
    device.kernels(device.is_on_host(graph, node)?)
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

/// The time of a kernel over operands of plain values, or `None` if they do not fit or the kernel refuses them. One that turns out to take
/// longer than there is time `left` is run once.
fn time(
    graph: &Graph,
    node: &Node,
    device: &Device,
    room: Option<Bytes>,
    left: Duration,
) -> Result<Option<Measured>> {
    let (inputs, outputs) = (types(graph, &node.inputs), types(graph, &node.outputs));
    let backend = kernels(graph, node, device)?;
    let scratch_bytes = backend.scratch(&node.op, &inputs, &outputs)?;
    let all = || inputs.iter().chain(&outputs);
    let bytes = needs(graph, node, device)?;
    let most = most(device);
    if Bytes::from(bytes) > room.unwrap_or(most).min(most) {
        return Ok(None);
    }
    let buffer = Buffer::new(device, bytes, "calibration", Site::here())?;
    let mut at = buffer.ptr();
    let mut operands: SmallVec<[Operand<'_>; 16]> = SmallVec::new();
    for ty in all() {
        operands.push(Operand { ty, ptr: at });
        // SAFETY: the buffer was made as large as all operands one after the other, then scratch.
        let filled = unsafe {
            match device.backend().is_host() {
                true => {
                    fill(ty, at);
                    Ok(())
                }
                false => fill_there(device.backend(), ty, at),
            }
        };
        if filled.is_err() {
            return Ok(None);
        }
        // SAFETY: as above.
        at = unsafe { at.add(padded(ty.bytes())) };
    }
    let (reads, writes) = operands.split_at(inputs.len());
    let call = Call { op: &node.op, inputs: reads, outputs: writes, scratch: at, scratch_bytes };
    if !device.backend().is_host() {
        return Ok(time_recorded(backend, &call, left));
    }
    let run = || {
        let (start, processor) = (Instant::now(), process::thread_cpu_time());
        // SAFETY: operands and scratch are disjoint, of the declared sizes, and live until the buffer is dropped.
        unsafe { device.backend().run(&call) }.ok()?;
        let wall = start.elapsed().as_secs_f64();
        let had = process::thread_cpu_time().zip(processor).map(|(end, start)| (end - start).as_secs_f64());
        Some(Sample { wall, processor: had })
    };
    // The first run touches the memory and is not counted, unless there is no time for another.
    let Some(first) = run() else { return Ok(None) };
    Ok(if 2.0 * first.wall > left.as_secs_f64() { once(first) } else { measure(run) })
}

/// What a single run says, which is not much.
fn once(first: Sample) -> Option<Measured> {
    Some(Measured { seconds: first.wall, is_noisy: true })
}

/// The same on a device that does not wait for its kernels: several calls at once, recorded where the device can, since that is
/// how a step will run them and what the host does for a single call is not what is to be timed.
fn time_recorded(backend: &dyn Backend, call: &Call<'_>, left: Duration) -> Option<Measured> {
    let several = |backend: &dyn Backend| -> std::result::Result<(), Fault> {
        // SAFETY: operands and scratch are disjoint, of the declared sizes, and live as long as the call.
        (0..TOGETHER).try_for_each(|_| unsafe { backend.run(call) })
    };
    // The first run loads code, and touches the memory.
    // SAFETY: as above.
    unsafe { backend.run(call) }.ok()?;
    backend.synchronize().ok()?;
    let recording = backend.record(&mut || several(backend)).ok()?;
    let run = || {
        let start = Instant::now();
        match &recording {
            // SAFETY: the memory is live as it was.
            Some(recording) => unsafe { recording.replay() }.ok()?,
            None => several(backend).ok()?,
        }
        backend.synchronize().ok()?;
        // The host only waits, so its processor time says nothing.
        Some(Sample { wall: start.elapsed().as_secs_f64(), processor: None })
    };
    let first = run()?;
    let together = if 2.0 * first.wall > left.as_secs_f64() { once(first) } else { measure(run) }?;
    Some(Measured { seconds: together.seconds / TOGETHER as f64, ..together })
}

/// As [`fill`], by kernels of the device.
///
/// # Safety
/// As for [`fill`].
unsafe fn fill_there(backend: &dyn Backend, ty: &Type, at: *mut u8) -> Result<(), Fault> {
    // SAFETY: the caller's promise.
    unsafe {
        if !ty.dtype.is_float() {
            return backend.zero(at, ty.bytes());
        }
        let op = Op::from(plimsoll_graph::ops::Full { ty: ty.clone(), value: 0.5.into() });
        let outputs = [Operand { ty, ptr: at }];
        backend.run(&Call {
            op: &op,
            inputs: &[],
            outputs: &outputs,
            scratch: std::ptr::null_mut(),
            scratch_bytes: 0,
        })
    }
}

/// Writes plain values: halves where they are real, zeros where they count or index.
///
/// # Safety
/// `at` is aligned memory of `ty`'s bytes that nobody else uses.
unsafe fn fill(ty: &Type, at: *mut u8) {
    let n = ty.elements();
    // SAFETY: the caller's promise; all element types take any bits.
    unsafe {
        match ty.dtype {
            DType::F32 => std::slice::from_raw_parts_mut(at.cast::<f32>(), n).fill(0.5),
            DType::F64 => std::slice::from_raw_parts_mut(at.cast::<f64>(), n).fill(0.5),
            DType::BF16 => std::slice::from_raw_parts_mut(at.cast(), n).fill(half::bf16::from_f32(0.5)),
            DType::F16 => std::slice::from_raw_parts_mut(at.cast(), n).fill(half::f16::from_f32(0.5)),
            _ => at.write_bytes(0, ty.bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use plimsoll_graph::{TensorOps, Trace};

    #[test]
    fn a_kernel_is_timed_once_and_remembered() {
        let folder = std::env::temp_dir().join(format!("plimsoll-costs-{}", std::process::id()));
        let device = Device::cpu_with(1, Bytes::mib(64)).unwrap();
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [64, 64]));
        let y = x.matmul(&x).unwrap().exp().unwrap();
        let graph = trace.finish(&[&y]).unwrap();
        let mut costs = Costs::kept_in(&folder, "a cpu");
        costs.time(&graph, &device, None).unwrap();
        assert_eq!(costs.known.len(), 2);
        let again = Costs::kept_in(&folder, "a cpu");
        // To the last bit: the run that times a kernel plans as those that read its time.
        let all = |costs: &Costs| {
            let mut all: Vec<(String, u64)> =
                costs.known.iter().map(|(k, t)| (k.clone(), t.seconds.to_bits())).collect();
            all.sort();
            all
        };
        assert_eq!(all(&costs), all(&again));
        let elsewhere = folder.join("run");
        costs.write_to(&elsewhere, &device).unwrap();
        costs.write_to(&elsewhere, &device).unwrap();
        assert_eq!(all(&costs), all(&Costs::kept_in(&elsewhere, &device.backend().signature())));
        fs::write(folder.join("a-cpu.times"), "something else\n12\tx\n").unwrap();
        assert!(Costs::kept_in(&folder, "a cpu").known.is_empty());
        fs::remove_dir_all(folder).unwrap();
    }

    /// A folder for times, and a device to time on.
    fn place(name: &str) -> (PathBuf, Device) {
        let folder = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
        (folder, Device::cpu_with(1, Bytes::mib(64)).unwrap())
    }

    /// Two kernels over a square.
    fn product_and_exp(side: usize) -> Graph {
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [side, side]));
        trace.finish(&[&x.matmul(&x).unwrap().exp().unwrap()]).unwrap()
    }

    #[test]
    fn steps_far_from_the_prediction_correct_the_kernels_and_have_them_timed_again() {
        let (folder, device) = place("drift");
        let graph = product_and_exp(64);
        let kernels = || graph.nodes().iter().map(|node| (&graph, node, 1));
        let sum = |costs: &Costs| costs.known.values().map(|timed| timed.seconds).sum::<f64>();
        let mut costs = Costs::kept_in(&folder, "a cpu");
        costs.time(&graph, &device, None).unwrap();
        let predicted = sum(&costs);
        // About right, or disturbed now and then: nothing changes.
        costs.compare(&device, kernels(), (1.2 * predicted, 9.0 * predicted));
        assert_eq!(sum(&costs), predicted);
        // Five times too much was predicted.
        costs.compare(&device, kernels(), (0.2 * predicted, 0.2 * predicted));
        let mut next = Costs::kept_in(&folder, "a cpu");
        assert!((sum(&next) - 0.2 * predicted).abs() < 1e-8, "{} of {predicted}", sum(&next));
        assert!(next.known.values().all(|timed| timed.trust == Trust::Doubted));
        // This process has timed them; the next one does so again, once.
        costs.time(&graph, &device, None).unwrap();
        assert!(costs.known.values().all(|timed| timed.trust == Trust::Doubted));
        next.time(&graph, &device, None).unwrap();
        assert!(next.known.values().all(|timed| timed.trust == Trust::Again));
        // Steps that contradict those too have the last word.
        let least = 3.0 * sum(&next);
        next.compare(&device, kernels(), (least, least));
        let last = Costs::kept_in(&folder, "a cpu");
        assert!((sum(&last) - least).abs() < 1e-8 && last.known.len() == 2);
        assert!(last.known.values().all(|timed| timed.trust == Trust::Corrected));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn whoever_asks_is_told_how_far_timing_has_come() {
        let (folder, device) = place("told");
        let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let lines = told.clone();
        device.on_timing(move |done, total, op| lines.lock().unwrap().push((done, total, op.to_string())));
        let graph = product_and_exp(8);
        let mut costs = Costs::kept_in(&folder, "a cpu");
        costs.time(&graph, &device, None).unwrap();
        let expected = [(0, 2, "matmul"), (1, 2, "exp"), (2, 2, "")].map(|(d, t, op)| (d, t, op.to_string()));
        assert_eq!(*told.lock().unwrap(), expected);
        // What is known is not timed, and nobody is told anything.
        costs.time(&graph, &device, None).unwrap();
        assert_eq!(told.lock().unwrap().len(), 3);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn without_time_kernels_are_estimated_alike_by_everybody_until_somebody_has_more() {
        let folder = std::env::temp_dir().join(format!("plimsoll-patience-{}", std::process::id()));
        let device = Device::cpu_with(1, Bytes::mib(64)).unwrap();
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [64, 64]));
        let narrow = x.narrow(0, 0, 32).unwrap();
        let y = x.exp().unwrap().matmul(&x).unwrap();
        let graph = trace.finish(&[&y, &narrow.exp().unwrap()]).unwrap();
        let trusts = |costs: &Costs| costs.known.values().map(|timed| timed.trust).collect::<Vec<_>>();
        let mut costs = Costs::kept_in(&folder, "a cpu");
        costs.time_for(Duration::ZERO);
        costs.time(&graph, &device, None).unwrap();
        assert!(trusts(&costs).len() >= 3 && trusts(&costs).iter().all(|trust| *trust == Trust::Estimated));
        // The next one in a hurry goes by the same estimates.
        let mut next = Costs::kept_in(&folder, "a cpu");
        next.time_for(Duration::from_millis(100));
        next.time(&graph, &device, None).unwrap();
        assert_eq!(next.known, costs.known);
        // Who has time takes it, and finds no estimate to scale from.
        let mut patient = Costs::kept_in(&folder, "a cpu");
        patient.time_for(Duration::from_secs(60));
        patient.time(&graph, &device, None).unwrap();
        assert!(trusts(&patient).iter().all(|trust| *trust != Trust::Estimated));
        // A kernel that nobody timed is scaled from one that was: half the elements, about half the time.
        let (op, wide) = (Op::from(plimsoll_graph::ops::Unary::Exp), Type::new(DType::F32, [64, 64]));
        let wider = Type::new(DType::F32, [128, 64]);
        let seconds = |ty: &Type| patient.seconds(device.backend(), &op, &[ty], &[ty]);
        let call = device.backend().speed().call;
        let expected = (seconds(&wide) - call).max(0.0) * 2.0 + call.min(seconds(&wide));
        assert!((seconds(&wider) - expected).abs() < 1e-9, "{} and {expected}", seconds(&wider));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_kernel_without_room_is_not_timed() {
        let (folder, device) = place("room");
        let trace = Trace::new();
        let x = trace.input("x", Type::new(DType::F32, [64, 64]));
        let graph = trace.finish(&[&x.exp().unwrap()]).unwrap();
        let mut costs = Costs::kept_in(&folder, "a cpu");
        costs.time(&graph, &device, Some(Bytes::kib(31))).unwrap();
        assert!(costs.known.is_empty());
        costs.time(&graph, &device, Some(Bytes::kib(32))).unwrap();
        assert_eq!(costs.known.len(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_link_is_timed_once_where_there_is_room_and_remembered() {
        let emulated = Device::cuda_emulated(Bytes::mib(64));
        let Some(device) = plimsoll_testing::group("emulator", emulated) else { return };
        let folder = std::env::temp_dir().join(format!("plimsoll-link-{}", std::process::id()));
        let mut costs = Costs::kept_in(&folder, "a card");
        costs.time_link(&device, Bytes::kib(512)).unwrap();
        assert!(costs.known.is_empty(), "half a MiB is not timed");
        costs.time_link(&device, Bytes::mib(2)).unwrap();
        assert_eq!(costs.known.len(), 1);
        let again = Costs::kept_in(&folder, "a card");
        let (one, two) = (costs.link(device.backend()).unwrap(), again.link(device.backend()).unwrap());
        // Times are kept in whole nanoseconds.
        assert!(one.bytes_per_second.abs_diff(two.bytes_per_second) <= one.bytes_per_second / 1_000_000);
        let cpu = Device::cpu_with(1, Bytes::mib(64)).unwrap();
        assert_eq!(again.link(cpu.backend()), None, "the CPU has none");
        fs::remove_dir_all(folder).unwrap();
    }
}
