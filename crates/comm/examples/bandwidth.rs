//! How fast ranks are: `mpirun -n 2 target/release/examples/bandwidth`, or by itself with threads.
//!
//! Prints, from rank 0, the link and for all-reduces of several lengths the seconds and bytes a second of the bus.

use std::time::{Duration, Instant};

use plimsoll_comm::{
    Call, Collectives, CommError, Communicator, Kind, RANK_TIMEOUT, Reduce, Schedule, connect, local, measure,
};
use plimsoll_graph::DType;

fn main() -> Result<(), CommError> {
    let rank = connect(Duration::from_secs(60), RANK_TIMEOUT)?;
    if rank.ranks() > 1 {
        return run(&rank);
    }
    let ranks = local::ranks(2, RANK_TIMEOUT);
    std::thread::scope(|threads| {
        let all: Vec<_> = ranks.iter().map(|rank| threads.spawn(move || run(rank))).collect();
        all.into_iter().try_for_each(|one| one.join().unwrap_or(Ok(())))
    })
}

fn run(rank: &dyn Communicator) -> Result<(), CommError> {
    let is_first = rank.rank() == 0;
    if let Some(link) = measure(rank)?.filter(|_| is_first) {
        let (latency, bandwidth) = (link.latency * 1e6, link.bandwidth / 1e9);
        println!("{} ranks, {}: {latency:.1} us, {bandwidth:.2} GB/s", rank.ranks(), rank.backend());
    }
    for len in [1, 1 << 10, 1 << 16, 1 << 20, 1 << 24] {
        let mut values = vec![1f32; len];
        let times = if len < 1 << 20 { 100 } else { 10 };
        let mut least = f64::INFINITY;
        for _ in 0..times {
            rank.barrier()?;
            let start = Instant::now();
            rank.all_reduce(Reduce::Sum, &mut values)?;
            least = least.min(start.elapsed().as_secs_f64());
        }
        let call = Call { kind: Kind::AllReduce(Reduce::Sum), dtype: DType::F32, len };
        let (sent, _) = Schedule::new(call, rank.rank(), rank.ranks()).traffic();
        if is_first {
            println!("{call}: {:.1} us, {:.2} GB/s", least * 1e6, sent as f64 / least / 1e9);
        }
    }
    Ok(())
}
