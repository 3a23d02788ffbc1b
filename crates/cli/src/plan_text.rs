//! Turns a plan and the frontier around it into a page of text and into JSON.
//!
//! The page answers, in this order: what is taken and by what, when it is most, what was done to get there and at what
//! cost, what else could be had.

use std::fmt::Write;

use plimsoll::internals::graph::counted;
use plimsoll::internals::run::record::Plan;
use plimsoll::internals::run::{Error, HostInfeasible, Remedy};
use plimsoll::plan::{Frontier, FrontierPoint, PlanFigures};
use plimsoll::prelude::*;
use serde_json::{Value, json};

use crate::levers::levers;
use crate::plot::{self, duration};
use crate::records;

/// What a plan is of.
pub struct About<'a> {
    pub model: &'a str,
    pub data: &'a str,
    pub batch: usize,
}

impl About<'_> {
    /// Model and data, in words.
    pub fn name(&self) -> String {
        format!("{} on {}", self.model, self.data)
    }

    /// A plan in JSON.
    pub fn plan_json(&self, limit: Option<Bytes>, info: &PlanFigures, frontier: Option<&Frontier>) -> Value {
        let memory_limit_bytes = limit.map(Bytes::get);
        let figures = records::figures(self.model, self.batch, info);
        let mut line = json!(Plan { memory_limit_bytes, ..figures });
        (line["data"], line["fits"]) = (self.data.into(), true.into());
        line["from_cache"] = info.from_cache.into();
        (line["memory_limit_bytes"], line["budget_bytes"]) =
            (memory_limit_bytes.into(), memory_limit_bytes.into());
        for (name, value) in json(info) {
            line[name] = value;
        }
        if let Some(frontier) = frontier {
            line["frontier"] = json!(frontier);
        }
        line
    }

    /// A refusal in JSON.
    pub fn refusal_json(&self, refusal: &Error) -> Value {
        let mut line = json!({ "model": self.model, "data": self.data, "batch": self.batch, "fits": false, "why": refusal.to_string() });
        if let Error::Infeasible { asked, least, ways, .. } = refusal {
            let way = |way: &Remedy| json!({ "flag": way.flag, "change": way.change, "floor_bytes": way.least.get() });
            (line["memory_limit_bytes"], line["budget_bytes"]) = (asked.get().into(), asked.get().into());
            line["floor_bytes"] = least.get().into();
            line["ways"] = ways.iter().map(way).collect();
            let way_out = |way: &Remedy| json!({ "flag": way.flag, "change": way.change, "least_bytes": way.least.get(), "fits": way.least <= *asked });
            line["ways_out"] = ways.iter().map(way_out).collect();
        }
        if let Error::HostInfeasible(refusal) = refusal {
            let HostInfeasible { account, least, ways } = &**refusal;
            let way = |way: &Remedy| json!({ "flag": way.flag, "change": way.change, "host_floor_bytes": way.least.get() });
            line["host_limit_bytes"] = account.limit.map(Bytes::get).into();
            line["host_floor_bytes"] = least.get().into();
            line["host"] = account
                .parts()
                .iter()
                .map(|(name, bytes)| (name.to_string(), bytes.get().into()))
                .collect::<serde_json::Map<_, _>>()
                .into();
            line["ways"] = ways.iter().map(way).collect();
        }
        line
    }

    /// A plan in words: its figures, where its memory goes, and what other limits would buy.
    pub fn plan_text(&self, info: &PlanFigures, around: Option<&Frontier>) -> String {
        let copies = info.copies().map_or(String::new(), |copies| format!("{copies}, "));
        format!(
            "{} at batch {}: {:#} for the whole process (arena {}), {:.1} ms a step predicted\n\
             {}, {} recomputed, {copies}{}\n\
             the fastest plan takes {:#} and {:.1} ms; the least is {:#}; {} in {:.2} s\n{}{}",
            self.name(),
            self.batch,
            info.planned,
            info.arena,
            info.predicted_seconds * 1e3,
            counted(info.micro_batches, "micro-batch"),
            counted(info.recomputed_ops, "op"),
            info.exactness,
            info.unlimited,
            info.unlimited_seconds * 1e3,
            info.floor,
            if info.from_cache { "found in the cache" } else { "planned" },
            info.plan_seconds,
            page(info),
            around.map_or(String::new(), |found| frontier(found, Some(info)))
        )
    }
}

