//! Parameters in shards, statistics of batches over all ranks, f16, gradients of several steps: the losses of one rank.

use plimsoll_formats::safetensors::Reader;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{
    Adam, Clip, Metric, Parallel, Precision, Recipe, Sequential, Training, softmax_cross_entropy,
};
use plimsoll_run::{Device, Tensor};
use plimsoll_train::{Callback, Checkpoints, EarlyStopping, Ended, EpochEvent, Epochs, StepEvent, Trainer};

use super::Scratch;
use super::ranks::{
    BATCH, CLASSES, Case, EXACT, Losses, SAMPLES, cases, close, entry, on_ranks, pictures, samples,
    trained_and_sent,
};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What a training came to: losses of steps, of epochs with metrics, and the weights as they were saved.
#[derive(Debug, PartialEq)]
pub(super) struct Came {
    pub(super) losses: Vec<f64>,
    epochs: Vec<(f64, Vec<(String, f64)>)>,
    weights: Vec<(String, Vec<u8>)>,
}

fn saved(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut reader = Reader::open(path).unwrap();
    let names: Vec<String> = reader.tensors().iter().map(|tensor| tensor.name.clone()).collect();
    let read = |name: String| {
        let ty = reader.tensor(&name).unwrap();
        let mut bytes = vec![0; ty.element.bytes() * ty.shape.iter().product::<usize>()];
        reader.read_into(&name, &mut bytes).unwrap();
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

/// Trains on ranks of threads; what the first one saw, and all saw alike.
pub(super) fn came(
    ranks: usize,
    epochs: u64,
    data: &plimsoll_data::Dataset,
    made: impl Fn(Device) -> Trainer + Sync,
) -> Came {
    // Tests that run at once have folders of their own.
    let folder = Scratch::new(&format!("came-{:?}", std::thread::current().id()));
    let found = on_ranks(ranks, |device| {
        let losses = Losses::default();
        let mut trainer = made(device.clone())
            .metrics([Metric::Accuracy])
            .clip(Some(Clip::Norm(0.5)))
            .validation(data.clone().take(11).batch(4))
            .callback(losses.clone());
        let data = data.clone().shuffle(100, 3).batch(BATCH);
        let history = trainer.fit(&data, Epochs(epochs)).unwrap();
        trainer.save(folder.join("model.safetensors")).unwrap();
        let epochs = history.into_iter().map(|epoch| (epoch.loss, epoch.metrics)).collect::<Vec<_>>();
        let losses = losses.0.lock().unwrap().clone();
        (losses, epochs)
    });
    assert!(found.iter().all(|seen| *seen == found[0]), "the same bits on all ranks");
    let (losses, epochs) = found.into_iter().next().unwrap();
    Came { losses, epochs, weights: saved(&folder.join("model.safetensors")) }
}

pub(super) fn compare(found: &Came, one: &Came, within: f64, what: &str) {
    assert_eq!(found.losses.len(), one.losses.len(), "{what}");
    for (step, (a, b)) in found.losses.iter().zip(&one.losses).enumerate() {
        close(*a, *b, within, &format!("{what}, step {step}"));
    }
    for ((loss, metrics), (expected, of_one)) in found.epochs.iter().zip(&one.epochs) {
        close(*loss, *expected, within, what);
        for ((name, value), (_, expected)) in metrics.iter().zip(of_one) {
            close(*value, *expected, within, &format!("{what}: {name}"));
        }
    }
    for ((name, a), (other, b)) in found.weights.iter().zip(&one.weights) {
        assert_eq!((name, a.len()), (other, b.len()), "{what}");
    }
}

#[test]
fn parameters_in_shards_lose_as_much_as_one_rank() {
    // In bf16 the same values are rounded alike, and sums of gradients are added up in f32: what is left is in which order a rank adds up its own.
    let in_bf16 = cases([(Precision::MixedBf16, 1e-2, 2)]);
    for Case { name, entry, data, precision, within, ranks } in cases(EXACT).chain(in_bf16) {
        let made = |device: Device| {
            Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2))
                .device(device)
                .parallel(Parallel::Parameters)
                .precision(precision)
        };
        let one = came(1, 4, &data, made);
        let found = came(ranks, 4, &data, made);
        compare(&found, &one, within, &format!("{name} in {precision:?}, parameters in shards"));
        if name == "mlp" {
            assert_eq!(found, came(ranks, 4, &data, made), "the same bits in every run");
        }
    }
}

