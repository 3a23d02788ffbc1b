//! Files saved by Keras are read to the bit, hostile ones are refused, mutated ones never panic.
//!
//! `make_keras.py` made the files and `expected.json`.

use plimsoll_formats::Element;
use plimsoll_formats::keras::{Argument, KerasFile, Kind, Layer, Limits, TensorRef, Variable, write_weights};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keras").join(name)
}

fn open(name: &str) -> KerasFile {
    KerasFile::open(fixture(name)).unwrap_or_else(|e| panic!("{e}"))
}

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture("expected.json")).expect("expected.json");
    let mut all: Value = serde_json::from_str(&text).expect("JSON");
    all[name].take()
}

fn read(file: &KerasFile, variable: &Variable) -> Vec<u8> {
    let mut bytes = vec![0; variable.bytes];
    file.read_into(&variable.path, &mut bytes).unwrap_or_else(|e| panic!("{e}"));
    bytes
}

/// CRC-32 of zlib, bit by bit: the fixtures are small.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
    })
}

fn layer<'a>(layers: &'a [Layer], name: &str) -> &'a Layer {
    layers.iter().find(|layer| layer.name == name).unwrap_or_else(|| panic!("no layer {name}"))
}

#[test]
fn every_variable_has_the_type_shape_and_bytes_that_h5py_reads() {
    for (name, count) in [
        ("cnn.keras", 25),
        ("deflated.keras", 25),
        ("branches.keras", 64),
        ("types.keras", 6),
        ("unknown.keras", 4),
        ("cnn.h5", 25),
        ("branches.h5", 64),
        ("cnn.weights.h5", 25),
        ("keras2.h5", 4),
    ] {
        let file = open(name);
        let expected = expected(name);
        let expected = expected["variables"].as_object().expect("variables");
        assert_eq!(file.variables().len(), expected.len(), "{name}");
        assert_eq!(file.variables().len(), count, "{name}");
        for variable in file.variables() {
            let found = serde_json::json!([
                variable.element.numpy_name(),
                variable.shape,
                crc32(&read(&file, variable))
            ]);
            assert_eq!(expected[&variable.path], found, "{name}: {}", variable.path);
        }
    }
}

#[test]
fn every_layer_is_found_at_the_path_keras_stored_it_under() {
    for name in ["cnn.keras", "branches.keras", "types.keras", "unknown.keras"] {
        let file = open(name);
        let expected = expected(name);
        let stored = expected["layers"].as_object().expect("layers");
        let root = file.root().expect("a configuration");
        let mut found = 0;
        for layer in root.all().into_iter().skip(1).filter(|layer| !layer.path.is_empty()) {
            assert_eq!(stored[&layer.path], layer.name, "{name}: {}", layer.path);
            found += 1;
        }
        // What remains are pieces of layers (an LSTM's cell), of the unknown layer, and the optimizer.
        let inner = stored.keys().filter(|path| {
            !root.all().iter().any(|layer| layer.path == **path)
                && !path.contains("/cell")
                && !path.contains("_dense")
                && !path.contains("forward_layer")
                && !path.contains("backward_layer")
                && !path.contains("softmax")
                && !path.contains("dropout_layer")
                && !path.starts_with("optimizer")
        });
        assert!(found >= 2, "{name}");
        assert_eq!(
            inner.collect::<Vec<_>>(),
            if name == "unknown.keras" { vec!["layers/odd/child"] } else { vec![] }
        );
    }
}

