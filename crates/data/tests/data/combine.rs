//! Several pipelines as one: the samples, in order, shuffled and resumed; what is counted; what is refused.

use plimsoll_data::{Batches, Column, Dataset, FieldSpec, Position};
use plimsoll_device::Bytes;
use plimsoll_graph::DType;

fn numbers(from: i64, count: i64) -> Dataset {
    Dataset::columns([Column::memory("x", (from..from + count).collect::<Vec<_>>(), []).unwrap()]).unwrap()
}

/// Sentences of one to nine words.
fn sentences(count: u64) -> Dataset {
    let spec = [FieldSpec::varying("t", DType::I64, [9]), FieldSpec::new("y", DType::I64, [])];
    Dataset::from_fn(spec, count, |index, out| {
        let length = (index * 5 % 9 + 1) as usize;
        out.set(0, &vec![index as i64; length])?;
        out.set(1, &[index as i64])
    })
}

fn all(batches: Batches) -> Vec<Vec<i64>> {
    batches.map(|batch| batch.unwrap().field(0).unwrap().get::<i64>().unwrap().to_vec()).collect()
}

fn flat(data: &Dataset) -> Vec<i64> {
    all(data.clone().batch(4).batches().unwrap()).concat()
}

fn said<T>(result: plimsoll_data::Result<T>) -> String {
    result.err().unwrap().to_string()
}

/// From every place of two epochs, the rest is what would have come; on one thread and on several.
fn resumes(data: &Dataset) {
    let whole = all(data.clone().workers(1).batches().unwrap());
    assert_eq!(whole, all(data.clone().workers(3).batches().unwrap()));
    for at in 0..whole.len() {
        let mut begun = data.batches().unwrap();
        (0..at).for_each(|_| drop(begun.next().unwrap().unwrap()));
        let position: Position = begun.position();
        drop(begun);
        assert_eq!(all(data.clone().workers(2).resume(&position).unwrap()), whole[at..], "from {at}");
    }
}

#[test]
fn parts_come_one_behind_the_other_and_by_turns() {
    let chain = numbers(0, 3).concatenate(numbers(10, 2)).unwrap().concatenate(numbers(20, 1)).unwrap();
    assert_eq!((flat(&chain), chain.samples().unwrap()), (vec![0, 1, 2, 10, 11, 20], Some(6)));
    let turns = |block| numbers(0, 5).interleave([numbers(10, 2), numbers(20, 3)], block).unwrap();
    assert_eq!(flat(&turns(1)), [0, 10, 20, 1, 11, 21, 2, 22, 3, 4]);
    assert_eq!(flat(&turns(2)), [0, 1, 10, 11, 20, 21, 2, 3, 22, 4]);
    assert_eq!(flat(&turns(9)), [0, 1, 2, 3, 4, 10, 11, 20, 21, 22]);
    for lengths in [[0, 4, 1], [7, 7, 7], [1, 0, 0], [8, 3, 5]] {
        for block in 1..5 {
            let [a, b, c] = [0, 1, 2].map(|at| numbers(100 * at, lengths[at as usize]));
            let data = a.interleave([b, c], block).unwrap();
            let mut queues =
                [0, 1, 2].map(|at| (100 * at..100 * at + lengths[at as usize]).collect::<Vec<_>>());
            let mut expected = Vec::new();
            while queues.iter().any(|queue| !queue.is_empty()) {
                for queue in &mut queues {
                    expected.extend(queue.drain(..queue.len().min(block as usize)));
                }
            }
            assert_eq!(flat(&data), expected, "{lengths:?} by {block}");
        }
    }
}

#[test]
fn pairs_have_the_fields_of_both_as_far_as_the_shorter_goes() {
    let pairs = numbers(0, 5).zip(numbers(10, 3).skip(1)).unwrap();
    let names: Vec<String> = pairs.spec().unwrap().into_iter().map(|field| field.name).collect();
    assert_eq!((names.join(" "), pairs.samples().unwrap()), ("x x2".into(), Some(2)));
    let batch = pairs.batch(4).batches().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.field(1).unwrap().get::<i64>().unwrap(), [11, 12]);
    let both = sentences(3).zip(sentences(3)).unwrap().padded_batch(3);
    let batch = both.batches().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.lengths(2).collect::<Vec<_>>(), batch.lengths(0).collect::<Vec<_>>());
}

