//! Models of our own layers become Keras files; `KEEP_WRITTEN=folder` keeps them with inputs and outputs for Keras to check.

use std::io::Write;
use std::path::{Path, PathBuf};

use plimsoll_formats::{Element, npy};
use plimsoll_graph::{DType, RandomOps, TensorOps, Type};
use plimsoll_keras::{Export, KerasModel};
use plimsoll_nn::{Activation, Conv2d, Model, Net, Param, Recurrent, Sequential, model, zoo};
use plimsoll_run::Tensor;

fn written(name: &str) -> PathBuf {
    match std::env::var_os("KEEP_WRITTEN") {
        Some(folder) => Path::new(&folder).join(name),
        None => std::env::temp_dir().join(format!("plimsoll-keras-{}-{name}", std::process::id())),
    }
}

/// Values that hide nothing: no zeros, no ones.
fn drawn(ty: &Type, model: &impl Model) -> (Vec<Param>, Vec<Tensor>) {
    let params = Net::discover(std::slice::from_ref(ty), model).unwrap();
    let key = Tensor::from_slice(&[3i64, 0, 0], [3]).unwrap();
    let draw = |(i, p): (usize, &Param)| {
        let x = key.random_uniform(p.ty.clone(), i as u32, -0.3, 0.3).unwrap();
        if p.name.ends_with("var") || p.name.ends_with("gamma") { x.add_scalar(1.0).unwrap() } else { x }
    };
    let values = params.iter().enumerate().map(draw).collect();
    (params, values)
}

fn save_array(path: &Path, tensor: &Tensor) {
    let mut file = std::fs::File::create(path).unwrap();
    let element = Element::from(tensor.dtype());
    npy::write_header(&mut file, element, tensor.shape()).unwrap();
    file.write_all(&tensor.to_bytes().unwrap()).unwrap();
}

fn export(name: &str, ty: Type, export: &Export, ours: &impl Model) {
    let (params, values) = drawn(&ty, ours);
    let path = written(&format!("export-{name}.keras"));
    export.write(&path, ours, &params, &values).unwrap();
    let keras = KerasModel::open(&path).unwrap();
    let x = match ty.dtype {
        DType::F32 => Tensor::from_slice(&[5i64, 0, 0], [3]).unwrap().random_normal(ty, 9, 0.0, 1.0).unwrap(),
        _ => {
            Tensor::from_f64(&(0..ty.elements()).map(|i| (i * 5 % 9) as f64).collect::<Vec<_>>(), ty).unwrap()
        }
    };
    let run = |model: &dyn Model, params: &[Param], values: &[Tensor]| {
        model
            .forward(&mut Net::bound(params, values, false), std::slice::from_ref(&x))
            .unwrap()
            .one()
            .unwrap()
    };
    let (a, b) = (run(ours, &params, &values), run(&keras, keras.params(), &keras.values().unwrap()));
    let far =
        a.to_f64().unwrap().iter().zip(b.to_f64().unwrap()).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
    assert!(far < 1e-5, "{name}: {far}");
    if std::env::var_os("KEEP_WRITTEN").is_some() {
        save_array(&path.with_extension("x.npy"), &x);
        save_array(&path.with_extension("y.npy"), &a);
    } else {
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_network_of_the_zoo_computes_the_same_in_a_keras_file() {
    let ours = model(|net, x| zoo::batch_norm_cnn(net, &x[0], &[4, 6], 5));
    let mut theirs = Export::new("cnn", [8, 8, 2]);
    for (i, width) in [(1, 4), (2, 6)] {
        for half in ["a", "b"] {
            let conv = Conv2d { bias: false, ..Conv2d::new(width, 3).pad(1) };
            theirs = theirs.named(&format!("conv{i}{half}")).conv2d_with(conv);
            theirs = theirs.named(&format!("norm{i}{half}")).batch_norm().relu();
        }
        theirs = theirs.max_pool2d(2);
    }
    theirs = theirs.flatten().named("out").dense(5);
    export("cnn", Type::new(DType::F32, [3, 8, 8, 2]), &theirs, &ours);
}

#[test]
fn lists_of_layers_compute_the_same_in_a_keras_file() {
    let strided = Conv2d::new(4, 3).same().stride(2);
    let ours = Sequential::new([9, 9, 1])
        .conv2d_with(strided)
        .activation(Activation::LeakyRelu(0.1))
        .avg_pool2d(2)
        .layer_norm()
        .dropout(0.3)
        .global_avg_pool2d()
        .dense(4)
        .activation(Activation::Softmax);
    let theirs = Export::new("list", [9, 9, 1])
        .conv2d_with(strided)
        .activation(Activation::LeakyRelu(0.1))
        .avg_pool2d(2)
        .layer_norm()
        .dropout(0.3)
        .global_avg_pool2d()
        .dense(4)
        .activation(Activation::Softmax);
    export("list", ours.input(3), &theirs, &ours);
    let ours = Sequential::tokens(6).embedding(9, 4).lstm(Recurrent::all(3)).gru(Recurrent::last(4)).dense(2);
    let theirs =
        Export::tokens("text", 6).embedding(9, 4).lstm(Recurrent::all(3)).gru(Recurrent::last(4)).dense(2);
    export("text", ours.input(3), &theirs, &ours);
}

#[test]
fn a_description_of_another_model_is_refused_and_leaves_nothing() {
    let ours = Sequential::new([6]).dense(4).relu().dense(3);
    let (params, values) = drawn(&ours.input(1), &ours);
    let path = written("wrong.keras");
    let refusal = |export: Export| export.write(&path, &ours, &params, &values).unwrap_err().to_string();
    let tanh = Export::new("m", [6]).dense(4).activation(Activation::Tanh).dense(3);
    assert!(refusal(tanh).contains("computes something else"));
    assert!(refusal(Export::new("m", [6]).dense(4).relu()).contains("dense2/weight"));
    assert!(refusal(Export::new("m", [6]).dense(4).relu().dense(3).dense(3)).contains("dense3/weight"));
    let error = refusal(Export::new("m", [6]).dense(4).activation(Activation::GeluTanh).dense(3));
    assert!(error.contains("no counterpart"), "{error}");
    assert!(!path.exists() && !path.with_extension("part").exists());
}
