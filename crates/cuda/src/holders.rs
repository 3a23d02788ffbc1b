//! Turns NVML's list of who holds what of a card into what this process holds.
//!
//! Inside a container NVML may know a process by another number than the process itself does. That number is learned when
//! the first context is made: it is the one that was not on the list before. Without it a second process on the card would
//! leave no way to tell the two apart.

use std::sync::OnceLock;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use plimsoll_device::stopwatch::during;

/// A process by its number, and its bytes of a card where NVML tells.
pub(crate) type Holder = (u32, Option<u64>);

/// The number by which NVML knows this process, where that is not its own.
static LEARNED: OnceLock<u32> = OnceLock::new();

/// Who holds memory of the card at a place of the PCI bus; none where NVML does not answer.
pub(crate) fn of(bus: &str) -> Option<Vec<Holder>> {
    let running = || nvml()?.device_by_pci_bus_id(bus).ok()?.running_compute_processes().ok();
    let processes = during("NVML asked", running)?;
    let holder = |process: nvml_wrapper::struct_wrappers::device::ProcessInfo| {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        (process.pid, bytes)
    };
    Some(processes.into_iter().map(holder).collect())
}

/// NVML, started once: that takes as long as several kernels take to be timed, and steps ask it too.
fn nvml() -> Option<&'static Nvml> {
    static STARTED: OnceLock<Nvml> = OnceLock::new();
    if STARTED.get().is_none() {
        // Two threads may both start it; the second is ended again.
        let _ = STARTED.set(Nvml::init().ok()?);
    }
    STARTED.get()
}

/// Learns this process's number from the lists before and after its context was made.
pub(crate) fn learn(before: Option<Vec<Holder>>, after: Option<Vec<Holder>>) {
    if let (Some(before), Some(after)) = (before, after)
        && let Some(number) = newcomer(std::process::id(), &before, &after)
    {
        // A context that is made later finds this process on the list already, and teaches nothing.
        let _ = LEARNED.set(number);
    }
}

/// What this process holds.
pub(crate) fn mine(holders: &[Holder]) -> Option<u64> {
    share(std::process::id(), LEARNED.get().copied(), holders)
}

/// The one process that was not there before, where this one is not listed by its own number.
fn newcomer(me: u32, before: &[Holder], after: &[Holder]) -> Option<u32> {
    if after.iter().any(|(number, _)| *number == me) {
        return None;
    }
    let mut new = after.iter().filter(|(number, _)| before.iter().all(|(known, _)| known != number));
    match (new.next(), new.next()) {
        (Some((number, _)), None) => Some(*number),
        _ => None,
    }
}

fn share(me: u32, learned: Option<u32>, holders: &[Holder]) -> Option<u64> {
    let by = |number: u32| holders.iter().find(|(known, _)| *known == number);
    let known = learned.and_then(by).or_else(|| by(me));
    // Where nothing else is known and there is only one, it is this one.
    known.or(if holders.len() == 1 { holders.first() } else { None }).and_then(|(_, bytes)| *bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_goes_by_another_number_is_told_from_others() {
        let (before, after) = ([(70, Some(5))], [(70, Some(5)), (91, Some(7))]);
        assert_eq!(newcomer(12, &before, &after), Some(91));
        assert_eq!(share(12, Some(91), &after), Some(7));
        assert_eq!(share(12, None, &after), None, "either of two may be this one");
        assert_eq!(share(12, None, &before), Some(5), "the only one is this one");
        // Two that came at once cannot be told apart, and who is listed by its own number needs no other.
        assert_eq!(newcomer(12, &[], &after), None);
        assert_eq!(newcomer(91, &before, &after), None);
        assert_eq!(share(91, None, &after), Some(7));
        assert_eq!(share(12, Some(91), &[(70, Some(5)), (91, None)]), None);
    }
}
