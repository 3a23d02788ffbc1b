//! Texts of many lengths: batches of about one length, padding that no layer reads, and one plan for each length, all in one memory limit.
//!
//! The model learns which of two words a text says more often. Run with `cargo run --release -p plimsoll --example bucketed_text`.

use plimsoll::data::FieldSpec;
use plimsoll::nn::Recurrent;
use plimsoll::prelude::*;

/// Word 0 is padding, 1 and 2 are counted, the others say nothing.
const WORDS: usize = 12;
const LONGEST: usize = 48;

/// A text and whether it says 2 more often than 1. Lengths are from 5 to 48, short ones more often.
fn text(index: u64) -> (Vec<i64>, i64) {
    let mut noise = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |below: u64| {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise % below
    };
    let length = 5 + draw(LONGEST as u64 - 4).min(draw(LONGEST as u64 - 4));
    let words: Vec<i64> = (0..length).map(|_| 1 + draw(WORDS as u64 - 1) as i64).collect();
    let count = |word: i64| words.iter().filter(|w| **w == word).count();
    let class = i64::from(count(2) > count(1));
    (words, class)
}

fn main() -> plimsoll::Result<()> {
    // ANCHOR: data
    let spec = [FieldSpec::varying("words", DType::I64, [LONGEST]), FieldSpec::new("class", DType::I64, [])];
    let texts = Dataset::from_fn(spec, 1024, |index, out| {
        let (words, class) = text(index);
        out.set(0, &words)?;
        out.set(1, &[class])
    });
    // Texts of up to 12, up to 24 and up to 48 words are batched apart, and each batch is filled up to its bound.
    let data = texts.shuffle(1024, 1).bucket_by_length(0, &[12, 24], 32)?;
    // ANCHOR_END: data

    // ANCHOR: model
    let model = Sequential::tokens_up_to(LONGEST)
        .padding(0)
        .embedding(WORDS, 16)
        .gru(Recurrent::all(24).bidirectional())
        .global_avg_pool1d()
        .dense(2);
    let trainer =
        || Trainer::new(model.clone(), softmax_cross_entropy, Adam::new(1e-2)).metrics([Metric::Accuracy]);
    // ANCHOR_END: model

    // ANCHOR: limit
    // A little above the least with which all three lengths can be trained. On a card, code that is compiled later takes some too.
    let room = if Device::best()?.has_own_memory() { Bytes::mib(48) } else { Bytes::kib(512) };
    let limit = trainer().plan(&data)?.figures.floor + room;
    let mut trainer = trainer().memory_limit_bytes(Some(limit));
    for (length, plan) in trainer.bucket_plans(&data)? {
        println!(
            "{length:>2} words: {} of {limit}, {} ops recomputed",
            plan.figures.planned, plan.figures.recomputed_ops
        );
        assert!(plan.figures.planned <= limit);
    }
    let history = trainer.fit(&data, Epochs(12))?;
    // ANCHOR_END: limit

    let right = |i: usize| history[i].metric("accuracy").unwrap_or(f64::NAN);
    println!("{:.0} % are right after one epoch, {:.0} % after 12", 100.0 * right(0), 100.0 * right(11));
    assert!(right(11) > 0.9, "{}", right(11));

    // Padding changes nothing: a text has the same scores alone and beside longer ones.
    let scores = |data: Dataset, trainer: &mut Trainer| -> plimsoll::Result<Vec<f64>> {
        let mut first = Vec::new();
        trainer.predict(&data, |batch| {
            first = batch.outputs[0].to_f64()?[..2].to_vec();
            Ok(())
        })?;
        Ok(first)
    };
    let of = |lengths: Vec<usize>| {
        let spec = [FieldSpec::varying("words", DType::I64, [LONGEST])];
        let count = lengths.len();
        Dataset::from_fn(spec, count as u64, move |i, out| out.set(0, &vec![2i64; lengths[i as usize]]))
            .padded_batch(count)
    };
    let (alone, beside) = (scores(of(vec![7]), &mut trainer)?, scores(of(vec![7, 40]), &mut trainer)?);
    assert!(alone.iter().zip(&beside).all(|(a, b)| (a - b).abs() < 1e-4), "{alone:?} {beside:?}");
    Ok(())
}
