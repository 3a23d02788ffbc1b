//! What is gone on from, and what is not.

use std::path::Path;

use plimsoll_nn::{Metric, Plateau, Sequential, Sgd, softmax_cross_entropy};
use plimsoll_train::{
    Checkpoint, Checkpoints, EarlyStopping, Epochs, Error, Notice, ReduceOnPlateau, Trainer,
};

use super::{Scratch, Told, damage, data, device, model, samples, trainer, weights};

fn steps(folder: &Path) -> Vec<String> {
    let name = |path: std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    Checkpoint::all(folder).unwrap().into_iter().map(name).collect()
}

/// A run of two epochs with three checkpoints: after steps 8, 10 and 12.
fn run(folder: &Path) -> Trainer {
    let mut trainer = trainer().checkpoints(Checkpoints::new(folder).every(2));
    trainer.fit(data(), Epochs(2)).unwrap();
    assert_eq!(steps(folder), ["step-00000012", "step-00000010", "step-00000008"]);
    trainer
}

/// Such a run whose newest checkpoint is torn, and the one before has lost its state.
fn run_and_damage(scratch: &Scratch) {
    run(&scratch.0);
    damage(&scratch.join("step-00000012/state.safetensors"));
    std::fs::remove_file(scratch.join("step-00000010/state.safetensors")).unwrap();
}

#[test]
fn a_damaged_newest_checkpoint_is_named_and_an_older_one_is_gone_on_from() {
    let scratch = Scratch::new("damaged");
    let whole = run(&scratch.0);
    // One is torn, the other has lost its list.
    damage(&scratch.join("step-00000012/state.safetensors"));
    std::fs::write(scratch.join("step-00000010/checkpoint.json"), "{\"version\": 1, \"prog").unwrap();
    let told = Told::default();
    let checkpoints = Checkpoints::new(&scratch.0).every(2).keep(1);
    let mut again = trainer().checkpoints(checkpoints).callback(told.clone());
    assert!(again.resume(&scratch.0, &data()).unwrap());
    assert_eq!(again.progress().step, 8);
    let notices = std::mem::take(&mut *told.0.lock().unwrap());
    let [
        Notice::DamagedCheckpoint { path: newest, why },
        Notice::DamagedCheckpoint { path: other, .. },
        Notice::Resumed { step: 8, path },
    ] = &notices[..]
    else {
        panic!("{notices:?}")
    };
    assert!(newest.ends_with("step-00000012") && why.contains("state.safetensors"), "{why}");
    assert!(other.ends_with("step-00000010") && path.ends_with("step-00000008"));
    again.fit(data(), Epochs(2)).unwrap();
    assert_eq!(weights(&again), weights(&whole));
    // Those that it wrote are whole, and the last of them is not what was removed.
    assert_eq!(steps(&scratch.0), ["step-00000012"]);
    Checkpoint::read(&scratch.join("step-00000012")).unwrap();
}

#[test]
fn a_checkpoint_behind_which_damaged_ones_lie_is_not_removed_for_them() {
    let scratch = Scratch::new("kept");
    run_and_damage(&scratch);
    let mut again = trainer().checkpoints(Checkpoints::new(&scratch.0).keep(1));
    again.resume(&scratch.0, &data()).unwrap();
    let saved = again.save_checkpoint().unwrap().unwrap();
    assert!(saved.ends_with("step-00000008"));
    Checkpoint::read(&saved).unwrap();
    assert!(trainer().resume(&scratch.0, &data()).unwrap());
}

