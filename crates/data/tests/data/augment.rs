//! Changes of pictures: the same for the same seed, epoch and sample; masks with their pictures; mixed batches with their labels.

use plimsoll_data::{Augment, Batch, Column, Dataset, FieldSpec, Images, Open, Shapes};
use plimsoll_device::Bytes;
use plimsoll_graph::DType;

use crate::common::{Folder, jpeg};

const SIDE: usize = 12;

/// Pictures whose single channel is the class of the pixel, and that class as a mask.
fn masked() -> Dataset {
    let spec =
        [FieldSpec::new("x", DType::F32, [SIDE, SIDE, 1]), FieldSpec::new("y", DType::I64, [SIDE, SIDE])];
    Dataset::from_fn(spec, 10, |index, out| {
        let class = |at: usize| (at * 7 + index as usize * 3) % 5;
        out.get_mut::<f32>(0)?.iter_mut().enumerate().for_each(|(at, x)| *x = class(at) as f32);
        out.get_mut::<i64>(1)?.iter_mut().enumerate().for_each(|(at, y)| *y = class(at) as i64);
        Ok(())
    })
}

fn shapes() -> Dataset {
    Dataset::shapes(Shapes { count: 24, height: 20, width: 16, channels: 3, most: 3, seed: 5 })
}

fn augment(text: &str) -> Augment {
    text.parse().unwrap()
}

fn pixels(batch: &Batch) -> Vec<u32> {
    batch.field(0).unwrap().get::<f32>().unwrap().iter().map(|x| x.to_bits()).collect()
}

/// The pictures of each sample in two epochs.
fn by_sample(data: &Dataset) -> Vec<(u64, u64, Vec<u32>)> {
    let mut seen = Vec::new();
    for batch in data.batches().unwrap() {
        let batch = batch.unwrap();
        let row = pixels(&batch).len() / batch.samples();
        for (number, pixels) in batch.numbers().iter().zip(pixels(&batch).chunks(row)) {
            seen.push((batch.epoch(), *number, pixels.to_vec()));
        }
    }
    seen.sort();
    seen
}

#[test]
fn a_picture_depends_on_seed_epoch_and_sample_alone() {
    let all = augment("flip,crop:3,rotate:20,color:0.3,cutout:4");
    let data = |seed| shapes().augment(&all, seed).unwrap();
    let one = by_sample(&data(1).batch(4).repeat(2).workers(1));
    assert_eq!(one.len(), 48);
    // Other threads, another order, other batches.
    assert_eq!(one, by_sample(&data(1).shuffle(24, 9).batch(7).repeat(2).workers(4)));
    assert_ne!(one, by_sample(&data(2).batch(4).repeat(2)));
    let (first, second) = one.split_at(24);
    let differing = first.iter().zip(second).filter(|(a, b)| a.2 != b.2).count();
    assert!(differing >= 23, "{differing} of 24 pictures differ between epochs");
}

#[test]
fn a_run_goes_on_where_it_stood_and_other_changes_are_another_pipeline() {
    let data = |text: &str| shapes().augment(&augment(text), 1).unwrap().shuffle(24, 3).batch(5).repeat(2);
    let whole: Vec<_> = data("flip,crop:2").batches().unwrap().map(|batch| pixels(&batch.unwrap())).collect();
    let mut begun = data("flip,crop:2").batches().unwrap();
    (0..3).for_each(|_| drop(begun.next().unwrap().unwrap()));
    let position = begun.position();
    let rest = data("flip,crop:2").resume(&position).unwrap();
    assert_eq!(rest.map(|batch| pixels(&batch.unwrap())).collect::<Vec<_>>(), whole[3..]);
    let other = data("flip,crop:3").resume(&position).err().unwrap().to_string();
    assert!(other.contains("another pipeline"), "{other}");
}

#[test]
fn masks_go_with_their_pictures_and_are_never_mixed() {
    for (text, exact) in [("flip,crop:4", true), ("crop:2,rotate:25,flip", false)] {
        let data = masked().augment(&augment(text), 7).unwrap().batch(10).repeat(3);
        let mut moved = 0;
        for batch in data.batches().unwrap() {
            let batch = batch.unwrap();
            let (x, y) = (batch.field(0).unwrap(), batch.field(1).unwrap());
            let (x, y) = (x.get::<f32>().unwrap(), y.get::<i64>().unwrap());
            assert!(y.iter().all(|class| (0..5).contains(class)));
            if exact {
                assert!(x.iter().zip(y).all(|(&x, &y)| x == y as f32));
            }
            moved += usize::from(y[..SIDE] != std::array::from_fn::<i64, SIDE, _>(|at| (at as i64 * 7) % 5));
        }
        assert!(moved > 0, "{text} changed nothing");
    }
}

