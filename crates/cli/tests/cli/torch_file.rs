//! Exported PyTorch programs (`.pt2`) with the command: looked at, planned, trained with PyTorch's losses, evaluated, used.

use std::path::{Path, PathBuf};

use plimsoll::formats::{Element, npy, safetensors};
use serde_json::Value;

use crate::common::{Scratch, lines, plimsoll};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../torch/tests/fixtures").join(name)
}

/// What PyTorch computed of a fixture.
fn golden(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(name)).unwrap()).unwrap()
}

fn write(path: &str, element: Element, input: &Value) {
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    let shape: Vec<usize> = input["shape"].as_array().unwrap().iter().map(number).collect();
    let values = input["values"].as_array().unwrap().iter();
    let mut file = Vec::new();
    npy::write_header(&mut file, element, &shape).unwrap();
    match element {
        Element::I64 => values.for_each(|x| file.extend((x.as_f64().unwrap() as i64).to_le_bytes())),
        _ => values.for_each(|x| file.extend((x.as_f64().unwrap() as f32).to_le_bytes())),
    }
    std::fs::write(path, file).unwrap();
}

/// A folder with the inputs of the program that returns its loss.
fn data(scratch: &Scratch, golden: &Value) -> String {
    let folder = scratch.path("data");
    std::fs::create_dir_all(&folder).unwrap();
    write(&format!("{folder}/x.npy"), Element::F32, &golden["inputs"][0]);
    write(&format!("{folder}/y.npy"), Element::I64, &golden["inputs"][1]);
    folder
}

#[test]
fn a_program_is_trained_with_its_own_loss_and_kept_by_its_own_names() {
    let (scratch, golden) = (Scratch::new("pt2-train"), golden("conv.json"));
    let (data, out) = (data(&scratch, &golden), scratch.path("run"));
    let file = fixture("conv.pt2");
    let file = file.to_str().unwrap();
    let words = [
        "--data",
        &data,
        "--batch",
        "6",
        "--epochs",
        "1",
        "--optimizer",
        "sgd",
        "--lr",
        "0.01",
        "--memory",
        "400MiB",
    ];
    let told = lines(&[&["train", file][..], &words, &["--out", &out, "--json"]].concat()).unwrap();
    let epoch = told.iter().find(|line| line["event"] == "epoch").unwrap();
    let (loss, wanted) = (epoch["loss"].as_f64().unwrap(), golden["loss"].as_f64().unwrap());
    assert!((loss - wanted).abs() <= 1e-5 * wanted.abs().max(1.0), "{loss} for {wanted}");
    let model = told.last().unwrap()["model"].as_str().unwrap();
    let reader = safetensors::Reader::open(model).unwrap();
    let weight = reader.tensor("stem.weight").unwrap();
    // With the axes that PyTorch has, whatever they are here.
    assert_eq!(weight.shape, [8, 3, 3, 3]);
    let ended = plimsoll().args(["evaluate", &out]).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    // Its only output is its loss.
    let ended = plimsoll().args(["predict", &out]).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr).to_string();
    assert!(!ended.status.success() && told.contains("nothing to predict"), "{told}");
}

#[test]
fn a_program_without_a_loss_takes_one_by_name_and_is_planned_on_random_data() {
    let file = fixture("mlp.pt2");
    let file = file.to_str().unwrap();
    let plan = lines(&["plan", file, "--data", "random", "--batch", "4", "--loss", "mse", "--json"]).unwrap();
    assert!(plan.last().unwrap()["planned_bytes"].as_u64().unwrap() > 0, "{plan:?}");
    let looked = lines(&["inspect", file, "--json"]).unwrap();
    let (kind, inputs) = (&looked[0]["kind"], looked[0]["inputs"].as_array().unwrap());
    assert!(kind == "torch" && inputs.len() == 1 && looked[0]["problem"].is_null(), "{looked:?}");
}

#[test]
fn what_a_program_cannot_follow_is_refused_by_name() {
    let file = fixture("conv.pt2");
    let file = file.to_str().unwrap();
    for (words, said) in
        [(["--metrics", "accuracy"], "--metrics"), (["--precision", "mixed-bf16"], "--precision")]
    {
        let ended = plimsoll().args(["plan", file, "--data", "random"]).args(words).output().unwrap();
        let told = String::from_utf8_lossy(&ended.stderr).to_string();
        assert!(!ended.status.success() && told.contains(said), "{told}");
    }
}
