//! Plans for the same step under other memory limits.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Plan, Schema};

/// Plans for the same step under other memory limits (`frontier.json`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Frontier {
    /// The version of the schema.
    pub schema: Schema,
    /// From the least bytes to the most.
    pub points: Vec<Point>,
}

/// One plan of a frontier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// What it takes.
    pub planned_bytes: u64,
    /// Predicted milliseconds a step.
    pub predicted_ms: f64,
    /// Into how many micro-batches the batch is split.
    pub micro_batches: u64,
    /// Ops that run again.
    pub recomputed_ops: u64,
    /// How far it departs from the bits of an unlimited run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exactness: Option<Cow<'static, str>>,
}

impl Frontier {
    /// Whether nothing in it contradicts a plan of the same step: none takes less than the least, and where one takes what the
    /// plan does, it takes the same time. Kernels that were timed anew since, or another version, break that.
    pub fn agrees_with(&self, plan: &Plan) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
        let known = [(plan.planned_bytes, plan.predicted_ms), (plan.unlimited_bytes, plan.unlimited_ms)];
        let is_fast = |point: &Point| point.predicted_ms * (1.0 + 1e-6) >= plan.unlimited_ms;
        self.points.iter().all(|point| {
            // Both plans may take the same, where the rest of the process decides what that is.
            let mut alike = known.iter().filter(|(bytes, _)| point.planned_bytes == *bytes).peekable();
            let same = alike.peek().is_none() || alike.any(|(_, ms)| near(point.predicted_ms, *ms));
            point.planned_bytes >= plan.floor_bytes && is_fast(point) && same
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_that_contradict_this_one_are_told_from_those_that_do_not() {
        let plan = Plan {
            planned_bytes: 500,
            predicted_ms: 20.0,
            floor_bytes: 400,
            unlimited_bytes: 900,
            unlimited_ms: 10.0,
            ..Plan::default()
        };
        let agree = |points: &[(u64, f64)]| {
            let point =
                |&(planned_bytes, predicted_ms)| Point { planned_bytes, predicted_ms, ..Point::default() };
            Frontier { points: points.iter().map(point).collect(), ..Frontier::default() }.agrees_with(&plan)
        };
        assert!(agree(&[]) && agree(&[(400, 33.0), (500, 20.0), (900, 10.0)]));
        assert!(!agree(&[(399, 33.0)]), "below the least");
        assert!(!agree(&[(500, 7.5)]) && !agree(&[(500, 21.0)]), "the same plan in another time");
        assert!(!agree(&[(600, 9.0)]), "faster than the fastest");
    }
}
