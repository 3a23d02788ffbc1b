//! Success that would be none: no samples, no updates, rates that are no numbers.

use plimsoll_data::{Dataset, FieldSpec};
use plimsoll_graph::DType;
use plimsoll_nn::{Adam, Clip, Schedule, Sgd, softmax_cross_entropy};
use plimsoll_train::{Checkpoints, Ended, Epochs, Error, Trainer};

use super::{Scratch, data, device, model, samples, trainer, weights};

fn refused(result: Result<impl Sized, Error>, parts: &[&str]) {
    let Err(error) = result else { panic!("not refused: {parts:?}") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn data_without_samples_is_an_error_and_no_loss() {
    refused(trainer().fit(samples(22).take(0).batch(4), Epochs(1)), &["data to train on has no samples"]);
    refused(trainer().evaluate(&samples(22).take(0).batch(4)), &["data to evaluate on has no samples"]);
    let mut validated = trainer().validation(samples(22).take(0).batch(4));
    refused(validated.fit(data(), Epochs(1)), &["data for validation has no samples"]);
    refused(
        trainer().predict(&samples(22).take(0).batch(4), |_| Ok(())),
        &["data to predict on has no samples"],
    );
    // Three samples are not one whole batch of four.
    refused(trainer().fit(samples(3).batch_exact(4), Epochs(1)), &["no samples"]);
    // Nobody knows that a filter lets nothing through before it was tried.
    refused(trainer().evaluate(&samples(22).filter(|_, _| Ok(false)).batch(4)), &["samples"]);
}

/// Samples of which those that `is_bad` names are not numbers: no file would be read so, but a stage may make them.
fn spoiled(is_bad: impl Fn(u64) -> bool + Send + Sync + 'static) -> Dataset {
    let spec = [FieldSpec::new("x", DType::F32, [6]), FieldSpec::new("y", DType::I64, [])];
    let made = Dataset::from_fn(spec, 22, move |i, out| {
        let x =
            [0u64, 1, 2, 3, 4, 5].map(|k| if is_bad(i) { f32::NAN } else { ((6 * i + k) % 7) as f32 / 7.0 });
        out.set(0, &x)?;
        out.set(1, &[(i % 3) as i64])
    });
    made.batch(4)
}

#[test]
fn an_epoch_of_which_no_batch_could_be_used_is_an_error() {
    let scratch = Scratch::new("no-update");
    let mut trainer = trainer().checkpoints(Checkpoints::new(&scratch.0));
    let error = trainer.fit(spoiled(|_| true), Epochs(3)).unwrap_err();
    let Error::Stopped { cause, checkpoint, step: 0 } = &error else { panic!("{error}") };
    assert!(matches!(**cause, Error::NoUpdate { epoch: 1, skipped: 6 }), "{cause}");
    // From what it left, the epoch is begun again: here it fails again, and does not pass for done.
    let mut again = super::trainer();
    again.resume(checkpoint, &spoiled(|_| true)).unwrap();
    let error = again.fit(spoiled(|_| true), Epochs(3)).unwrap_err();
    assert!(matches!(error, Error::NoUpdate { epoch: 1, skipped: 6 }), "{error}");
    // One that can be used is enough, and figures are numbers.
    let history = super::trainer().fit(spoiled(|sample| sample > 3), Epochs(2)).unwrap();
    for epoch in history {
        assert_eq!(epoch.skipped, 5);
        let figures = [epoch.loss, epoch.samples_s, epoch.waiting, epoch.time.seconds, epoch.rate];
        assert!(figures.iter().all(|figure| figure.is_finite()), "{figures:?}");
    }
}

#[test]
fn a_learning_rate_that_is_no_number_is_refused_before_anything_is_trained() {
    for (rate, shown) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (-0.1, "-0.1")] {
        let mut trainer = Trainer::new(model(), softmax_cross_entropy, Adam::new(rate)).device(device());
        refused(trainer.fit(data(), Epochs(1)), &["the learning rate is", shown, "at least 0"]);
        refused(trainer.plan(data()), &["the learning rate is"]);
        // It is of no use to train with, but the model can be used.
        assert!(trainer.evaluate(&data()).unwrap().loss.is_finite());
    }
    let mut scheduled = trainer().schedule(Schedule::exponential(f64::NAN));
    refused(scheduled.fit(data(), Epochs(1)), &["the learning rate", "NaN"]);
    for bound in [f64::NAN, 0.0, -1.0] {
        let mut clipped = trainer().clip(Some(Clip::Norm(bound)));
        refused(clipped.fit(data(), Epochs(1)), &["the bound on gradients is", "above 0"]);
    }
    // Nothing is learnt at a rate of 0, and that is what was asked for.
    let mut still = Trainer::new(model(), softmax_cross_entropy, Sgd::new(0.0)).device(device());
    still.compile(data()).unwrap();
    let before = weights(&still);
    still.fit(data(), Epochs(1)).unwrap();
    assert_eq!(weights(&still), before);
}

#[test]
fn no_epochs_are_no_training() {
    let mut trainer = trainer();
    assert!(trainer.fit(data(), Epochs(0)).unwrap().is_empty());
    assert_eq!((trainer.ended(), trainer.progress().step), (Some(&Ended::Complete), 0));
}

#[test]
fn an_epoch_of_a_stream_ends_whether_or_not_batches_divide_it() {
    let spec = || [FieldSpec::new("x", DType::F32, [6]), FieldSpec::new("y", DType::I64, [])];
    for n in 1..=9u64 {
        let stream = Dataset::from_iter(
            spec(),
            move || 0..n,
            |i, out| {
                out.set(0, &[i as f32 / 9.0; 6])?;
                out.set(1, &[(i % 3) as i64])
            },
        );
        let mut trainer = trainer();
        let history = trainer.fit(stream.batch(3), Epochs(3)).unwrap();
        assert_eq!((history.len(), trainer.progress().step), (3, 3 * n.div_ceil(3)), "{n} samples");
    }
}
