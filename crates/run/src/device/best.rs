//! The best device of the machine: what the environment names, a card that works, or the CPU.

use std::sync::OnceLock;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::ops::Full;
use plimsoll_graph::{DType, Op, Site, Type};

use super::{Buffer, Device, SCOPES};
use crate::error::{Error, Result};

/// The variable that names the device: `cpu`, `cuda` or `cuda:1`.
const VARIABLE: &str = "PLIMSOLL_DEVICE";

/// What was found, once for the whole process, so that all who ask are given the same device.
struct Found {
    device: Device,
    notes: Vec<String>,
}

impl Device {
    /// The best device of this machine: inside [`Device::scope`] that scope's; else the one that `PLIMSOLL_DEVICE` names
    /// (`cpu`, `cuda` or `cuda:1`); else the first CUDA card, if there is one that works; else the CPU.
    ///
    /// What is found is kept: the environment and the machine are looked at once in a process.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let best = Device::best()?;
    /// assert!(best.name() == "cpu" || best.name().starts_with("cuda:"));
    /// let cpu = Device::cpu()?;
    /// assert_eq!(cpu.scope(Device::best)?.name(), "cpu");
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// `PLIMSOLL_DEVICE` names no device, or a card that cannot be used. Without it, a card that cannot be used is passed
    /// over, and [`Device::best_notes`] says why.
    pub fn best() -> Result<Device> {
        if let Some(device) = SCOPES.with_borrow(|scopes| scopes.last().cloned()) {
            return Ok(device);
        }
        Ok(found()?.device.clone())
    }

    /// Why [`Device::best`] is what it is, where that is not the first card: a sentence each.
    pub fn best_notes() -> Vec<String> {
        found().map_or_else(|error| vec![error.to_string()], |found| found.notes.clone())
    }

    /// The device of a name, as `PLIMSOLL_DEVICE` and command lines give it: `cpu`, `cuda` (the first card) or `cuda:1`.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// assert_eq!(Device::named("cpu")?.name(), "cpu");
    /// assert!(Device::named("gpu").unwrap_err().to_string().contains("cuda:1"));
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no such name, or no such card.
    pub fn named(name: &str) -> Result<Device> {
        let ordinal = match name.trim().split_once(':') {
            None if name.trim() == "cpu" => return Device::default_cpu(),
            None if name.trim() == "cuda" => Some(0),
            Some(("cuda", number)) => number.parse().ok(),
            _ => None,
        };
        let Some(ordinal) = ordinal else { return Err(Error::DeviceName(name.into())) };
        Device::cuda(ordinal)
    }
}

fn found() -> Result<&'static Found> {
    static FOUND: OnceLock<Found> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    // Two threads may both look; the first to arrive is kept.
    let named = std::env::var(VARIABLE).ok().filter(|name| !name.trim().is_empty());
    let found = look(named.as_deref(), || Device::cuda(0))?;
    Ok(FOUND.get_or_init(|| found))
}

/// Looks for the best device, where the environment names this one or none.
fn look(named: Option<&str>, card: impl FnOnce() -> Result<Device>) -> Result<Found> {
    if let Some(name) = named {
        let device = Device::named(name)?;
        return Ok(Found { device, notes: vec![format!("{VARIABLE} names {name}")] });
    }
    match card().and_then(|device| works(&device).map(|()| device)) {
        Ok(device) => Ok(Found { notes: device.notes(), device }),
        Err(why) => {
            Ok(Found { device: Device::default_cpu()?, notes: vec![format!("the CPU is used: {why}")] })
        }
    }
}

/// Whether a device computes: a card may be there and refuse, because its compiler's library is not there, say.
fn works(device: &Device) -> Result<()> {
    let (site, ty) = (Site::here(), Type::new(DType::F32, [1]));
    let op = Op::from(Full { ty: ty.clone(), value: 3.0.into() });
    let scratch_bytes = device.backend().scratch(&op, &[], &[&ty])?;
    let (result, scratch) =
        (Buffer::new(device, ty.bytes(), "test", site)?, Buffer::new(device, scratch_bytes, "test", site)?);
    let outputs = [Operand { ty: &ty, ptr: result.ptr() }];
    let call = Call { op: &op, inputs: &[], outputs: &outputs, scratch: scratch.ptr(), scratch_bytes };
    // SAFETY: result and scratch are fresh, on this device and as large as was declared.
    unsafe { device.backend().run(&call) }.map_err(|fault| Error::Fault { fault, site })?;
    let mut bytes = [0; 4];
    result.read(0, &mut bytes, site)?;
    match f32::from_ne_bytes(bytes) {
        3.0 => Ok(()),
        other => Err(Error::Internal(format!("{} writes {other} where it was told 3", device.name()))),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_device::Bytes;

    use super::*;

    #[test]
    fn a_card_that_works_is_the_best_and_one_that_does_not_is_passed_over_with_a_reason() {
        let refused = || Err(Error::Internal("its fan has stopped".into()));
        let found = look(None, refused).unwrap();
        assert_eq!(found.device.name(), "cpu");
        assert!(found.notes[0].contains("its fan has stopped"), "{:?}", found.notes);
        assert_eq!(look(Some("cpu"), refused).unwrap().device.name(), "cpu");
        assert!(look(Some("tpu"), refused).is_err_and(|e| e.to_string().contains("tpu")));
        let emulated = Device::cuda_emulated(Bytes::mib(16));
        let Some(emulated) = plimsoll_testing::group("emulator", emulated) else { return };
        let found = look(None, || Ok(emulated.clone())).unwrap();
        assert!(found.device.same(&emulated));
        // What is named wins over a card.
        assert_eq!(look(Some("cpu"), || Ok(emulated.clone())).unwrap().device.name(), "cpu");
    }

    #[test]
    fn inside_a_scope_the_scopes_device_is_the_best() {
        let device = Device::cpu_with(1, Bytes::mib(4)).unwrap();
        assert!(device.scope(Device::best).unwrap().same(&device));
        assert!(!Device::best().unwrap().same(&device));
    }
}
