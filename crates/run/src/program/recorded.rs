//! A program as a device recorded it: to be run again over the same memory with little work for the host.

use plimsoll_device::backend::{Fault, Recording};
use plimsoll_graph::{DType, Site};

use super::{Clock, Instruction, Meanwhile, Program, ProgramMemory, check};
use crate::device::Device;
use crate::error::{Error, Result};

impl Program {
    /// Records it, to be run again over the same memory with little work for the host; none where the device has no use
    /// for that. It must have been run before. With a clock, every replay sets its points.
    ///
    /// # Safety
    /// As for [`Program::run`], for as long as the recording is replayed.
    pub(crate) unsafe fn record(
        &self,
        device: &Device,
        memory: ProgramMemory<'_>,
        clock: Option<&Clock>,
    ) -> Result<Option<Recorded>> {
        // What waits for the device cannot be recorded.
        if self.has_host_ops() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        self.settled(unsafe { self.record_parts(device, memory, clock) }, memory)
    }

    /// # Safety
    /// As for [`Program::record`].
    unsafe fn record_parts(
        &self,
        device: &Device,
        memory: ProgramMemory<'_>,
        clock: Option<&Clock>,
    ) -> Result<Option<Recorded>> {
        let mut parts = Vec::new();
        let mut first = 0;
        // A recording cannot wait for a number, so it ends where one is checked.
        for part in self.instructions.split_inclusive(|i| matches!(i, Instruction::Check { .. })) {
            let (body, checked) = match part {
                [body @ .., Instruction::Check { at, dtype, node }] => {
                    // SAFETY: the memory is this program's.
                    let place = unsafe { memory.at(*at) };
                    (body, Some((place, *dtype, self.graph.node(*node).site)))
                }
                body => (body, None),
            };
            let mut run = || {
                // SAFETY: the caller's promise.
                match unsafe { self.run_some(first, body, device, memory, clock) } {
                    Ok(()) => Ok(()),
                    Err(Error::Fault { fault, .. }) => Err(fault),
                    Err(other) => Err(Fault::new("record", other.to_string())),
                }
            };
            match device.backend().record(&mut run).map_err(|fault| self.fault(fault))? {
                Some(recording) => {
                    first += part.len();
                    parts.push(RecordedPart { recording, checked, next: first });
                }
                None => return Ok(None),
            }
        }
        Ok(Some(Recorded(parts)))
    }
}

/// A recorded program.
#[derive(Debug)]
pub(crate) struct Recorded(Vec<RecordedPart>);

/// A part of a recorded program, with the number that must be finite before the next.
#[derive(Debug)]
struct RecordedPart {
    recording: Box<dyn Recording>,
    checked: Option<Checked>,
    /// The instruction behind it.
    next: usize,
}

/// Where a number is that must be finite, its type, and the line that made it.
type Checked = (*mut u8, DType, Site);

// SAFETY: the addresses are of the device, and are only followed under the promise of `replay`.
unsafe impl Send for Recorded {}

impl Recorded {
    /// Runs it again, with the clock that it was recorded with.
    ///
    /// # Safety
    /// As for [`Program::run`], over the memory it was recorded with.
    pub(crate) unsafe fn replay(
        &self,
        program: &Program,
        device: &Device,
        clock: Option<&Clock>,
        meanwhile: &mut Meanwhile<'_>,
        site: Site,
    ) -> Result<()> {
        for part in &self.0 {
            // SAFETY: the caller's promise.
            unsafe { part.recording.replay() }.map_err(|fault| Error::Fault { fault, site })?;
            let Some((at, dtype, site)) = part.checked else { continue };
            meanwhile.now();
            // SAFETY: the caller's promise.
            let look = || unsafe { check(device, at, dtype, site) };
            match clock {
                Some(clock) => {
                    clock.wait(look)?;
                    clock.before(program, part.next)?;
                }
                None => look()?,
            }
        }
        program.count_traffic(device);
        Ok(())
    }
}
