//! The CPU in the place of a card: memory of its own, of which libraries and others take more when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_cpu::Cpu;
use plimsoll_device::backend::{Backend, Call, Fault, Speed, Unsupported};
use plimsoll_device::{
    Allocator, BestFit, Block, Bytes, Holder, LibraryBytes, OutOfMemory, Owner, ReleaseError, Stats,
};
use plimsoll_graph::{Op, Type};

use super::Device;

/// What a test changes while a step runs.
#[derive(Debug)]
pub(crate) struct FakeCard {
    /// All of the card's memory.
    pub(crate) total: AtomicU64,
    /// What the process takes of it beside tensors.
    pub(crate) own: AtomicU64,
    /// What somebody else takes at the moment when a workspace is mapped.
    pub(crate) thief: AtomicU64,
    /// Whether it takes as much every time.
    pub(crate) is_greedy: AtomicBool,
    /// Whether it has failed for good.
    pub(crate) is_lost: AtomicBool,
    /// What a memory limit leaves for tensors; all bits where there is none.
    pub(crate) line: AtomicU64,
}

#[derive(Debug)]
struct FakeBackend {
    cpu: Cpu,
    memory: Arc<Pool>,
    card: Arc<FakeCard>,
}

#[derive(Debug)]
struct Pool {
    host: BestFit,
    card: Arc<FakeCard>,
}

impl FakeCard {
    /// A device with memory of its own, and the hand on it.
    pub(crate) fn device(total: Bytes, own: Bytes) -> (Device, Arc<FakeCard>) {
        let card = Arc::new(FakeCard {
            total: AtomicU64::new(total.get()),
            own: AtomicU64::new(own.get()),
            thief: AtomicU64::new(0),
            is_greedy: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            line: AtomicU64::new(u64::MAX),
        });
        let host = BestFit::new(Bytes::gib(1)).expect("addresses");
        let memory = Arc::new(Pool { host, card: card.clone() });
        let backend = FakeBackend { cpu: Cpu::new(1), memory: memory.clone(), card: card.clone() };
        (Device::over(Arc::new(backend), memory), card)
    }

    fn get(number: &AtomicU64) -> Bytes {
        Bytes(number.load(Ordering::SeqCst))
    }
}

impl Backend for FakeBackend {
    fn name(&self) -> &str {
        "fake card"
    }

    fn signature(&self) -> String {
        "fake card".into()
    }

    fn speed(&self) -> Speed {
        self.cpu.speed()
    }

    fn scratch(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Unsupported> {
        self.cpu.scratch(op, inputs, outputs)
    }

    unsafe fn run(&self, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.cpu.run(call) }
    }

    fn is_host(&self) -> bool {
        false
    }

    fn synchronize(&self) -> Result<(), Fault> {
        match self.card.is_lost.load(Ordering::SeqCst) {
            true => Err(Fault::new("fake card", "it has failed")),
            false => Ok(()),
        }
    }

    fn taken(&self) -> Option<Bytes> {
        Some(FakeCard::get(&self.card.own) + self.memory.stats().reserved)
    }

    fn libraries(&self) -> Vec<LibraryBytes> {
        let own = FakeCard::get(&self.card.own).get();
        let row = |name, bytes| LibraryBytes { name, bytes: Bytes(bytes) };
        vec![row("context", own / 2), row("products", own / 4)]
    }

    fn free(&self) -> Option<Bytes> {
        Some(FakeCard::get(&self.card.total).saturating_sub(self.taken()?))
    }
}

impl Allocator for Pool {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        if owner.op == "step workspace" && bytes > Bytes::ZERO {
            let stolen = self.card.thief.load(Ordering::SeqCst);
            if !self.card.is_greedy.load(Ordering::SeqCst) {
                self.card.thief.store(0, Ordering::SeqCst);
            }
            self.card.total.fetch_sub(stolen, Ordering::SeqCst);
        }
        let left = FakeCard::get(&self.card.total).saturating_sub(FakeCard::get(&self.card.own));
        if self.host.stats().in_use + bytes > left || self.card.is_lost.load(Ordering::SeqCst) {
            return Err(OutOfMemory::new(bytes, owner, &self.stats(), Vec::new()).by_system());
        }
        if self.host.stats().in_use + bytes > FakeCard::get(&self.card.line) {
            return Err(OutOfMemory::new(bytes, owner, &self.stats(), Vec::new()).by_limit());
        }
        self.host.allocate(bytes, align, owner)
    }

    fn hold_to(&self, _who: u64, most: Option<Bytes>) {
        self.card.line.store(most.map_or(u64::MAX, Bytes::get), Ordering::SeqCst);
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        self.host.release(block)
    }

    fn stats(&self) -> Stats {
        let stats = self.host.stats();
        Stats { reserved: stats.in_use, ..stats }
    }

    fn reset_peak(&self) {
        self.host.reset_peak();
    }

    fn holders(&self, n: usize) -> Vec<Holder> {
        self.host.holders(n)
    }
}
