//! Groups of ranks that share every batch, in each of which ranks have parts of the weights or stages of the model: the losses of one rank.

use plimsoll_nn::{Adam, Parallel, Precision, softmax_cross_entropy, zoo};
use plimsoll_run::Device;
use plimsoll_train::{Epochs, Trainer};

use super::ranks::{BATCH, SAMPLES, entry, on_ranks, refused, samples};
use super::shards::{came, compare};

fn trainer(entry: zoo::Entry, device: Device, parallel: Parallel, precision: Precision) -> Trainer {
    Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2))
        .device(device)
        .parallel(parallel)
        .precision(precision)
}

#[test]
fn groups_lose_as_much_as_one_rank() {
    for name in ["mlp", "cnn", "gpt", "lstm"] {
        let entry = entry(name);
        let data = samples(&entry, SAMPLES);
        let made =
            |parallel: Parallel| move |device: Device| trainer(entry, device, parallel, Precision::F64);
        let one = came(1, 3, &data, made(Parallel::Data));
        for (parallel, ranks) in
            [(Parallel::DataTensor(2), 4), (Parallel::DataPipeline(2), 4), (Parallel::DataTensor(3), 6)]
        {
            let found = came(ranks, 3, &data, made(parallel));
            compare(&found, &one, 1e-9, &format!("{name} with {parallel} on {ranks} ranks"));
            if name == "gpt" {
                assert_eq!(
                    found,
                    came(ranks, 3, &data, made(parallel)),
                    "{parallel}: the same bits in every run"
                );
            }
        }
    }
}

#[test]
fn every_group_has_the_model_once() {
    let entry = entry("gpt");
    let data = samples(&entry, SAMPLES);
    for parallel in [Parallel::DataTensor(2), Parallel::DataPipeline(2)] {
        let held = on_ranks(4, |device| {
            let mut trainer = trainer(entry, device, parallel, Precision::F32);
            trainer.fit(data.clone().batch(BATCH), Epochs(1)).unwrap();
            let training = trainer.training().unwrap();
            let parts = training.whole_parameters().filter(|part| part.pieces.is_some());
            parts.map(|part| (part.whole.bytes(), part.own.to_bytes().unwrap())).collect::<Vec<_>>()
        });
        // Ranks of the same place have the same, and those of a group all of it.
        assert!(held[0] == held[2] && held[1] == held[3], "{parallel}");
        let whole: usize = held[0].iter().map(|(whole, _)| whole).sum();
        let own = |rank: usize| held[rank].iter().map(|(_, own)| own.len()).sum::<usize>();
        let more = (own(0) + own(1)) as f64 / whole as f64;
        assert!((1.0..1.1).contains(&more), "{parallel}: {} and {} bytes of {whole}", own(0), own(1));
    }
}

#[test]
fn groups_that_ranks_cannot_be_are_refused_by_name() {
    let data = samples(&entry("mlp"), SAMPLES).batch(BATCH);
    for (ranks, parallel) in [(3, Parallel::DataTensor(2)), (2, Parallel::DataPipeline(2))] {
        let plan =
            |device: Device| trainer(entry("mlp"), device, parallel, Precision::F32).plan(&data).map(|_| ());
        for why in refused(ranks, plan) {
            assert!(why.contains(&format!("{ranks} ranks are not 2 groups")), "{why}");
        }
    }
    let synced = |device: Device| {
        let trainer = trainer(entry("mlp"), device, Parallel::DataTensor(2), Precision::F32);
        trainer.sync_batch_norm(true).plan(&data).map(|_| ())
    };
    assert!(refused(4, synced).iter().all(|why| why.contains("--sync-batch-norm")));
}
