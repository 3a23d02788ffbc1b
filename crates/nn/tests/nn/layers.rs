//! Layers, activations and losses against PyTorch: outputs and the gradients of inputs and parameters.
//!
//! The values were made by `layers/make.py`; inputs and parameters are computed here as there.

mod padding;

use std::collections::BTreeMap;

use crate::common::{labels, uniform};
use plimsoll_graph::{DType, SoftmaxOps, TensorOps, Type};
use plimsoll_nn::{
    Activation, Conv1d, Conv2d, MultiHead, Net, Outputs, Recipe, Recurrent, Sgd, Training,
    binary_cross_entropy, dice, huber, mae, model, mse, smooth_cross_entropy, softmax_cross_entropy,
};
use plimsoll_run::{Result, Tape, Tensor};

fn golden() -> BTreeMap<String, Vec<Vec<f64>>> {
    serde_json::from_str(include_str!("layers/layers.json")).unwrap()
}

fn f32s(shape: &[usize]) -> Type {
    Type::new(DType::F32, shape)
}

/// The output and the gradients of the input and of every trained parameter.
fn run(layer: impl Fn(&mut Net, &Tensor) -> Result<Tensor> + Sync, input: &[usize]) -> Vec<Vec<f64>> {
    let whole = model(|net, x| layer(net, &x[0]));
    let params = Net::discover(&[f32s(input)], &whole).unwrap();
    // Statistics are not numbered: PyTorch's functions take none.
    let mut number = 0;
    let values: Vec<Tensor> = params
        .iter()
        .map(|p| {
            if !p.trained {
                return Tensor::zeros(p.ty.clone()).unwrap();
            }
            number += 1;
            let centre = if p.name.ends_with("gamma") { 1.0 } else { 0.0 };
            uniform(number, &p.ty, 0.5).add_scalar(centre).unwrap()
        })
        .collect();
    let x = uniform(1000, &f32s(input), 1.7);
    let tape = Tape::new();
    let trained = params.iter().zip(&values).filter(|(p, _)| p.trained).map(|(_, v)| v);
    let wrt: Vec<&Tensor> = std::iter::once(&x).chain(trained).collect();
    wrt.iter().for_each(|w| tape.watch(w).unwrap());
    let mut net = Net::bound(&params, &values, true);
    let y = layer(&mut net, &x).unwrap();
    let weights = uniform(3000, y.ty(), 1.0);
    let target = y.mul(&weights).unwrap().sum(&[], false).unwrap();
    let grads = tape.gradient(&target, &wrt).unwrap();
    std::iter::once(&y).chain(&grads).map(|t| t.to_f64().unwrap()).collect()
}

fn check(name: &str, input: &[usize], layer: impl Fn(&mut Net, &Tensor) -> Result<Tensor> + Sync) {
    let (golden, ours) = (golden(), run(layer, input));
    assert_eq!(golden[name].len(), ours.len(), "{name}: tensors");
    for (i, (torch, ours)) in golden[name].iter().zip(&ours).enumerate() {
        assert_eq!(torch.len(), ours.len(), "{name}: elements of tensor {i}");
        let scale = torch.iter().fold(1e-2f64, |m, x| m.max(x.abs()));
        for (torch, ours) in torch.iter().zip(ours) {
            assert!((torch - ours).abs() <= 2e-5 * scale, "{name} tensor {i}: {ours}, PyTorch {torch}");
        }
    }
}

const IMAGE: [usize; 4] = [2, 6, 5, 4];
const SEQUENCE: [usize; 3] = [2, 5, 8];

#[test]
fn convolutions_of_images_are_pytorchs() {
    check("conv2d_same", &IMAGE, |net, x| net.conv2d("c", x, Conv2d::new(3, 3).same()));
    check("conv2d_strided", &IMAGE, |net, x| {
        net.conv2d("c", x, Conv2d::new(3, 3).stride(2).pad(1).no_bias())
    });
    check("conv2d_dilated", &IMAGE, |net, x| net.conv2d("c", x, Conv2d::new(3, 2).dilation(2)));
    check("conv2d_grouped", &IMAGE, |net, x| net.conv2d("c", x, Conv2d::new(6, 3).groups(2)));
    check("depthwise", &IMAGE, |net, x| net.depthwise_conv2d("c", x, Conv2d::new(8, 3).pad(1)));
    check("separable", &IMAGE, |net, x| net.separable_conv2d("c", x, Conv2d::new(3, 3).pad(1)));
}

