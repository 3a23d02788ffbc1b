//! Several ranks that share every batch: the losses, metrics and weights of one, whatever the model and however many there are.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_comm::{Connected, local};
use plimsoll_data::{Dataset, FieldSpec};
use plimsoll_device::{Bytes, Peers, RankTraffic};
use plimsoll_graph::example::Dice;
use plimsoll_graph::ops::Rank;
use plimsoll_graph::{DType, LossOps, TensorOps};
use plimsoll_nn::{
    Adafactor, Adam, Clip, Metric, Parallel, Precision, Sequential, softmax_cross_entropy, zoo,
};
use plimsoll_run::{Device, Tensor};
use plimsoll_train::{Callback, Checkpoints, EpochEvent, Epochs, StepEvent, Trainer};

use super::Scratch;

/// With batches of 5: the last of an epoch has one sample, which the ranks after the first have none of.
pub(super) const SAMPLES: u64 = 26;
pub(super) const BATCH: usize = 5;
const EPOCHS: u64 = 9;
pub(super) const CLASSES: usize = 7;

/// Runs `body` on every rank of a world of threads.
pub(super) fn on_ranks<T: Send>(ranks: usize, body: impl Fn(Device) -> T + Sync) -> Vec<T> {
    refused_on_ranks(ranks, |device| Ok(body(device))).into_iter().map(|done| done.unwrap()).collect()
}

