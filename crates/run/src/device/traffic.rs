//! Bytes between the host's memory and a device's own, counted as they go: always, since it costs an addition a copy.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_device::Bytes;

use super::Device;

/// Bytes that went between the host's memory and a device's own since the device was made: batches, state, offloaded activations,
/// results that were read. What the engine asks a card to learn whether its kernels went well (32 bytes a wait) is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the host to the device.
    pub up: Bytes,
    /// From the device to the host.
    pub down: Bytes,
}

impl Traffic {
    /// What went since an earlier count.
    #[must_use]
    pub fn since(self, before: Traffic) -> Traffic {
        Traffic { up: self.up.saturating_sub(before.up), down: self.down.saturating_sub(before.down) }
    }
}

/// The count of a device.
#[derive(Debug, Default)]
pub(super) struct Counter {
    up: AtomicU64,
    down: AtomicU64,
}

impl Device {
    /// Bytes that went between the host's memory and the device's own since it was made; zeros where tensors are in the host's memory.
    ///
    /// ```
    /// use plimsoll_run::{Device, Tensor};
    /// let device = Device::cpu_with(1, "1MiB".parse().unwrap())?;
    /// let before = device.traffic();
    /// device.scope(|| Tensor::from_slice(&[1.0f32, 2.0], [2]))?;
    /// // On a card this would be the eight bytes of the tensor.
    /// assert_eq!(device.traffic().since(before).up.get(), 0);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn traffic(&self) -> Traffic {
        let count = |counter: &AtomicU64| Bytes(counter.load(Ordering::Relaxed));
        Traffic { up: count(&self.0.traffic.up), down: count(&self.0.traffic.down) }
    }

    /// Counts bytes from the host.
    pub(crate) fn count_up(&self, bytes: usize) {
        if self.has_own_memory() {
            self.0.traffic.up.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Counts bytes to the host.
    pub(crate) fn count_down(&self, bytes: usize) {
        if self.has_own_memory() {
            self.0.traffic.down.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}