/// The fields of a plan in JSON that say where its memory goes.
pub fn json(info: &PlanFigures) -> Vec<(&'static str, Value)> {
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
        ("disk_bytes", info.taken_elsewhere().1.get().into()),
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
pub fn page(info: &PlanFigures) -> String {
    let mut text = String::new();
    let total = info.planned.get().max(1) as f64;
    let peak = &info.peak;
    let rows = peak.kinds.iter().map(|(kind, bytes)| (kind.name(), *bytes)).chain([("unused", peak.unused)]);
    let mut put = |row: String| {
        writeln!(text, "{row}").ok();
    };
    put("\nwhere the memory goes at the peak".into());
    for (name, bytes) in rows.filter(|(_, bytes)| *bytes > Bytes::ZERO) {
        let part = bytes.get() as f64 / total;
        let bar = "█".repeat((part * 30.0).round() as usize);
        put(format!("  {name:<12}{bytes:>10}  {:>5.1} %  {bar}", 100.0 * part));
    }
    put(format!("  {:<12}{:>10}", "planned", info.planned));
    let (_, on_disk) = info.taken_elsewhere();
    if on_disk > Bytes::ZERO {
        put(format!("  {:<12}{on_disk:>10}  beside all that, in files", "disk"));
    }
    if peak.steps > 0 {
        let pass = if peak.backward { ", backward" } else { "" };
        let site = peak.site.map_or(String::new(), |site| format!(" at {site}"));
        put(format!("the peak is during {}{site} (op {} of {}{pass})", peak.op, peak.step + 1, peak.steps));
        let largest: Vec<String> =
            peak.largest.iter().map(|(name, kind, bytes)| format!("{name} ({kind}) {bytes}")).collect();
        put(format!("the heaviest there: {}", largest.join(", ")));
    }
    if let Some(host) = &info.host {
        put(host.text());
    }
    put("\nlevers".into());
    for lever in levers(info) {
        let what = match (lever.name, lever.count) {
            ("recompute", Some(n)) => format!("recompute {}", counted(n, "op")),
            ("micro-batches", Some(n)) => counted(n, "micro-batch"),
            (name, Some(n)) => format!("{n} {name}"),
            (name, None) => name.into(),
        };
        let (word, bytes) =
            (if lever.saved_bytes < 0 { "adds" } else { "saves" }, lever.saved_bytes.unsigned_abs());
        put(format!("  {what:<22}{word} {:>10}   costs {:>10}", Bytes(bytes), duration(lever.cost_seconds)));
    }
    put(format!(
        "\nlower bounds: {:#} is the least of all plans; {} live in an arena of {}",
        info.floor, info.live, info.arena
    ));
    text
}

/// The frontier as a plot, and what stands to either side of a plan.
pub fn frontier(frontier: &Frontier, plan: Option<&PlanFigures>) -> String {
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
            "\nmore memory buys no time: {:#} is predicted to be as fast as any memory limit, {} a step",
            only.planned,
            duration(only.predicted_seconds)
        )
        .ok();
    }
    if frontier.left_out > 0 {
        writeln!(
            text,
            "({} between these {} not tried within {:.1} s)",
            counted(frontier.left_out, "memory limit"),
            if frontier.left_out == 1 { "was" } else { "were" },
            frontier.seconds
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

/// What a memory limit to either side of a plan's would buy.
pub fn ways(points: &[FrontierPoint], info: &PlanFigures) -> Vec<String> {
    let (bytes, seconds) = (info.planned, info.predicted_seconds);
    let mut ways = Vec::new();
    let percent = |other: f64| 100.0 * (other / seconds - 1.0);
    let faster = |p: &&FrontierPoint| p.planned > bytes && p.predicted_seconds < seconds;
    if let Some(next) = points.iter().find(faster) {
        ways.push(format!(
            "faster: {:#} ({} more) gives {} a step ({:+.1} %)",
            next.planned,
            next.planned.saturating_sub(bytes),
            duration(next.predicted_seconds),
            percent(next.predicted_seconds)
        ));
    }
    let smaller = |p: &&FrontierPoint| p.planned < bytes;
    if let Some(next) = points.iter().rev().find(smaller) {
        ways.push(format!(
            "smaller: {:#} ({} less) gives {} a step ({:+.1} %)",
            next.planned,
            bytes.saturating_sub(next.planned),
            duration(next.predicted_seconds),
            percent(next.predicted_seconds)
        ));
    }
    if let Some(least) = points.first().filter(|p| p.planned < bytes) {
        ways.push(format!(
            "the least: {} bytes gives {} a step ({:+.1} %)",
            least.planned.get(),
            duration(least.predicted_seconds),
            percent(least.predicted_seconds)
        ));
    }
    ways.dedup();
    ways
}

#[cfg(test)]
pub mod tests {
    use plimsoll::nn::{Recipe, Training};
    use plimsoll::plan::StepPlanner;

    use super::*;

    /// A perceptron whose activations outweigh its weights.
    pub fn survey() -> StepPlanner {
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
        device.scope(|| Training::planner(model(layers), recipe)).unwrap()
    }

    #[test]
    fn the_page_names_kinds_peak_levers_and_bounds() {
        let mut survey = survey();
        let info = survey.plan(Some(survey.floor())).unwrap().figures;
        let page = page(&info);
        for word in ["parameter", "optimizer", "activation", "program", "planned", "the peak is during"] {
            assert!(page.contains(word), "no {word} in {page}");
        }
        // This model is the command's own: no user finds a line of it.
        assert!(!page.contains(".rs:"), "{page}");
        let kinds = json(&info).into_iter().find(|(name, _)| *name == "kinds").unwrap().1;
        let sum: u64 = kinds.as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert_eq!(sum, info.planned.get());
    }
}
