//! Sequences with padding behind them: every layer gives what it gives for each sequence alone, and so do the gradients of its weights.

use crate::common::uniform;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{
    Conv1d, Description, Loss, MultiHead, Net, Recurrent, Sequential, model, padded_cross_entropy,
    softmax_cross_entropy,
};
use plimsoll_run::{Result, Tape, Tensor};

const LENGTHS: [usize; 4] = [5, 1, 7, 3];
const WIDTH: usize = 6;

/// One output a sequence, `[B, ..]`.
type Layer = fn(&mut Net, &Tensor) -> Result<Tensor>;

const LAYERS: [(&str, Layer); 6] = [
    ("lstm", |net, x| net.lstm("l", x, Recurrent::last(4))),
    ("gru", |net, x| net.gru("l", x, Recurrent::last(4))),
    ("lstm in both directions", |net, x| net.lstm("l", x, Recurrent::last(4).bidirectional())),
    ("all outputs in both directions", |net, x| {
        let all = net.gru("l", x, Recurrent::all(4).bidirectional())?;
        net.mean_over_time("mean", &all)
    }),
    ("attention", |net, x| {
        let y = net.self_attention("l", x, MultiHead::new(2))?;
        net.mean_over_time("mean", &y)
    }),
    ("causal attention and dense layers", |net, x| {
        let y = net.self_attention("l", x, MultiHead::new(3).causal())?;
        let y = net.layer_norm("n", &y)?;
        let y = net.dense("d", &y, 5, true)?.tanh()?;
        net.mean_over_time("mean", &y)
    }),
];

fn filled(lengths: &[usize], longest: usize) -> Tensor {
    let flags: Vec<i64> = lengths.iter().flat_map(|&n| (0..longest).map(move |t| i64::from(t < n))).collect();
    let flags = Tensor::from_slice(&flags, [lengths.len(), longest]).unwrap();
    flags.cast(DType::Bool).unwrap()
}

/// Outputs of a batch and the gradients of the weights for the sum of outputs, each times a number of its own.
fn pass(layer: Layer, x: &Tensor, filled: Option<&Tensor>, weights: &Tensor) -> (Vec<f64>, Vec<Vec<f64>>) {
    let whole = model(|net, x| layer(net, &x[0]));
    let params = Net::discover(&[x.ty().clone()], &whole).unwrap();
    let values: Vec<Tensor> = params.iter().zip(1..).map(|(p, i)| uniform(i, &p.ty, 0.5)).collect();
    let tape = Tape::new();
    values.iter().for_each(|w| tape.watch(w).unwrap());
    let mut net = Net::bound(&params, &values, true);
    let y = match filled {
        None => layer(&mut net, x).unwrap(),
        Some(filled) => net.padded(filled, |net| layer(net, x)).unwrap(),
    };
    let width = y.shape()[1];
    let weights = weights.narrow(1, 0, width).unwrap();
    let sum = y.mul(&weights).unwrap().sum(&[], false).unwrap();
    let grads = tape.gradient(&sum, &values.iter().collect::<Vec<_>>()).unwrap();
    (y.to_f64().unwrap(), grads.iter().map(|g| g.to_f64().unwrap()).collect())
}

fn close(a: &[f64], b: &[f64], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 2e-5 * a.abs().max(1.0), "{what}: {a} is not {b}");
    }
}

