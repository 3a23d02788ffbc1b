//! Every source with every batch size around a divisor and every stage: the number of batches, their sizes, which of them
//! is the last of an epoch, and where a run is resumed, held against a model that knows lists only.

use crate::common::{Folder, fixture, gzip, idx, npy, npz, records};
use crate::numbers::{indexed, streamed};
use plimsoll_data::{
    AUTO, Amount, Batches, Column, Dataset, Error, Images, OnError, Position, Shapes, Tokens,
};
use plimsoll_formats::{Element, tar};

// === The model ===

/// What is asked for before the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Take(u64),
    Skip(u64),
    Shard(u64, u64),
    Repeat(u64),
    Forever,
    Shuffle(usize),
    /// Keeps samples whose number leaves no rest.
    Filter(u64),
    /// Keeps nothing.
    Nothing,
    /// A step that changes nothing.
    Map,
    /// Errors are skipped; this number refuses itself.
    SkipError(u64),
    Cache,
    Load,
}

/// What is asked for behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    Once,
    Repeat(u64),
    /// Looked at for so many passes.
    Forever(u64),
    Take(u64),
    ForeverTake(u64),
}

#[derive(Clone, Copy, Debug)]
struct Case<'a> {
    ops: &'a [Op],
    batch: usize,
    exact: bool,
    after: After,
}

/// More samples than this of a pass without end are of no interest.
const MOST: usize = 80;

/// The epochs and numbers of the samples of one pass, in order.
fn pass(n: u64, ops: &[Op], number: u64) -> Vec<(u64, u64)> {
    let Some((last, before)) = ops.split_last() else { return (0..n).map(|i| (number, i)).collect() };
    let inner = || pass(n, before, number);
    match *last {
        Op::Take(k) => inner().into_iter().take(k as usize).collect(),
        Op::Skip(k) => inner().into_iter().skip(k as usize).collect(),
        Op::Shard(index, count) => inner().into_iter().skip(index as usize).step_by(count as usize).collect(),
        Op::Repeat(k) => (0..k).flat_map(|r| pass(n, before, number * k + r)).collect(),
        Op::Forever => (0..)
            .map(|r| pass(n, before, number + r))
            .take_while(|p| !p.is_empty())
            .flatten()
            .take(MOST)
            .collect(),
        Op::Filter(k) => inner().into_iter().filter(|(_, i)| i % k == 0).collect(),
        Op::Nothing => Vec::new(),
        Op::SkipError(k) => inner().into_iter().filter(|(_, i)| *i != k).collect(),
        Op::Shuffle(_) | Op::Map => inner(),
        // A cache is a source of its own, with epochs of its own.
        Op::Cache => pass(n, before, 0).into_iter().map(|(_, i)| (number, i)).collect(),
        Op::Load => inner(),
    }
}

/// A batch as the model has it.
#[derive(Clone, Debug, PartialEq)]
struct Expected {
    samples: Vec<u64>,
    epoch: u64,
    last: bool,
    /// Where the pipeline stands behind it: passes that are complete, samples of the next.
    position: (u64, u64),
}

/// All batches, and whether they end with the news that a pass gave none.
fn model(n: u64, case: Case<'_>) -> (Vec<Expected>, bool) {
    let Case { ops, batch, exact, after } = case;
    let (passes, limit) = match after {
        After::Once => (1, None),
        After::Repeat(k) | After::Forever(k) => (k, None),
        After::Take(k) => (1, Some(k)),
        After::ForeverTake(k) => (u64::MAX, Some(k)),
    };
    let first_repeat = ops.iter().position(|op| matches!(op, Op::Repeat(_) | Op::Forever));
    let mixed = first_repeat.is_some_and(|at| ops[at..].iter().any(|op| matches!(op, Op::Shuffle(_))));
    let mut all: Vec<Expected> = Vec::new();
    for number in 0..passes {
        if limit.is_some_and(|limit| all.len() as u64 >= limit) {
            break;
        }
        let samples = pass(n, ops, number);
        let mut chunks: Vec<&[(u64, u64)]> = samples.chunks(batch).collect();
        if exact {
            chunks.retain(|chunk| chunk.len() == batch);
        }
        if chunks.is_empty() {
            return (all, true);
        }
        for (i, chunk) in chunks.iter().enumerate() {
            let end = i * batch + chunk.len();
            let is_end = i + 1 == chunks.len();
            let crosses = samples.get(end).is_some_and(|next| next.0 != chunk[0].0);
            let position = if is_end { (number + 1, 0) } else { (number, end as u64) };
            let last = is_end || (crosses && !mixed);
            let samples = chunk.iter().map(|(_, index)| *index).collect();
            all.push(Expected { samples, epoch: chunk[0].0, last, position });
        }
    }
    let mut is_empty = passes == 0;
    if let Some(limit) = limit {
        all.truncate(limit as usize);
        if let Some(end) = all.last_mut() {
            end.last = true;
        }
        is_empty |= limit == 0;
    }
    (all, is_empty)
}

