//! A batch in micro-batches trains as the whole batch does, uneven last pieces included.

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, Type};
use plimsoll_nn::{Adam, Net, Recipe, Training, model, zoo};
use plimsoll_run::{Error, Exactness, Result, Tensor, TensorOps};
use plimsoll_testing::child;

const BATCH: usize = 10;

fn losses(
    model: fn(&mut Net, &[Tensor]) -> Result<Tensor>,
    samples: Option<usize>,
    exactness: Exactness,
) -> Result<(Vec<f64>, Training)> {
    let (x, y) = (Type::new(DType::F32, [BATCH, 8, 8, 3]), Type::new(DType::I64, [BATCH]));
    let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), x.clone(), y.clone());
    recipe.request.micro_batch = samples;
    recipe.request.exactness = exactness;
    let mut training = Training::new(model, recipe, 3)?;
    let mut losses = Vec::new();
    for step in 0..20 {
        let pixels: Vec<f64> =
            (0..x.elements()).map(|i| ((i * 37 + step * 11) % 101) as f64 / 50.0 - 1.0).collect();
        let labels: Vec<f64> = (0..BATCH).map(|i| ((i * 7 + step) % 5) as f64).collect();
        losses.push(
            training
                .step(&[&Tensor::from_f64(&pixels, x.clone())?], &Tensor::from_f64(&labels, y.clone())?)?,
        );
    }
    Ok((losses, training))
}

fn form(training: &Training) -> (usize, Exactness) {
    (training.info().micro_batches, training.info().exactness)
}

fn assert_near(split: &[f64], whole: &[f64], tolerance: f64, samples: usize) {
    for (a, b) in split.iter().zip(whole) {
        assert!((a - b).abs() <= tolerance * b.abs(), "{samples} samples: {split:?}\n{whole:?}");
    }
}

fn plain(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    zoo::cnn(net, &x[0], &[8], 5)
}

fn dropped(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    let h = net.conv2d("conv", &x[0], plimsoll_nn::Conv2d::new(8, 3).same())?.relu()?;
    let h = net.dropout("drop", &h.flatten(1)?, 0.4)?;
    net.dense("out", &h, 5, true)
}

fn normed(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    zoo::batch_norm_cnn(net, &x[0], &[8], 5)
}

#[test]
fn pieces_of_four_four_and_two_equal_a_batch_of_ten() {
    let (whole, free) = losses(plain, None, Exactness::Reassociated).unwrap();
    assert_eq!(form(&free), (1, Exactness::Bitwise));
    for (samples, pieces) in [(4, 3), (5, 2), (3, 4), (1, 10)] {
        let (split, training) = losses(plain, Some(samples), Exactness::Reassociated).unwrap();
        assert_eq!(form(&training), (pieces, Exactness::Reassociated));
        assert_near(&split, &whole, 1e-6, samples);
    }
}

#[test]
fn masks_do_not_depend_on_the_split() {
    let (whole, _) = losses(dropped, None, Exactness::Reassociated).unwrap();
    for samples in [4, 1] {
        let (split, _) = losses(dropped, Some(samples), Exactness::Reassociated).unwrap();
        assert_near(&split, &whole, 1e-6, samples);
    }
}

/// Two batch norms, and masks between them.
fn normed_and_dropped(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    let h = net.conv2d("first", &x[0], plimsoll_nn::Conv2d::new(8, 3).same().no_bias())?;
    let h = net.batch_norm("norm", &h)?.relu()?;
    let h = net.dropout("drop", &h, 0.3)?;
    let h = net.conv2d("second", &h, plimsoll_nn::Conv2d::new(4, 3).no_bias())?;
    let h = net.batch_norm("last norm", &h)?.relu()?;
    net.dense("out", &h.flatten(1)?, 5, true)
}

/// The numbers of every parameter and running statistic.
fn numbers(training: &Training) -> Vec<(String, Vec<f64>)> {
    let named = training.params().iter().zip(training.values());
    named.map(|(param, value)| (param.name.clone(), value.to_f64().unwrap())).collect()
}

