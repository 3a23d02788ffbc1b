//! Pipelines as a whole: order, boundaries, positions, errors, bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_data::{AUTO, Amount, Batches, Dataset, Error, FieldSpec, OnError, Position};
use plimsoll_device::Bytes;
use plimsoll_graph::DType;

use crate::numbers::{indexed, number, streamed};

fn rest(batches: Batches) -> Vec<Vec<i64>> {
    batches.map(|batch| batch.unwrap().field(0).unwrap().get::<i64>().unwrap().to_vec()).collect()
}

fn all(dataset: &Dataset) -> Vec<Vec<i64>> {
    rest(dataset.batches().unwrap())
}

fn flat(dataset: &Dataset) -> Vec<i64> {
    all(dataset).concat()
}

#[test]
fn batches_keep_their_remainder_or_drop_it() {
    for source in [indexed, streamed] {
        assert_eq!(all(&source(5).batch(2)), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(all(&source(5).batch_exact(2)), [vec![0, 1], vec![2, 3]]);
        assert_eq!(all(&source(3)), [[0], [1], [2]]);
    }
}

#[test]
fn a_batch_reaches_over_the_end_of_a_pass_only_if_repeat_comes_first() {
    for source in [indexed, streamed] {
        assert_eq!(all(&source(3).repeat(2).batch(2)), [[0, 1], [2, 0], [1, 2]]);
        assert_eq!(all(&source(3).batch(2).repeat(2)), [vec![0, 1], vec![2], vec![0, 1], vec![2]]);
        assert_eq!(all(&source(3).batch_exact(2).repeat(2)), [[0, 1], [0, 1]]);
        assert_eq!(all(&source(3).repeat_forever().batch(2).take(2)), [[0, 1], [2, 0]]);
        assert_eq!(all(&source(3).batch(2).repeat_forever().take(3)), [vec![0, 1], vec![2], vec![0, 1]]);
        assert_eq!(flat(&source(3).repeat(2).repeat(2)), [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }
}

#[test]
fn moves_mean_the_same_for_streams_and_for_sources_read_by_number() {
    for source in [indexed, streamed] {
        assert_eq!(flat(&source(10).skip(2).take(3).batch(2)), [2, 3, 4]);
        assert_eq!(flat(&source(10).take(3).skip(2).batch(2)), [2]);
        assert_eq!(flat(&source(10).shard(1, 4).batch(2)), [1, 5, 9]);
        assert_eq!(flat(&source(10).skip(8).repeat(2).batch(3)), [8, 9, 8, 9]);
    }
}

#[test]
fn moves_after_a_filter_count_what_it_lets_through() {
    for source in [indexed, streamed] {
        let even = |len| source(len).filter(|x, _| Ok(x.get::<i64>(0)?[0] % 2 == 0));
        assert_eq!(all(&even(20).skip(2).take(5).batch(3)), [vec![4, 6, 8], vec![10, 12]]);
        assert_eq!(all(&even(20).take(5).skip(2).batch(3).repeat(2)), [[4, 6, 8], [4, 6, 8]]);
        assert_eq!(flat(&even(20).shard(1, 3).batch(2)), [2, 8, 14]);
        assert_eq!(all(&even(5).batch_exact(2).repeat(2)), [[0, 2], [0, 2]]);
        assert_eq!(all(&even(5).batch(2).repeat_forever().take(3)), [vec![0, 2], vec![4], vec![0, 2]]);
        assert_eq!(flat(&even(6).repeat(2).batch(4)), [0, 2, 4, 0, 2, 4]);
        let mut shuffled = flat(&even(40).shuffle(10, 1).batch(7));
        assert_ne!(shuffled, (0..20).map(|n| 2 * n).collect::<Vec<_>>());
        shuffled.sort_unstable();
        assert_eq!(shuffled, (0..20).map(|n| 2 * n).collect::<Vec<_>>());
    }
}

#[test]
fn a_shuffle_loses_nothing_and_differs_from_pass_to_pass() {
    for source in [indexed, streamed] {
        let numbers = flat(&source(50).shuffle(20, 7).batch(8).repeat(2));
        let (first, second) = numbers.split_at(50);
        assert_ne!(first, second);
        for pass in [first, second] {
            assert_ne!(pass, (0..50).collect::<Vec<_>>());
            let mut sorted = pass.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        }
        assert_eq!(flat(&source(50).shuffle(20, 7).batch(8).repeat(2)), numbers);
        assert_ne!(flat(&source(50).shuffle(20, 8).batch(8).repeat(2)), numbers);
    }
}

/// Every kind of pipeline that there is, over both kinds of sources.
fn pipelines() -> Vec<Dataset> {
    let even = |dataset: Dataset| dataset.filter(|x, _| Ok(x.get::<i64>(0)?[0] % 2 == 0));
    let mut pipelines = Vec::new();
    for source in [indexed, streamed] {
        pipelines.extend([
            source(100).batch(7),
            source(100).shuffle(30, 1).batch(7).repeat(3),
            source(100).shuffle(30, 1).repeat(3).batch_exact(7),
            source(100).repeat(2).shuffle(30, 1).batch(7),
            even(source(100)).shuffle(30, 1).batch(7).repeat(3),
            even(source(100).shuffle(30, 2)).skip(3).take(20).batch(7).repeat(2),
            even(source(100).repeat_forever()).take(33).batch(7),
            even(source(100)).shard(1, 3).batch_exact(4).repeat(2),
            even(source(100)).batch(10).repeat(2),
            source(100).on_error(OnError::Skip).batch(9).repeat_forever().take(17),
        ]);
    }
    pipelines
}

#[test]
fn the_order_is_the_same_whatever_the_parallelism_and_the_budget() {
    for (number, pipeline) in pipelines().into_iter().enumerate() {
        let expected = all(&pipeline.clone().workers(1).prefetch(0));
        assert!(!expected.is_empty());
        let fixed = Amount::Fixed;
        for (workers, prefetch, mib) in [(fixed(2), fixed(1), 4), (fixed(5), fixed(7), 64), (AUTO, AUTO, 3)] {
            let varied = pipeline.clone().workers(workers).prefetch(prefetch).memory(Bytes::mib(mib));
            assert_eq!(all(&varied), expected, "pipeline {number}");
        }
    }
    // Steps that take unequal time, so that threads overtake each other.
    let jitter = |dataset: Dataset| {
        dataset.map_in_place(|x, at| {
            std::thread::sleep(Duration::from_micros(u64::from(at.random(1).next().unwrap_or(0) % 300)));
            let (value, noise) = (x.get_mut::<i64>(0)?, at.random(2).next().unwrap_or(0));
            value[0] = value[0] * 1000 + i64::from(noise % 1000);
            Ok(())
        })
    };
    for source in [indexed, streamed] {
        let pipeline = jitter(source(200).shuffle(40, 3)).batch(9).repeat(2);
        assert_eq!(all(&pipeline.clone().workers(6)), all(&pipeline.workers(1)));
    }
}

#[test]
fn a_resumed_run_sees_the_batches_that_would_have_come() {
    for (number, pipeline) in pipelines().into_iter().enumerate() {
        let expected = all(&pipeline);
        for stop in 0..=expected.len() {
            let mut batches = pipeline.batches().unwrap();
            for _ in 0..stop {
                drop(batches.next().unwrap().unwrap());
            }
            let saved = serde_json::to_string(&batches.position()).unwrap();
            assert!(saved.len() < 200, "{saved}");
            drop(batches);
            let position: Position = serde_json::from_str(&saved).unwrap();
            let resumed = rest(pipeline.resume(&position).unwrap());
            assert_eq!(resumed, expected[stop..], "pipeline {number} at {stop}");
        }
    }
}

#[test]
fn a_position_of_another_pipeline_is_refused() {
    let mut batches = indexed(10).batch(2).batches().unwrap();
    drop(batches.next());
    let position = batches.position();
    assert!(matches!(indexed(10).batch(3).resume(&position), Err(Error::Position(_))));
    assert!(matches!(indexed(10).shuffle(5, 1).batch(2).resume(&position), Err(Error::Position(_))));
}

#[test]
fn epochs_are_told_with_the_batches() {
    let told = |dataset: Dataset| -> Vec<(u64, bool)> {
        let batches = dataset.batches().unwrap().map(|batch| batch.unwrap());
        batches.map(|batch| (batch.epoch(), batch.is_last_of_epoch())).collect()
    };
    let expected = [(0, false), (0, true), (1, false), (1, true)];
    for source in [indexed, streamed] {
        assert_eq!(told(source(3).batch(2).repeat(2)), expected);
        assert_eq!(told(source(4).batch(2).repeat(2)), expected);
        assert_eq!(told(source(4).repeat(2).batch(2)), expected);
        assert_eq!(told(source(5).batch_exact(2).repeat(2)), expected);
        assert_eq!(told(source(4).filter(|_, _| Ok(true)).batch(2).repeat(2)), expected);
    }
}

#[test]
fn an_error_comes_in_its_place_and_ends_the_pipeline() {
    let faulty = |dataset: Dataset| {
        dataset.map_in_place(|x, _| match x.get_mut::<i64>(0)?[0] {
            13 => Err(Error::refused("thirteen")),
            17 => panic!("seventeen"),
            _ => Ok(()),
        })
    };
    for source in [indexed, streamed] {
        for filtered in [false, true] {
            let mut pipeline = faulty(source(40)).workers(4).batch(4);
            if filtered {
                pipeline = faulty(source(40)).filter(|_, _| Ok(true)).workers(4).batch(4);
            }
            let mut batches = pipeline.batches().unwrap();
            for start in [0, 4, 8] {
                let batch = batches.next().unwrap().unwrap();
                assert_eq!(
                    batch.field(0).unwrap().get::<i64>().unwrap(),
                    [start, start + 1, start + 2, start + 3]
                );
            }
            let Some(Err(error)) = batches.next() else { panic!("no error") };
            assert_eq!(error.to_string(), "in_place of sample 13: thirteen");
            assert!(batches.next().is_none());
        }
    }
}

#[test]
fn skipped_samples_are_counted_and_named() {
    std::panic::set_hook(Box::new(|_| ()));
    for source in [indexed, streamed] {
        let faulty = source(20).map_in_place(|x, _| match x.get_mut::<i64>(0)?[0] {
            3 => Err(Error::refused("three")),
            5 => panic!("five"),
            _ => Ok(()),
        });
        let pipeline = faulty.workers(3).on_error(OnError::Skip).batch(6);
        let mut batches = pipeline.batches().unwrap();
        let numbers: Vec<_> = batches
            .by_ref()
            .flat_map(|b| b.unwrap().field(0).unwrap().get::<i64>().unwrap().to_vec())
            .collect();
        assert_eq!(numbers, (0..20).filter(|n| ![3, 5].contains(n)).collect::<Vec<_>>());
        assert_eq!(batches.skipped(), 2);
        let mut reasons = batches.skip_reasons();
        reasons.sort();
        assert_eq!(reasons[0], "a step of sample 5: the closure panicked");
        assert_eq!(reasons[1], "in_place of sample 3: three");
    }
}

#[test]
fn what_is_skipped_ahead_of_the_batches_that_were_taken_is_not_counted() {
    for source in [indexed, streamed] {
        let faulty = source(8).map_in_place(|x, _| match x.get_mut::<i64>(0)?[0] {
            7 => Err(Error::refused("seven")),
            _ => Ok(()),
        });
        // Seven of eight can be read: four batches a pass, of which the last has one sample. Threads are far ahead of whoever takes them.
        let pipeline = faulty.workers(3).prefetch(6).on_error(OnError::Skip).batch(2).repeat(4);
        let mut batches = pipeline.batches().unwrap();
        let mut pass = 0;
        while pass < 3 {
            let before = batches.skipped();
            let is_last = batches.next().unwrap().unwrap().is_last_of_epoch();
            pass += u64::from(is_last);
            assert_eq!((batches.skipped(), before), (pass, pass - u64::from(is_last)));
            assert_eq!(batches.skip_reasons().len() as u64, pass);
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

#[test]
fn samples_of_varying_length_are_padded() {
    let spec = [FieldSpec::varying("t", DType::U8, [8]), FieldSpec::new("n", DType::I64, [])];
    let words = ["a", "plimsoll", "line", ""];
    let source = Dataset::from_iter(
        spec,
        move || words.into_iter(),
        |word, out| {
            out.set(0, word.as_bytes())?;
            out.set(1, &[word.len() as i64])
        },
    );
    let error = source.clone().batch(2).batches().err().unwrap();
    assert!(error.to_string().contains("padded_batch"), "{error}");
    let batches: Vec<_> = source.padded_batch(2).batches().unwrap().map(Result::unwrap).collect();
    let first = batches[0].field(0).unwrap();
    assert_eq!((&first.shape[..], first.bytes), (&[2, 8][..], &b"a\0\0\0\0\0\0\0plimsoll"[..]));
    let second = batches[1].field(0).unwrap();
    assert_eq!((&second.shape[..], second.bytes), (&[2, 4][..], &b"line\0\0\0\0"[..]));
    assert_eq!(batches[1].lengths(0).collect::<Vec<_>>(), [4, 0]);
    assert_eq!(batches[1].field(1).unwrap().get::<i64>().unwrap(), [4, 0]);
}

#[test]
fn a_budget_too_small_for_one_batch_is_refused_with_the_least_that_is_enough() {
    let spec = [FieldSpec::new("x", DType::F32, [1024])];
    let wide = Dataset::from_fn(spec, 4096, |_, _| Ok(())).batch(256);
    let Err(Error::Budget { least, .. }) = wide.clone().memory(Bytes::mib(1)).batches() else {
        panic!("too generous")
    };
    assert!(wide.clone().memory(Bytes(least.0 - 1)).batches().is_err());
    let enough = wide.memory(least);
    assert_eq!(enough.declared_bytes().unwrap(), least);
    let mut batches = enough.batches().unwrap();
    for _ in 0..16 {
        batches.next().unwrap().unwrap();
        assert!(batches.held_bytes() <= least);
    }
    assert!(batches.next().is_none());
}

#[test]
fn waiting_grows_the_pipeline_and_never_over_its_budget() {
    let spec = [FieldSpec::new("x", DType::F32, [1024])];
    let slow = Dataset::from_fn(spec, 100_000, |_, _| {
        std::thread::sleep(Duration::from_micros(200));
        Ok(())
    });
    let budget = Bytes::mib(4);
    let mut batches = slow.batch(16).memory(budget).batches().unwrap();
    let mut most = 0;
    for _ in 0..100 {
        batches.next().unwrap().unwrap();
        most = most.max(batches.parallelism().0);
        assert!(batches.held_bytes() <= budget && batches.declared_bytes() <= budget);
    }
    assert!(most >= 2, "one thread although the caller always waits");
}

#[test]
fn a_pipeline_that_nobody_waits_for_gives_threads_up() {
    let is_slow = Arc::new(AtomicBool::new(true));
    let slow = is_slow.clone();
    let data = Dataset::from_fn(number(), 1_000_000, move |_, _| {
        if slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    });
    let mut batches = data.batch(16).memory(Bytes::mib(4)).batches().unwrap();
    let mut most = 0;
    for _ in 0..100 {
        batches.next().unwrap().unwrap();
        most = most.max(batches.parallelism().0);
    }
    assert!(most >= 2, "one thread although the caller always waits");
    // From here on samples cost nothing, and the caller takes its time.
    is_slow.store(false, Ordering::Relaxed);
    let mut least = most;
    for _ in 0..600 {
        batches.next().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(2));
        least = least.min(batches.parallelism().0);
        if least < most {
            return;
        }
    }
    panic!("{most} threads are kept although nobody waits for them");
}

#[test]
fn a_slow_step_is_overlapped_with_the_callers_work() {
    let slow = indexed(400).map_in_place(|_, _| {
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    });
    let mut batches = slow.batch(10).workers(4).prefetch(4).batches().unwrap();
    let began = std::time::Instant::now();
    let mut n = 0;
    for batch in batches.by_ref() {
        drop(batch.unwrap());
        n += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    let time = began.elapsed();
    assert_eq!(n, 40);
    // 400 ms of steps and 400 ms of the caller's, one after the other, would be 800.
    let stages = batches.stages();
    let waiting = stages.last().unwrap().waiting;
    assert!(waiting < time / 2, "{waiting:?} of {time:?} waited: {stages:?}");
    assert!(stages[1].busy >= Duration::from_millis(400) && stages[1].elements == 400);
}

#[test]
fn a_caller_that_keeps_every_batch_is_told() {
    let mut batches = indexed(100).batch(2).prefetch(1).batches().unwrap();
    let kept: Vec<_> = batches.by_ref().take(2).map(Result::unwrap).collect();
    let Some(Err(error)) = batches.next() else { panic!("a third of two batches") };
    assert!(matches!(error, Error::AllHeld { buffers: 2 }), "{error}");
    drop(kept);
    assert_eq!(batches.next().unwrap().unwrap().field(0).unwrap().get::<i64>().unwrap(), [4, 5]);
}

#[test]
fn stages_that_do_not_go_together_are_refused_in_words() {
    let message = |dataset: Dataset| dataset.batches().err().unwrap().to_string();
    assert!(message(indexed(9).batch(2).shuffle(3, 1)).contains("before it"));
    assert!(message(indexed(9).batch(0)).contains("batch(1)"));
    assert!(message(indexed(9).shard(3, 3)).contains("no shard 3 of 3"));
    assert!(message(indexed(9).batch(2).map_in_place(|_, _| Ok(()))).contains("before batch"));
    let late = indexed(9).filter(|_, _| Ok(true)).take(3).shuffle(2, 1);
    assert!(message(late).contains("cache in between"));
}

#[test]
fn dropping_a_pipeline_early_ends_its_threads() {
    let alive = Arc::new(AtomicU64::new(0));
    let counter = alive.clone();
    let pipeline = indexed(1 << 40).map_in_place(move |_, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let mut batches = pipeline.workers(3).batch(4).batches().unwrap();
    let held = batches.next().unwrap().unwrap();
    drop(batches);
    let made = alive.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(alive.load(Ordering::Relaxed), made);
    assert_eq!(held.field(0).unwrap().get::<i64>().unwrap(), [0, 1, 2, 3]);
}
