//! Models of our own become Keras files; `KEEP_WRITTEN=folder` keeps them with inputs and outputs for Keras to check
//! (check_exported.py).

use std::io::Write;
use std::path::{Path, PathBuf};

use plimsoll_formats::{Element, npy};
use plimsoll_graph::{DType, PoolOps, RandomOps, TensorOps, Type};
use plimsoll_keras::{KerasModel, write_model};
use plimsoll_nn::{
    Activation, Conv1d, Conv2d, Init, Model, MultiHead, Net, Param, Recurrent, Sequential, model, zoo,
};
use plimsoll_run::Tensor;

fn written(name: &str) -> PathBuf {
    match std::env::var_os("KEEP_WRITTEN") {
        Some(folder) => Path::new(&folder).join(name),
        None => std::env::temp_dir().join(format!("plimsoll-keras-{}-{name}", std::process::id())),
    }
}

/// Values that hide nothing: no zeros, no ones.
fn drawn(ty: &Type, model: &(impl Model + ?Sized)) -> (Vec<Param>, Vec<Tensor>) {
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

fn export(name: &str, ty: Type, ours: &(impl Model + ?Sized)) {
    let (params, values) = drawn(&ty, ours);
    let path = written(&format!("export-{name}.keras"));
    write_model(&path, name, ours, std::slice::from_ref(&ty), &params, &values)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let keras = KerasModel::open(&path).unwrap();
    let x = match ty.dtype {
        DType::F32 => Tensor::from_slice(&[5i64, 0, 0], [3]).unwrap().random_normal(ty, 9, 0.0, 1.0).unwrap(),
        _ => {
            Tensor::from_f64(&(0..ty.elements()).map(|i| (i * 5 % 9) as f64).collect::<Vec<_>>(), ty).unwrap()
        }
    };
    fn run(model: &(impl Model + ?Sized), params: &[Param], values: &[Tensor], x: &Tensor) -> Tensor {
        let mut net = Net::bound(params, values, false);
        model.forward(&mut net, std::slice::from_ref(x)).unwrap().one().unwrap()
    }
    let (a, b) = (run(ours, &params, &values, &x), run(&keras, keras.params(), &keras.values().unwrap(), &x));
    let (far, size) = a
        .to_f64()
        .unwrap()
        .iter()
        .zip(b.to_f64().unwrap())
        .fold((0.0f64, 1.0f64), |(m, s), (a, b)| (m.max((a - b).abs()), s.max(a.abs())));
    assert!(far < 1e-5 * size, "{name}: {far} of {size}");
    if std::env::var_os("KEEP_WRITTEN").is_some() {
        save_array(&path.with_extension("x.npy"), &x);
        save_array(&path.with_extension("y.npy"), &a);
    } else {
        std::fs::remove_file(&path).unwrap();
    }
}

/// All of the zoo, at small sizes; one of them reads its embedding the other way round for its output.
#[test]
fn networks_of_the_zoo_compute_the_same_in_a_keras_file() {
    for entry in zoo::ALL {
        let small = entry.sized(|size| {
            size.width = if size.width > 0 { 8 } else { 0 };
            size.depth = size.depth.min(2);
            size.heads = size.heads.min(2);
            size.image = if size.image > 0 { 32 } else { 0 };
            size.patch = if size.patch > 0 { 8 } else { 0 };
            size.sequence = size.sequence.min(6);
            size.classes = 10;
        });
        export(entry.name, small.input(3), &small);
    }
}

#[test]
fn an_output_that_shares_the_embedding_is_another_call_of_its_layer() {
    let tied = zoo::find("gpt2").unwrap().sized(|size| {
        (size.width, size.depth, size.heads, size.sequence, size.classes) = (8, 1, 2, 6, 10);
    });
    let (params, values) = drawn(&tied.input(2), &tied);
    let path = written("tied.keras");
    write_model(&path, "tied", &tied, &[tied.input(2)], &params, &values).unwrap();
    // One table for both, so that it is trained as one again.
    let keras = KerasModel::open(&path).unwrap();
    assert_eq!(keras.params().iter().filter(|param| param.ty.shape[..] == [10, 8]).count(), 1);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn two_products_that_share_a_parameter_are_refused_by_name() {
    let shared = model(|net, x| {
        let twice = net.param("twice", [4, 4], Init::Normal(1.0))?;
        x[0].matmul(&twice)?.matmul_with(&twice, None, false, true)
    });
    let ty = Type::new(DType::F32, [2, 4]);
    let (params, values) = drawn(&ty, &shared);
    let path = written("shared.keras");
    let error = write_model(&path, "shared", &shared, &[ty], &params, &values).unwrap_err().to_string();
    assert!(error.contains("twice") && error.contains("share"), "{error}");
    assert!(!path.exists() && !path.with_extension("part").exists());
}

#[test]
fn lists_of_layers_compute_the_same_in_a_keras_file() {
    let strided = Conv2d::new(4, 3).same().stride(2);
    let ours = Sequential::new([9, 9, 2])
        .conv2d_with(strided)
        .activation(Activation::LeakyRelu(0.1))
        .residual(
            Sequential::block()
                .conv2d_with(Conv2d::new(4, 3).pad(1))
                .group_norm(2)
                .activation(Activation::Mish),
        )
        .beside(Sequential::block().separable_conv2d(Conv2d::new(3, 3).same()))
        .avg_pool2d(2)
        .layer_norm()
        .dropout(0.3)
        .upsample2d(2, plimsoll_graph::ops::ResizeMode::Nearest)
        .conv_transpose2d(Conv2d::new(3, 3).stride(2))
        .spatial_dropout(0.1)
        .global_max_pool2d()
        .rms_norm()
        .dense(4)
        .activation(Activation::Elu(0.5))
        .activation(Activation::Softmax);
    export("list", ours.input(3), &ours);
    let ours = Sequential::tokens(6)
        .embedding(9, 4)
        .conv1d_with(Conv1d::new(4, 3).pad(1))
        .lstm(Recurrent::all(3).bidirectional())
        .gru(Recurrent::all(4))
        .self_attention(MultiHead::new(2))
        .gru(Recurrent::last(3).bidirectional())
        .activation(Activation::GeluTanh)
        .dense(2);
    export("text", ours.input(3), &ours);
}

/// Functions of one's own: parameters without a layer, arithmetic, slices, reductions.
#[test]
fn functions_of_ones_own_compute_the_same_in_a_keras_file() {
    let ours = model(|net, x| {
        let w = net.param("w", [6, 5], Init::Normal(1.0))?;
        let scale = net.param("scale", [5], Init::Constant(1.0))?;
        let y = x[0].matmul(&w)?.mul(&scale)?.add_scalar(0.5)?;
        let z = net.dense("inner", &y.tanh()?, 5, true)?.rsub_scalar(1.0)?;
        let both = Tensor::concat(&[&y.mul(&z)?, &z.square()?.narrow(1, 1, 3)?], -1)?;
        both.div(&both.abs()?.add_scalar(1.0)?.sum(&[1], true)?)
    });
    export("own", Type::new(DType::F32, [3, 6]), &ours);
}

#[test]
fn what_keras_has_no_layer_for_is_refused_by_name_and_leaves_nothing() {
    let path = written("refused.keras");
    let refusal = |ty: Type, ours: &dyn Model| {
        let (params, values) = drawn(&ty, ours);
        write_model(&path, "refused", ours, &[ty], &params, &values).unwrap_err().to_string()
    };
    let image = Type::new(DType::F32, [2, 6, 6, 2]);
    let pooled = model(|net, x| {
        let y = net.conv2d("conv", &x[0], Conv2d::new(2, 3))?;
        y.max_pool2d([3, 3], [2, 2], plimsoll_graph::Padding::all(1))
    });
    let error = refusal(image.clone(), &pooled);
    assert!(error.contains("max_pool") && error.contains("negative"), "{error}");
    let mixed = model(|net, x| net.dense("out", &x[0].reshape([x[0].shape()[0] * 6, 12])?, 2, true));
    assert!(refusal(image.clone(), &mixed).contains("each sample"));
    let constant = model(|net, x| {
        let y = net.dense("out", &x[0], 2, true)?;
        y.add(&Tensor::from_slice(&[1.0f32, 2.0], [2])?)
    });
    assert!(refusal(image, &constant).contains("constants"));
    assert!(!path.exists() && !path.with_extension("part").exists());
}