#[test]
fn micro_batches_with_batch_norm_share_the_statistics_of_the_whole_batch() {
    for model in [normed, normed_and_dropped] {
        let (whole, free) = losses(model, None, Exactness::Reassociated).unwrap();
        for (samples, pieces) in [(5, 2), (4, 3), (2, 5)] {
            let (split, training) = losses(model, Some(samples), Exactness::Reassociated).unwrap();
            assert_eq!(form(&training), (pieces, Exactness::Reassociated));
            assert_near(&split, &whole, 1e-5, samples);
            for ((name, found), (_, expected)) in numbers(&training).iter().zip(&numbers(&free)) {
                for (a, b) in found.iter().zip(expected) {
                    assert!(
                        (a - b).abs() <= 1e-3 * (0.1 + b.abs()),
                        "{name}, {samples} samples: {a} and {b}"
                    );
                }
            }
        }
    }
}

#[test]
fn batch_norm_has_statistics_of_each_micro_batch_only_where_that_was_allowed() {
    match losses(normed, Some(5), Exactness::Bitwise) {
        Err(error @ Error::Split { .. }) => {
            let said = error.to_string();
            assert!(said.contains("statistics over the batch") && said.contains("reassociated"), "{said}")
        }
        other => panic!("{:?}", other.map(|r| r.0)),
    }
    let (split, training) = losses(normed, Some(5), Exactness::Approximate).unwrap();
    assert_eq!(training.info().exactness, Exactness::Approximate);
    assert!(split[19] < split[0]);
}

/// Three convolutions with batch norm, on 48 images.
fn wide(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    let mut h = x[0].clone();
    for i in 0..3 {
        h = net.conv2d(&format!("conv{i}"), &h, plimsoll_nn::Conv2d::new(32, 3).same().no_bias())?;
        h = net.batch_norm(&format!("norm{i}"), &h)?.relu()?;
    }
    net.dense("out", &h.mean(&[1, 2], false)?, 5, true)
}

/// The micro-batches and the losses of two steps without a limit (0), or within the least; and what the least is without a split.
fn two_steps(within_the_least: bool) -> [u64; 5] {
    let (x, y) = (Type::new(DType::F32, [48, 64, 64, 8]), Type::new(DType::I64, [48]));
    let recipe = |limit: Option<Bytes>, exactness| {
        let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), x.clone(), y.clone());
        (recipe.request.exactness, recipe.request.limit) = (exactness, limit);
        recipe
    };
    let floor = |exactness| Training::planner(model(wide), recipe(None, exactness)).unwrap().floor();
    let (whole, least) = (floor(Exactness::Bitwise), floor(Exactness::Reassociated));
    let limit = within_the_least.then_some(least);
    let mut training = Training::new(model(wide), recipe(limit, Exactness::Reassociated), 3).unwrap();
    let pixels: Vec<f64> = (0..x.elements()).map(|i| ((i * 37) % 101) as f64 / 50.0 - 1.0).collect();
    let labels: Vec<f64> = (0..48).map(|i| (i % 5) as f64).collect();
    let (pixels, labels) = (Tensor::from_f64(&pixels, x).unwrap(), Tensor::from_f64(&labels, y).unwrap());
    let [first, second] = [0, 1].map(|_| training.step(&[&pixels], &labels).unwrap().to_bits());
    [whole.get(), least.get(), training.info().micro_batches as u64, first, second]
}

#[test]
fn a_limit_below_what_the_whole_batch_needs_is_kept_with_its_statistics() {
    if let Some(question) = child::question() {
        return child::answer(&two_steps(question == ["least"]));
    }
    let test = "micro_batches::a_limit_below_what_the_whole_batch_needs_is_kept_with_its_statistics";
    let [whole, least] = ["whole", "least"].map(|question| child::ask::<5>(test, &[question]));
    let (pieces, losses) = (|said: &[u64]| said[2], |said: &[u64]| [3, 4].map(|i| f64::from_bits(said[i])));
    assert_eq!((pieces(&whole), pieces(&least)), (1, 4));
    assert!(least[1] * 5 < least[0] * 4, "{} bytes at least, {} without a split", least[1], least[0]);
    for (a, b) in losses(&least).iter().zip(losses(&whole)) {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{a} and {b}");
    }
}

#[test]
fn a_loss_that_sums_over_samples_is_not_split() {
    let (x, y) = (Type::new(DType::F32, [BATCH, 6]), Type::new(DType::F32, [BATCH, 2]));
    let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), x, y);
    recipe.loss =
        std::sync::Arc::new(|out: &Tensor, target: &Tensor| out.sub(target)?.square()?.sum(&[], false));
    recipe.request.micro_batch = Some(5);
    let error = Training::new(model(|net, x| net.dense("out", &x[0], 2, true)), recipe, 1).err().unwrap();
    assert!(error.to_string().contains("sums over samples"), "{error}");
}