// === The pipeline ===

fn build(source: &Dataset, case: Case<'_>, folder: &Folder) -> Dataset {
    let mut data = source.clone();
    for (at, op) in case.ops.iter().enumerate() {
        data = match *op {
            Op::Take(k) => data.take(k),
            Op::Skip(k) => data.skip(k),
            Op::Shard(index, count) => data.shard(index, count),
            Op::Repeat(k) => data.repeat(k),
            Op::Forever => data.repeat_forever(),
            Op::Shuffle(window) => data.shuffle(window, 7),
            Op::Filter(k) => data.filter(move |_, at| Ok(at.index % k == 0)),
            Op::Nothing => data.filter(|_, _| Ok(false)),
            Op::Map => data.map_in_place(|_, _| Ok(())),
            Op::SkipError(k) => data.on_error(OnError::Skip).map_in_place(move |_, at| match at.index == k {
                true => Err(Error::refused("this one")),
                false => Ok(()),
            }),
            Op::Cache => data.cache(folder.0.join(format!("cache-{at}"))).unwrap(),
            Op::Load => data.load().unwrap(),
        };
    }
    data = if case.exact { data.batch_exact(case.batch) } else { data.padded_batch(case.batch) };
    match case.after {
        After::Once => data,
        After::Repeat(k) => data.repeat(k),
        After::Forever(_) => data.repeat_forever(),
        After::Take(k) => data.take(k),
        After::ForeverTake(k) => data.repeat_forever().take(k),
    }
}

/// A batch as it came: its samples, as far as they can be told, and what is said of it.
#[derive(Clone, Debug, PartialEq)]
struct Got {
    count: usize,
    samples: Option<Vec<u64>>,
    epoch: u64,
    last: bool,
    position: Position,
}

/// Takes at most `most` batches; then whether the end is an error that says that there is nothing.
fn take(batches: &mut Batches, identity: Option<usize>, most: usize) -> (Vec<Got>, bool) {
    let mut all = Vec::new();
    while all.len() < most {
        let batch = match batches.next() {
            None => return (all, false),
            Some(Err(Error::Empty { .. })) => {
                assert!(batches.next().is_none());
                return (all, true);
            }
            Some(batch) => batch.unwrap(),
        };
        let samples = identity.map(|field| {
            let field = batch.field(field).unwrap();
            field.get::<i64>().unwrap().iter().map(|&x| x as u64).collect()
        });
        let (count, epoch, last) = (batch.samples(), batch.epoch(), batch.is_last_of_epoch());
        drop(batch);
        all.push(Got { count, samples, epoch, last, position: Batches::position(batches) });
    }
    (all, false)
}

