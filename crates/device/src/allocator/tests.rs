//! What every allocator must do, for all of them, and random use of each against a plain model.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{Site, Verdict};

fn at(line: u32) -> Owner {
    Owner::new("op", Site::new("model.rs", line))
}

/// The bytes that an allocator takes for a block of the given length.
type Takes = fn(u64) -> u64;

/// Every allocator with the given limit, and what it takes for a block.
fn all(limit: Bytes) -> Vec<(Arc<dyn HostMemory>, Takes)> {
    let best_fit = || BestFit::new(limit).unwrap();
    vec![
        (Arc::new(best_fit()), |len| len.next_multiple_of(64)),
        (Arc::new(System::new(limit)), |len| len.next_multiple_of(64)),
        (Arc::new(Debug::new(System::new(limit))), |len| len + 128),
        (Arc::new(Debug::with_quarantine(best_fit(), Bytes(limit.0 / 4))), |len| len + 128),
    ]
}

#[test]
fn exactly_the_limit_is_given_and_one_byte_past_it_is_refused() {
    let limit = Bytes::kib(64);
    for (memory, _) in all(limit) {
        let most = memory.stats().largest_free;
        let refused = memory.allocate(Bytes(limit.0 + 1), 64, at(1)).unwrap_err();
        assert_eq!(refused.verdict, Verdict::Limit);
        let refused = memory.allocate(Bytes(most.0 + 1), 64, at(1)).unwrap_err();
        assert!(refused.requested > limit);
        let block = memory.allocate(most, 64, at(1)).unwrap();
        assert_eq!(memory.stats().in_use, limit);
        assert_eq!(memory.stats().largest_free, Bytes::ZERO);
        let refused = memory.allocate(Bytes(1), 64, at(2)).unwrap_err();
        assert_eq!(refused.verdict, Verdict::Capacity);
        assert_eq!((refused.free, refused.in_use), (Bytes::ZERO, limit));
        assert_eq!(refused.holders, [Holder { owner: at(1), bytes: limit, blocks: 1 }]);
        memory.release(block).unwrap();
        assert_eq!(memory.stats().in_use, Bytes::ZERO);
        assert_eq!(memory.stats().largest_free, most);
    }
}

#[test]
fn absurd_sizes_and_alignments_are_refused_not_crashed_on() {
    for (memory, _) in all(Bytes::kib(64)) {
        for (bytes, align) in
            [(u64::MAX, 64), (u64::MAX - 63, 64), (1 << 63, 64), (1, usize::MAX), (1, 1 << 63)]
        {
            assert!(memory.allocate(Bytes(bytes), align, at(1)).is_err(), "{bytes} {align}");
        }
        assert_eq!(memory.stats().blocks, 0);
    }
}

#[test]
fn alignments_are_kept_and_odd_ones_raised() {
    for (memory, _) in all(Bytes::mib(1)) {
        let mut blocks = Vec::new();
        for align in [0, 1, 3, 64, 100, 256, 4096, 16384, 65536] {
            let _hold_off_the_start = memory.allocate(Bytes(1), 1, at(1)).unwrap();
            let block = memory.allocate(Bytes(10), align, at(1)).unwrap();
            let address = block.as_ptr().addr().get();
            assert_eq!(address % align.next_power_of_two().max(MIN_ALIGN), 0, "{align}");
            blocks.push(block);
        }
        blocks.into_iter().for_each(|block| memory.release(block).unwrap());
    }
}

#[test]
fn a_block_of_no_bytes_is_given_even_when_all_is_full() {
    for (memory, takes) in all(Bytes::kib(64)).into_iter().take(2) {
        let full = memory.allocate(Bytes::kib(64), 64, at(1)).unwrap();
        let empty = memory.allocate(Bytes::ZERO, 64, at(2)).unwrap();
        assert!(empty.is_empty() && empty.as_ptr().addr().get().is_multiple_of(64));
        assert_eq!(takes(0), 0);
        assert_eq!(memory.stats().blocks, 2);
        memory.release(full).unwrap();
        memory.release(empty).unwrap();
        assert_eq!(memory.stats().largest_free, Bytes::kib(64));
    }
}

