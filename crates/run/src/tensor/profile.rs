//! What eager ops take: each one that a closure runs, with its time and its bytes.

use std::cell::RefCell;
use std::fmt;
use std::time::Instant;

use plimsoll_device::Marks;
use plimsoll_graph::Site;
use plimsoll_record::{Action, ProfileRow, ProfileTable};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::device::{Device, Traffic};
use crate::error::{Error, Result};

/// Points in time are made so many at once.
const POINTS: usize = 512;
/// So many rows are printed.
const ROWS: usize = 30;

thread_local! {
    static PROFILES: RefCell<Vec<Recording>> = const { RefCell::new(Vec::new()) };
}

/// What eager ops took, in the order in which they ran.
///
/// Printed, it is a table by op, those that took most first.
#[derive(Clone, Debug, Default)]
pub struct OpProfile {
    /// Everything that ran.
    pub calls: Vec<OpCall>,
    /// Seconds of the closure, on the host's clock.
    pub seconds: f64,
    /// Bytes between the host and the devices that ran something.
    pub traffic: Traffic,
}

/// One eager op that ran, or one call of a traced function or step.
#[derive(Clone, Debug, PartialEq)]
pub struct OpCall {
    /// The op.
    pub op: &'static str,
    /// The line that asked for it.
    pub site: Site,
    /// The name of the device that ran it.
    pub device: String,
    /// What it took there, in seconds.
    pub seconds: f64,
    /// Bytes that it read and wrote.
    pub bytes: u64,
}

/// Runs a closure and measures every eager op of this thread in it: its time on the device, its bytes, its source line. On a card ops are
/// timed by events, and are not waited for one by one.
///
/// A traced function or a step that is called inside is one line; [`Step::profile`](crate::Step::profile) looks into a step. Inside of
/// another profile it measures for both.
///
/// ```
/// use plimsoll_run::{Tensor, TensorOps, profile};
/// let x = Tensor::from_slice(&[0.5f32; 64 * 64], [64, 64])?;
/// let (y, measured) = profile(|| x.matmul(&x)?.tanh()?.matmul(&x))?;
/// let names: Vec<&str> = measured.calls.iter().map(|call| call.op).collect();
/// assert_eq!(names, ["matmul", "tanh", "matmul"]);
/// assert!(measured.op_seconds() <= measured.seconds);
/// println!("{measured}");
/// # drop(y?);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
///
/// # Errors
/// A device has no room for the events, or a kernel refused its values; what the closure gave is lost then.
#[track_caller]
pub fn profile<T>(body: impl FnOnce() -> T) -> Result<(T, OpProfile)> {
    /// Ends the recording, also where the closure panics.
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            PROFILES.with_borrow_mut(|profiles| profiles.pop());
        }
    }
    PROFILES.with_borrow_mut(|profiles| profiles.push(Recording::default()));
    let leave = Leave;
    let start = Instant::now();
    let result = body();
    let recording = PROFILES.with_borrow_mut(|profiles| profiles.last_mut().map(std::mem::take));
    drop(leave);
    let mut profile = recording.unwrap_or_default().read(Site::here())?;
    profile.seconds = start.elapsed().as_secs_f64();
    Ok((result, profile))
}

/// Whether eager ops of this thread are measured.
fn is_on() -> bool {
    PROFILES.with_borrow(|profiles| !profiles.is_empty())
}

/// Runs something on a device, measured where somebody asked for that. It may be put there without being waited for.
pub(crate) fn timed<T>(
    device: &Device,
    op: &'static str,
    bytes: impl FnOnce() -> usize,
    site: Site,
    run: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if !is_on() {
        return run();
    }
    let bytes = bytes() as u64;
    let begun: SmallVec<[usize; 2]> = PROFILES.with_borrow_mut(|profiles| {
        profiles.iter_mut().map(|recording| recording.begin(device, op, bytes, site)).collect::<Result<_>>()
    })?;
    let done = run();
    PROFILES.with_borrow_mut(|profiles| {
        profiles.iter_mut().zip(begun).try_for_each(|(recording, call)| match &done {
            Ok(_) => recording.end(call, site),
            Err(_) => {
                recording.calls.remove(call);
                Ok(())
            }
        })
    })?;
    done
}

