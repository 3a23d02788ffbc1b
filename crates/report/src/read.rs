//! Finds the records of a run in its folder, or of a plan in its file. Files may be cut short or not ours: every size is
//! bounded and every number looked at before anything is drawn from it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use plimsoll_record::{Epoch, Event, Frontier, Ledger, Profile, Ranks, Record, Run, Step, Steps, parse};

use crate::error::{Error, Result};

/// No record is larger. A step of a hundred thousand ops is a tenth of it.
const MOST_BYTES: u64 = 256 << 20;
/// So many events are shown.
const MOST_EVENTS: usize = 10_000;

/// Reads the record at a path: the folder of a run, or a plan.
///
/// # Errors
/// Says which file is missing, damaged, too large or of another version, and what to do.
pub fn read(path: &Path) -> Result<Record> {
    if path.is_dir() {
        return read_run(path);
    }
    let Some(text) = text(path)? else { return Err(Error::NoRecord { path: path.into() }) };
    Ok(Record::parse_plan(&text, &path.display().to_string())?)
}

/// Reads a plan from its text.
///
/// # Errors
/// As [`Record::parse_plan`].
pub fn parse_plan(document: &str) -> Result<Record> {
    Ok(Record::parse_plan(document, "plan")?)
}

/// Reads the folder of a run. Plan and step must be there: a run that was killed has no ledger.
fn read_run(folder: &Path) -> Result<Record> {
    let file = |name: &str| folder.join(name);
    let shown = |name: &str| file(name).display().to_string();
    let Some(plan_text) = text(&file("plan.json"))? else {
        return Err(Error::NoRecord { path: folder.into() });
    };
    let mut record = Record::parse_plan(&plan_text, &shown("plan.json"))?;
    let Some(step_text) = text(&file("step.json"))? else {
        return Err(Error::NoStep { folder: folder.into() });
    };
    let step: Step = parse(&step_text, &shown("step.json"), true)?;
    step.check(&shown("step.json"))?;
    record.step = Some(step);
    if let Some(text) = text(&file("frontier.json"))? {
        let found: Frontier = parse(&text, &shown("frontier.json"), false)?;
        // Of another plan: the run was begun anew under another memory limit, say.
        record.frontier = Some(found).filter(|found| found.agrees_with(&record.plan));
    }
    if let (Some(text), Some(step)) = (text(&file("profile.json"))?, &record.step) {
        let profile: Profile = parse(&text, &shown("profile.json"), false)?;
        profile.check(step, &shown("profile.json"))?;
        record.profile = Some(profile);
    }
    let mut run = Run::default();
    if let Some(text) = text(&file("steps.csv"))? {
        (run.steps, run.unread_lines) = Steps::from_csv(&text);
    }
    if let Some(text) = text(&file("metrics.csv"))? {
        let (epochs, unread) = Epoch::from_csv(&text);
        (run.epochs, run.unread_lines) = (epochs, run.unread_lines + unread);
    }
    if let Some(text) = text(&file("events.jsonl"))? {
        let (events, unread) = Event::from_lines(&text, &shown("events.jsonl"), MOST_EVENTS)?;
        (run.events, run.unread_lines) = (events, run.unread_lines + unread);
    }
    if let Some(text) = text(&file("ledger.json"))? {
        run.ledger = Ledger::parse(&text, &shown("ledger.json"))?.rows;
    }
    if let Some(text) = text(&file("ranks.json"))? {
        let ranks: Ranks = parse(&text, &shown("ranks.json"), false)?;
        run.ranks = Some(ranks).filter(|ranks| ranks.rows.len() > 1);
    }
    run.sum_up(&record.plan);
    record.run = Some(run);
    Ok(record)
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
    use plimsoll_record::Error as Broken;

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
        let record = parse_plan(text)?;
        crate::trace(&record);
        record.step.iter().for_each(|step| assert!(step.peak().0 <= step.instructions.len()));
        crate::page(&record).map(|_| ())
    }

    #[test]
    fn a_plan_is_read_whole() {
        let record = parse_plan(PLAN).unwrap();
        assert_eq!((record.plan.model.as_str(), record.plan.memory_limit_bytes), ("cnn", Some(1000)));
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
    fn a_damaged_record_is_named_with_line_and_column_as_an_editor_counts() {
        let text = "{\n  \"planned_bytes\": 900,\n  \"model\": \"Größe\", \"batch\": x\n}\n";
        let error = parse_plan(text).unwrap_err();
        let Error::Record(Broken::Json { line, column, .. }) = &error else { panic!("{error}") };
        let third = text.lines().nth(2).unwrap();
        assert_eq!((*line, *column), (3, third.chars().position(|c| c == 'x').unwrap() + 1));
        assert!(error.to_string().starts_with("plan:3:30: expected value: the file is damaged"), "{error}");
        let typed = parse_plan("{\"planned_bytes\": 1,\n \"batch\": \"many\"}").unwrap_err().to_string();
        assert!(typed.starts_with("plan:2:") && typed.contains("many"), "{typed}");
        let empty = parse_plan("").unwrap_err().to_string();
        assert!(empty.starts_with("plan:1:1: "), "{empty}");
    }

    #[test]
    fn a_record_of_another_schema_is_refused_by_its_number() {
        let error = parse_plan(r#"{"schema": 7, "planned_bytes": "unlike today"}"#).unwrap_err();
        assert!(matches!(error, Error::Record(Broken::Schema { found: 7, known: 2, .. })), "{error}");
        assert!(parse_plan(r#"{"schema": 1, "planned_bytes": 5}"#).is_ok());
    }

    #[test]
    fn a_run_without_a_step_or_with_a_damaged_one_is_refused_and_a_stale_frontier_is_not_shown() {
        let folder = std::env::temp_dir().join(format!("plimsoll-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let said = || read(&folder).unwrap_err().to_string();
        assert!(said().contains("neither the folder of a run"), "{}", said());
        write(
            "plan.json",
            r#"{"planned_bytes": 900, "floor_bytes": 500, "predicted_ms": 2.0, "unlimited_ms": 1.0}"#,
        );
        assert!(said().contains("no step.json"), "{}", said());
        write("step.json", "{\"arena_bytes\": 12");
        assert!(said().contains("step.json:1:"), "{}", said());
        write("step.json", "{}");
        assert!(read(&folder).unwrap().frontier.is_none());
        for (points, is_shown) in
            [("500, \"predicted_ms\": 3.0", true), ("499, \"predicted_ms\": 3.0", false)]
        {
            write("frontier.json", &format!("{{\"points\": [{{\"planned_bytes\": {points}}}]}}"));
            assert_eq!(read(&folder).unwrap().frontier.is_some(), is_shown, "{points}");
        }
        write("events.jsonl", "{\"event\": \"started\"}\n{\"event\": \"sav");
        write("steps.csv", "step,loss\n1,0.5\n2\n");
        let run = read(&folder).unwrap().run.unwrap();
        assert_eq!((run.events.len(), run.steps.step.len(), run.unread_lines), (1, 1, 2));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_record_is_refused_with_what_to_do() {
        let error = read(Path::new("no/such/run")).unwrap_err().to_string();
        assert!(error.contains("plimsoll train wrote"), "{error}");
    }
}
