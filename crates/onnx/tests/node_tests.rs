//! onnx's own tests of its ops, as `node_tests.py` beside this writes them: group `onnx`, where `PLIMSOLL_ONNX_NODE_TESTS` names their
//! folder.
//!
//! A test is in scope where every op of its graph is one that is known here and all of its values are tensors of element types that
//! are. Of those in scope at least 95 % must pass; none may give another result than it should: what cannot be done is refused. With
//! `PLIMSOLL_ONNX_REPORT` the reasons are written to that file.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use plimsoll_graph::DType;
use plimsoll_onnx::{Constant, OnnxFile, evaluate, op_names};

enum Outcome {
    Passed,
    OutOfScope(String),
    Refused(String),
    Wrong(String),
}

fn read(folder: &Path, kind: &str, names: &[String]) -> Result<Vec<(String, Constant)>, String> {
    let mut all = Vec::new();
    for i in 0.. {
        let path = folder.join(format!("{kind}_{i}.pb"));
        let Ok(bytes) = std::fs::read(&path) else { break };
        if bytes.is_empty() {
            return Err("a value is no tensor".into());
        }
        let (_, value) = Constant::from_pb(bytes)?;
        all.push((names.get(i).cloned().unwrap_or_default(), value));
    }
    Ok(all)
}

fn is_close(found: f64, wanted: f64, rtol: f64, atol: f64) -> bool {
    found == wanted
        || (found.is_nan() && wanted.is_nan())
        || (found - wanted).abs() <= atol + rtol * wanted.abs()
}

fn compare(found: &Constant, wanted: &Constant, rtol: f64, atol: f64) -> Result<(), String> {
    if found.ty != wanted.ty {
        return Err(format!("it gives {} instead of {}", found.ty, wanted.ty));
    }
    // Halves are rounded after every op, here and there.
    let rtol = match found.ty.dtype {
        DType::BF16 => 0.02f64.max(rtol),
        DType::F16 => 0.004f64.max(rtol),
        _ => rtol,
    };
    let (a, b) = (found.elements(), wanted.elements());
    match a.iter().zip(&b).position(|(a, b)| !is_close(*a, *b, rtol, atol)) {
        Some(i) => Err(format!("element {i} is {} instead of {}", a[i], b[i])),
        None => Ok(()),
    }
}

fn run(folder: &Path) -> Outcome {
    let file = match OnnxFile::open(folder.join("model.onnx")) {
        Ok(file) => file,
        Err(error) => {
            let text = error.to_string();
            let why = text.split_once(": ").map_or(text.clone(), |(_, why)| why.to_string());
            return Outcome::OutOfScope(why);
        }
    };
    let known = op_names();
    if let Some(node) =
        file.graph.nodes.iter().find(|node| !node.domain.is_empty() || !known.contains(&&node.op[..]))
    {
        let of = if node.domain.is_empty() { String::new() } else { format!("{}.", node.domain) };
        return Outcome::OutOfScope(format!("{of}{} is not known", node.op));
    }
    let tolerance = std::fs::read_to_string(folder.join("tolerance")).unwrap_or_default();
    let mut numbers = tolerance.split_whitespace().filter_map(|n| n.parse::<f64>().ok());
    let (rtol, atol) = (numbers.next().unwrap_or(1e-3), numbers.next().unwrap_or(1e-7));
    let names = |ports: &[plimsoll_onnx::Port]| ports.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    for set in 0.. {
        let data = folder.join(format!("test_data_set_{set}"));
        if !data.is_dir() {
            break;
        }
        let inputs = match read(&data, "input", &names(&file.graph.inputs)) {
            Ok(inputs) => inputs,
            Err(why) => return Outcome::OutOfScope(why),
        };
        let outputs = match read(&data, "output", &names(&file.graph.outputs)) {
            Ok(outputs) => outputs,
            Err(why) => return Outcome::OutOfScope(why),
        };
        let found = match evaluate(&file, &inputs) {
            Ok(found) => found,
            Err(error) => return Outcome::Refused(error.to_string()),
        };
        for ((name, wanted), found) in outputs.iter().zip(&found) {
            // Sums of f32 in another order: what is near zero is compared with this.
            if let Err(why) = compare(found, wanted, rtol, atol.max(2e-6)) {
                return Outcome::Wrong(format!("{name}: {why}"));
            }
        }
    }
    Outcome::Passed
}

/// Results that differ by what ONNX leaves open, or by design, with the reason.
const KNOWN: &[(&str, &str)] = &[
    ("test_training_dropout", DROPOUT),
    ("test_training_dropout_default", DROPOUT),
    ("test_training_dropout_default_mask", DROPOUT),
    ("test_training_dropout_mask", DROPOUT),
];

const DROPOUT: &str =
    "dropout drops while the model trains, whatever the file says, and draws by the engine's own generator";

#[test]
fn onnx_node_tests_pass_or_are_refused() {
    let found = std::env::var_os("PLIMSOLL_ONNX_NODE_TESTS").map(PathBuf::from);
    let found =
        found.ok_or("PLIMSOLL_ONNX_NODE_TESTS names no folder; crates/onnx/tests/node_tests.py makes one");
    let Some(folder) = plimsoll_testing::group("onnx", found) else { return };
    let mut tests: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    tests.sort();
    let only = std::env::var("PLIMSOLL_ONNX_ONLY").unwrap_or_default();
    let (mut passed, mut refused, mut wrong) = (0, BTreeMap::new(), Vec::new());
    let mut aside: BTreeMap<String, usize> = BTreeMap::new();
    for test in tests.iter().filter(|test| test.to_string_lossy().contains(&only)) {
        let name = test.file_name().unwrap().to_string_lossy().to_string();
        match run(test) {
            Outcome::Passed => passed += 1,
            Outcome::OutOfScope(why) => *aside.entry(why).or_default() += 1,
            Outcome::Refused(why) => {
                refused.insert(name, why);
            }
            Outcome::Wrong(why) => match KNOWN.iter().find(|(known, _)| *known == name) {
                Some((_, reason)) => {
                    refused.insert(name, format!("differs: {reason}"));
                }
                None => wrong.push((name, why)),
            },
        }
    }
    let in_scope = passed + refused.len() + wrong.len();
    let out_of_scope: usize = aside.values().sum();
    let share = 100.0 * passed as f64 / in_scope.max(1) as f64;
    let mut text =
        format!("{passed} of {in_scope} in scope pass ({share:.1} %); {out_of_scope} are out of scope\n");
    for (name, why) in &wrong {
        writeln!(text, "wrong    {name}: {why}").unwrap();
    }
    for (name, why) in &refused {
        writeln!(text, "refused  {name}: {why}").unwrap();
    }
    for (why, n) in &aside {
        writeln!(text, "aside    {n:>4}  {why}").unwrap();
    }
    println!("{text}");
    if let Some(report) = std::env::var_os("PLIMSOLL_ONNX_REPORT") {
        std::fs::write(report, &text).unwrap();
    }
    assert!(wrong.is_empty(), "{} give another result", wrong.len());
    assert!(share >= 95.0 || !only.is_empty(), "{share:.1} % pass");
}
