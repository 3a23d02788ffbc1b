//! Turns a plan and the frontier around it into a page of text and into JSON.
//!
//! The page answers, in this order: what is taken and by what, when it is most, what was done to get there and at what
//! cost, what else could be had.

use std::fmt::Write;

use plimsoll::prelude::*;
use serde_json::{Value, json};

use crate::plot::{self, milliseconds};

/// Something that was done to take less, and what came of it against the fastest plan.
pub struct Lever {
    name: &'static str,
    /// How much of it: ops that run again, micro-batches.
    count: Option<u64>,
    saved_bytes: i64,
    cost_seconds: f64,
}

/// The levers that a plan uses.
pub fn levers(info: &StepInfo) -> Vec<Lever> {
    let saved = |from: Bytes, to: Bytes| from.get() as i64 - to.get() as i64;
    let mut levers = vec![Lever {
        name: "order and sharing",
        count: None,
        saved_bytes: saved(info.unshared, info.unlimited),
        cost_seconds: 0.0,
    }];
    if info.micro_batches > 1 {
        levers.push(Lever {
            name: "micro-batches",
            count: Some(info.micro_batches as u64),
            saved_bytes: saved(info.unlimited, info.kept),
            cost_seconds: info.kept_seconds - info.unlimited_seconds,
        });
    }
    if info.recomputed_ops > 0 {
        levers.push(Lever {
            name: "recompute",
            count: Some(info.recomputed_ops),
            saved_bytes: saved(info.kept, info.planned),
            cost_seconds: info.predicted_seconds - info.kept_seconds,
        });
    }
    levers
}

/// The fields of a plan in JSON that say where its memory goes.
pub fn json(info: &StepInfo) -> Vec<(&'static str, Value)> {
    let peak = &info.peak;
    let mut kinds: serde_json::Map<String, Value> =
        peak.kinds.iter().map(|(kind, bytes)| (kind.name().into(), bytes.get().into())).collect();
    kinds.insert("unused".into(), peak.unused.get().into());
    let largest = peak
        .largest
        .iter()
        .map(|(name, kind, bytes)| json!({ "name": name, "kind": kind.name(), "bytes": bytes.get() }));
    let levers = levers(info).into_iter().map(|lever| {
        json!({
            "lever": lever.name, "count": lever.count, "saved_bytes": lever.saved_bytes,
            "cost_ms": lever.cost_seconds * 1e3,
        })
    });
    vec![
        ("kinds", kinds.into()),
        (
            "peak",
            json!({
                "op": peak.op, "site": peak.site.map(|site| site.to_string()), "backward": peak.backward,
                "step": peak.step, "steps": peak.steps, "largest": largest.collect::<Vec<_>>(),
            }),
        ),
        ("levers", levers.collect::<Vec<_>>().into()),
    ]
}

/// Where a plan's memory goes, and what was done about it.
pub fn page(info: &StepInfo) -> String {
    let mut text = String::new();
    let total = info.planned.get().max(1) as f64;
    let peak = &info.peak;
    let rows = peak.kinds.iter().map(|(kind, bytes)| (kind.name(), *bytes)).chain([("unused", peak.unused)]);
    let mut put = |line: String| {
        writeln!(text, "{line}").ok();
    };
    put("\nwhere the memory goes at the peak".into());
    for (name, bytes) in rows.filter(|(_, bytes)| *bytes > Bytes::ZERO) {
        let part = bytes.get() as f64 / total;
        let bar = "█".repeat((part * 30.0).round() as usize);
        put(format!("  {name:<12}{bytes:>10}  {:>5.1} %  {bar}", 100.0 * part));
    }
    put(format!("  {:<12}{:>10}", "planned", info.planned));
    if peak.steps > 0 {
        let pass = if peak.backward { ", backward" } else { "" };
        let site = peak.site.map_or(String::new(), |site| format!(" at {site}"));
        put(format!("the peak is during {}{site} (op {} of {}{pass})", peak.op, peak.step + 1, peak.steps));
        let largest: Vec<String> =
            peak.largest.iter().map(|(name, kind, bytes)| format!("{name} ({kind}) {bytes}")).collect();
        put(format!("the heaviest there: {}", largest.join(", ")));
    }
    put("\nlevers".into());
    for lever in levers(info) {
        let what = match (lever.name, lever.count) {
            ("recompute", Some(n)) => format!("recompute {n} ops"),
            (name, Some(n)) => format!("{n} {name}"),
            (name, None) => name.into(),
        };
        let (word, bytes) =
            (if lever.saved_bytes < 0 { "adds" } else { "saves" }, lever.saved_bytes.unsigned_abs());
        put(format!(
            "  {what:<22}{word} {:>10}   costs {:>10}",
            Bytes(bytes),
            milliseconds(lever.cost_seconds)
        ));
    }
    put(format!(
        "\nlower bounds: {} is the least of all plans; {} live in an arena of {}",
        info.floor, info.live, info.arena
    ));
    text
}