#[test]
fn windows_overlap_and_end_where_they_are_full() {
    let windows = |size, shift| flat(&numbers(0, 7).window(size, shift).unwrap());
    assert_eq!(windows(3, 3), [0, 1, 2, 3, 4, 5]);
    assert_eq!(windows(3, 2), [0, 1, 2, 2, 3, 4, 4, 5, 6]);
    assert_eq!(windows(7, 1), [0, 1, 2, 3, 4, 5, 6]);
    assert!(
        said(numbers(0, 3).window(4, 1).unwrap().batch(1).batches().unwrap().next().unwrap())
            .contains("no batch")
    );
    assert!(said(numbers(0, 3).window(0, 1)).contains("means nothing"));
    assert!(said(sentences(3).window(2, 1)).contains("'t' varies"));
}

#[test]
fn steps_and_shuffles_inside_parts_are_those_of_the_epoch() {
    let part = |seed| {
        numbers(0, 6).shuffle(6, seed).map_in_place(|sample, at| {
            sample.get_mut::<i64>(0)?[0] += 100 * at.epoch as i64;
            Ok(())
        })
    };
    let data = part(1).concatenate(part(2)).unwrap().batch(12).repeat(3);
    let epochs = all(data.batches().unwrap());
    for (number, epoch) in epochs.iter().enumerate() {
        for half in epoch.chunks(6) {
            let mut sorted = half.to_vec();
            sorted.sort_unstable();
            let first = 100 * number as i64;
            assert_eq!(sorted, (first..first + 6).collect::<Vec<_>>());
        }
    }
    let order = |epoch: &[i64]| epoch.iter().map(|x| x % 100).collect::<Vec<_>>();
    assert!(order(&epochs[0]) != order(&epochs[1]) || order(&epochs[1]) != order(&epochs[2]));
}

#[test]
fn each_sample_becomes_as_many_as_are_made_of_it() {
    let spec = [FieldSpec::new("x", DType::I64, [])];
    let copies = |most| {
        numbers(0, 4).flat_map(spec.clone(), most, |sample, emit, at| {
            let n = sample.get::<i64>(0)?[0];
            (0..n).try_for_each(|k| emit.push(|out| out.set(0, &[10 * n + k + 1000 * at.epoch as i64])))
        })
    };
    assert_eq!(flat(&copies(3).unwrap()), [10, 20, 21, 30, 31, 32]);
    assert_eq!(flat(&copies(3).unwrap().repeat(2))[6..], [1010, 1020, 1021, 1030, 1031, 1032]);
    let error = copies(2).unwrap().batch(9).batches().unwrap().next().unwrap();
    assert!(said(error).contains("more than 2 samples come of one"));
    let bytes = |most| copies(most).unwrap().batch(1).workers(1).prefetch(1).declared_bytes().unwrap();
    assert!(bytes(1003) >= bytes(3) + Bytes(64 * 1000), "what is made of one sample is counted");
}

#[test]
fn a_batch_is_of_about_the_same_lengths() {
    let data = sentences(40).shuffle(40, 7).bucket_by_length(0, &[3, 6], 4).unwrap();
    let (mut seen, mut mixed, mut batches) = (Vec::new(), 0, 0);
    for batch in data.batches().unwrap() {
        let batch = batch.unwrap();
        let buckets: Vec<usize> =
            batch.lengths(0).map(|length| [3, 6].partition_point(|&b| b < length)).collect();
        mixed += usize::from(buckets.iter().any(|bucket| *bucket != buckets[0]));
        batches += 1;
        // All batches of a bucket have the shape of its bound, and the last one that of the longest sample there can be.
        let length = [3, 6, 9][*buckets.iter().max().unwrap()];
        assert_eq!(batch.field(0).unwrap().shape[..], [batch.samples(), length]);
        for ((row, length), &y) in batch
            .field(0)
            .unwrap()
            .get::<i64>()
            .unwrap()
            .chunks(length)
            .zip(batch.lengths(0))
            .zip(batch.field(1).unwrap().get::<i64>().unwrap())
        {
            assert_eq!(length as i64, y * 5 % 9 + 1);
            assert!(row[..length].iter().all(|&x| x == y) && row[length..].iter().all(|&x| x == 0));
            seen.push(y);
        }
    }
    seen.sort_unstable();
    assert_eq!((seen, batches), ((0..40).collect::<Vec<_>>(), 10));
    assert!(mixed <= 2, "only what is left at the end is mixed, not {mixed} batches");
    assert!(said(sentences(3).bucket_by_length(1, &[3], 2)).contains("field 1"));
    assert!(said(sentences(3).bucket_by_length(0, &[3, 3], 2)).contains("bounds rise"));
    assert!(said(sentences(3).bucket_by_length(0, &[3], 0)).contains("no samples"));
}

