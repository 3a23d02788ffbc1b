//! Worlds of ranks in threads of this process, whatever connects them.

use std::time::Duration;

use plimsoll_comm::tcp::{self, Meeting};
use plimsoll_comm::{Ranks, local};

/// A world that is used before it is given up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs something on every rank of a world; results in the order of ranks.
pub fn on_each<R: Send>(ranks: Vec<Ranks>, run: impl Fn(Ranks) -> R + Sync) -> Vec<R> {
    std::thread::scope(|threads| {
        let run = &run;
        let all: Vec<_> = ranks.into_iter().map(|rank| threads.spawn(move || run(rank))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// A world of each kind, with its name.
pub fn worlds(n: usize, timeout: Duration) -> Vec<(&'static str, Vec<Ranks>)> {
    vec![("threads", local::ranks(n, timeout)), ("tcp", connected(n, timeout))]
}

/// Runs something on a world of each kind, all at the same time: for tests that wait more than they compute.
pub fn in_each_world(n: usize, timeout: Duration, run: impl Fn(&str, Vec<Ranks>) + Sync) {
    std::thread::scope(|threads| {
        let run = &run;
        for (name, ranks) in worlds(n, timeout) {
            threads.spawn(move || run(name, ranks));
        }
    });
}

/// A place of this machine where nobody listens.
pub fn free_address() -> String {
    format!("127.0.0.1:{}", plimsoll_testing::free_port())
}

/// Ranks in threads, connected by sockets.
fn connected(ranks: usize, timeout: Duration) -> Vec<Ranks> {
    let address = free_address();
    std::thread::scope(|threads| {
        let join = |rank| {
            let meeting = Meeting { rank, ranks, address: address.clone(), patience: PATIENCE };
            threads.spawn(move || tcp::join(&meeting, timeout).unwrap())
        };
        let all: Vec<_> = (0..ranks).map(join).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}
