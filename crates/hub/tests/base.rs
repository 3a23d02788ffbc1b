//! Weights of few bits: the bits of bitsandbytes, and models that compute from them.

mod common;

use common::{Loaded, MODELS, fixture, furthest, golden, json, numbers, tokens};
use plimsoll_graph::quant::{QuantForm, QuantParts};
use plimsoll_graph::{DType, TensorOps};
use plimsoll_hub::{Adapter, Folder, Lora, Tuning};
use plimsoll_nn::{Model, Param};
use plimsoll_run::{Tape, Tensor};
use serde_json::Value;

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

fn singles(value: &Value) -> Vec<f32> {
    numbers(value).into_iter().map(|x| x as f32).collect()
}

/// The numbers that the script made its weights of.
fn weight(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    let drawn = |i: usize| {
        let x = ((i as u64 * 2_654_435_761 + seed * 40503) % (1 << 32)) >> 8;
        let x = (x as f64 / f64::from(1 << 24) - 0.5) as f32;
        let x = x * x * x;
        if i < 64 {
            0.0
        } else if i / columns % 3 == 1 {
            x * 10.0
        } else {
            x
        }
    };
    (0..rows * columns).map(drawn).collect()
}

/// A weight in few bits and back.
fn there_and_back(form: QuantForm, weight: &[f32], columns: usize) -> Vec<f32> {
    let parts = form.pack(weight, columns);
    let (blocks, scales, mean): (&[u8], _, _) = match form {
        QuantForm::Int8 => (&[], floats(&parts[1]), 0.0),
        QuantForm::Nf4 => (&parts[1], floats(&parts[2]), floats(&parts[3])[0]),
    };
    let mut out = vec![0.0; weight.len()];
    form.unpack(&QuantParts { codes: &parts[0], blocks, scales: &scales, mean }, columns, 0, &mut out);
    out
}

#[test]
fn bits_are_those_of_bitsandbytes() {
    for case in json(fixture("base.json"))["cases"].as_array().unwrap() {
        let of = |name: &str| case[name].as_u64().unwrap() as usize;
        let (rows, columns) = (of("rows"), of("columns"));
        let w = weight(rows, columns, of("seed") as u64);
        let some: Vec<f32> = w.iter().step_by(53).copied().collect();
        assert_eq!(some, singles(&case["some"]), "the script's weights are others");
        let (nf4, int8) = (&case["nf4"], &case["int8"]);
        let parts = QuantForm::Nf4.pack(&w, columns);
        assert!(parts[0] == bytes(&nf4["codes"]), "{rows} by {columns}: codes");
        assert_eq!(parts[1], bytes(&nf4["blocks"]), "{rows} by {columns}");
        let near = |a: &[f32], b: &[f32]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * (b.abs() + 0.1))
        };
        assert!(near(&floats(&parts[2]), &singles(&nf4["scales"])), "{:?}", floats(&parts[2]));
        assert!(near(&floats(&parts[3]), &[nf4["mean"].as_f64().unwrap() as f32]));
        let back: Vec<f32> = there_and_back(QuantForm::Nf4, &w, columns).into_iter().step_by(53).collect();
        assert!(near(&back, &singles(&nf4["back"])), "{back:?}");
        let half: Vec<f32> = w.iter().map(|x| half::f16::from_f32(*x).to_f32()).collect();
        let parts = QuantForm::Int8.pack(&half, columns);
        assert!(parts[0] == bytes(&int8["codes"]), "{rows} by {columns}: int8");
        assert_eq!(floats(&parts[1]), singles(&int8["scales"]));
    }
}

#[test]
fn a_model_over_few_bits_is_the_model_over_what_they_stand_for() {
    for name in MODELS {
        let x = tokens(&golden(name)["tokens"]);
        let logits = |loaded: &Loaded| {
            let mut net = loaded.net(false).predicting();
            loaded.model.forward(&mut net, std::slice::from_ref(&x)).unwrap().one().unwrap().to_f64().unwrap()
        };
        let plain = Loaded::new(name, Tuning::Frozen);
        for form in [QuantForm::Int8, QuantForm::Nf4] {
            let small = Loaded::based(name, Tuning::Frozen, form);
            let mut same = Loaded::in_f32(name, Tuning::Frozen);
            let mut replaced = 0;
            for (param, value) in same.params.iter().zip(&mut same.values) {
                if !small.params.iter().any(|own| own.name == format!("{}/codes", param.name)) {
                    continue;
                }
                assert_eq!(param.ty.dtype, DType::F32, "{name}");
                let numbers: Vec<f32> = value.to_f64().unwrap().into_iter().map(|x| x as f32).collect();
                let numbers = there_and_back(form, &numbers, param.ty.shape[1]);
                *value = Tensor::from_slice(&numbers, [param.ty.shape[0], param.ty.shape[1]]).unwrap();
                replaced += 1;
            }
            assert!(replaced >= 8, "{name}: only {replaced} weights are kept in few bits");
            let (found, expected) = (logits(&small), logits(&same));
            let (gap, at) = furthest(&found, &expected);
            assert!(gap < 1e-4, "{name} {form:?}: logit {at} is off by {gap}");
            assert!(furthest(&found, &logits(&plain)).0 > 1e-5, "{name} {form:?}: few bits change nothing");
        }
    }
}

