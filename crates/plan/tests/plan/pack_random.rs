//! Packs random buffers and checks the result with code that shares nothing with the packer.

use plimsoll_plan::pack::{Buffer, Error, Options, Packing, pack};
use std::collections::BTreeMap;

/// A small generator: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }
}

fn buffer(lower: u64, upper: u64, size: u64) -> Buffer {
    Buffer { lower, upper, size, alignment: 1 }
}

fn packed(buffers: &[Buffer], options: &Options) -> Packing {
    let packing = pack(buffers, options).expect("the buffers are well formed");
    check(buffers, &packing);
    packing
}

/// Sweeps over time and keeps what is live by offset: neighbours there must not touch.
fn check(buffers: &[Buffer], packing: &Packing) {
    assert_eq!(packing.offsets.len(), buffers.len());
    let mut events = Vec::new();
    for (at, buffer) in buffers.iter().enumerate() {
        assert_eq!(packing.offsets[at] % buffer.alignment, 0, "buffer {at} is not aligned");
        if buffer.size > 0 && buffer.lower < buffer.upper {
            assert!(packing.offsets[at] + buffer.size <= packing.height, "buffer {at} is above the height");
            events.push((buffer.upper, 0, at));
            events.push((buffer.lower, 1, at));
        }
    }
    events.sort_unstable();
    let mut live: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    let (mut bytes, mut most) = (0, 0);
    for (_, start, at) in events {
        let (offset, size) = (packing.offsets[at], buffers[at].size);
        if start == 0 {
            live.remove(&offset);
            bytes -= size;
            continue;
        }
        if let Some((_, &(end, below))) = live.range(..=offset).next_back() {
            assert!(end <= offset, "buffers {below} and {at} overlap");
        }
        if let Some((&next, &(_, above))) = live.range(offset..).next() {
            assert!(offset + size <= next, "buffers {at} and {above} overlap");
        }
        live.insert(offset, (offset + size, at));
        bytes += size;
        most = most.max(bytes);
    }
    assert!(packing.lower_bound >= most && packing.height >= packing.lower_bound);
}

/// The lowest height there is: some order in which first fit makes a best packing always exists.
fn lowest(buffers: &[Buffer]) -> u64 {
    fn extend(buffers: &[Buffer], placed: &mut Vec<(usize, u64)>, height: u64, best: &mut u64) {
        if height >= *best {
            return;
        }
        if placed.len() == buffers.len() {
            *best = height;
            return;
        }
        for at in 0..buffers.len() {
            if placed.iter().any(|&(other, _)| other == at) {
                continue;
            }
            let b = buffers[at];
            let meets = |&&(other, _): &&(usize, u64)| {
                let o: Buffer = buffers[other];
                o.lower < b.upper && b.lower < o.upper
            };
            let mut taken: Vec<(u64, u64)> = placed
                .iter()
                .filter(meets)
                .map(|&(other, offset)| (offset, offset + buffers[other].size))
                .collect();
            taken.sort_unstable();
            let mut offset = 0u64;
            for (start, end) in taken {
                if start >= offset + b.size {
                    break;
                }
                offset = offset.max(end.next_multiple_of(b.alignment));
            }
            placed.push((at, offset));
            extend(buffers, placed, height.max(offset + b.size), best);
            placed.pop();
        }
    }
    let mut best = u64::MAX;
    extend(buffers, &mut Vec::new(), 0, &mut best);
    best
}

/// Cuts a block of `time` by `bytes` into `count` buffers, which thus fit it with nothing to spare.
fn cut(random: &mut Random, time: u64, bytes: u64, count: usize) -> Vec<Buffer> {
    let mut pieces = vec![(0, time, bytes)];
    while pieces.len() < count {
        let at = random.below(pieces.len() as u64) as usize;
        let (lower, upper, size) = pieces[at];
        if random.below(2) == 0 && upper - lower > 1 {
            let middle = random.between(lower + 1, upper);
            pieces[at] = (lower, middle, size);
            pieces.push((middle, upper, size));
        } else if size > 1 {
            let part = random.between(1, size);
            pieces[at] = (lower, upper, part);
            pieces.push((lower, upper, size - part));
        }
    }
    pieces.into_iter().map(|(lower, upper, size)| buffer(lower, upper, size)).collect()
}