#[test]
fn convolutions_of_sequences_are_pytorchs() {
    check("conv1d", &SEQUENCE, |net, x| net.conv1d("c", x, Conv1d::new(3, 3).stride(2).pad(1)));
    check("conv1d_grouped", &SEQUENCE, |net, x| net.conv1d("c", x, Conv1d::new(4, 2).groups(4).dilation(2)));
}

#[test]
fn transposed_convolutions_are_pytorchs() {
    check("transposed", &IMAGE, |net, x| net.conv_transpose2d("c", x, Conv2d::new(3, 3).stride(2).pad(1)));
    check("transposed_grouped", &IMAGE, |net, x| {
        net.conv_transpose2d("c", x, Conv2d::new(4, 2).groups(2).stride(2))
    });
}

#[test]
fn norms_are_pytorchs() {
    check("batch_norm", &IMAGE, |net, x| net.batch_norm("n", x));
    check("group_norm", &IMAGE, |net, x| net.group_norm("n", x, 2));
    check("rms_norm", &SEQUENCE, |net, x| net.rms_norm("n", x));
}

#[test]
fn recurrent_layers_are_pytorchs() {
    check("lstm_last", &SEQUENCE, |net, x| net.lstm("r", x, Recurrent::last(3)));
    check("lstm_both", &SEQUENCE, |net, x| net.lstm("r", x, Recurrent::all(3).bidirectional()));
    check("lstm_both_last", &SEQUENCE, |net, x| net.lstm("r", x, Recurrent::last(3).bidirectional()));
    check("gru", &SEQUENCE, |net, x| net.gru("r", x, Recurrent::all(3)));
    check("gru_both_last", &SEQUENCE, |net, x| net.gru("r", x, Recurrent::last(3).bidirectional()));
}

#[test]
fn attention_is_pytorchs() {
    check("self_attention", &SEQUENCE, |net, x| net.self_attention("a", x, MultiHead::new(2)));
    check("cross_attention", &SEQUENCE, |net, x| {
        let (x, context) = (x.narrow(1, 0, 3)?, x.narrow(1, 3, 5)?);
        net.cross_attention("a", &x, &context, MultiHead::new(4))
    });
}

#[test]
fn activations_are_pytorchs() {
    for (name, f, scale) in [
        ("relu6", Activation::Relu6, 4.0),
        ("elu", Activation::Elu(0.7), 1.0),
        ("selu", Activation::Selu, 1.0),
        ("mish", Activation::Mish, 1.0),
        ("hard_sigmoid", Activation::HardSigmoid, 3.0),
        ("hard_swish", Activation::HardSwish, 3.0),
        ("softsign", Activation::Softsign, 1.0),
    ] {
        check(name, &[40], |_, x| f.apply(&x.mul_scalar(scale)?));
    }
}

#[test]
fn losses_are_pytorchs() {
    let ty = f32s(&[6, 5]);
    let classes = || labels(5000, &Type::new(DType::I64, [6]), 5);
    let spread = || uniform(5000, &ty, 1.7).softmax(-1).unwrap();
    let target = || uniform(5000, &ty, 0.5).add_scalar(0.5).unwrap();
    check("cross_entropy", &[6, 5], |_, x| softmax_cross_entropy(x, &classes()));
    check("cross_entropy_dense", &[6, 5], |_, x| softmax_cross_entropy(x, &spread()));
    check("cross_entropy_smooth", &[6, 5], |_, x| smooth_cross_entropy(0.1)(x, &classes()));
    check("cross_entropy_smooth_dense", &[6, 5], |_, x| smooth_cross_entropy(0.1)(x, &spread()));
    check("binary_cross_entropy", &[6, 5], |_, x| binary_cross_entropy(x, &target()));
    check("mse", &[6, 5], |_, x| mse(x, &target()));
    check("mae", &[6, 5], |_, x| mae(x, &target()));
    check("huber", &[6, 5], |_, x| huber(0.7)(x, &target()));
    check("dice", &[6, 5], |_, x| dice(x, &target()));
}

