//! Turns the plans for several budgets into a table with a column each, and into JSON.

use std::fmt::Write;

use plimsoll::prelude::*;
use serde_json::{Value, json};

use crate::plot::duration;

/// What became of one of several budgets.
pub enum Budget {
    /// A plan.
    Fits(Bytes, Box<StepInfo>),
    /// None, and the least that would do.
    Refused(Bytes, Bytes),
}

/// Budgets in JSON.
pub fn json(budgets: &[Budget]) -> Value {
    let one = |budget: &Budget| match budget {
        Budget::Fits(line, info) => json!({
            "budget_bytes": line.get(), "fits": true, "planned_bytes": info.planned.get(),
            "predicted_ms": info.predicted_seconds * 1e3,
            "times_unlimited": info.predicted_seconds / info.unlimited_seconds.max(f64::MIN_POSITIVE),
            "micro_batches": info.micro_batches, "recomputed_ops": info.recomputed_ops,
            "exactness": info.exactness, "floor_bytes": info.floor.get(), "host_bytes": info.host_bytes.get(),
            "hosted_bytes": info.hosted_bytes.get(),
            "offloaded_bytes": info.offloaded_bytes.get(), "offloaded_copies": info.offloaded_copies,
        }),
        Budget::Refused(line, least) => {
            json!({ "budget_bytes": line.get(), "fits": false, "floor_bytes": least.get() })
        }
    };
    budgets.iter().map(one).collect::<Vec<_>>().into()
}

/// Budgets side by side, one column each.
pub fn table(budgets: &[Budget]) -> String {
    let mut rows: Vec<Vec<String>> =
        ["budget", "fits", "planned", "a step", "× unlimited", "micro-batches", "ops run again", "exactness"]
            .iter()
            .map(|name| vec![name.to_string()])
            .collect();
    for budget in budgets {
        let cells = match budget {
            Budget::Fits(line, info) => [
                line.to_string(),
                "yes".into(),
                info.planned.to_string(),
                duration(info.predicted_seconds),
                format!("{:.2}", info.predicted_seconds / info.unlimited_seconds.max(f64::MIN_POSITIVE)),
                info.micro_batches.to_string(),
                info.recomputed_ops.to_string(),
                info.exactness.to_string(),
            ],
            Budget::Refused(line, least) => {
                let none = || "-".to_string();
                let no = format!("no, least {least:#}");
                [line.to_string(), no, none(), none(), none(), none(), none(), none()]
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
    fn a_refused_budget_stands_beside_those_that_fit_and_says_its_least() {
        let mut survey = survey();
        let (floor, most) = (survey.floor(), survey.unlimited());
        let budgets = [
            Budget::Refused(Bytes(floor.get() - 1), floor),
            Budget::Fits(most, Box::new(survey.plan(Some(most)).unwrap().figures)),
        ];
        let text = table(&budgets);
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[1].contains("no, least") && rows[1].ends_with("yes"), "{text}");
        assert!(rows[4].trim_end().ends_with("1.00"), "{text}");
        let json = json(&budgets);
        assert_eq!((&json[0]["fits"], &json[1]["fits"]), (&Value::Bool(false), &Value::Bool(true)));
        assert_eq!(json[0]["floor_bytes"], floor.get());
    }
}
