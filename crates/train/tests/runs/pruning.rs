//! Weights that are held at zero: by masks that are planned, kept in checkpoints, and set at the same steps after a resumption.

use plimsoll_nn::Patterns;
use plimsoll_train::{Checkpoints, Epochs, PrunedShare, Pruning, Sparsity, Trainer};

use super::{Scratch, data, trainer, weights};

/// Six steps an epoch, five epochs.
const STEPS: u64 = 30;

fn pruned(sparsity: f64) -> Trainer {
    trainer().prune(Pruning::gradual(Sparsity::Share(sparsity), STEPS).unwrap()).unwrap()
}

/// The weights with the masks.
fn state(trainer: &Trainer) -> Vec<(String, Vec<u8>)> {
    let all = trainer.training().unwrap().state();
    all.filter(|(name, _)| !name.starts_with("training."))
        .map(|(name, tensor)| (name.to_string(), tensor.to_bytes().unwrap()))
        .collect()
}

#[test]
fn a_run_that_goes_on_prunes_the_same_bits() {
    let scratch = Scratch::new("pruning");
    let mut whole = pruned(0.75).checkpoints(Checkpoints::new(scratch.join("run")).every(1).keep(99));
    whole.fit(data(), Epochs(5)).unwrap();
    let PrunedShare { tensors, elements, zeros } = whole.pruned_share().unwrap().unwrap();
    assert!(tensors == 2 && zeros == (elements * 3).div_ceil(4), "{zeros} of {elements}");
    let masks: Vec<Vec<u8>> = state(&whole)
        .into_iter()
        .filter(|(name, _)| name.ends_with(".mask"))
        .map(|(_, bytes)| bytes)
        .collect();
    let held = masks.iter().flatten().filter(|kept| **kept == 0).count();
    assert_eq!((masks.len(), held as u64), (2, zeros));
    // Before the first mask, among them, at the last, after it.
    for step in [1, 4, 13, 22, 26] {
        let mut again = pruned(0.75);
        assert!(again.resume(&scratch.join(&format!("run/step-{step:08}")), &data()).unwrap());
        again.fit(data(), Epochs(5)).unwrap();
        assert_eq!(state(&again), state(&whole), "from step {step}");
    }
    let mut plain = trainer();
    plain.fit(data(), Epochs(5)).unwrap();
    assert_ne!(weights(&plain), weights(&whole));
}

#[test]
fn masks_are_planned_as_state_a_byte_a_weight() {
    let (mut plain, mut with_masks) = (trainer(), pruned(0.5));
    plain.compile(data()).unwrap();
    with_masks.compile(data()).unwrap();
    let bytes = |trainer: &Trainer| trainer.training().unwrap().state_bytes().get();
    let elements = with_masks.pruned_share().unwrap().unwrap().elements;
    assert!(bytes(&with_masks) >= bytes(&plain) + elements, "{} and {}", bytes(&with_masks), bytes(&plain));
    let ledger = with_masks.ledger().unwrap().to_string();
    assert_ne!(ledger, plain.ledger().unwrap().to_string());
}

#[test]
fn what_cannot_be_pruned_is_said_before_the_run() {
    let only = |patterns: &str| {
        let pruning = Pruning::at_once(Sparsity::Share(0.5), STEPS).only(Patterns::parse(patterns).unwrap());
        trainer().prune(pruning).unwrap().compile(data()).map(|_| ()).map_err(|e| e.to_string())
    };
    assert!(only("tail").unwrap_err().contains("no trained weight \"tail\""));
    assert!(only("bias").unwrap_err().contains("nothing to prune"));
    for share in [0.0, 1.0, f64::NAN] {
        assert!(trainer().prune(Pruning::at_once(Sparsity::Share(share), STEPS)).is_err());
    }
    let averaged = trainer().average(0.9).unwrap().prune(Pruning::at_once(Sparsity::Share(0.5), STEPS));
    assert!(averaged.is_err_and(|why| why.to_string().contains("not both")));
    assert!(pruned(0.5).average(0.9).is_err());
}