#[test]
fn parameters_in_shards_are_held_and_sent_as_they_should() {
    let train = |device: Device, precision: Precision| {
        let (trainer, sent) = trained_and_sent(&device, Parallel::Parameters, precision);
        let training = trainer.training().unwrap();
        let held: usize = training.values().iter().map(|own| own.ty().bytes()).sum();
        let of = |is_matrix: bool| -> u64 {
            let all = training.params().iter().filter(|param| (param.ty.shape.rank() > 1) == is_matrix);
            all.map(|param| param.ty.bytes() as u64).sum()
        };
        let first = training.params().iter().find(|param| param.ty.shape.rank() > 1);
        (sent, held, of(true), of(false), first.map_or(0, |param| param.ty.bytes() as u64))
    };
    // Gathered twice, in half the bytes where the model computes in 16 bits, the first only once, since nobody wants the gradient of the input; scattered once, in f32.
    // Vectors are scattered and gathered.
    for (ranks, precision, times) in [
        (2usize, Precision::F32, 3),
        (4, Precision::F32, 3),
        (2, Precision::MixedBf16, 2),
        (4, Precision::MixedBf16, 2),
    ] {
        for (sent, held, matrices, vectors, first) in on_ranks(ranks, |device| train(device, precision)) {
            let share = matrices as f64 / ranks as f64 + vectors as f64;
            assert!((1.0..1.02).contains(&(held as f64 / share)), "{held} bytes held, {share} in theory");
            let once = if precision == Precision::F32 { first } else { first / 2 };
            let theory = 20 * (ranks as u64 - 1) * (times * matrices - once + 2 * vectors) / ranks as u64;
            let more = sent as f64 / theory as f64;
            assert!((1.0..1.05).contains(&more), "{ranks} ranks sent {sent} bytes, {theory} in theory");
        }
    }
    // Where no weight is most of the model.
    let deep = entry("mlp").sized(|size| (size.image, size.width, size.depth) = (16, 512, 10));
    let least = on_ranks(4, |device| {
        let data = samples(&deep, SAMPLES).batch(13);
        [Parallel::Data, Parallel::Shard, Parallel::Parameters].map(|parallel| {
            let trainer = Trainer::new(deep, softmax_cross_entropy, Adam::new(1e-2));
            let trainer = trainer.device(device.clone()).parallel(parallel);
            let figures = trainer.plan(&data).unwrap().figures;
            // Other tests of this process grow meanwhile, and what was measured of the program with them.
            figures.floor.saturating_sub(figures.account.program)
        })
    });
    for [data, shard, parameters] in least {
        assert!(parameters < shard && shard < data, "{parameters} {shard} {data}");
    }
}

#[test]
fn batch_norm_over_all_ranks_is_that_of_one_with_the_whole_batch() {
    let (data, shape) = pictures();
    let made = |device: Device, parallel: Parallel, is_synced: bool| {
        let model = Sequential::new(shape)
            .conv2d(4, 3)
            .batch_norm()
            .relu()
            .flatten()
            .dense(6)
            .batch_norm()
            .relu()
            .dense(CLASSES);
        Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2))
            .device(device)
            .parallel(parallel)
            .sync_batch_norm(is_synced)
            .precision(Precision::F64)
    };
    let one = came(1, 3, &data, |device| made(device, Parallel::Data, true));
    for (ranks, parallel) in
        [(2, Parallel::Data), (3, Parallel::Data), (3, Parallel::Shard), (2, Parallel::Parameters)]
    {
        let found = came(ranks, 3, &data, |device| made(device, parallel, true));
        compare(&found, &one, 1e-9, &format!("batch norm over {ranks} ranks, {parallel:?}"));
    }
    // Each by itself is something else.
    let apart = came(2, 3, &data, |device| made(device, Parallel::Data, false));
    assert!((apart.losses[0] - one.losses[0]).abs() > 1e-6, "{apart:?}");
}

