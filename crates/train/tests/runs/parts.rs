//! Ranks that each have parts of the weights: columns and rows of dense layers, heads, words. The losses of one rank, with less on each.

use plimsoll_graph::{AttentionOps, FrozenCrossEntropyOps, GatherOps, MatMulAddOps, RotaryOps, TensorOps};
use plimsoll_nn::{
    Adafactor, Adam, Init, Net, OfRanks, Parallel, Precision, Sequential, joint_loss, model,
    softmax_cross_entropy, zoo,
};
use plimsoll_run::{Device, Result, Tensor};
use plimsoll_train::{Epochs, Trainer};

use super::ranks::{BATCH, CLASSES, Losses, SAMPLES, close, entry, on_ranks, refused, samples};
use super::shards::{came, compare};

fn trainer(model: impl plimsoll_nn::Model + 'static, device: Device, precision: Precision) -> Trainer {
    Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2))
        .device(device)
        .parallel(Parallel::Tensor)
        .precision(precision)
}

#[test]
fn parts_of_weights_lose_as_much_as_one_rank() {
    // Steps of 0.01 take the last two apart in f32 however the sums are ordered.
    for (name, epochs) in [("mlp", 9), ("cnn", 9), ("gpt", 9), ("lstm", 9), ("gpt2", 2), ("vit", 2)] {
        let entry = entry(name).sized(|size| size.patch = 4);
        let data = samples(&entry, SAMPLES);
        // Seven classes and words are not as many for each rank, and two heads are none for three.
        for (precision, within, ranks) in [(Precision::F64, 1e-9, 2), (Precision::F32, 1e-5, 3)] {
            let made = |device: Device| trainer(entry, device, precision);
            let (one, found) = (came(1, epochs, &data, made), came(ranks, epochs, &data, made));
            assert_eq!(one.losses.len() as u64, 6 * epochs);
            compare(&found, &one, within, &format!("{name} in {precision:?}, in parts"));
            if name == "gpt" {
                assert_eq!(found, came(ranks, epochs, &data, made), "the same bits in every run");
            }
        }
    }
}

/// A decoder as large ones are: gates, fewer heads for keys than for queries, norms of heads, dropout.
fn decoder(net: &mut Net, tokens: &Tensor) -> Result<Tensor> {
    let (width, heads, keys, head) = (16, 4, 2, 4);
    let [b, t] = tokens.shape()[..] else { panic!("{:?}", tokens.shape()) };
    let x = net.embedding("token", tokens, CLASSES, width)?;
    let y = net.rms_norm("norm1", &x)?;
    let [q, k, v] = [("q", heads), ("k", keys), ("v", keys)]
        .map(|(name, n)| net.dense(name, &y, n * head, false)?.reshape([b, t, n, head]));
    let q = net.rms_norm("q_norm", &q?)?;
    let y = q.attention(&k?, &v?, None, true, None)?.reshape([b, t, heads * head])?;
    let x = x.add(&net.dense("o", &y, width, false)?)?;
    let y = net.rms_norm("norm2", &x)?;
    let gate = net.dense("gate", &y, 32, false)?.silu()?;
    let y = gate.mul(&net.dense("up", &y, 32, false)?)?;
    let y = net.dropout("drop", &y, 0.2)?;
    let x = x.add(&net.dense("mid", &y, width, false)?)?;
    let y = net.rms_norm("norm3", &x)?;
    // Both halves of a weight beside each other.
    let halves = net.dense("halves", &y, 48, true)?.split(-1, &[24, 24])?;
    let y = halves[0].mul(&halves[1].sigmoid()?)?;
    let x = x.add(&net.dense("down", &y, width, true)?)?;
    let table = net.scope("token", |net| net.param("table", [CLASSES, width], Init::Normal(1.0)))?;
    x.matmul_with(&table, None, false, true)
}

/// What a rank has parts of, each with the sizes of its part.
fn cut(trainer: &Trainer) -> Vec<String> {
    let training = trainer.training().unwrap();
    let parts = training.whole_parameters().filter(|part| part.pieces.is_some());
    let said = |part: OfRanks<'_>| {
        part.own.shape().iter().fold(part.name.to_string(), |said, size| format!("{said} {size}"))
    };
    parts.map(said).collect()
}