#[test]
fn every_combination_is_resumed_at_every_place() {
    let spec = [FieldSpec::new("x", DType::I64, [])];
    let doubled = numbers(0, 7).flat_map(spec, 2, |sample, emit, _| {
        let n = sample.get::<i64>(0)?[0];
        (0..n % 3).try_for_each(|_| emit.push(|out| out.set(0, &[n])))
    });
    resumes(&numbers(0, 5).concatenate(numbers(10, 4)).unwrap().shuffle(9, 1).batch(2).repeat(2));
    resumes(&numbers(0, 5).interleave([numbers(10, 4)], 2).unwrap().shuffle(9, 1).batch(2).repeat(2));
    resumes(&numbers(0, 5).shuffle(5, 3).zip(numbers(10, 4)).unwrap().batch(2).repeat(2));
    resumes(&numbers(0, 9).window(2, 1).unwrap().shuffle(9, 4).batch(3).repeat(2));
    resumes(&doubled.unwrap().shuffle(3, 5).batch(2).repeat(2));
    resumes(&sentences(11).shuffle(11, 6).bucket_by_length(0, &[4], 3).unwrap().repeat(2));
    resumes(
        &numbers(0, 9)
            .batch(2)
            .map_batch(|batch| {
                let epoch = batch.epoch() as i64;
                batch.get_mut::<i64>(0)?.iter_mut().for_each(|x| *x += 100 * epoch);
                Ok(())
            })
            .repeat(2),
    );
}

#[test]
fn a_position_of_other_parts_is_refused() {
    let data = |seed| numbers(0, 4).shuffle(4, seed).concatenate(numbers(0, 4)).unwrap().batch(2);
    let position = data(1).batches().unwrap().position();
    assert!(data(1).resume(&position).is_ok());
    assert!(said(data(2).resume(&position).map(|_| ())).contains("another pipeline"));
    let blocks = |block| numbers(0, 4).interleave([numbers(0, 4)], block).unwrap().batch(2);
    let position = blocks(1).batches().unwrap().position();
    assert!(said(blocks(2).resume(&position).map(|_| ())).contains("another pipeline"));
}

#[test]
fn what_cannot_be_read_by_number_is_refused_with_a_way_out() {
    let spec = [FieldSpec::new("x", DType::I64, [])];
    let stream = Dataset::from_iter(spec, || 0..3i64, |n, out| out.set(0, &[n]));
    assert!(
        said(numbers(0, 3).zip(stream.clone()))
            .contains("zip needs samples by number, and this is a stream; load")
    );
    assert!(numbers(0, 3).zip(stream.load().unwrap()).is_ok());
    let filtered = numbers(0, 3).filter(|_, _| Ok(true));
    assert!(said(numbers(0, 3).concatenate(filtered)).contains("leave some out"));
    assert!(said(numbers(0, 3).repeat_forever().window(2, 1)).contains("needs an end"));
    assert!(said(numbers(0, 3).batch(2).zip(numbers(0, 3))).contains("put it before batch"));
    let other = Dataset::columns([Column::memory("x", vec![0.5f32], []).unwrap()]).unwrap();
    assert!(said(numbers(0, 3).concatenate(other)).contains("samples differ: x i64 [], and x f32 []"));
    assert!(said(numbers(0, 3).interleave([], 0)).contains("not 0"));
}
