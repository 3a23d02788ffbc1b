//! Adapters against PEFT: twenty steps, what was trained as a folder of PEFT's, and merged weights.

mod common;

use std::path::PathBuf;

use common::{Loaded, fixture, furthest, golden, json, looked_at, numbers, tokens};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_hub::{Adapter, Folder, TokenLoss, Tuning, merge, save_adapter};
use plimsoll_nn::{Adam, Decay, Model, Net, Recipe, Training};
use plimsoll_run::Tensor;
use serde_json::Value;

/// Models, each with its folders of adapters.
const MODELS: &[(&str, &str)] =
    &[("llama", "llama-adapter"), ("gpt2", "gpt2-adapter"), ("llama", "llama-dora"), ("gpt2", "gpt2-dora")];

/// A training of a model's adapters, with the weights of the folders.
fn training(name: &str, folder: &str, golden: &Value) -> (Training, Adapter) {
    let mut adapter = Adapter::open(fixture(folder)).unwrap();
    let mut folder = Folder::open(fixture(name)).unwrap();
    let model = folder.decoder(Tuning::Lora(adapter.lora.clone()));
    let [b, t] = [2, golden["tokens"][0][0].as_array().unwrap().len() - 1];
    let of = |dtype| Type::new(dtype, [b, t]);
    let adam = Adam { decay: Decay::decoupled(0.01), ..Adam::new(1e-2) };
    let mut recipe = Recipe::new(TokenLoss::default(), adam, of(DType::I64), of(DType::I64));
    recipe.labels.push(of(DType::F32));
    let mut training = Training::blank(model.clone(), recipe.clone()).unwrap();
    let params = training.params().to_vec();
    folder.load(&params, |param, bytes| Ok(training.restore(&param.name, bytes)?)).unwrap();
    adapter.load(&params, |param, bytes| Ok(training.restore(&param.name, bytes)?)).unwrap();
    training.begin(model, recipe, 1).unwrap();
    (training, adapter)
}

fn sums(tensor: &Tensor) -> [f64; 3] {
    let all = tensor.to_f64().unwrap();
    let weighed = all.iter().enumerate().map(|(i, x)| x * (i as f64).cos()).sum();
    [all.iter().sum(), weighed, all.iter().map(|x| x * x).sum::<f64>().sqrt()]
}

/// The name that PEFT has for a parameter while it trains.
fn peft_name(parameter: &str) -> String {
    let name = parameter.replace('/', ".");
    format!("base_model.model.{}.default.weight", name.strip_suffix(".weight").unwrap_or(&name))
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()))
}

#[test]
fn twenty_steps_of_adapters_are_those_of_peft() {
    for (model, name) in MODELS {
        let golden = golden(name);
        let (mut training, adapter) = training(model, name, &golden);
        let n = training.params().iter().filter(|param| param.trained).count();
        assert_eq!(n, golden["after"].as_object().unwrap().len(), "{name}: nothing but adapters is trained");
        let mut losses = Vec::new();
        for batch in golden["tokens"].as_array().unwrap() {
            let all = tokens(batch);
            let [b, t] = [all.shape()[0], all.shape()[1]];
            let (x, next) = (all.narrow(1, 0, t - 1).unwrap(), all.narrow(1, 1, t).unwrap());
            let weights = Tensor::full(Type::new(DType::F32, [b, t - 1]), 1.0 / (t - 1) as f64).unwrap();
            losses.push(training.run(&[&x, &next, &weights]).unwrap().loss);
        }
        let (gap, at) = furthest(&losses, &numbers(&golden["losses"]));
        assert!(gap < 1e-4, "{name}: the loss of step {at} is off by {gap}");
        for (param, value) in
            training.params().iter().zip(training.values()).filter(|(param, _)| param.trained)
        {
            let named = peft_name(&param.name);
            let (gap, _) = furthest(&sums(value), &numbers(&golden["after"][&named]));
            assert!(gap < 1e-3, "{name} {named}: off by {gap} after twenty steps");
        }
        // What was trained comes back from a folder, and merged into the weights gives the same logits.
        let (saved, merged) = (temporary(name), temporary(&format!("{name}-merged")));
        let values = training.params().iter().zip(training.values());
        let family = Folder::open(fixture(model)).unwrap().config.family;
        save_adapter(&saved, &adapter.lora, family, model, values).unwrap();
        let mut back = Adapter::open(&saved).unwrap();
        let told = |adapter: &Adapter| (adapter.lora.rank, adapter.lora.scale(), adapter.lora.has_magnitudes);
        assert_eq!(told(&back), told(&adapter));
        let x = tokens(&golden["tokens"][0]);
        let expected = numbers(&golden["log_sums"]);
        let mut loaded = Loaded::new_with(model, Tuning::Lora(back.lora.clone()), |params| {
            let mut found = Vec::new();
            back.load(params, |param, bytes| {
                found.push((param.name.clone(), bytes.to_vec()));
                Ok(())
            })
            .unwrap();
            found
        });
        let logits = loaded
            .model
            .forward(&mut loaded.net(false).predicting(), std::slice::from_ref(&x))
            .unwrap()
            .one()
            .unwrap();
        let gap = furthest(&looked_at(&logits, &[0]).1, &expected).0;
        assert!(gap < 1e-3, "{name}: adapters that came back are off by {gap}");
        merge(&mut Folder::open(fixture(model)).unwrap(), &mut back, &merged).unwrap();
        loaded = Loaded::of(&merged, Tuning::Frozen);
        let logits = loaded.model.forward(&mut loaded.net(false).predicting(), &[x]).unwrap().one().unwrap();
        // Weights are rounded to bf16 again.
        let gap = furthest(&looked_at(&logits, &[0]).1, &expected).0;
        assert!(gap < 3e-2, "{name}: merged weights are off by {gap}");
        std::fs::remove_dir_all(&saved).unwrap();
        std::fs::remove_dir_all(&merged).unwrap();
    }
}