/// Holds a pipeline against the model; resumes it at every position where `resume` says so.
fn check(
    name: &str,
    source: &Dataset,
    n: u64,
    identity: Option<usize>,
    case: Case<'_>,
    folder: &Folder,
    resume: bool,
) {
    let what = format!("{name} of {n}, {case:?}");
    let pipeline = build(source, case, folder);
    let (mut expected, mut is_empty) = model(n, case);
    if case.ops.contains(&Op::Forever) {
        // A pass without end is looked at as far as the model goes, less what it cannot know of its own end.
        let has_end =
            case.ops.iter().skip_while(|op| **op != Op::Forever).any(|op| matches!(op, Op::Take(_)));
        if !has_end {
            expected.truncate((MOST / case.batch / 4).min(expected.len().saturating_sub(1)));
            is_empty = expected.is_empty();
        }
    }
    let most = match case.after {
        // One batch more than a pass has would belong to the next pass.
        After::Forever(_) => expected.len() + usize::from(is_empty),
        _ if case.ops.contains(&Op::Forever) => expected.len() + usize::from(is_empty),
        _ => expected.len() + 3,
    };
    let mut batches = pipeline.batches().unwrap_or_else(|error| panic!("{what}: {error}"));
    let (got, was_empty) = take(&mut batches, identity, most.max(1));
    drop(batches);
    assert_eq!(was_empty, is_empty, "{what}: {got:?}");
    let shuffled = case.ops.iter().any(|op| matches!(op, Op::Shuffle(_)));
    let mixed = shuffled && case.ops.iter().any(|op| matches!(op, Op::Repeat(_) | Op::Forever));
    let filtered = case.ops.iter().any(|op| matches!(op, Op::Filter(_) | Op::SkipError(_)));
    let limit = matches!(case.after, After::Take(_) | After::ForeverTake(_));
    assert_eq!(got.len(), expected.len(), "{what}: {got:?}");
    let count = got.len();
    for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(got.count, expected.samples.len(), "{what}, batch {at}");
        assert_eq!(got.last, expected.last, "{what}, batch {at}: is it the last of its epoch?");
        if !mixed {
            assert_eq!(got.epoch, expected.epoch, "{what}, batch {at}");
        }
        if let (Some(samples), false) = (&got.samples, shuffled) {
            assert_eq!(*samples, expected.samples, "{what}, batch {at}");
        }
        let place = (got.position.pass, got.position.sample);
        // Where a filter stands, how far it has read is its own business, but not at the end of a pass.
        if (!filtered || expected.position.1 == 0) && !(limit && at + 1 == count) {
            assert_eq!(place, expected.position, "{what}, batch {at}");
        }
        assert_eq!(got.position.batches, at as u64 + 1, "{what}");
    }
    // A shuffle changes the order inside a pass and nothing else, unless part of it is taken.
    let whole =
        !case.ops.iter().any(|op| matches!(op, Op::Take(_) | Op::Skip(_) | Op::Shard(..) | Op::Forever));
    if shuffled && whole && !case.exact && !limit && identity.is_some() {
        let sorted = |list: Vec<u64>| {
            let mut list = list;
            list.sort_unstable();
            list
        };
        let theirs = sorted(expected.iter().flat_map(|batch| batch.samples.clone()).collect());
        let ours = sorted(got.iter().flat_map(|batch| batch.samples.clone().unwrap()).collect());
        assert_eq!(ours, theirs, "{what}");
    }
    if !resume {
        return;
    }
    for stop in 0..got.len() {
        let mut batches = pipeline.resume(&got[stop].position).unwrap();
        let rest = got.len() - stop - 1;
        let (resumed, _) = match rest {
            0 if matches!(case.after, After::Forever(_)) || case.ops.contains(&Op::Forever) => {
                (Vec::new(), false)
            }
            _ => take(&mut batches, identity, if most == got.len() { rest } else { rest + 3 }),
        };
        assert_eq!(resumed, got[stop + 1..], "{what}, resumed after batch {stop}");
    }
}

// === The sources ===