/// Keeps the loss scale of every step.
#[derive(Clone, Default)]
struct Scales(Arc<Mutex<Vec<Option<f64>>>>);

impl Callback for Scales {
    fn on_step(&mut self, event: &StepEvent) -> plimsoll_train::Result<()> {
        self.0.lock().unwrap().push(event.loss_scale);
        Ok(())
    }
}

#[test]
fn the_loss_scale_of_f16_is_that_of_one_rank_in_shards() {
    let entry = entry("mlp");
    let data = samples(&entry, SAMPLES).batch(BATCH);
    // So large that gradients overflow at first: steps are left out, and the scale comes down.
    let loss = |y: &Tensor, labels: &Tensor| softmax_cross_entropy(y, labels)?.mul_scalar(64.0);
    let train = |device: Device, parallel: Parallel| {
        let (losses, scales) = (Losses::default(), Scales::default());
        let mut trainer = Trainer::new(entry, loss, Adam::new(1e-3))
            .device(device)
            .parallel(parallel)
            .precision(Precision::MixedF16)
            .callback(losses.clone())
            .callback(scales.clone());
        let history = trainer.fit(&data, Epochs(3)).unwrap();
        let skipped: Vec<u64> = history.iter().map(|epoch| epoch.skipped).collect();
        let (losses, scales) = (losses.0.lock().unwrap().clone(), scales.0.lock().unwrap().clone());
        (losses, scales, skipped)
    };
    let one = on_ranks(1, |device| train(device, Parallel::Data)).remove(0);
    assert!(one.2[0] > 0, "some steps are left out: {one:?}");
    for parallel in [Parallel::Data, Parallel::Shard, Parallel::Parameters, Parallel::Tensor] {
        for found in on_ranks(3, |device| train(device, parallel)) {
            assert_eq!((&found.1, &found.2), (&one.1, &one.2), "{parallel:?}");
            for (a, b) in found.0.iter().zip(&one.0) {
                close(*a, *b, 5e-3, &format!("{parallel:?}"));
            }
        }
    }
}

#[test]
fn gradients_of_several_steps_are_added_up_in_shards() {
    let entry = entry("mlp");
    let input = entry.input(6);
    let (n, m) = (input.shape.elements(), 6);
    let batches: Vec<(Vec<f64>, Vec<i64>)> = (0..7)
        .map(|i| {
            let mut dice = plimsoll_graph::example::Dice::new(i + 1);
            let x = (0..n).map(|_| dice.normal()).collect();
            (x, (0..m).map(|_| dice.range(0, CLASSES) as i64).collect())
        })
        .collect();
    let train = |device: Device, parallel: Parallel| {
        let rank = device.rank();
        device.scope(|| {
            let own = parallel.samples_of(rank).shard(m);
            let mut shape: Vec<usize> = input.shape[..].to_vec();
            shape[0] = own.len();
            let width = n / m;
            let x = Type::new(DType::F64, &shape[..]);
            let mut recipe =
                Recipe::cross_entropy(Adam::new(1e-2), x.clone(), Type::new(DType::I64, [own.len()]));
            (recipe.accumulate, recipe.parallel, recipe.rank) = (3, parallel, rank);
            recipe.request.precision = Precision::F64;
            recipe.clip = Some(Clip::Norm(0.1));
            let mut training = Training::new(entry, recipe, 7).unwrap();
            let step = |(values, labels): &(Vec<f64>, Vec<i64>)| {
                let values = &values[own.start * width..own.end * width];
                let x = Tensor::from_slice(values, x.shape.clone()).unwrap();
                let labels = Tensor::from_slice(&labels[own.clone()], [own.len()]).unwrap();
                if rank.ranks > 1 {
                    training.set_share(own.start, own.len(), m).unwrap();
                }
                training.step(&[&x], &labels).unwrap()
            };
            batches.iter().map(step).collect::<Vec<f64>>()
        })
    };
    let one = on_ranks(1, |device| train(device, Parallel::Data)).remove(0);
    for parallel in [Parallel::Data, Parallel::Shard, Parallel::Parameters, Parallel::Tensor] {
        for found in on_ranks(2, |device| train(device, parallel)) {
            for (step, (a, b)) in found.iter().zip(&one).enumerate() {
                close(*a, *b, 1e-9, &format!("{parallel:?}, step {step}"));
            }
        }
    }
}

