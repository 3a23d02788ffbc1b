//! Optimizers whose state is bf16, rounded stochastically: against the definition, on average, against training in f32, and in memory.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::{
    Adagrad, Adam, Averaged, Bf16State, Kept, Optimizer, Param, Precision, Recipe, Sgd, Training,
};
use plimsoll_run::{Device, Result, Step, Tensor};

use crate::narrow_state::{
    batch, bits, learns_as_in_f32, model, numbers, optimizers, param, recipe, step_from, step_of, train,
};

fn key(seed: i64, step: i64) -> Result<Tensor> {
    Tensor::from_slice(&[seed, step], [2])
}

/// The numbers of bf16 next to one in f32, below or at it in magnitude, and above.
fn neighbours(x: f32) -> [f64; 2] {
    let bits = x.to_bits() & 0xffff_0000;
    [bits, bits + 0x1_0000].map(|bits| f64::from(f32::from_bits(bits)))
}

#[test]
fn a_step_is_that_of_f32_and_its_state_a_neighbour_right_on_average() -> Result<()> {
    let n = 20_001;
    let param = param(n);
    for (name, plain) in optimizers() {
        let mut step = step_of(Bf16State::of(&*plain).unwrap(), &param, &numbers(n, 1), 0)?;
        for round in 0..3 {
            let grad = Tensor::from_slice(&numbers(n, 10 + round), [n])?;
            let before: Vec<Vec<f64>> = step.state().iter().map(Tensor::to_f64).collect::<Result<_>>()?;
            let states = before.len() - 2;
            // The same from f32 state that has the same values.
            let start: Vec<f32> = before[0].iter().map(|&x| x as f32).collect();
            let mut same = step_of(plain.clone(), &param, &start, 0)?;
            for (at, old) in before.iter().enumerate().skip(1) {
                let bytes: Vec<u8> = old.iter().flat_map(|&x| (x as f32).to_ne_bytes()).collect();
                same.set_state(at, &bytes)?;
            }
            let key = key(3, round as i64)?;
            step.run(&[&grad, &key])?;
            same.run(&[&grad, &key])?;
            let (found, wanted) = (step.state(), same.state());
            assert_eq!(found[0].to_vec::<f32>()?, wanted[0].to_vec::<f32>()?, "{name}, round {round}");
            for state in 1..=states {
                assert_eq!(found[state].dtype(), DType::BF16);
                let (found, wanted) = (found[state].to_f64()?, wanted[state].to_vec::<f32>()?);
                let (mut off, mut moved) = (0.0, 0.0);
                for (&found, &wanted) in found.iter().zip(&wanted) {
                    let [near, far] = neighbours(wanted);
                    assert!(found == near || found == far, "{name}: {wanted} became {found}");
                    let gap = far - near;
                    off += (found - f64::from(wanted)) / gap;
                    moved += f64::from(u8::from(found == far));
                }
                // Each is off by a gap at most, so that the mean of so many is near 0.
                let (off, moved) = (off / n as f64, moved / n as f64);
                assert!(off.abs() < 0.012, "{name}, round {round}, state {state}: off by {off} of a gap");
                assert!((0.3..0.7).contains(&moved), "{name}: {moved} are rounded away from zero");
            }
        }
    }
    Ok(())
}

/// Weights in bf16, a net's and a step's alike.
fn narrow(mut recipe: Recipe) -> Recipe {
    recipe.request.precision = Precision::Bf16;
    recipe
}

