//! Exported programs against PyTorch: outputs, loss, gradients of all parameters and buffers, at another batch than was exported.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{Loss, Model, Net, Recipe, Sgd, Training, joint_loss};
use plimsoll_run::Tensor;
use plimsoll_torch::{Kind, Program, ProgramLoss, TorchModel};
use serde::Deserialize;

#[derive(Deserialize)]
struct Numbers {
    shape: Vec<usize>,
    values: Vec<f64>,
}

#[derive(Deserialize)]
struct Golden {
    inputs: Vec<Numbers>,
    outputs: Vec<Numbers>,
    loss: f64,
    gradients: BTreeMap<String, Numbers>,
    buffers: BTreeMap<String, Numbers>,
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures")).join(name)
}

fn golden(name: &str) -> Golden {
    let text = std::fs::read_to_string(path(&format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn tensor(numbers: &Numbers, dtype: DType) -> Tensor {
    Tensor::from_slice(&numbers.values, &numbers.shape[..]).unwrap().cast(dtype).unwrap()
}

fn inputs(model: &TorchModel, golden: &Golden) -> Vec<Tensor> {
    let dtypes = model.program().inputs().iter().map(|input| input.dtype);
    golden.inputs.iter().zip(dtypes).map(|(numbers, dtype)| tensor(numbers, dtype)).collect()
}

#[track_caller]
fn near(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1e-3f64, |most, x| most.max(x.abs()));
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * scale, "{what}[{i}]: {a} is not {b}");
    }
}

/// The values of a tensor in the order of PyTorch's axes.
fn in_order(model: &TorchModel, name: &str, value: &Tensor) -> Vec<f64> {
    let held = model.program().held().iter().find(|held| held.name == name).unwrap();
    let bytes = model.in_order(name, value.to_bytes().unwrap()).unwrap();
    let mut tensor = Tensor::zeros(Type::new(value.dtype(), held.ty.shape.clone())).unwrap();
    tensor.set_bytes(&bytes).unwrap();
    tensor.to_f64().unwrap()
}

/// Runs one step of plain descent and compares what it did with PyTorch's gradients and buffers.
fn check(name: &str, loss: impl Loss + 'static, on_loss: bool) {
    let golden = golden(name);
    let model = TorchModel::open(path(&format!("{name}.pt2"))).unwrap();
    let given = inputs(&model, &golden);
    let (params, values) = (model.params().to_vec(), model.values().unwrap());

    // As the program is: in training mode, without dropout.
    let key = Tensor::from_slice(&[0i64, 0, 0], [3]).unwrap();
    let mut net = Net::bound(&params, &values, true).key(key);
    let outputs = model.forward(&mut net, &given).unwrap();
    assert_eq!(outputs.len(), golden.outputs.len());
    for (i, (found, expected)) in outputs.iter().zip(&golden.outputs).enumerate() {
        near(&format!("output {i}"), &found.to_f64().unwrap(), &expected.values, 1e-5);
    }

    const RATE: f64 = 1.0;
    let types: Vec<Type> = given.iter().map(|x| x.ty().clone()).collect();
    let mut recipe = Recipe::new(loss, Sgd::new(RATE), types[0].clone(), types[0].clone());
    (recipe.inputs, recipe.labels) = (types, Vec::new());
    let before: Vec<Vec<f64>> =
        params.iter().zip(&values).map(|(p, v)| in_order(&model, &p.name, v)).collect();
    let trained = if on_loss { model.clone().on_loss().unwrap() } else { model.clone() };
    let mut training = Training::with_values(trained, recipe, params.clone(), values).unwrap();
    let batch: Vec<&Tensor> = given.iter().collect();
    let found = training.run(&batch).unwrap().loss;
    near("loss", &[found], &[golden.loss], 1e-5);
    let mut seen = 0;
    for (i, param) in params.iter().enumerate() {
        let after = in_order(&model, &param.name, &training.values()[i]);
        if let Some(expected) = golden.gradients.get(&param.name) {
            let moved: Vec<f64> = before[i].iter().zip(&after).map(|(a, b)| (a - b) / RATE).collect();
            near(&format!("gradient of {}", param.name), &moved, &expected.values, 1e-4);
            seen += 1;
        } else if let Some(expected) = golden.buffers.get(&param.name) {
            near(&param.name, &after, &expected.values, 1e-5);
            seen += 1;
        }
    }
    assert_eq!(seen, golden.gradients.len() + golden.buffers.len(), "some were not compared");
}

#[test]
fn a_classifier_with_tied_weights_is_as_in_pytorch() {
    check("mlp", joint_loss(|outputs, _| outputs[0].square()?.mean(&[], false)), false);
}

#[test]
fn a_convolutional_net_and_its_statistics_are_as_in_pytorch() {
    check("conv", ProgramLoss, true);
}

#[test]
fn a_transformer_and_a_recurrent_layer_are_as_in_pytorch() {
    check("attention", ProgramLoss, true);
}

#[test]
fn spectra_windows_bags_and_places_are_as_in_pytorch() {
    check("signal", ProgramLoss, true);
}

#[test]
fn antialiased_images_of_other_sizes_are_as_in_pytorch() {
    check("resize", ProgramLoss, true);
}

#[test]
fn of_two_graphs_the_one_that_a_truth_value_asks_for_is_taken() {
    check("choice", ProgramLoss, true);
}

#[test]
fn a_scan_and_a_counted_loop_are_as_in_pytorch() {
    check("loops", ProgramLoss, true);
}

#[test]
fn what_a_program_is_made_of_is_said() {
    let program = Program::open(path("conv.pt2")).unwrap();
    let names: Vec<&str> = program.inputs().iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["x", "y"]);
    assert_eq!(program.loss(), Some(0));
    let of = |kind: Kind| program.held().iter().filter(|held| held.kind == kind).count();
    assert_eq!((of(Kind::Trained), of(Kind::Buffer)), (13, 6));
    assert!(program.held().iter().filter(|held| held.kind == Kind::Buffer).all(|held| held.is_changed));
    assert_eq!(program.ops()["aten.conv2d.default"], 3);
    // A tied weight is one tensor.
    let tied = Program::open(path("mlp.pt2")).unwrap();
    assert_eq!(tied.held().iter().filter(|held| held.kind == Kind::Trained).count(), 5);
}

#[test]
fn another_batch_fits_where_the_export_left_it_open_and_other_lengths_do_not() {
    let model = TorchModel::open(path("mlp.pt2")).unwrap();
    assert_eq!(model.input_types(7).unwrap()[0], Type::new(DType::F32, [7, 6]));
    let x = Tensor::zeros(Type::new(DType::F32, [2, 5])).unwrap();
    let mut net = Net::bound(model.params(), &model.values().unwrap(), false);
    let error = model.forward(&mut net, &[x]).err().unwrap().to_string();
    assert!(error.contains("exported as [any, 6]"), "{error}");
}