#[test]
fn running_statistics_follow_the_batch_and_are_used_outside_training() {
    let (x, y) = (f32s(&[4, 3, 2]), Type::new(DType::I64, [4, 3]));
    let normed = |net: &mut Net, x: &[Tensor]| net.batch_norm_with("norm", &x[0], 0.25, 1e-3);
    let recipe = Recipe::cross_entropy(Sgd::new(0.0), x.clone(), y.clone());
    let mut training = Training::new(normed, recipe, 1).unwrap();
    let (input, y) = (uniform(1, &x, 1.7), labels(2, &y, 2));
    training.step(&[&input], &y).unwrap();
    let data = input.to_f64().unwrap();
    let value = |i: usize| training.values()[i].to_f64().unwrap();
    let mut net = Net::bound(training.params(), training.values(), false);
    let output = normed(&mut net, std::slice::from_ref(&input)).unwrap().to_f64().unwrap();
    for c in 0..2 {
        let channel: Vec<f64> = data.iter().skip(c).step_by(2).copied().collect();
        let mean = channel.iter().sum::<f64>() / 12.0;
        let var = channel.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 11.0;
        let (running_mean, running_var) = (0.25 * mean, 0.75 + 0.25 * var);
        assert!((value(2)[c] - running_mean).abs() < 1e-6 && (value(3)[c] - running_var).abs() < 1e-6);
        let expected = (data[c] - running_mean) / (running_var + 1e-3).sqrt();
        assert!((output[c] - expected).abs() < 1e-5, "{} {expected}", output[c]);
    }
}

#[test]
fn wrong_arguments_are_errors_that_name_them() {
    let refused = |shape: &[usize], f: fn(&mut Net, &Tensor) -> Result<Tensor>| -> String {
        let layer = model(move |net, x| f(net, &x[0]).map(Outputs::from));
        Net::discover(&[f32s(shape)], &layer).unwrap_err().to_string()
    };
    let expect = |error: String, part: &str| assert!(error.contains(part), "{error:?} without {part:?}");
    expect(refused(&[], |net, x| net.dense("d", x, 3, true)), "channels");
    expect(refused(&IMAGE, |net, x| net.conv2d("c", x, Conv2d::new(4, 3).groups(3))), "3 groups");
    expect(refused(&IMAGE, |net, x| net.conv2d("c", x, Conv2d::new(4, 3).groups(0))), "0 groups");
    expect(refused(&IMAGE, |net, x| net.conv2d("c", x, Conv2d::new(4, 3).stride(0))), "stride");
    expect(refused(&IMAGE, |net, x| net.conv2d("c", x, Conv2d::new(4, 9))), "window");
    expect(refused(&SEQUENCE, |net, x| net.conv2d("c", x, Conv2d::new(4, 3))), "[2, 5, 8]");
    expect(refused(&IMAGE, |net, x| net.conv1d("c", x, Conv1d::new(4, 3))), "[2, 6, 5, 4]");
    expect(refused(&IMAGE, |net, x| net.conv_transpose2d("c", x, Conv2d::new(4, 3).groups(5))), "5 groups");
    expect(refused(&IMAGE, |net, x| net.group_norm("n", x, 3)), "3 groups");
    expect(refused(&IMAGE, |net, x| net.lstm("r", x, Recurrent::all(3))), "[B, T, C]");
    expect(refused(&SEQUENCE, |net, x| net.self_attention("a", x, MultiHead::new(3))), "3 heads");
    expect(refused(&SEQUENCE, |net, x| net.self_attention("a", x, MultiHead::new(0))), "0 heads");
    expect(refused(&SEQUENCE, |net, x| net.dropout("d", x, 1.0)), "rate");
    expect(refused(&SEQUENCE, |net, x| net.spatial_dropout("d", x, -0.1)), "rate");
    expect(refused(&SEQUENCE, |net, x| net.embedding("e", x, 3, 4)), "ind");
    expect(refused(&SEQUENCE, |net, x| net.residual("r", x, |net, x| net.dense("d", x, 4, true))), "skip");
    expect(
        refused(&SEQUENCE, |net, x| {
            net.dense("d", x, 8, true)?;
            net.dense("d", x, 9, true)
        }),
        "elsewhere",
    );
    expect(refused(&SEQUENCE, |_, x| mse(x, &x.narrow(1, 0, 1)?)), "targets");
    expect(refused(&SEQUENCE, |_, x| smooth_cross_entropy(1.5)(x, x)), "1.5");
}