/// A training step of so many layers: weights, activations that die in reverse order, gradients, scratch.
fn training(random: &mut Random, layers: u64) -> Vec<Buffer> {
    let end = 4 * layers;
    let mut buffers = Vec::new();
    for layer in 0..layers {
        let back = end - 2 * layer;
        let sizes = [1 << random.between(8, 20), 3 << random.between(6, 18), 5 << random.between(6, 18)];
        buffers.push(buffer(0, end + 1, random.between(1, 5000) * 4));
        buffers.push(buffer(2 * layer, back, sizes[0]));
        buffers.push(buffer(2 * layer, 2 * layer + 2, sizes[1]));
        buffers.push(buffer(2 * layer + 1, back - random.below(2), sizes[2]));
        buffers.push(buffer(back - 1, back + 2, sizes[0]));
        buffers.push(buffer(back, (back + random.between(1, 9)).min(end + 1), sizes[1]));
    }
    buffers
}

/// So many buffers that begin before a time, live for less than a length, and have less than a size.
fn drawn(random: &mut Random, n: usize, [time, length, size]: [u64; 3]) -> Vec<Buffer> {
    let draw = |_| {
        let lower = random.below(time);
        buffer(lower, lower + random.between(1, length), random.between(1, size))
    };
    (0..n).map(draw).collect()
}

#[test]
fn small_problems_are_packed_as_low_as_brute_force_packs_them() {
    let mut random = Random(1);
    for round in 0..300 {
        let count = 2 + round % 6;
        let buffers = drawn(&mut random, count, [8, 6, 12]);
        let packing = packed(&buffers, &Options::default());
        assert_eq!(packing.height, lowest(&buffers), "{buffers:?}");
        assert!(packing.proved_optimal);
    }
}

#[test]
fn eight_buffers_with_mixed_alignments_are_packed_as_low_as_brute_force_packs_them() {
    let mut random = Random(2);
    let mut above_live = 0;
    for _ in 0..25 {
        let mut buffers: Vec<Buffer> = (0..8)
            .map(|_| {
                let lower = random.below(10);
                let alignment = [1, 4, 8, 12][random.below(4) as usize];
                Buffer { lower, upper: lower + random.between(1, 7), size: random.between(1, 9), alignment }
            })
            .collect();
        // One of alignment 1 keeps the unit at a byte.
        buffers[0].alignment = 1;
        let packing = packed(&buffers, &Options::default());
        assert_eq!(packing.height, lowest(&buffers), "{buffers:?}");
        assert!(packing.proved_optimal);
        above_live += u32::from(packing.height > packing.lower_bound);
    }
    assert!(above_live > 3, "too few problems whose lowest height is above what is live");
}

#[test]
fn no_capacity_that_brute_force_can_meet_is_missed() {
    let mut random = Random(3);
    for _ in 0..60 {
        let buffers = drawn(&mut random, 7, [9, 6, 20]);
        let lowest = lowest(&buffers);
        let at = |capacity| packed(&buffers, &Options { capacity: Some(capacity), ..Options::default() });
        assert!(at(lowest).fits(lowest));
        assert!(!at(lowest - 1).fits(lowest - 1));
    }
}

#[test]
fn a_block_cut_into_pieces_is_put_together_again() {
    let mut random = Random(4);
    for count in [10, 20, 40, 80, 160] {
        for _ in 0..4 {
            let buffers = cut(&mut random, 1000, 1000, count);
            assert_eq!(packed(&buffers, &Options::within(20.0)).height, 1000);
        }
    }
}

