//! Turns work on the card's stream into the time that it takes there.

use crate::Cuda;
use crate::error::Error;

/// Timings of which the shortest counts, and about how many seconds each takes: so many runs that what the host does for
/// the first does not count.
const TIMINGS: usize = 3;
const SECONDS: f64 = 1.5e-3;
const MOST_RUNS: f64 = 20.0;

/// Seconds of a run, as far as the card is concerned.
pub(super) fn time(cuda: &Cuda, run: &dyn Fn() -> Result<(), Error>) -> Result<f64, Error> {
    // The first run loads code.
    run()?;
    let runs = (SECONDS / least(cuda, run)?).clamp(2.0, MOST_RUNS) as usize;
    Ok(least(cuda, || (0..runs).try_for_each(|_| run()))? / runs as f64)
}

/// The shortest of several timings.
fn least(cuda: &Cuda, body: impl Fn() -> Result<(), Error>) -> Result<f64, Error> {
    let mut least = f64::INFINITY;
    for _ in 0..TIMINGS {
        let start = cuda.record()?;
        body()?;
        let end = cuda.record()?;
        end.wait()?;
        least = least.min(end.since(&start)?);
    }
    Ok(least)
}
