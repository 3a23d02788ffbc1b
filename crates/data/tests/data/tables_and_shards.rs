//! Columns of tables by name, tar archives of images, and parts that hold the same share of every class.

use crate::common::{Folder, png};
use plimsoll_data::{Column, Dataset, Images, Open, Split};
use plimsoll_formats::tar;
use plimsoll_graph::DType;

fn said<T>(result: plimsoll_data::Result<T>) -> String {
    result.err().unwrap().to_string()
}

fn columns(text: &str) -> Open {
    Open { columns: Some(text.parse().unwrap()), ..Open::default() }
}

// === Columns ===

const TABLE: &str = "name,age,height,price\nann,30,1.5,7\nbob,40,1.75,9\n";

/// The numbers of `x`, and the labels as they are.
fn first(data: Dataset) -> (Vec<f32>, Option<Vec<i64>>) {
    let batch = data.batch(8).batches().unwrap().next().unwrap().unwrap();
    let labels = batch.field(1).map(|y| y.get::<i64>().unwrap().to_vec());
    (batch.field(0).unwrap().get::<f32>().unwrap().to_vec(), labels)
}

#[test]
fn columns_of_a_table_are_read_by_name_in_their_order_and_others_may_hold_anything() {
    let folder = Folder::new("columns-csv");
    let path = folder.write("people.csv", TABLE);
    let open = |text| Dataset::open_with(&path, &columns(text));
    assert_eq!(first(open("x=height,age,y=price").unwrap()), (vec![1.5, 30.0, 1.75, 40.0], Some(vec![7, 9])));
    assert_eq!(first(open("x=1").unwrap()), (vec![30.0, 40.0], None));
    let named = open("x=Age,y=name").unwrap();
    assert_eq!(named.class_names().unwrap(), ["ann", "bob"]);
    assert_eq!(first(named), (vec![30.0, 40.0], Some(vec![0, 1])));
    assert!(said(open("x=age,y=weight")).contains("no column 'weight'"));
    assert!(said(open("x=weight,y=age")).contains("no column 'weight'; there are name, age, height, price"));
    assert!(said(open("x=name,y=price")).ends_with("column 1 ('name') holds 'ann', which is no number"));
    let without = Open { labelled: Some(false), ..columns("x=age,y=price") };
    assert_eq!(first(Dataset::open_with(&path, &without).unwrap()), (vec![30.0, 40.0], None));
    let twice = Open { label: Some("price".into()), ..columns("x=age,y=price") };
    assert!(said(Dataset::open_with(&path, &twice)).contains("leave the other name out"));
    let text = folder.write("words.txt", b"some words");
    assert!(said(Dataset::open_with(text, &columns("x=age"))).contains("columns are chosen of tables"));
}

#[cfg(feature = "parquet")]
#[test]
fn columns_of_a_parquet_file_are_read_by_name() {
    let folder = Folder::new("columns-parquet");
    let path = folder.0.join("a.parquet");
    let floats = [vec![1.0, 2.0], vec![3.0, 4.0]];
    plimsoll_formats::parquet::write(&path, &["a", "b"], &floats, "label", &[5, 6]).unwrap();
    let open = |text| Dataset::open_with(&path, &columns(text));
    assert_eq!(first(open("x=b,a,y=label").unwrap()), (vec![3.0, 1.0, 4.0, 2.0], Some(vec![5, 6])));
    assert_eq!(first(open("x=label").unwrap()), (vec![5.0, 6.0], None));
    assert!(said(open("x=c")).contains("no column 'c'; there are a, b, label"));
}

// === Archives ===

fn picture(level: u8) -> Vec<u8> {
    png(4, 3, false, &[level; 12])
}

fn archive(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    files.iter().for_each(|(name, file)| tar::append(&mut bytes, name, file));
    tar::finish(&mut bytes);
    bytes
}

#[test]
fn archives_of_images_with_classes_are_read_by_number() {
    let folder = Folder::new("shards");
    for shard in 0..2u8 {
        let files: Vec<(String, Vec<u8>)> = (0..3u8)
            .flat_map(|at| {
                let number = shard * 3 + at;
                let label = format!("{number}\n").into_bytes();
                let name = format!("set.1/{number:03}");
                [
                    (format!("{name}.png"), picture(number * 10)),
                    (format!("{name}.cls"), label),
                    (format!("{name}.json"), b"{}".to_vec()),
                ]
            })
            .collect();
        let files: Vec<_> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        folder.write(&format!("train-{shard}.tar"), archive(&files));
    }
    folder.write("test-0.tar", archive(&[("a.png", picture(200)), ("a.cls", b"1".to_vec())]));
    assert!(Dataset::has_part(&folder.0, Split::Test).unwrap());
    let data = Dataset::open(&folder.0).unwrap();
    assert_eq!((data.samples().unwrap(), data.part()), (Some(6), Some(Split::Train)));
    assert!(data.notes().iter().any(|note| note.contains("left out: .json")), "{:?}", data.notes());
    let shuffled = data.clone().shuffle(6, 3).batch(6);
    let batch = shuffled.batches().unwrap().next().unwrap().unwrap();
    let (x, y) = (batch.field(0).unwrap(), batch.field(1).unwrap());
    assert_eq!(x.shape[..], [6, 3, 4, 3]);
    for (x, y) in x.get::<f32>().unwrap().chunks(36).zip(y.get::<i64>().unwrap()) {
        assert!(x.iter().all(|x| (x * 255.0 - 10.0 * *y as f32).abs() < 1e-3));
    }
    let open = Open { split: Split::Test, images: Some(Images::new(2, 2)), ..Open::default() };
    let test = Dataset::open_with(&folder.0, &open).unwrap();
    assert_eq!((test.samples().unwrap(), test.spec().unwrap()[0].shape.clone()), (Some(1), vec![2, 2, 3]));
    assert_eq!(test.stored().spec().unwrap()[0].dtype, DType::U8);
}