#[test]
fn where_all_are_damaged_the_error_lists_them_with_what_is_wrong() {
    let scratch = Scratch::new("all-damaged");
    run_and_damage(&scratch);
    std::fs::remove_file(scratch.join("step-00000008/checkpoint.json")).unwrap();
    let mut again = trainer();
    let error = again.resume(&scratch.0, &data()).unwrap_err();
    let Error::AllDamaged { found, .. } = &error else { panic!("{error}") };
    assert_eq!(found.len(), 3);
    let text = error.to_string();
    for part in ["step-00000012", "step-00000010", "step-00000008", "CRC-32C", "checkpoint.json is not there"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(again.progress().step, 0);
    assert!(!trainer().resume(&scratch.join("absent"), &data()).unwrap());
}

#[test]
fn a_whole_checkpoint_of_another_training_is_refused_by_name_and_nothing_changes() {
    let scratch = Scratch::new("unlike");
    run(&scratch.0);
    let wide = Sequential::new([6]).dense(7).relu().dropout(0.2).dense(3);
    let other = |trainer: Trainer| trainer.device(device()).metrics([Metric::Accuracy]);
    let refused = |mut trainer: Trainer, data: plimsoll_data::Dataset, parts: &[&str]| {
        let error = trainer.resume(&scratch.0, &data).unwrap_err();
        assert!(matches!(error, Error::Unlike { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("step-00000012"), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(trainer.progress().step, 0);
        // What was refused can be trained on by itself.
        trainer.fit(&data, Epochs(1)).unwrap();
    };
    let adam = || plimsoll_nn::Adam::new(1e-2);
    refused(other(Trainer::new(wide, softmax_cross_entropy, adam())), data(), &["f32[6, 5]", "f32[6, 7]"]);
    let sgd = Trainer::new(model(), softmax_cross_entropy, Sgd::new(1e-2));
    refused(other(sgd), data(), &["optimizer was adam", "sgd is asked for"]);
    refused(trainer().seed(7), data(), &["seed was 42", "7 is asked for"]);
    refused(trainer(), samples(22).shuffle(100, 5).batch(8), &["batch size was 4", "8 is asked for"]);
    refused(trainer(), samples(20).shuffle(100, 5).batch(4), &["22 samples", "20 samples"]);
    refused(trainer(), samples(22).shuffle(100, 6).batch(4), &["seeds"]);
    // Another learning rate is no other training, and neither are other metrics between two epochs.
    let slower = other(Trainer::new(model(), softmax_cross_entropy, plimsoll_nn::Adam::new(1e-3)));
    assert!(slower.metrics([Metric::CrossEntropy]).resume(&scratch.0, &data()).unwrap());
    // In the middle of one, their sums would be taken for others'.
    let middle = scratch.join("step-00000010");
    let error = trainer().metrics([Metric::CrossEntropy]).resume(&middle, &data()).unwrap_err();
    assert!(error.to_string().contains("accuracy"), "{error}");
    assert!(trainer().resume(&middle, &data()).unwrap());
}

#[test]
fn a_checkpoint_of_a_newer_program_is_refused_and_not_passed_over() {
    let scratch = Scratch::new("newer");
    run(&scratch.0);
    let json = scratch.join("step-00000012/checkpoint.json");
    std::fs::write(&json, "{\"version\": 99, \"all\": \"new\"}").unwrap();
    let error = trainer().resume(&scratch.0, &data()).unwrap_err();
    assert!(matches!(error, Error::Unlike { .. }) && error.to_string().contains("version 99"), "{error}");
}

#[test]
fn a_checkpoint_of_before_terms_were_written_is_refused_for_another_batch() {
    let scratch = Scratch::new("old");
    run(&scratch.0);
    let json = scratch.join("step-00000012/checkpoint.json");
    let text = std::fs::read_to_string(&json).unwrap();
    let mut old: serde_json::Value = serde_json::from_str(&text).unwrap();
    for new in ["terms", "callback_names"] {
        old.as_object_mut().unwrap().remove(new).unwrap();
    }
    std::fs::write(&json, old.to_string()).unwrap();
    let error = trainer().resume(&scratch.0, &samples(22).shuffle(100, 5).batch(8)).unwrap_err();
    assert!(matches!(error, Error::Unlike { .. }) && error.to_string().contains("batch size"), "{error}");
    assert!(trainer().resume(&scratch.0, &data()).unwrap());
}

#[test]
fn callbacks_find_what_they_kept_whatever_else_is_there() {
    let scratch = Scratch::new("callbacks");
    let stopping = || EarlyStopping::new("loss", 100);
    let lowering = || ReduceOnPlateau::new("accuracy", Plateau::new(0.5, 0));
    let all = || trainer().checkpoints(Checkpoints::new(&scratch.0));
    all().callback(stopping()).callback(lowering()).fit(data(), Epochs(3)).unwrap();
    let newest = Checkpoint::newest(&scratch.0).unwrap().unwrap();
    let kept = |path: &Path| Checkpoint::read(path).unwrap().callbacks;
    let before = kept(&newest);
    assert!(before.len() == 2 && before[0] != before[1]);
    // The other way round, with one that keeps nothing before them.
    let mut again = all().callback(Told::default()).callback(lowering()).callback(stopping());
    assert!(again.resume(&scratch.0, &data()).unwrap());
    let path = again.save_checkpoint().unwrap().unwrap();
    assert_eq!(kept(&path), [None, before[1].clone(), before[0].clone()]);
    // What was best of another metric is nothing to go by.
    let mut other = all().callback(EarlyStopping::new("accuracy", 100));
    assert!(other.resume(&scratch.0, &data()).unwrap());
    let path = other.save_checkpoint().unwrap().unwrap();
    assert_eq!(kept(&path)[0].as_ref().unwrap()["best"], serde_json::Value::Null);
}

#[test]
fn a_metric_that_nobody_counts_ends_a_run_with_its_name_and_a_checkpoint() {
    for early in [true, false] {
        let scratch = Scratch::new("unknown-metric");
        let mut trainer = trainer().checkpoints(Checkpoints::new(&scratch.0));
        trainer = match early {
            true => trainer.callback(EarlyStopping::new("val_loss", 1)),
            false => trainer.callback(ReduceOnPlateau::new("val_loss", Plateau::new(0.5, 0))),
        };
        let error = trainer.fit(data(), Epochs(2)).unwrap_err();
        let Error::Stopped { step: 6, checkpoint, .. } = &error else { panic!("{error}") };
        let text = error.to_string();
        assert!(text.contains("val_loss") && text.contains("loss, accuracy"), "{text}");
        assert_eq!(Checkpoint::read(checkpoint).unwrap().progress.epoch, 1);
    }
}

#[test]
fn between_epochs_a_run_goes_on_with_other_data_and_within_one_it_does_not() {
    let scratch = Scratch::new("other-data");
    run(&scratch.0);
    let mut again = trainer();
    again.resume(&scratch.join("step-00000010"), &data()).unwrap();
    let error = again.fit(samples(22).batch(4), Epochs(3)).unwrap_err();
    assert!(matches!(error, Error::OtherData { epoch: 2, .. }), "{error:?}");
    let error = again.fit(samples(22).shuffle(100, 5).batch(2), Epochs(3)).unwrap_err().to_string();
    assert!(error.contains("batch size was 4, and 2 is asked for"), "{error}");
    again.fit(data(), Epochs(2)).unwrap();
    let history = again.fit(samples(9).batch(3), Epochs(4)).unwrap();
    assert_eq!((history.len(), again.progress().step), (2, 12 + 6));
}