#[test]
fn weights_in_bf16_become_neighbours_of_where_f32_moves_to_right_on_average() -> Result<()> {
    let n = 20_001;
    let wide = param(n);
    let own = Param { ty: wide.ty.with_dtype(DType::BF16), ..wide.clone() };
    // Numbers and gradients that bf16 has.
    let rough = |seed: u64| -> Vec<f32> {
        numbers(n, seed).iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect()
    };
    for (name, plain) in optimizers() {
        let optimizer = || Bf16State::of(&*plain).unwrap();
        let start = Tensor::from_slice(&rough(1), [n])?.cast(DType::BF16)?;
        let mut step = step_from(optimizer(), &own, start, 0)?;
        let mut same = step_of(optimizer(), &wide, &rough(1), 0)?;
        let (grad, key) = (Tensor::from_slice(&rough(10), [n])?, key(3, 1)?);
        step.run(&[&grad.cast(DType::BF16)?, &key])?;
        same.run(&[&grad, &key])?;
        let (found, wanted) = (step.state(), same.state());
        for (state, (found, wanted)) in found.iter().zip(wanted).enumerate().skip(1) {
            assert_eq!(found.to_bytes()?, wanted.to_bytes()?, "{name}, state {state}");
        }
        assert_eq!(found[0].dtype(), DType::BF16);
        let (found, wanted) = (found[0].to_f64()?, wanted[0].to_vec::<f32>()?);
        let mut off = 0.0;
        for (&found, &wanted) in found.iter().zip(&wanted) {
            let [near, far] = neighbours(wanted);
            assert!(found == near || found == far, "{name}: {wanted} became {found}");
            off += (found - f64::from(wanted)) / (far - near);
        }
        let off = off / n as f64;
        assert!(off.abs() < 0.012, "{name}: off by {off} of a gap");
    }
    Ok(())
}

#[test]
fn a_training_with_weights_in_bf16_learns_as_in_f32_and_repeats_its_bits() {
    for (name, plain) in optimizers() {
        let of = |threads: usize, recipe: Recipe| {
            Device::cpu_with(threads, Bytes::mib(256)).unwrap().scope(|| train(recipe, 640).unwrap())
        };
        let (wanted, _) = of(2, recipe(plain.clone()));
        let own = || narrow(recipe(Bf16State::of(&*plain).unwrap()));
        let (found, training) = of(2, own());
        // What is computed in bf16 is off by more than what is rounded.
        assert!((found - wanted).abs() <= 0.1 * wanted, "{name}: {found} where f32 comes to {wanted}");
        let kept = bits(&training);
        assert_eq!(kept["in/weight"].len(), 2 * 40 * 160, "{name}");
        assert_eq!(kept["in/bias"].len(), 4 * 160, "{name}: a bias stays f32");
        assert!(kept == bits(&of(1, own()).1), "{name}: other bits on one thread");
    }
}

#[test]
fn weights_in_bf16_are_refused_where_nothing_moves_them() {
    let adam = || Adam::new(1e-2);
    let averaged = Bf16State::of(&Averaged::new(adam(), 0.9)).unwrap();
    let refused: [(Arc<dyn Optimizer>, &str); 4] = [
        (Arc::new(adam()), "adam as it is used here cannot move"),
        (Arc::new(Sgd::new(0.1)), "(--state bf16)"),
        (adam().with_state(Kept::EightBit).unwrap(), "adam-8bit as it is used here cannot move"),
        (averaged, "an average of weights in bf16 would stand still"),
    ];
    for (optimizer, why) in refused {
        let name = optimizer.name();
        let said = Training::new(model, narrow(recipe(optimizer)), 5).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(why), "{name}: {said}");
    }
}

/// Steps with one gradient everywhere.
fn run(step: &mut Step, n: usize, steps: i64, seed: i64) -> Result<()> {
    let grad = Tensor::from_slice(&vec![1.0f32; n], [n])?;
    (0..steps).try_for_each(|at| step.run(&[&grad, &key(seed, at)?]).map(|_| ()))
}

#[test]
fn a_mean_that_moves_by_less_than_bf16_tells_apart_still_moves() -> Result<()> {
    let n = 4096;
    let mut step = step_of(Bf16State::of(&Adam::new(1e-3)).unwrap(), &param(n), &numbers(n, 1), 0)?;
    run(&mut step, n, 1000, 7)?;
    let squares = step.state()[2].to_f64()?;
    let mean = squares.iter().sum::<f64>() / n as f64;
    // Rounded to nearest it would stand still where a thousandth is half a gap: below 0.26.
    let wanted = 1.0 - 0.999f64.powi(1000);
    assert!((mean - wanted).abs() < 0.01 * wanted, "{mean} where f32 comes to {wanted}");
    let far = squares.iter().map(|x| (x - wanted).abs()).fold(0.0, f64::max);
    assert!(far < 0.2 * wanted, "one is {far} away");
    Ok(())
}