/// The same, where a rank may fail before others are connected, who hear of it then.
fn refused_on_ranks<T: Send>(
    ranks: usize,
    body: impl Fn(Device) -> Result<T, String> + Sync,
) -> Vec<Result<T, String>> {
    let body = &body;
    std::thread::scope(|threads| {
        let connected = local::ranks(ranks, Duration::from_secs(60)).into_iter();
        let all: Vec<_> = connected
            .map(|rank| {
                threads.spawn(move || {
                    let peers: Arc<dyn Peers> = Arc::new(Connected::new(rank).map_err(|e| e.to_string())?);
                    body(Device::cpu_with(1, Bytes::mib(64)).unwrap().with_ranks(peers))
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Why each rank did not do what it was asked.
pub(super) fn refused(
    ranks: usize,
    body: impl Fn(Device) -> plimsoll_train::Result<()> + Sync,
) -> Vec<String> {
    let done = refused_on_ranks(ranks, |device| body(device).map_err(|why| why.to_string()));
    done.into_iter().map(|done| done.unwrap_err()).collect()
}

/// What is wrong for all ranks is said by the first, and the others know that it is.
#[track_caller]
fn said_once(why: &[String], words: &[&str]) {
    assert!(words.iter().all(|word| why[0].contains(word)), "{why:?}");
    assert!(why[1..].iter().all(|other| other == "rank 0 cannot train, and says why"), "{why:?}");
}

/// Keeps the loss of every step.
#[derive(Clone, Default)]
pub(super) struct Losses(pub(super) Arc<Mutex<Vec<f64>>>);

impl Callback for Losses {
    fn on_step(&mut self, event: &StepEvent) -> plimsoll_train::Result<()> {
        self.0.lock().unwrap().push(event.loss);
        Ok(())
    }
}

/// A model of the zoo in small.
pub(super) fn entry(name: &str) -> zoo::Entry {
    zoo::find(name).unwrap().sized(|size| {
        (size.width, size.depth, size.image, size.sequence, size.heads, size.classes) =
            (8, 2, 8, 6, 2, CLASSES);
    })
}

/// Samples of what the model takes, with labels.
pub(super) fn samples(entry: &zoo::Entry, n: u64) -> Dataset {
    let input = entry.input(1);
    let shape: Vec<usize> = input.shape[1..].to_vec();
    let is_tokens = input.dtype == DType::I64;
    let labels: Vec<usize> = if is_tokens { shape.clone() } else { Vec::new() };
    let spec = [FieldSpec::new("x", input.dtype, &shape[..]), FieldSpec::new("y", DType::I64, &labels[..])];
    let (n_inputs, n_labels) = (shape.iter().product::<usize>(), labels.iter().product::<usize>());
    Dataset::from_fn(spec, n, move |i, out| {
        let mut dice = Dice::new(i + 1);
        let mut tokens = |n: usize| (0..n).map(|_| dice.range(0, CLASSES) as i64).collect::<Vec<i64>>();
        out.set(1, &tokens(n_labels))?;
        if is_tokens {
            return out.set(0, &tokens(n_inputs));
        }
        let x: Vec<f32> = (0..n_inputs).map(|_| dice.normal() as f32).collect();
        out.set(0, &x)
    })
}

/// What a rank saw: losses of steps, epochs as text, weights.
#[derive(Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) losses: Vec<f64>,
    pub(super) epochs: Vec<(f64, Vec<(String, f64)>)>,
    pub(super) weights: Vec<Vec<u8>>,
    traffic: RankTraffic,
}

fn train(
    device: Device,
    model: impl plimsoll_nn::Model + 'static,
    data: &Dataset,
    precision: Precision,
) -> Seen {
    train_by(Parallel::Data, device, model, data, precision)
}

pub(super) fn train_by(
    parallel: Parallel,
    device: Device,
    model: impl plimsoll_nn::Model + 'static,
    data: &Dataset,
    precision: Precision,
) -> Seen {
    let losses = Losses::default();
    let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2))
        .device(device.clone())
        .parallel(parallel)
        .precision(precision)
        .metrics([Metric::Accuracy])
        .clip(Some(Clip::Norm(0.5)))
        .validation(data.clone().take(11).batch(4))
        .callback(losses.clone());
    let before = device.rank_traffic();
    let data = data.clone().shuffle(100, 3).batch(BATCH);
    let history = trainer.fit(&data, Epochs(EPOCHS)).unwrap();
    let now = device.rank_traffic();
    let epochs = history.into_iter().map(|epoch| (epoch.loss, epoch.metrics)).collect();
    let weights = trainer.parameters().map(|(_, value)| value.to_bytes().unwrap()).collect();
    let traffic = RankTraffic { sent: now.sent - before.sent, received: now.received - before.received };
    Seen { losses: losses.0.lock().unwrap().clone(), epochs, weights, traffic }
}

pub(super) fn close(a: f64, b: f64, within: f64, what: &str) {
    assert!((a - b).abs() <= within * (1.0 + b.abs()), "{what}: {a} and {b}");
}

/// Holds what ranks saw against what one did, whose weights all of them have.
fn compare(found: &[Seen], one: &Seen, within: f64, what: &str) {
    compare_losses(found, one, within, what);
    for seen in found {
        assert_eq!(seen.weights, found[0].weights, "{what}: the same bits on all ranks");
    }
}

/// Holds the losses and metrics that ranks saw against those of one.
pub(super) fn compare_losses(found: &[Seen], one: &Seen, within: f64, what: &str) {
    for (rank, seen) in found.iter().enumerate() {
        let what = format!("{what}, rank {rank} of {}", found.len());
        assert_eq!(seen.losses.len(), one.losses.len(), "{what}");
        for (step, (a, b)) in seen.losses.iter().zip(&one.losses).enumerate() {
            close(*a, *b, within, &format!("{what}, step {step}"));
        }
        for ((loss, metrics), (expected, of_one)) in seen.epochs.iter().zip(&one.epochs) {
            close(*loss, *expected, within, &what);
            assert_eq!(metrics.len(), of_one.len());
            for ((name, value), (_, expected)) in metrics.iter().zip(of_one) {
                close(*value, *expected, within, &format!("{what}: {name}"));
            }
        }
        assert_eq!(seen.losses, found[0].losses, "{what}: the same bits on all ranks");
    }
}

#[test]
fn mlp_cnn_gpt_and_lstm_lose_as_much_on_any_number_of_ranks() {
    for name in ["mlp", "cnn", "gpt", "lstm"] {
        let entry = entry(name);
        let data = samples(&entry, SAMPLES);
        for (precision, within) in [(Precision::F64, 1e-9), (Precision::F32, 1e-5)] {
            let one = on_ranks(1, |device| train(device, entry, &data, precision)).remove(0);
            assert_eq!(one.losses.len(), 54);
            // All numbers of ranks in f64; in f32, where sums in another order differ more, the one that is least even.
            let worlds = if precision == Precision::F64 { 2..=4 } else { 3..=3 };
            for ranks in worlds {
                let found = on_ranks(ranks, |device| train(device, entry, &data, precision));
                compare(&found, &one, within, &format!("{name} in {precision:?}"));
                if precision == Precision::F32 {
                    let again = on_ranks(ranks, |device| train(device, entry, &data, precision));
                    assert_eq!(found, again, "{name}: the same bits in every run");
                }
            }
        }
    }
}

#[test]
fn dropout_draws_the_same_for_a_sample_whichever_rank_has_it() {
    let entry = entry("mlp");
    let data = samples(&entry, SAMPLES);
    let width = entry.input(1).shape[1];
    let model = || Sequential::new([width]).dense(16).relu().dropout(0.3).dense(CLASSES);
    let one = on_ranks(1, |device| train(device, model(), &data, Precision::F64)).remove(0);
    for ranks in [2, 3] {
        let found = on_ranks(ranks, |device| train(device, model(), &data, Precision::F64));
        compare(&found, &one, 1e-9, "dropout");
    }
}

#[test]
fn batch_norm_has_statistics_of_each_rank_and_one_state() {
    let (data, shape) = pictures();
    let model = || Sequential::new(shape).conv2d(4, 3).batch_norm().relu().flatten().dense(CLASSES);
    let found = on_ranks(2, |device| train(device, model(), &data, Precision::F32));
    assert_eq!(found[0].weights, found[1].weights);
    assert_eq!(found[0].epochs, found[1].epochs);
    assert!(found[0].epochs.last().unwrap().0 < found[0].epochs[0].0, "{found:?}");
}

#[test]
fn ranks_send_what_their_gradients_are() {
    let entry = entry("mlp").sized(|size| (size.width, size.image) = (64, 16));
    let data = samples(&entry, SAMPLES);
    let train = |device: Device| {
        let mut trainer = Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2)).device(device.clone());
        let data = data.clone().batch(13);
        trainer.fit(&data, Epochs(1)).unwrap();
        let before = device.rank_traffic();
        trainer.fit(&data, Epochs(11)).unwrap();
        let elements: usize = trainer.parameters().map(|(_, value)| value.ty().elements()).sum();
        (device.rank_traffic().sent - before.sent, elements)
    };
    for ranks in [2usize, 4] {
        for (sent, elements) in on_ranks(ranks, train) {
            // Around a ring: each value leaves a rank once to be added and once as a sum, but for the rank's own share.
            let theory = 20 * 2 * (ranks as u64 - 1) * (4 * elements as u64) / ranks as u64;
            let more = sent as f64 / theory as f64;
            assert!((1.0..1.05).contains(&more), "{ranks} ranks sent {sent} bytes, {theory} in theory");
        }
    }
}

/// A model on so many ranks, and how near it comes to one.
pub(super) struct Case {
    pub name: &'static str,
    pub entry: zoo::Entry,
    pub data: Dataset,
    pub precision: Precision,
    pub within: f64,
    pub ranks: usize,
}

/// Precisions in which ranks come as near to one as rounding lets them, and on how many.
pub(super) const EXACT: [(Precision, f64, usize); 2] = [(Precision::F64, 1e-9, 4), (Precision::F32, 1e-5, 3)];

/// Models of each kind in these precisions.
pub(super) fn cases<const N: usize>(precisions: [(Precision, f64, usize); N]) -> impl Iterator<Item = Case> {
    ["mlp", "cnn", "gpt", "lstm"].into_iter().flat_map(move |name| {
        precisions.map(|(precision, within, ranks)| {
            let entry = entry(name);
            Case { name, entry, data: samples(&entry, SAMPLES), precision, within, ranks }
        })
    })
}

#[test]
fn shards_of_state_and_gradients_lose_as_much_as_one_rank() {
    for Case { name, entry, data, precision, within, ranks } in cases(EXACT) {
        let one = on_ranks(1, |device| train(device, entry, &data, precision)).remove(0);
        let sharded = |device| train_by(Parallel::Shard, device, entry, &data, precision);
        let found = on_ranks(ranks, sharded);
        compare(&found, &one, within, &format!("{name} in {precision:?}, in shards"));
        if name == "mlp" {
            assert_eq!(found, on_ranks(ranks, sharded), "the same bits in every run");
        }
    }
}

/// Samples of a small convolutional net, and their shape.
pub(super) fn pictures() -> (Dataset, [usize; 3]) {
    let entry = entry("cnn");
    let shape = &entry.input(1).shape[1..];
    let shape = [shape[0], shape[1], shape[2]];
    (samples(&entry, SAMPLES), shape)
}

/// A small U-Net, and so many pictures with masks.
pub(super) fn masked(samples: u64) -> (zoo::Entry, Dataset) {
    let entry = entry("unet").sized(|size| (size.width, size.image) = (4, 16));
    let input = entry.input(1);
    let (shape, pixels) = (input.shape[1..].to_vec(), input.shape[1..3].to_vec());
    let spec = [FieldSpec::new("x", DType::F32, &shape[..]), FieldSpec::new("y", DType::I64, &pixels[..])];
    let (n, m) = (shape.iter().product::<usize>(), pixels.iter().product::<usize>());
    let data = Dataset::from_fn(spec, samples, move |i, out| {
        let mut dice = Dice::new(i + 1);
        let x: Vec<f32> = (0..n).map(|_| dice.normal() as f32).collect();
        out.set(1, &(0..m).map(|_| dice.range(0, CLASSES) as i64).collect::<Vec<i64>>())?;
        out.set(0, &x)
    });
    (entry, data)
}

#[test]
fn u_net_trains_on_ranks_in_either_way_with_one_state() {
    let (entry, data) = masked(12);
    let ways = [Parallel::Data, Parallel::Shard].map(|parallel| {
        let found = on_ranks(2, |device| {
            let mut trainer =
                Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-3)).device(device).parallel(parallel);
            let history = trainer.fit(data.clone().batch(4), Epochs(3)).unwrap();
            let weights: Vec<Vec<u8>> = trainer.parameters().map(|(_, w)| w.to_bytes().unwrap()).collect();
            (history.iter().map(|epoch| epoch.loss).collect::<Vec<f64>>(), weights)
        });
        assert_eq!(found[0], found[1], "{parallel:?}");
        found.into_iter().next().unwrap().0
    });
    // Statistics of batch norm are each rank's own in both.
    for (a, b) in ways[0].iter().zip(&ways[1]) {
        close(*a, *b, 1e-5, "in shards or not");
    }
    assert!(ways[0][2] < ways[0][0], "{ways:?}");
}

