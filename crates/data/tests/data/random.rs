//! Random numbers as data: no memory, the same numbers however they are taken, and batches as of any other source.

use plimsoll_data::{Batch, Dataset, Draw, FieldSpec, Random};
use plimsoll_graph::DType;

fn random(count: u64, seed: u64) -> Dataset {
    let spec = vec![
        FieldSpec::new("x", DType::F32, [3, 5]),
        FieldSpec::new("t", DType::I64, [7]),
        FieldSpec::new("y", DType::F64, []),
    ];
    Dataset::random(Random { spec, draws: vec![Draw::Centered, Draw::Below(11), Draw::Unit], count, seed })
}

fn bytes(batch: &Batch) -> Vec<Vec<u8>> {
    batch.fields().map(|field| field.bytes.to_vec()).collect()
}

#[test]
fn a_batch_is_the_same_read_or_written_to_where_it_is_wanted() {
    let batch = random(10, 1).shuffle(10, 3).batch(4).batches().unwrap().next().unwrap().unwrap();
    assert!(batch.is_random());
    for (i, read) in bytes(&batch).into_iter().enumerate() {
        let mut written = vec![0xAA; read.len()];
        batch.write_field(i, &mut written);
        assert_eq!(written, read, "field {i}");
    }
    let (dtype, shape) = batch.field_type(0).unwrap();
    assert_eq!((dtype, &shape[..]), (DType::F32, &[4, 3, 5][..]));
}

#[test]
fn samples_are_a_function_of_the_seed_and_their_number_whatever_the_pipeline() {
    let all = |data: &Dataset| -> Vec<(Vec<u64>, Vec<Vec<u8>>, bool)> {
        let batches = data.batches().unwrap().map(|batch| batch.unwrap());
        batches.map(|batch| (batch.numbers().to_vec(), bytes(&batch), batch.is_last_of_epoch())).collect()
    };
    let plain = random(10, 1).shuffle(10, 3).repeat(2).batch(4);
    // A step that changes nothing makes it a pipeline with threads and buffers like others.
    let piped = random(10, 1).map_in_place(|_, _| Ok(())).shuffle(10, 3).repeat(2).batch(4);
    assert_eq!(all(&plain), all(&piped));
    assert_eq!(all(&plain).len(), 5);
    assert_ne!(all(&plain), all(&random(10, 2).shuffle(10, 3).repeat(2).batch(4)), "another seed");
    assert!(plain.is_random().unwrap() && !piped.is_random().unwrap());
    assert_eq!(plain.declared_bytes().unwrap().get(), 0);
    assert!(piped.declared_bytes().unwrap().get() > 0);
}

#[test]
fn a_run_that_is_resumed_goes_on_with_the_batches_that_would_have_come() {
    let data = random(10, 1).shuffle(10, 3).batch(4).repeat_forever();
    let mut whole = data.batches().unwrap();
    let mut next = || whole.next().unwrap().unwrap();
    let (_, _) = (next(), next());
    let mut first = data.batches().unwrap();
    (0..2).for_each(|_| drop(first.next()));
    let mut second = data.resume(&first.position()).unwrap();
    for _ in 0..5 {
        assert_eq!(bytes(&second.next().unwrap().unwrap()), bytes(&next()));
    }
}

#[test]
fn numbers_are_what_they_were_asked_to_be() {
    let batch = random(1000, 7).batch(1000).batches().unwrap().next().unwrap().unwrap();
    let x = batch.field(0).unwrap().get::<f32>().unwrap();
    let mean = |of: &dyn Fn(f64) -> f64| x.iter().map(|&x| of(x.into())).sum::<f64>() / x.len() as f64;
    assert!(mean(&|x| x).abs() < 0.05 && (mean(&|x| x * x) - 1.0).abs() < 0.05);
    let tokens = batch.field(1).unwrap().get::<i64>().unwrap();
    let seen: std::collections::BTreeSet<i64> = tokens.iter().copied().collect();
    assert_eq!(seen, (0..11).collect());
    let y = batch.field(2).unwrap().get::<f64>().unwrap();
    assert!(y.iter().all(|y| (0.0..1.0).contains(y)) && y[0] != y[1]);
}

#[test]
fn no_samples_are_refused_as_of_any_source() {
    let mut batches = random(0, 1).batch(4).batches().unwrap();
    assert!(batches.next().unwrap().is_err());
    assert!(batches.next().is_none());
}