#[test]
fn padding_changes_neither_outputs_nor_gradients() {
    let longest = 9;
    let x = uniform(1000, &Type::new(DType::F32, [LENGTHS.len(), longest, WIDTH]), 1.5);
    let weights = uniform(2000, &Type::new(DType::F32, [LENGTHS.len(), 16]), 1.0);
    for (name, layer) in LAYERS {
        let (together, grads) = pass(layer, &x, Some(&filled(&LENGTHS, longest)), &weights);
        let mut sums: Vec<Vec<f64>> = grads.iter().map(|g| vec![0.0; g.len()]).collect();
        let width = together.len() / LENGTHS.len();
        for (i, length) in LENGTHS.into_iter().enumerate() {
            let one = x.narrow(0, i, i + 1).unwrap().narrow(1, 0, length).unwrap();
            let (alone, own) = pass(layer, &one, None, &weights.narrow(0, i, i + 1).unwrap());
            close(&together[i * width..(i + 1) * width], &alone, &format!("{name}, sequence {i}"));
            for (sum, own) in sums.iter_mut().zip(own) {
                sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            }
        }
        for (i, (sum, grad)) in sums.iter().zip(&grads).enumerate() {
            close(sum, grad, &format!("{name}, gradient of weight {i}"));
        }
    }
}

#[test]
fn layers_that_would_read_padding_are_errors_that_say_so() {
    let tokens = |model: Sequential| Net::discover(&[model.input(2)], &model).map(drop);
    let read = || Sequential::tokens_up_to(8).padding(0).embedding(9, 4);
    let convolved = read().conv1d_with(Conv1d::new(4, 3));
    for (what, model) in [
        ("a convolution", convolved),
        ("batch norm", read().batch_norm()),
        ("group norm", read().group_norm(2)),
        ("flatten", read().flatten()),
        ("pooling", read().max_pool1d(2)),
    ] {
        let why = tokens(model).unwrap_err().to_string();
        assert!(why.contains(what) && why.contains("padding"), "{why}");
    }
    // Behind a layer that gives one output a sequence there is no padding any more.
    tokens(read().lstm(Recurrent::last(4)).batch_norm().dense(2)).unwrap();
    tokens(read().global_avg_pool1d().flatten().dense(2)).unwrap();
    let why = tokens(Sequential::new([8, 4]).padding(0)).unwrap_err().to_string();
    assert!(why.contains("before the embedding"), "{why}");
    // Too long, or of other axes.
    let model = read().global_avg_pool1d().dense(2);
    let long = Net::discover(&[Type::new(DType::I64, [2, 9])], &model).unwrap_err().to_string();
    assert!(long.contains("or shorter"), "{long}");
    Net::discover(&[Type::new(DType::I64, [2, 5])], &model).unwrap();
}

#[test]
fn a_layer_that_leaves_out_padding_reads_what_is_filled() {
    let model = Sequential::tokens_up_to(8).padding(0).embedding(9, 4).lstm(Recurrent::last(4)).dense(2);
    let found = Description::new(&[model.input(2)], &model).unwrap();
    let inputs: Vec<usize> = found.calls.iter().map(|call| call.inputs.len()).collect();
    assert_eq!(inputs, [1, 2, 1]);
}

#[test]
fn places_without_a_label_do_not_count() {
    let logits = uniform(1, &Type::new(DType::F32, [2, 3, 4]), 1.0);
    let labels = Tensor::from_slice(&[1i64, 3, -1, 2, -1, -1], [2, 3]).unwrap();
    let loss =
        padded_cross_entropy(-1).loss(std::slice::from_ref(&logits), &[labels]).unwrap().item().unwrap();
    let part = |sample: usize, places: usize, labels: &[i64]| {
        let logits = logits.narrow(0, sample, sample + 1).unwrap().narrow(1, 0, places).unwrap();
        let labels = Tensor::from_slice(labels, [1, places]).unwrap();
        softmax_cross_entropy(&logits, &labels).unwrap().item().unwrap()
    };
    let expected = 0.5 * (part(0, 2, &[1, 3]) + part(1, 1, &[2]));
    assert!((loss - expected).abs() < 1e-6, "{loss} is not {expected}");
    // A sequence of padding alone is no number's fault.
    let empty = Tensor::from_slice(&[-1i64; 6], [2, 3]).unwrap();
    assert_eq!(padded_cross_entropy(-1).loss(&[logits], &[empty]).unwrap().item().unwrap(), 0.0);
}