#[test]
fn training_steps_are_packed_at_the_lower_bound() {
    let mut random = Random(5);
    for layers in [5, 50, 400] {
        let buffers = training(&mut random, layers);
        let packing = packed(&buffers, &Options::within(20.0));
        assert_eq!(packing.height, packing.lower_bound, "{layers} layers");
    }
}

#[test]
fn a_deep_nest_is_packed_at_the_lower_bound_at_once() {
    // Scratch beside each start keeps the nest from being a single section.
    let depth = 10_000;
    let nest = (0..depth).map(|at| buffer(2 * at, 4 * depth - at, 1 + at % 7));
    let scratch = (0..depth).map(|at| buffer(2 * at, 2 * at + 1, 1 + at % 5));
    let buffers: Vec<Buffer> = nest.chain(scratch).collect();
    let packing = packed(&buffers, &Options::default());
    assert_eq!(packing.height, packing.lower_bound);
}

#[test]
fn the_same_buffers_are_packed_alike_each_time() {
    let mut random = Random(6);
    // Too hard to be finished, so that the whole ladder runs until the work allowed is done.
    let buffers: Vec<Buffer> = (0..120)
        .map(|_| {
            let lower = random.below(60);
            let alignment = 1 << random.below(8);
            Buffer { lower, upper: lower + random.between(1, 25), size: random.between(1, 1000), alignment }
        })
        .collect();
    let options = Options { work: 0.05, ..Options::default() };
    let (first, second) = (packed(&buffers, &options), packed(&buffers, &options));
    assert!(!first.proved_optimal, "it was finished");
    assert_eq!(first.offsets, second.offsets);
    // Nor does it matter in which order they are listed.
    let reversed: Vec<Buffer> = buffers.iter().rev().copied().collect();
    assert_eq!(packed(&reversed, &options).height, first.height);
}

#[test]
fn a_deadline_of_nothing_still_gives_a_packing() {
    let buffers = training(&mut Random(7), 30);
    packed(&buffers, &Options { deadline: 0.0, ..Options::default() });
    packed(&buffers, &Options { deadline: f64::NAN, ..Options::default() });
}

#[test]
fn random_alignments_are_kept() {
    let mut random = Random(8);
    for round in 0..40 {
        let mut draw = |_| {
            let lower = random.below(40);
            let alignment = if round % 2 == 0 { 64 } else { 1 << random.below(7) };
            Buffer { lower, upper: lower + random.below(12), size: random.below(500), alignment }
        };
        let buffers: Vec<Buffer> = (0..60).map(&mut draw).collect();
        packed(&buffers, &Options { work: 0.02, ..Options::default() });
    }
}

#[test]
fn equal_alignments_cost_at_most_the_padding() {
    let buffers: Vec<Buffer> =
        (0..10).map(|at| Buffer { lower: at, upper: at + 3, size: 100, alignment: 64 }).collect();
    // Three at a time, each taking two units of 64, but the topmost needs only its own bytes.
    let packing = packed(&buffers, &Options::default());
    assert_eq!((packing.height, packing.lower_bound), (356, 356));
    assert!(packing.proved_optimal);
}

#[test]
fn nothing_and_buffers_of_nothing_take_no_bytes() {
    assert_eq!(packed(&[], &Options::default()).height, 0);
    let buffers = [buffer(0, 5, 0), buffer(3, 3, 100), buffer(1, 2, 7)];
    let packing = packed(&buffers, &Options::default());
    assert_eq!((packing.height, packing.lower_bound), (7, 7));
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let refusal = |buffer| pack(&[buffer], &Options::default()).expect_err("it is not well formed");
    assert_eq!(refusal(buffer(3, 1, 4)), Error::Reversed { buffer: 0, lower: 3, upper: 1 });
    assert_eq!(refusal(Buffer { alignment: 0, ..buffer(0, 1, 4) }), Error::NoAlignment { buffer: 0 });
    assert_eq!(refusal(buffer(0, 1, u64::MAX)), Error::TooLarge { buffer: 0 });
}
