//! Small models against what onnxruntime gives for them, in the form in which they predict and in that in which they train.

use std::path::PathBuf;

use plimsoll_graph::{DType, Shape, TensorOps, Type};
use plimsoll_nn::{Adam, Model, Net, Recipe, View};
use plimsoll_onnx::{Error, Lengths, OnnxModel};
use plimsoll_run::Tensor;

struct Golden {
    is_input: bool,
    shape: Vec<usize>,
    elements: Vec<f64>,
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn golden(name: &str) -> Vec<Golden> {
    let text = std::fs::read_to_string(path(&format!("{name}.txt"))).unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let shape = words[2].split(',').map(|n| n.parse().unwrap()).collect();
        let elements = words[3..].iter().map(|x| x.parse().unwrap()).collect();
        Golden { is_input: words[0] == "in", shape, elements }
    };
    text.lines().map(line).collect()
}

fn tensors(all: &[Golden], dtypes: &[DType]) -> Vec<Tensor> {
    let inputs = all.iter().filter(|golden| golden.is_input).zip(dtypes);
    inputs.map(|(g, &dtype)| Tensor::from_f64(&g.elements, Type::new(dtype, &g.shape[..])).unwrap()).collect()
}

fn check(name: &str, lengths: &Lengths) -> OnnxModel {
    let model = OnnxModel::open_for(path(&format!("{name}.onnx")), lengths).unwrap();
    let all = golden(name);
    let inputs = tensors(&all, &model.input_dtypes());
    assert_eq!(
        model.inputs(inputs[0].shape()[0]).unwrap(),
        inputs.iter().map(|x| x.ty().clone()).collect::<Vec<_>>()
    );
    let mut net = Net::bound(model.params(), &model.values().unwrap(), false).predicting();
    let outputs = model.forward(&mut net, &inputs).unwrap();
    for (found, wanted) in outputs.iter().zip(all.iter().filter(|golden| !golden.is_input)) {
        assert_eq!(*found.shape(), Shape::from(&wanted.shape[..]));
        for (a, b) in found.to_f64().unwrap().iter().zip(&wanted.elements) {
            assert!((a - b).abs() < 1e-5, "{name}: {a} instead of {b}");
        }
    }
    model
}

#[test]
fn small_models_give_what_onnxruntime_gives() {
    check("mlp", &Lengths::default());
    check("cnn", &Lengths::default());
    check("attention", &Lengths::default().with("sequence", 5));
}

#[test]
fn weights_train_and_constants_do_not() {
    let model = check("cnn", &Lengths::default());
    let of = |trained: bool| {
        let names = model.params().iter().filter(|p| p.trained == trained).map(|p| p.name.as_str());
        names.collect::<Vec<_>>()
    };
    assert_eq!(
        of(true),
        ["c1.weight", "c1.bias", "bn.weight", "bn.bias", "dw.weight", "fc.weight", "fc.bias"]
    );
    assert_eq!(of(false), ["bn.mean", "bn.var"]);
    // Filters are kept as the engine reads them.
    assert_eq!(model.params()[0].ty.shape, Shape::from([3, 3, 3, 4]));
}

#[test]
fn a_model_trains_from_its_file() {
    let model = OnnxModel::open(path("cnn.onnx")).unwrap();
    let (x, y) = (model.inputs(8).unwrap().remove(0), Type::new(DType::I64, [8]));
    let mut training = model.training(Recipe::cross_entropy(Adam::new(0.01), x.clone(), y)).unwrap();
    let before: Vec<f64> = training.values()[5].to_f64().unwrap();
    let numbers: Vec<f64> = (0..x.elements()).map(|i| ((i * 37 % 101) as f64 - 50.0) / 30.0).collect();
    let images = Tensor::from_f64(&numbers, x).unwrap();
    let labels = Tensor::from_slice(&[0i64, 1, 2, 3, 4, 0, 1, 2], [8]).unwrap();
    let first = training.step(&[&images], &labels).unwrap();
    let mut last = first;
    for _ in 0..30 {
        last = training.step(&[&images], &labels).unwrap();
    }
    assert!(last < first / 2.0, "{first} to {last}");
    let mean = model.params().iter().position(|p| p.name == "bn.mean").unwrap();
    assert_ne!(training.values()[5].to_f64().unwrap(), before);
    assert_ne!(training.values()[mean].to_f64().unwrap(), model.values().unwrap()[mean].to_f64().unwrap());
}

#[test]
fn an_open_axis_must_be_given_a_length() {
    let error = OnnxModel::open(path("attention.onnx")).unwrap_err().to_string();
    assert!(error.contains("tokens") && error.contains("--bind sequence="), "{error}");
    let wrong =
        OnnxModel::open_for(path("attention.onnx"), &Lengths::default().with("sequenze", 5)).unwrap_err();
    assert!(
        matches!(&wrong, Error::Input { name, why } if name == "sequenze" && why.contains("sequence")),
        "{wrong}"
    );
    // More places than the file has.
    assert!(OnnxModel::open_for(path("attention.onnx"), &Lengths::default().with("sequence", 7)).is_err());
}

#[test]
fn a_last_softmax_is_left_to_the_loss() {
    let model = OnnxModel::open(path("mlp.onnx")).unwrap().on_logits(View::Softmax);
    assert!(model.gives_logits(0));
    let x = Tensor::from_slice(&[0.5f32; 4], [1, 4]).unwrap();
    let values = model.values().unwrap();
    let give = |net: Net| {
        model.forward(&mut { net }, std::slice::from_ref(&x)).unwrap().one().unwrap().to_f64().unwrap()
    };
    let (scores, shares) = (
        give(Net::bound(model.params(), &values, false)),
        give(Net::bound(model.params(), &values, false).predicting()),
    );
    let sum: f64 = scores.iter().map(|x| x.exp()).sum();
    for (score, share) in scores.iter().zip(&shares) {
        assert!((score.exp() / sum - share).abs() < 1e-6);
    }
}

#[test]
fn the_page_of_ops_lists_every_op() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/onnx.md");
    let text = std::fs::read_to_string(page).unwrap();
    let listed: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(listed, plimsoll_onnx::op_names());
}
