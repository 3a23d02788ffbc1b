//! The CUDA backend: every library is loaded at run time, so that it builds everywhere and says in one sentence where it
//! cannot run.
//!
//! Kernels are CUDA C, compiled by NVRTC for the card at hand and kept on disk; matrix products go through cuBLASLt,
//! convolutions and some attention through cuDNN. A kernel declares its scratch before it runs and allocates nothing.
//! Kernels are put on one stream and not waited for; what they refuse (an index out of range) is seen at
//! [`Cuda::synchronize`].
//!
//! Results are the same bits in every run: no sum depends on the order in which blocks happen to finish.
//!
//! What a backend must offer is long; a subject of it has a file (`graph`: recordings, `link`, `memory`, `stream`, and what is known of
//! cards before one is used: `survey`).

mod arena;
mod blas;
mod card;
mod compile;
mod deferred;
mod dnn;
mod driver_memory;
mod emulator;
mod engines;
mod error;
mod graph;
mod holders;
mod kernels;
mod launch;
mod library;
mod link;
mod marks;
mod memory;
mod pages;
mod pool;
mod stream;
mod survey;
mod uploads;

pub use arena::Arena;
pub use driver_memory::DriverMemory;
pub use error::Error;
pub use graph::Graph;
pub use memory::Pinned;
pub use plimsoll_device::backend::Link;
pub use pool::{CardExtent, CardPages, PagePool};
pub use stream::{Event, Stream};

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_device::backend::{
    self, Backend, Call, Fault, HostArena, HostBlock, Meeting, Operand, Prepared, Recording, Speed,
    Unsupported,
};
use plimsoll_device::stopwatch::during;
use plimsoll_device::{Bytes, HostMarks, LibraryBytes, Marks, Properties};
use plimsoll_graph::{Op, Type};

use card::{Card, Identity};
use deferred::{DeferredCopies, HostBuffer};
use emulator::Emulator;
use engines::Engines;
use launch::{Args, Code, Grid, Launch};
use marks::CardMarks;

/// What a process with a card is declared to take of the host's memory for it: the driver, cuBLASLt, cuDNN and NVRTC, whose files are
/// mapped and read as their code is needed. Trainings on an H200 were seen to take from 400 MiB (gpt2, code compiled before) to 710 MiB
/// (resnet50 that compiles its kernels) beside their tensors.
pub const HOST_PROGRAM: Bytes = Bytes::mib(768);

/// Under what name the code that was compiled for a card stands among its libraries.
pub const CODE: &str = "code by NVRTC";

/// What a user may choose about a CUDA device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether f32 matrix products may round their operands to TF32's ten bits of mantissa: faster, other results.
    pub tf32: bool,
    /// Whether cuBLASLt is used where it is installed; without it, matrix products run on the crate's own kernel.
    pub cublaslt: bool,
    /// Whether cuDNN is used for convolutions and attention where it is installed; without it, they run on the crate's own
    /// kernels.
    pub cudnn: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { tf32: false, cublaslt: true, cudnn: true }
    }
}

/// What a device takes of the card's memory beside the arenas and pools made from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of the card in use when the context had been made, other processes' included.
    pub context: usize,
    /// Bytes that libraries' handles took when they were made.
    pub libraries: usize,
    /// Sources that are loaded as code.
    pub modules: usize,
    /// What the whole process holds, as NVML counts it; none where NVML cannot tell.
    pub process: Option<u64>,
}

enum Engine {
    Card(Card),
    Host(Emulator),
}

struct Inner {
    // Declared before the engine: what uses the context goes before it.
    blas: Option<blas::Blas>,
    /// Started when the first convolution or attention asks for it: it takes memory that other models need not pay.
    dnn: Mutex<Option<Arc<dnn::Dnn>>>,
    /// Graphs that were captured and are still there: they hold code.
    graphs: AtomicUsize,
    /// Bytes that the card had less of when cuBLASLt had been started, and when cuDNN had.
    library_bytes: usize,
    dnn_bytes: AtomicUsize,
    flag: *mut u8,
    engine: Engine,
    options: Options,
    name: String,
}

// SAFETY: the flag is an address of the device that only the driver and kernels follow.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// A CUDA card as a device.
///
/// ```
/// use plimsoll_cuda::Cuda;
/// match Cuda::new(0) {
///     Ok(cuda) => println!("{cuda:?}"),
///     Err(why) => assert!(why.to_string().starts_with("no CUDA device")),
/// }
/// ```
#[derive(Clone)]
pub struct Cuda(Arc<Inner>);

