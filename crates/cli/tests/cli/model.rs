//! Models in Keras files, used without a run.

use std::path::{Path, PathBuf};

use plimsoll::formats::{Element, npy, npz};

use crate::common::{Scratch, bytes, least_of, lines};

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../keras/tests/fixtures").join(name)
}

/// An array of a fixture, as bytes, with its type and shape.
pub fn array(archive: &str, name: &str) -> (Element, Vec<usize>, Vec<u8>) {
    let path = fixture(archive);
    let members = npz::members(&path).unwrap();
    let member = members.iter().find(|member| member.name == name).unwrap();
    let (element, shape) = (member.header.element.element, member.header.shape.clone());
    let (start, length) = (member.offset.unwrap() as usize, element.bytes_of(&shape).unwrap());
    (element, shape, std::fs::read(&path).unwrap()[start..start + length].to_vec())
}

fn write(path: &str, (element, shape, bytes): &(Element, Vec<usize>, Vec<u8>)) {
    let mut file = Vec::new();
    npy::write_header(&mut file, *element, shape).unwrap();
    file.extend(bytes);
    std::fs::write(path, file).unwrap();
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// A folder of `x.npy` and `y.npy` from what a fixture was made with.
pub fn data(scratch: &Scratch, archive: &str) -> String {
    let folder = scratch.path(archive);
    std::fs::create_dir_all(&folder).unwrap();
    write(&format!("{folder}/x.npy"), &array(archive, "x0"));
    write(&format!("{folder}/y.npy"), &array(archive, "t0"));
    folder
}

#[test]
fn a_keras_file_predicts_what_keras_predicts_inside_a_line() {
    let scratch = Scratch::new("keras-predict");
    for (model, archive) in [("mlp.keras", "mlp.npz"), ("cnn.keras", "cnn.npz"), ("legacy.h5", "legacy.npz")]
    {
        let (file, out) = (fixture(model), scratch.path("predictions.npy"));
        let inputs = format!("{}/x.npy", data(&scratch, archive));
        let line = 64 << 20;
        let told = lines(&[
            "predict",
            file.to_str().unwrap(),
            "--data",
            &inputs,
            "--out",
            &out,
            "--batch",
            "4",
            "--threads",
            "1",
            "--memory",
            &line.to_string(),
            "--json",
        ])
        .unwrap();
        assert!(bytes(&told[0], "resident_peak_bytes") <= line, "{told:?}");
        let (_, shape, expected) = array(archive, "y0");
        let (_, header) = npy::Header::of_file(Path::new(&out)).unwrap();
        assert_eq!(header.shape, shape, "{model}");
        let written = std::fs::read(&out).unwrap();
        let found = floats(&written[written.len() - expected.len()..]);
        let far = found.iter().zip(floats(&expected)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far <= 1e-5, "{model}: {far}");
    }
}

#[test]
fn random_data_ends_where_no_batch_size_is_named() {
    let scratch = Scratch::new("random-ends");
    let (file, out) = (fixture("mlp.keras"), scratch.path("predictions.npy"));
    let said =
        lines(&["predict", file.to_str().unwrap(), "--data", "random", "--out", &out, "--json"]).unwrap();
    // A hundred batches of the usual size, as many as with a size that is named.
    assert_eq!(said[0]["samples"].as_u64().unwrap(), 3200, "{said:?}");
}

#[test]
fn a_keras_file_is_evaluated_with_what_it_was_compiled_with_or_what_is_named() {
    let scratch = Scratch::new("keras-evaluate");
    let (data, file) = (data(&scratch, "mlp.npz"), fixture("mlp.keras"));
    let file = file.to_str().unwrap();
    let found = lines(&["evaluate", file, "--data", &data, "--batch", "4", "--json"]).unwrap().remove(0);
    // Nothing in this model differs between training and use, so the first step's loss is the evaluation's.
    let expected = f64::from(floats(&array("mlp.npz", "losses").2)[0]);
    let loss = found["loss"].as_f64().unwrap();
    assert!((loss - expected).abs() < 1e-5, "{loss} and not {expected}");
    // The model ends in a softmax, which a loss that is named must take off too.
    let named = lines(&[
        "evaluate",
        file,
        "--data",
        &data,
        "--loss",
        "cross-entropy",
        "--metrics",
        "accuracy,top2",
        "--json",
    ])
    .unwrap()
    .remove(0);
    assert!((named["loss"].as_f64().unwrap() - expected).abs() < 1e-5, "{named}");
    assert!(named["top2"].as_f64() >= named["accuracy"].as_f64(), "{named}");
    let error = lines(&["evaluate", file, "--data", &data, "--metrics", "mae"]).unwrap_err();
    assert!(error.contains("mae") && error.contains("compares outputs"), "{error}");
}

/// A folder of arrays under the names of inputs and outputs.
fn named_data(scratch: &Scratch, folder: &str, archive: &str, names: &[(&str, &str)]) -> String {
    let folder = scratch.path(folder);
    std::fs::create_dir_all(&folder).unwrap();
    for (name, from) in names {
        write(&format!("{folder}/{name}.npy"), &array(archive, from));
    }
    folder
}

#[test]
fn several_inputs_and_outputs_are_trained_by_name_or_place_and_written_back() {
    let scratch = Scratch::new("keras-several");
    let (file, archive) = (fixture("heads.keras"), "heads.npz");
    let file = file.to_str().unwrap();
    let named = [("image", "x0"), ("meta", "x1"), ("age", "t0"), ("class", "t1")];
    let placed = [("x0", "x0"), ("x1", "x1"), ("y0", "t0"), ("y1", "t1")];
    let named = named_data(&scratch, "named", archive, &named);
    let placed = named_data(&scratch, "placed", archive, &placed);
    let expected =
        |name: &str| floats(&array(archive, name).2).into_iter().map(f64::from).collect::<Vec<_>>();
    let near = |value: &serde_json::Value, expected: f64| {
        let far = (value.as_f64().unwrap() - expected).abs();
        assert!(far < 1e-4 * (1.0 + expected.abs()), "{value} and not {expected}");
    };
    for data in [&named, &placed] {
        let found = lines(&["evaluate", file, "--data", data, "--batch", "5", "--json"]).unwrap().remove(0);
        for name in ["loss", "age_loss", "age_mae", "class_loss", "class_accuracy", "class_top2"] {
            near(&found[name], expected(&format!("e_{name}"))[0]);
        }
    }
    let out = scratch.path("run");
    let words = ["--batch", "10", "--epochs", "8", "--out", &out, "--json"];
    let train = [&["train", file, "--data", &named, "--validation", &named][..], &words].concat();
    let epochs: Vec<_> = lines(&train).unwrap().into_iter().filter(|line| line["event"] == "epoch").collect();
    for (i, epoch) in epochs.iter().enumerate() {
        near(&epoch["loss"], expected("losses")[i]);
        near(&epoch["age_loss"], expected("p_age_loss")[i]);
        // The data itself is validated on, after the step.
        near(&epoch["val_loss"], expected("losses")[i + 1]);
    }
    let written = format!("{out}/heads.keras");
    let again = lines(&["evaluate", &written, "--data", &named, "--json"]).unwrap().remove(0);
    near(&again["class_loss"], expected("p_class_loss")[8]);
    let one = scratch.path("class.npy");
    lines(&["predict", file, "--data", &named, "--out", &one, "--output", "class", "--json"]).unwrap();
    let (_, shape, bytes) = array(archive, "y1");
    assert_eq!(npy::Header::of_file(Path::new(&one)).unwrap().1.shape, shape);
    let written = std::fs::read(&one).unwrap();
    let pairs = floats(&written[written.len() - bytes.len()..]).into_iter().zip(floats(&bytes));
    assert!(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 1e-5);
}

#[test]
fn losses_and_metrics_are_named_by_output_and_what_is_missing_is_said() {
    let scratch = Scratch::new("keras-named");
    let (file, archive) = (fixture("heads.keras"), "heads.npz");
    let file = file.to_str().unwrap();
    let names = [("image", "x0"), ("meta", "x1"), ("age", "t0")];
    let data = named_data(&scratch, "one", archive, &names);
    // An output without a loss needs no labels.
    let named = ["evaluate", file, "--data", &data, "--loss", "age=mse", "--metrics", "age=mae", "--json"];
    let found = lines(&named).unwrap().remove(0);
    assert!(
        (found["age_mae"].as_f64().unwrap() - f64::from(floats(&array(archive, "e_age_mae").2)[0])).abs()
            < 1e-5
    );
    assert!(found["class_loss"].is_null() && found["age_loss"].is_null(), "{found}");
    let refused = |arguments: &[&str], parts: &[&str]| {
        let error = lines(&[&["evaluate", file, "--data", &data], arguments].concat()).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(&[], &["label class (or y1)", "it has age, image, meta"]);
    refused(&["--loss", "aeg=mse"], &["aeg", "age, class"]);
    refused(&["--loss", "age=mse,mae"], &["without its output"]);
    refused(&["--loss", "age=mse", "--metrics", "class=accuracy"], &["no labels", "age"]);
    let other = fixture("unknown_metric.keras");
    let folder = named_data(&scratch, "other", "unknown_metric.npz", &[("x", "x0"), ("y", "t0")]);
    let run = crate::common::plimsoll()
        .args(["evaluate", other.to_str().unwrap(), "--data", &folder, "--json"])
        .output()
        .unwrap();
    let (said, told) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    // A score for every class is a number for each; the precision of one class is one.
    let names = ["\"f1_score[0]\"", "\"f1_score[1]\"", "\"precision_1\""];
    assert!(run.status.success() && names.iter().all(|name| said.contains(name)), "{said}{told}");
}

#[test]
fn what_a_model_file_cannot_be_used_for_is_said() {
    let scratch = Scratch::new("keras-refused");
    let (data, out) = (data(&scratch, "mlp.npz"), scratch.path("predictions.npy"));
    let model = |name: &str| fixture(name).to_str().unwrap().to_string();
    let refused = |arguments: &[&str], parts: &[&str]| {
        let error = lines(arguments).unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(&["predict", &model("mlp.keras"), "--out", &out], &["--data"]);
    refused(
        &["predict", &model("branches.keras"), "--data", &data, "--out", &out],
        &["a_first", "x1", "it has x, y"],
    );
    refused(
        &["predict", &model("mlp.keras"), "--data", &data, "--out", &out, "--output", "3"],
        &["1 outputs"],
    );
    refused(&["predict", &model("none.keras"), "--data", &data, "--out", &out], &["none.keras"]);
    refused(&["predict", "nowhere", "--data", &data, "--out", &out], &["nowhere", ".keras"]);
    refused(&["evaluate", &model("bare.keras"), "--data", &data], &["bare.keras", "--loss"]);
    refused(&["predict", &model("mlp.keras"), "--data", &data, "--out", &out, "--memory", "1MiB"], &["line"]);
}

#[test]
fn single_layers_are_kept_in_another_precision() {
    let scratch = Scratch::new("precision");
    let train = |name: &str, precision: &str| {
        let out = scratch.path(name);
        lines(&[
            "train",
            "mlp",
            "--width",
            "16",
            "--epochs",
            "1",
            "--take",
            "64",
            "--threads",
            "1",
            "--precision",
            precision,
            "--out",
            &out,
            "--json",
        ])
    };
    let loss = |lines: Vec<serde_json::Value>| {
        let epoch = lines.into_iter().rev().find(|line| line["event"] == "epoch").unwrap();
        epoch["loss"].as_f64().unwrap()
    };
    let refused = train("refused", "mixed-bf16,haed=f32").unwrap_err();
    assert!(refused.contains("haed") && refused.contains("there are "), "{refused}");
    let known = refused.split("there are ").nth(1).unwrap();
    let layer = known.split([',', ' ', ';', '\n']).next().unwrap();
    let losses = [
        loss(train("wide", "f32").unwrap()),
        loss(train("mixed", "mixed-bf16").unwrap()),
        loss(train("own", &format!("mixed-bf16,{layer}=f32")).unwrap()),
        loss(train("all", "mixed-bf16,*=f32").unwrap()),
    ];
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 0.05 * losses[0]), "{losses:?}");
    assert_eq!(losses[0], losses[3]);
    assert!(losses[0] != losses[1] && losses[1] != losses[2] && losses[0] != losses[2], "{losses:?}");
    // The folder keeps it, and what reads the run computes so too.
    let found = lines(&["evaluate", &scratch.path("own"), "--json"]).unwrap();
    assert!(found[0]["loss"].as_f64().unwrap().is_finite());
}

/// What the process takes beside its plan is declared for a release build; in others it is measured, and varies by this.
const GRAIN: u64 = if cfg!(debug_assertions) { 2 << 20 } else { 0 };

#[test]
fn the_least_line_that_a_refusal_names_is_kept() {
    let scratch = Scratch::new("keras-least");
    let (data, file, out) =
        (data(&scratch, "cnn.npz"), fixture("cnn.keras"), scratch.path("predictions.npy"));
    let predict = |line: u64| {
        let (file, line) = (file.to_str().unwrap(), line.to_string());
        let arguments =
            ["predict", file, "--data", &data, "--out", &out, "--threads", "1", "--memory", &line, "--json"];
        lines(&arguments).map(|mut lines| lines.remove(0))
    };
    let refused = predict(1 << 20).unwrap_err();
    let line = least_of(&refused) + GRAIN;
    let told = predict(line).unwrap();
    assert!(bytes(&told, "resident_peak_bytes") <= line, "{told} under {line}");
}

/// The model of a run predicts the same from the Keras file that it was converted to.
#[test]
fn a_model_of_the_zoo_is_converted_to_a_keras_file() {
    let scratch = Scratch::new("keras-convert");
    let (run, keras) = (scratch.path("run"), scratch.path("small.keras"));
    let train = [
        "train", "cnn", "--data", "digits", "--width", "4", "--depth", "1", "--epochs", "1", "--batch", "64",
    ];
    lines(&[&train[..], &["--out", &run, "--threads", "1", "--json"]].concat()).unwrap();
    std::fs::write(&keras, "somebody's own").unwrap();
    let error = lines(&["convert", &run, "--out", &keras]).unwrap_err();
    assert!(error.contains("--overwrite"), "{error}");
    assert_eq!(std::fs::read(&keras).unwrap(), b"somebody's own");
    std::fs::remove_file(&keras).unwrap();
    let told = lines(&["convert", &run, "--out", &keras, "--json"]).unwrap();
    assert_eq!(told[0]["model"], "cnn");
    let predictions = |what: &str, out: &str| {
        let out = scratch.path(out);
        lines(&["predict", what, "--data", "digits", "--out", &out, "--threads", "1", "--json"]).unwrap();
        let (_, header) = npy::Header::of_file(Path::new(&out)).unwrap();
        let written = std::fs::read(&out).unwrap();
        floats(&written[written.len() - 4 * header.shape.iter().product::<usize>()..])
    };
    let (ours, theirs) = (predictions(&run, "ours.npy"), predictions(&keras, "theirs.npy"));
    assert_eq!(ours.len(), theirs.len());
    let far = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far <= 1e-4, "{far}");
    let error = lines(&["convert", &run, "--out", &scratch.path("small.onnx")]).unwrap_err();
    assert!(format!("{error:?}").contains(".keras"), "{error:?}");
}

