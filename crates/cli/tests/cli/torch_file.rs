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
fn a_program_trained_in_parts_on_ranks_is_kept_whole() {
    let (scratch, file) = (Scratch::new("pt2-ranks"), fixture("mlp.pt2"));
    // Every f32 tensor that a training wrote, by name.
    let trained = |more: &str| -> Vec<(String, Vec<f32>)> {
        let out = scratch.path(&format!("run{}", more.replace(' ', "")));
        let words = format!(
            "train {} --data random --take 22 --batch 6 --epochs 3 --loss mse --optimizer adam --lr 0.01 --threads 1 --json --out {out}{more}",
            file.display()
        );
        let told = lines(&words.split(' ').collect::<Vec<_>>()).unwrap();
        let mut written = safetensors::Reader::open(told.last().unwrap()["model"].as_str().unwrap()).unwrap();
        let mut tensors = written.tensors().to_vec();
        tensors.retain(|tensor| tensor.element == Element::F32);
        let numbers = tensors.into_iter().map(|tensor| {
            let mut bytes = vec![0; tensor.shape.iter().product::<usize>() * 4];
            written.read_into(&tensor.name, &mut bytes).unwrap();
            let numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            (tensor.name, numbers.collect())
        });
        numbers.collect()
    };
    let whole = trained("");
    assert!(whole.iter().any(|(_, numbers)| numbers.len() > 1));
    for more in
        [" --ranks 2 --parallel shard", " --ranks 3 --parallel parameters", " --ranks 2 --parallel pipeline"]
    {
        let parts = trained(more);
        assert_eq!(parts.len(), whole.len(), "{more}");
        for ((name, found), (as_whole, expected)) in parts.iter().zip(&whole) {
            assert_eq!((name, found.len()), (as_whole, expected.len()), "{more}");
            for (a, b) in found.iter().zip(expected) {
                assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{more}: {name} has {a} for {b}");
            }
        }
    }
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
