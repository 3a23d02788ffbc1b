//! Every model is held against what Keras computed with it; see make_fixtures.py.

mod common;

use std::path::{Path, PathBuf};

use common::{Arrays, compare, outputs_distance, predict};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_keras::KerasModel;
use plimsoll_nn::{Model, Net, Precision};
use plimsoll_run::Tensor;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Forward to 1e-5, gradients to 1e-4 relative, the losses of 20 steps to 1e-4 relative.
fn agrees(name: &str, file: &str) {
    let model = KerasModel::open(fixture(file)).expect("a model");
    let found = compare(&model, &Arrays::open(&fixture(&format!("{name}.npz"))));
    println!("{name}: {found:?}");
    assert!(found.forward <= 1e-5, "{name}: {found:?}");
    assert!(found.gradient <= 1e-4, "{name}: {found:?}");
    assert!(found.losses <= 1e-4, "{name}: {found:?}");
    assert!(found.after <= 1e-3, "{name}: {found:?}");
}

macro_rules! agree {
    ($( $test:ident: $name:literal $file:literal; )+) => {
        $( #[test]
        fn $test() {
            agrees($name, $file);
        } )+
    };
}

agree! {
    a_dense_network_agrees: "mlp" "mlp.keras";
    a_convolutional_network_agrees: "cnn" "cnn.keras";
    convolutions_of_every_kind_agree: "convs" "convs.keras";
    recurrent_layers_agree: "rnn" "rnn.keras";
    recurrent_layers_with_unusual_settings_agree: "rnn_odd" "rnn_odd.keras";
    attention_agrees: "attention" "attention.keras";
    nested_shared_and_frozen_layers_agree: "branches" "branches.keras";
    norms_agree: "norms" "norms.keras";
    activations_agree: "activations" "activations.keras";
    masks_agree: "masked" "masked.keras";
    merges_and_operations_agree: "merges" "merges.keras";
    adam_with_the_largest_moment_agrees: "amsgrad" "amsgrad.keras";
    adam_that_looks_ahead_agrees: "nadam" "nadam.keras";
    centered_rmsprop_agrees: "centered" "centered.keras";
    poisson_loss_agrees: "poisson" "poisson.keras";
    percentage_loss_agrees: "mape" "mape.keras";
    divergence_agrees: "kl" "kl.keras";
    a_legacy_file_agrees: "legacy" "legacy.h5";
    a_legacy_file_of_recurrent_layers_agrees: "legacy_rnn" "legacy_rnn.h5";
    an_optimizer_in_mid_training_goes_on: "resumed" "resumed.keras";
    one_layer_in_f64_among_others_agrees: "widened" "widened.keras";
}

/// In f64 little is left of rounding: TensorFlow's gelu rounds √2 to f32 also there, and Keras its optimizers' settings.
#[test]
fn models_in_f64_agree_far_beyond_f32() {
    for (name, file) in [("double", "double.keras"), ("double_legacy", "double_legacy.h5")] {
        let model = KerasModel::open(fixture(file)).unwrap();
        assert!(model.params().iter().all(|p| p.ty.dtype == DType::F64), "{name}");
        assert_eq!(model.compiled().unwrap().precision, Precision::F64);
        let arrays = Arrays::open(&fixture(&format!("{name}.npz")));
        let found = compare(&model, &arrays);
        println!("{name}: {found:?}");
        assert!(found.forward <= 1e-9 && found.gradient <= 1e-7, "{name}: {found:?}");
        assert!(found.losses <= 1e-7 && found.after <= 1e-7, "{name}: {found:?}");
        // The same model in f32 is as far off as f32 is.
        let narrow = model.with_precision(Precision::F32);
        let outputs = predict(&narrow, &narrow.values().unwrap(), &arrays.list("x"));
        let far = outputs_distance(&outputs, &arrays.list("y"));
        assert!(far > 1e-10 && far < 1e-5, "{name}: {far}");
    }
}