/// An mlp that ranks have trained in this way, and the bytes that one of them sent in the last ten of eleven epochs.
pub(super) fn trained_and_sent(device: &Device, parallel: Parallel, precision: Precision) -> (Trainer, u64) {
    let entry = entry("mlp").sized(|size| (size.width, size.image) = (64, 16));
    let data = samples(&entry, SAMPLES).batch(13);
    let trainer = Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2));
    let mut trainer = trainer.device(device.clone()).parallel(parallel).precision(precision);
    trainer.fit(&data, Epochs(1)).unwrap();
    let before = device.rank_traffic();
    trainer.fit(&data, Epochs(11)).unwrap();
    (trainer, device.rank_traffic().sent - before.sent)
}

#[test]
fn shards_hold_and_send_what_they_should() {
    let train = |device: Device| {
        let (trainer, sent) = trained_and_sent(&device, Parallel::Shard, Precision::F32);
        let elements: usize = trainer.parameters().map(|(_, value)| value.ty().elements()).sum();
        let slots = trainer
            .training()
            .unwrap()
            .state()
            .filter(|(name, _)| name.ends_with(".m") || name.ends_with(".v"));
        let state: usize = slots.map(|(_, slot)| slot.ty().bytes()).sum();
        (sent, elements, state)
    };
    for ranks in [2usize, 4] {
        for (sent, elements, state) in on_ranks(ranks, train) {
            let share = (2 * 4 * elements) as f64 / ranks as f64;
            let more = state as f64 / share;
            assert!(
                (1.0..1.02).contains(&more),
                "{state} bytes of state on each of {ranks} ranks, {share} in theory"
            );
            // Each gradient leaves a rank once to be added, and each parameter once as new, but for what stays where it is.
            let theory = 20 * 2 * (ranks as u64 - 1) * (4 * elements as u64) / ranks as u64;
            let more = sent as f64 / theory as f64;
            assert!((1.0..1.05).contains(&more), "{ranks} ranks sent {sent} bytes, {theory} in theory");
        }
    }
}

