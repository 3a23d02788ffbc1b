//! Every call × type × number of ranks × length, on every backend of this process.

use std::time::Instant;

use plimsoll_comm::{
    Background, Buffers, Call, Collectives, Communicator, Kind, Reduce, SCRATCH_BYTES, Schedule, shard,
};
use plimsoll_graph::DType;

use crate::reference::hold_all;
use crate::worlds::{PATIENCE, on_each, worlds};

#[test]
fn every_call_gives_the_bits_of_the_reference_on_every_backend() {
    for n in 1..=5 {
        let digests: Vec<Vec<u64>> = worlds(n, PATIENCE)
            .into_iter()
            .map(|(_, ranks)| on_each(ranks, |rank| hold_all(&rank, &[0, 1, 2, 7, 1001])))
            .collect();
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{n} ranks");
    }
}

#[test]
fn calls_of_several_pieces_give_the_bits_of_the_reference() {
    let len = SCRATCH_BYTES / 4 + 100_003;
    for (name, ranks) in worlds(3, PATIENCE) {
        on_each(ranks, |rank| crate::reference::hold::<f32>(&rank, &[len]));
        println!("{name}");
    }
}

#[test]
fn calls_under_way_at_the_same_time_do_not_disturb_each_other() {
    for (name, ranks) in worlds(3, PATIENCE) {
        on_each(ranks, |rank| {
            let n = rank.ranks();
            let lens = [1000, 0, 70_001, 3];
            let mut values: Vec<Vec<f64>> = lens.iter().map(|len| vec![rank.rank() as f64; *len]).collect();
            let call = |len| Call { kind: Kind::AllReduce(Reduce::Sum), dtype: DType::F64, len };
            let mut scratch: Vec<Vec<u64>> =
                lens.iter().map(|len| vec![0; rank.scratch_bytes(&call(*len)).div_ceil(8)]).collect();
            let mut tickets: Vec<_> = values
                .iter_mut()
                .zip(&mut scratch)
                .map(|(values, scratch)| {
                    let buffers = Buffers::in_place(values.as_mut_ptr().cast(), scratch);
                    // SAFETY: the vectors outlive the waits below.
                    unsafe { rank.start(&call(values.len()), buffers).unwrap() }
                })
                .collect();
            // Each rank waits in another order.
            tickets.rotate_left(rank.rank());
            for ticket in tickets {
                while rank.rank() == 1 && !rank.test(&ticket).unwrap() {
                    std::thread::yield_now();
                }
                rank.wait(ticket).unwrap();
            }
            assert!(!rank.progress().unwrap());
            let sum = (0..n).sum::<usize>() as f64;
            assert!(values.iter().flatten().all(|value| *value == sum), "{name}");
        });
    }
}

#[test]
fn results_can_lie_apart_from_what_they_are_made_of() {
    for (name, ranks) in worlds(3, PATIENCE) {
        on_each(ranks, |rank| {
            let (len, own) = (11, shard(11, 3, rank.rank()));
            let input: Vec<i32> = (0..len as i32).collect();
            let run = |kind, input: &[i32], output: &mut [i32]| {
                let call = Call { kind, dtype: DType::I32, len };
                let mut scratch = vec![0u64; rank.scratch_bytes(&call).div_ceil(8)];
                let buffers = Buffers {
                    input: input.as_ptr().cast(),
                    output: output.as_mut_ptr().cast(),
                    ..Buffers::in_place(std::ptr::null_mut(), &mut scratch)
                };
                // SAFETY: slices of the lengths that the calls have, which stay until the wait is over.
                rank.wait(unsafe { rank.start(&call, buffers).unwrap() }).unwrap();
            };
            let mut sums = vec![0; len];
            run(Kind::AllReduce(Reduce::Sum), &input, &mut sums);
            assert!(sums.iter().zip(&input).all(|(sum, value)| *sum == 3 * value), "{name}");
            let mut part = vec![0; own.len()];
            run(Kind::ReduceScatter(Reduce::Sum), &input, &mut part);
            assert_eq!(part, sums[own.clone()]);
            let mut all = vec![0; len];
            run(Kind::AllGather, &part, &mut all);
            assert_eq!(all, sums);
            assert!(
                input.iter().enumerate().all(|(i, value)| i as i32 == *value),
                "{name}: input is left alone"
            );
        });
    }
}

#[test]
fn nobody_passes_a_barrier_before_all_have_come() {
    for (name, ranks) in worlds(4, PATIENCE) {
        let times = on_each(ranks, |rank| {
            if rank.rank() == 2 {
                std::thread::sleep(std::time::Duration::from_millis(60));
            }
            let came = Instant::now();
            rank.barrier().unwrap();
            (came, Instant::now())
        });
        let last = times.iter().map(|(came, _)| *came).max().unwrap();
        assert!(times.iter().all(|(_, left)| *left >= last), "{name}");
    }
}

#[test]
fn what_is_counted_is_what_the_schedule_says_and_a_header() {
    for (name, ranks) in worlds(4, PATIENCE) {
        on_each(ranks, |rank| {
            let len = 400_000;
            let before = rank.traffic();
            rank.all_reduce(Reduce::Sum, &mut vec![1f32; len]).unwrap();
            let after = rank.traffic();
            let call = Call { kind: Kind::AllReduce(Reduce::Sum), dtype: DType::F32, len };
            let (sent, received) = Schedule::new(call, rank.rank(), 4).traffic();
            assert_eq!(
                (after.sent - before.sent, after.received - before.received),
                (sent + 32, received + 32),
                "{name}"
            );
            let theory = 2.0 * 0.75 * (len * 4) as f64;
            assert!((after.sent as f64 / theory - 1.0).abs() < 0.05);
        });
    }
}

#[test]
fn a_call_in_the_background_is_complete_though_nobody_looks_after_it() {
    for (name, ranks) in worlds(3, PATIENCE) {
        let met = std::sync::Barrier::new(3);
        on_each(ranks, |rank| {
            let rank = Background::new(rank).unwrap();
            let mut values = vec![1f64; 500_000];
            let call = Call { kind: Kind::AllReduce(Reduce::Sum), dtype: DType::F64, len: values.len() };
            let mut scratch = vec![0u64; rank.scratch_bytes(&call).div_ceil(8)];
            let buffers = Buffers::in_place(values.as_mut_ptr().cast(), &mut scratch);
            // SAFETY: the vectors outlive the wait below.
            let ticket = unsafe { rank.start(&call, buffers).unwrap() };
            let start = Instant::now();
            while rank.under_way() > 0 {
                assert!(start.elapsed() < PATIENCE, "{name}");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            rank.wait(ticket).unwrap();
            assert!(values.iter().all(|value| *value == 3.0), "{name}");
            met.wait();
            // Faults are told as without it.
            if rank.rank() == 1 {
                return;
            }
            let why = rank.barrier().unwrap_err().to_string();
            assert!(why.contains("rank 1 has ended"), "{name}: {why}");
        });
    }
}
