//! What memory buys: a step planned for limits from its least to where more changes nothing.
//!
//! Every limit after the first costs a search only, and the planner remembers what it found for others.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use plimsoll_device::Bytes;
use serde::{Serialize, Serializer};

use super::StepPlanner;
use crate::error::Result;

/// A plan that no other beats in both memory and time. Bytes are of the whole process, as the system will count it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FrontierPoint {
    /// The memory limit that was asked for.
    #[serde(rename = "memory_limit_bytes", serialize_with = "number")]
    pub limit: Bytes,
    /// What the plan takes: the least limit that gives it.
    #[serde(rename = "planned_bytes", serialize_with = "number")]
    pub planned: Bytes,
    /// Predicted seconds of a step.
    pub predicted_seconds: f64,
    /// Into how many micro-batches the batch is split.
    pub micro_batches: usize,
    /// Ops that run again instead of keeping their results.
    pub recomputed_ops: usize,
}

/// What memory buys: the plans from the least limit to one that is as good as none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Frontier {
    /// From least to most memory, and so from most to least time: each takes more than the one before and is faster.
    pub points: Vec<FrontierPoint>,
    /// Limits for which no plan was looked for, because time was over.
    pub left_out: usize,
    /// Seconds that the search took.
    pub seconds: f64,
}

fn number<S: Serializer>(bytes: &Bytes, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_u64(bytes.get())
}

impl StepPlanner {
    /// The plans that are worth having, of so many limits between the least and the one that the fastest plan needs. The
    /// ends come first and then what halves the largest gaps, so that a search that is cut short by `time` has seen the
    /// whole range.
    pub fn frontier(&mut self, limits: usize, time: Option<Duration>) -> Result<Frontier> {
        self.frontier_from(Bytes::ZERO, limits, time)
    }

    /// As [`StepPlanner::frontier`], but for limits from `least` on: where something else of the same run needs more than the step.
    pub fn frontier_from(&mut self, least: Bytes, limits: usize, time: Option<Duration>) -> Result<Frontier> {
        let start = Instant::now();
        let over = || time.is_some_and(|time| start.elapsed() >= time);
        let floor = self.floor().max(least);
        let most = self.unlimited().max(floor);
        let last = limits.max(2) - 1;
        // Equal ratios: a little memory changes most where there is least of it.
        let ratio = most.get() as f64 / floor.get().max(1) as f64;
        let limit = |i: usize| match i {
            0 => floor,
            i if i == last => most,
            i => Bytes((floor.get() as f64 * ratio.powf(i as f64 / last as f64)) as u64).min(most),
        };
        let mut points = Vec::new();
        let (slow, fast) = (self.point(floor)?, self.point(most)?);
        points.extend([slow, fast]);
        let mut gaps = VecDeque::from([(0usize, slow, last, fast)]);
        let mut left_out = 0;
        while let Some((low, slow, high, fast)) = gaps.pop_front() {
            let middle = low.midpoint(high);
            // Nothing to be found between two plans that cost the same.
            if middle == low || slow.predicted_seconds <= fast.predicted_seconds {
                continue;
            }
            if over() {
                left_out += high - low - 1;
                continue;
            }
            // More memory is never slower: where the faster plan fits, it is the answer.
            let found = match fast.planned <= limit(middle) {
                true => fast,
                false => self.point(limit(middle))?,
            };
            points.push(found);
            gaps.extend([(low, slow, middle, found), (middle, found, high, fast)]);
        }
        Ok(Frontier { points: undominated(points), left_out, seconds: start.elapsed().as_secs_f64() })
    }

    /// The plan within a limit, in short.
    fn point(&mut self, limit: Bytes) -> Result<FrontierPoint> {
        let info = self.plan(Some(limit))?.figures;
        Ok(FrontierPoint {
            limit,
            planned: info.planned,
            predicted_seconds: info.predicted_seconds,
            micro_batches: info.micro_batches,
            recomputed_ops: info.recomputed_ops as usize,
        })
    }
}

/// The plans that no other beats in both memory and time, from least to most memory.
pub fn undominated(mut points: Vec<FrontierPoint>) -> Vec<FrontierPoint> {
    points.sort_by(|a, b| {
        a.planned
            .cmp(&b.planned)
            .then(a.predicted_seconds.total_cmp(&b.predicted_seconds))
            .then(a.limit.cmp(&b.limit))
    });
    let mut kept: Vec<FrontierPoint> = Vec::new();
    for point in points {
        if kept.last().is_none_or(|last| point.predicted_seconds < last.predicted_seconds) {
            kept.push(point);
        }
    }
    kept
}
