//! What a memory limit counts of a device: of a card its memory as the system counts it for this process, else the process's own.

use std::sync::atomic::Ordering;

use plimsoll_device::{Bytes, process};

use super::Device;

/// What the process takes of that which a memory limit is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Bytes now.
    pub now: Bytes,
    /// The most there were. On a card, the most that was seen whenever this was asked for, and never less than the tensors
    /// came to: the system keeps no peak there.
    pub peak: Bytes,
}

impl Device {
    /// What a memory limit counts: the process's memory on a card, as NVML counts it; its resident set where tensors are in the
    /// host's memory, less what a program around the engine held before ([`process::held_before`]).
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let counted = Device::cpu()?.counted();
    /// assert!(counted.now <= counted.peak);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    pub fn counted(&self) -> Counted {
        let Some(taken) = self.taken() else {
            let now = process::own_resident().unwrap_or(Bytes::ZERO);
            let peak = process::peak_resident().unwrap_or(now).saturating_sub(process::held_before());
            return Counted { now, peak: peak.max(now) };
        };
        let tensors = self.memory_info();
        // The emulator's memory is the host's, and nobody counts it for a card.
        let now = taken.max(tensors.reserved);
        let beside = now.saturating_sub(tensors.reserved);
        let most = now.max(beside + tensors.peak);
        let seen = Bytes(self.0.most_taken.fetch_max(most.get(), Ordering::Relaxed));
        Counted { now, peak: most.max(seen) }
    }

    /// The largest memory limit that this process could be given now: what it takes already, and what nobody does. Of a card's memory
    /// where tensors are there, of the machine's (or the control group's) otherwise. None where the system does not say.
    pub fn largest_limit(&self) -> Option<Bytes> {
        if self.taken().is_some() {
            return Some(self.capacity().unwrap_or_else(|| self.memory_info().limit));
        }
        Some(process::own_resident().unwrap_or(Bytes::ZERO) + process::available_memory()?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use plimsoll_graph::{DType, Type};

    use super::*;
    use crate::device::fake_card::FakeCard;
    use crate::tensor::Tensor;

    #[test]
    fn on_a_card_the_cards_memory_is_counted_and_not_the_hosts() {
        let (own, total) = (Bytes::mib(10), Bytes::mib(100));
        let (device, card) = FakeCard::device(total, own);
        assert_eq!(device.counted(), Counted { now: own, peak: own });
        assert_eq!(device.largest_limit(), Some(total));
        let tensor = device.scope(|| Tensor::zeros(Type::new(DType::U8, [4 << 20]))).unwrap();
        let held = device.counted();
        assert!(held.now >= own + Bytes::mib(4) && held.now < own + Bytes::mib(6), "{held:?}");
        drop(tensor);
        device.memory().release_unused();
        assert!(device.counted().now < held.now && device.counted().peak == held.now);
        // What libraries take counts too, and the peak keeps it.
        card.own.store(Bytes::mib(50).get(), Ordering::SeqCst);
        assert!(device.counted().now >= Bytes::mib(50));
        card.own.store(own.get(), Ordering::SeqCst);
        assert!(device.counted().peak >= Bytes::mib(50));
    }

    #[test]
    fn on_the_host_the_resident_set_is_counted() {
        let device = Device::cpu_with(1, Bytes::mib(4)).unwrap();
        let (counted, resident) = (device.counted(), process::resident().unwrap_or(Bytes::ZERO));
        assert!(counted.peak >= counted.now && counted.now.get().abs_diff(resident.get()) < 64 << 20);
    }
}