/// The frontier as a plot, and what stands to either side of a plan.
pub fn frontier(frontier: &Frontier, plan: Option<&StepInfo>) -> String {
    let mut text = String::new();
    let points = &frontier.points;
    let lines = plot::frontier(points, plan.map(|info| (info.planned, info.predicted_seconds)));
    if !lines.is_empty() {
        writeln!(
            text,
            "\nwhat memory buys (time of a step over bytes of the process{})",
            match plan {
                Some(_) => "; ◆ is this plan",
                None => "",
            }
        )
        .ok();
        lines.iter().for_each(|line| {
            writeln!(text, "{line}").ok();
        });
    }
    if let [only] = &points[..] {
        writeln!(
            text,
            "\nmore memory buys no time: {:#} is predicted to be as fast as any line, {} a step",
            only.planned,
            milliseconds(only.predicted_seconds)
        )
        .ok();
    }
    if frontier.left_out > 0 {
        writeln!(
            text,
            "({} lines between these were not tried within {:.1} s)",
            frontier.left_out, frontier.seconds
        )
        .ok();
    }
    if let Some(info) = plan {
        ways(points, info).iter().for_each(|way| {
            writeln!(text, "{way}").ok();
        });
    }
    text
}

/// What a line to either side of a plan's would buy.
pub fn ways(points: &[FrontierPoint], info: &StepInfo) -> Vec<String> {
    let (bytes, seconds) = (info.planned, info.predicted_seconds);
    let mut ways = Vec::new();
    let percent = |other: f64| 100.0 * (other / seconds - 1.0);
    let faster = |p: &&FrontierPoint| p.planned > bytes && p.predicted_seconds < seconds;
    if let Some(next) = points.iter().find(faster) {
        ways.push(format!(
            "faster: {:#} ({} more) gives {} a step ({:+.1} %)",
            next.planned,
            next.planned.saturating_sub(bytes),
            milliseconds(next.predicted_seconds),
            percent(next.predicted_seconds)
        ));
    }
    let smaller = |p: &&FrontierPoint| p.planned < bytes;
    if let Some(next) = points.iter().rev().find(smaller) {
        ways.push(format!(
            "smaller: {:#} ({} less) gives {} a step ({:+.1} %)",
            next.planned,
            bytes.saturating_sub(next.planned),
            milliseconds(next.predicted_seconds),
            percent(next.predicted_seconds)
        ));
    }
    if let Some(least) = points.first().filter(|p| p.planned < bytes) {
        ways.push(format!(
            "the least: {} bytes gives {} a step ({:+.1} %)",
            least.planned.get(),
            milliseconds(least.predicted_seconds),
            percent(least.predicted_seconds)
        ));
    }
    ways.dedup();
    ways
}

