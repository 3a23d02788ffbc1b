//! A device as a value: kernels, memory and a record of what was placed on it.
//!
//! Where devices come from is apart, since it alone names backends (`backends`, `best`, `survey`); so is what a memory limit counts (`counted`).
//! Of a device with ranks, kernels that it has not itself, and copies, `exchanges`, `placer` and `traffic` speak; of a folder beside its memory, `disk`.

mod answers;
mod backends;
mod best;
mod buffer;
mod costs;
mod counted;
mod disk;
mod exchanges;
#[cfg(test)]
pub(crate) mod fake_card;
mod filed;
mod host_ops;
mod likes;
mod placer;
mod profile;
mod survey;
mod times;
mod timing;
mod traffic;
mod trial;
mod usage;

pub(crate) use answers::{Answer, Answers, KeptCandidate, KeptCandidates, KeptSideBySide};
pub(crate) use buffer::Buffer;
pub(crate) use costs::Costs;
pub use counted::Counted;
pub(crate) use placer::Chosen;
pub use profile::Profile;
pub use survey::Survey;
pub(crate) use timing::Watch;
pub use traffic::Traffic;
pub(crate) use usage::{blocks, code, full_pages, own, padded, whole_pages};

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use plimsoll_device::backend::{Backend, Meeting};
use plimsoll_device::{Allocator, Bytes, Failing, Growth, GrowthWatch, LibraryBytes, process};
use plimsoll_graph::Site;

use crate::error::{Error, Result};
use crate::scope::within;
use costs::file_in;

/// Where ops run and tensors live. Clones are the same device.
///
/// ```
/// use plimsoll_run::{Device, Tensor, TensorOps};
/// let device = Device::cpu_with(2, "64MiB".parse().unwrap())?;
/// let y = device.scope(|| Tensor::from_slice(&[1.0f32, 2.0], [2])?.exp())?;
/// assert_eq!(y.device().map(|d| d.name().to_string()), Some("cpu".into()));
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    memory: Arc<dyn Allocator>,
    placements: Mutex<Option<Vec<Placement>>>,
    growth: Mutex<GrowthWatch>,
    costs: Arc<Mutex<Costs>>,
    /// What the planner has said before.
    answers: Arc<Mutex<Answers>>,
    /// The most that was seen to be taken of a device's own memory.
    most_taken: AtomicU64,
    /// Which allocation is made to fail, where one is.
    fails: Option<u64>,
    /// Who is told how far the timing of kernels has come.
    timing: Mutex<Option<Told>>,
    traffic: traffic::Counter,
    /// Whether ops without a kernel here may run on the host.
    soft: AtomicBool,
    /// Devices that are asked for by layers' names.
    wishes: Mutex<Vec<placer::Wish>>,
    /// The host's kernels over this memory, once one is wanted.
    host_ops: OnceLock<host_ops::HostOps>,
    /// Who is told of files in the cache that are not as they were written.
    remarks: Mutex<Option<Remarked>>,
    /// The kernels of exchanges with other ranks, where it is one of several.
    exchanges: Option<exchanges::Exchanges>,
}

/// Who is told something in a sentence.
type Remarked = Arc<dyn Fn(&str) + Send + Sync>;

/// Who is told how far the timing of kernels has come: how many are done, of how many, and which is next.
type Told = Arc<dyn Fn(usize, usize, &str) + Send + Sync>;

/// One line of the placement log: which op ran where, asked for by which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The op's name.
    pub op: &'static str,
    /// The layer that it is of: the naming scopes that were open.
    pub layer: String,
    /// The name of the device whose kernel ran.
    pub device: String,
    /// Why there.
    pub why: String,
    /// The line that asked for it.
    pub site: Site,
}

/// The placement log keeps at most this many lines, the newest; a log must not become the leak it helps to find.
const LOGGED_PLACEMENTS: usize = 100_000;

/// What a device's memory holds now and held at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes in use.
    pub current: Bytes,
    /// The most that were in use since the start or the last reset.
    pub peak: Bytes,
    /// Bytes the device has taken from the system.
    pub reserved: Bytes,
    /// The hard limit.
    pub limit: Bytes,
}

thread_local! {
    static SCOPES: RefCell<Vec<Device>> = const { RefCell::new(Vec::new()) };
}

impl Device {
    /// The same device, kernels and memory, of which the n-th allocation from now on fails, from 1: to rehearse what happens
    /// then. The refusal says that it is a rehearsal.
    #[must_use]
    pub fn failing(&self, n: u64) -> Device {
        let mut device = self.alike(Arc::new(Failing::new(self.0.memory.clone(), n)));
        device.fails = Some(n);
        if let Some(peers) = self.ranks().cloned() {
            return Device(Arc::new(device)).with_ranks(peers);
        }
        Device(Arc::new(device))
    }