/// Every kind of source with `n` samples, and the field that tells them apart, if there is one.
fn sources(folder: &Folder, n: usize) -> Vec<(&'static str, Dataset, Option<usize>)> {
    let bytes: Vec<u8> = (0..n as u8).collect();
    let pixels: Vec<u8> = (0..4 * n).map(|i| i as u8).collect();
    let wide: Vec<u8> = (0..n as i64).flat_map(i64::to_le_bytes).collect();
    let name = |kind: &str| format!("{kind}-{n}");
    let idx_files = |kind: &str, pack: &dyn Fn(&[u8]) -> Vec<u8>, ending: &str| {
        let prefix = name(kind);
        folder.write(
            &format!("{prefix}/train-images-idx3-ubyte{ending}"),
            pack(&idx(8, &[n as u32, 2, 2], &pixels)),
        );
        folder
            .write(&format!("{prefix}/train-labels-idx1-ubyte{ending}"), pack(&idx(8, &[n as u32], &bytes)));
        Dataset::open(folder.0.join(prefix)).unwrap()
    };
    let arrays = [("x", npy(Element::U8, &[n, 4], &pixels)), ("y", npy(Element::I64, &[n], &wide))];
    let archive = |kind: &str, compressed| {
        Dataset::open(folder.write(&format!("{}.npz", name(kind)), npz(&arrays, compressed))).unwrap()
    };
    let table: String = (0..n).map(|i| format!("{}.5,{i}\n", 2 * i)).collect();
    for i in 0..n {
        folder.write(
            &format!("{}/class-{i:02}/a.png", name("images")),
            std::fs::read(fixture("gradient.png")).unwrap(),
        );
    }
    folder.write(&format!("{}/x.npy", name("npy")), &arrays[0].1);
    folder.write(&format!("{}/y.npy", name("npy")), &arrays[1].1);
    let text: Vec<u8> = (0..=n as u8).collect();
    let columns = [
        Column::memory("x", pixels.clone(), [4]).unwrap(),
        Column::memory("y", (0..n as i64).collect::<Vec<_>>(), []).unwrap(),
    ];
    let images = Images::new(4, 4);
    let shapes = Shapes { count: n as u64, height: 4, width: 4, channels: 1, most: 1, seed: 1 };
    let mut shard = Vec::new();
    for i in 0..n {
        let picture = std::fs::read(fixture("gradient.png")).unwrap();
        tar::append(&mut shard, &format!("{i:03}.png"), &picture);
        tar::append(&mut shard, &format!("{i:03}.cls"), i.to_string().as_bytes());
    }
    tar::finish(&mut shard);
    let mut all = vec![
        ("columns", Dataset::columns(columns).unwrap(), Some(1)),
        ("npy", Dataset::open(folder.0.join(name("npy"))).unwrap(), Some(1)),
        ("npz", archive("stored", false), Some(1)),
        ("npz compressed", archive("deflated", true), Some(1)),
        ("idx", idx_files("plain", &|bytes| bytes.to_vec(), ""), Some(1)),
        ("idx gzipped", idx_files("gzip", &gzip, ".gz"), Some(1)),
        ("csv", Dataset::open(folder.write(&format!("{}.csv", name("table")), table)).unwrap(), Some(1)),
        (
            "tfrecord",
            Dataset::open(folder.write(&format!("{}.tfrecord", name("r")), records(n))).unwrap(),
            Some(1),
        ),
        (
            "tfrecord gzipped",
            Dataset::open(folder.write(&format!("{}.tfrecord.gz", name("r")), gzip(&records(n)))).unwrap(),
            Some(1),
        ),
        ("tar", Dataset::open(folder.write(&format!("{}.tar", name("shard")), shard)).unwrap(), Some(1)),
        (
            "concatenated",
            indexed(n as u64).take(n as u64 / 2).concatenate(indexed(n as u64).skip(n as u64 / 2)).unwrap(),
            Some(0),
        ),
        ("text", Dataset::text(folder.write(&name("text"), text), Tokens::Bytes, 1).unwrap(), Some(0)),
        ("images", Dataset::images(folder.0.join(name("images")), Some(images)).unwrap(), Some(1)),
        ("shapes", Dataset::shapes(shapes), None),
        ("function", indexed(n as u64), Some(0)),
        ("iterator", streamed(n as u64), Some(0)),
    ];
    #[cfg(feature = "parquet")]
    {
        let path = folder.0.join(format!("{}.parquet", name("table")));
        let floats = [(0..n).map(|i| i as f32).collect::<Vec<_>>()];
        plimsoll_formats::parquet::write(&path, &["a"], &floats, "label", &(0..n as i64).collect::<Vec<_>>())
            .unwrap();
        all.push(("parquet", Dataset::open(&path).unwrap(), Some(1)));
    }
    all.push(("loaded", Dataset::open(folder.0.join(name("gzip"))).unwrap().load().unwrap(), Some(1)));
    all
}

