//! When each instruction of a program is done: points in time that its device passes, read once it has been waited for.

use std::cell::Cell;
use std::time::Instant;

use plimsoll_device::Marks;
use plimsoll_device::backend::HostArena;

use super::{Instruction, Program};
use crate::device::Device;
use crate::error::{Error, Result};

/// The points of a program: one before each instruction and one behind the last, then one at the end of each copy beside the
/// kernels. They are made once and set anew by every run.
#[derive(Debug)]
pub(crate) struct Clock {
    marks: Box<dyn Marks>,
    instructions: usize,
    /// The copies beside the kernels: the instructions that start them, and whether they go to the host.
    copies: Vec<(usize, bool)>,
    /// Seconds for which the host waited for the device in the run at hand.
    waited: Cell<f64>,
}

impl Clock {
    /// The points of a program on a device.
    pub(crate) fn new(device: &Device, program: &Program) -> Result<Clock> {
        let way = |(i, instruction): (usize, &Instruction)| match instruction {
            Instruction::Offload { .. } | Instruction::Store { .. } => Some((i, true)),
            Instruction::Prefetch { .. } | Instruction::Fetch { .. } => Some((i, false)),
            _ => None,
        };
        let copies: Vec<(usize, bool)> = program.instructions().iter().enumerate().filter_map(way).collect();
        let instructions = program.instructions().len();
        let marks = device.backend().marks(instructions + 1 + copies.len());
        let marks = marks.map_err(|fault| program.fault(fault))?;
        Ok(Clock { marks, instructions, copies, waited: Cell::new(0.0) })
    }

    /// How many numbers [`Clock::read`] gives.
    pub(crate) fn numbers(&self) -> usize {
        self.instructions + 2 * self.copies.len()
    }

    /// The copies beside the kernels: the instructions that start them, and whether they go to the host.
    pub(crate) fn copies(&self) -> &[(usize, bool)] {
        &self.copies
    }

    /// Everything before an instruction has been put on the device.
    pub(super) fn before(&self, program: &Program, instruction: usize) -> Result<()> {
        self.marks.mark(instruction).map_err(|fault| program.fault(fault))
    }

    /// A copy is about to be started.
    pub(super) fn starts(&self, instruction: usize, host: Option<&dyn HostArena>) {
        let Ok(i) = self.copies.binary_search_by_key(&instruction, |copy| copy.0) else { return };
        if let (Some(host), Some(handle)) = (host, self.marks.handle(self.instructions + 1 + i)) {
            // SAFETY: the marks are of the program's device, and a clock outlives the runs that it is set by.
            unsafe { host.end_at(handle) };
        }
    }

    /// Does what the host waits for the device in.
    pub(crate) fn wait<T>(&self, body: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = body();
        self.waited.set(self.waited.get() + start.elapsed().as_secs_f64());
        done
    }

    /// Seconds for which the host waited since this was asked for last.
    pub(crate) fn take_waited(&self) -> f64 {
        self.waited.take()
    }

    /// The last run in microseconds: of each instruction, then of each copy its start since the first instruction and what it took.
    /// A copy without a time of its own has no numbers. The device must have been waited for. Returns the microseconds in all.
    pub(crate) fn read(&self, program: &Program, into: &mut [f32]) -> Result<f64> {
        let seconds = |from, to| self.marks.seconds(from, to).map_err(|fault| program.fault(fault));
        let unset = || Error::Internal("an instruction that was profiled has no time".into());
        let (times, copies) = into.split_at_mut(self.instructions);
        let mut now = 0.0;
        // The ends of the last copy each way: the next begins when it is done and the kernels before it are.
        let mut free = [0.0f64; 2];
        let mut next = self.copies.iter().enumerate().zip(copies.chunks_exact_mut(2)).peekable();
        for (i, time) in times.iter_mut().enumerate() {
            if let Some(((c, &(_, out)), numbers)) = next.next_if(|((_, copy), _)| copy.0 == i) {
                let end = seconds(0, self.instructions + 1 + c)?.map(|end| end * 1e6);
                let start = free[usize::from(out)].max(now);
                (numbers[0], numbers[1]) = end.map_or((f32::NAN, f32::NAN), |end| {
                    free[usize::from(out)] = end;
                    (start as f32, (end - start).max(0.0) as f32)
                });
            }
            let us = seconds(i, i + 1)?.ok_or_else(unset)? * 1e6;
            *time = us as f32;
            now += us;
        }
        Ok(now)
    }
}