#[test]
fn a_sequential_model_is_a_chain_of_calls_with_its_settings() {
    for name in ["cnn.keras", "cnn.h5"] {
        let file = open(name);
        assert!(file.keras_version().starts_with("3."));
        let root = file.root().expect("a configuration");
        assert_eq!((root.class_name.as_str(), root.name.as_str()), ("Sequential", "cnn"));
        let model = file.model().expect("a model");
        let classes: Vec<&str> = model.layers.iter().map(|layer| layer.class_name.as_str()).collect();
        let chain = [
            "InputLayer",
            "Conv2D",
            "BatchNormalization",
            "ReLU",
            "Conv2D",
            "GlobalAveragePooling2D",
            "Dropout",
            "Dense",
        ];
        assert_eq!(classes, chain);
        for (i, call) in model.calls.iter().enumerate().skip(1) {
            assert_eq!(call.tensors(), [TensorRef { layer: i - 1, call: 0, output: 0 }]);
        }
        assert_eq!(model.inputs[0].tensor.layer, 0);
        assert_eq!(model.outputs[0].tensor.layer, 7);
        let second = layer(&model.layers, "second");
        assert_eq!(second.config["kernel_size"], serde_json::json!([3, 3]));
        let shapes: Vec<&[usize]> = file.variables_of(second).iter().map(|v| v.shape.as_slice()).collect();
        assert_eq!(shapes, [&[3, 3, 2, 3][..], &[3]]);
        let norm = layer(&model.layers, "norm");
        assert_eq!(file.variables_of(norm).len(), 4);
        assert_eq!(file.optimizer_variables().len(), 16);
        // iteration, learning rate, then momentum and velocity of each variable: the last are the head's bias.
        assert_eq!(read(&file, file.optimizer_variables()[0]), 1i64.to_le_bytes());
        assert_eq!(read(&file, file.optimizer_variables()[1]), 0.01f32.to_le_bytes());
        assert_eq!(file.optimizer_variables()[15].shape, [4]);
        let optimizer = if name == "cnn.keras" { "optimizer" } else { "optimizer_config" };
        assert_eq!(file.compile_config()[optimizer]["class_name"], "Adam");
    }
}

#[test]
fn archive_and_legacy_file_give_each_layer_the_same_weights() {
    for name in ["cnn", "branches"] {
        let (archive, legacy) = (open(&format!("{name}.keras")), open(&format!("{name}.h5")));
        assert_eq!((archive.kind(), legacy.kind()), (Kind::Archive, Kind::Legacy));
        let layers = |file: &KerasFile| -> Vec<Layer> {
            let all = file.root().expect("a configuration").all();
            all.into_iter().filter(|layer| layer.model.is_none()).cloned().collect()
        };
        let mut compared = 0;
        for (a, b) in layers(&archive).iter().zip(&layers(&legacy)) {
            assert_eq!((&a.name, &a.class_name), (&b.name, &b.class_name));
            let bytes = |file: &KerasFile, layer: &Layer| -> Vec<Vec<u8>> {
                let mut all: Vec<_> = file.variables_of(layer).into_iter().map(|v| read(file, v)).collect();
                // Pieces of a layer are sorted by name in one kind of file and by creation in the other.
                all.sort();
                all
            };
            assert_eq!(bytes(&archive, a), bytes(&legacy, b), "{}", a.name);
            compared += bytes(&archive, a).len();
        }
        assert_eq!(compared, if name == "cnn" { 9 } else { 32 });
    }
}

#[test]
fn shared_layers_nested_models_and_keyword_arguments_become_calls() {
    for name in ["branches.keras", "branches.h5"] {
        let file = open(name);
        let model = file.model().expect("a model");
        let index =
            |name: &str| model.layers.iter().position(|l| l.name == name).unwrap_or_else(|| panic!("{name}"));
        let tensor = |name: &str, call| TensorRef { layer: index(name), call, output: 0 };
        let calls_of =
            |name: &str| -> Vec<_> { model.calls.iter().filter(|c| c.layer == index(name)).collect() };

        let shared = calls_of("shared");
        assert_eq!(shared.len(), 2);
        assert_eq!(shared[0].tensors(), [tensor("features", 0)]);
        assert_eq!(shared[1].tensors(), [tensor("tower", 0)]);
        assert_eq!(calls_of("tower")[0].tensors(), [tensor("shared", 0)]);
        let inner = calls_of("inner");
        assert_eq!(inner.len(), 3);
        assert_eq!(inner[1].tensors(), [tensor("shared", 1)]);
        assert_eq!(
            calls_of("add")[0].tensors(),
            [tensor("inner", 0), tensor("inner", 1), tensor("multiply", 0)]
        );
        assert!(matches!(&calls_of("add")[0].args[0], Argument::List(list) if list.len() == 3));
        let attention = calls_of("multi_head_attention")[0];
        assert!(attention.args.is_empty());
        let names: Vec<&str> = attention.kwargs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["query", "value"]);
        assert_eq!(calls_of("multiply")[0].args[1], Argument::Value(serde_json::json!(2.0)));

        // Every call comes after those it needs.
        for (i, call) in model.calls.iter().enumerate() {
            for need in call.tensors() {
                let place = model.calls.iter().position(|c| c.layer == need.layer && c.call == need.call);
                assert!(place.is_some_and(|place| place < i));
            }
        }
        let inputs: Vec<_> = model.inputs.iter().map(|p| (p.name.as_deref(), p.tensor)).collect();
        assert_eq!(inputs, [(Some("features"), tensor("features", 0)), (Some("words"), tensor("words", 0))]);
        // Keras counts the calls of a Functional model from 1 here and from 0 in the nodes.
        let outputs: Vec<_> = model.outputs.iter().map(|p| p.tensor).collect();
        assert_eq!(outputs, [tensor("frozen", 0), tensor("inner", 2)]);

        let inside = model.layers[index("inner")].model.as_ref().expect("a nested model");
        assert_eq!(inside.layers.len(), 3);
        assert_eq!(file.variables_of(&inside.layers[2]).len(), 2);
        assert!(!model.layers[index("frozen")].trainable && model.layers[index("shared")].trainable);
        let policy = model.layers[index("mixed")].policy.clone().expect("a policy");
        assert_eq!((policy.compute, policy.variables), (Some(Element::BF16), Some(Element::F32)));
    }
}