#[test]
fn parameters_in_shards_go_on_in_another_way_on_another_number_of_ranks() {
    let entry = entry("mlp");
    let data = samples(&entry, SAMPLES).shuffle(100, 3).batch(BATCH);
    let folder = Scratch::new("parameters");
    let trainer = |device: Device, parallel: Parallel, folder: &Path| {
        let is_first = device.rank().rank == 0;
        let trainer = Trainer::new(entry, softmax_cross_entropy, Adam::new(1e-2))
            .device(device)
            .parallel(parallel)
            .precision(Precision::F64);
        if is_first { trainer.checkpoints(Checkpoints::new(folder).every(4)) } else { trainer }
    };
    let losses = |history: Vec<EpochEvent>| -> Vec<f64> { history.iter().map(|epoch| epoch.loss).collect() };
    let whole = on_ranks(1, |device| {
        losses(trainer(device, Parallel::Data, &folder.join("whole")).fit(&data, Epochs(13)).unwrap())
    });
    let mut parts = Vec::new();
    let ways = [
        (3, Parallel::Parameters, 2),
        (1, Parallel::Parameters, 3),
        (2, Parallel::Parameters, 4),
        (2, Parallel::Shard, 5),
        (2, Parallel::Tensor, 6),
        (3, Parallel::Tensor, 7),
        (2, Parallel::Pipeline, 8),
        (1, Parallel::Data, 9),
        (2, Parallel::Pipeline, 10),
        (4, Parallel::DataTensor(2), 11),
        (4, Parallel::DataPipeline(2), 12),
        (2, Parallel::Shard, 13),
    ];
    for (ranks, parallel, epochs) in ways {
        let found = on_ranks(ranks, |device| {
            let mut trainer = trainer(device, parallel, &folder.join("parts"));
            trainer.resume(&folder.join("parts"), &data).unwrap();
            losses(trainer.fit(&data, Epochs(epochs)).unwrap())
        });
        assert!(found.iter().all(|losses| *losses == found[0]));
        parts.extend_from_slice(&found[0]);
    }
    assert_eq!(parts.len(), 13);
    for (a, b) in parts.iter().zip(&whole[0]) {
        close(*a, *b, 1e-9, "parameters in shards and parts on several numbers of ranks");
    }
}

#[test]
fn ranks_stop_early_where_one_would() {
    let entry = entry("mlp");
    let data = samples(&entry, SAMPLES).batch(BATCH);
    let train = |device: Device, parallel: Parallel| {
        // Only the first rank judges, as with the command.
        let is_first = device.rank().rank == 0;
        let mut trainer =
            Trainer::new(entry, softmax_cross_entropy, Adam::new(0.1)).device(device).parallel(parallel);
        if is_first {
            trainer = trainer.callback(EarlyStopping::new("loss", 1).min_delta(0.05));
        }
        let epochs = trainer.fit(&data, Epochs(200)).unwrap().len();
        assert!(matches!(trainer.ended(), Some(Ended::EarlyStop { .. })), "{:?}", trainer.ended());
        epochs
    };
    let one = on_ranks(1, |device| train(device, Parallel::Data)).remove(0);
    assert!((2..200).contains(&one), "{one}");
    for parallel in [Parallel::Data, Parallel::Shard, Parallel::Parameters, Parallel::Tensor] {
        assert_eq!(on_ranks(3, |device| train(device, parallel)), [one; 3], "{parallel:?}");
    }
}