/// The weight of a layer as PEFT merges it: m / ‖W + s B A‖ · (W + s B A), with a norm for each output; `[in, out]` where it is turned.
fn merged(w: &[f32], [a, b, m]: [&[f64]; 3], shape: [usize; 2], scale: f64, is_turned: bool) -> Vec<f32> {
    let [outputs, inputs] = if is_turned { [shape[1], shape[0]] } else { shape };
    let (rank, at) =
        (a.len() / inputs, |o: usize, i: usize| if is_turned { i * outputs + o } else { o * inputs + i });
    let mut out = vec![0.0; w.len()];
    for o in 0..outputs {
        let moved = |i: usize| {
            let sum: f64 = (0..rank).map(|r| b[o * rank + r] * a[r * inputs + i]).sum();
            f64::from(w[at(o, i)]) + scale * sum
        };
        let row: Vec<f64> = (0..inputs).map(moved).collect();
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        row.iter().enumerate().for_each(|(i, x)| out[at(o, i)] = (m[o] / norm * x) as f32);
    }
    out
}

#[test]
fn magnitudes_over_few_bits_are_those_over_what_they_stand_for() {
    for (name, is_turned) in [("llama", false), ("gpt2", true)] {
        let mut adapter = Adapter::open(fixture(&format!("{name}-dora"))).unwrap();
        let (lora, mut given) = (adapter.lora.clone(), Vec::new());
        let tuning = Tuning::Lora(lora.clone());
        let plain = Loaded::in_f32(name, tuning.clone());
        let mut spread = 0u32;
        let load = |param: &Param, bytes: &[u8]| {
            // Magnitudes that are no norms, and a B that is not zero, so that the norm is of W and the adapter.
            let numbers = floats(bytes).into_iter().map(|x| {
                spread = spread.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                x * 1.1 + (spread >> 8) as f32 / (1 << 26) as f32 - 0.1
            });
            given.push((param.name.clone(), numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()));
            Ok(())
        };
        adapter.load(&plain.params, load).unwrap();
        let x = tokens(&golden(name)["tokens"]);
        for form in [QuantForm::Int8, QuantForm::Nf4] {
            let small = Loaded::based_with(name, tuning.clone(), form, &given);
            let mut dense = Loaded::in_f32_with(name, tuning.clone(), &given);
            let mut frozen = Loaded::in_f32(name, Tuning::Frozen);
            let value = |parameter: String| {
                let found = given.iter().find(|(name, _)| *name == parameter)?;
                Some(floats(&found.1).into_iter().map(f64::from).collect::<Vec<f64>>())
            };
            let mut norms = Vec::new();
            for (param, dense) in dense.params.iter().zip(&mut dense.values) {
                if !small.params.iter().any(|own| own.name == format!("{}/codes", param.name)) {
                    continue;
                }
                let shape = [param.ty.shape[0], param.ty.shape[1]];
                let numbers: Vec<f32> = dense.to_f64().unwrap().into_iter().map(|x| x as f32).collect();
                let numbers = there_and_back(form, &numbers, shape[1]);
                *dense = Tensor::from_slice(&numbers, shape).unwrap();
                let layer = param.name.strip_suffix("/weight").unwrap();
                let of = |what: &str| value(format!("{layer}/{what}"));
                let at = frozen.params.iter().position(|other| other.name == param.name).unwrap();
                let numbers = match (of("lora_A/weight"), of("lora_B/weight"), of("lora_magnitude_vector")) {
                    (Some(a), Some(b), Some(m)) => {
                        let mut squares = vec![0.0; m.len()];
                        for (i, x) in numbers.iter().enumerate() {
                            let output = if is_turned { i % shape[1] } else { i / shape[1] };
                            squares[output] += f64::from(*x) * f64::from(*x);
                        }
                        let own: Vec<f64> = squares.into_iter().map(f64::sqrt).collect();
                        norms.push((format!("{layer}/lora_magnitude_vector"), own));
                        merged(&numbers, [&a, &b, &m], shape, lora.scale(), is_turned)
                    }
                    _ => numbers,
                };
                frozen.values[at] = Tensor::from_slice(&numbers, shape).unwrap();
            }
            assert!(norms.len() >= 4, "{name}: {} layers have magnitudes", norms.len());
            let found = logits_and_gradients(&small, &x);
            let expected = logits_and_gradients(&dense, &x);
            let of_merged = logits_and_gradients(&frozen, &x);
            let gap = furthest(&found.0, &of_merged.0).0;
            assert!(gap < 2e-4, "{name} {form:?}: logits are off by {gap} from PEFT's formula");
            assert!(furthest(&found.0, &expected.0).0 < 2e-4, "{name} {form:?}");
            assert!(!found.1.is_empty() && found.1.len() == expected.1.len());
            for ((parameter, found), (_, expected)) in found.1.iter().zip(&expected.1) {
                let most = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                let gap = furthest(found, expected).0;
                assert!(gap <= 1e-3 * most + 1e-7, "{name} {form:?} {parameter}: off by {gap} of {most}");
            }
            // They begin as the norms of what the bits stand for.
            let mut n = 0;
            let mut folder = Folder::open(fixture(name)).unwrap();
            let begins = |param: &Param, bytes: &[u8]| {
                let (_, wanted) = norms.iter().find(|(name, _)| *name == param.name).unwrap();
                for (found, wanted) in floats(bytes).iter().zip(wanted) {
                    assert!((f64::from(*found) - wanted).abs() <= 1e-4 * wanted, "{name} {}", param.name);
                }
                n += 1;
                Ok(())
            };
            folder.magnitudes(&small.params, begins).unwrap();
            assert_eq!(n, norms.len(), "{name}");
        }
    }
}

