//! A trained model goes back into the same file; see check_written.py for what Keras says of it.

mod common;

use std::path::{Path, PathBuf};

use common::{Arrays, compare, outputs_distance, predict, types};
use plimsoll_formats::keras::{Contents, KerasFile, write_keras};
use plimsoll_graph::{DType, Type};
use plimsoll_keras::{KerasModel, inspect};
use plimsoll_nn::Training;
use plimsoll_run::Tensor;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A file in the folder for temporary ones, or in that which KEEP_WRITTEN names, where check_written.py finds it.
fn written(name: &str) -> PathBuf {
    match std::env::var_os("KEEP_WRITTEN") {
        Some(folder) => Path::new(&folder).join(name),
        None => std::env::temp_dir().join(format!("plimsoll-keras-{}-{name}", std::process::id())),
    }
}

fn done(path: &Path) {
    if std::env::var_os("KEEP_WRITTEN").is_none() {
        std::fs::remove_file(path).expect("removing what was written");
    }
}

fn trained(model: &KerasModel, arrays: &Arrays, steps: usize) -> (Training, Vec<f64>) {
    let compiled = model.compiled().unwrap();
    let (inputs, labels) = (arrays.list("x"), arrays.list("t"));
    let mut training = compiled.model.training(compiled.recipe(types(&inputs), types(&labels))).unwrap();
    let batch: Vec<&Tensor> = inputs.iter().chain(&labels).collect();
    let mut step = |i: usize| {
        training.set_rate(compiled.rate(i as u64)).unwrap();
        training.run(&batch).unwrap().loss
    };
    let losses = (0..steps).map(&mut step).collect();
    (training, losses)
}

#[test]
fn every_model_is_written_and_read_with_the_values_it_was_trained_to() {
    for name in [
        "mlp",
        "cnn",
        "convs",
        "rnn",
        "attention",
        "branches",
        "norms",
        "masked",
        "amsgrad",
        "centered",
        "nadam",
        "heads",
        "named_heads",
        "twins",
        "partial",
        "ftrl",
        "double",
        "widened",
        "decay",
        "risen",
        "thawed",
        "wrapped",
        "scaled",
        "recast",
    ] {
        let model = KerasModel::open(fixture(&format!("{name}.keras"))).unwrap();
        let arrays = Arrays::open(&fixture(&format!("{name}.npz")));
        let (training, _) = trained(&model, &arrays, 20);
        let path = written(&format!("{name}.keras"));
        model.save(&path, &training).unwrap();
        let again = KerasModel::open(&path).unwrap();
        let (a, b) =
            (KerasFile::open(fixture(&format!("{name}.keras"))).unwrap(), KerasFile::open(&path).unwrap());
        assert_eq!(a.config_json(), b.config_json(), "{name}");
        let types = |file: &KerasFile| -> Vec<_> {
            let weights = file.variables().iter().filter(|v| !v.path.starts_with("optimizer/"));
            weights.map(|v| (v.path.clone(), v.element)).collect()
        };
        assert_eq!(types(&a), types(&b), "{name}");
        for ((param, old), new) in again.params().iter().zip(training.values()).zip(again.values().unwrap()) {
            assert_eq!(old.to_bytes().unwrap(), new.to_bytes().unwrap(), "{name}: {}", param.name);
        }
        let outputs = predict(&again, &again.values().unwrap(), &arrays.list("x"));
        let far = outputs_distance(&outputs, &arrays.list("z"));
        assert!(far < 1e-3, "{name}: {far}");
        done(&path);
    }
}

#[test]
fn a_written_optimizer_goes_on_as_if_it_had_not_stopped() {
    for (name, file) in [
        ("cnn", "cnn.keras"),
        ("attention", "attention.keras"),
        ("centered", "centered.keras"),
        ("amsgrad", "amsgrad.keras"),
        ("nadam", "nadam.keras"),
        ("heads", "heads.keras"),
        ("named_heads", "named_heads.keras"),
        ("ftrl", "ftrl.keras"),
        ("legacy", "legacy.h5"),
        ("decay", "decay.keras"),
        ("risen", "risen.keras"),
        ("wrapped", "wrapped.keras"),
        ("wrapped_legacy", "wrapped_legacy.h5"),
        ("scaled", "scaled.keras"),
        ("scaled_f16", "scaled_f16.keras"),
        ("scaled_legacy", "scaled_legacy.h5"),
    ] {
        let model = KerasModel::open(fixture(file)).unwrap();
        let arrays = Arrays::open(&fixture(&format!("{name}.npz")));
        let (_, whole) = trained(&model, &arrays, 12);
        let (training, first) = trained(&model, &arrays, 6);
        let path = written(&format!("half-{file}"));
        model.save(&path, &training).unwrap();
        let (_, second) = trained(&KerasModel::open(&path).unwrap(), &arrays, 6);
        assert_eq!(whole, [first, second].concat(), "{name}");
        done(&path);
    }
}