/// 1, the divisors of a length and what is beside them.
fn batch_sizes(n: usize) -> Vec<usize> {
    let divisors = (1..=n).filter(|d| n.is_multiple_of(*d));
    let mut sizes: Vec<usize> =
        divisors.flat_map(|d| [d.saturating_sub(1), d, d + 1]).filter(|&d| d > 0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[test]
fn every_source_ends_after_the_right_number_of_batches() {
    let folder = Folder::new("every-source");
    let n = 6;
    let all = sources(&folder, n);
    let stages: &[&[Op]] = &[
        &[],
        &[Op::Map],
        &[Op::Shuffle(4)],
        &[Op::Filter(2)],
        &[Op::SkipError(5)],
        &[Op::Repeat(2)],
        &[Op::Take(4)],
        &[Op::Load],
        &[Op::Shuffle(3), Op::Map, Op::Filter(2), Op::Take(2)],
    ];
    for (name, source, identity) in &all {
        for (i, ops) in stages.iter().enumerate() {
            for batch in batch_sizes(n) {
                for exact in [false, true] {
                    for after in [After::Once, After::Forever(3)] {
                        let source =
                            source.clone().workers(1 + i % 3).prefetch([AUTO, Amount::Fixed(0)][i % 2]);
                        let case = Case { ops, batch, exact, after };
                        check(name, &source, n as u64, *identity, case, &folder, batch == 3);
                    }
                }
            }
        }
        for batch in batch_sizes(n) {
            for after in [After::Repeat(2), After::Take(2), After::ForeverTake(5)] {
                let case = Case { ops: &[], batch, exact: false, after };
                check(name, source, n as u64, *identity, case, &folder, true);
            }
        }
        let cached = Folder::new("every-source-cache");
        for batch in batch_sizes(n) {
            let case = Case {
                ops: &[Op::Filter(2), Op::Cache, Op::Shuffle(9)],
                batch,
                exact: false,
                after: After::Forever(2),
            };
            check(name, source, n as u64, *identity, case, &cached, false);
        }
    }
}

#[test]
fn every_chain_of_stages_gives_the_batches_of_the_model() {
    let folder = Folder::new("every-chain");
    let chains: &[&[Op]] = &[
        &[Op::Map, Op::Map],
        &[Op::Take(0)],
        &[Op::Skip(2)],
        &[Op::Skip(99)],
        &[Op::Shard(1, 3)],
        &[Op::Repeat(0)],
        &[Op::Repeat(3)],
        &[Op::Repeat(2), Op::Repeat(2)],
        &[Op::Skip(1), Op::Repeat(2), Op::Take(9)],
        &[Op::Take(3), Op::Repeat(2), Op::Skip(1)],
        &[Op::Forever],
        &[Op::Take(0), Op::Forever],
        &[Op::Forever, Op::Take(14)],
        &[Op::Forever, Op::Shuffle(5)],
        &[Op::Shuffle(5), Op::Repeat(2)],
        &[Op::Repeat(2), Op::Shuffle(5)],
        &[Op::Nothing],
        &[Op::Repeat(2), Op::Nothing],
        &[Op::Forever, Op::Nothing],
        &[Op::Forever, Op::Shuffle(5), Op::Nothing],
        &[Op::Filter(2), Op::Repeat(2)],
        &[Op::Filter(3), Op::Skip(1)],
        &[Op::Filter(2), Op::Shard(1, 2)],
        &[Op::Filter(2), Op::Take(2), Op::Skip(1)],
        &[Op::Forever, Op::Filter(2), Op::Take(7)],
        &[Op::SkipError(0), Op::Repeat(2)],
        &[Op::SkipError(3), Op::Filter(3)],
    ];
    for n in [1u64, 6, 7] {
        for (name, source) in [("function", indexed as fn(u64) -> Dataset), ("iterator", streamed)] {
            for (i, ops) in chains.iter().enumerate() {
                for batch in batch_sizes(n as usize) {
                    for exact in [false, true] {
                        for after in [
                            After::Once,
                            After::Repeat(2),
                            After::Forever(2),
                            After::Take(2),
                            After::ForeverTake(3),
                        ] {
                            let workers = 1 + (i + batch) % 3;
                            let source = source(n).workers(workers).prefetch([AUTO, Amount::Fixed(0)][i % 2]);
                            let case = Case { ops, batch, exact, after };
                            // A pass without end has no end to look for behind it.
                            let is_endless = ops.contains(&Op::Forever)
                                && !ops.contains(&Op::Take(7))
                                && !ops.contains(&Op::Take(14));
                            if is_endless && after != After::Once {
                                continue;
                            }
                            check(name, &source, n, Some(0), case, &folder, i % 3 == batch % 3);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn nothing_is_an_error_that_names_the_source_and_the_reason() {
    let folder = Folder::new("nothing");
    let said = |data: Dataset| match data.batches().unwrap().next() {
        Some(Err(error @ Error::Empty { .. })) => error.to_string(),
        _ => panic!("no such error"),
    };
    let path = folder.write("none.npz", npz(&[("x", npy(Element::F32, &[0, 3], &[]))], true));
    assert_eq!(
        said(Dataset::open(&path).unwrap().batch(2)),
        format!("{} gives no batch: it has no samples", path.display())
    );
    let path = folder.write("none.npy", npy(Element::F32, &[0, 3], &[]));
    assert_eq!(
        said(Dataset::open(&path).unwrap().batch(2).repeat_forever()),
        format!("{} gives no batch: it has no samples", path.display())
    );
    assert!(said(indexed(5).take(0).batch(2)).contains("leave none of its 5 samples"));
    assert!(said(streamed(5).take(0).batch(2).repeat_forever()).contains("leave none"));
    assert!(
        said(indexed(5).filter(|_, _| Ok(false)).batch(2).repeat_forever()).contains("filter leave none")
    );
    assert!(said(indexed(5).batch_exact(6).repeat_forever()).contains("does not fill one batch of 6"));
    assert!(said(streamed(5).batch_exact(6).repeat_forever()).contains("does not fill one batch of 6"));
    let refused =
        |data: Dataset| data.map_in_place(|_, _| Err(Error::refused("never"))).on_error(OnError::Skip);
    for source in [indexed(5), streamed(5)] {
        let message = said(refused(source).batch(2).repeat_forever());
        assert!(message.contains("5 samples were skipped") && message.ends_with("never"), "{message}");
    }
}
