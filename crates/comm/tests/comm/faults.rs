//! Ranks that end, hang, never come, or make another call: an error on every other rank, that names them, in time.

use std::time::{Duration, Instant};

use plimsoll_comm::{
    Buffers, Call, Collectives, CommError, Communicator, Kind, Ranks, Reduce, Ticket, Traffic, agree,
};
use plimsoll_graph::DType;

use crate::worlds::{PATIENCE, in_each_world, on_each, worlds};

#[test]
fn a_rank_that_ends_in_the_middle_is_named_by_all_others() {
    for (name, ranks) in worlds(4, PATIENCE) {
        let start = Instant::now();
        let said = on_each(ranks, |rank| {
            let met = rank.barrier();
            let mut values = vec![1f32; 1000];
            if rank.rank() == 2 {
                met.unwrap();
                return String::new();
            }
            // Who is slow hears of the end of rank 2 in the barrier.
            let why = met.and_then(|()| rank.all_reduce(Reduce::Sum, &mut values)).unwrap_err();
            // It stays so.
            assert_eq!(rank.barrier().unwrap_err(), why);
            why.to_string()
        });
        for rank in [0, 1, 3] {
            assert!(said[rank].contains("rank 2 has ended"), "{name}, rank {rank}: {}", said[rank]);
            assert!(said[rank].contains("all-reduce (sum) of 1000 f32, number 1"), "{name}: {}", said[rank]);
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{name}");
    }
}

#[test]
fn a_rank_that_leaves_a_call_under_way_says_so() {
    for (name, ranks) in worlds(3, PATIENCE) {
        let said = on_each(ranks, |rank| {
            let mut values = vec![1f32; 100];
            if rank.rank() == 1 {
                let call = Call { kind: Kind::AllReduce(Reduce::Sum), dtype: DType::F32, len: 100 };
                let mut scratch = [0u64; 100];
                let buffers = Buffers::in_place(values.as_mut_ptr().cast(), &mut scratch);
                // SAFETY: the communicator is dropped before the values.
                let ticket = unsafe { rank.start(&call, buffers).unwrap() };
                drop((rank, ticket));
                return String::new();
            }
            let calls = [rank.all_reduce(Reduce::Sum, &mut values), rank.barrier(), rank.barrier()];
            calls.into_iter().find_map(Result::err).unwrap().to_string()
        });
        for rank in [0, 2] {
            assert!(said[rank].contains("rank 1"), "{name}: {}", said[rank]);
        }
    }
}

#[test]
fn a_rank_that_does_not_answer_is_named_when_the_time_is_over() {
    in_each_world(3, Duration::from_millis(700), |name, ranks| {
        let start = Instant::now();
        let said = on_each(ranks, |rank| {
            if rank.rank() == 1 {
                std::thread::sleep(Duration::from_millis(2000));
                return String::new();
            }
            rank.all_gather(&mut [0u8; 300]).unwrap_err().to_string()
        });
        for rank in [0, 2] {
            assert!(said[rank].contains("rank 1 has not answered"), "{name}, rank {rank}: {}", said[rank]);
            assert!(said[rank].contains("all-gather of 300 u8, number 0"), "{name}: {}", said[rank]);
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{name}");
    });
}

#[test]
fn who_waits_for_one_that_waits_for_another_names_the_one_to_blame() {
    in_each_world(3, Duration::from_millis(700), |name, ranks| {
        let said = on_each(ranks, |rank| {
            if rank.rank() == 1 {
                std::thread::sleep(Duration::from_millis(2000));
                return String::new();
            }
            // One value: rank 0 adds it, and rank 2 waits for rank 0 alone.
            rank.all_reduce(Reduce::Sum, &mut [0f32]).unwrap_err().to_string()
        });
        for rank in [0, 2] {
            assert!(said[rank].contains("rank 1 has not answered"), "{name}, rank {rank}: {}", said[rank]);
        }
    });
}

/// What each rank says where rank 1 makes another call.
fn at_odds(
    n: usize,
    own: impl Fn(&dyn Communicator) -> plimsoll_comm::Result<()> + Sync,
) -> Vec<(String, Vec<CommError>)> {
    let mut all = Vec::new();
    for (name, ranks) in worlds(n, PATIENCE) {
        let start = Instant::now();
        let said = on_each(ranks, |rank| {
            let first =
                if rank.rank() == 1 { own(&rank) } else { rank.all_reduce(Reduce::Sum, &mut [1f32; 40]) };
            // Who got away with it hears of it in the next call.
            first.and_then(|()| rank.barrier()).and_then(|()| rank.barrier()).unwrap_err()
        });
        assert!(start.elapsed() < Duration::from_secs(10), "{name}");
        all.push((name.to_string(), said));
    }
    all
}

#[test]
fn another_length_type_reduction_or_call_is_an_error_on_every_rank() {
    type Own = fn(&dyn Communicator) -> plimsoll_comm::Result<()>;
    let others: [(Own, &str); 6] = [
        (|rank| rank.all_reduce(Reduce::Sum, &mut [1f32; 41]), "of 41 f32"),
        (|rank| rank.all_reduce(Reduce::Sum, &mut [1i32; 40]), "of 40 i32"),
        (|rank| rank.all_reduce(Reduce::Max, &mut [1f32; 40]), "(max) of 40 f32"),
        (|rank| rank.all_gather(&mut [1f32; 40]), "all-gather of 40 f32"),
        (|rank| rank.broadcast(1, &mut [1f32; 40]), "broadcast from rank 1"),
        (|rank| rank.barrier(), "barrier"),
    ];
    for (own, word) in others {
        for n in [2, 4] {
            for (name, said) in at_odds(n, own) {
                for (rank, why) in said.iter().enumerate() {
                    let why = why.to_string();
                    assert!(why.contains("ranks do not make the same calls"), "{name}, rank {rank}: {why}");
                    assert!(
                        why.contains("all-reduce (sum) of 40 f32, number 0") || why.contains(word),
                        "{name}: {why}"
                    );
                    assert!(why.contains("rank 1"), "{name}: {why}");
                }
            }
        }
    }
}

#[test]
fn a_send_that_is_longer_than_its_receive_is_an_error_on_both() {
    for (name, ranks) in worlds(2, PATIENCE) {
        let said = on_each(ranks, |rank| {
            let first = match rank.rank() {
                0 => rank.send(1, &[0u8; 9]),
                _ => rank.receive(0, &mut [0u8; 8]),
            };
            first.and_then(|()| rank.barrier()).unwrap_err().to_string()
        });
        for why in said {
            assert!(why.contains("ranks do not make the same calls"), "{name}: {why}");
        }
    }
}

#[test]
fn a_send_where_the_other_rank_is_in_a_collective_ends_and_names_both() {
    for (name, ranks) in worlds(2, Duration::from_millis(300)) {
        let said = on_each(ranks, |rank| match rank.rank() {
            0 => rank.receive(1, &mut [0u8; 9]).unwrap_err().to_string(),
            _ => rank.barrier().unwrap_err().to_string(),
        });
        let all = said.join("\n");
        assert!(all.contains("receive from rank 1 of 9 u8") && all.contains("barrier"), "{name}: {all}");
    }
}

#[test]
fn a_rank_that_stops_says_why_to_all() {
    for (name, ranks) in worlds(3, PATIENCE) {
        let said = on_each(ranks, |rank| {
            if rank.rank() == 0 {
                rank.stop("there is no room on the disk");
                return rank.barrier().unwrap_err();
            }
            rank.barrier().unwrap_err()
        });
        for why in said {
            assert_eq!(why.to_string(), "rank 0 stopped: there is no room on the disk", "{name}");
        }
    }
}

#[test]
fn calls_that_make_no_sense_are_refused_before_anything_is_sent() {
    for (_, ranks) in worlds(2, PATIENCE) {
        on_each(ranks, |rank| {
            let refused = [
                rank.broadcast(2, &mut [0u8; 1]),
                rank.send(rank.rank(), &[0u8; 1]),
                rank.send(7, &[0u8; 1]),
            ];
            for (refused, word) in refused.into_iter().zip(["no rank 2 among 2", "itself", "no rank 7"]) {
                assert!(refused.unwrap_err().to_string().contains(word));
            }
            let mut values = [0u64; 8];
            let at: *mut u8 = values.as_mut_ptr().cast();
            let start = |dtype, buffers| {
                let call = Call { kind: Kind::AllReduce(Reduce::Sum), dtype, len: 8 };
                // SAFETY: nothing is started.
                unsafe { rank.start(&call, buffers) }.unwrap_err().to_string()
            };
            let buffers = Buffers { input: at, output: at, scratch: at.wrapping_add(32), scratch_bytes: 32 };
            let none = Buffers { scratch_bytes: 3, ..buffers };
            assert!(start(DType::U8, none).contains("needs 4 bytes of scratch and was given 3"));
            assert!(start(DType::Bool, buffers).contains("is not reduced"));
            assert!(
                start(DType::F32, Buffers { input: at.wrapping_add(1), ..buffers }).contains("not aligned")
            );
            assert!(start(DType::F32, Buffers { output: at.wrapping_add(8), ..buffers }).contains("overlap"));
            // And ranks go on.
            rank.barrier().unwrap();
        });
    }
}

#[test]
fn ranks_that_were_not_started_alike_learn_who_differs_in_what() {
    for (name, ranks) in worlds(3, PATIENCE) {
        on_each(ranks, |rank| {
            agree(&rank, &[("plan", "abc"), ("limit", "1GiB")]).unwrap();
            let data = if rank.rank() == 0 { "mnist" } else { "shapes" };
            let why = agree(&rank, &[("plan", "abc"), ("data", data)]).unwrap_err().to_string();
            assert!(why.ends_with("data is 'mnist' on rank 0 and 'shapes' on ranks 1, 2"), "{name}: {why}");
            let fields: &[_] = if rank.rank() == 2 { &[("a", "1")] } else { &[("a", "1"), ("b", "2")] };
            let why = agree(&rank, fields).unwrap_err().to_string();
            assert!(why.ends_with("b is missing on rank 2 and '2' on ranks 0, 1"), "{name}: {why}");
            let why = agree(&rank, &[("a", &"x".repeat(5000))]).unwrap_err().to_string();
            assert!(why.contains("5003 bytes"), "{why}");
        });
    }
}

/// Ranks that say that their values lie on a card.
struct OnCard(Ranks);

impl Communicator for OnCard {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn ranks(&self) -> usize {
        self.0.ranks()
    }
    fn backend(&self) -> &str {
        "a card"
    }
    fn is_on_host(&self) -> bool {
        false
    }
    fn scratch_bytes(&self, call: &Call) -> usize {
        self.0.scratch_bytes(call)
    }
    unsafe fn start(&self, call: &Call, buffers: Buffers) -> plimsoll_comm::Result<Ticket> {
        // SAFETY: passed on.
        unsafe { self.0.start(call, buffers) }
    }
    fn test(&self, ticket: &Ticket) -> plimsoll_comm::Result<bool> {
        self.0.test(ticket)
    }
    fn wait(&self, ticket: Ticket) -> plimsoll_comm::Result<()> {
        self.0.wait(ticket)
    }
    fn progress(&self) -> plimsoll_comm::Result<bool> {
        self.0.progress()
    }
    fn stop(&self, reason: &str) {
        self.0.stop(reason);
    }
    fn own_bytes(&self) -> u64 {
        self.0.own_bytes()
    }
    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }
}

#[test]
fn slices_of_the_host_are_refused_where_values_lie_on_a_card() {
    on_each(plimsoll_comm::local::ranks(2, PATIENCE), |rank| {
        let card = OnCard(rank);
        let why = card.all_reduce(Reduce::Sum, &mut [1f32]).unwrap_err().to_string();
        assert!(why.contains("a card takes values on a card"), "{why}");
        card.barrier().unwrap();
    });
}