#[test]
fn a_block_of_another_allocator_is_handed_back() {
    for (memory, _) in all(Bytes::kib(64)) {
        for (other, _) in all(Bytes::kib(64)) {
            let block = other.allocate(Bytes(100), 64, at(1)).unwrap();
            let in_use = other.stats().in_use;
            let Err(ReleaseError::Foreign { block }) = memory.release(block) else {
                panic!("a foreign block was taken")
            };
            assert_eq!(other.stats().in_use, in_use);
            other.release(block).unwrap();
            assert_eq!(other.stats().blocks, 0);
        }
    }
}

#[test]
fn the_peak_stays_until_it_is_reset() {
    for (memory, takes) in all(Bytes::kib(64)) {
        let large = memory.allocate(Bytes(1000), 64, at(1)).unwrap();
        let small = memory.allocate(Bytes(64), 64, at(2)).unwrap();
        memory.release(large).unwrap();
        assert_eq!(memory.stats().peak.0, takes(1000) + takes(64));
        memory.reset_peak();
        assert_eq!(memory.stats().peak.0, takes(64));
        memory.release(small).unwrap();
    }
}

#[test]
fn holders_are_summed_by_line_and_the_ten_largest_named() {
    for (memory, takes) in all(Bytes::kib(64)) {
        let ask = |line: u32| memory.allocate(Bytes(64 * u64::from(line)), 64, at(line)).unwrap();
        let mut blocks: Vec<_> = (1..=12).map(ask).collect();
        blocks.push(ask(2));
        blocks.push(ask(12));
        let error = memory.allocate(Bytes::kib(64), 64, at(99)).unwrap_err();
        assert_eq!(error.holders.len(), 10);
        assert_eq!(error.holders, memory.holders(10));
        let first = Holder { owner: at(12), bytes: Bytes(2 * takes(12 * 64)), blocks: 2 };
        assert_eq!(error.holders[0], first);
        assert!(error.holders.is_sorted_by(|a, b| a.bytes >= b.bytes));
        let of_line_2 = Holder { owner: at(2), bytes: Bytes(2 * takes(2 * 64)), blocks: 2 };
        assert!(memory.holders(usize::MAX).contains(&of_line_2));
        assert_eq!(memory.holders(usize::MAX).len(), 12);
        blocks.into_iter().for_each(|block| memory.release(block).unwrap());
        assert_eq!(memory.holders(usize::MAX), []);
    }
}

#[test]
fn leases_release_on_drop_and_keep_their_allocator_alive() {
    for (memory, _) in all(Bytes::kib(64)) {
        let memory: Arc<dyn Allocator> = memory;
        let lease = Lease::new(&memory, Bytes(100), 64, at(1)).unwrap();
        let weak = Arc::downgrade(&memory);
        drop(memory);
        assert_eq!(lease.allocator().stats().blocks, 1);
        let memory = weak.upgrade().unwrap();
        drop(lease);
        assert_eq!(memory.stats().blocks, 0);
        Lease::new(&memory, Bytes(100), 64, at(1)).unwrap().release().unwrap();
        assert_eq!(memory.stats().blocks, 0);
    }
}

#[test]
fn threads_never_share_a_byte() {
    for (memory, _) in all(Bytes::kib(256)) {
        std::thread::scope(|scope| {
            for thread in 1..=4u8 {
                let memory = &memory;
                scope.spawn(move || {
                    let mut held: Vec<Block> = Vec::new();
                    for round in 0..500usize {
                        let len = 1 + (round * 37 + usize::from(thread) * 101) % 3000;
                        if let Ok(block) = memory.allocate(len.into(), 64, at(thread.into())) {
                            // SAFETY: `HostMemory` promises so many bytes, which only this thread holds.
                            unsafe { block.as_ptr().write_bytes(thread, block.len()) };
                            held.push(block);
                        }
                        if held.len() > 8 || round == 499 {
                            for block in held.drain(..) {
                                let bytes =
                                    std::ptr::NonNull::slice_from_raw_parts(block.as_ptr(), block.len());
                                // SAFETY: As above, and the bytes were written.
                                assert!(unsafe { bytes.as_ref() }.iter().all(|&byte| byte == thread));
                                memory.release(block).unwrap();
                            }
                        }
                    }
                });
            }
        });
        assert_eq!((memory.stats().blocks, memory.stats().in_use), (0, Bytes::ZERO));
        assert_eq!(memory.check(), []);
    }
}