/// Trains six epochs on one rank, and again on 3, 1 and 2 ranks that each go on where the ones before were: the losses are the same.
fn goes_on_on_other_numbers_of_ranks(
    what: &str,
    trainer: impl Fn(Device, &Path) -> Trainer + Sync,
    fit: impl Fn(&mut Trainer, &Path, &Dataset, Epochs) -> plimsoll_train::Result<Vec<EpochEvent>> + Sync,
) {
    let data = samples(&entry("mlp"), SAMPLES).shuffle(100, 3).batch(BATCH);
    let folder = Scratch::new(what);
    let losses = |ranks: usize, name: &str, epochs: u64| {
        let folder = folder.join(name);
        let found = on_ranks(ranks, |device| {
            let mut trainer = trainer(device, &folder);
            let history = fit(&mut trainer, &folder, &data, Epochs(epochs)).unwrap();
            history.iter().map(|epoch| epoch.loss).collect::<Vec<f64>>()
        });
        assert!(found.iter().all(|losses| *losses == found[0]));
        found[0].clone()
    };
    let whole = losses(1, "whole", 6);
    let parts = [(3, 2), (1, 4), (2, 6)].map(|(ranks, epochs)| losses(ranks, "parts", epochs)).concat();
    assert_eq!(parts.len(), 6);
    for (a, b) in parts.iter().zip(&whole) {
        close(*a, *b, 1e-9, what);
    }
}