#[test]
fn a_net_without_a_key_says_so_where_a_layer_drops() {
    let x = uniform(1, &f32s(&SEQUENCE), 1.0);
    let error = Net::bound(&[], &[], true).dropout("drop", &x, 0.5).unwrap_err().to_string();
    assert!(error.contains("drop") && error.contains("key"), "{error}");
    let same = Net::bound(&[], &[], false).dropout("drop", &x, 0.5).unwrap();
    assert_eq!(
        same.to_vec::<f32>().unwrap(),
        x.to_vec::<f32>().unwrap(),
        "nothing is dropped outside training"
    );
}

#[test]
fn a_mask_depends_on_the_samples_index_and_the_layers_path_alone() {
    let ones = |n: usize| Tensor::full(f32s(&[n, 3, 5]), 1.0).unwrap();
    let key = |step: i64, first: i64| Tensor::from_slice(&[42, step, first], [3]).unwrap();
    type Drop = fn(&mut Net, &str, &Tensor) -> Result<Tensor>;
    let layers: [Drop; 2] =
        [|net, name, x| net.dropout(name, x, 0.5), |net, name, x| net.spatial_dropout(name, x, 0.5)];
    for layer in layers {
        let draw = |name: &str, n: usize, step: i64, first: i64| {
            let mut net = Net::bound(&[], &[], true).key(key(step, first));
            layer(&mut net, name, &ones(n)).unwrap().to_vec::<f32>().unwrap()
        };
        let whole = draw("a", 8, 0, 0);
        let pieces = [draw("a", 3, 0, 0), draw("a", 4, 0, 3), draw("a", 1, 0, 7)].concat();
        assert_eq!(whole, pieces);
        assert_ne!(whole, draw("b", 8, 0, 0), "another layer");
        assert_ne!(whole, draw("a", 8, 1, 0), "another step");
    }
    let mut net = Net::bound(&[], &[], true).key(key(0, 0));
    let spatial = net.spatial_dropout("a", &ones(8), 0.5).unwrap().to_vec::<f32>().unwrap();
    assert!(
        spatial.chunks(15).all(|s| s[..5] == s[5..10] && s[..5] == s[10..]),
        "one mask for all positions"
    );
    let again = net.spatial_dropout("a", &ones(8), 0.5).unwrap().to_vec::<f32>().unwrap();
    assert_ne!(spatial, again, "a layer that is used twice draws twice");
}

#[test]
fn a_layer_of_no_units_is_refused_by_name() {
    let x = Type::new(DType::F32, [4, 2]);
    let empty = model(|net, x| net.dense("one", &x[0], 0, true));
    let why = Net::discover(&[x], &empty).unwrap_err().to_string();
    assert!(why.contains("one/weight as f32[2, 0]") && why.contains("above 0"), "{why}");
    let huge = model(|net, x| net.dense("one", &x[0], usize::MAX / 2, true));
    let why = Net::discover(&[Type::new(DType::F32, [4, 2])], &huge).unwrap_err().to_string();
    assert!(why.contains("one/weight as f32[2, 9223372036854775807]") && why.contains("smaller"), "{why}");
}
