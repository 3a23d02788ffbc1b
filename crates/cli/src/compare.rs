//! Turns the plans for several memory limits into a table with a column each, and into JSON.

use std::fmt::Write;

use plimsoll::plan::PlanFigures;
use plimsoll::prelude::*;
use serde_json::{Value, json};

use crate::plot::duration;

/// What became of one of several memory limits.
pub enum AtLimit {
    /// A plan.
    Fits(Bytes, Box<PlanFigures>),
    /// None, and the least that would do.
    Refused(Bytes, Bytes),
}

/// Memory limits in JSON.
pub fn json(limits: &[AtLimit]) -> Value {
    let one = |at: &AtLimit| match at {
        AtLimit::Fits(limit, info) => json!({
            "memory_limit_bytes": limit.get(), "budget_bytes": limit.get(), "fits": true, "planned_bytes": info.planned.get(),
            "predicted_ms": info.predicted_seconds * 1e3,
            "times_unlimited": info.predicted_seconds / info.unlimited_seconds.max(f64::MIN_POSITIVE),
            "micro_batches": info.micro_batches, "recomputed_ops": info.recomputed_ops,
            "exactness": info.exactness, "floor_bytes": info.floor.get(), "host_bytes": info.taken_elsewhere().0.get(),
            "disk_bytes": info.taken_elsewhere().1.get(), "hosted_bytes": info.hosted_bytes.get(),
            "offloaded_bytes": info.offloaded_bytes.get(), "offloaded_copies": info.offloaded_copies,
        }),
        AtLimit::Refused(limit, least) => {
            json!({
                "memory_limit_bytes": limit.get(), "budget_bytes": limit.get(), "fits": false, "floor_bytes": least.get(),
            })
        }
    };
    limits.iter().map(one).collect::<Vec<_>>().into()
}

/// Memory limits side by side, one column each.
pub fn table(limits: &[AtLimit]) -> String {
    let mut rows: Vec<Vec<String>> = [
        "memory limit",
        "fits",
        "planned",
        "a step",
        "× unlimited",
        "micro-batches",
        "recomputed ops",
        "exactness",
    ]
    .iter()
    .map(|name| vec![name.to_string()])
    .collect();
    for at in limits {
        let cells = match at {
            AtLimit::Fits(limit, info) => [
                limit.to_string(),
                "yes".into(),
                info.planned.to_string(),
                duration(info.predicted_seconds),
                format!("{:.2}", info.predicted_seconds / info.unlimited_seconds.max(f64::MIN_POSITIVE)),
                info.micro_batches.to_string(),
                info.recomputed_ops.to_string(),
                info.exactness.to_string(),
            ],
            AtLimit::Refused(limit, least) => {
                let none = || "-".to_string();
                let no = format!("no, least {least:#}");
                [limit.to_string(), no, none(), none(), none(), none(), none(), none()]
            }
        };
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.push(cell));
    }
    let columns = rows[0].len();
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        write!(text, "{:<1$}", row[0], widths[0]).ok();
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            write!(text, "  {cell:>width$}").ok();
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_text::tests::survey;

    #[test]
    fn a_refused_limit_stands_beside_those_that_fit_and_says_its_least() {
        let mut survey = survey();
        let (floor, most) = (survey.floor(), survey.unlimited());
        let limits = [
            AtLimit::Refused(Bytes(floor.get() - 1), floor),
            AtLimit::Fits(most, Box::new(survey.plan(Some(most)).unwrap().figures)),
        ];
        let text = table(&limits);
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[1].contains("no, least") && rows[1].ends_with("yes"), "{text}");
        assert!(rows[4].trim_end().ends_with("1.00"), "{text}");
        let json = json(&limits);
        assert_eq!((&json[0]["fits"], &json[1]["fits"]), (&Value::Bool(false), &Value::Bool(true)));
        assert_eq!(json[0]["floor_bytes"], floor.get());
    }
}