#[test]
fn state_in_shards_goes_on_on_another_number_of_ranks() {
    // Only the first rank has a folder, as with the command.
    let trainer = |device: Device, folder: &Path| {
        let is_first = device.rank().rank == 0;
        let trainer = Trainer::new(entry("mlp"), softmax_cross_entropy, Adam::new(1e-2))
            .device(device)
            .parallel(Parallel::Shard)
            .precision(Precision::F64);
        if is_first { trainer.checkpoints(Checkpoints::new(folder).every(4)) } else { trainer }
    };
    goes_on_on_other_numbers_of_ranks("shards", trainer, |trainer, folder, data, epochs| {
        trainer.resume(folder, data)?;
        trainer.fit(data, epochs)
    });
}

#[test]
fn an_optimizer_that_cannot_be_cut_into_shards_is_refused_by_name() {
    let entry = entry("mlp");
    let data = samples(&entry, SAMPLES).batch(BATCH);
    let why = refused(2, |device| {
        let mut trainer = Trainer::new(entry, softmax_cross_entropy, Adafactor::new(1e-2))
            .device(device)
            .parallel(Parallel::Shard);
        trainer.fit(&data, Epochs(1)).map(drop)
    });
    said_once(&why, &["adafactor", "--parallel data"]);
}

#[test]
fn a_training_goes_on_on_another_number_of_ranks() {
    let trainer = |device: Device, folder: &Path| {
        Trainer::new(entry("mlp"), softmax_cross_entropy, Adam::new(1e-2))
            .device(device)
            .precision(Precision::F64)
            .checkpoints(Checkpoints::new(folder))
    };
    goes_on_on_other_numbers_of_ranks("ranks", trainer, |trainer, _, data, epochs| {
        trainer.fit_or_resume(data, epochs)
    });
}

#[test]
fn ranks_that_were_not_started_alike_are_refused_by_what_differs() {
    let entry = entry("mlp");
    let data = samples(&entry, SAMPLES);
    let why = refused(2, |device| {
        let batch = if device.rank().rank == 1 { 6 } else { 5 };
        let mut trainer = Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2)).device(device);
        trainer.fit(data.clone().batch(batch), Epochs(1)).map(drop)
    });
    for why in why {
        assert!(why.contains("the batch size is '6' on rank 1 and '5' on rank 0"), "{why}");
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_with_its_reason() {
    let entry = entry("mlp");
    let good = samples(&entry, SAMPLES);
    let why = refused(3, |device| {
        let is_bad = device.rank().rank == 2;
        let data = good.clone().map_in_place(move |sample, at| match is_bad && at.index == 14 {
            true => Err(plimsoll_data::Error::refused("its file is torn")),
            false => {
                let _ = sample;
                Ok(())
            }
        });
        let mut trainer = Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2)).device(device);
        trainer.fit(data.batch(BATCH), Epochs(2)).map(drop)
    });
    assert!(why[2].contains("its file is torn"), "{why:?}");
    for heard in &why[..2] {
        assert!(heard.contains("rank 2") && heard.contains("its file is torn"), "{heard}");
    }
}

#[test]
fn a_batch_with_fewer_samples_than_ranks_is_refused() {
    let entry = entry("mlp");
    let data = samples(&entry, SAMPLES).batch(2);
    let why = refused(3, |device| {
        let mut trainer = Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2)).device(device);
        trainer.fit(&data, Epochs(1)).map(drop)
    });
    said_once(&why, &["a batch has 2 samples for 3 ranks"]);
}