/// What became of one of several budgets.
pub enum Budget {
    /// A plan.
    Fits(Bytes, Box<StepInfo>),
    /// None, and the least that would do.
    Refused(Bytes, Bytes),
}

/// Budgets in JSON.
pub fn compared_json(budgets: &[Budget]) -> Value {
    let one = |budget: &Budget| match budget {
        Budget::Fits(line, info) => json!({
            "budget_bytes": line.get(), "fits": true, "planned_bytes": info.planned.get(),
            "predicted_ms": info.predicted_seconds * 1e3,
            "times_unlimited": info.predicted_seconds / info.unlimited_seconds.max(f64::MIN_POSITIVE),
            "micro_batches": info.micro_batches, "recomputed_ops": info.recomputed_ops,
            "exactness": info.exactness, "floor_bytes": info.floor.get(),
        }),
        Budget::Refused(line, least) => {
            json!({ "budget_bytes": line.get(), "fits": false, "floor_bytes": least.get() })
        }
    };
    budgets.iter().map(one).collect::<Vec<_>>().into()
}

/// Budgets side by side, one column each.
pub fn compared(budgets: &[Budget]) -> String {
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
                milliseconds(info.predicted_seconds),
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

    /// A perceptron whose activations outweigh its weights.
    fn survey() -> Survey<'static> {
        let (x, y) = (Type::new(DType::F32, [8192, 64]), Type::new(DType::I64, [8192]));
        let recipe = Recipe::cross_entropy(Adam::new(1e-3), x, y);
        let layers = |net: &mut Net, x: &[Tensor]| {
            let mut x = x[0].clone();
            for i in 0..6 {
                x = net.dense(&format!("layer{i}"), &x, 64, true)?.tanh()?;
            }
            net.dense("out", &x, 10, true)
        };
        let device = Device::cpu_threads(1).unwrap();
        device.scope(|| Training::survey(model(layers), recipe)).unwrap()
    }

    #[test]
    fn what_the_levers_save_and_cost_adds_up_to_the_plan() {
        let mut survey = survey();
        let info = survey.plan(Some(survey.floor())).unwrap();
        let levers = levers(&info);
        assert!(levers.len() > 1, "the floor takes a lever");
        let saved: i64 = levers.iter().map(|lever| lever.saved_bytes).sum();
        assert_eq!(saved, info.unshared.get() as i64 - info.planned.get() as i64);
        let cost: f64 = levers.iter().map(|lever| lever.cost_seconds).sum();
        assert!((cost - (info.predicted_seconds - info.unlimited_seconds)).abs() < 1e-9);
    }

    #[test]
    fn the_page_names_kinds_peak_levers_and_bounds() {
        let mut survey = survey();
        let info = survey.plan(Some(survey.floor())).unwrap();
        let page = page(&info);
        for word in
            ["parameter", "optimizer", "activation", "program", "planned", "the peak is during", "dense.rs:"]
        {
            assert!(page.contains(word), "no {word} in {page}");
        }
        let kinds = json(&info).into_iter().find(|(name, _)| *name == "kinds").unwrap().1;
        let sum: u64 = kinds.as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert_eq!(sum, info.planned.get());
    }

    #[test]
    fn a_refused_budget_stands_beside_those_that_fit_and_says_its_least() {
        let mut survey = survey();
        let (floor, most) = (survey.floor(), survey.unlimited());
        let budgets = [
            Budget::Refused(Bytes(floor.get() - 1), floor),
            Budget::Fits(most, Box::new(survey.plan(Some(most)).unwrap())),
        ];
        let text = compared(&budgets);
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[1].contains("no, least") && rows[1].ends_with("yes"), "{text}");
        assert!(rows[4].trim_end().ends_with("1.00"), "{text}");
        let json = compared_json(&budgets);
        assert_eq!((&json[0]["fits"], &json[1]["fits"]), (&Value::Bool(false), &Value::Bool(true)));
        assert_eq!(json[0]["floor_bytes"], floor.get());
    }
}
