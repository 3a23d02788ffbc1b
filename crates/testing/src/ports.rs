//! A port of this machine for a test that names it to other processes.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port that nobody uses: below those that the system gives away, so that no other test that runs is given it before its own has come to
/// listen there.
///
/// ```
/// let port = plimsoll_testing::free_port();
/// std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
/// assert_ne!(port, plimsoll_testing::free_port());
/// ```
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const MANY: u32 = 20_000;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Another process begins elsewhere.
    let begin = std::process::id().wrapping_mul(61);
    let next = || FIRST + (begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % MANY) as u16;
    let free = std::iter::repeat_with(next).take(MANY as usize);
    free.into_iter().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}