#[test]
fn gates_grouped_heads_and_dropout_are_found_and_lose_as_much() {
    let data = samples(&entry("gpt"), SAMPLES);
    let made = |device: Device| trainer(model(|net, x| decoder(net, &x[0])), device, Precision::F64);
    compare(&came(2, 3, &data, made), &came(1, 3, &data, made), 1e-9, "a decoder in parts");
    let held = on_ranks(2, |device| {
        let mut trainer = made(device);
        trainer.fit(data.clone().batch(BATCH), Epochs(1)).unwrap();
        cut(&trainer)
    });
    let expected = "token/table 4 16, q/weight 16 8, k/weight 16 4, v/weight 16 4, o/weight 8 16, gate/weight 16 16, \
                    up/weight 16 16, mid/weight 16 16, halves/weight 16 24, halves/bias 24, down/weight 12 16";
    expected
        .split(", ")
        .for_each(|part| assert!(held[0].iter().any(|own| own == part), "{part}: {:?}", held[0]));
}

/// A block of a language model as adapters tune it: weights that are not trained, turned heads, products that are added to what is there, and the loss of a
/// layer that is not trained.
fn adapted(net: &mut Net, tokens: &Tensor) -> Result<Vec<Tensor>> {
    let (width, heads, head, rank) = (16, 4, 4, 2);
    let [b, t] = tokens.shape()[..] else { panic!("{:?}", tokens.shape()) };
    let table = net.state("table", [CLASSES, width], Init::Normal(1.0))?;
    let x = table.embedding(tokens)?;
    let angles = |f: fn(f64) -> f64| {
        let all: Vec<f64> = (0..t * 2).map(|i| f(i as f64 / 3.0)).collect();
        Tensor::from_slice(&all, [1, t, 1, 2])?.cast(x.dtype())
    };
    let (sin, cos) = (angles(f64::sin)?, angles(f64::cos)?);
    let mut linear = |name: &str, x: &Tensor, units: usize, onto: Option<&Tensor>| {
        net.scope(name, |net| {
            let width = x.shape()[2];
            let w = net.state("weight", [units, width], Init::fan_in(width))?;
            let a = net.param("a", [rank, width], Init::fan_in(width))?;
            let b = net.param("b", [units, rank], Init::Normal(0.1))?;
            let y = match onto {
                Some(onto) => x.matmul_onto(&w, false, true, 1.0, onto)?,
                None => x.matmul_with(&w, None, false, true)?,
            };
            x.matmul_with(&a, None, false, true)?.matmul_onto(&b, false, true, 0.5, &y)
        })
    };
    let [q, k, v] =
        ["q", "k", "v"].map(|name| linear(name, &x, heads * head, None)?.reshape([b, t, heads, head]));
    let (q, k) = (q?.rotary(&sin, &cos)?, k?.rotary(&sin, &cos)?);
    let y = q.attention(&k, &v?, None, true, None)?.reshape([b, t, heads * head])?;
    let x = linear("o", &y, width, Some(&x))?;
    let y = linear("up", &x, 32, None)?.silu()?;
    let x = linear("down", &y, width, Some(&x))?;
    let out = net.state("out", [CLASSES, width], Init::Normal(1.0))?;
    Ok(vec![x, out])
}

