//! Reads what Keras computed with a model, and compares it with what we compute.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use plimsoll_formats::{Element, npz};
use plimsoll_graph::{TensorOps, Type};
use plimsoll_keras::{Compiled, KerasModel};
use plimsoll_nn::{Model, Net};
use plimsoll_run::{Tape, Tensor};

/// The numbers that bytes are.
fn numbers<T, const N: usize>(bytes: &[u8], number: fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).map(|bytes| number(bytes.try_into().expect("whole numbers"))).collect()
}

/// The arrays of an archive, by name.
pub struct Arrays(BTreeMap<String, Tensor>);

impl Arrays {
    pub fn open(path: &Path) -> Arrays {
        let mut arrays = BTreeMap::new();
        let mut file = File::open(path).expect("opening the numbers");
        for member in npz::members(path).expect("reading the numbers") {
            let offset = member.offset.expect("numbers stored as they are");
            let mut bytes = vec![0; member.header.bytes as usize];
            file.seek(SeekFrom::Start(offset)).expect("seeking");
            file.read_exact(&mut bytes).expect("reading");
            let shape = &member.header.shape[..];
            let tensor = match member.header.element.element {
                Element::F32 => Tensor::from_slice(&numbers(&bytes, f32::from_le_bytes), shape),
                Element::F64 => Tensor::from_slice(&numbers(&bytes, f64::from_le_bytes), shape),
                Element::I32 => Tensor::from_slice(&numbers(&bytes, i32::from_le_bytes), shape),
                Element::I64 => Tensor::from_slice(&numbers(&bytes, i64::from_le_bytes), shape),
                other => panic!("{} is {other:?}", member.name),
            };
            arrays.insert(member.name, tensor.expect("making a tensor"));
        }
        Arrays(arrays)
    }

    /// `x0`, `x1`, …
    pub fn list(&self, letter: &str) -> Vec<Tensor> {
        (0..).map_while(|i| self.0.get(&format!("{letter}{i}")).cloned()).collect()
    }

    pub fn get(&self, name: &str) -> Vec<f64> {
        self.0[name].to_f64().expect("reading numbers")
    }
}

/// How far we are from Keras.
#[derive(Debug, Default)]
pub struct Differences {
    /// The largest distance of outputs.
    pub forward: f64,
    /// The largest distance of a gradient, relative to that gradient's largest element.
    pub gradient: f64,
    /// The parameter it is of.
    pub worst: String,
    /// The largest distance of a loss in 20 steps, relative to it.
    pub losses: f64,
    /// The largest distance of outputs after these steps.
    pub after: f64,
}

pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |most, d| if d.is_nan() { d } else { most.max(d) })
}

/// What the model predicts, as Keras would.
pub fn predict(model: &KerasModel, values: &[Tensor], inputs: &[Tensor]) -> Vec<Tensor> {
    let mut net = Net::bound(model.params(), values, false);
    model.forward(&mut net, inputs).expect("a forward pass").to_vec()
}

/// Distances of outputs from expected ones.
pub fn outputs_distance(found: &[Tensor], expected: &[Tensor]) -> f64 {
    assert_eq!(found.len(), expected.len(), "outputs");
    let pairs = found.iter().zip(expected);
    pairs
        .map(|(a, b)| {
            assert_eq!(a.shape(), b.shape());
            distance(&a.cast(b.dtype()).unwrap().to_f64().unwrap(), &b.to_f64().unwrap())
        })
        .fold(0.0, f64::max)
}

/// All inputs in the model's order: inputs that have names are sorted by them in the archive too.
pub fn types(tensors: &[Tensor]) -> Vec<Type> {
    tensors.iter().map(|t| t.ty().clone()).collect()
}

/// Compares everything.
pub fn compare(model: &KerasModel, arrays: &Arrays) -> Differences {
    let values = model.values().expect("the weights");
    let (inputs, labels) = (arrays.list("x"), arrays.list("t"));
    let forward = outputs_distance(&predict(model, &values, &inputs), &arrays.list("y"));
    let mut found = Differences { forward, ..Differences::default() };
    let compiled = model.compiled().expect("what it was compiled with");
    gradients(&compiled, &values, &inputs, &labels, arrays, &mut found);
    let recipe = compiled.recipe(types(&inputs), types(&labels));
    let mut training = compiled.model.training(recipe).expect("a training");
    let batch: Vec<&Tensor> = inputs.iter().chain(&labels).collect();
    let expected = arrays.get("losses");
    let mut step = |i: usize| {
        training.set_rate(compiled.rate(i as u64)).expect("a rate");
        training.run(&batch).expect("a step").loss
    };
    let losses: Vec<f64> = (0..expected.len()).map(&mut step).collect();
    if std::env::var_os("SHOW_LOSSES").is_some() {
        println!("{losses:?}\n{expected:?}");
    }
    found.losses = losses_distance(&losses, &expected);
    let after = predict(model, training.values(), &inputs);
    found.after = outputs_distance(&after, &arrays.list("z"));
    found
}

fn gradients(
    compiled: &Compiled,
    values: &[Tensor],
    inputs: &[Tensor],
    labels: &[Tensor],
    arrays: &Arrays,
    found: &mut Differences,
) {
    let model = &compiled.model;
    let names: Vec<&str> = model.trained().collect();
    let place = |name: &str| model.params().iter().position(|p| p.name == name).expect("a parameter");
    let trained: Vec<&Tensor> = names.iter().map(|name| &values[place(name)]).collect();
    let tape = Tape::new();
    trained.iter().for_each(|w| tape.watch(w).expect("watching"));
    let key = Tensor::from_slice(&[1i64, 0, 0], [3]).expect("a key");
    let mut net = Net::bound(model.params(), values, true).key(key);
    let outputs = model.forward(&mut net, inputs).expect("a forward pass");
    let loss = compiled.loss.loss(&outputs, labels).expect("a loss");
    let grads = tape.try_gradient(&loss, &trained).expect("gradients");
    let grads: Vec<Option<Vec<f64>>> = grads.into_iter().map(|g| g.map(|g| g.to_f64().unwrap())).collect();
    let expected = arrays.list("g");
    assert_eq!(expected.len(), names.len(), "trained variables");
    (found.gradient, found.worst) = gradient_distance(&names, &grads, &expected);
}

/// The largest relative distance of gradients, and the parameter it is of.
pub fn gradient_distance(names: &[&str], grads: &[Option<Vec<f64>>], expected: &[Tensor]) -> (f64, String) {
    let (mut most, mut worst) = (0.0, String::new());
    // A gradient that is zero but for rounding (a bias before a norm) is measured by the largest of all.
    let largest = expected.iter().flat_map(|g| g.to_f64().unwrap()).fold(0.0f64, |m, g| m.max(g.abs()));
    for ((name, grad), expected) in names.iter().zip(grads).zip(expected.iter()) {
        let expected_values = expected.to_f64().unwrap();
        let own = expected_values.iter().fold(0.0f64, |m, g| m.max(g.abs()));
        let size = if own < 1e-5 * largest { largest } else { own };
        let zeros = vec![0.0; expected_values.len()];
        let grad = grad.as_ref().unwrap_or(&zeros);
        let off = distance(grad, &expected_values) / size;
        if off > most || off.is_nan() {
            (most, worst) = (off, name.to_string());
        }
    }
    (most, worst)
}

/// The largest relative distance of losses.
pub fn losses_distance(found: &[f64], expected: &[f64]) -> f64 {
    let off = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1e-6);
    found.iter().zip(expected).map(off).fold(0.0, |most, d| if d.is_nan() { d } else { most.max(d) })
}
