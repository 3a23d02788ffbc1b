//! The devices that come with the engine. The only place that names a backend: everything behind it sees a [`Device`].

use std::sync::{Arc, OnceLock};

use plimsoll_cpu::Cpu;
use plimsoll_cuda::{CardPages, Cuda, DriverMemory, Options};
use plimsoll_device::{Allocator, AllocatorKind, BestFit, Bytes, HostMemory, process};

use super::{Device, Profile};
use crate::error::{Error, Result};

impl Device {
    /// The CPU with all the threads this process may use, its memory limited by the machine's.
    pub fn cpu() -> Result<Device> {
        Device::cpu_threads(process::allowed_cpus())
    }

    /// The CPU with a number of threads, its memory limited by the machine's.
    ///
    /// # Errors
    /// There are more threads than [`Device::most_threads`], or the system does not give as many.
    pub fn cpu_threads(threads: usize) -> Result<Device> {
        Ok(Device::over(cpu(threads)?, Arc::new(BestFit::with_machine_limit()?)))
    }

    /// The CPU with a number of threads and a hard limit on the bytes of its tensors.
    ///
    /// # Errors
    /// As for [`Device::cpu_threads`].
    pub fn cpu_with(threads: usize, limit: Bytes) -> Result<Device> {
        Ok(Device::over(cpu(threads)?, Arc::new(BestFit::new(limit)?)))
    }

    /// The CPU with a number of threads and an allocator of a kind, with a hard limit on the bytes of its tensors or limited by the
    /// machine's memory.
    ///
    /// ```
    /// use plimsoll_device::AllocatorKind;
    /// use plimsoll_run::Device;
    /// let device = Device::cpu_allocating(1, Some("64MiB".parse().unwrap()), AllocatorKind::Pool)?;
    /// assert_eq!(device.allocator(), "pool");
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Device::cpu_threads`], or there is no such allocator on this system.
    pub fn cpu_allocating(threads: usize, limit: Option<Bytes>, kind: AllocatorKind) -> Result<Device> {
        Ok(Device::over(cpu(threads)?, Arc::new(kind.on_host(limit)?)))
    }

    /// The CPU over memory of one's own: a debug allocator, say.
    ///
    /// # Errors
    /// As for [`Device::cpu_threads`].
    pub fn cpu_over(threads: usize, memory: impl HostMemory + 'static) -> Result<Device> {
        Ok(Device::over(cpu(threads)?, Arc::new(memory)))
    }

    /// The most threads that a CPU device may have: four for each processor of this process, and at least 64. More would only
    /// wait for each other, and a process that asks the system for very many is ended by it.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let many = Device::cpu_threads(100_000).unwrap_err().to_string();
    /// assert!(many.contains(&Device::most_threads().to_string()), "{many}");
    /// ```
    pub fn most_threads() -> usize {
        process::allowed_cpus().saturating_mul(4).max(64)
    }

    /// A CUDA card with its usual options; its memory is limited by what the card has free.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// match Device::cuda(0) {
    ///     Ok(device) => assert_eq!(device.name(), "cuda:0"),
    ///     Err(why) => assert!(why.to_string().starts_with("no CUDA device")),
    /// }
    /// ```
    ///
    /// # Errors
    /// There is no driver, no such card, or no compiler library.
    pub fn cuda(ordinal: usize) -> Result<Device> {
        Device::cuda_with(ordinal, Options::default())
    }

    /// A CUDA card.
    ///
    /// # Errors
    /// As for [`Device::cuda`].
    pub fn cuda_with(ordinal: usize, options: Options) -> Result<Device> {
        Device::cuda_allocating(ordinal, options, AllocatorKind::Pages)
    }

    /// A CUDA card with an allocator of a kind.
    ///
    /// # Errors
    /// As for [`Device::cuda`]; or the kind is none of a card's: best fit keeps one region, which only the host can reserve and touch
    /// as it is needed.
    pub fn cuda_allocating(ordinal: usize, options: Options, kind: AllocatorKind) -> Result<Device> {
        if kind == AllocatorKind::BestFit {
            let (device, kind) = (format!("cuda:{ordinal}"), kind.name());
            return Err(Error::NoSuchAllocator { device, kind, others: "pages, pool or system" });
        }
        let cuda = Cuda::with(ordinal, options)?;
        let (free, _) = cuda.memory()?;
        let memory: Arc<dyn Allocator> = match kind {
            AllocatorKind::System => Arc::new(DriverMemory::by_block(&cuda, free.into())?),
            AllocatorKind::Pool => Arc::new(DriverMemory::by_stream(&cuda, free.into())?),
            AllocatorKind::Pages | AllocatorKind::BestFit => Arc::new(CardPages::pool(&cuda, free.into())?),
        };
        Ok(Device::over(Arc::new(cuda), memory))
    }

    /// A stand-in for a CUDA card that runs the same kernels on the host: slow, for tests.
    ///
    /// # Errors
    /// There is no C++ compiler.
    pub fn cuda_emulated(limit: Bytes) -> Result<Device> {
        Ok(Device::over(Arc::new(Cuda::emulated()?), Arc::new(BestFit::new(limit)?)))
    }

    /// A card that is not here, as far as it was recorded: steps can be planned for it and nothing can be run.
    ///
    /// # Errors
    /// There are no addresses for a step's constants.
    pub fn profiled(profile: &Arc<Profile>) -> Result<Device> {
        let memory = profile.memory()?;
        Ok(Device::over(profile.clone(), Arc::new(memory)))
    }

    /// The process's own CPU device.
    pub(super) fn default_cpu() -> Result<Device> {
        static DEFAULT: OnceLock<Device> = OnceLock::new();
        if let Some(device) = DEFAULT.get() {
            return Ok(device.clone());
        }
        // Two threads may both make one; the first to arrive is kept and the other is dropped unused.
        let device = Device::cpu()?;
        Ok(DEFAULT.get_or_init(|| device).clone())
    }
}

/// The CPU with as many threads as are asked for, and no fewer.
fn cpu(threads: usize) -> Result<Arc<Cpu>> {
    let most = Device::most_threads();
    if threads > most {
        return Err(Error::Threads { asked: threads, most });
    }
    Cpu::try_new(threads).map(Arc::new).map_err(|source| Error::NoThread { asked: threads, source })
}
