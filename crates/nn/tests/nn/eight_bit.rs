//! Optimizers whose state is bytes: against the definition of the codes, against training in f32, and in memory.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::{
    Adafactor, Adagrad, Adam, Averaged, EightBit, Ftrl, Kept, Optimizer, Recipe, RmsProp, Sgd,
};
use plimsoll_run::{Device, Result, Tensor};

use crate::narrow_state::{bits, learns_as_in_f32, numbers, optimizers, param, recipe, step_of, train};

const BLOCK: usize = 256;

/// The values of the paper's dynamic tree, as its authors make them: in decade i the middles of 2^i even pieces of 0.1 to 1 (twice as many
/// without a sign), times a power of ten; then 0 and 1; in order.
fn dynamic_map(signed: bool) -> Vec<f64> {
    let mut all = vec![0.0, 1.0];
    for i in 0..7 {
        let pieces = if signed { 1 << i } else { 2 << i };
        let edges: Vec<f64> = (0..=pieces).map(|k| 0.1 + 0.9 * f64::from(k) / f64::from(pieces)).collect();
        for pair in edges.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0 * 10f64.powi(i - 6);
            all.push(middle);
            if signed {
                all.push(-middle);
            }
        }
    }
    all.sort_by(f64::total_cmp);
    assert_eq!(all.len(), 256);
    all
}

/// Numbers from codes and scales, by definition.
fn unpacked(map: &[f64], codes: &[u8], scales: &[f32]) -> Vec<f32> {
    let number = |(i, &code): (usize, &u8)| map[usize::from(code)] as f32 * scales[i / BLOCK];
    codes.iter().enumerate().map(number).collect()
}

/// Holds codes and scales against the numbers that they are to stand for.
fn check_packed(map: &[f64], codes: &[u8], scales: &[f32], numbers: &[f32], what: &str) {
    let is_signed = map[0] < 0.0;
    for (block, numbers) in numbers.chunks(BLOCK).enumerate() {
        let most = numbers.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert_eq!(scales[block], most, "{what}: the scale of block {block}");
        for (i, &x) in numbers.iter().enumerate() {
            let x = f64::from(x) / f64::from(most);
            let distance = |value: &f64| (value - x).abs();
            let nearest = map.iter().map(distance).fold(f64::INFINITY, f64::min);
            let code = usize::from(codes[block * BLOCK + i]);
            if !is_signed && x > 0.0 && code == 1 {
                // What is divided by is never rounded to nothing.
                assert!(distance(&map[1]) <= nearest + 1e-7 || x < map[1], "{what}: {x}");
                continue;
            }
            assert!(distance(&map[code]) <= nearest + 1e-7, "{what}: {x} is no {}", map[code]);
            assert!(is_signed || x == 0.0 || code > 0, "{what}: {x} became zero");
        }
    }
}

#[test]
fn a_step_is_that_of_f32_from_what_the_bytes_stand_for_and_its_state_the_nearest_bytes() -> Result<()> {
    // Whole blocks and one that is not.
    let n = 18 * BLOCK + 77;
    let param = param(n);
    let key = Tensor::from_slice(&[0i64; 2], [2])?;
    let (signed, unsigned) = (dynamic_map(true), dynamic_map(false));
    for (name, plain) in optimizers() {
        let coded = EightBit::of(&*plain).expect("a form with 8-bit state");
        let mut step = step_of(coded, &param, &numbers(n, 1), 0)?;
        let mut count = 0.0f32;
        for round in 0..4 {
            let grad = Tensor::from_slice(&numbers(n, 10 + round), [n])?;
            let before = step
                .state()
                .iter()
                .map(|t| Tensor::from_f64(&t.to_f64()?, t.ty().clone()))
                .collect::<Result<Vec<_>>>()?;
            step.run(&[&grad, &key])?;
            // The same from f32 state that has the values of the bytes.
            let states = (before.len() - 2) / 2;
            let maps = [&signed, &unsigned];
            let mut same = step_of(plain.clone(), &param, &before[0].to_vec::<f32>()?, 0)?;
            for state in 0..states {
                let (codes, scales) = (&before[1 + 2 * state], &before[2 + 2 * state]);
                let old = unpacked(maps[state], &codes.to_vec::<u8>()?, &scales.to_vec::<f32>()?);
                let bytes: Vec<u8> = old.iter().flat_map(|x| x.to_ne_bytes()).collect();
                same.set_state(1 + state, &bytes)?;
            }
            same.set_state(1 + states, &count.to_ne_bytes())?;
            same.run(&[&grad, &key])?;
            count += 1.0;
            let found = step.state();
            assert_eq!(found[0].to_vec::<f32>()?, same.state()[0].to_vec::<f32>()?, "{name}, round {round}");
            for state in 0..states {
                let (codes, scales) = (&found[1 + 2 * state], &found[2 + 2 * state]);
                let wanted = same.state()[1 + state].to_vec::<f32>()?;
                let what = format!("{name}, round {round}, state {state}");
                check_packed(maps[state], &codes.to_vec::<u8>()?, &scales.to_vec::<f32>()?, &wanted, &what);
            }
        }
    }
    Ok(())
}

#[test]
fn a_training_learns_as_in_f32_with_a_quarter_of_the_state() {
    learns_as_in_f32(
        0.05,
        |plain| EightBit::of(plain).unwrap(),
        |small, whole| small * 100 <= whole * 30 && small * 4 >= whole,
    );
}

#[test]
fn the_same_training_has_the_same_bits_on_any_number_of_threads_and_in_any_parts() {
    let adam = || EightBit::of(&Averaged::new(Adam::new(1e-2), 0.9)).unwrap();
    let all = |threads: usize, change: fn(&mut Recipe)| {
        let cpu = Device::cpu_with(threads, Bytes::mib(256)).unwrap();
        cpu.scope(|| {
            let mut recipe = recipe(adam());
            change(&mut recipe);
            let (_, training) = train(recipe, 70).unwrap();
            bits(&training)
        })
    };
    let one = all(1, |_| ());
    assert!(one == all(3, |_| ()), "other bits on three threads");
    assert!(one.contains_key("in/weight.m.codes") && one.contains_key("in/weight.average"));
    assert!(one.contains_key("in/bias.m"), "small parameters keep f32");
    let split = all(1, |recipe| recipe.request.micro_batch = Some(8));
    let weights = |state: &HashMap<String, Vec<u8>>| -> Vec<f32> { floats(&state["out/weight"]) };
    let far = weights(&one).iter().zip(weights(&split)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far < 0.05, "in micro-batches the weights are {far} away");
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect()
}

#[test]
fn optimizers_without_such_a_form_say_so() {
    let none: [Arc<dyn Optimizer>; 5] = [
        Arc::new(Sgd::new(0.1)),
        Arc::new(Adagrad::new(0.1)),
        Arc::new(RmsProp::new(0.1)),
        Arc::new(Ftrl::new(0.1)),
        Arc::new(Adafactor::new(0.1)),
    ];
    for optimizer in none {
        assert!(EightBit::of(&*optimizer).is_none(), "{}", optimizer.name());
    }
    let adam = EightBit::of(&Adam::new(0.1)).unwrap();
    assert_eq!((adam.name(), adam.kept()), ("adam-8bit", Kept::EightBit));
    assert!(adam.slots(&param(4095)).iter().all(|slot| slot.ty.dtype == DType::F32));
    let types: Vec<DType> = adam.slots(&param(4096)).iter().map(|slot| slot.ty.dtype).collect();
    assert_eq!(types, [DType::U8, DType::F32, DType::U8, DType::F32]);
}
