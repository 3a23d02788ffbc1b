//! Every model is held against what Keras computed with it; see make_fixtures.py.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{Arrays, compare, outputs_distance, predict, types};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_keras::{Compiled, KerasModel};
use plimsoll_nn::{Measure, Model, Net, Outcome, Precision};
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
    two_inputs_and_two_weighted_outputs_agree: "heads" "heads.keras";
    outputs_by_name_agree: "named_heads" "named_heads.keras";
    one_loss_for_two_outputs_agrees: "twins" "twins.keras";
    an_output_without_a_loss_agrees: "partial" "partial.keras";
    ftrl_agrees: "ftrl" "ftrl.keras";
    a_legacy_file_agrees: "legacy" "legacy.h5";
    a_legacy_file_of_recurrent_layers_agrees: "legacy_rnn" "legacy_rnn.h5";
    an_optimizer_in_mid_training_goes_on: "resumed" "resumed.keras";
    one_layer_in_f64_among_others_agrees: "widened" "widened.keras";
    a_compiled_schedule_is_followed: "decay" "decay.keras";
    a_schedule_goes_on_where_the_file_stopped: "risen" "risen.keras";
    layers_that_were_thawed_in_a_frozen_model_are_trained: "thawed" "thawed.keras";
    frozen_layers_in_wrappers_stay_frozen: "wrapped" "wrapped.keras";
    frozen_layers_in_wrappers_of_a_legacy_file_stay_frozen: "wrapped_legacy" "wrapped_legacy.h5";
    an_optimizer_inside_a_loss_scale_goes_on: "scaled" "scaled.keras";
    an_optimizer_inside_a_loss_scale_of_a_legacy_file_goes_on: "scaled_legacy" "scaled_legacy.h5";
    a_cast_to_the_same_type_keeps_the_mask: "recast" "recast.keras";
    volumes_and_channels_first_agree: "volumes" "volumes.keras";
    cells_and_averages_of_weights_agree: "cells" "cells.keras";
    a_mask_that_reaches_the_loss_agrees: "hidden" "hidden.keras";
    constraints_and_penalties_of_outputs_agree: "held" "held.keras";
    a_kernel_that_is_divided_by_its_largest_singular_value_agrees_under_adafactor: "spectral" "spectral.keras";
    an_optimizer_without_a_schedule_agrees: "free" "free.keras";
    sequences_that_spell_their_labels_agree: "spelled" "spelled.keras";
    a_focal_loss_and_muon_agree: "focal" "focal.keras";
    an_overlap_agrees: "overlap" "overlap.keras";
    a_model_on_every_step_layers_as_activations_and_a_renorm_agree: "inside" "inside.keras";
    numbers_in_buckets_agree: "hashed" "hashed.keras";
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

/// What is in an archive under names that begin so, without that beginning.
fn named(archive: &Path, start: &str) -> BTreeMap<String, Vec<f64>> {
    let arrays = Arrays::open(archive);
    let members = plimsoll_formats::npz::members(archive).unwrap();
    let names = members.iter().filter_map(|member| member.name.strip_prefix(start));
    names.map(|name| (name.to_string(), arrays.get(&format!("{start}{name}")))).collect()
}

/// What is counted, by name, and the loss.
fn counted(compiled: &Compiled, outcome: &Outcome<'_>) -> BTreeMap<String, f64> {
    let value = |(measure, sums): (&Measure, &Tensor)| {
        (measure.name.clone(), measure.finish(&sums.to_f64().unwrap()))
    };
    let mut found: BTreeMap<String, f64> = compiled.metrics.iter().zip(outcome.sums).map(value).collect();
    found.insert("loss".into(), outcome.loss);
    found
}

