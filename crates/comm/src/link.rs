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
pub(crate) const LONG: usize = 4 << 20;
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
    let mut long = vec![0u8; LONG];
    measure_by(ranks, &mut |message, bytes| match message {
        Message::To(peer) => ranks.send(peer, &long[..bytes]),
        Message::From(peer) => ranks.receive(peer, &mut long[..bytes]),
    })
}

/// A message of one of two ranks that measure the link between them.
#[derive(Clone, Copy)]
pub(crate) enum Message {
    To(usize),
    From(usize),
}

/// As [`measure`], by messages of so many bytes, [`LONG`] at most, wherever these lie. What is learnt goes over the host's ranks.
pub(crate) fn measure_by(
    host: &(impl Communicator + ?Sized),
    message: &mut dyn FnMut(Message, usize) -> Result<()>,
) -> Result<Option<Link>> {
    let last = host.ranks() - 1;
    if last == 0 {
        return Ok(None);
    }
    let mut figures = [0.0f64; 2];
    if host.rank() == 0 || host.rank() == last {
        let peer = if host.rank() == 0 { last } else { 0 };
        let short = there_and_back(peer, 1, SHORT_TIMES, message)?;
        let whole = there_and_back(peer, LONG, LONG_TIMES, message)?;
        figures = [short, LONG as f64 / (whole - short).max(1e-9)];
    }
    host.broadcast(0, &mut figures)?;
    Ok(Some(Link { latency: figures[0], bandwidth: figures[1] }))
}

/// The least seconds of one way.
fn there_and_back(
    peer: usize,
    bytes: usize,
    times: usize,
    message: &mut dyn FnMut(Message, usize) -> Result<()>,
) -> Result<f64> {
    let (there, back) = (Message::To(peer), Message::From(peer));
    // The first rank is the peer of the last.
    let both = if peer > 0 { [there, back] } else { [back, there] };
    let mut least = f64::INFINITY;
    // The first ones connect and touch pages.
    for _ in 0..times + 2 {
        let start = Instant::now();
        for one in both {
            message(one, bytes)?;
        }
        least = least.min(start.elapsed().as_secs_f64() / 2.0);
    }
    Ok(least)
}
