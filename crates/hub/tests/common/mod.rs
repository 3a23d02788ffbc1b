//! What tests of models share: folders that a script made, with their golden values, and models over values that are there.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::path::{Path, PathBuf};

use plimsoll_graph::quant::QuantForm;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_hub::{Decoder, Folder, Tuning};
use plimsoll_nn::{Net, Param};
use plimsoll_run::{Tape, Tensor};
use serde_json::Value;

/// Every model that the script makes.
pub const MODELS: &[&str] = &["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2"];

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn json(path: PathBuf) -> Value {
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

pub fn golden(name: &str) -> Value {
    json(fixture(name).join("golden.json"))
}

pub fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Tokens `[B, T]` of a list of lists.
pub fn tokens(value: &Value) -> Tensor {
    let rows: Vec<Vec<i64>> = serde_json::from_value(value.clone()).unwrap();
    let shape = [rows.len(), rows[0].len()];
    Tensor::from_slice(&rows.concat(), shape).unwrap()
}

/// A folder's model with its parameters and their values.
pub struct Loaded {
    pub model: Decoder,
    pub params: Vec<Param>,
    pub values: Vec<Tensor>,
}

impl Loaded {
    pub fn new(name: &str, tuning: Tuning) -> Loaded {
        Loaded::of(&fixture(name), tuning)
    }

    pub fn of(path: &Path, tuning: Tuning) -> Loaded {
        Loaded::with(path, tuning, |model| model, |_| Vec::new())
    }

    /// With the weights of linear layers in few bits.
    pub fn based(name: &str, tuning: Tuning, form: QuantForm) -> Loaded {
        Loaded::with(&fixture(name), tuning, |model| Decoder { base: Some(form), ..model }, |_| Vec::new())
    }

    /// The same with the values of some more parameters.
    pub fn based_with(name: &str, tuning: Tuning, form: QuantForm, more: &[(String, Vec<u8>)]) -> Loaded {
        let of_few_bits = |model| Decoder { base: Some(form), ..model };
        Loaded::with(&fixture(name), tuning, of_few_bits, |_| more.to_vec())
    }

    /// With weights in f32, however they are stored.
    pub fn in_f32(name: &str, tuning: Tuning) -> Loaded {
        Loaded::in_f32_with(name, tuning, &[])
    }

    /// The same with the values of some more parameters.
    pub fn in_f32_with(name: &str, tuning: Tuning, more: &[(String, Vec<u8>)]) -> Loaded {
        let in_f32 = |model| Decoder { kept: DType::F32, ..model };
        Loaded::with(&fixture(name), tuning, in_f32, |_| more.to_vec())
    }

    /// With the values of some more parameters.
    pub fn new_with(
        name: &str,
        tuning: Tuning,
        more: impl FnOnce(&[Param]) -> Vec<(String, Vec<u8>)>,
    ) -> Loaded {
        Loaded::with(&fixture(name), tuning, |model| model, more)
    }

    fn with(
        path: &Path,
        tuning: Tuning,
        change: impl FnOnce(Decoder) -> Decoder,
        more: impl FnOnce(&[Param]) -> Vec<(String, Vec<u8>)>,
    ) -> Loaded {
        let mut folder = Folder::open(path).unwrap();
        let model = change(folder.decoder(tuning));
        let params = Net::discover(&[Type::new(DType::I64, [2, 8])], &model).unwrap();
        let mut values: Vec<Tensor> = params.iter().map(|p| Tensor::zeros(p.ty.clone()).unwrap()).collect();
        let at = |name: &str| params.iter().position(|p| p.name == name).unwrap();
        folder
            .load(&params, |param, bytes| {
                values[at(&param.name)].set_bytes(bytes).unwrap();
                Ok(())
            })
            .unwrap();
        for (name, bytes) in more(&params) {
            values[at(&name)].set_bytes(&bytes).unwrap();
        }
        Loaded { model, params, values }
    }

    pub fn net(&self, training: bool) -> Net {
        Net::bound(&self.params, &self.values, training)
    }
}

/// The largest difference, and where.
pub fn furthest(found: &[f64], expected: &[f64]) -> (f64, usize) {
    assert_eq!(found.len(), expected.len());
    let gaps =
        found.iter().zip(expected).map(|(a, b)| if a.is_nan() { f64::INFINITY } else { (a - b).abs() });
    gaps.enumerate().fold((0.0, 0), |most, (i, gap)| if gap > most.0 { (gap, i) } else { most })
}

/// Logits `[B, T, V]` at some tokens, and the log of the sum of their exponentials.
pub fn looked_at(logits: &Tensor, seen: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let vocabulary = *logits.shape().last().unwrap();
    let all = logits.to_f64().unwrap();
    let rows = all.chunks_exact(vocabulary);
    let some = rows.clone().flat_map(|row| seen.iter().map(|&i| row[i])).collect();
    let sums = rows.map(|row| row.iter().map(|x| x.exp()).sum::<f64>().ln()).collect();
    (some, sums)
}

/// Holds a loss against the script's, and the gradients of all parameters against the three numbers that it kept of each.
pub fn check_training(
    name: &str,
    golden: &Value,
    (params, values): (&[Param], &[Tensor]),
    loss: impl FnOnce() -> Tensor,
    tolerance: f64,
) {
    let tape = Tape::new();
    let wrt: Vec<&Tensor> = values.iter().collect();
    wrt.iter().for_each(|w| tape.watch(w).unwrap());
    let loss = loss();
    let expected = golden["loss"].as_f64().unwrap();
    assert!((loss.item().unwrap() - expected).abs() < tolerance, "{name}: {loss:?} {expected}");
    let grads = tape.gradient(&loss, &wrt).unwrap();
    let expected = golden["gradients"].as_object().unwrap();
    assert_eq!(expected.len(), params.len(), "{name}");
    for (param, grad) in params.iter().zip(&grads) {
        let named = param.name.replace('/', ".");
        let grad = grad.to_f64().unwrap();
        let sum = grad.iter().sum::<f64>();
        let weighed = grad.iter().enumerate().map(|(i, g)| g * (i as f64).cos()).sum::<f64>();
        let norm = grad.iter().map(|g| g * g).sum::<f64>().sqrt();
        let (gap, at) = furthest(&[sum, weighed, norm], &numbers(&expected[&named]));
        assert!(gap < tolerance, "{name} {named}: number {at} of its gradient is off by {gap}");
        // Scores do not change with a bias of keys that no position turns.
        let is_flat = ["key.bias", "k_lin.bias"].iter().any(|end| named.ends_with(end));
        assert!(norm > 1e-7 || is_flat, "{name} {named}: its gradient is zero");
    }
}