    /// The same kernels, with what is known of them and asked of them, over other memory.
    fn alike(&self, memory: Arc<dyn Allocator>) -> Inner {
        let mut device = Device::inner(self.0.backend.clone(), memory);
        device.fails = self.0.fails;
        device.soft = AtomicBool::new(self.is_softly_placed());
        // Times that were taken or read from a file are as good for it.
        device.costs = self.0.costs.clone();
        device.answers = self.0.answers.clone();
        let of = |from: &Mutex<Option<Remarked>>| from.lock().unwrap_or_else(PoisonError::into_inner).clone();
        device.remarks = Mutex::new(of(&self.0.remarks));
        let told = self.0.timing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        device.timing = Mutex::new(told);
        device.wishes = Mutex::new(self.wishes().clone());
        device
    }

    /// Which allocation is made to fail, where [`Device::failing`] says so.
    pub fn fails(&self) -> Option<u64> {
        self.0.fails
    }

    /// A device of one's own: kernels, and the memory they work on.
    pub fn over(backend: Arc<dyn Backend>, memory: Arc<dyn Allocator>) -> Device {
        Device(Arc::new(Device::inner(backend, memory)))
    }

    fn inner(backend: Arc<dyn Backend>, memory: Arc<dyn Allocator>) -> Inner {
        let growth = Mutex::new(GrowthWatch::default());
        let (placements, costs) = (Mutex::new(None), Arc::new(Mutex::new(Costs::default())));
        Inner {
            backend,
            memory,
            placements,
            growth,
            costs,
            answers: Arc::default(),
            most_taken: AtomicU64::new(0),
            fails: None,
            timing: Mutex::new(None),
            traffic: traffic::Counter::default(),
            soft: AtomicBool::new(false),
            wishes: Mutex::default(),
            host_ops: OnceLock::new(),
            remarks: Mutex::new(None),
            exchanges: None,
        }
    }

    /// The innermost device scope of this thread, or the process's own CPU device.
    pub fn current() -> Result<Device> {
        match SCOPES.with_borrow(|scopes| scopes.last().cloned()) {
            Some(device) => Ok(device),
            None => Device::default_cpu(),
        }
    }

    /// Runs `body` with this as the current device: tensors made in it live here.
    pub fn scope<T>(&self, body: impl FnOnce() -> T) -> T {
        within(&SCOPES, self.clone(), body)
    }

    /// Its name: `cpu`, `cuda:0`.
    pub fn name(&self) -> &str {
        self.0.backend.name()
    }

    /// What its user should know, a sentence each: a library that is not installed and would make it faster, say.
    pub fn notes(&self) -> Vec<String> {
        self.0.backend.notes()
    }