#[test]
fn layers_in_16_bits_agree_as_far_as_that_type_goes() {
    for (name, precision, most) in
        [("mixed_bf16", Precision::MixedBf16, 1e-2), ("mixed_f16", Precision::MixedF16, 2e-3)]
    {
        let model = KerasModel::open(fixture(&format!("{name}.keras"))).unwrap();
        assert_eq!(model.compiled().unwrap().precision, precision);
        let found = compare(&model, &Arrays::open(&fixture(&format!("{name}.npz"))));
        println!("{name}: {found:?}");
        assert!(
            found.forward < most && found.gradient < 5.0 * most && found.losses < most,
            "{name}: {found:?}"
        );
        // What is rounded to 16 bits is not what f32 gives.
        let wide = model.clone().with_precision(Precision::F32);
        let inputs = Arrays::open(&fixture(&format!("{name}.npz"))).list("x");
        let (a, b) = (
            predict(&model, &model.values().unwrap(), &inputs),
            predict(&wide, &wide.values().unwrap(), &inputs),
        );
        assert!(outputs_distance(&a, &b) > 1e-6, "{name}");
    }
}

#[test]
fn named_layers_compute_in_their_own_precision() {
    let model = KerasModel::open(fixture("mlp.keras")).unwrap().with_precision(Precision::MixedBf16);
    let last = model.params().last().unwrap().name.split('/').next().unwrap().to_string();
    let own = model.clone().with_layer_precisions(&[(last.clone(), Precision::F32)]).unwrap();
    let output = |model: &KerasModel| {
        let x = Tensor::zeros(model.inputs(3).unwrap()[0].clone()).unwrap();
        let mut net = Net::bound(model.params(), &model.values().unwrap(), false);
        model.forward(&mut net, &[x]).unwrap().one().unwrap().dtype()
    };
    assert_eq!((output(&model), output(&own)), (DType::BF16, DType::F32));
    // The loss takes off a last softmax where that is computed in f32, and training goes on in bf16 before it.
    let compiled = own.compiled().unwrap();
    assert!(compiled.model.gives_logits(0) && !model.compiled().unwrap().model.gives_logits(0));
    assert_eq!(compiled.precision, Precision::MixedBf16);
    let found = compare(&own, &Arrays::open(&fixture("mlp.npz")));
    assert!(found.forward < 1e-2 && found.forward > 1e-6 && found.losses < 2e-2, "{found:?}");
    let error = model.with_layer_precisions(&[("none".into(), Precision::F32)]).unwrap_err().to_string();
    assert!(error.contains("none") && error.contains(&last) && error.contains("mlp.keras"), "{error}");
}

/// Files that the format's own tests have: of Keras 2, of operations without modules, of several types.
#[test]
fn files_of_other_ages_open() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures/keras");
    for name in ["keras2.h5", "cnn.h5", "cnn.keras", "deflated.keras", "branches.keras", "branches.h5"] {
        let model = KerasModel::open(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let types: Vec<Type> = model.inputs(2).unwrap();
        let inputs: Vec<Tensor> = types.into_iter().map(|ty| Tensor::zeros(ty).unwrap()).collect();
        let outputs = predict(&model, &model.values().unwrap(), &inputs);
        assert!(outputs.iter().all(|y| y.to_f64().unwrap().iter().all(|x| x.is_finite())), "{name}");
    }
}

#[test]
fn weights_of_another_file_go_onto_a_known_model() {
    let mut model = KerasModel::open(fixture("mlp.keras")).unwrap();
    let arrays = Arrays::open(&fixture("other.npz"));
    let before =
        outputs_distance(&predict(&model, &model.values().unwrap(), &arrays.list("x")), &arrays.list("y"));
    assert!(before > 1e-3, "other weights give other outputs, not {before}");
    model.load_weights(fixture("other.weights.h5")).unwrap();
    let after =
        outputs_distance(&predict(&model, &model.values().unwrap(), &arrays.list("x")), &arrays.list("y"));
    assert!(after < 1e-5, "{after}");
    let error = KerasModel::open(fixture("cnn.keras")).unwrap().load_weights(fixture("other.weights.h5"));
    assert!(error.is_err());
    let error = KerasModel::open(fixture("other.weights.h5")).unwrap_err().to_string();
    assert!(error.contains("weights without a model"), "{error}");
}

#[test]
fn what_is_not_known_is_refused_by_name_and_place() {
    for (name, expected) in [
        ("lambda", &["code", "Lambda", "never run", "in its place"][..]),
        ("own", &["deep/odd", "Own", "user's own", "build it"]),
        ("conv3d", &["solid", "Conv3D", "three axes", "fold one axis"]),
        ("constraint", &["held", "kernel_constraint", "without it"]),
        ("first", &["turned", "Conv2D", "channels_last", "move the weights"]),
    ] {
        let error = KerasModel::open(fixture(&format!("refused_{name}.keras"))).unwrap_err().to_string();
        for part in expected {
            assert!(error.contains(part), "{name}: {error}");
        }
    }
}
