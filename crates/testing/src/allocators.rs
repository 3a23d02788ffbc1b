//! What every allocator must do, on whatever device: one test for all of them.

use std::collections::HashSet;

use plimsoll_device::{Allocator, Block, Bytes, Owner, ReleaseError, Site, Verdict};

/// How a test reaches the bytes of blocks: on a card by copies, on the host at once.
pub trait Reach {
    /// Fills a block with a byte.
    fn fill(&self, block: &Block, byte: u8);

    /// Whether all of a block is that byte.
    fn holds(&self, block: &Block, byte: u8) -> bool;
}

/// Blocks that the host reads and writes at their address.
pub struct OnHost;

impl Reach for OnHost {
    fn fill(&self, block: &Block, byte: u8) {
        // SAFETY: allocators of the host promise as many bytes, which only this test holds.
        unsafe { block.as_ptr().write_bytes(byte, block.len()) };
    }

    fn holds(&self, block: &Block, byte: u8) -> bool {
        // SAFETY: as above, and the bytes were written.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr().as_ptr(), block.len()) };
        bytes.iter().all(|found| *found == byte)
    }
}

fn at(line: u32) -> Owner {
    Owner::new("conform", Site::new("model.rs", line))
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n.max(1)
    }
}

/// A block that is held, with what was written to it and whether anything was.
type Held = (Block, u8);

/// Holds an allocator that nobody else uses to what all of them promise: the limit to the last byte that it counts, honest figures,
/// refusals that name who asks and who holds, blocks apart from each other that keep what was written to them, and everything given
/// back at the end. `is_whole` says that it never refuses what is free: no want of contiguity.
///
/// # Panics
/// It breaks a promise; that is the test's failure.
pub fn conforms(memory: &dyn Allocator, reach: &dyn Reach, is_whole: bool) {
    let name = memory.name();
    let limit = memory.stats().limit;
    assert!(limit >= Bytes::mib(8), "{name}: give it some room to be tested in");
    assert_eq!((memory.stats().in_use, memory.stats().blocks), (Bytes::ZERO, 0), "{name} starts empty");
    refusals(memory, name, limit);
    random_use(memory, reach, name, is_whole);
    // Everything is there again, in one piece.
    memory.release_unused();
    let end = memory.stats();
    assert_eq!(
        (end.in_use, end.reserved, end.blocks),
        (Bytes::ZERO, Bytes::ZERO, 0),
        "{name} gives all back: {end}"
    );
    let all = memory.allocate(end.largest_free, 64, at(9)).unwrap_or_else(|why| panic!("{name}: {why}"));
    assert!(memory.stats().in_use <= limit && memory.stats().reserved <= limit, "{name}");
    memory.release(all).unwrap();
    memory.release_unused();
}

fn refusals(memory: &dyn Allocator, name: &str, limit: Bytes) {
    let refused = memory.allocate(Bytes(limit.get() + 1), 64, at(1)).unwrap_err();
    assert_eq!((refused.verdict, refused.owner), (Verdict::Limit, at(1)), "{name}: {refused}");
    for bytes in [u64::MAX, 1 << 63] {
        assert!(memory.allocate(Bytes(bytes), 64, at(1)).is_err(), "{name} gave {bytes} bytes");
    }
    assert_eq!(memory.stats().blocks, 0, "{name}: a refusal takes nothing");
    let most = memory.stats().largest_free;
    let block = memory.allocate(most, 64, at(2)).unwrap_or_else(|why| panic!("{name}: {why}"));
    assert!(block.as_ptr().addr().get().is_multiple_of(64));
    let refused = memory.allocate(Bytes::mib(4), 64, at(3)).unwrap_err();
    assert_eq!(refused.verdict, Verdict::Capacity, "{name}: {refused}");
    assert_eq!(refused.holders[0].owner, at(2), "{name} names who holds it");
    let nothing = memory.allocate(Bytes::ZERO, 64, at(4)).unwrap();
    assert!(nothing.is_empty(), "{name}: a block of no bytes is always given");
    memory.release(nothing).unwrap();
    // A block goes back only where it came from.
    let other = plimsoll_device::System::new(Bytes::kib(4));
    let foreign = other.allocate(Bytes(64), 64, at(5)).unwrap();
    let Err(ReleaseError::Foreign { block: foreign }) = memory.release(foreign) else {
        panic!("{name} took a block of another allocator")
    };
    other.release(foreign).unwrap();
    memory.release(block).unwrap();
    assert_eq!(memory.stats().in_use, Bytes::ZERO, "{name}");
    assert!(memory.stats().peak > Bytes::ZERO, "{name} keeps its peak");
    memory.reset_peak();
    assert_eq!(memory.stats().peak, Bytes::ZERO, "{name} starts its peak again");
}