#[test]
fn a_file_of_keras_2_has_lists_for_nodes_and_bytes_for_texts() {
    let file = open("keras2.h5");
    assert_eq!((file.kind(), file.keras_version()), (Kind::Legacy, "2.15.0"));
    let model = file.model().expect("a model");
    let tensors: Vec<_> = model.calls.iter().map(|call| (call.layer, call.call, call.tensors())).collect();
    let tensor = |layer, call| TensorRef { layer, call, output: 0 };
    let expected =
        [(0, 0, vec![]), (1, 0, vec![tensor(0, 0)]), (1, 1, vec![tensor(1, 0)]), (2, 0, vec![tensor(1, 1)])];
    assert_eq!(tensors, expected);
    let dense = &model.layers[1].model.as_ref().expect("a nested model").layers[1];
    let paths: Vec<&str> = file.variables_of(dense).iter().map(|v| v.path.as_str()).collect();
    assert_eq!(paths, ["model_weights/inner/d/kernel:0", "model_weights/inner/d/bias:0"]);
    assert!(file.optimizer_variables().is_empty() && file.compile_config().is_null());
}

#[test]
fn unknown_layers_and_code_are_kept_as_data_with_their_place() {
    let file = open("unknown.keras");
    let model = file.model().expect("a model");
    let odd = layer(&model.layers, "odd");
    assert_eq!((odd.class_name.as_str(), odd.registered_name.as_deref()), ("Odd", Some("mine>Odd")));
    let paths: Vec<&str> = file.variables_of(odd).iter().map(|v| v.path.as_str()).collect();
    let expected =
        ["layers/odd/child/vars/0", "layers/odd/child/vars/1", "layers/odd/vars/0", "layers/odd/vars/1"];
    assert_eq!(paths, expected);
    assert!(layer(&model.layers, "code").carries_code() && !odd.carries_code());
}

#[test]
fn hostile_files_are_refused_with_file_place_and_reason() {
    for (name, words) in [
        ("external_storage", "layers/dense/vars/0\": its values are not in this file"),
        ("virtual", "layers/dense/vars/0\": it is a view of another file"),
        ("never_written", "layers/dense/vars/0\": its values are not in this file"),
        ("compressed", "layers/dense/vars/0\": it is stored in chunks"),
        ("strings", "layers/dense/vars/0\": its element type"),
        (
            "soft_link",
            "layers/dense/vars/0\": it is a soft link to \"/layers/conv2d/vars/0\", which is not followed",
        ),
        ("external_link", "layers/dense/vars/0\": it is an external link to \"/x\" in the file \"other.h5\""),
        ("loop", "the depth of group"),
        ("bomb", "the expansion of config.json is"),
        ("escape", "\"assets/../../evil\": its name leads out of the archive"),
        ("absolute", "\"/etc/evil\": its name leads out of the archive"),
        ("without_config", "\"config.json\": it is missing"),
        ("deep", "the configuration of the model: recursion limit exceeded"),
        ("cycle", "the configuration of shared: its calls go round in a circle"),
    ] {
        let path = fixture(&format!("hostile/{name}.keras"));
        let text = KerasFile::open(&path).map(|_| ()).expect_err(name).to_string();
        assert!(text.contains(words), "{name}: {text}");
        assert!(text.contains(&format!("{name}.keras")), "{text}");
    }
}

