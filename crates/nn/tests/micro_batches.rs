//! A batch in micro-batches trains as the whole batch does, uneven last pieces included.

use plimsoll_graph::{DType, Type};
use plimsoll_nn::{Adam, Net, Recipe, Training, model, zoo};
use plimsoll_run::{Error, Exactness, Result, Tensor, TensorOps};

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
    assert_eq!((free.info().micro_batches, free.info().exactness), (1, Exactness::Bitwise));
    for (samples, pieces) in [(4, 3), (5, 2), (3, 4), (1, 10)] {
        let (split, training) = losses(plain, Some(samples), Exactness::Reassociated).unwrap();
        assert_eq!(
            (training.info().micro_batches, training.info().exactness),
            (pieces, Exactness::Reassociated)
        );
        for (a, b) in split.iter().zip(&whole) {
            assert!((a - b).abs() <= 1e-6 * b.abs(), "{samples} samples: {split:?}\n{whole:?}");
        }
    }
}

#[test]
fn masks_do_not_depend_on_the_split() {
    let (whole, _) = losses(dropped, None, Exactness::Reassociated).unwrap();
    for samples in [4, 1] {
        let (split, _) = losses(dropped, Some(samples), Exactness::Reassociated).unwrap();
        for (a, b) in split.iter().zip(&whole) {
            assert!((a - b).abs() <= 1e-6 * b.abs(), "{samples} samples: {split:?}\n{whole:?}");
        }
    }
}

#[test]
fn batch_norm_is_split_only_where_that_was_allowed() {
    match losses(normed, Some(5), Exactness::Reassociated) {
        Err(error @ Error::Split { .. }) => {
            assert!(error.to_string().contains("statistics over the batch"), "{error}")
        }
        other => panic!("{:?}", other.map(|r| r.0)),
    }
    let (split, training) = losses(normed, Some(5), Exactness::Approximate).unwrap();
    assert_eq!(training.info().exactness, Exactness::Approximate);
    assert!(split[19] < split[0]);
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