fn random_use(memory: &dyn Allocator, reach: &dyn Reach, name: &str, is_whole: bool) {
    let (limit, page) = (memory.stats().limit, memory.page().get());
    let mut numbers = Numbers(7);
    let mut held: Vec<Held> = Vec::new();
    let mut refused = 0;
    for turn in 0..400u32 {
        let before = memory.stats();
        // Small blocks, some of a few pages, some of nearly all that is free, and some of more than that.
        let bytes = match numbers.below(9) {
            8 => before.free().get() + page + 1,
            0 => before.free().get().saturating_sub(numbers.below(page * 2)) / page * page,
            1..3 => numbers.below(limit.get() / 16),
            _ => numbers.below(20_000),
        };
        match memory.allocate(Bytes(bytes), 64, at(100 + turn)) {
            Ok(block) => {
                assert_eq!(block.len() as u64, bytes, "{name}");
                let byte = (turn % 251) as u8;
                reach.fill(&block, byte);
                held.push((block, byte));
                assert!(bytes <= before.free().get() + page, "{name} gave {bytes} of {}", before.free());
            }
            Err(why) => {
                refused += 1;
                assert_eq!(memory.stats().in_use, before.in_use, "{name}: a refusal takes nothing");
                let whole = bytes.next_multiple_of(page);
                assert!(
                    !is_whole || whole > before.free().get(),
                    "{name} refused {bytes} of {}: {why}",
                    before.free()
                );
                assert!(why.to_string().contains("model.rs"), "{name}: {why}");
            }
        }
        let stats = memory.stats();
        assert!(stats.in_use <= limit && stats.reserved <= limit, "{name} keeps its limit: {stats}");
        assert!(stats.in_use <= stats.reserved && stats.in_use <= stats.peak, "{name}: {stats}");
        let live = held.iter().map(|(block, _)| block.len() as u64).sum::<u64>();
        assert!(
            stats.in_use.get() >= live && stats.blocks == held.len(),
            "{name} counts all of {live}: {stats}"
        );
        while !held.is_empty() && (stats.free().get() < limit.get() / 8 || numbers.below(3) == 0) {
            let (block, byte) = held.swap_remove(numbers.below(held.len() as u64) as usize);
            assert!(reach.holds(&block, byte), "{name}: a block of {} bytes was changed", block.len());
            memory.release(block).unwrap();
            if memory.stats().free().get() >= limit.get() / 4 {
                break;
            }
        }
        if turn % 97 == 0 {
            memory.release_unused();
        }
    }
    assert!(refused > 0, "{name} was never asked for too much");
    let starts: HashSet<usize> = held
        .iter()
        .filter(|(block, _)| !block.is_empty())
        .map(|(block, _)| block.as_ptr().addr().get())
        .collect();
    let blocks = held.iter().filter(|(block, _)| !block.is_empty()).count();
    assert_eq!(starts.len(), blocks, "{name}: two blocks at one address");
    for (block, byte) in held {
        assert!(reach.holds(&block, byte), "{name}: a block was changed");
        memory.release(block).unwrap();
    }
    assert_eq!((memory.stats().in_use, memory.stats().blocks), (Bytes::ZERO, 0), "{name}");
}
