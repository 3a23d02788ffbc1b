//! Turns Ctrl-C and SIGTERM into an end after the step at hand, with a checkpoint. A second one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use plimsoll::train::StopFlag;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::Failure;

/// Has a file that grows past what the user's limits allow be an error of who writes it, instead of the end of the process.
pub fn outlive_file_limits() {
    #[cfg(unix)]
    // Where the system refuses, such a file ends the process as before.
    flag::register(signal_hook::consts::SIGXFSZ, Arc::default()).ok();
}

/// The signals that are listened to.
pub struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// Asks to stop when a signal comes. From here on the first signal no longer ends the process.
    pub fn listen(stop: &StopFlag) -> Result<Signals, Failure> {
        let received = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the second signal finds the flag set by the first.
            flag::register_conditional_shutdown(signal, 128 + signal, stop.flag())?;
            flag::register(signal, stop.flag())?;
            flag::register_usize(signal, received.clone(), signal as usize)?;
        }
        Ok(Signals(received))
    }

    /// The signal that came, if one did.
    pub fn received(&self) -> Option<u8> {
        u8::try_from(self.0.load(Relaxed)).ok().filter(|&signal| signal > 0)
    }
}