impl Cuda {
    /// The card with this number, with the usual options.
    ///
    /// # Errors
    /// There is no driver, no such card, or no compiler library.
    pub fn new(ordinal: usize) -> Result<Cuda, Error> {
        Cuda::with(ordinal, Options::default())
    }

    /// The card with this number.
    ///
    /// # Errors
    /// As for [`Cuda::new`].
    pub fn with(ordinal: usize, options: Options) -> Result<Cuda, Error> {
        let card = during("driver and context", || Card::new(ordinal))?;
        let flag = memory::device_bytes(&card, memory::FLAG_BYTES)?;
        let (before, _) = card.memory()?;
        let blas = match options.cublaslt {
            true => during("cuBLASLt started", || blas::Blas::new(&card, options.tf32))?,
            false => None,
        };
        let (after, _) = card.memory()?;
        let name = format!("cuda:{ordinal}");
        let library_bytes = before.saturating_sub(after);
        let (dnn, graphs, engine) = (Mutex::default(), AtomicUsize::new(0), Engine::Card(card));
        let dnn_bytes = AtomicUsize::new(0);
        let inner = Inner { blas, dnn, graphs, library_bytes, dnn_bytes, flag, engine, options, name };
        let cuda = Cuda(Arc::new(inner));
        // SAFETY: the flag is that many bytes of the device.
        unsafe { cuda.zero(flag, memory::FLAG_BYTES) }?;
        Ok(cuda)
    }

    /// A stand-in that runs the same kernel sources on the host, built by the machine's C++ compiler: for tests where
    /// there is no card. Its memory is the host's. It is slow.
    ///
    /// # Errors
    /// There is no C++ compiler.
    pub fn emulated() -> Result<Cuda, Error> {
        let emulator = Emulator::new()?;
        let flag = Box::leak(Box::new([0i64; memory::FLAG_BYTES / 8])).as_mut_ptr().cast();
        let options = Options { tf32: false, cublaslt: false, cudnn: false };
        let name = "cuda emulated".into();
        Ok(Cuda(Arc::new(Inner {
            blas: None,
            dnn: Mutex::default(),
            graphs: AtomicUsize::new(0),
            library_bytes: 0,
            dnn_bytes: AtomicUsize::new(0),
            flag,
            engine: Engine::Host(emulator),
            options,
            name,
        })))
    }

    /// The number of cards that can be used.
    ///
    /// # Errors
    /// There is no driver.
    pub fn count() -> Result<usize, Error> {
        Card::count()
    }

    /// Whether kernels run on the host instead of a card.
    pub fn is_emulated(&self) -> bool {
        matches!(self.0.engine, Engine::Host(_))
    }

    /// The options it was made with.
    pub fn options(&self) -> Options {
        self.0.options
    }

    /// What the device takes of the card's memory beside arenas and pools.
    pub fn footprint(&self) -> Footprint {
        match &self.0.engine {
            Engine::Card(card) => Footprint {
                context: card.context_bytes,
                libraries: self.0.library_bytes,
                modules: card.compiled(),
                process: card.process_bytes(),
            },
            Engine::Host(_) => Footprint { context: 0, libraries: 0, modules: 0, process: None },
        }
    }