#[test]
fn a_run_keeps_the_file_that_it_was_begun_with() {
    let scratch = Scratch::new("keras-copy");
    let names = [("image", "x0"), ("meta", "x1"), ("age", "t0"), ("class", "t1")];
    let data = named_data(&scratch, "data", "heads.npz", &names);
    let (file, out) = (scratch.path("mine.keras"), scratch.path("run"));
    std::fs::copy(fixture("heads.keras"), &file).unwrap();
    let words = ["--batch", "10", "--out", &out, "--json"];
    lines(&[&["train", &file, "--data", &data, "--epochs", "1"][..], &words].concat()).unwrap();
    std::fs::remove_file(&file).unwrap();
    for command in ["evaluate", "predict"] {
        let ended = crate::common::plimsoll().args([command, &out]).output().unwrap();
        assert!(ended.status.success(), "{command}: {}", String::from_utf8_lossy(&ended.stderr));
    }
    let resumed = lines(&["train", "--resume", "--out", &out, "--epochs", "2", "--json"]).unwrap();
    let model = resumed.last().unwrap()["model"].as_str().unwrap().to_string();
    assert_eq!(Path::new(&model).file_name().unwrap(), "mine.keras", "{resumed:?}");
    // What it was begun with is still that.
    assert_eq!(
        std::fs::read(Path::new(&out).join("source.keras")).unwrap(),
        std::fs::read(fixture("heads.keras")).unwrap()
    );
}
