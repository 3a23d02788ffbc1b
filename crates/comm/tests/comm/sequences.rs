//! Random sequences of calls, some under way at once, on every backend, with random delays: the reference's values, the same bits.

use std::time::Duration;

use plimsoll_comm::{Buffers, Call, Collectives, Communicator, Kind, Reduce, local};
use plimsoll_graph::DType;
use plimsoll_testing::Dice;
use proptest::prelude::*;

use crate::reference::{begin, expected, kinds};
use crate::worlds::{PATIENCE, on_each, worlds};

#[derive(Clone, Debug)]
struct Sequence {
    ranks: usize,
    calls: Vec<(usize, usize)>,
    at_once: usize,
    seed: u64,
}

fn sequences() -> impl Strategy<Value = Sequence> {
    let calls = prop::collection::vec((0..20usize, prop_oneof![0..20usize, 20..3000usize]), 1..12);
    (1..5usize, calls, 1..5usize, any::<u64>()).prop_map(|(ranks, calls, at_once, seed)| Sequence {
        ranks,
        calls,
        at_once,
        seed,
    })
}

fn run(sequence: &Sequence, rank: &dyn Communicator) {
    let mut dice = Dice(sequence.seed ^ (rank.rank() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let kinds: Vec<Kind> = kinds(sequence.ranks);
    for (seed, calls) in sequence.calls.chunks(sequence.at_once).enumerate() {
        let calls: Vec<Call> = calls
            .iter()
            .map(|(kind, len)| Call { kind: kinds[kind % kinds.len()], dtype: DType::F32, len: *len })
            .collect();
        let mut values: Vec<Vec<f32>> =
            calls.iter().map(|call| begin(rank.rank(), call.len, seed as i64)).collect();
        let mut scratch: Vec<Vec<u64>> =
            calls.iter().map(|call| vec![0; rank.scratch_bytes(call).div_ceil(8)]).collect();
        let mut tickets = Vec::new();
        for ((call, values), scratch) in calls.iter().zip(&mut values).zip(&mut scratch) {
            let own = plimsoll_comm::shard(call.len, sequence.ranks, rank.rank()).start;
            let mut buffers = Buffers::in_place(values.as_mut_ptr().cast(), scratch);
            match call.kind {
                Kind::ReduceScatter(_) => buffers.output = buffers.output.wrapping_add(own * 4),
                Kind::AllGather => buffers.input = buffers.input.wrapping_add(own * 4),
                _ => {}
            }
            // SAFETY: the vectors outlive the waits below.
            tickets.push(unsafe { rank.start(call, buffers).unwrap() });
            if dice.roll(4) == 0 {
                std::thread::sleep(Duration::from_micros(dice.roll(300) as u64));
            }
        }
        while !tickets.is_empty() {
            let ticket = tickets.swap_remove(dice.roll(tickets.len()));
            rank.wait(ticket).unwrap();
        }
        for (call, values) in calls.iter().zip(&values) {
            let expected: Vec<f32> = expected(call, rank.rank(), sequence.ranks, seed as i64);
            let same = values.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{call} on rank {} of {}", rank.rank(), sequence.ranks);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_gives_the_reference_whatever_the_timing(sequence in sequences()) {
        for (_, ranks) in worlds(sequence.ranks, PATIENCE) {
            on_each(ranks, |rank| run(&sequence, &rank));
        }
    }
}

#[test]
fn many_more_calls_than_there_are_tags_go_well() {
    on_each(local::ranks(2, PATIENCE), |rank| {
        for i in 0..17_000 {
            let mut value = [i + rank.rank() as i32];
            rank.all_reduce(Reduce::Max, &mut value).unwrap();
            assert_eq!(value, [i + 1]);
        }
    });
}