#[test]
fn weights_alone_are_written_for_the_same_model() {
    let mut model = KerasModel::open(fixture("mlp.keras")).unwrap();
    let arrays = Arrays::open(&fixture("mlp.npz"));
    let (training, _) = trained(&model, &arrays, 20);
    let path = written("mlp.weights.h5");
    model.save_weights(&path, &training).unwrap();
    model.load_weights(&path).unwrap();
    let outputs = predict(&model, &model.values().unwrap(), &arrays.list("x"));
    assert!(outputs_distance(&outputs, &arrays.list("z")) < 1e-4);
    done(&path);
}

#[test]
fn frozen_layers_have_no_optimizer_state_and_do_not_move() {
    let model = KerasModel::open(fixture("branches.keras")).unwrap();
    let frozen: Vec<&str> = model
        .params()
        .iter()
        .filter(|p| !p.trained && p.name.ends_with("kernel"))
        .map(|p| p.name.as_str())
        .collect();
    let layers: Vec<&str> = frozen.iter().filter_map(|name| name.split('/').next()).collect();
    assert_eq!(layers, ["frozen", "lone"]);
    let before = model.values().unwrap();
    let arrays = Arrays::open(&fixture("branches.npz"));
    let (training, _) = trained(&model, &arrays, 3);
    assert!(!training.state().any(|(name, _)| frozen.iter().any(|f| name.starts_with(&format!("{f}.")))));
    for ((param, before), after) in model.params().iter().zip(&before).zip(training.values()) {
        let moved = before.to_bytes().unwrap() != after.to_bytes().unwrap();
        // Also the statistics of a frozen norm stay.
        let stays = param.name.starts_with("frozen/") || param.name.starts_with("lone/");
        assert_eq!(moved, !stays, "{}", param.name);
    }
}

#[test]
fn what_the_file_says_of_training_can_be_replaced() {
    let model = KerasModel::open(fixture("mlp.keras")).unwrap();
    let arrays = Arrays::open(&fixture("mlp.npz"));
    let mut compiled = model.compiled().unwrap();
    assert_eq!(compiled.optimizer.rate(), f64::from(0.001f32));
    assert_eq!(compiled.metrics.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["accuracy"]);
    compiled.optimizer = std::sync::Arc::new(plimsoll_nn::Sgd::new(0.5));
    let mut training = compiled.training(6, vec![Type::new(DType::I64, [6])]).unwrap();
    let (x, t) = (arrays.list("x"), arrays.list("t"));
    let first = training.step(&[&x[0]], &t[0]).unwrap();
    assert!((first - arrays.get("losses")[0]).abs() < 1e-5);
    assert!((training.step(&[&x[0]], &t[0]).unwrap() - arrays.get("losses")[1]).abs() > 1e-3);
    // Another optimizer's state is not written under the file's.
    let path = written("replaced.keras");
    model.save(&path, &training).unwrap();
    assert_eq!(inspect(&path).unwrap().elements.optimizer, 0);
    done(&path);
    let bf16 = model.clone().with_precision(plimsoll_nn::Precision::MixedBf16);
    let found = outputs_distance(&predict(&bf16, &bf16.values().unwrap(), &x), &arrays.list("y"));
    assert!(found > 1e-5 && found < 5e-2, "{found}");
}

#[test]
fn a_loss_scale_comes_from_the_file_and_goes_back_into_it() {
    let model = KerasModel::open(fixture("scaled_f16.keras")).unwrap();
    let (training, _) = trained(&model, &Arrays::open(&fixture("scaled_f16.npz")), 4);
    let state = |name: &str| training.state().find(|(own, _)| *own == name).unwrap().1.item().unwrap();
    // The file has 3 steps behind it, at a scale that it names.
    assert_eq!((state("training.loss_scale"), state("training.finite_steps")), (256.0, 7.0));
    let path = written("scaled_f16.keras");
    model.save(&path, &training).unwrap();
    let file = KerasFile::open(&path).unwrap();
    let read = |path: &str| {
        let mut bytes = vec![0; file.variable(path).unwrap().bytes];
        file.read_into(path, &mut bytes).unwrap();
        bytes
    };
    assert_eq!(read("optimizer/vars/2"), 7i64.to_le_bytes());
    assert_eq!(read("optimizer/vars/3"), 256f32.to_le_bytes());
    assert_eq!(read("optimizer/vars/4"), 7i64.to_le_bytes());
    let (outer, inner) = (read("optimizer/vars/6"), read("optimizer/inner_optimizer/vars/2"));
    assert!(outer == inner && outer.iter().any(|byte| *byte != 0), "momentum is written at both its places");
    done(&path);
}