/// Logits, and gradients of a loss over them of everything that is trained.
fn logits_and_gradients(loaded: &Loaded, x: &Tensor) -> (Vec<f64>, Vec<(String, Vec<f64>)>) {
    let tape = Tape::new();
    let all = loaded.params.iter().zip(&loaded.values).filter(|(param, _)| param.trained);
    let (params, trained): (Vec<&Param>, Vec<&Tensor>) = all.unzip();
    trained.iter().for_each(|value| tape.watch(value).unwrap());
    let outputs = loaded.model.forward(&mut loaded.net(false).predicting(), std::slice::from_ref(x)).unwrap();
    let logits = outputs.one().unwrap();
    let loss = logits.square().unwrap().mean(&[], false).unwrap();
    let grads = if trained.is_empty() { Vec::new() } else { tape.gradient(&loss, &trained).unwrap() };
    let named = params.iter().zip(&grads).map(|(param, grad)| (param.name.clone(), grad.to_f64().unwrap()));
    (logits.to_f64().unwrap(), named.collect())
}

#[test]
fn few_bits_take_few_bytes_and_trained_weights_are_never_kept_so() {
    let bytes = |loaded: &Loaded| -> usize {
        loaded.params.iter().filter(|param| param.name.contains("_proj/")).map(|param| param.ty.bytes()).sum()
    };
    let plain = bytes(&Loaded::new("llama", Tuning::Frozen));
    let int8 = bytes(&Loaded::based("llama", Tuning::Frozen, QuantForm::Int8));
    let nf4 = bytes(&Loaded::based("llama", Tuning::Frozen, QuantForm::Nf4));
    // Stored in bf16; the rows are short, so that scales count.
    assert!(3 * nf4 < plain && int8 < plain && nf4 < int8, "{plain} {int8} {nf4}");
    let full = Loaded::based("llama", Tuning::Full, QuantForm::Nf4);
    assert!(full.params.iter().all(|param| param.trained && param.ty.dtype == DType::F32));
    let lora = Lora::new(2);
    let net = plimsoll_hub::Decoder { tuning: Tuning::Lora(lora), ..full.model.clone() };
    let params = plimsoll_nn::Net::discover(&[plimsoll_graph::Type::new(DType::I64, [2, 8])], &net).unwrap();
    assert!(params.iter().filter(|param| param.trained).all(|param| param.name.contains("lora_")));
    assert!(params.iter().any(|param| param.name.ends_with("weight/blocks") && !param.trained));
}