#[test]
fn the_draws_are_said_by_seed_step_parameter_and_element() -> Result<()> {
    let n = 1000;
    let state = |name: &str, seed: i64, steps: i64, part: std::ops::Range<usize>| -> Result<Vec<f64>> {
        let mut param = param(part.len());
        param.name = name.into();
        let start = &numbers(n, 1)[part.clone()];
        let mut step = step_of(Bf16State::of(&Adam::new(1e-2)).unwrap(), &param, start, part.start)?;
        run(&mut step, part.len(), steps, seed)?;
        Ok([step.state()[1].to_f64()?, step.state()[2].to_f64()?].concat())
    };
    let whole = state("w", 5, 4, 0..n)?;
    assert_eq!(whole, state("w", 5, 4, 0..n)?);
    assert_ne!(whole, state("w", 6, 4, 0..n)?, "another seed");
    assert_ne!(whole, state("u", 5, 4, 0..n)?, "another parameter");
    let mut elements = whole[..n].to_vec();
    elements.dedup();
    assert!(elements.len() > n / 8, "elements are drawn for together");
    // Shards have the numbers of the whole, wherever they begin.
    for part in [0..333, 333..666, 666..n, 7..9, 256..512] {
        let [m, v] = [0, n].map(|of| whole[of + part.start..of + part.end].to_vec());
        assert_eq!([m, v].concat(), state("w", 5, 4, part.clone())?, "{part:?}");
    }
    Ok(())
}

#[test]
fn a_training_learns_as_in_f32_with_half_of_the_state() {
    // But for a few numbers beside: key, rate and count.
    learns_as_in_f32(
        0.03,
        |plain| Bf16State::of(plain).unwrap(),
        |small, whole| small * 2 <= whole + 100 && small * 2 >= whole,
    );
}

#[test]
fn the_same_training_has_the_same_bits_on_any_number_of_threads_and_where_it_goes_on() {
    let adam = || Bf16State::of(&Averaged::new(Adam::new(1e-2), 0.9)).unwrap();
    let steps = |training: &mut Training, rounds: std::ops::Range<usize>| {
        for round in rounds {
            let (x, y) = batch(round).unwrap();
            training.step(&[&x], &y).unwrap();
        }
    };
    let all = |threads: usize, stop: Option<usize>| {
        let cpu = Device::cpu_with(threads, Bytes::mib(256)).unwrap();
        cpu.scope(|| {
            let mut training = Training::new(model, recipe(adam()), 5).unwrap();
            steps(&mut training, 0..stop.unwrap_or(40));
            if let Some(stop) = stop {
                let kept = bits(&training);
                training = Training::new(model, recipe(adam()), 99).unwrap();
                kept.iter().for_each(|(name, bytes)| training.restore(name, bytes).unwrap());
                steps(&mut training, stop..40);
            }
            bits(&training)
        })
    };
    let one = all(1, None);
    assert_eq!(one["in/bias.m"].len(), 2 * 160, "small parameters are narrow too");
    assert_eq!(one["in/weight.average"].len(), 4 * 40 * 160, "averages are not");
    assert!(one == all(3, None), "other bits on three threads");
    assert!(one == all(2, Some(17)), "other bits where it went on");
}

#[test]
fn state_is_kept_as_it_was_last_said() {
    let none: [Arc<dyn Optimizer>; 2] = [Arc::new(Sgd::new(0.1)), Arc::new(Adagrad::new(0.1))];
    for optimizer in none {
        assert!(Bf16State::of(&*optimizer).is_none(), "{}", optimizer.name());
    }
    let adam = Bf16State::of(&Adam::new(0.1)).unwrap();
    assert_eq!((adam.name(), adam.kept()), ("adam-bf16", Kept::Bf16));
    assert!(adam.keeps_elements_apart(), "ranks can have shards of it");
    let bytes = adam.with_state(Kept::EightBit).unwrap();
    assert_eq!(bytes.kept(), Kept::EightBit);
    assert_eq!(bytes.with_state(Kept::F32).unwrap().kept(), Kept::F32);
}
