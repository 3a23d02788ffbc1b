//! Finds the records of a run in its folder, or of a plan in its file. Files may be cut short or not ours: every size is
//! bounded and every number looked at before anything is drawn from it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::record::{Event, Frontier, LedgerRow, Plan, Record, Run};
use crate::step::Step;
use crate::table;

/// No record is larger. A step of a hundred thousand ops is a tenth of it.
const MOST_BYTES: u64 = 256 << 20;
/// So many events are shown.
const MOST_EVENTS: usize = 10_000;

impl Record {
    /// Reads the record at a path: the folder of a run, or a plan.
    pub fn read(path: &Path) -> Result<Record> {
        if path.is_dir() { Record::of_run(path) } else { Record::of_plan(path) }
    }

    /// Reads a plan (`plimsoll plan --out`).
    pub fn of_plan(path: &Path) -> Result<Record> {
        let Some(text) = text(path)? else { return Err(Error::NoRecord { path: path.into() }) };
        plan(&text, &path.display().to_string())
    }

    /// Reads a plan from its text.
    pub fn from_plan(document: &str) -> Result<Record> {
        plan(document, "plan")
    }

    /// Reads the folder of a run. Only the plan must be there: a run that was killed has no ledger.
    pub fn of_run(folder: &Path) -> Result<Record> {
        let file = |name: &str| folder.join(name);
        let Some(plan_text) = text(&file("plan.json"))? else {
            return Err(Error::NoRecord { path: folder.into() });
        };
        let mut record = plan(&plan_text, &file("plan.json").display().to_string())?;
        if let Some(text) = text(&file("step.json"))? {
            record.step = Some(step(&text, &file("step.json").display().to_string())?);
        }
        if let Some(text) = text(&file("frontier.json"))? {
            record.frontier = Some(parsed(&text, &file("frontier.json").display().to_string())?);
        }
        let mut run = Run::default();
        if let Some(text) = text(&file("steps.csv"))? {
            run.steps = table::steps(&text);
        }
        if let Some(text) = text(&file("metrics.csv"))? {
            run.epochs = table::epochs(&text);
        }
        if let Some(text) = text(&file("events.jsonl"))? {
            let events = text.lines().filter_map(|line| serde_json::from_str::<Event>(line).ok());
            run.events = events.take(MOST_EVENTS).collect();
        }
        if let Some(text) = text(&file("ledger.json"))? {
            let name = file("ledger.json").display().to_string();
            run.ledger = parsed::<Vec<LedgerRow>>(&text, &name)?;
        }
        record.run = Some(run);
        Ok(record)
    }
}

fn plan(text: &str, file: &str) -> Result<Record> {
    let mut document: Value = parsed(text, file)?;
    let Some(fields) = document.as_object_mut() else {
        return Err(Error::Broken { file: file.into(), why: "a plan is a JSON object".into() });
    };
    if !fields.contains_key("planned_bytes") {
        let why = "it says no planned_bytes, so it is no plan".into();
        return Err(Error::Broken { file: file.into(), why });
    }
    let taken = |value: Option<Value>| value.filter(|value| !value.is_null());
    let (step, frontier) = (taken(fields.remove("step")), taken(fields.remove("frontier")));
    let step = step.map(|value| from_value::<Step>(value, file)).transpose()?;
    step.iter().try_for_each(|step| step.check(file))?;
    let frontier = frontier.map(|value| from_value::<Frontier>(value, file)).transpose()?;
    Ok(Record { schema: 1, plan: from_value::<Plan>(document, file)?, step, frontier, run: None })
}

fn step(text: &str, file: &str) -> Result<Step> {
    let step: Step = parsed(text, file)?;
    step.check(file)?;
    Ok(step)
}

fn parsed<T: serde::de::DeserializeOwned>(text: &str, file: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| Error::Broken { file: file.into(), why: e.to_string() })
}

