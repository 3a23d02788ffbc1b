//! The CPU backend: kernels over a shared thread pool, chosen for the machine at run time.
//!
//! Results do not depend on the number of threads: work is split by shapes alone, and partial sums are added in a
//! fixed order.

use std::fmt;
use std::sync::Arc;

use plimsoll_device::backend::{Backend, Call, Fault, Speed, Unsupported};
use plimsoll_device::properties::{Compute, Memory};
use plimsoll_device::{Properties, process};
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
}

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
        Ok(Cpu { pool: Arc::new(Pool::try_new(threads)?), isa: Isa::detect() })
    }

    /// The same with an instruction set of one's choice; one that the processor lacks is passed over, since running it
    /// would be undefined.
    pub fn with_isa(threads: usize, isa: Isa) -> Cpu {
        let isa = if isa.is_available() { isa } else { Isa::detect() };
        Cpu { pool: Arc::new(Pool::new(threads.max(1))), isa }
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
}