#[test]
fn another_rate_is_one_of_the_files_optimizer_and_is_written() {
    let model = KerasModel::open(fixture("amsgrad.keras")).unwrap();
    let mut compiled = model.compiled().unwrap();
    let name = compiled.optimizer.name();
    assert_eq!(compiled.set_rate(0.5), Some(false));
    assert_eq!((compiled.optimizer.name(), compiled.rate(0)), (name, 0.5));
    let training = compiled.training(6, vec![Type::new(DType::F32, [6, 2])]).unwrap();
    let path = written("rate.keras");
    model.save(&path, &training).unwrap();
    assert_eq!(KerasModel::open(&path).unwrap().compiled().unwrap().rate(0), 0.5);
    done(&path);
    // A schedule is no longer followed then, and the caller is told.
    let mut scheduled = KerasModel::open(fixture("decay.keras")).unwrap().compiled().unwrap();
    assert!(scheduled.rate(0) > 2.0 * scheduled.rate(1));
    assert_eq!(scheduled.set_rate(0.5), Some(true));
    assert_eq!((scheduled.rate(0), scheduled.rate(9)), (0.5, 0.5));
}

#[test]
fn an_optimizers_state_that_is_not_whole_is_named_and_not_taken_up() {
    let file = KerasFile::open(fixture("resumed.keras")).unwrap();
    assert!(KerasModel::open(fixture("resumed.keras")).unwrap().compiled().unwrap().notices.is_empty());
    let last = file.optimizer_variables().len() - 1;
    let kept: Vec<_> =
        file.variables().iter().filter(|v| v.path != format!("optimizer/vars/{last}")).cloned().collect();
    let labels = file.labels();
    let contents = Contents {
        config: file.config_json(),
        metadata: file.metadata_json(),
        variables: &kept,
        labels: &labels,
    };
    let path = written("lost.keras");
    write_keras(&path, &contents, |variable, out| {
        let mut bytes = vec![0; variable.bytes];
        file.read_into(&variable.path, &mut bytes).map_err(std::io::Error::other)?;
        out.write_all(&bytes)
    })
    .unwrap();
    let compiled = KerasModel::open(&path).unwrap().compiled().unwrap();
    let notices = &compiled.notices;
    assert!(notices.len() == 1 && notices[0].contains("state of the optimizer"), "{notices:?}");
    let training = compiled.training(6, vec![Type::new(DType::I64, [6])]).unwrap();
    let updates = training.state().find(|(name, _)| *name == "training.updates").unwrap().1;
    assert_eq!(updates.item().unwrap(), 0.0);
    done(&path);
}

#[test]
fn a_name_under_which_keras_does_not_open_it_is_refused() {
    for (file, good, bad) in [("legacy.h5", "m.h5", "m.keras"), ("mlp.keras", "m.keras", "m.h5")] {
        let model = KerasModel::open(fixture(file)).unwrap();
        assert_eq!(model.saved_name("m"), good);
        let path = written(bad);
        let error = model.save_values(&path, &model.values().unwrap()).unwrap_err().to_string();
        assert!(error.contains(bad) && error.contains(&good[1..]), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn a_file_is_described_also_where_it_cannot_be_trained() {
    let found = inspect(fixture("branches.keras")).unwrap();
    assert!(found.model.problem.is_none());
    assert_eq!(
        (found.compiled.optimizer.as_deref(), found.layers[0].class.as_str()),
        (Some("Adam"), "InputLayer")
    );
    let all: u64 = found.layers.iter().map(|layer| layer.elements).sum();
    let amounts = found.elements;
    assert_eq!(all, amounts.trained + amounts.frozen + amounts.statistics);
    assert!(amounts.frozen > 0 && amounts.statistics > 0 && amounts.optimizer > 0);
    assert!(found.layers.iter().any(|l| l.place == "tower/inside" && l.outputs == [[1, 5]]));
    let text = serde_json::to_string(&found).unwrap();
    assert!(text.contains("\"place\":\"tower/inside\""));
    let found = inspect(fixture("double.keras")).unwrap();
    let conv = found.layers.iter().find(|layer| layer.class == "Conv2D").unwrap();
    assert_eq!((conv.dtype.as_deref(), conv.variables[0].element), (Some("float64"), "f64"));
    assert_eq!((found.model.inputs[0].as_str(), found.model.problem), ("f64[1, 6, 5, 2]", None));
    // The kernel stands in the file twice, and is one: Keras counts 74 parameters, 68 of them trained.
    let found = inspect(fixture("spectral.keras")).unwrap().elements;
    assert_eq!((found.trained, found.frozen, found.statistics, found.other), (68, 0, 6, 24));
    let found = inspect(fixture("refused_lambda.keras")).unwrap();
    assert!(found.model.problem.unwrap().contains("Lambda"));
    assert_eq!(inspect(fixture("other.weights.h5")).unwrap().kind, "weights");
}

#[test]
fn a_trained_model_still_agrees_with_keras_after_a_round_trip() {
    // The weights of a file written without training are those of the original, so everything agrees again.
    let model = KerasModel::open(fixture("cnn.keras")).unwrap();
    let path = written("untouched.keras");
    model.save_values(&path, &model.values().unwrap()).unwrap();
    let found = compare(&KerasModel::open(&path).unwrap(), &Arrays::open(&fixture("cnn.npz")));
    assert!(found.forward < 1e-5 && found.gradient < 1e-4 && found.losses < 1e-4, "{found:?}");
    done(&path);
}