fn from_value<T: serde::de::DeserializeOwned>(value: Value, file: &str) -> Result<T> {
    serde_json::from_value(value).map_err(|e| Error::Broken { file: file.into(), why: e.to_string() })
}

/// The text of a file; none if there is no such file. What is no UTF-8 is replaced, and refused as JSON later.
fn text(path: &Path) -> Result<Option<String>> {
    let failed = |source| Error::File { path: path.into(), source };
    let file = match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Error::TooLarge { path: path.into(), bytes: bytes.len() as u64, most: MOST_BYTES });
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"{"model": "cnn", "batch": 4, "planned_bytes": 900, "line_bytes": 1000, "predicted_ms": 1.5,
        "frontier": {"points": [{"planned_bytes": 500, "predicted_ms": 2.5}]},
        "step": {"arena_bytes": 128, "names": ["conv", "conv/out"], "sites": ["model.rs:3"],
        "residents": [{"name": 1, "kind": "parameter", "shape": [16], "dtype": "f32", "bytes": 64, "site": 0}],
        "stretches": [{"name": "step", "first": 0, "samples": 4, "runs": 1}],
        "instructions": [{"op": "conv", "layer": 0, "site": 0, "us": 1.5, "what": "run", "phase": "forward"},
                         {"op": "sum", "layer": 0, "site": null, "us": 0.5, "what": "again", "phase": "forward"}],
        "tensors": [{"name": 1, "layer": 0, "kind": "activation", "shape": [4, 4], "dtype": "f32", "bytes": 64,
                     "offset": 64, "from": 0, "to": 2, "again": false, "site": 0}]}}"#;

    /// Reads it and, if that works, draws all that is drawn on this side.
    fn drawn(text: &str) -> Result<()> {
        let record = Record::from_plan(text)?;
        crate::trace(&record);
        record.step.iter().for_each(|step| assert!(step.peak().0 <= step.instructions.len()));
        crate::page(&record).map(|_| ())
    }

    #[test]
    fn a_plan_is_read_whole() {
        let record = Record::from_plan(PLAN).unwrap();
        assert_eq!((record.plan.model.as_str(), record.plan.line_bytes), ("cnn", Some(1000)));
        assert_eq!(record.step.as_ref().map(Step::peak), Some((0, 64)));
        assert_eq!(record.frontier.unwrap().points[0].planned_bytes, 500);
    }

    #[test]
    fn numbers_that_point_nowhere_are_refused_by_name() {
        for (from, to, said) in [
            ("\"to\": 2", "\"to\": 3", "tensor 0"),
            ("\"from\": 0", "\"from\": 2", "tensor 0"),
            ("\"layer\": 0, \"site\": null", "\"layer\": 2, \"site\": null", "instruction 1"),
            ("\"bytes\": 64, \"site\": 0}]", "\"bytes\": 64, \"site\": 9}]", "resident 0"),
            ("\"first\": 0", "\"first\": 5", "stretch"),
            ("\"planned_bytes\": 900,", "", "no plan"),
        ] {
            let error = drawn(&PLAN.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(said), "{said} is not in: {error}");
        }
    }

    #[test]
    fn broken_records_are_errors_and_never_panics() {
        for end in 0..PLAN.len() {
            assert!(drawn(&PLAN[..end]).is_err(), "cut at {end}");
        }
        let mut state = 7u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for _ in 0..4000 {
            let mut bytes = PLAN.as_bytes().to_vec();
            for _ in 0..1 + random(3) {
                let at = random(bytes.len());
                bytes[at] = b" 0123456789-eE\"{}[],:x"[random(22)];
            }
            drawn(&String::from_utf8_lossy(&bytes)).ok();
        }
    }

    #[test]
    fn what_is_no_record_is_refused_with_what_to_do() {
        let error = Record::read(Path::new("no/such/run")).unwrap_err().to_string();
        assert!(error.contains("plimsoll train wrote"), "{error}");
    }
}