/// What is being measured.
#[derive(Default)]
struct Recording {
    calls: Vec<Begun>,
    devices: Vec<Used>,
}

/// A device that ran something.
struct Used {
    device: Device,
    /// Its points, in pieces, and how many of them are used.
    marks: Vec<Box<dyn Marks>>,
    points: usize,
    /// What had gone to it and back before.
    before: Traffic,
}

struct Begun {
    op: &'static str,
    site: Site,
    bytes: u64,
    /// Which of the devices, and its first point; the second is behind it.
    device: usize,
    point: usize,
}

impl Recording {
    /// Returns which call it is.
    fn begin(&mut self, device: &Device, op: &'static str, bytes: u64, site: Site) -> Result<usize> {
        let known = self.devices.iter().position(|used| used.device.same(device));
        let at = known.unwrap_or_else(|| {
            let before = device.traffic();
            self.devices.push(Used { device: device.clone(), marks: Vec::new(), points: 0, before });
            self.devices.len() - 1
        });
        let Used { marks, points, .. } = &mut self.devices[at];
        if *points + 2 > marks.len() * POINTS {
            marks.push(device.backend().marks(POINTS).map_err(|fault| Error::Fault { fault, site })?);
        }
        let point = *points;
        *points += 2;
        mark(marks, point, site)?;
        self.calls.push(Begun { op, site, bytes, device: at, point });
        Ok(self.calls.len() - 1)
    }

    fn end(&mut self, call: usize, site: Site) -> Result<()> {
        let Begun { device, point, .. } = self.calls[call];
        mark(&self.devices[device].marks, point + 1, site)
    }

    fn read(self, site: Site) -> Result<OpProfile> {
        let refused = |fault| Error::Fault { fault, site };
        let mut profile = OpProfile::default();
        for Used { device, before, .. } in &self.devices {
            device.backend().synchronize().map_err(refused)?;
            let traffic = device.traffic().since(*before);
            profile.traffic.up += traffic.up;
            profile.traffic.down += traffic.down;
        }
        for Begun { op, site, bytes, device, point } in self.calls {
            let Used { device, marks, .. } = &self.devices[device];
            let seconds =
                marks[point / POINTS].seconds(point % POINTS, point % POINTS + 1).map_err(refused)?;
            let (device, seconds) = (device.name().to_string(), seconds.unwrap_or(0.0));
            profile.calls.push(OpCall { op, site, device, seconds, bytes });
        }
        Ok(profile)
    }
}

/// Sets a point; the two of a call are of one piece, since pieces have an even number.
fn mark(marks: &[Box<dyn Marks>], point: usize, site: Site) -> Result<()> {
    marks[point / POINTS].mark(point % POINTS).map_err(|fault| Error::Fault { fault, site })
}

impl OpProfile {
    /// Seconds of all ops.
    pub fn op_seconds(&self) -> f64 {
        self.calls.iter().map(|call| call.seconds).sum()
    }

    /// Calls by op, those that took most first.
    pub fn rows(&self) -> Vec<ProfileRow> {
        let mut rows: Vec<ProfileRow> = Vec::new();
        let mut known: FxHashMap<&str, usize> = FxHashMap::default();
        for call in &self.calls {
            let at = *known.entry(call.op).or_insert_with(|| {
                rows.push(ProfileRow::new(call.op.into(), Action::Run));
                rows.len() - 1
            });
            rows[at].count += 1;
            rows[at].total_ms += call.seconds * 1e3;
            rows[at].bytes += call.bytes;
        }
        ProfileRow::finish(&mut rows, self.seconds * 1e3);
        rows
    }
}

impl fmt::Display for OpProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", ProfileTable { rows: &self.rows(), most: ROWS })?;
        let (all, ops) = (self.seconds * 1e3, self.op_seconds() * 1e3);
        writeln!(f, "{all:.3} ms in all, {ops:.3} ms in ops and {:.3} ms between them", all - ops)?;
        let Traffic { up, down } = self.traffic;
        if up.get() + down.get() > 0 {
            writeln!(f, "{up:#} from the host and {down:#} to it")?;
        }
        Ok(())
    }
}
