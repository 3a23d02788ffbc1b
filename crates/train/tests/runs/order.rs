//! Every order of a trainer's methods works, with the values that follow from it, or says what to do.

use std::collections::BTreeMap;
use std::path::Path;

use plimsoll_device::Bytes;
use plimsoll_train::{Checkpoints, Epochs, Error, Trainer};

use super::{Scratch, data, samples, trainer, weights};

type Weights = Vec<Vec<u8>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Plan,
    Compile,
    Prepare,
    Load,
    Evaluate,
    Predict,
    Fit,
    Save,
    Resume,
}

const OPS: [Op; 9] =
    [Op::Plan, Op::Compile, Op::Prepare, Op::Load, Op::Evaluate, Op::Predict, Op::Fit, Op::Save, Op::Resume];

/// Where weights come from, and how many epochs were fitted since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum From {
    Nowhere,
    Start(u64),
    File(u64),
    Checkpoint(u64),
}

/// What there is before: a file of weights, and a checkpoint in the middle of an epoch.
struct World {
    scratch: Scratch,
    /// Loss and weights of every origin, made by ways that need none of what is tested.
    known: BTreeMap<From, (f64, Weights)>,
}

const MOST_FITS: u64 = 4;

impl World {
    fn new(name: &str) -> World {
        let scratch = Scratch::new(name);
        let mut other = trainer().seed(7);
        other.fit(data(), Epochs(3)).unwrap();
        other.save(scratch.join("weights")).unwrap();
        let file = weights(&other);
        let mut run = trainer().checkpoints(Checkpoints::new(scratch.join("run")).every(4).keep(9));
        run.fit(data(), Epochs(1)).unwrap();
        let mut known = BTreeMap::new();
        let mut note = |from: From, trainer: &mut Trainer| {
            known.insert(from, (trainer.evaluate(&data()).unwrap().loss, weights(trainer)));
        };
        let mut start = trainer();
        start.compile(data()).unwrap();
        let mut loaded = trainer();
        loaded.compile(data()).unwrap();
        let training = loaded.training_mut().unwrap();
        let names: Vec<String> = training.params().iter().map(|p| p.name.clone()).collect();
        for (name, bytes) in names.iter().zip(&file) {
            training.restore(name, bytes).unwrap();
        }
        let mut resumed = trainer();
        assert!(resumed.resume(&scratch.join("run/step-00000004"), &data()).unwrap());
        for fits in 0..=MOST_FITS {
            for (from, trainer) in [
                (From::Start(fits), &mut start),
                (From::File(fits), &mut loaded),
                (From::Checkpoint(fits), &mut resumed),
            ] {
                if fits > 0 {
                    trainer.fit(data(), Epochs(fits)).unwrap();
                }
                note(from, trainer);
            }
        }
        World { scratch, known }
    }

    /// Does all of it, and holds what comes of each against what should.
    fn check(&self, ops: &[Op]) {
        let mut trainer = trainer();
        let mut from = From::Nowhere;
        for (i, op) in ops.iter().enumerate() {
            let at = format!("{:?} of {ops:?}", &ops[..=i]);
            let seen = |from: From| if from == From::Nowhere { From::Start(0) } else { from };
            match op {
                Op::Plan => {
                    // A question changes nothing.
                    trainer.plan(data()).unwrap_or_else(|e| panic!("{at}: {e}"));
                }
                Op::Compile => {
                    trainer.compile(data()).unwrap_or_else(|e| panic!("{at}: {e}"));
                    from = seen(from);
                }
                Op::Prepare => {
                    trainer.prepare(&data()).unwrap_or_else(|e| panic!("{at}: {e}"));
                    from = seen(from);
                }
                Op::Load => {
                    trainer
                        .load(self.scratch.join("weights"), &data())
                        .unwrap_or_else(|e| panic!("{at}: {e}"));
                    from = From::File(0);
                }
                Op::Evaluate => {
                    let found = trainer.evaluate(&data()).unwrap_or_else(|e| panic!("{at}: {e}"));
                    from = seen(from);
                    assert_eq!(found.loss, self.known[&from].0, "{at}");
                }
                Op::Predict => {
                    let mut rows = 0;
                    let seen_samples = trainer.predict(&data(), |batch| {
                        rows += batch.outputs[0].to_bytes()?.len() / 12;
                        Ok(())
                    });
                    assert_eq!(
                        (seen_samples.unwrap_or_else(|e| panic!("{at}: {e}")), rows),
                        (22, 22),
                        "{at}"
                    );
                    from = seen(from);
                }
                Op::Fit => {
                    let epochs = trainer.progress().epoch + 1;
                    trainer.fit(data(), Epochs(epochs)).unwrap_or_else(|e| panic!("{at}: {e}"));
                    from = match seen(from) {
                        From::Start(n) => From::Start(n + 1),
                        From::File(n) => From::File(n + 1),
                        From::Checkpoint(n) => From::Checkpoint(n + 1),
                        From::Nowhere => From::Nowhere,
                    };
                }
                Op::Save => {
                    let path = self.scratch.join("saved");
                    match trainer.save(&path) {
                        Ok(()) => {
                            let mut again = super::trainer();
                            again.load(&path, &data()).unwrap();
                            assert_eq!(weights(&again), weights(&trainer), "{at}");
                        }
                        Err(error) => {
                            assert_eq!(from, From::Nowhere, "{at}: {error}");
                            assert!(error.to_string().contains("call fit, load, plan or prepare"), "{error}");
                        }
                    }
                }
                Op::Resume => {
                    let folder = self.scratch.join("run/step-00000004");
                    let found = trainer.resume(&folder, &data()).unwrap_or_else(|e| panic!("{at}: {e}"));
                    assert!(found, "{at}");
                    from = From::Checkpoint(0);
                }
            }
            if from != From::Nowhere {
                assert!(weights(&trainer) == self.known[&from].1, "{at}: not the weights of {from:?}");
            }
        }
    }
}