#[test]
fn adapters_turned_heads_and_a_loss_that_is_not_trained_are_cut() {
    let data = samples(&entry("gpt"), SAMPLES).batch(BATCH);
    let train = |device: Device| {
        let loss = joint_loss(|outputs, labels| {
            outputs[0].frozen_cross_entropy(&outputs[1], &labels[0])?.mean(&[], false)
        });
        let losses = Losses::default();
        let mut trainer = Trainer::new(model(|net, x| adapted(net, &x[0])), loss, Adam::new(1e-2))
            .device(device)
            .parallel(Parallel::Tensor)
            .precision(Precision::F64)
            .callback(losses.clone());
        trainer.fit(&data, Epochs(9)).unwrap();
        (losses.0.lock().unwrap().clone(), cut(&trainer))
    };
    let one = on_ranks(1, train).remove(0).0;
    assert!(one.len() >= 50);
    for (losses, parts) in on_ranks(2, train) {
        losses.iter().zip(&one).for_each(|(a, b)| close(*a, *b, 1e-9, "adapters in parts"));
        let expected = "q/weight 8 16, q/b 8 2, v/weight 8 16, o/weight 16 8, o/a 2 8, up/weight 16 16, up/b 16 2, \
                        down/weight 16 16, down/a 2 16, out 4 16";
        expected
            .split(", ")
            .for_each(|part| assert!(parts.iter().any(|own| own == part), "{part}: {parts:?}"));
    }
}

#[test]
fn parts_hold_and_send_what_they_should() {
    let size = |entry: zoo::Entry| {
        entry.sized(|size| (size.width, size.heads, size.sequence, size.classes) = (32, 4, 16, 64))
    };
    let entry = size(entry("gpt"));
    let data = samples(&entry, SAMPLES).batch(13);
    let train = |device: Device| {
        let mut trainer = trainer(entry, device.clone(), Precision::F32);
        trainer.fit(&data, Epochs(1)).unwrap();
        let before = device.rank_traffic();
        trainer.fit(&data, Epochs(11)).unwrap();
        let sent = device.rank_traffic().sent - before.sent;
        let training = trainer.training().unwrap();
        let of = |is_parted: bool, own: bool| -> usize {
            let parts = training.whole_parameters().filter(|part| part.pieces.is_some() == is_parted);
            parts.map(|part| if own { part.own.ty().bytes() } else { part.whole.bytes() }).sum()
        };
        (sent, [of(true, true), of(true, false), of(false, false)])
    };
    for ranks in [2usize, 4] {
        for (sent, [own, parted, whole]) in on_ranks(ranks, train) {
            assert_eq!(own * ranks, parted);
            assert!(whole * 20 < parted, "{whole} bytes are whole and {parted} in parts");
            // A layer's two sums there and two back, and one each of the words; sums and labels of the loss there and back, and the largest
            // logits there; gradients of what is whole.
            let rows = 13 * 16;
            let values = rows * (32 * (2 * 2 + 2 * 2 + 2) + 2 + 2 + 1) + whole / 4;
            let theory = 20 * 2 * (ranks - 1) * 4 * values / ranks;
            let more = sent as f64 / theory as f64;
            assert!((1.0..1.05).contains(&more), "{ranks} ranks sent {sent} bytes, {theory} in theory");
        }
    }
    let planned = on_ranks(4, |device| {
        [Parallel::Data, Parallel::Tensor].map(|parallel| {
            let trainer = trainer(entry, device.clone(), Precision::F32).parallel(parallel);
            let timeline = trainer.plan(&data).unwrap().timeline().unwrap();
            timeline.residents.iter().map(|resident| resident.bytes).sum::<u64>()
        })
    });
    for [data, tensor] in planned {
        assert!((tensor as f64) < 0.35 * data as f64, "{tensor} of {data} bytes are resident");
    }
}

#[test]
fn what_cannot_be_in_parts_is_refused_by_name() {
    let data = samples(&entry("cnn"), SAMPLES).batch(BATCH);
    let convolutions = || Sequential::new([8, 8, 3]).conv2d(CLASSES, 8).flatten();
    for why in refused(2, |device| trainer(convolutions(), device, Precision::F32).plan(&data).map(|_| ())) {
        assert!(why.contains("no weights that 2 ranks can have parts of") && why.contains("weight"), "{why}");
    }
    let data = samples(&entry("mlp"), SAMPLES).batch(BATCH);
    let whole = |device: Device| {
        let trainer = Trainer::new(entry("mlp"), softmax_cross_entropy, Adafactor::new(1e-2));
        trainer.device(device).parallel(Parallel::Tensor).plan(&data).map(|_| ())
    };
    for why in refused(2, whole) {
        assert!(why.contains("Adafactor"), "{why}");
    }
}