#[test]
fn colors_of_photos_stay_between_black_and_white() {
    let folder = Folder::new("augment-colors");
    for at in 0..4 {
        folder.write(&format!("{at}.jpg"), jpeg(40, 30, 1));
    }
    let open = Open { images: Some(Images::new(16, 16)), ..Open::default() };
    let data = Dataset::open_with(&folder.0, &open).unwrap().augment(&augment("color:1"), 3).unwrap();
    for batch in data.batch(4).repeat(8).batches().unwrap() {
        let batch = batch.unwrap();
        let x = batch.field(0).unwrap();
        assert!(x.get::<f32>().unwrap().iter().all(|x| (0.0..=1.0).contains(x)));
    }
}

#[test]
fn mixup_mixes_pairs_of_a_batch_and_their_labels_by_the_same_share() {
    let x: Vec<f32> = (0..5).flat_map(|n| [n as f32; 4]).collect();
    let columns = [
        Column::memory("x", x, [2, 2, 1]).unwrap(),
        Column::memory("y", vec![0i64, 1, 2, 3, 4], []).unwrap(),
    ];
    let data = Dataset::columns(columns).unwrap();
    let refused = data.clone().augment(&augment("mixup:0.4"), 1).err().unwrap().to_string();
    assert!(refused.contains("'y' is of type i64") && refused.contains("one-hot"), "{refused}");
    let data = data.one_hot(1, 5).unwrap().augment(&augment("mixup:0.4"), 1).unwrap().batch(5).repeat(4);
    let mut shares = Vec::new();
    for batch in data.batches().unwrap() {
        let batch = batch.unwrap();
        let (x, y) = (batch.field(0).unwrap(), batch.field(1).unwrap());
        let (x, y) = (x.get::<f32>().unwrap(), y.get::<f32>().unwrap());
        for (row, (x, y)) in x.chunks(4).zip(y.chunks(5)).enumerate() {
            let other = 4 - row;
            let share = if row == other { 1.0 } else { y[row] };
            assert!((y.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{y:?}");
            let expected = share * row as f32 + (1.0 - share) * other as f32;
            assert!(x.iter().all(|x| (x - expected).abs() < 1e-5), "{x:?} {share}");
            shares.push(share.to_bits());
        }
    }
    shares.sort_unstable();
    shares.dedup();
    assert!(shares.len() > 4, "shares differ between pairs and epochs");
}

#[test]
fn what_cannot_be_changed_is_refused() {
    let refused = |data: plimsoll_data::Result<Dataset>| data.err().unwrap().to_string();
    let table = Dataset::columns([Column::memory("x", vec![0.0f32; 12], [4]).unwrap()]).unwrap();
    assert!(refused(table.augment(&augment("flip"), 1)).contains("has shape [4]"));
    assert!(refused(masked().augment(&augment("crop:12"), 1)).contains("crop:12 leaves nothing"));
    let cached = masked().augment(&augment("flip"), 1).unwrap().cache(std::env::temp_dir().join("no-cache"));
    assert!(refused(cached).contains("put cache before augment"));
    let early = masked().map_batch(|_| Ok(())).batch(2).batches().err().unwrap().to_string();
    assert!(early.contains("put it behind batch"), "{early}");
    let mut failing =
        masked().batch(4).map_batch(|_| Err(plimsoll_data::Error::refused("no"))).batches().unwrap();
    assert!(failing.next().unwrap().err().unwrap().to_string().contains("map_batch of sample 0: no"));
    assert!(failing.next().is_none());
}

#[test]
fn the_row_in_which_a_picture_waits_is_counted() {
    let declared = |data: Dataset| data.batch(2).workers(1).prefetch(1).declared_bytes().unwrap();
    let (plain, changed) = (declared(masked()), declared(masked().augment(&augment("flip"), 1).unwrap()));
    assert!(changed >= plain + Bytes((SIDE * SIDE * 12) as u64), "{plain} {changed}");
}