    /// What its allocator is called: `best-fit`, `system`, `pages`, `pool`, or what one of a user's own calls itself.
    pub fn allocator(&self) -> &'static str {
        self.0.memory.name()
    }

    /// What its libraries took of its own memory, each measured when it was started: context, cuBLASLt, cuDNN, loaded code. Nothing on the
    /// CPU.
    pub fn libraries(&self) -> Vec<LibraryBytes> {
        self.0.backend.libraries()
    }

    /// Bytes in use, peak, reserved and limit.
    pub fn memory_info(&self) -> MemoryInfo {
        let stats = self.0.memory.stats();
        MemoryInfo { current: stats.in_use, peak: stats.peak, reserved: stats.reserved, limit: stats.limit }
    }

    /// Sets the peak back to what is in use now.
    pub fn reset_peak(&self) {
        self.0.memory.reset_peak();
    }

    /// Gives back what nobody holds, and says how much less the process takes by that, as the system counts it (NVML on a card, the
    /// resident set else): freed blocks that were kept for the next tensor, pages of the heap, and where no tensor and no step is
    /// left on the device also loaded code and libraries. What is needed again is taken again.
    ///
    /// ```
    /// use plimsoll_run::{Device, Tensor, TensorOps};
    /// let device = Device::cpu_with(1, "256MiB".parse().unwrap())?;
    /// let large = device.scope(|| Tensor::from_slice(&vec![1.0f32; 1 << 24], [1 << 24]))?;
    /// drop(large);
    /// device.trim()?;
    /// assert_eq!(device.memory_info().reserved.get(), 0);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// The device failed before.
    #[track_caller]
    pub fn trim(&self) -> Result<Bytes> {
        let site = Site::here();
        let taken = || self.taken().or_else(process::resident).unwrap_or(Bytes::ZERO);
        let before = taken();
        self.0.memory.release_unused();
        if self.0.memory.stats().in_use == Bytes::ZERO {
            self.0.backend.trim().map_err(|fault| Error::Fault { fault, site })?;
        }
        process::release_unused_heap();
        Ok(before.saturating_sub(taken()))
    }

    /// Ends a step of an eager loop and names what has grown in each of the last few steps, with its source line.
    pub fn mark_step(&self) -> Vec<Growth> {
        let mut growth = self.0.growth.lock().unwrap_or_else(PoisonError::into_inner);
        growth.mark_step(&*self.0.memory)
    }

    /// Starts (or restarts) the placement log, or ends it.
    pub fn log_placement(&self, on: bool) {
        *self.0.placements.lock().unwrap_or_else(PoisonError::into_inner) = on.then(Vec::new);
    }

    /// What ran where since the log was started, the newest 100,000 lines.
    pub fn placements(&self) -> Vec<Placement> {
        self.0.placements.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Lets plans go by measured times: each distinct kernel is timed once, when it is first planned, and its time is
    /// kept in `folder`. Without this, times are estimated from the kernel's work.
    ///
    /// ```
    /// use plimsoll_run::{Device, Tensor, TensorOps, function};
    /// let folder = std::env::temp_dir().join("plimsoll-example");
    /// let device = Device::cpu_with(1, "64MiB".parse().unwrap())?;
    /// device.calibrate(&folder);
    /// let exp = function(|x| Ok(vec![x[0].exp()?]));
    /// device.scope(|| exp.call(&[&Tensor::from_slice(&[0.0f32], [1])?]))?;
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn calibrate(&self, folder: &Path) {
        *self.costs() = Costs::kept_in(folder, &self.0.backend.signature());
    }

    /// Times kernels for so long at most, for all plans together, and scales the times of the others from those of like ones. Two seconds
    /// where nothing is said; with less, kernels that were estimated before, or timed while the machine was busy, are left at that.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let device = Device::cpu_with(1, "64MiB".parse().unwrap())?;
    /// device.calibrate(&std::env::temp_dir().join("plimsoll-example"));
    /// device.time_for(std::time::Duration::from_millis(250));
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn time_for(&self, time: Duration) {
        self.costs().time_for(time);
    }

    /// Goes by the record of a device of the same kind where this one has no times of its own: the text of a file of kernel times. Whoever
    /// only plans, and has no time to time kernels ([`Device::time_for`]), then neither compiles nor times any. Without a folder for
    /// times ([`Device::calibrate`]) it changes nothing. Returns whether the record is one of a device of this kind.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let device = Device::cpu_with(1, "64MiB".parse().unwrap())?;
    /// assert!(!device.recorded_times("plimsoll kernel times 3\nsignature\tcuda A Card sm_90\n"));
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn recorded_times(&self, record: &'static str) -> bool {
        self.costs().record(record, &self.0.backend.signature())
    }

    /// How many kernels plans have asked for, and how many of them have the time of a record ([`Device::recorded_times`]) because this
    /// device has not timed them yet; none where no record is gone by.
    pub fn kernels_by_record(&self) -> Option<(usize, usize)> {
        self.costs().recorded()
    }

    /// Keeps the planner's answers in `folder`, at most 64 MiB of them, and goes by those that are there: a step that was planned before,
    /// for the same memory and with the same times, is not searched again. A kept plan is verified like any other before it is
    /// used. Files that are damaged or do not hold are told to [`Device::on_remark`] and planned afresh.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let folder = std::env::temp_dir().join("plimsoll-example");
    /// let device = Device::cpu_with(1, "64MiB".parse().unwrap())?;
    /// device.keep_plans(&folder);
    /// device.on_remark(|remark| eprintln!("{remark}"));
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn keep_plans(&self, folder: &Path) {
        *self.0.answers.lock().unwrap_or_else(PoisonError::into_inner) = Answers::kept_in(folder);
    }

    /// Tells of files in a cache that are damaged, by name.
    pub fn on_remark(&self, told: impl Fn(&str) + Send + Sync + 'static) {
        *self.0.remarks.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(told));
    }

    /// Asks, or adds to, what the planner has said before.
    pub(crate) fn answers<T>(&self, ask: impl FnOnce(&mut Answers) -> T) -> T {
        let mut answers = self.0.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = ask(&mut answers);
        let told = self.0.remarks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(told) = told {
            answers.take_remarks().iter().for_each(|remark| told(remark));
        }
        answer
    }

    /// Goes by the times that [`Device::keep_times`] wrote to a folder, and takes none of them anew: the same plans are made again.
    pub fn recall_times(&self, folder: &Path) {
        let mut costs = self.costs();
        *costs = Costs::recalled_from(folder, &self.0.backend.signature(), costs.its_record());
    }

    /// Writes the times that plans went by to a folder: [`Device::recall_times`] lets the same plans be made again, whatever has been
    /// timed since.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn keep_times(&self, folder: &Path) -> std::io::Result<()> {
        self.costs().write_to(folder, self)
    }

    /// Whether a folder has times of this very device: [`Device::keep_times`] wrote them, or an earlier run.
    pub fn has_times_in(&self, folder: &Path) -> bool {
        file_in(folder, &self.0.backend.signature()).is_file()
    }

    /// Tells how far the timing of kernels has come, since that may take long where many are planned for the first time: called
    /// before each kernel with how many are done, of how many, and the name of its op; and once all are done, with an empty name.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let device = Device::cpu_with(1, "64MiB".parse().unwrap())?;
    /// device.on_timing(|done, total, op| eprintln!("timing kernels: {done} of {total} {op}"));
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn on_timing(&self, told: impl Fn(usize, usize, &str) + Send + Sync + 'static) {
        *self.0.timing.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(told));
    }

    pub(crate) fn tell_timing(&self, done: usize, total: usize, op: &str) {
        let told = self.0.timing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(told) = told {
            told(done, total, op);
        }
    }

    /// What the process takes of the device's own memory, as the system counts it (NVML); none where tensors are in the
    /// host's memory.
    pub fn taken(&self) -> Option<Bytes> {
        self.0.backend.taken()
    }

    /// Whether all that was run on it is done, without waiting for it.
    pub fn is_idle(&self) -> bool {
        self.0.backend.is_idle()
    }

    /// Waits for all work on it, that of other libraries of the process too.
    ///
    /// # Errors
    /// The device's refusal, or what a kernel refused since the last wait.
    #[track_caller]
    pub fn settle(&self) -> Result<()> {
        let site = Site::here();
        self.0.backend.synchronize_all().map_err(|fault| Error::Fault { fault, site })
    }

    /// Where other libraries of the process meet a card; none of a device whose memory is the host's.
    pub fn meeting(&self) -> Option<Meeting> {
        self.0.backend.meeting()
    }

    /// Whether it is only the record of a device ([`Device::profiled`]): steps can be planned for it, and nothing can be run.
    pub fn is_recorded(&self) -> bool {
        self.0.backend.is_recorded()
    }

    /// Whether tensors are in memory of its own, and not in the host's.
    pub fn has_own_memory(&self) -> bool {
        !self.0.backend.is_host()
    }

    /// All of the device's own memory that this process could hold now: what it takes, and what nobody does. None where
    /// tensors are in the host's memory.
    pub fn capacity(&self) -> Option<Bytes> {
        Some(self.0.backend.taken()? + self.0.backend.free()?)
    }

    /// Whether a step on it can copy tensors away and back beside its kernels: to a disk ([`Device::with_disk`]), or to the host's
    /// memory, of a device with memory of its own, as [`MemoryRequest::host_limit`](crate::MemoryRequest::host_limit) wants it.
    pub fn copies_to_host(&self) -> bool {
        self.0.backend.rough_link().is_some()
    }

    pub(crate) fn costs(&self) -> MutexGuard<'_, Costs> {
        self.0.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn logs_placement(&self) -> bool {
        self.0.placements.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Adds a line to the placement log, where one is kept.
    pub(crate) fn placed(&self, placement: impl FnOnce() -> Placement) {
        if let Some(log) = &mut *self.0.placements.lock().unwrap_or_else(PoisonError::into_inner) {
            if log.len() >= LOGGED_PLACEMENTS {
                log.drain(..LOGGED_PLACEMENTS / 2);
            }
            log.push(placement());
        }
    }

    /// What runs its ops: for whoever connects it to others, and needs it for as long.
    pub fn shared_backend(&self) -> Arc<dyn Backend> {
        self.0.backend.clone()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    pub(crate) fn memory(&self) -> &Arc<dyn Allocator> {
        &self.0.memory
    }

    pub(crate) fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What somebody leaves for all others of a device's memory, for as long as it stands.
pub(crate) struct Hold {
    memory: Arc<dyn Allocator>,
    who: u64,
}

impl Hold {
    /// Lets everything together take at most so many bytes.
    pub(crate) fn new(device: &Device, most: Bytes) -> Hold {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let who = NEXT.fetch_add(1, Ordering::Relaxed);
        device.memory().hold_to(who, Some(most));
        Hold { memory: device.memory().clone(), who }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.memory.hold_to(self.who, None);
    }
}

/// Gives freed pages of a device back to the system when it goes: the last field of what holds many of them.
pub(crate) struct GiveBack(pub(crate) Device);

impl Drop for GiveBack {
    fn drop(&mut self) {
        self.0.memory().release_unused();
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {}", self.0.backend, self.0.memory.stats())
    }
}