/// All orders of `n` different ops.
fn orders(n: usize) -> Vec<Vec<Op>> {
    let mut all = vec![Vec::new()];
    for _ in 0..n {
        all = all
            .iter()
            .flat_map(|done: &Vec<Op>| {
                OPS.iter()
                    .filter(|op| !done.contains(op))
                    .map(|op| [&done[..], &[*op]].concat())
                    .collect::<Vec<_>>()
            })
            .collect();
    }
    all
}

#[test]
fn every_order_of_three_works_with_the_values_that_follow_from_it() {
    let world = World::new("order-three");
    let orders = orders(3);
    assert_eq!(orders.len(), 9 * 8 * 7);
    orders.iter().for_each(|ops| world.check(ops));
}

#[test]
fn orders_of_four_and_those_with_an_op_twice_work_too() {
    let world = World::new("order-four");
    // A seventh of them, spread over all: every one shares its beginnings with others.
    orders(4).iter().step_by(7).for_each(|ops| world.check(ops));
    for (first, second) in OPS.iter().flat_map(|a| OPS.iter().map(move |b| (*a, *b))) {
        world.check(&[first, second, first, second]);
    }
}

#[test]
fn weights_that_do_not_fit_change_nothing() {
    let scratch = Scratch::new("unfit");
    let path = scratch.join("wide");
    let wide = plimsoll_nn::Sequential::new([6]).dense(9).relu().dropout(0.2).dense(3);
    let mut other = Trainer::new(wide, plimsoll_nn::softmax_cross_entropy, plimsoll_nn::Sgd::new(0.1))
        .device(super::device());
    other.prepare(&data()).unwrap();
    other.save(&path).unwrap();
    let refused = |trainer: &mut Trainer, path: &Path, part: &str| {
        let error = trainer.load(path, &data()).unwrap_err();
        assert!(matches!(error, Error::Weights { .. }) && error.to_string().contains(part), "{error}");
    };
    let mut fresh = trainer();
    refused(&mut fresh, &path, "f32[6, 9]");
    let absent = fresh.load(scratch.join("absent"), &data()).unwrap_err();
    assert!(matches!(absent, Error::File { .. }) && absent.to_string().contains("absent"), "{absent}");
    let mut trained = trainer();
    trained.fit(data(), Epochs(1)).unwrap();
    let before = weights(&trained);
    refused(&mut trained, &path, "f32[6, 9]");
    assert_eq!((weights(&trained), trained.progress().step), (before, 6));
    // What was refused before there were any weights leaves the model as its layers start.
    let mut start = trainer();
    assert_eq!(fresh.evaluate(&data()).unwrap(), start.evaluate(&data()).unwrap());
}

#[test]
fn a_line_that_is_too_low_for_training_leaves_a_model_that_can_be_used() {
    let mut trainer = trainer();
    let before = trainer.evaluate(&data()).unwrap();
    trainer.set_memory_limit(Some(Bytes::mib(1))).unwrap();
    let error = trainer.fit(data(), Epochs(1)).unwrap_err();
    assert!(error.to_string().contains("the least for this step is"), "{error}");
    trainer.set_memory_limit(None).unwrap();
    assert_eq!(trainer.evaluate(&data()).unwrap(), before);
    trainer.fit(data(), Epochs(1)).unwrap();
    let mut straight = super::trainer();
    straight.fit(data(), Epochs(1)).unwrap();
    assert_eq!(weights(&trainer), weights(&straight));
}

#[test]
fn data_without_labels_is_enough_to_predict_on_before_training() {
    let spec = [plimsoll_data::FieldSpec::new("x", plimsoll_graph::DType::F32, [6])];
    let unlabelled = samples(22).map(spec, |sample, out, _| out.set(0, sample.get::<f32>(0)?)).batch(4);
    let mut trainer = trainer();
    assert_eq!(trainer.predict(&unlabelled, |_| Ok(())).unwrap(), 22);
    trainer.fit(data(), Epochs(1)).unwrap();
    let mut straight = super::trainer();
    straight.fit(data(), Epochs(1)).unwrap();
    assert_eq!(weights(&trainer), weights(&straight));
    let error = trainer.evaluate(&unlabelled).unwrap_err();
    assert!(error.to_string().contains("1 fields where 2 are needed"), "{error}");
}