#[test]
fn a_file_of_no_known_kind_and_limits_are_refused() {
    let refusal = |bytes: &[u8], limits| {
        KerasFile::from_bytes(bytes.to_vec(), "x", &limits).map(|_| ()).expect_err("a refusal").to_string()
    };
    let index = KerasFile::from_bytes(b"{\"weight_map\": {}}".to_vec(), "x.weights.json", &Limits::default());
    let index = index.map(|_| ()).expect_err("a refusal").to_string();
    assert!(index.contains("x.weights.json") && index.contains("shards"), "{index}");
    assert_eq!(refusal(b"", Limits::default()), "x: it is neither a .keras archive nor an HDF5 file");
    let good = std::fs::read(fixture("cnn.keras")).expect("the fixture");
    assert!(refusal(&good, Limits { json: 100, ..Limits::default() }).contains("the size of config.json"));
    assert!(refusal(&good, Limits { members: 2, ..Limits::default() }).contains("archive members is 3"));
    assert!(
        refusal(&good, Limits { objects: 10, ..Limits::default() }).contains("groups and variables is 11")
    );
    let deflated = std::fs::read(fixture("deflated.keras")).expect("the fixture");
    assert!(refusal(&deflated, Limits { inflated: 1000, ..Limits::default() }).contains("model.weights.h5"));
}

#[test]
fn a_flipped_bit_among_the_weights_of_an_archive_is_noticed() {
    let mut bytes = std::fs::read(fixture("cnn.keras")).expect("the fixture");
    let weights = bytes.windows(8).position(|window| window == b"\x89HDF\r\n\x1a\n").expect("the weights");
    bytes[weights + 20_000] ^= 4;
    let text =
        KerasFile::from_bytes(bytes, "x", &Limits::default()).map(drop).expect_err("a refusal").to_string();
    assert_eq!(text, "x: archive member \"model.weights.h5\": Invalid checksum");
}

#[test]
fn an_integer_of_half_a_billion_bytes_is_refused() {
    let mut bytes = std::fs::read(fixture("cnn.weights.h5")).expect("the fixture");
    // The type of the optimizer's counter: signed, 8 bytes, 64 bits from bit 0.
    let int64 = [0x10, 8, 0, 0, 8, 0, 0, 0, 0, 0, 64, 0];
    let place = bytes.windows(12).position(|window| window == int64).expect("the counter's type");
    bytes[place + 4..place + 8].copy_from_slice(&0x2000_0008u32.to_le_bytes());
    let text =
        KerasFile::from_bytes(bytes, "x", &Limits::default()).map(drop).expect_err("a refusal").to_string();
    assert!(text.starts_with("x: the weights at \"optimizer/vars/0\": its element type"), "{text}");
}

/// A reader that gets through a file reads every variable, and none larger than the file.
fn drain(bytes: Vec<u8>, inflated: u64) -> bool {
    let limits = Limits { objects: 500, inflated, ..Limits::default() };
    let Ok(file) = KerasFile::from_bytes(bytes, "mutated", &limits) else { return false };
    let mut total = 0;
    for variable in file.variables() {
        assert!(variable.bytes as u64 <= inflated);
        let _ = file.read_into(&variable.path, &mut vec![0; variable.bytes]);
        total += variable.bytes;
    }
    for layer in file.root().map(Layer::all).unwrap_or_default() {
        total += file.variables_of(layer).len() + usize::from(layer.carries_code());
    }
    total > 0
}

#[test]
fn no_truncation_and_no_mutation_of_a_file_panics() {
    // A small generator, so that the same mutations are made every time.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    for name in ["cnn.h5", "cnn.weights.h5", "types.keras", "deflated.keras", "unknown.keras"] {
        let good = std::fs::read(fixture(name)).expect("the fixture");
        let limit = good.len() as u64 * 100;
        assert!(drain(good.clone(), limit), "{name}");
        for _ in 0..60 {
            drain(good[..random(good.len())].to_vec(), limit);
        }
        // Bytes that are not zero are the structure; most of an HDF5 file is empty.
        let places: Vec<usize> = (0..good.len()).filter(|i| good[*i] != 0).collect();
        for _ in 0..600 {
            let mut bytes = good.clone();
            for _ in 0..1 + random(3) {
                let place = places[random(places.len())] + random(2);
                let values = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8];
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = values[random(values.len())];
                }
            }
            drain(bytes, limit);
        }
    }
}

/// Writes every variable of `file` with its own bytes.
fn copy(file: &KerasFile) -> impl FnMut(&Variable, &mut dyn Write) -> std::io::Result<()> {
    move |variable, out| out.write_all(&read(file, variable))
}

