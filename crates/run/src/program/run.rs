//! How the instructions of a program are carried out.

use std::sync::atomic::Ordering::Relaxed;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::ValueId;
use smallvec::SmallVec;

use super::{Clock, Instruction, Program, ProgramMemory, check};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::lower::Place;

impl Program {
    /// Runs it, and sets the points of a clock where there is one.
    ///
    /// # Safety
    /// Pointers must be live memory of `device`, aligned and as large as the types say; those of arguments that results
    /// replace are written. The arena has [`Program::arena_bytes`] bytes, and the host's is fit for
    /// [`Program::host_room`]. Nothing else may use any of it meanwhile.
    pub(crate) unsafe fn run(
        &self,
        device: &Device,
        memory: ProgramMemory<'_>,
        clock: Option<&Clock>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let done = unsafe { self.run_some(0, &self.instructions, device, memory, clock) };
        // A run that ended in between leaves nothing behind that would write to its memory.
        if self.flying.swap(0, Relaxed) > 0 {
            device.abandon_exchanges("a step ended in the middle of an exchange");
        }
        self.count_traffic(device);
        self.settled(done, memory)
    }

    /// Ends the copies of a run that failed, so that none reaches into the next.
    pub(super) fn settled<T>(&self, done: Result<T>, memory: ProgramMemory<'_>) -> Result<T> {
        if let (Err(_), Some(host)) = (&done, memory.host) {
            // What went wrong first is what is told.
            host.settle().ok();
        }
        done
    }

    /// Runs some of its instructions, the first of which has this number.
    ///
    /// # Safety
    /// As for [`Program::run`].
    pub(super) unsafe fn run_some(
        &self,
        first: usize,
        instructions: &[Instruction],
        device: &Device,
        memory: ProgramMemory<'_>,
        clock: Option<&Clock>,
    ) -> Result<()> {
        if let Some(clock) = clock {
            clock.before(self, first)?;
        }
        for (i, instruction) in instructions.iter().enumerate() {
            let Some(clock) = clock else {
                // SAFETY: the caller's promise.
                unsafe { self.run_one(instruction, device, memory) }?;
                self.move_along(device);
                continue;
            };
            clock.starts(first + i, memory.host);
            // SAFETY: the caller's promise.
            let run = || unsafe { self.run_one(instruction, device, memory) };
            match instruction {
                Instruction::Check { .. } => clock.wait(run),
                _ => run(),
            }?;
            self.move_along(device);
            clock.before(self, first + i + 1)?;
        }
        Ok(())
    }

    /// Between two instructions, exchanges that are under way move along. One that failed says so where it is waited for.
    fn move_along(&self, device: &Device) {
        if self.flying.load(Relaxed) > 0 {
            device.move_exchanges_along();
        }
    }

    /// # Safety
    /// As for [`Program::run`].
    unsafe fn run_one(
        &self,
        instruction: &Instruction,
        device: &Device,
        memory: ProgramMemory<'_>,
    ) -> Result<()> {
        // SAFETY: the memory is this program's.
        let at = |place: Place| unsafe { memory.at(place) };
        let host =
            || memory.host.ok_or_else(|| Error::Internal("a program has no host memory to copy to".into()));
        let done = match instruction {
            Instruction::Run { node: id, inputs, outputs, scratch, scratch_bytes, on_host } => {
                let node = self.graph.node(*id);
                let operand =
                    |(v, place): (&ValueId, &Place)| Operand { ty: self.graph.ty(*v), ptr: at(*place) };
                let inputs: SmallVec<[Operand<'_>; 24]> =
                    node.inputs.iter().zip(inputs).map(operand).collect();
                let outputs: SmallVec<[Operand<'_>; 8]> =
                    node.outputs.iter().zip(outputs).map(operand).collect();
                let call = Call {
                    op: &node.op,
                    inputs: &inputs,
                    outputs: &outputs,
                    scratch: at(*scratch),
                    scratch_bytes: *scratch_bytes,
                };
                if *on_host {
                    device.count_down(call.inputs.iter().map(|x| x.ty.bytes()).sum());
                    device.count_up(call.outputs.iter().map(|x| x.ty.bytes()).sum());
                }
                if let Some(flight) = self.flights.get(id) {
                    // SAFETY: as below; and nobody touches these bytes before it is waited for.
                    let started = unsafe { device.start_exchange(&call) };
                    flight.store(
                        started.map_err(|fault| Error::of_kernel(&node.op, fault, node.site))?,
                        Relaxed,
                    );
                    self.flying.fetch_add(1, Relaxed);
                    return Ok(());
                }
                // SAFETY: the caller's promise, and operands that live at once are disjoint in a verified plan.
                let ran = unsafe { device.kernels(&node.op, *on_host)?.run(&call) };
                return ran.map_err(|fault| Error::of_kernel(&node.op, fault, node.site));
            }
            Instruction::Check { at: place, dtype, node } => {
                let site = self.graph.node(*node).site;
                // SAFETY: the place holds at least one element of this type, which was just written.
                return unsafe { check(device, at(*place), *dtype, site) };
            }
            // SAFETY: both ends hold this many bytes.
            Instruction::Copy { from, to, bytes } => unsafe {
                device.backend().copy(at(*to), at(*from), *bytes)
            },
            // SAFETY: a verified plan leaves both ends alone until it waits for the copy.
            Instruction::Offload { from, to, bytes, slot, .. } => unsafe {
                host()?.offload(at(*from), *to, *bytes, *slot)
            },
            // SAFETY: as above.
            Instruction::Prefetch { from, to, bytes, slot, .. } => unsafe {
                host()?.prefetch(*from, at(*to), *bytes, *slot)
            },
            // SAFETY: as above, and an argument on the host has bytes of its own there.
            Instruction::Fetch { argument, to, bytes, slot } => unsafe {
                host()?.fetch(memory.arguments[*argument], at(*to), *bytes, *slot)
            },
            // SAFETY: as above.
            Instruction::Store { argument, from, bytes, slot } => unsafe {
                host()?.store(at(*from), memory.arguments[*argument], *bytes, *slot)
            },
            Instruction::Await { slot } => host()?.wait(*slot),
            Instruction::Finish { node: id } => {
                let node = self.graph.node(*id);
                let Some(flight) = self.flights.get(id) else {
                    return Err(Error::Internal(
                        "a program waits for an exchange that it did not start".into(),
                    ));
                };
                let done = device.finish_exchange(flight.load(Relaxed));
                // The last one; what failed has ended all of them.
                self.flying.fetch_sub(1, Relaxed);
                return done.map_err(|fault| Error::of_kernel(&node.op, fault, node.site));
            }
        };
        done.map_err(|fault| self.fault(fault))
    }
}
