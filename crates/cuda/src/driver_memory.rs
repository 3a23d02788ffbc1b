//! Turns requests for a card's memory into blocks of the driver's own: one by one (`cuMemAlloc`), or from a pool that works in the order
//! of the stream (`cuMemAllocAsync`).
//!
//! The driver gives memory in chunks that small blocks share; a chunk is what is counted, so that a limit holds as the system counts it.
//! What the driver keeps between blocks of a pool counts as taken, and goes back where the limit would be passed.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;
use plimsoll_device::{
    Allocator, AllocatorId, Block, Bytes, HOLDERS_IN_AN_ERROR, Holder, OutOfMemory, Owner, ReleaseError,
    Stats, holders,
};
use rustc_hash::FxHashMap;

use crate::Cuda;
use crate::card::cu;
use crate::error::Error;

/// Blocks start at multiples of this.
const GRAIN: usize = 512;
/// In what chunks the driver gives memory block by block.
const CHUNK: usize = 2 << 20;

/// An allocator over the driver's own.
#[derive(Debug)]
pub struct DriverMemory {
    id: AllocatorId,
    cuda: Cuda,
    /// The pool, where blocks come from one.
    pool: Option<Handle>,
    /// A block of more than half of it takes whole ones, smaller blocks share them.
    chunk: usize,
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct Handle(sys::CUmemoryPool);

// SAFETY: handles of the driver may be used by any thread that has made the context current.
unsafe impl Send for Handle {}
// SAFETY: as above; the driver locks its own state.
unsafe impl Sync for Handle {}

#[derive(Debug, Default)]
struct State {
    live: FxHashMap<u64, Live>,
    next: u64,
    /// Bytes of blocks with chunks of their own, and of those that share some.
    large: usize,
    small: usize,
    peak: usize,
    /// What memory limits leave, by whose they are.
    limits: BTreeMap<u64, usize>,
}

#[derive(Debug)]
struct Live {
    at: u64,
    bytes: usize,
    owner: Owner,
}

impl DriverMemory {
    /// Blocks of `cuMemAlloc`, at most `limit` bytes of them.
    ///
    /// # Errors
    /// The emulator has no driver.
    pub fn by_block(cuda: &Cuda, limit: Bytes) -> Result<DriverMemory, Error> {
        cuda.card("blocks of the driver")?;
        Ok(DriverMemory::over(cuda, None, CHUNK, limit))
    }

    /// A pool in the order of the stream, of at most `limit` bytes.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn by_stream(cuda: &Cuda, limit: Bytes) -> Result<DriverMemory, Error> {
        let card = cuda.card("a pool of the driver")?;
        card.enter()?;
        let mut pool = std::ptr::null_mut();
        // SAFETY: all bytes zero are a valid description, of which what matters is set.
        let mut kind: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        kind.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        kind.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        kind.location.id = card.device;
        // SAFETY: the addresses are of a handle and of a description that outlive the call.
        unsafe { cu!(cuMemPoolCreate(&mut pool, &kind)) }?;
        let mut memory = DriverMemory::over(cuda, Some(Handle(pool)), CHUNK, limit);
        // What is freed stays with the pool until it is given back on purpose.
        let mut all = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is live, and the attribute is a number of 64 bits.
        unsafe { cu!(cuMemPoolSetAttribute(pool, threshold, (&raw mut all).cast())) }?;
        // In what chunks this driver takes memory is seen when it takes the first.
        let at = memory.take(1)?;
        memory.chunk = memory.reserved().unwrap_or(CHUNK).max(CHUNK).next_power_of_two();
        memory.free(at);
        memory.release_unused();
        Ok(memory)
    }

