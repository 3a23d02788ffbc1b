//! An allocator of your own for eager tensors: one that keeps freed blocks to hand them out again, as PyTorch's caching allocator
//! does.
//!
//! Run with `cargo run --release -p plimsoll --example allocator`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll::device::{
    Allocator, AllocatorId, Block, Holder, HostMemory, OutOfMemory, Owner, ReleaseError, Stats, System,
};
use plimsoll::prelude::*;

// ANCHOR: allocator
/// Blocks of powers of two, kept when they are freed.
struct Caching {
    id: AllocatorId,
    /// Where memory comes from; it has the limit and counts who holds what.
    system: System,
    books: Mutex<Books>,
    reused: AtomicU64,
}

#[derive(Default)]
struct Books {
    /// Blocks that somebody holds, by the key of the block that was handed out.
    live: HashMap<u64, Block>,
    /// Freed blocks by their size.
    kept: HashMap<usize, Vec<Block>>,
    next: u64,
}

impl Caching {
    fn new(limit: Bytes) -> Caching {
        Caching {
            id: AllocatorId::new(),
            system: System::new(limit),
            books: Mutex::default(),
            reused: AtomicU64::new(0),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocator for Caching {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        let asked = bytes.get() as usize;
        let size = asked.next_power_of_two().max(64);
        let cached = self.books().kept.get_mut(&size).and_then(Vec::pop);
        let block = match cached {
            Some(block) => {
                self.reused.fetch_add(1, Ordering::Relaxed);
                block
            }
            None => match self.system.allocate(Bytes::from(size), align.max(64), owner) {
                Ok(block) => block,
                // What is kept for later may be what is missing now.
                Err(_) => {
                    self.release_unused();
                    self.system.allocate(Bytes::from(size), align.max(64), owner)?
                }
            },
        };
        let mut books = self.books();
        let key = books.next;
        books.next += 1;
        // A block of our own at the same address: only this allocator takes it back.
        let handed_out = Block::new(&self.id, key, block.as_ptr(), asked);
        books.live.insert(key, block);
        Ok(handed_out)
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        let key = block.open(&self.id)?;
        let mut books = self.books();
        if let Some(block) = books.live.remove(&key) {
            books.kept.entry(block.len()).or_default().push(block);
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        let (books, of_system) = (self.books(), self.system.stats());
        let live: usize = books.live.values().map(Block::len).sum();
        // What is kept counts as taken from the system, not as in use: this is the gap between `allocated` and `reserved`.
        Stats::new(
            live.into(),
            of_system.peak,
            of_system.in_use,
            of_system.limit,
            of_system.largest_free,
            books.live.len(),
        )
    }

    fn reset_peak(&self) {
        self.system.reset_peak();
    }

    /// Gives back what is only kept.
    fn release_unused(&self) {
        for block in std::mem::take(&mut self.books().kept).into_values().flatten() {
            self.system.release(block).ok();
        }
    }

    fn holders(&self, n: usize) -> Vec<Holder> {
        self.system.holders(n)
    }
}

// SAFETY: every block is one block of `System`, handed out to one holder at a time and freed only when nobody holds it.
unsafe impl HostMemory for Caching {}
// ANCHOR_END: allocator

fn main() -> plimsoll::Result<()> {
    // ANCHOR: use
    let memory = Arc::new(Caching::new(Bytes::mib(64)));
    let device = Device::cpu_over(1, memory.clone())?;
    device.scope(|| -> plimsoll::Result<()> {
        let mut x = Tensor::full(Type::new(DType::F32, [256, 256]), 1.0 / 256.0)?;
        for _ in 0..50 {
            x = x.matmul(&x)?.tanh()?;
        }
        assert!(x.to_vec::<f32>()?.iter().all(|x| x.is_finite()));
        Ok(())
    })?;
    // ANCHOR_END: use
    let (stats, reused) = (memory.stats(), memory.reused.load(Ordering::Relaxed));
    println!("{reused} of the blocks were used again; {} reserved, {} in use", stats.reserved, stats.in_use);
    assert!(reused > 50 && stats.in_use == Bytes(0) && stats.reserved < Bytes::mib(4));

    // One byte past the limit is an error that names the line, not a crash.
    let refused = device.scope(|| Tensor::zeros(Type::new(DType::U8, [(64 << 20) + 1])));
    let why = refused.map(|_| String::new()).unwrap_or_else(|error| error.to_string());
    println!("{}", why.lines().next().unwrap_or_default());
    assert!(why.starts_with("out of memory") && why.contains("allocator.rs"));
    Ok(())
}
