//! How fast ranks reach each other, measured: what plans take as the cost of a call.

use std::time::Instant;

use crate::collectives::Collectives;
use crate::communicator::Communicator;
use crate::error::Result;

/// A link between two ranks: a message of so many bytes takes `latency + bytes / bandwidth`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds that a message of no bytes takes, headers included.
    pub latency: f64,
    /// Bytes a second of a long one.
    pub bandwidth: f64,
}

impl Link {
    /// Seconds that a message takes.
    ///
    /// ```
    /// let link = plimsoll_comm::Link { latency: 1e-6, bandwidth: 1e9 };
    /// assert!((link.seconds(1_000_000) - 0.001_001).abs() < 1e-12);
    /// ```
    pub fn seconds(&self, bytes: u64) -> f64 {
        self.latency + bytes as f64 / self.bandwidth
    }
}

/// Bytes of the long message, and how often each is sent back and forth. The best counts: what others do on the machine only slows it.
const LONG: usize = 4 << 20;
const SHORT_TIMES: usize = 50;
const LONG_TIMES: usize = 5;

/// Measures the link between the first rank and the last, which in a world of several machines are on different ones. All ranks call it and
/// learn the same. None in a world of one.
///
/// ```
/// use std::time::Duration;
/// use plimsoll_comm::{local, measure};
/// let ranks = local::ranks(2, Duration::from_secs(10));
/// let links: Vec<_> = std::thread::scope(|threads| {
///     let all: Vec<_> = ranks.iter().map(|rank| threads.spawn(move || measure(rank).unwrap())).collect();
///     all.into_iter().map(|one| one.join().unwrap()).collect()
/// });
/// assert_eq!(links[0], links[1]);
/// assert!(links[0].unwrap().latency > 0.0 && links[0].unwrap().bandwidth > 1e6);
/// ```
///
/// # Errors
/// A rank fails.
pub fn measure(ranks: &(impl Communicator + ?Sized)) -> Result<Option<Link>> {
    let last = ranks.ranks() - 1;
    if last == 0 {
        return Ok(None);
    }
    let mut figures = [0.0f64; 2];
    if ranks.rank() == 0 || ranks.rank() == last {
        let mut long = vec![0u8; LONG];
        let short = there_and_back(ranks, &mut long[..1], SHORT_TIMES)?;
        let whole = there_and_back(ranks, &mut long, LONG_TIMES)?;
        figures = [short, LONG as f64 / (whole - short).max(1e-9)];
    }
    ranks.broadcast(0, &mut figures)?;
    Ok(Some(Link { latency: figures[0], bandwidth: figures[1] }))
}

/// The least seconds of one way.
fn there_and_back(ranks: &(impl Communicator + ?Sized), bytes: &mut [u8], times: usize) -> Result<f64> {
    let is_first = ranks.rank() == 0;
    let peer = if is_first { ranks.ranks() - 1 } else { 0 };
    let mut least = f64::INFINITY;
    // The first ones connect and touch pages.
    for _ in 0..times + 2 {
        let start = Instant::now();
        if is_first {
            ranks.send(peer, bytes)?;
            ranks.receive(peer, bytes)?;
        } else {
            ranks.receive(peer, bytes)?;
            ranks.send(peer, bytes)?;
        }
        least = least.min(start.elapsed().as_secs_f64() / 2.0);
    }
    Ok(least)
}