#[test]
fn a_loss_that_does_not_add_up_over_ranks_is_refused() {
    let entry = entry("mlp");
    let data = samples(&entry, SAMPLES).batch(BATCH);
    let sum = |logits: &Tensor, labels: &Tensor| logits.softmax_cross_entropy(labels)?.sum(&[], false);
    let why = refused(2, |device| {
        let mut trainer = Trainer::new(entry, sum, Adam::new(1e-2)).device(device);
        trainer.fit(&data, Epochs(1)).map(drop)
    });
    said_once(&why, &["ranks cannot share it", "sums over samples"]);
}

#[test]
fn shares_of_all_ranks_are_the_batches_of_one() {
    let entry = entry("mlp");
    let streams = |data: Dataset| data.filter(|sample, _| Ok(sample.get::<i64>(1)?[0] != 3));
    type Made = fn(Dataset) -> Dataset;
    let forms: [(&str, Made); 3] = [
        ("read by number", |data| data.shuffle(9, 1).batch(BATCH)),
        ("filtered", |data| data.shuffle(9, 1).batch(BATCH)),
        ("changed as batches", |data| data.batch(BATCH).map_batch(|_| Ok(()))),
    ];
    for (name, form) in forms {
        let data = samples(&entry, SAMPLES);
        let data = form(if name == "filtered" { streams(data) } else { data });
        let numbers = |data: &Dataset| -> Vec<Vec<u64>> {
            data.batches().unwrap().map(|batch| batch.unwrap().numbers().to_vec()).collect()
        };
        let whole = numbers(&data);
        for ranks in 1..5 {
            let mut joined = vec![Vec::new(); whole.len()];
            for rank in 0..ranks {
                let own = data.clone().shared(Rank::new(rank, ranks));
                for (all, batch) in joined.iter_mut().zip(own.batches().unwrap()) {
                    let batch = batch.unwrap();
                    let share = batch.share();
                    assert_eq!(batch.field(0).unwrap().shape[0], batch.samples());
                    assert_eq!(batch.samples(), share.samples.max(1));
                    if share.samples > 0 {
                        assert_eq!(share.first, all.len());
                        all.extend_from_slice(batch.numbers());
                    }
                }
            }
            assert_eq!(joined, whole, "{name} on {ranks} ranks");
        }
    }
}

/// Ranks that each have their own memory on one card, and exchange values through the host's.
#[test]
fn two_ranks_share_a_card_and_lose_as_much_as_one() {
    let found = [("emulator", Device::cuda_emulated(Bytes::mib(256))), ("card", Device::cuda(0))];
    let entry = entry("mlp");
    let data = samples(&entry, 10).batch(5);
    for device in found.into_iter().filter_map(|(name, device)| plimsoll_testing::group(name, device)) {
        let fit = |device: Device, parallel: Parallel| {
            let trainer = Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2));
            let history = trainer.device(device).parallel(parallel).fit(&data, Epochs(2)).unwrap();
            history.into_iter().map(|epoch| epoch.loss).collect::<Vec<f64>>()
        };
        let one = fit(device.clone(), Parallel::Data);
        for parallel in [Parallel::Data, Parallel::Shard, Parallel::Tensor] {
            // What connects threads connects ranks on one card as well.
            for found in on_ranks(2, |host| fit(device.with_ranks(host.ranks().unwrap().clone()), parallel)) {
                for (a, b) in found.iter().zip(&one) {
                    close(*a, *b, 1e-5, &format!("{parallel:?} on {}", device.name()));
                }
            }
        }
    }
}

#[test]
fn gradients_are_exchanged_while_the_backward_pass_goes_on() {
    let entry = entry("mlp").sized(|size| (size.width, size.depth, size.image) = (256, 6, 16));
    let data = samples(&entry, SAMPLES).batch(24);
    let planned = on_ranks(2, |device| {
        let trainer = Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2)).device(device);
        trainer.plan(&data).unwrap().timeline().unwrap()
    });
    for step in planned {
        // By exchange: what of the backward pass stands between it and the next wait.
        let exchanges = step.instructions.iter().enumerate().filter(|(_, i)| i.op == "all_reduce");
        let beside: Vec<usize> = exchanges
            .map(|(at, _)| {
                let until = step.instructions[at..].iter().take_while(|i| i.op != "await");
                until.filter(|i| i.phase == plimsoll_run::record::Phase::Backward).count()
            })
            .collect();
        let going_on = beside.iter().filter(|n| **n > 0).count();
        // The first is the loss, which is waited for; behind the last there is nothing to go on beside.
        assert!(beside.len() > 4 && 2 * going_on >= beside.len(), "{beside:?}");
    }
}