#[test]
fn archives_that_mean_nothing_are_refused_by_name() {
    let folder = Folder::new("shards-wrong");
    let open =
        |name: &str, files: &[(&str, Vec<u8>)]| said(Dataset::open(folder.write(name, archive(files))));
    assert!(open("none.tar", &[("a.txt", vec![1])]).contains("it has no images"));
    let two = [("a.png", picture(1)), ("a.jpg", picture(1))];
    assert!(open("two.tar", &two).contains("two.tar: a.jpg: the sample has two images"));
    let some = [("a.png", picture(1)), ("a.cls", b"1".to_vec()), ("b.png", picture(2))];
    assert!(open("some.tar", &some).contains("sample b: some samples have a label"));
    let word = [("a.png", picture(1)), ("a.cls", b"cat".to_vec())];
    assert!(open("word.tar", &word).contains("a.cls: a label is a whole number"));
    assert!(open("alone.tar", &[("a.cls", b"1".to_vec())]).contains("sample a has a label and no image"));
    // A picture that is damaged is an error of its number, and can be skipped.
    let damaged = folder.write("damaged.tar", archive(&[("a.png", picture(1)), ("b.png", vec![1, 2, 3])]));
    let data = Dataset::open(damaged).unwrap();
    let errors: Vec<_> = data.clone().batch(1).batches().unwrap().filter_map(Result::err).collect();
    assert!(errors[0].to_string().contains("damaged.tar, record 1"), "{}", errors[0]);
    let kept = data.on_error(plimsoll_data::OnError::Skip).batch(4).batches().unwrap();
    assert_eq!(kept.map(|batch| batch.unwrap().samples()).sum::<usize>(), 1);
    let sound = archive(&[("a.png", picture(1))]);
    let cut = folder.write("cut.tar", &sound[..600]);
    assert!(said(Dataset::open(cut)).contains("cut.tar"));
}

// === Shares of classes ===

#[test]
fn every_class_has_its_share_in_both_parts() {
    // Classes come at the distance of what would be held back: without classes one of them would be held back whole.
    let labels: Vec<i64> = (0..100).map(|at| if at % 10 == 9 { 1 } else { at % 3 * 2 }).collect();
    let count = |data: Dataset, class: i64| {
        let batches = data.batch(100).batches().unwrap();
        let labels = batches.flat_map(|batch| {
            let batch = batch.unwrap();
            batch.field(0).unwrap().get::<i64>().unwrap().to_vec()
        });
        labels.filter(|&label| label == class).count()
    };
    let data = Dataset::columns([Column::memory("y", labels.clone(), []).unwrap()]).unwrap();
    let (train, test) = data.clone().hold_back_stratified(0.2, 0).unwrap();
    assert_eq!((train.samples().unwrap(), test.samples().unwrap()), (Some(80), Some(20)));
    for class in [0, 1, 2, 4] {
        let all = labels.iter().filter(|&&label| label == class).count();
        let held = count(test.clone(), class);
        assert!(held.abs_diff(all / 5) <= 1, "{held} of {all} of class {class}");
        assert_eq!(count(train.clone(), class), all - held);
    }
    // The same samples whatever the shuffle, and none in both.
    let numbers = |data: &Dataset| {
        let batch = data.clone().batch(100).batches().unwrap().next().unwrap().unwrap();
        batch.field(0).unwrap().get::<i64>().unwrap().to_vec()
    };
    assert_eq!(numbers(&test), numbers(&data.clone().hold_back_stratified(0.2, 0).unwrap().1));
    let (train, test) = data.clone().take(50).hold_back_stratified(0.2, 0).unwrap();
    assert_eq!((train.samples().unwrap(), test.samples().unwrap()), (Some(40), Some(10)));
    assert!(
        said(data.clone().shuffle(9, 1).hold_back_stratified(0.2, 0)).contains("only take may come before")
    );
    assert!(said(data.clone().hold_back_stratified(1.0, 0)).contains("between 0 and 1"));
    assert!(said(data.hold_back_stratified(0.2, 1)).contains("field 1"));
}

#[test]
fn classes_of_folders_are_known_without_reading_images() {
    let folder = Folder::new("stratified-folders");
    for class in ["cat", "dog"] {
        for at in 0..10 {
            // No images: whoever reads one fails.
            folder.write(&format!("{class}/{at}.png"), if at == 0 { picture(1) } else { vec![0; 9] });
        }
    }
    let data = Dataset::images(&folder.0, Some(Images::new(3, 4))).unwrap();
    let (train, test) = data.hold_back_stratified(0.3, 1).unwrap();
    assert_eq!((train.samples().unwrap(), test.samples().unwrap()), (Some(14), Some(6)));
    let names: Vec<String> = (0..6).map(|at| test.sample_name(at).unwrap()).collect();
    assert_eq!(names.iter().filter(|name| name.contains("cat")).count(), 3, "{names:?}");
}
