//! Every architecture against transformers: logits, losses, gradients of all weights, texts packed into one sequence.

mod common;

use common::{Loaded, MODELS, check_training, fixture, furthest, golden, json, looked_at, numbers, tokens};
use plimsoll_graph::{GatherOps, TensorOps};
use plimsoll_hub::{Config, Family, TokenLoss, Tuning};
use plimsoll_nn::{Loss, Model};
use plimsoll_run::Tensor;
use serde_json::Value;

const TOLERANCE: f64 = 1e-4;

/// A model, what transformers makes of it, and of which tokens.
fn with_tokens(name: &str, tuning: Tuning) -> (Loaded, Value, Tensor) {
    let golden = golden(name);
    let tokens = tokens(&golden["tokens"]);
    (Loaded::new(name, tuning), golden, tokens)
}

#[test]
fn logits_are_those_of_transformers() {
    for name in MODELS {
        let (loaded, golden, x) = with_tokens(name, Tuning::Frozen);
        let logits = loaded.model.forward(&mut loaded.net(false).predicting(), &[x]).unwrap().one().unwrap();
        let seen: Vec<usize> = serde_json::from_value(golden["seen"].clone()).unwrap();
        let (some, sums) = looked_at(&logits, &seen);
        let (gap, at) = furthest(&some, &numbers(&golden["logits"]));
        assert!(gap < TOLERANCE, "{name}: a logit is off by {gap} at {at}");
        let (gap, at) = furthest(&sums, &numbers(&golden["log_sums"]));
        assert!(gap < TOLERANCE, "{name}: a sum is off by {gap} at {at}");
    }
}

#[test]
fn losses_and_the_gradients_of_all_weights_are_those_of_transformers() {
    for name in MODELS {
        let (loaded, golden, all) = with_tokens(name, Tuning::Full);
        let [b, t] = [all.shape()[0], all.shape()[1]];
        let (x, next) = (all.narrow(1, 0, t - 1).unwrap(), all.narrow(1, 1, t).unwrap());
        let weights = Tensor::full(
            plimsoll_graph::Type::new(plimsoll_graph::DType::F32, [b, t - 1]),
            1.0 / (t - 1) as f64,
        );
        let loss = || {
            let outputs = loaded.model.forward(&mut loaded.net(false), &[x]).unwrap();
            let loss = TokenLoss { logit_cap: loaded.model.config.caps.logits, ..TokenLoss::default() };
            loss.loss(&outputs, &[next, weights.unwrap()]).unwrap()
        };
        check_training(name, &golden, (&loaded.params, &loaded.values), loss, TOLERANCE);
    }
}

#[test]
fn a_text_that_is_packed_behind_another_sees_nothing_of_it() {
    for name in MODELS {
        let (loaded, golden, x) = with_tokens(name, Tuning::Frozen);
        let [b, t] = [x.shape()[0], x.shape()[1]];
        let starts: Vec<usize> = serde_json::from_value(golden["packed"]["starts"].clone()).unwrap();
        let of = |i: usize| (i - starts.iter().filter(|s| **s <= i).max().unwrap()) as i64;
        let positions: Vec<i64> = (0..b).flat_map(|_| (0..t).map(of)).collect();
        let positions = Tensor::from_slice(&positions, [b, t]).unwrap();
        let mut net = loaded.net(false).predicting();
        let logits = loaded.model.forward(&mut net, &[x, positions]).unwrap().one().unwrap();
        let seen: Vec<usize> = serde_json::from_value(golden["seen"].clone()).unwrap();
        let (some, sums) = looked_at(&logits, &seen);
        assert!(furthest(&some, &numbers(&golden["packed"]["logits"])).0 < TOLERANCE, "{name}");
        assert!(furthest(&sums, &numbers(&golden["packed"]["log_sums"])).0 < TOLERANCE, "{name}");
        assert!(
            furthest(&sums, &numbers(&golden["log_sums"])).0 > TOLERANCE,
            "{name}: packing changes nothing"
        );
    }
}

#[test]
fn angles_are_those_of_transformers_for_every_way_to_stretch_them() {
    let cases = json(fixture("ropes.json"));
    for case in cases.as_array().unwrap() {
        let config = serde_json::json!({"model_type": "llama", "hidden_size": 128, "num_attention_heads": 2, "head_dim": 64,
            "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 10, "max_position_embeddings": 131072,
            "rope_parameters": case["parameters"]});
        let config = Config::read(config).unwrap();
        assert_eq!(config.family, Family::Llama);
        let (angles, scale) = config.ropes[0].angles(case["length"].as_u64().unwrap() as usize);
        let kind = &case["parameters"]["rope_type"];
        assert!((scale - case["scale"].as_f64().unwrap()).abs() < 1e-6, "{kind}: {scale}");
        for (i, (found, expected)) in angles.iter().zip(numbers(&case["angles"])).enumerate() {
            assert!((f64::from(*found) / expected - 1.0).abs() < 1e-6, "{kind} {i}: {found} {expected}");
        }
    }
}

#[test]
fn a_token_outside_the_vocabulary_is_an_error() {
    let loaded = Loaded::new("llama", Tuning::Frozen);
    let x = Tensor::from_slice(&[1i64, 288], [1, 2]).unwrap();
    assert!(loaded.values[0].embedding(&x).is_err());
}