#[test]
fn magnitudes_begin_as_the_norms_that_peft_begins_with() {
    for (model, name) in MODELS.iter().filter(|(_, name)| name.ends_with("-dora")) {
        let golden = golden(name);
        let mut folder = Folder::open(fixture(model)).unwrap();
        let lora = Adapter::open(fixture(name)).unwrap().lora;
        let params =
            Net::discover(&[Type::new(DType::I64, [1, 4])], &folder.decoder(Tuning::Lora(lora))).unwrap();
        let mut n = 0;
        folder
            .magnitudes(&params, |param, bytes| {
                let norms: Vec<f32> =
                    bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
                let sums = sums(&Tensor::from_slice(&norms, [norms.len()])?);
                let (gap, _) = furthest(&sums, &numbers(&golden["magnitudes"][&peft_name(&param.name)]));
                assert!(gap < 1e-5, "{name} {}: off by {gap}", param.name);
                n += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(n, golden["magnitudes"].as_object().unwrap().len(), "{name}");
    }
}

#[test]
fn an_adapter_of_another_model_is_refused_by_the_names_of_tensors() {
    let mut adapter = Adapter::open(fixture("gpt2-adapter")).unwrap();
    let model = Folder::open(fixture("llama")).unwrap().decoder(Tuning::Lora(adapter.lora.clone()));
    let params = Net::discover(&[Type::new(DType::I64, [1, 4])], &model).unwrap();
    let error = adapter.load(&params, |_, _| Ok(())).unwrap_err().to_string();
    assert!(error.contains("transformer.h.0") && error.contains("adapter_model.safetensors"), "{error}");
    let out = temporary("wrong-merge");
    let error =
        merge(&mut Folder::open(fixture("llama")).unwrap(), &mut adapter, &out).unwrap_err().to_string();
    assert!(error.contains("0 belong"), "{error}");
    std::fs::remove_dir_all(&out).unwrap();
}

#[test]
fn frozen_weights_have_no_gradient_no_state_and_no_copy() {
    let golden = json(fixture("llama-adapter/golden.json"));
    let (training, adapter) = training("llama", "llama-adapter", &golden);
    let given: Vec<_> = training.params().iter().filter(|param| param.is_given()).collect();
    assert!(given.iter().all(|param| param.ty.dtype == DType::BF16), "as the file stores them");
    let moments = training.state().filter(|(name, _)| name.contains('/') && name.contains(".m")).count();
    assert!(moments > 0);
    let slots = training.state().count() - training.params().len();
    // Two moments an adapter, and a few single values.
    assert!(slots <= 2 * (training.params().len() - given.len()) + 5, "{slots}");
    assert_eq!(adapter.lora.rank, 2);
}
