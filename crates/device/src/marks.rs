//! Points in time that a device passes while it works: what a measured profile is made of.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::backend::Fault;

/// Points that a device passes, made once and set again and again.
///
/// Setting one is part of the device's work like a kernel: it can be recorded ([`Backend::record`](crate::backend::Backend::record)),
/// and every replay sets it anew. Times are known once the device has been waited for.
pub trait Marks: Send + fmt::Debug {
    /// Sets a point to the end of what was run so far: it is passed when all of that is done.
    ///
    /// # Errors
    /// There is no such point, or the device's refusal.
    fn mark(&self, point: usize) -> Result<(), Fault>;

    /// What [`HostArena::end_at`](crate::backend::HostArena::end_at) is given, so that a copy beside the kernels ends with this point;
    /// none where such copies have no time of their own.
    fn handle(&self, _point: usize) -> Option<usize> {
        None
    }

    /// Seconds from one point to another; none where one of them was never set. All that was run must be done.
    ///
    /// # Errors
    /// There is no such point, or the device's refusal.
    fn seconds(&self, from: usize, to: usize) -> Result<Option<f64>, Fault>;
}

/// The host's clock as points: for devices that are done with a kernel when the call returns.
#[derive(Debug)]
pub struct HostMarks {
    start: Instant,
    /// Nanoseconds since the start; all bits where a point was never set.
    points: Vec<AtomicU64>,
}

impl HostMarks {
    /// So many points, none of them set.
    pub fn new(points: usize) -> HostMarks {
        let points = (0..points).map(|_| AtomicU64::new(u64::MAX)).collect();
        HostMarks { start: Instant::now(), points }
    }

    fn point(&self, i: usize) -> Result<&AtomicU64, Fault> {
        self.points.get(i).ok_or_else(|| no_point(i, self.points.len()))
    }
}

/// What is said of a point that was not made.
pub fn no_point(point: usize, points: usize) -> Fault {
    Fault::new("profile", format!("point {point} is set and there are {points}"))
}

impl Marks for HostMarks {
    fn mark(&self, point: usize) -> Result<(), Fault> {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX - 1);
        self.point(point)?.store(now, Ordering::Relaxed);
        Ok(())
    }

    fn seconds(&self, from: usize, to: usize) -> Result<Option<f64>, Fault> {
        let [from, to] = [self.point(from)?, self.point(to)?].map(|point| point.load(Ordering::Relaxed));
        Ok((from != u64::MAX && to != u64::MAX).then(|| (to as f64 - from as f64) / 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_between_points_and_a_point_that_was_not_set_has_none() {
        let marks = HostMarks::new(3);
        marks.mark(0).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        marks.mark(1).unwrap();
        let seconds = marks.seconds(0, 1).unwrap().unwrap();
        assert!((0.002..10.0).contains(&seconds), "{seconds}");
        assert_eq!(marks.seconds(1, 0).unwrap(), Some(-seconds));
        assert_eq!(marks.seconds(0, 2).unwrap(), None);
        assert!(marks.mark(3).unwrap_err().why.contains("point 3 is set and there are 3"));
    }
}