#[test]
fn losses_and_metrics_of_every_output_have_kerass_names_and_values() {
    for name in ["heads", "named_heads", "twins", "partial"] {
        let compiled = KerasModel::open(fixture(&format!("{name}.keras"))).unwrap().compiled().unwrap();
        assert!(compiled.other_metrics.is_empty(), "{:?}", compiled.other_metrics);
        let arrays = Arrays::open(&fixture(&format!("{name}.npz")));
        let (inputs, labels) = (arrays.list("x"), arrays.list("t"));
        let mut training = compiled.model.training(compiled.recipe(types(&inputs), types(&labels))).unwrap();
        let batch: Vec<&Tensor> = inputs.iter().chain(&labels).collect();
        let evaluated = counted(&compiled, &training.evaluate(&batch).unwrap());
        let expected = named(&fixture(&format!("{name}.npz")), "e_");
        assert_eq!(evaluated.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{name}");
        for (measure, value) in &evaluated {
            let far = (value - expected[measure][0]).abs();
            assert!(far <= 1e-5 * (1.0 + value.abs()), "{name}: {measure} {value}, {:?}", expected[measure]);
        }
        let expected = named(&fixture(&format!("{name}.npz")), "p_");
        for step in 0..20 {
            for (measure, value) in counted(&compiled, &training.run(&batch).unwrap()) {
                let expected = expected[&measure][step];
                let far = (value - expected).abs();
                assert!(far <= 1e-4 * (1.0 + value.abs()), "{name}: {measure} {value}, {expected} at {step}");
            }
        }
    }
}

#[test]
fn a_batch_in_pieces_has_the_losses_and_metrics_of_the_whole() {
    let compiled = KerasModel::open(fixture("named_heads.keras")).unwrap().compiled().unwrap();
    let arrays = Arrays::open(&fixture("named_heads.npz"));
    let (inputs, labels) = (arrays.list("x"), arrays.list("t"));
    let batch: Vec<&Tensor> = inputs.iter().chain(&labels).collect();
    let run = |micro_batch| {
        let mut recipe = compiled.recipe(types(&inputs), types(&labels));
        recipe.request.micro_batch = micro_batch;
        let mut training = compiled.model.training(recipe).unwrap();
        training.run(&batch).unwrap();
        (training.info().micro_batches, counted(&compiled, &training.run(&batch).unwrap()))
    };
    let ((one, whole), (three, pieces)) = (run(None), run(Some(4)));
    assert_eq!((one, three), (1, 3));
    for (name, value) in &whole {
        assert!(
            (value - pieces[name]).abs() < 1e-6 * (1.0 + value.abs()),
            "{name}: {value}, {}",
            pieces[name]
        );
    }
}

#[test]
fn labels_are_those_of_outputs_with_a_loss_or_a_metric() {
    let open = |name: &str| KerasModel::open(fixture(&format!("{name}.keras"))).unwrap();
    let model = open("partial");
    let compiled = model.compiled().unwrap();
    assert_eq!(compiled.labelled_names().collect::<Vec<_>>(), ["right"]);
    let arrays = Arrays::open(&fixture("partial.npz"));
    let (x, t) = (arrays.list("x"), arrays.list("t"));
    let step = |labels: &[Tensor]| {
        let mut training = compiled.model.training(compiled.recipe(types(&x), types(labels))).unwrap();
        let batch: Vec<&Tensor> = x.iter().chain(labels).collect();
        training.run(&batch).unwrap().loss
    };
    assert_eq!(step(&t), step(&t[1..]), "labels of an output without a loss may be left out");
    let named = open("named_heads");
    assert_eq!(named.compiled().unwrap().labelled_names().collect::<Vec<_>>(), ["score", "spare", "tags"]);
    assert_eq!(
        (open("heads").input_names(), named.input_names()),
        (vec!["image".into(), "meta".into()], vec!["row".into()])
    );
}

#[test]
fn a_score_for_every_class_is_a_metric_for_each() {
    let compiled = KerasModel::open(fixture("unknown_metric.keras")).unwrap().compiled().unwrap();
    let names: Vec<&str> = compiled.metrics.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["mae", "f1_score[0]", "f1_score[1]", "precision_1"]);
    assert!(compiled.other_metrics.is_empty());
}

#[test]
fn regularizers_count_in_evaluation_and_not_in_predictions() {
    let model = KerasModel::open(fixture("heads.keras")).unwrap();
    let arrays = Arrays::open(&fixture("heads.npz"));
    let compiled = model.compiled().unwrap();
    let (inputs, labels) = (arrays.list("x"), arrays.list("t"));
    let mut training = compiled.model.training(compiled.recipe(types(&inputs), types(&labels))).unwrap();
    let found =
        counted(&compiled, &training.evaluate(&inputs.iter().chain(&labels).collect::<Vec<_>>()).unwrap());
    let bare = 0.25 * found["age_loss"] + 1.5 * found["class_loss"];
    assert!(found["loss"] > bare + 0.1, "{found:?}");
    assert_eq!(training.predict(&inputs.iter().collect::<Vec<_>>()).unwrap().len(), 2);
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

/// Models that can be used, but were compiled with what cannot be obeyed.
#[test]
fn what_cannot_be_obeyed_in_training_is_refused_by_name() {
    for (name, expected) in [
        ("own_loss", &["the loss", "My>Huber", "user's own"][..]),
        ("own_optimizer", &["the optimizer", "My>SGD", "user's own"]),
        ("own_schedule", &["the learning rate", "My>ExponentialDecay", "user's own"]),
        ("loss_none", &["the loss", "reduction", "null", "one number"]),
    ] {
        let model = KerasModel::open(fixture(&format!("refused_{name}.keras"))).expect("a model");
        let error = model.compiled().err().map(|error| error.to_string()).expect("a refusal");
        for part in expected {
            assert!(error.contains(part), "{name}: {error}");
        }
    }
    let compiled = KerasModel::open(fixture("refused_own_metric.keras")).unwrap().compiled().unwrap();
    assert_eq!(compiled.metrics.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["mae"]);
    assert_eq!(compiled.other_metrics, ["mean_squared_error"]);
}

#[test]
fn what_is_not_known_is_refused_by_name_and_place() {
    for (name, expected) in [
        ("lambda", &["code", "Lambda", "never run", "in its place"][..]),
        ("own", &["deep/odd", "Own", "user's own", "build it"]),
        ("stateful", &["kept", "stateful", "outlives the batch"]),
        ("first", &["turned", "Conv2D", "activation", "another axis"]),
        ("own_layer", &["mine", "Dense", "user's own"]),
        ("own_model", &["mine", "My>Sequential", "user's own"]),
        ("own_activation", &["activation", "My>relu", "user's own"]),
        ("own_regularizer", &["kernel_regularizer", "L2", "user's own"]),
    ] {
        let error = KerasModel::open(fixture(&format!("refused_{name}.keras"))).unwrap_err().to_string();
        for part in expected {
            assert!(error.contains(part), "{name}: {error}");
        }
    }
}
