//! Turns Ctrl-C and SIGTERM into an end after the step at hand, with a checkpoint. A second one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use plimsoll::prelude::*;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::Failure;

/// Ends a run where it was asked for.
pub struct Interrupt(Arc<AtomicBool>);

/// The signals that are listened to.
pub struct Signals(Arc<AtomicUsize>);

impl Interrupt {
    /// Ends a run once the flag is set.
    pub fn new(stop: &Arc<AtomicBool>) -> Interrupt {
        Interrupt(stop.clone())
    }

    /// Sets the flag when a signal comes. From here on the first signal no longer ends the process.
    pub fn listen(stop: &Arc<AtomicBool>) -> Result<Signals, Failure> {
        let received = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM] {
            let code = 128 + signal;
            // In this order: the second signal finds the flag set by the first.
            flag::register_conditional_shutdown(signal, code, stop.clone())?;
            flag::register(signal, stop.clone())?;
            flag::register_usize(signal, received.clone(), signal as usize)?;
        }
        Ok(Signals(received))
    }
}

impl Callback for Interrupt {
    fn wants_to_stop(&mut self) -> bool {
        self.0.load(Relaxed)
    }
}

impl Signals {
    /// The signal that came, if one did.
    pub fn received(&self) -> Option<u8> {
        u8::try_from(self.0.load(Relaxed)).ok().filter(|&signal| signal > 0)
    }
}
