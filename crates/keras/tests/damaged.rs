//! Thousands of damaged variants of the fixtures: each is refused, or is a model; nothing panics, nothing grows.
//!
//! A run takes a few seconds; `MUTATIONS=10000` runs as many of each kind as are wanted.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plimsoll_formats::keras::{Contents, KerasFile, Limits, write_keras};
use plimsoll_keras::KerasModel;
use plimsoll_run::Tensor;
use plimsoll_testing::{Counting, Dice};
use serde_json::Value;

#[global_allocator]
static COUNTING: Counting = Counting;

/// No fixture needs a tenth of this in one piece.
const MOST_BYTES: usize = 8 << 20;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn mutations() -> usize {
    std::env::var("MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

fn limits() -> Limits {
    Limits { json: 1 << 20, inflated: 4 << 20, ..Limits::default() }
}

/// Opens a file and reads what it holds. `true` if it is a model.
fn is_model(bytes: Vec<u8>) -> bool {
    // The device reserves room for all its tensors when the first is made.
    static DEVICE: OnceLock<()> = OnceLock::new();
    DEVICE.get_or_init(|| drop(Tensor::from_slice(&[0.0f32], [1]).unwrap()));
    Counting::forget_largest();
    let opened = KerasModel::from_bytes(bytes, "damaged", &limits());
    let ok = match opened {
        Ok(model) => {
            let values = model.values();
            if let Ok(compiled) = model.compiled() {
                assert_eq!(compiled.model.n_outputs(), model.n_outputs());
            }
            values.is_ok()
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    };
    let largest = Counting::largest();
    assert!(largest <= MOST_BYTES, "one allocation of {largest} bytes");
    ok
}

const FILES: [&str; 8] = [
    "mlp.keras",
    "cnn.keras",
    "rnn.keras",
    "attention.keras",
    "branches.keras",
    "masked.keras",
    "merges.keras",
    "norms.keras",
];

#[test]
fn damaged_bytes_are_refused_or_harmless() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let (mut models, n) = (0, mutations());
    for name in FILES.iter().chain(&["legacy.h5", "legacy_rnn.h5"]) {
        let whole = std::fs::read(fixture(name)).unwrap();
        assert!(is_model(whole.clone()), "{name} itself");
        for i in 0..n / 10 {
            let mut bytes = whole.clone();
            match i % 4 {
                0 => bytes.truncate(dice.roll(whole.len())),
                1 => (0..=dice.roll(4)).for_each(|_| {
                    let at = dice.roll(whole.len());
                    bytes[at] ^= 1 << dice.roll(8);
                }),
                2 => (0..8).for_each(|_| {
                    let at = dice.roll(whole.len());
                    bytes[at] = dice.roll(256) as u8;
                }),
                _ => {
                    // A piece from elsewhere.
                    let (from, to, size) = (dice.roll(whole.len()), dice.roll(whole.len()), dice.roll(64));
                    let size = size.min(whole.len() - from).min(whole.len() - to);
                    bytes[to..to + size].copy_from_slice(&whole[from..from + size]);
                }
            }
            models += usize::from(is_model(bytes));
        }
    }
    println!("{models} of {n} were still models");
}

/// All places in a configuration, as pointers.
fn places(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            places(value, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), found);
        }),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, value)| places(value, format!("{at}/{i}"), found))
        }
        _ => {}
    }
    found.push(at);
}

/// Values that a careless reader trips over.
fn strange(dice: &mut Dice) -> Value {
    const WORDS: [&str; 10] = [
        "",
        "same",
        "softmax",
        "Dense",
        "LSTM",
        "Lambda",
        "float64",
        "mixed_bfloat16",
        "abc,cd->abd",
        "input_layer",
    ];
    match dice.roll(14) {
        0 => Value::Null,
        1 => Value::Bool(dice.roll(2) == 0),
        2 => Value::from(0),
        3 => Value::from(-1),
        4 => Value::from(u64::MAX),
        5 => Value::from(1u64 << (8 * dice.roll(8))),
        6 => Value::from(1e308),
        7 => Value::from(0.5),
        8 => Value::from(dice.roll(9)),
        9 => Value::Array(Vec::new()),
        10 => Value::Array(vec![Value::from(1 << 20); 4]),
        11 => Value::Object(serde_json::Map::new()),
        12 => Value::Array(vec![Value::from(2); 40]),
        _ => Value::from(WORDS[dice.roll(WORDS.len())]),
    }
}

#[test]
fn damaged_configurations_are_refused_or_models_of_their_own() {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let (mut models, n) = (0, mutations());
    let path = std::env::temp_dir().join(format!("plimsoll-keras-damaged-{}.keras", std::process::id()));
    for name in FILES {
        let file = KerasFile::open(fixture(name)).unwrap();
        let config: Value = serde_json::from_str(file.config_json()).unwrap();
        let mut all = Vec::new();
        places(&config, String::new(), &mut all);
        // The layers' own settings are what matters here, more than their initializers.
        all.retain(|at| !at.contains("initializer") && !at.contains("shared_object_id"));
        let labels = file.labels();
        for _ in 0..n / FILES.len() {
            let mut damaged = config.clone();
            for _ in 0..=dice.roll(2) {
                let at = &all[dice.roll(all.len())];
                if let Some(value) = damaged.pointer_mut(at) {
                    *value = strange(&mut dice);
                }
            }
            let text = damaged.to_string();
            let contents = Contents {
                config: &text,
                metadata: file.metadata_json(),
                variables: file.variables(),
                labels: &labels,
            };
            let copied = write_keras(&path, &contents, |variable, out| {
                let mut bytes = vec![0; variable.bytes];
                file.read_into(&variable.path, &mut bytes).map_err(std::io::Error::other)?;
                out.write_all(&bytes)
            });
            copied.unwrap();
            models += usize::from(is_model(std::fs::read(&path).unwrap()));
        }
    }
    std::fs::remove_file(&path).unwrap();
    println!("{models} of {n} were still models");
}
