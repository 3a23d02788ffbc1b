//! The CPU backend: kernels over a shared thread pool, chosen for the machine at run time.
//!
//! Results do not depend on the number of threads: work is split by shapes alone, and partial sums are added in a
//! fixed order.

use std::fmt;
use std::sync::Arc;

use plimsoll_device::backend::{Backend, Call, Fault, HostArena, HostBlock, Link, Speed, Unsupported};
use plimsoll_device::properties::{Compute, Memory};
use plimsoll_device::{Disk, DiskArena, Properties, process};
use plimsoll_graph::{Op, Type};

pub mod conv;
pub mod gemm;
pub mod isa;
pub mod pool;

mod kernels;
mod math;
mod simd;

use isa::Isa;
use pool::Pool;

/// The CPU as a device.
///
/// ```
/// use plimsoll_cpu::Cpu;
/// use plimsoll_device::backend::Backend;
/// assert_eq!(Cpu::new(2).name(), "cpu");
/// ```
#[derive(Clone)]
pub struct Cpu {
    pool: Arc<Pool>,
    isa: Isa,
    /// Where tensors are kept that its memory has no room for.
    disk: Option<Arc<Disk>>,
}

/// What a disk does in a second before it was timed: one without moving parts, of the older kind.
const ROUGH_DISK: f64 = 5e8;
/// Bytes that go from file to file at once.
const AT_ONCE: usize = 1 << 18;

impl Cpu {
    /// A CPU device with a pool of its own of this many threads (at least one).
    pub fn new(threads: usize) -> Cpu {
        Cpu::with_isa(threads, Isa::detect())
    }

    /// As [`Cpu::new`], or an error where the system does not give as many threads.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_new(threads: usize) -> std::io::Result<Cpu> {
        Ok(Cpu { pool: Arc::new(Pool::try_new(threads)?), isa: Isa::detect(), disk: None })
    }

    /// The same with an instruction set of one's choice; one that the processor lacks is passed over, since running it
    /// would be undefined.
    pub fn with_isa(threads: usize, isa: Isa) -> Cpu {
        let isa = if isa.is_available() { isa } else { Isa::detect() };
        Cpu { pool: Arc::new(Pool::new(threads.max(1))), isa, disk: None }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The thread pool, shared by all clones.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The instruction set the kernels use.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu ({} threads, {:?})", self.threads(), self.isa)
    }
}

impl Backend for Cpu {
    fn name(&self) -> &str {
        "cpu"
    }

    fn signature(&self) -> String {
        let model = process::cpu_model().unwrap_or_else(|| "unknown".into());
        let (isa, threads, version) = (self.isa.name(), self.threads(), env!("CARGO_PKG_VERSION"));
        format!("cpu {model} {isa} {threads} threads {version}")
    }

    fn properties(&self) -> Properties {
        Properties {
            name: self.name().into(),
            model: process::cpu_model().unwrap_or_else(|| "unknown".into()),
            memory: Memory {
                total: process::physical_memory(),
                free: process::available_memory(),
                cgroup_limit: process::cgroup_memory_limit(),
                holders: Vec::new(),
            },
            compute: Compute {
                cores: process::machine_cpus(),
                allowed_cores: process::allowed_cpus(),
                capability: None,
                kernels: self.isa.name().into(),
                features: Isa::features(),
            },
            notes: self.notes(),
            ..Properties::default()
        }
    }

    fn speed(&self) -> Speed {
        // What one core of a present server does in f32 products, and what two share of its memory.
        let threads = self.threads() as f64;
        Speed { flops: 90e9 * threads, bytes: 10e9 * threads.min(2.0), call: 3e-6 }
    }

    fn scratch(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Unsupported> {
        Ok(kernels::kernel(op).scratch(self, inputs, outputs))
    }

    unsafe fn run(&self, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise, passed on.
        unsafe { kernels::kernel(call.op).run(self, call) }
    }

    fn notes(&self) -> Vec<String> {
        let in_memory = self.disk.iter().filter(|disk| disk.is_in_memory());
        let note = |disk: &Arc<Disk>| {
            format!(
                "{} is a folder in memory: what is kept there takes memory that the limit does not count",
                disk.folder().display()
            )
        };
        in_memory.map(note).collect()
    }

    fn with_disk(&self, disk: &Arc<Disk>) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(Cpu { disk: Some(disk.clone()), ..self.clone() }))
    }

    fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.as_ref()
    }

    fn rough_link(&self) -> Option<Link> {
        self.disk.as_ref().map(|_| Link { up: ROUGH_DISK, down: ROUGH_DISK })
    }

    unsafe fn time_link(&self, _at: *mut u8, _bytes: usize) -> Result<Option<Link>, Fault> {
        self.disk.as_ref().map(Disk::time).transpose()
    }

    fn host_arena(&self) -> Result<Option<Box<dyn HostArena>>, Fault> {
        let arena = |disk| -> Result<Box<dyn HostArena>, Fault> { Ok(Box::new(DiskArena::new(disk)?)) };
        self.disk.as_ref().map(arena).transpose()
    }

    fn host_block(&self, bytes: usize) -> Result<Option<Box<dyn HostBlock>>, Fault> {
        let block =
            |disk: &Arc<Disk>| -> Result<Box<dyn HostBlock>, Fault> { Ok(Box::new(disk.block(bytes)?)) };
        self.disk.as_ref().map(block).transpose()
    }

    unsafe fn upload(&self, to: *mut u8, from: &[u8]) -> Result<(), Fault> {
        if let Some(disk) = &self.disk
            && disk.write(to, from)?
        {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: *const u8, to: &mut [u8]) -> Result<(), Fault> {
        if let Some(disk) = &self.disk
            && disk.read(from, to)?
        {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Fault> {
        let Some(disk) = &self.disk else {
            // SAFETY: the caller's promise.
            unsafe { from.copy_to(to, bytes) };
            return Ok(());
        };
        // Either end may be in a file: through memory that is the process's own, a piece at a time.
        if disk.has(from) && disk.has(to) {
            let mut piece = vec![0; AT_ONCE.min(bytes)];
            for at in (0..bytes).step_by(AT_ONCE) {
                let piece = &mut piece[..AT_ONCE.min(bytes - at)];
                disk.read(from.wrapping_add(at), piece)?;
                disk.write(to.wrapping_add(at), piece)?;
            }
            return Ok(());
        }
        if disk.has(from) {
            // SAFETY: the caller's promise: so many bytes that nobody else uses.
            disk.read(from, unsafe { std::slice::from_raw_parts_mut(to, bytes) })?;
        } else if disk.has(to) {
            // SAFETY: the caller's promise: so many bytes, which are there.
            disk.write(to, unsafe { std::slice::from_raw_parts(from, bytes) })?;
        } else {
            // SAFETY: the caller's promise.
            unsafe { from.copy_to(to, bytes) };
        }
        Ok(())
    }
}