#[test]
fn what_is_read_and_written_again_is_the_same() {
    let names = [
        "cnn.keras",
        "branches.keras",
        "types.keras",
        "unknown.keras",
        "cnn.h5",
        "branches.h5",
        "cnn.weights.h5",
    ];
    for name in names {
        let file = open(name);
        // `check_keras.py` opens these with Keras.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("copy_{name}"));
        file.save(&path, copy(&file)).unwrap_or_else(|e| panic!("{e}"));
        let again = KerasFile::open(&path).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(again.config_json(), file.config_json());
        assert_eq!(again.metadata_json(), file.metadata_json());
        assert_eq!((again.kind(), again.keras_version()), (file.kind(), file.keras_version()));
        assert_eq!(again.compile_config(), file.compile_config());
        let paths = |file: &KerasFile| -> Vec<String> {
            let layers = file.root().map(Layer::all).unwrap_or_default();
            layers.iter().flat_map(|layer| file.variables_of(layer)).map(|v| v.path.clone()).collect()
        };
        assert_eq!(paths(&again), paths(&file));
        let listed = |file: &KerasFile| -> Vec<_> {
            let describe = |v: &Variable| (v.path.clone(), v.element, v.shape.clone(), read(file, v));
            file.variables().iter().map(describe).collect()
        };
        assert_eq!(listed(&again), listed(&file), "{name}");
    }
}

#[test]
fn new_values_and_weights_files_are_written_for_keras() {
    let file = open("cnn.keras");
    // Every weight becomes its index over eight; `check_keras.py` knows.
    let counted = |variable: &Variable, out: &mut dyn Write| {
        if variable.element != Element::F32 {
            return out.write_all(&7i64.to_le_bytes());
        }
        (0..variable.bytes / 4).try_for_each(|i| out.write_all(&(i as f32 / 8.0).to_le_bytes()))
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    file.save(&folder.join("counted.keras"), counted).unwrap_or_else(|e| panic!("{e}"));
    let path = folder.join("counted.weights.h5");
    write_weights(&path, file.variables(), &file.labels(), counted).unwrap_or_else(|e| panic!("{e}"));
    let weights = KerasFile::open(&path).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(weights.kind(), Kind::Weights);
    assert_eq!(weights.variables().len(), 25);
    let head = weights.variable("layers/dense/vars/1").expect("the head's bias");
    assert_eq!(read(&weights, head), [0.0f32, 0.125, 0.25, 0.375].map(f32::to_le_bytes).concat());
}

#[test]
fn a_variable_written_short_or_long_is_an_error_and_leaves_no_file() {
    let file = open("cnn.keras");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("short.keras");
    let short = file.save(&path, |variable, out| out.write_all(&vec![0; variable.bytes - 1]));
    assert!(
        short.is_err_and(|e| e
            .to_string()
            .contains("\"layers/batch_normalization/vars/0\" has 8 bytes but 7"))
    );
    let long = file.save(&path, |variable, out| out.write_all(&vec![0; variable.bytes + 1]));
    assert!(long.is_err_and(|e| e.to_string().contains("more bytes than the 8")));
    assert!(!path.exists());
}

#[test]
fn thousands_of_variables_of_every_type_are_written_and_read_again() {
    let variables: Vec<Variable> = (0..3000)
        .map(|i| {
            let element = Element::ALL[i % Element::ALL.len()];
            let shape = [&[][..], &[3], &[2, 0], &[2, 1, 2]][i % 4];
            Variable::new(&format!("layers/layer_{i}/vars/0"), element, shape).expect("a small variable")
        })
        .collect();
    let labels = (0..3000).map(|i| (format!("layers/layer_{i}"), format!("name of {i} λ"))).collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("many.weights.h5");
    let bytes = |variable: &Variable| -> Vec<u8> {
        let seed = variable.path.len() + variable.path.bytes().map(usize::from).sum::<usize>();
        (0..variable.bytes).map(|i| ((seed + i) % 2) as u8).collect()
    };
    write_weights(&path, &variables, &labels, |variable, out| out.write_all(&bytes(variable)))
        .unwrap_or_else(|e| panic!("{e}"));
    // The superblock names the end of the file, which HDF5 compares with the file's own.
    let written = std::fs::read(&path).expect("what was written");
    assert_eq!(written[28..36], (written.len() as u64).to_le_bytes());
    let file = KerasFile::open(&path).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(file.variables().len(), 3000);
    for variable in &variables {
        let found = file.variable(&variable.path).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((found.element, &found.shape), (variable.element, &variable.shape));
        assert_eq!(read(&file, found), bytes(variable));
    }
}
