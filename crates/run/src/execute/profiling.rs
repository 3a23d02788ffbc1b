//! What is measured of steps while they run: times of instructions into a buffer of a size that is known before the first of them.

use std::time::Instant;

use plimsoll_device::Bytes;
use plimsoll_graph::Site;
use plimsoll_record::Spent;

use super::variant::Variant;
use crate::device::{Device, Traffic};
use crate::error::{Error, Result};
use crate::program::{Clock, Program};

/// What a profile may take for a step, and beside all steps: tables, and the record that is made of it in the end.
const ROOM_PER_STEP: u64 = 32 << 10;
const ROOM: Bytes = Bytes::mib(1);
/// The most it may take for steps.
const MOST_ROOM: u64 = 32 << 20;

/// The host's memory that a profile of so many steps may take. Whoever plans for a memory limit counts it; where the programs of a step
/// are so long that the steps do not fit, fewer are measured.
///
/// ```
/// use plimsoll_run::profile_room;
/// assert!(profile_room(10) < profile_room(20) && profile_room(usize::MAX).get() <= 33 << 20);
/// ```
pub fn profile_room(steps: usize) -> Bytes {
    ROOM + Bytes((steps as u64).saturating_mul(ROOM_PER_STEP).min(MOST_ROOM))
}

/// The profile of a step in the making.
pub(super) struct Profiling {
    /// Steps that were asked for.
    pub(super) asked: usize,
    /// Steps that are run before those that are wanted: a device records a step when it has seen it twice.
    warm_up: usize,
    /// The form that is measured; nothing before there is one.
    pub(super) form: Option<u64>,
    /// Numbers of a step.
    pub(super) numbers: usize,
    /// Times of the last steps, each at the place of its number in the circle.
    pub(super) times: Vec<f32>,
    pub(super) steps: Vec<Measured>,
    /// Steps of the form that were run with clocks.
    pub(super) seen: usize,
    /// Steps of other forms that came meanwhile.
    pub(super) left_out: usize,
    /// The most that tensors took on the device.
    pub(super) tensor_peak: Bytes,
    open: Option<Open>,
}

/// A step that was measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Which one it was.
    pub(super) number: usize,
    pub(super) spent: Spent,
    /// Microseconds from its beginning to each run of a program, in the order in which they ran.
    pub(super) starts: Vec<f64>,
}

/// The step that is being run.
struct Open {
    began: Instant,
    /// Seconds that reading the clocks took, which are none of the step.
    reading: f64,
    waited: f64,
    traffic: Traffic,
    /// Numbers and runs so far.
    at: usize,
    runs: usize,
    /// Microseconds from its beginning to the end of the last run.
    end: f64,
}

impl Profiling {
    /// The next so many steps.
    ///
    /// # Errors
    /// None are asked for.
    pub(super) fn new(steps: usize, device: &Device, site: Site) -> Result<Profiling> {
        if steps == 0 {
            let why = "asks for a profile of 0 steps; ask for one or more".into();
            return Err(Error::Signature { site, why });
        }
        // Inputs may come in two places by turns, and each is recorded when it is seen for the second time.
        let warm_up = if device.has_own_memory() { 6 } else { 1 };
        Ok(Profiling {
            asked: steps,
            warm_up,
            form: None,
            numbers: 0,
            times: Vec::new(),
            steps: Vec::new(),
            seen: 0,
            left_out: 0,
            tensor_peak: Bytes::ZERO,
            open: None,
        })
    }

    /// Takes the buffers for a form and starts its clocks. What was measured of another is lost: it is no more.
    pub(super) fn begin(&mut self, device: &Device, form: &mut Variant) -> Result<()> {
        let (numbers, runs) = form.start_clocks(device)?;
        let room = profile_room(self.asked).saturating_sub(ROOM).get() as usize;
        let per_step = numbers * size_of::<f32>() + runs * size_of::<f64>() + size_of::<Measured>();
        let kept = self.asked.min(room / per_step.max(1)).max(1);
        (self.form, self.numbers, self.seen, self.left_out) = (Some(form.id()), numbers, 0, 0);
        // Written to once, so that no page of it is touched for the first time while steps are timed.
        self.times = vec![f32::NAN; numbers * kept];
        self.steps = vec![Measured { starts: vec![0.0; runs], ..Measured::default() }; kept];
        Ok(())
    }