    /// Free and total bytes of the card.
    ///
    /// # Errors
    /// The driver's refusal; the emulator has no such figures.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        self.card("the card's memory").and_then(Card::memory)
    }

    fn card(&self, what: &'static str) -> Result<&Card, Error> {
        match &self.0.engine {
            Engine::Card(card) => Ok(card),
            Engine::Host(_) => {
                Err(Error::Emulator { path: what.into(), why: "it stands for a card without memory".into() })
            }
        }
    }

    /// cuDNN, where it is installed and wanted. If it does not start, that is an error and not tried to do without: what
    /// ran with it before would give other bits.
    fn dnn(&self) -> Result<Option<Arc<dnn::Dnn>>, Error> {
        let Engine::Card(card) = &self.0.engine else { return Ok(None) };
        let Options { tf32, cudnn, .. } = self.0.options;
        let mut dnn = self.0.dnn.lock().unwrap_or_else(PoisonError::into_inner);
        if dnn.is_none() && cudnn {
            let (before, _) = card.memory()?;
            *dnn = during("cuDNN started", || dnn::Dnn::new(card, tf32))?.map(Arc::new);
            let (after, _) = card.memory()?;
            self.0.dnn_bytes.store(before.saturating_sub(after), Ordering::Relaxed);
        }
        Ok(dnn.clone())
    }

    /// Ends cuDNN and unloads code, unless a graph holds some of it.
    fn let_go(&self) -> Result<(), Error> {
        self.synchronize()?;
        if self.0.graphs.load(Ordering::SeqCst) == 0
            && let Engine::Card(card) = &self.0.engine
        {
            *self.0.dnn.lock().unwrap_or_else(PoisonError::into_inner) = None;
            self.0.dnn_bytes.store(0, Ordering::Relaxed);
            card.unload()?;
        }
        Ok(())
    }

    /// Whether there are tensor cores for bf16, copies into shared memory that nobody waits for, and what else came with
    /// them.
    fn has_tensor_cores(&self) -> bool {
        match &self.0.engine {
            Engine::Card(card) => card.capability >= (8, 0),
            Engine::Host(_) => true,
        }
    }

    /// The most shared memory that a block may ask for.
    fn shared_limit(&self) -> usize {
        match &self.0.engine {
            Engine::Card(card) => card.shared_limit,
            Engine::Host(_) => 96 * 1024,
        }
    }

    /// How many blocks the card runs at once, roughly: what work is split for. A fixed number, so that results do not
    /// depend on the card's size.
    const PARALLEL: usize = 256;

    unsafe fn launch(&self, code: &Code<'_>, kernel: &str, grid: Grid, args: &Args) -> Result<(), Error> {
        if launch::is_only_loading() {
            return match &self.0.engine {
                _ if launch::is_collected(code) => Ok(()),
                Engine::Card(card) => card.load(code, kernel, grid),
                // What the emulator compiles takes no memory of a card.
                Engine::Host(_) => Ok(()),
            };
        }
        let launch = &Launch { code, kernel, grid, args };
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match &self.0.engine {
                Engine::Card(card) => card.launch(launch),
                Engine::Host(emulator) => emulator.launch(launch),
            }
        }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.engine {
            Engine::Card(card) => write!(f, "{} ({}, {})", self.0.name, card.name, card.target),
            Engine::Host(_) => f.write_str(&self.0.name),
        }
    }
}

impl Backend for Cuda {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn signature(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let Options { tf32, cublaslt, cudnn } = self.0.options;
        match &self.0.engine {
            Engine::Card(card) => {
                let Card { name, target, .. } = card;
                let blas = match &self.0.blas {
                    Some(blas) if cublaslt => format!("cublaslt {}", blas.version()),
                    _ => "own products".into(),
                };
                let (digits, driver) = (if tf32 { "tf32" } else { "f32" }, survey::driver_version());
                let dnn = match cudnn.then(dnn::Dnn::version).flatten() {
                    Some(version) => format!("cudnn {version}"),
                    None => "own convolutions".into(),
                };
                let sources = compile::fingerprint(&kernels::SOURCES);
                let sources = &sources[..8];
                format!(
                    "cuda {name} {target} driver {driver} {blas} {dnn} {digits} {version} kernels {sources}"
                )
            }
            Engine::Host(_) => format!("cuda emulated {version}"),
        }
    }

    fn notes(&self) -> Vec<String> {
        let Options { cublaslt, cudnn, .. } = self.0.options;
        let slower = |library: library::Library, what: &str| {
            format!(
                "{} was not found: {what} run on slower kernels; install it for full speed",
                library.name()
            )
        };
        let mut notes = Vec::new();
        if !self.is_emulated() && cublaslt && self.0.blas.is_none() {
            notes.push(slower(library::Library::BlasLt, "matrix products"));
        }
        if !self.is_emulated() && cudnn && dnn::Dnn::version().is_none() {
            notes.push(slower(library::Library::Dnn, "convolutions"));
        }
        notes
    }

    fn properties(&self) -> Properties {
        let known = match &self.0.engine {
            Engine::Card(card) => Identity::new(card.ordinal)
                .and_then(|identity| survey::properties(&identity, card.ordinal))
                .ok(),
            Engine::Host(_) => None,
        };
        let (name, model) = (self.0.name.clone(), String::from("the host, which runs the same kernels"));
        known.unwrap_or(Properties { name, model, notes: self.notes(), ..Properties::default() })
    }