/// One move of random use: ask for so many bytes at an alignment, or release one of those held.
#[derive(Clone, Debug)]
enum Move {
    Ask(u64, usize),
    Release(prop::sample::Index),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let bytes = prop_oneof![0u64..200, 0u64..5000, Just(64), Just(4096)];
    let align = prop_oneof![4 => Just(64usize), 1 => Just(256), 1 => Just(8192)];
    let one = prop_oneof![
        3 => (bytes, align).prop_map(|(bytes, align)| Move::Ask(bytes, align)),
        2 => any::<prop::sample::Index>().prop_map(Move::Release),
    ];
    prop::collection::vec(one, 1..200)
}

/// Plays the moves, checks every figure after each against the list of held blocks, and returns the addresses
/// relative to the first.
fn play(memory: &dyn Allocator, takes: Takes, limit: Bytes, moves: &[Move]) -> Vec<Option<usize>> {
    let whole = memory.stats().largest_free;
    let mut held: Vec<(Block, u64)> = Vec::new();
    let (mut peak, mut addresses) = (0, Vec::new());
    for (i, one) in moves.iter().enumerate() {
        match one {
            Move::Ask(bytes, align) => {
                let before = memory.stats();
                let given = memory.allocate(Bytes(*bytes), *align, at(i as u32));
                addresses.push(given.as_ref().ok().map(|block| block.as_ptr().addr().get()));
                match given {
                    Ok(block) => {
                        assert_eq!(block.len() as u64, *bytes);
                        assert_eq!(block.as_ptr().addr().get() % align, 0);
                        held.push((block, *bytes));
                    }
                    Err(error) => {
                        assert_eq!(memory.stats().in_use, before.in_use, "a refusal takes nothing");
                        // What the largest free block can hold is never refused at the least alignment.
                        assert!(*align > 64 || Bytes(*bytes) > before.largest_free, "{error}");
                        assert_eq!(error.verdict == Verdict::Fragmentation, error.requested <= error.free);
                    }
                }
            }
            Move::Release(which) if !held.is_empty() => {
                let (block, _) = held.swap_remove(which.index(held.len()));
                memory.release(block).unwrap();
            }
            Move::Release(_) => {}
        }
        let in_use: u64 = held.iter().map(|(_, bytes)| takes(*bytes)).sum();
        peak = peak.max(in_use);
        let stats = memory.stats();
        assert_eq!((stats.in_use.0, stats.blocks), (in_use, held.len()));
        assert_eq!((stats.peak.0, stats.limit), (peak, limit));
        assert!(stats.in_use <= stats.reserved && stats.reserved <= stats.limit);
        assert!(stats.largest_free <= stats.free() && (0.0..=1.0).contains(&stats.fragmentation));
        let mut ranges: Vec<_> =
            held.iter().map(|(block, _)| (block.as_ptr().addr().get(), block.len())).collect();
        ranges.retain(|&(_, len)| len > 0);
        ranges.sort_unstable();
        assert!(ranges.is_sorted_by(|a, b| a.0 + a.1 <= b.0), "blocks overlap");
    }
    held.into_iter().for_each(|(block, _)| memory.release(block).unwrap());
    let end = memory.stats();
    assert_eq!((end.in_use, end.blocks), (Bytes::ZERO, 0));
    assert_eq!(memory.check(), []);
    // One hole is left: the whole can be asked for again.
    let block = memory.allocate(whole, 64, at(0)).unwrap();
    memory.release(block).unwrap();
    let first = addresses.iter().flatten().copied().min().unwrap_or(0);
    addresses.iter().map(|address| address.map(|address| address.wrapping_sub(first))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_use_keeps_blocks_apart_and_figures_exact(moves in moves(), odd in 0u64..64) {
        let limit = Bytes(40_000 + odd);
        for (memory, _) in all(limit).into_iter().take(1) {
            // The last block of a region whose end is not aligned takes less than its length rounded up;
            // here the limit is odd, so only what holds regardless is checked by giving it round lengths.
            let round: Vec<Move> = moves.iter().map(|one| match one {
                Move::Ask(bytes, align) => Move::Ask(bytes / 64 * 64, *align),
                other => other.clone(),
            }).collect();
            play(&*memory, |len| len, limit, &round);
        }
        let limit = Bytes(40_960);
        for (memory, takes) in all(limit).into_iter().take(2) {
            play(&*memory, takes, limit, &moves);
        }
    }

    #[test]
    fn the_same_requests_get_the_same_offsets(mut moves in moves()) {
        for one in &mut moves {
            if let Move::Ask(bytes, align) = one {
                // Beyond a page the region's own address decides, and blocks of no bytes have no offset.
                (*bytes, *align) = ((*bytes).max(1), (*align).min(4096));
            }
        }
        let limit = Bytes(40_960);
        let run = || play(&BestFit::new(limit).unwrap(), |len| len.next_multiple_of(64), limit, &moves);
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn random_use_under_guards_shows_no_damage(mut moves in moves()) {
        for one in &mut moves {
            // In front of a block the guard is as long as the alignment; with one alignment the sums are exact.
            // A block of no bytes has guards too, and is refused where the plain allocators would give it.
            if let Move::Ask(bytes, align) = one {
                (*bytes, *align) = ((*bytes).max(1), 64);
            }
        }
        let limit = Bytes(40_960);
        for (memory, takes) in all(limit).into_iter().skip(2) {
            play(&*memory, takes, limit, &moves);
        }
    }
}

/// Asks for one or several pages or a part of one, or releases: as many moves as fill the limit several times over.
fn page_moves() -> impl Strategy<Value = Vec<Move>> {
    let bytes = prop_oneof![1u64..3000, 30_000u64..70_000, 60_000u64..900_000, Just(65_536), Just(1 << 20)];
    let one = prop_oneof![
        3 => bytes.prop_map(|bytes| Move::Ask(bytes, 64)),
        2 => any::<prop::sample::Index>().prop_map(Move::Release),
    ];
    prop::collection::vec(one, 1..300)
}

#[cfg(target_os = "linux")]
proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pages_meet_every_request_that_is_not_larger_than_what_is_free(moves in page_moves()) {
        let limit = Bytes::mib(4);
        let memory = Pages::new(limit).unwrap();
        let page = memory.page().get();
        let mut held: Vec<(Block, u8)> = Vec::new();
        let check = |block: &Block, byte: u8| {
            // SAFETY: a block of the host of as many bytes, all of which were written.
            let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr().as_ptr(), block.len()) };
            assert!(bytes.iter().all(|found| *found == byte), "a block was changed");
        };
        for (i, one) in moves.iter().enumerate() {
            match one {
                Move::Ask(bytes, align) => {
                    let free = memory.stats().free().get();
                    match memory.allocate(Bytes(*bytes), *align, at(i as u32)) {
                        Ok(block) => {
                            // SAFETY: only this test holds the block, which has as many bytes.
                            unsafe { block.as_ptr().write_bytes(i as u8, block.len()) };
                            held.push((block, i as u8));
                        }
                        Err(why) => assert!(bytes.next_multiple_of(page) > free, "{bytes} of {free}: {why}"),
                    }
                }
                Move::Release(which) if !held.is_empty() => {
                    let (block, byte) = held.swap_remove(which.index(held.len()));
                    check(&block, byte);
                    memory.release(block).unwrap();
                }
                Move::Release(_) => {}
            }
            let stats = memory.stats();
            assert!(stats.in_use <= stats.reserved && stats.reserved <= limit, "{stats}");
        }
        held.iter().for_each(|(block, byte)| check(block, *byte));
        held.into_iter().for_each(|(block, _)| memory.release(block).unwrap());
        // Whatever came before, all of it comes in one piece.
        let all = memory.allocate(limit, 64, at(0)).unwrap();
        memory.release(all).unwrap();
        memory.release_unused();
        assert_eq!(memory.stats().reserved, Bytes::ZERO);
    }
}
