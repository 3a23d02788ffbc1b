//! Ranks that have a stage of the model each: the losses, metrics and weights of one rank that has all of it.

use plimsoll_graph::TensorOps;
use plimsoll_nn::{Adam, Clip, Parallel, Precision, Sequential, softmax_cross_entropy};
use plimsoll_run::{Device, Exactness};
use plimsoll_train::{Epochs, Trainer};

use super::ranks::{
    BATCH, CLASSES, Losses, SAMPLES, Seen, close, compare_losses, entry, masked, on_ranks, pictures, samples,
    train_by,
};

/// Every parameter is on one rank, and there as one rank has it.
fn compare(found: &[Seen], one: &Seen, within: f64, what: &str) {
    compare_losses(found, one, within, what);
    for (i, whole) in one.weights.iter().enumerate() {
        let there: Vec<&Vec<u8>> =
            found.iter().map(|seen| &seen.weights[i]).filter(|w| !w.is_empty()).collect();
        assert_eq!(there.len(), 1, "{what}: parameter {i} is on one rank");
        assert_eq!(there[0].len(), whole.len(), "{what}: parameter {i}");
    }
    for (rank, seen) in found.iter().enumerate() {
        assert!(seen.weights.iter().any(|w| !w.is_empty()), "{what}: rank {rank} has something");
    }
}

#[test]
fn mlp_cnn_gpt_and_lstm_lose_as_much_in_stages() {
    for name in ["mlp", "cnn", "gpt", "lstm"] {
        let entry = entry(name).sized(|size| size.depth = 3);
        let data = samples(&entry, SAMPLES);
        for (precision, within) in [(Precision::F64, 1e-9), (Precision::F32, 1e-5)] {
            let one =
                on_ranks(1, |device| train_by(Parallel::Data, device, entry, &data, precision)).remove(0);
            let worlds = if precision == Precision::F64 { 2..=3 } else { 2..=2 };
            for ranks in worlds {
                let staged = |device| train_by(Parallel::Pipeline, device, entry, &data, precision);
                let found = on_ranks(ranks, staged);
                compare(&found, &one, within, &format!("{name} in {precision:?}, {ranks} stages"));
                if precision == Precision::F32 {
                    assert_eq!(found, on_ranks(ranks, staged), "{name}: the same bits in every run");
                }
            }
        }
    }
}

#[test]
fn u_net_sends_its_skips_on_and_its_batch_goes_through_whole() {
    let (entry, data) = masked(10);
    let train = |device: Device, parallel: Parallel| {
        let losses = Losses::default();
        let mut trainer = Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-3))
            .device(device)
            .parallel(parallel)
            .precision(Precision::F64)
            .callback(losses.clone());
        trainer.fit(data.clone().batch(4), Epochs(2)).unwrap();
        let evaluated = trainer.evaluate(&data.clone().batch(3)).unwrap().loss;
        let mut predicted = Vec::new();
        let taken = trainer.predict(&data.clone().batch(4), |batch| {
            predicted.extend(batch.outputs[0].to_vec::<f64>()?);
            Ok(())
        });
        assert_eq!(taken.unwrap(), 10);
        let losses = losses.0.lock().unwrap().clone();
        (losses, evaluated, predicted)
    };
    let one = on_ranks(1, |device| train(device, Parallel::Data)).remove(0);
    for ranks in [2, 3, 4] {
        for (losses, evaluated, predicted) in on_ranks(ranks, |device| train(device, Parallel::Pipeline)) {
            for (a, b) in losses.iter().zip(&one.0) {
                close(*a, *b, 1e-9, &format!("{ranks} stages"));
            }
            close(evaluated, one.1, 1e-9, "evaluated");
            assert_eq!(predicted.len(), one.2.len());
            predicted.iter().zip(&one.2).for_each(|(a, b)| close(*a, *b, 1e-8, "predicted"));
        }
    }
}

/// A model with what is hard for stages: dropout, a parameter that two stages use, statistics.
fn odd(width: usize) -> impl plimsoll_nn::Model + 'static {
    plimsoll_nn::model(move |net: &mut plimsoll_nn::Net, x: &[plimsoll_run::Tensor]| {
        let first = net.dense("first", &x[0], width, true)?.tanh()?;
        let shared = net.param("shared", [width, width], plimsoll_nn::Init::Normal(0.3))?;
        let hidden = first.matmul(&shared)?.tanh()?;
        let hidden = net.dropout("drop", &hidden, 0.3)?;
        let hidden = net.dense("middle", &hidden, width, true)?.tanh()?;
        let again = net.param("shared", [width, width], plimsoll_nn::Init::Normal(0.3))?;
        let hidden = hidden.matmul(&again)?.add(&first)?;
        net.dense("last", &hidden, CLASSES, true)
    })
}

#[test]
fn a_parameter_of_two_stages_dropout_and_loss_scales_mean_what_they_mean_on_one_rank() {
    // In 16 bits, parts of a batch round otherwise than the whole of it: one of 26 samples may fall on the other side.
    for (precision, within) in
        [(Precision::F64, 1e-9), (Precision::MixedBf16, 3e-2), (Precision::MixedF16, 3e-2)]
    {
        let data = samples(&entry("mlp"), SAMPLES);
        let train = |parallel| {
            let data = data.clone();
            move |device| train_by(parallel, device, odd(12), &data, precision)
        };
        let one = on_ranks(1, train(Parallel::Data)).remove(0);
        for ranks in [2, 4] {
            compare(&on_ranks(ranks, train(Parallel::Pipeline)), &one, within, &format!("{precision:?}"));
        }
    }
}

#[test]
fn statistics_are_of_the_whole_batch_unless_parts_are_asked_for() {
    let (data, shape) = pictures();
    let model = move || {
        Sequential::new(shape)
            .conv2d(4, 3)
            .batch_norm()
            .relu()
            .conv2d(4, 3)
            .batch_norm()
            .flatten()
            .dense(CLASSES)
    };
    let train = |device: Device, parallel, exactness, part: Option<usize>| {
        let mut trainer = Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-2))
            .device(device)
            .parallel(parallel)
            .precision(Precision::F64)
            .exactness(exactness)
            .micro_batch(part)
            .clip(Some(Clip::Norm(0.5)));
        let history = trainer.fit(data.clone().batch(BATCH), Epochs(2)).map_err(|why| why.to_string())?;
        Ok::<f64, String>(history.last().unwrap().loss)
    };
    let one =
        on_ranks(1, |device| train(device, Parallel::Data, Exactness::Reassociated, None)).remove(0).unwrap();
    let staged =
        |exactness, part| on_ranks(2, |device| train(device, Parallel::Pipeline, exactness, part)).remove(0);
    close(staged(Exactness::Reassociated, None).unwrap(), one, 1e-9, "whole");
    close(staged(Exactness::Bitwise, None).unwrap(), one, 1e-12, "whole");
    let why = staged(Exactness::Reassociated, Some(2)).unwrap_err();
    assert!(why.contains("takes statistics over the batch"), "{why}");
    assert!(staged(Exactness::Bitwise, Some(2)).unwrap_err().contains("other bits"));
    let apart = staged(Exactness::Approximate, Some(2)).unwrap();
    assert!((apart - one).abs() > 1e-9 && (apart - one).abs() < 0.5 * one, "{apart} and {one}");
}