    /// How many steps are kept.
    pub(super) fn kept(&self) -> usize {
        self.seen.min(self.steps.len())
    }

    /// Whether all that was asked for has been measured, as far as there is room.
    pub(super) fn is_done(&self) -> bool {
        self.form.is_some() && self.seen >= self.warm_up + self.steps.len()
    }

    /// What it was to take of the host's memory, and what it takes.
    pub(super) fn planned_and_held(&self) -> (Bytes, Bytes) {
        let runs: usize = self.steps.iter().map(|step| step.starts.len()).sum();
        let held = size_of_val(&*self.times) + size_of_val(&*self.steps) + runs * size_of::<f64>();
        (profile_room(self.asked), held.into())
    }

    /// A step begins.
    pub(super) fn open(&mut self, device: &Device) {
        let (began, traffic) = (Instant::now(), device.traffic());
        self.open = Some(Open { began, reading: 0.0, waited: 0.0, traffic, at: 0, runs: 0, end: 0.0 });
    }

    /// A program of the step has been put on the device: waits for it and reads its clock.
    pub(super) fn read(&mut self, device: &Device, program: &Program, clock: &Clock) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        clock.wait(|| device.backend().synchronize()).map_err(|fault| program.fault(fault))?;
        let done = Instant::now();
        open.waited += clock.take_waited();
        let slot = self.seen % self.steps.len().max(1);
        let from = slot * self.numbers + open.at;
        let into = self.times.get_mut(from..from + clock.numbers());
        let none = || Error::Internal("a profile has no room for a program".into());
        let us = clock.read(program, into.ok_or_else(none)?)?;
        open.at += clock.numbers();
        // The host sees the end of a run; where its beginning was follows from that.
        let ended = (done.duration_since(open.began).as_secs_f64() - open.reading) * 1e6;
        let start = self.steps[slot].starts.get_mut(open.runs).ok_or_else(none)?;
        *start = (ended - us).max(open.end);
        open.end = *start + us;
        open.runs += 1;
        open.reading += done.elapsed().as_secs_f64();
        Ok(())
    }

    /// A step has ended. One that failed is not kept.
    pub(super) fn close(&mut self, device: &Device, is_done: bool) {
        let Some(open) = self.open.take().filter(|_| is_done) else { return };
        let slot = self.seen % self.steps.len().max(1);
        let Some(step) = self.steps.get_mut(slot) else { return };
        let traffic = device.traffic().since(open.traffic);
        step.number = self.seen + 1;
        step.spent = Spent {
            step_ms: (open.began.elapsed().as_secs_f64() - open.reading) * 1e3,
            host_waiting_ms: open.waited * 1e3,
            uploaded_bytes: traffic.up.get() as f64,
            downloaded_bytes: traffic.down.get() as f64,
            ..Spent::default()
        };
        self.seen += 1;
        // Nothing is taken or given back while a step runs.
        self.tensor_peak = self.tensor_peak.max(device.memory_info().current);
    }

    /// Adds what was waited for data before the last step.
    pub(super) fn waited_for_data(&mut self, seconds: f64) {
        let last = self.seen.wrapping_sub(1) % self.steps.len().max(1);
        if let Some(step) = self.steps.get_mut(last).filter(|_| self.seen > 0) {
            step.spent.data_waiting_ms += seconds * 1e3;
        }
    }

    /// The steps that are kept, in their order, each with its times.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (&Measured, &[f32])> {
        let (n, kept) = (self.steps.len().max(1), self.kept());
        (self.seen - kept..self.seen).map(move |i| {
            let slot = i % n;
            (&self.steps[slot], &self.times[slot * self.numbers..(slot + 1) * self.numbers])
        })
    }
}
