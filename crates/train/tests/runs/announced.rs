//! A training announces all that its process will take, with a limit or without: program, state, pipelines, step. The least that it
//! names is the least that works.
//!
//! What a process takes can be read of a process of its own only, so this test starts itself again for every case.

use std::path::Path;

use plimsoll_data::{Column, Dataset};
use plimsoll_device::{Bytes, process};
use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
use plimsoll_run::Device;
use plimsoll_testing::child;
use plimsoll_train::{Epochs, Error, Trainer};

use super::ranks::{entry, samples as samples_of};

const SAMPLES: usize = 1000;

fn data() -> Dataset {
    let x: Vec<f32> = (0..SAMPLES * 784).map(|i| (i % 251) as f32 / 250.0).collect();
    let y: Vec<i64> = (0..SAMPLES as i64).map(|i| i % 10).collect();
    let columns = [Column::memory("x", x, [784]).unwrap(), Column::memory("y", y, []).unwrap()];
    Dataset::columns(columns).unwrap().shuffle(500, 1).batch(64)
}

fn trainer(cache: &Path, line: Option<Bytes>, beside: Bytes) -> Trainer {
    let device = Device::cpu_with(2, Bytes::gib(1)).unwrap();
    device.calibrate(cache);
    let model = Sequential::new([784]).dense(64).relu().dense(10);
    Trainer::new(model, softmax_cross_entropy, Adam::new(1e-3))
        .device(device)
        .memory_limit_bytes(line)
        .reserve(beside)
}

/// What one process says: the least, what it announced, the most that it took, and where the frontier begins.
fn said(cache: &Path, line: Option<Bytes>, beside: Bytes) -> [u64; 4] {
    let data = data();
    let mut training = trainer(cache, line, beside);
    let [least, announced, peak] = match training.compile(&data) {
        Err(Error::Run(plimsoll_run::Error::Infeasible { least, .. })) => [least.get(), 0, 0],
        info => {
            let info = info.unwrap();
            training.fit(&data, Epochs(1)).unwrap();
            [info.floor.get(), info.planned.get(), process::peak_resident().unwrap().get()]
        }
    };
    drop(training);
    let frontier = trainer(cache, line, beside).frontier(&data, 2, None).unwrap();
    [least, announced, peak, frontier.points[0].limit.get()]
}

fn ask(cache: &Path, line: u64, beside: u64) -> [u64; 4] {
    let question = [&line.to_string(), &beside.to_string(), &*cache.to_string_lossy()];
    child::ask("announced::all_that_a_training_takes_is_announced_and_the_least_is_the_least", &question)
}

#[test]
fn all_that_a_training_takes_is_announced_and_the_least_is_the_least() {
    if let Some(question) = child::question() {
        let [line, beside, cache] = question.try_into().unwrap();
        let line = Some(line.parse().unwrap()).filter(|&line| line > 0).map(Bytes);
        return child::answer(&said(Path::new(&cache), line, Bytes(beside.parse().unwrap())));
    }
    let cache = std::env::temp_dir().join(format!("plimsoll-announced-{}", std::process::id()));
    let [least, announced, peak, begins] = ask(&cache, 0, 0);
    println!("cold: least {least}, announced {announced}, peak {peak}");
    assert!(peak <= announced, "{peak} where {announced} was announced");
    assert_eq!(begins, least, "the frontier begins at the least");
    let [warm_least, announced, peak, _] = ask(&cache, 0, 0);
    assert!(
        peak <= announced && warm_least == least,
        "{peak} of {announced}, least {warm_least} and {least}"
    );
    let [again, announced, peak, begins] = ask(&cache, least, 0);
    assert_eq!((again, begins), (least, least));
    assert!(peak <= announced && announced <= least, "{peak}, {announced} of {least}");
    let below = ask(&cache, least - 1, 0);
    assert_eq!(below, [least, 0, 0, least], "a byte less is refused with the same least");
    // What stands beside counts in all of them.
    let more = 8 << 20;
    let [with, announced_with, _, begins] = ask(&cache, 0, more);
    assert_eq!((with, begins), (least + more, least + more));
    assert!(announced_with >= announced + more);
    std::fs::remove_dir_all(cache).unwrap();
}

#[test]
fn a_refusal_names_the_least_for_every_batch_of_a_pass() {
    for (name, samples, batch) in
        [("mlp", 26, 5), ("mlp", 27, 25), ("cnn", 26, 5), ("cnn", 50, 48), ("gpt", 26, 5)]
    {
        let (model, device) = (entry(name), Device::cpu_with(1, Bytes::gib(1)).unwrap());
        let data = samples_of(&model, samples).batch(batch);
        let plan = |limit: Option<Bytes>| {
            let trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-3)).device(device.clone());
            trainer.memory_limit_bytes(limit).plan(&data)
        };
        // Other tests of this process grow meanwhile, and what was measured of the program with them.
        let figures = plan(None).unwrap().figures;
        let least = figures.floor.saturating_sub(figures.account.program);
        let refused = match plan(Some(Bytes::mib(1))) {
            Err(Error::Run(plimsoll_run::Error::Infeasible { least, account, .. })) => {
                least.saturating_sub(account.program)
            }
            other => panic!("{:?}", other.map(|plan| plan.figures)),
        };
        assert_eq!(refused, least, "{name}: {samples} samples in batches of {batch}");
    }
}