    fn over(cuda: &Cuda, pool: Option<Handle>, chunk: usize, limit: Bytes) -> DriverMemory {
        let (id, limit) = (AllocatorId::new(), limit.to_usize().unwrap_or(usize::MAX));
        DriverMemory { id, cuda: cuda.clone(), pool, chunk, limit, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of the driver.
    fn take(&self, bytes: usize) -> Result<u64, Error> {
        let card = self.cuda.card("the driver's memory")?;
        card.enter()?;
        let mut at = 0;
        // SAFETY: the address is of a number; pool and stream are live.
        unsafe {
            match &self.pool {
                Some(Handle(pool)) => cu!(cuMemAllocFromPoolAsync(&mut at, bytes, *pool, card.stream)),
                None => cu!(cuMemAlloc_v2(&mut at, bytes)),
            }
        }?;
        Ok(at)
    }

    /// Gives a block back. A pool does so when the stream comes to it; without one the driver waits for the card.
    fn free(&self, at: u64) {
        let Ok(card) = self.cuda.card("the driver's memory") else { return };
        if card.enter().is_err() {
            return;
        }
        // SAFETY: the driver gave it, and nobody has it any more. A failure of the card is told by whoever waits for it next.
        unsafe {
            let _ = match self.pool {
                Some(_) => sys::cuMemFreeAsync(at, card.stream),
                None => sys::cuMemFree_v2(at),
            };
        }
    }

    /// What the pool has taken of the card; none without one.
    fn reserved(&self) -> Option<usize> {
        let Handle(pool) = self.pool.as_ref()?;
        self.cuda.card("a pool of the driver").and_then(crate::card::Card::enter).ok()?;
        let mut bytes = 0u64;
        let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        // SAFETY: the pool is live, and the attribute is a number of 64 bits.
        unsafe { cu!(cuMemPoolGetAttribute(*pool, which, (&raw mut bytes).cast())) }.ok()?;
        usize::try_from(bytes).ok()
    }

    fn most(&self, s: &State) -> usize {
        s.limits.values().copied().min().map_or(self.limit, |limit| limit.min(self.limit))
    }

    /// What blocks take in chunks.
    fn used(&self, large: usize, small: usize) -> usize {
        large + small.next_multiple_of(self.chunk)
    }

    fn is_large(&self, bytes: usize) -> bool {
        bytes > self.chunk / 2
    }

    /// Large and small bytes with one block more.
    fn with(&self, s: &State, bytes: usize) -> Option<(usize, usize)> {
        match self.is_large(bytes) {
            true => Some((s.large.checked_add(bytes.checked_next_multiple_of(self.chunk)?)?, s.small)),
            false => Some((s.large, s.small.checked_add(bytes.next_multiple_of(GRAIN))?)),
        }
    }

    fn stats_of(&self, s: &State, limit: usize) -> Stats {
        let used = self.used(s.large, s.small);
        let free = limit.saturating_sub(used) / self.chunk * self.chunk;
        let reserved = self.reserved().unwrap_or(used).max(used);
        Stats::new(used.into(), s.peak.into(), reserved.into(), limit.into(), free.into(), s.live.len())
    }

    fn holders_of(s: &State, n: usize) -> Vec<Holder> {
        holders(s.live.values().map(|live| (live.owner, live.bytes.into())), n)
    }

    /// A block within the limit; what a pool keeps goes back first where that would pass it, or where the card is full.
    fn within(&self, bytes: usize, used: usize, most: usize) -> Result<u64, Error> {
        if self.reserved().is_some_and(|reserved| reserved.max(used) > most) {
            self.trim();
        }
        // A pool whose free pieces do not suit a block takes a chunk more for it, which may be one too many.
        let fits = || self.reserved().is_none_or(|reserved| reserved <= most);
        for _ in 0..2 {
            match self.take(bytes) {
                Ok(at) if fits() => return Ok(at),
                Ok(at) => self.free(at),
                // Perhaps the card is full: what lies idle in the pool may do.
                Err(_) => {}
            }
            self.trim();
        }
        let (free, _) = self.cuda.memory()?;
        Err(Error::OutOfMemory { bytes, free })
    }

    /// Gives back what a pool only keeps.
    fn trim(&self) {
        let Some(Handle(pool)) = &self.pool else { return };
        // Blocks that were freed are the pool's when the stream has come to them.
        let _ = self.cuda.synchronize();
        // SAFETY: the pool is live. What the driver does not give back stays, and is counted as taken.
        unsafe {
            let _ = sys::cuMemPoolTrimTo(*pool, 0);
        }
    }
}

impl Allocator for DriverMemory {
    /// Alignments above the driver's own are not met; no kernel asks for one.
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        let mut s = self.state();
        let most = self.most(&s);
        let refusal = |s: &State| {
            let holders = DriverMemory::holders_of(s, HOLDERS_IN_AN_ERROR);
            let refusal = OutOfMemory::new(bytes, owner, &self.stats_of(s, most), holders);
            if most < self.limit { refusal.by_limit() } else { refusal }
        };
        let Some(length) = bytes.to_usize() else { return Err(refusal(&s)) };
        let Some((large, small)) = self.with(&s, length) else { return Err(refusal(&s)) };
        let used = self.used(large, small);
        if used > most {
            return Err(refusal(&s));
        }
        if align > GRAIN {
            return Err(refusal(&s).by_system());
        }
        let at = match length {
            0 => GRAIN as u64,
            _ => self.within(length, used, most).map_err(|_| refusal(&s).by_system())?,
        };
        (s.large, s.small, s.peak) = (large, small, s.peak.max(used));
        let key = s.next;
        s.next += 1;
        s.live.insert(key, Live { at, bytes: length, owner });
        let ptr = NonNull::new(at as *mut u8).unwrap_or(NonNull::dangling());
        Ok(Block::new(&self.id, key, ptr, length))
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        let key = block.open(&self.id)?;
        let mut s = self.state();
        let Some(Live { at, bytes, .. }) = s.live.remove(&key).filter(|live| live.bytes > 0) else {
            return Ok(());
        };
        match self.is_large(bytes) {
            true => s.large -= bytes.next_multiple_of(self.chunk),
            false => s.small -= bytes.next_multiple_of(GRAIN),
        }
        self.free(at);
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.stats_of(&self.state(), self.limit)
    }

    fn reset_peak(&self) {
        let mut s = self.state();
        s.peak = self.used(s.large, s.small);
    }

    fn release_unused(&self) {
        self.trim();
    }

    fn hold_to(&self, who: u64, most: Option<Bytes>) {
        let limits = &mut self.state().limits;
        match most {
            Some(most) => limits.insert(who, most.to_usize().unwrap_or(usize::MAX)),
            None => limits.remove(&who),
        };
    }

    fn page(&self) -> Bytes {
        self.chunk.into()
    }

    fn name(&self) -> &'static str {
        if self.pool.is_some() { "pool" } else { "system" }
    }

    fn holders(&self, n: usize) -> Vec<Holder> {
        DriverMemory::holders_of(&self.state(), n)
    }
}

impl Drop for DriverMemory {
    fn drop(&mut self) {
        let live: Vec<u64> =
            self.state().live.drain().filter(|(_, live)| live.bytes > 0).map(|(_, live)| live.at).collect();
        live.into_iter().for_each(|at| self.free(at));
        self.trim();
        if let Some(Handle(pool)) = &self.pool {
            // SAFETY: nobody uses the pool any more. A drop cannot report a refusal.
            unsafe {
                let _ = sys::cuMemPoolDestroy(*pool);
            }
        }
    }
}