    fn speed(&self) -> Speed {
        match &self.0.engine {
            // A multiprocessor does 128 f32 multiply-adds a cycle at about 1.7 GHz; memory moves about a terabyte a
            // second for every forty of them.
            Engine::Card(card) => {
                let units = card.multiprocessors as f64;
                Speed { flops: units * 128.0 * 2.0 * 1.7e9, bytes: units * 25e9, call: 4e-6 }
            }
            Engine::Host(_) => Speed { flops: 1e8, bytes: 1e9, call: 1e-4 },
        }
    }

    fn scratch(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Unsupported> {
        kernels::kernel(op).scratch(self, inputs, outputs).map_err(|why| Unsupported {
            device: self.0.name.clone(),
            op: op.name(),
            types: inputs.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", "),
            why: why.to_string(),
        })
    }

    /// Puts the kernels of a call on the stream and returns; see [`Cuda::synchronize`].
    unsafe fn run(&self, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise, passed on.
        unsafe { kernels::kernel(call.op).run(self, call) }.map_err(|error| match error {
            Error::Fault(fault) => fault,
            other => Fault::new(call.op.name(), other.to_string()),
        })
    }

    fn prepare(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<(), Fault> {
        // Any aligned address will do: nothing is run.
        let operand = |ty| Operand { ty, ptr: std::ptr::without_provenance_mut(1 << 20) };
        let reads: Vec<Operand<'_>> = inputs.iter().map(|ty| operand(*ty)).collect();
        let writes: Vec<Operand<'_>> = outputs.iter().map(|ty| operand(*ty)).collect();
        let scratch_bytes = kernels::kernel(op).scratch(self, inputs, outputs).map_err(Error::into_fault)?;
        let scratch = std::ptr::without_provenance_mut(1 << 20);
        let call = Call { op, inputs: &reads, outputs: &writes, scratch, scratch_bytes };
        // SAFETY: nothing is put on the stream, so that no address is followed.
        launch::only_loading(|| unsafe { kernels::kernel(op).run(self, &call) }).map_err(Error::into_fault)
    }

    fn compile_ahead(&self, calls: &[Prepared<'_>]) {
        let Engine::Card(card) = &self.0.engine else { return };
        let codes = launch::collect(|| {
            for (op, inputs, outputs) in calls {
                // What cannot be prepared says so when it is.
                let _ = self.prepare(op, inputs, outputs);
            }
        });
        card.cache().compile_ahead(&codes, &card.target);
    }

    fn is_host(&self) -> bool {
        false
    }

    unsafe fn upload(&self, to: *mut u8, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { Cuda::upload(self, to, from) }.map_err(Error::into_fault)
    }

    unsafe fn download(&self, from: *const u8, to: &mut [u8]) -> Result<(), Fault> {
        Cuda::synchronize(self).map_err(Error::into_fault)?;
        // SAFETY: the caller's promise.
        unsafe { Cuda::download(self, from, to) }.map_err(Error::into_fault)
    }

    unsafe fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Fault> {
        if std::ptr::eq(to, from) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { Cuda::copy(self, to, from, bytes) }.map_err(Error::into_fault)
    }

    unsafe fn zero(&self, at: *mut u8, bytes: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { Cuda::zero(self, at, bytes) }.map_err(Error::into_fault)
    }

    fn synchronize(&self) -> Result<(), Fault> {
        Cuda::synchronize(self).map_err(Error::into_fault)
    }

    fn synchronize_all(&self) -> Result<(), Fault> {
        match &self.0.engine {
            Engine::Card(card) => card.synchronize_all().map_err(Error::into_fault),
            Engine::Host(_) => Cuda::synchronize(self).map_err(Error::into_fault),
        }
    }

    fn meeting(&self) -> Option<Meeting> {
        match &self.0.engine {
            Engine::Card(card) => Some(card.meeting()),
            Engine::Host(_) => None,
        }
    }

    fn trim(&self) -> Result<(), Fault> {
        self.let_go().map_err(Error::into_fault)
    }

    fn is_idle(&self) -> bool {
        match &self.0.engine {
            Engine::Card(card) => card.is_idle(),
            Engine::Host(_) => true,
        }
    }

    /// NVML's figure for this process. Where NVML cannot tell, what the driver says is in use, by whomever.
    fn taken(&self) -> Option<Bytes> {
        match &self.0.engine {
            Engine::Card(card) => {
                let in_use = || card.memory().ok().map(|(free, total)| (total - free) as u64);
                Some(Bytes(card.process_bytes().or_else(in_use).unwrap_or(0)))
            }
            // The emulator stands for a card on which nothing but tensors takes memory.
            Engine::Host(_) => Some(Bytes::ZERO),
        }
    }

    /// Each as the card's free memory showed it when it was started; the context as NVML counted the process then. Where NVML cannot tell,
    /// there is no row of the context: what others hold is not told from it.
    fn libraries(&self) -> Vec<LibraryBytes> {
        let Engine::Card(card) = &self.0.engine else { return Vec::new() };
        let row = |name, bytes: usize| LibraryBytes { name, bytes: bytes.into() };
        let context =
            card.context_own.map(|bytes| LibraryBytes { name: "CUDA context", bytes: Bytes(bytes) });
        let mut rows: Vec<LibraryBytes> = context.into_iter().collect();
        if self.0.blas.is_some() {
            rows.push(row("cuBLASLt", self.0.library_bytes));
        }
        if self.0.dnn.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            rows.push(row("cuDNN", self.0.dnn_bytes.load(Ordering::Relaxed)));
        }
        rows.push(row(CODE, card.code_bytes()));
        rows
    }

    fn free(&self) -> Option<Bytes> {
        match &self.0.engine {
            Engine::Card(card) => card.memory().ok().map(|(free, _)| Bytes::from(free)),
            Engine::Host(_) => None,
        }
    }

    fn total(&self) -> Option<Bytes> {
        match &self.0.engine {
            Engine::Card(card) => card.memory().ok().map(|(_, total)| Bytes::from(total)),
            Engine::Host(_) => None,
        }
    }

    fn host_program(&self) -> Bytes {
        match &self.0.engine {
            Engine::Card(_) => HOST_PROGRAM,
            Engine::Host(_) => Bytes::ZERO,
        }
    }

    fn uploads(&self, bytes: usize) -> Result<Option<Box<dyn backend::Uploads>>, Fault> {
        Ok(Some(Box::new(uploads::Uploads::new(self, bytes).map_err(Error::into_fault)?)))
    }

    fn record(
        &self,
        body: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<Option<Box<dyn Recording>>, Fault> {
        if self.is_emulated() {
            return Ok(None);
        }
        match self.capture(|| body().map_err(Error::Fault)) {
            Ok(graph) => Ok(Some(Box::new(graph))),
            // Others have filled the card: a step that is not recorded takes longer to start and needs no room.
            Err(Error::NoRoom { .. }) => Ok(None),
            Err(why) => Err(why.into_fault()),
        }
    }

    fn marks(&self, points: usize) -> Result<Box<dyn Marks>, Fault> {
        match &self.0.engine {
            Engine::Card(_) => Ok(Box::new(CardMarks::new(self, points).map_err(Error::into_fault)?)),
            // The emulator is done with a kernel when the call returns.
            Engine::Host(_) => Ok(Box::new(HostMarks::new(points))),
        }
    }

    fn rough_link(&self) -> Option<Link> {
        match &self.0.engine {
            // Sixteen lanes of the third generation, as far as copies reach it: what cards of the last ten years have, or more.
            Engine::Card(_) => Some(Link { up: 12e9, down: 12e9 }),
            // As slow against the emulated kernels as a card's link is against its kernels, by and large.
            Engine::Host(_) => Some(Link { up: 2e8, down: 2e8 }),
        }
    }

    unsafe fn time_link(&self, at: *mut u8, bytes: usize) -> Result<Option<Link>, Fault> {
        match &self.0.engine {
            // SAFETY: the caller's promise.
            Engine::Card(_) => unsafe { self.link_at(at, bytes) }.map(Some).map_err(Error::into_fault),
            // What the emulator's copies take says nothing of a card; a fixed figure gives every run the same plan.
            Engine::Host(_) => Ok(self.rough_link()),
        }
    }

    fn host_arena(&self) -> Result<Option<Box<dyn HostArena>>, Fault> {
        match &self.0.engine {
            Engine::Card(_) => Ok(Some(Box::new(Engines::new(self).map_err(Error::into_fault)?))),
            Engine::Host(_) => Ok(Some(Box::new(DeferredCopies::new()))),
        }
    }

    fn host_block(&self, bytes: usize) -> Result<Option<Box<dyn HostBlock>>, Fault> {
        match &self.0.engine {
            Engine::Card(_) => Ok(Some(Box::new(Pinned::or_refuse(self, bytes)?))),
            Engine::Host(_) => Ok(Some(Box::new(HostBuffer::new(bytes)?))),
        }
    }
}
