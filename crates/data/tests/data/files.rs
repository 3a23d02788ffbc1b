//! Files of every kind, sound and damaged, as they come out of a pipeline.

use crate::common::{Folder, fixture, gzip, idx, npz};

use plimsoll_data::{
    Column, Dataset, FieldKind, FieldSpec, Fields, Images, OnError, Open, Scale, Shapes, Split, Tokens,
    Wanted,
};
use plimsoll_device::Bytes;
use plimsoll_formats::{Element, example, npy, tfrecord};
use plimsoll_graph::DType;

/// All of both fields, in one batch.
fn x_and_y(dataset: Dataset) -> (Vec<f32>, Vec<i64>) {
    let batch = dataset.batch(1000).batches().unwrap().next().unwrap().unwrap();
    (
        batch.field(0).unwrap().get::<f32>().unwrap().to_vec(),
        batch.field(1).unwrap().get::<i64>().unwrap().to_vec(),
    )
}

/// What a pipeline says that fails, whether when it is opened or when it runs.
fn failure(dataset: Result<Dataset, plimsoll_data::Error>) -> String {
    let error = dataset.and_then(|dataset| {
        dataset.batch(2).batches()?.find_map(Result::err).map_or_else(|| panic!("no error"), Err::<(), _>)
    });
    error.unwrap_err().to_string()
}

#[test]
fn idx_files_plain_and_gzipped_give_the_same_samples() {
    let folder = Folder::new("idx");
    let pixels: Vec<u8> = (0..12).map(|i| i * 20).collect();
    let (images, labels) = (idx(8, &[3, 2, 2], &pixels), idx(8, &[3], &[7, 0, 9]));
    folder.write("train-images-idx3-ubyte", &images);
    folder.write("train-labels-idx1-ubyte", &labels);
    folder.write("t10k-images-idx3-ubyte.gz", gzip(&images));
    folder.write("t10k-labels-idx1-ubyte.gz", gzip(&labels));
    let expected: Vec<f32> = pixels.iter().map(|&pixel| f32::from(pixel) / 255.0).collect();
    let test = Open { split: Split::Test, ..Open::default() };
    for dataset in [
        Dataset::idx(folder.0.join("train")).unwrap(),
        Dataset::idx(folder.0.join("t10k")).unwrap(),
        Dataset::idx(folder.0.join("t10k")).unwrap().load().unwrap(),
        Dataset::open(&folder.0).unwrap(),
        Dataset::open_with(&folder.0, &test).unwrap(),
    ] {
        assert_eq!(dataset.samples().unwrap(), Some(3));
        assert_eq!(x_and_y(dataset), (expected.clone(), vec![7, 0, 9]));
    }
    let stored = Dataset::idx(folder.0.join("t10k")).unwrap().stored();
    assert_eq!(stored.spec().unwrap()[0], FieldSpec::new("x", DType::U8, [2, 2, 1]));
    let batch = stored.batch(3).batches().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.field(0).unwrap().bytes, pixels);
}

#[test]
fn numpy_archives_are_read_by_offset_or_inflated() {
    let pixels: Vec<f32> = (0..24).map(|i| i as f32 / 255.0).collect();
    let dataset = Dataset::npz(fixture("stored.npz"), Split::Train).unwrap();
    assert_eq!(dataset.spec().unwrap()[0], FieldSpec::new("x", DType::F32, [3, 2]));
    assert_eq!(x_and_y(dataset), (pixels.clone(), vec![3, 1, 2, 0]));
    let test = Dataset::npz(fixture("stored.npz"), Split::Test).unwrap();
    assert_eq!(x_and_y(test), (pixels[..6].to_vec(), vec![3]));
    // The compressed one has big-endian floats.
    let deflated = Dataset::open(fixture("deflated.npz")).unwrap();
    assert_eq!(x_and_y(deflated), ((0..24).map(|i| i as f32).collect(), vec![3, 1, 2, 0]));
}

#[test]
fn a_model_takes_arrays_by_name_with_the_types_it_wants() {
    let folder = Folder::new("named");
    let file = |element: Element, shape: &[usize], bytes: &[u8]| {
        let mut file = Vec::new();
        npy::write_header(&mut file, element, shape).unwrap();
        file.extend(bytes);
        file
    };
    folder.write("image.npy", file(Element::U8, &[2, 2], &[0, 255, 51, 102]));
    folder.write("meta.npy", file(Element::I8, &[2, 1], &[5, 255]));
    folder.write("words.npy", file(Element::U8, &[2, 2], &[1, 2, 3, 4]));
    folder.write("mask.npy", file(Element::U8, &[2, 2], &[9, 8, 7, 6]));
    let wanted = |name: &str, kind| Wanted { name: name.into(), kind };
    let inputs = vec![
        wanted("words", FieldKind::Indices),
        wanted("image", FieldKind::Numbers),
        wanted("meta", FieldKind::Numbers),
    ];
    let fields = |labels: &[&str]| {
        let labels = labels.iter().map(|name| wanted(name, FieldKind::Label)).collect();
        Open { fields: Some(Fields { inputs: inputs.clone(), labels }), ..Open::default() }
    };
    let data = Dataset::open_with(&folder.0, &fields(&["mask"])).unwrap();
    assert_eq!(data.notes(), ["'image': u8 as f32, as stored"]);
    let scaled = Open { scale: Some(Scale::Unit), ..fields(&["mask"]) };
    let unit = Dataset::open_with(&folder.0, &scaled).unwrap();
    assert_eq!(unit.notes()[0], "'image': u8 as f32, divided by 255");
    let batch = unit.batch(2).batches().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.field(0).unwrap().get::<i64>().unwrap(), [1, 2, 3, 4], "indices are not scaled");
    assert_eq!(batch.field(1).unwrap().get::<f32>().unwrap(), [0.0, 1.0, 0.2, 0.4]);
    assert_eq!(batch.field(2).unwrap().get::<f32>().unwrap(), [5.0 / 255.0, -1.0 / 255.0]);
    assert_eq!(batch.field(3).unwrap().get::<i64>().unwrap(), [9, 8, 7, 6], "labels are not scaled");
    drop(batch);
    let batch = data.batch(2).batches().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.field(0).unwrap().get::<i64>().unwrap(), [1, 2, 3, 4]);
    // Keras takes bytes as they are.
    assert_eq!(batch.field(1).unwrap().get::<f32>().unwrap(), [0.0, 255.0, 51.0, 102.0]);
    assert_eq!(batch.field(2).unwrap().get::<f32>().unwrap(), [5.0, -1.0]);
    assert_eq!(batch.field(3).unwrap().get::<i64>().unwrap(), [9, 8, 7, 6]);
    let error = failure(Dataset::open_with(&folder.0, &fields(&["mask", "age"])));
    assert!(
        error.contains("label age (or y1)") && error.contains("it has image, mask, meta, words"),
        "{error}"
    );
}

#[test]
fn fields_of_any_source_are_chosen_and_put_in_order() {
    let folder = Folder::new("chosen");
    folder.write("table.csv", "a,b,label\n1,2,0\n3,4,1\n");
    let wanted = |name: &str| Wanted { name: name.into(), kind: FieldKind::Numbers };
    let open = |inputs: &[&str]| {
        let inputs = inputs.iter().map(|name| wanted(name)).collect();
        let fields = Fields { inputs, labels: Vec::new() };
        Dataset::open_with(folder.0.join("table.csv"), &Open { fields: Some(fields), ..Open::default() })
    };
    // A source of x and y: turned around, and with what comes after the first left where it is.
    let turned = open(&["y", "x"]).unwrap();
    let batch = turned.batch(2).batches().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.field(0).unwrap().get::<i64>().unwrap(), [0, 1]);
    assert_eq!(batch.field(1).unwrap().get::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(open(&["input_1"]).unwrap().spec().unwrap().len(), 2);
    assert!(failure(open(&["p", "q", "r"])).contains("it has x, y"));
}

#[test]
fn arrays_in_memory_and_in_files_are_the_same() {
    let folder = Folder::new("npy");
    let numbers: Vec<f32> = (0..600).map(|i| i as f32).collect();
    let mut bytes = Vec::new();
    npy::write_header(&mut bytes, Element::F32, &[200, 3]).unwrap();
    bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    folder.write("x.npy", bytes);
    let mut bytes = Vec::new();
    npy::write_header(&mut bytes, Element::U8, &[200]).unwrap();
    bytes.extend(0..200u8);
    folder.write("y.npy", bytes);
    let memory = || {
        let x = Column::memory("x", numbers.clone(), [3]).unwrap();
        Dataset::columns([x, Column::memory("y", (0..200).collect::<Vec<u8>>(), []).unwrap()]).unwrap()
    };
    let file = || Dataset::open(&folder.0).unwrap();
    assert_eq!(x_and_y(file()), x_and_y(memory()));
    assert_eq!(x_and_y(file().shuffle(1, 5).repeat(2)), x_and_y(memory().shuffle(1, 5).repeat(2)));
    assert_eq!(x_and_y(file().shuffle(1, 5).workers(3)), x_and_y(memory().shuffle(1, 5)));
}

#[test]
fn tables_have_headings_and_named_classes_or_not() {
    let folder = Folder::new("csv");
    let iris =
        folder.write("iris.csv", "length,width,species\n1,2,setosa\n3,4.5,\"virginica\"\n\n5,6,setosa\n");
    let expected = (vec![1.0, 2.0, 3.0, 4.5, 5.0, 6.0], vec![0, 1, 0]);
    assert_eq!(x_and_y(Dataset::open(&iris).unwrap()), expected);
    let plain = folder.write("plain.csv", "9,1,2\n8,3,4");
    assert_eq!(x_and_y(Dataset::csv(&plain, Some("0")).unwrap()), (vec![1.0, 2.0, 3.0, 4.0], vec![9, 8]));
    assert_eq!(x_and_y(Dataset::csv(&plain, None).unwrap()), (vec![9.0, 1.0, 8.0, 3.0], vec![2, 4]));
    assert!(
        failure(Dataset::csv(&iris, Some("height"))).contains("no column 'height'; there are length, width")
    );
}

#[test]
fn tables_for_regression_and_without_labels_are_tables() {
    let folder = Folder::new("regression");
    // The first target looks like a class, the others do not.
    let price = folder.write("price.csv", "rooms,price\n1,3\n2,3.5\n3,4e0\n");
    let data = Dataset::open(&price).unwrap();
    let batch = data.batch(3).batches().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.field(1).unwrap().get::<f32>().unwrap(), [3.0, 3.5, 4.0]);
    drop(batch);
    let none = Open { labelled: Some(false), ..Open::default() };
    let inputs = Dataset::open_with(&price, &none).unwrap();
    assert_eq!((inputs.spec().unwrap().len(), inputs.spec().unwrap()[0].shape.clone()), (1, vec![2]));
    let batch = inputs.batch(3).batches().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.field(0).unwrap().get::<f32>().unwrap(), [1.0, 3.0, 2.0, 3.5, 3.0, 4.0]);
    drop(batch);
    // One column has no label beside it, and is a table without labels.
    let one = folder.write("one.csv", "a\n1\n2\n");
    assert!(failure(Dataset::open(&one)).contains("it has one column"), "{}", failure(Dataset::open(&one)));
    assert_eq!(Dataset::open_with(&one, &none).unwrap().spec().unwrap()[0].shape, [1]);
    for (name, text) in [
        ("semicolons.csv", "\"fixed acidity\";pH;quality\n1.5;2;3\n4.5;5;6\n"),
        ("tabs.tsv", "1.5\t2\t3\n4.5\t5\t6\n"),
        ("bars.csv", "1.5|2|3\n4.5|5|6\n"),
    ] {
        let read = x_and_y(Dataset::open(folder.write(name, text)).unwrap());
        assert_eq!(read, (vec![1.5, 2.0, 4.5, 5.0], vec![3, 6]), "{name}");
    }
    let slashes = folder.write("slashes.csv", "1/2/3\n4/5/6\n");
    assert!(failure(Dataset::open(&slashes)).contains("separated by something else than commas"));
    // A mark before the first word, as spreadsheets write it.
    let marked = folder.write("marked.csv", "\u{feff}label,x\n7,1.5\n8,2.5\n");
    assert_eq!(x_and_y(Dataset::open(&marked).unwrap()), (vec![1.5, 2.5], vec![7, 8]));
    let marked = folder.write("bare.csv", "\u{feff}1.5,7\n2.5,8\n");
    assert_eq!(x_and_y(Dataset::open(&marked).unwrap()), (vec![1.5, 2.5], vec![7, 8]));
    let names = folder.write("names.csv", "1,b\n2,a\n");
    assert_eq!(Dataset::open(&names).unwrap().class_names(), Some(vec!["a".into(), "b".into()]));
}

#[test]
fn what_is_wrong_in_a_table_is_said_with_its_line_and_column() {
    let folder = Folder::new("lines");
    let said = |text: &str| failure(Dataset::open(folder.write("t.csv", text)));
    // The heading, an empty line and a field of two lines count as an editor counts them.
    let message = said("a,b,y\n\n1,\"2\n\",0\n3,nan,1\n");
    assert!(message.ends_with("t.csv: line 5, column 2 ('b'): 'nan' is no number (sample 1)"), "{message}");
    assert!(said("1,2,0\n3,,1\n").contains("line 2, column 2: the number is missing"));
    // What no row can be is said before any is read; what a single row lacks is said when it is read.
    let message = said("a,kind,y\n1,lo,0\n3,hi,1\n");
    assert!(
        message.contains("column 2 ('kind') holds 'lo', which is no number: name the columns"),
        "{message}"
    );
    assert!(said("a,b,y\n?,2,0\n3,4,1\n").contains("line 2, column 1 ('a'): '?' is no number"));
    for text in ["0,5;1;0\n0,25;2;1\n", "1;2;0,5\n3;4;0,25\n"] {
        assert!(
            said(text).contains("which has a decimal comma: write numbers with a point"),
            "{}",
            said(text)
        );
    }
    assert!(said("1,2,0\n3,4,\n").contains("line 2, column 3: the label is missing"));
    assert!(said("1,2,0\n3,1\n").contains("line 2: it has 2 columns where the first row has 3"));
    assert!(
        said("1,2,0\n3,4,99999999999999999999\n")
            .contains("line 2, column 3: '99999999999999999999' is no label")
    );
    assert!(said("1,2,0\n3,\"4,1\n").contains("t.csv: line 2: the file ends inside quotes"));
    // Lines are known far into a file.
    let message = said(&("1,2,0\n".repeat(3000) + "1,x,0\n"));
    assert!(message.contains("line 3001, column 2: 'x' is no number (sample 3000)"), "{message}");
}

#[test]
fn a_number_that_is_none_is_named_or_skipped_and_counted() {
    let folder = Folder::new("nan");
    let numbers: Vec<u8> =
        [1.0f32, 2.0, 3.0, f32::NAN, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let arrays = [
        ("x", crate::common::npy(Element::F32, &[3, 2], &numbers)),
        ("y", crate::common::npy(Element::U8, &[3], &[0, 1, 2])),
    ];
    let files = [folder.write("a.npz", npz(&arrays, false)), folder.write("b.npz", npz(&arrays, true))];
    let memory = || {
        let x = Column::memory("x", vec![1.0f32, 2.0, 3.0, f32::NAN, 5.0, 6.0], [2]).unwrap();
        Dataset::columns([x, Column::memory("y", vec![0i64, 1, 2], []).unwrap()]).unwrap()
    };
    for (data, place) in [
        (Dataset::open(&files[0]).unwrap(), "a.npz, record 1: "),
        (Dataset::open(&files[1]).unwrap(), "of sample 1: "),
        (Dataset::open(&files[1]).unwrap().load().unwrap(), "source of sample 1: "),
        (memory(), "source of sample 1: "),
    ] {
        let message = failure(Ok(data.clone()));
        assert!(
            message.contains(place) && message.contains("'x', element 1 of its row, is NaN"),
            "{message}"
        );
        let mut batches = data.on_error(OnError::Skip).batch(9).batches().unwrap();
        assert_eq!(batches.next().unwrap().unwrap().field(1).unwrap().get::<i64>().unwrap(), [0, 2]);
        assert_eq!(batches.skipped(), 1);
    }
    let empty = folder.write("empty.npy", crate::common::npy(Element::F32, &[3, 0], &[]));
    assert!(failure(Dataset::open(&empty)).contains("it holds nothing"));
}

#[test]
fn labels_that_are_no_classes_are_named_with_their_samples() {
    let folder = Folder::new("labels");
    let open = |text: &str| Dataset::open(folder.write("t.csv", text)).unwrap();
    assert_eq!(open("1,0\n2,4\n3,2\n").count_classes(1).unwrap(), Some(5));
    assert_eq!(open("1,0.5\n2,4\n").count_classes(1).unwrap(), None);
    let message = open("1,0\n2,1000000000000\n").count_classes(1).unwrap_err().to_string();
    assert!(
        message.ends_with("the label of sample 1 is 1000000000000; classes count from 0 to 1048575"),
        "{message}"
    );
    let message = open("1,0\n2,1\n3,-1\n").count_classes(1).unwrap_err().to_string();
    assert!(message.contains("sample 2 is -1; classes count from 0"), "{message}");
    assert!(x_and_y(open("1,0\n2,2\n").with_classes(1, 3)).1 == [0, 2]);
    let message = failure(Ok(open("1,0\n2,3\n").with_classes(1, 3)));
    assert!(message.contains("t.csv: the label of sample 1 is 3; classes count from 0 to 2"), "{message}");
    let shapes = Shapes { count: 5, height: 16, width: 16, channels: 1, most: 3, seed: 2 };
    assert_eq!(Dataset::shapes(shapes).count_classes(1).unwrap(), Some(4));
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_files_are_tables() {
    let folder = Folder::new("parquet");
    let path = folder.0.join("t.parquet");
    let floats = [(0..50).map(|i| i as f32).collect::<Vec<_>>(), vec![0.5; 50]];
    plimsoll_formats::parquet::write(&path, &["a", "b"], &floats, "label", &(0..50).collect::<Vec<_>>())
        .unwrap();
    let (x, y) = x_and_y(Dataset::open(&path).unwrap());
    assert_eq!((&x[..4], y), (&[0.0, 0.5, 1.0, 0.5][..], (0..50).collect()));
    assert!(failure(Dataset::parquet(&path, Some("c"))).contains("no column 'c'; there are a, b, label"));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(failure(Dataset::open(&path)).contains("t.parquet: "));
}

#[test]
fn examples_written_by_tensorflow_are_read() {
    let dataset = Dataset::open_with(
        fixture("examples.tfrecord"),
        &Open { images: Some(Images::new(4, 8)), ..Open::default() },
    )
    .unwrap();
    let names: Vec<_> = dataset.spec().unwrap().into_iter().map(|field| (field.name, field.shape)).collect();
    let expected = [("image", vec![4, 8, 3]), ("weights", vec![2]), ("label", vec![])];
    assert_eq!(names, expected.map(|(name, shape)| (name.to_owned(), shape)));
    let batch = dataset.batch(5).batches().unwrap().next().unwrap().unwrap();
    assert_eq!(batch.field(2).unwrap().get::<i64>().unwrap(), [0, 1, 2, 3, 4]);
    assert_eq!(batch.field(1).unwrap().get::<f32>().unwrap()[..4], [0.5, 0.0, 1.5, -1.0]);
    // The blue of the gradient is 128 everywhere.
    let blue = batch.field(0).unwrap().get::<f32>().unwrap()[2];
    assert!((blue - 128.0 / 255.0).abs() < 0.02, "{blue}");
}

#[test]
fn folders_of_images_are_classes() {
    let folder = Folder::new("images");
    let (png, jpeg) =
        (std::fs::read(fixture("gradient.png")).unwrap(), std::fs::read(fixture("gradient.jpg")).unwrap());
    folder.write("train/cats/1.png", &png);
    folder.write("train/cats/notes.txt", "no image");
    folder.write("train/dogs/1.jpeg", &jpeg);
    folder.write("train/dogs/2.JPG", &jpeg);
    let dataset = Dataset::open(&folder.0).unwrap();
    assert_eq!(dataset.spec().unwrap()[0].shape, [8, 16, 3]);
    let (x, y) = x_and_y(dataset);
    assert_eq!((y, x.len(), x[3]), (vec![0, 1, 1], 3 * 8 * 16 * 3, 16.0 / 255.0));
    let images = Images { channels: 1, ..Images::new(2, 2) };
    let gray = Dataset::images(folder.0.join("train"), Some(images)).unwrap().stored();
    assert_eq!(gray.spec().unwrap()[0], FieldSpec::new("x", DType::U8, [2, 2, 1]));
}

#[test]
fn a_text_becomes_windows_and_what_follows() {
    let folder = Folder::new("text");
    let path = folder.write("ä.txt", "aäbä".repeat(700));
    let batch = |dataset: Dataset| dataset.batch(1000).batches().unwrap().next().unwrap().unwrap();
    let characters = batch(Dataset::text(&path, Tokens::Characters, 3).unwrap());
    assert_eq!(characters.samples(), 933);
    let (x, y) = (characters.field(0).unwrap(), characters.field(1).unwrap());
    let (x, y) = (x.get::<i64>().unwrap(), y.get::<i64>().unwrap());
    assert_eq!((&x[..6], &y[..6]), (&[0, 2, 1, 2, 0, 2][..], &[2, 1, 2, 0, 2, 1][..]));
    let expected: Vec<i64> = (0..2799).map(|i| [0, 2, 1, 2][i % 4]).collect();
    assert_eq!(x, expected);
    let bytes = batch(Dataset::text(&path, Tokens::Bytes, 4).unwrap());
    assert_eq!(bytes.field(0).unwrap().get::<i64>().unwrap()[..4], [0x61, 0xc3, 0xa4, 0x62]);
    let latin = folder.write("latin.txt", b"caf\xe9 noir");
    assert!(failure(Dataset::text(&latin, Tokens::Characters, 3)).contains("byte 3 is not UTF-8"));
    assert!(failure(Dataset::text(&latin, Tokens::Bytes, 9)).contains("9 tokens do not make a window of 9"));
}

#[test]
fn shapes_are_the_same_for_a_seed_and_labelled_by_pixel() {
    let shapes = Shapes { count: 50, height: 24, width: 32, channels: 3, most: 4, seed: 9 };
    let (x, y) = x_and_y(Dataset::shapes(shapes));
    assert_eq!((x.clone(), y.clone()), x_and_y(Dataset::shapes(shapes).workers(3)));
    assert_ne!(x_and_y(Dataset::shapes(Shapes { seed: 10, ..shapes })).1, y);
    for class in 0..Shapes::CLASSES as i64 {
        let share = y.iter().filter(|&&label| label == class).count() as f32 / y.len() as f32;
        assert!(share > 0.02, "class {class} on {share} of the pixels");
    }
    // Shapes are brighter than the noise they lie on.
    assert!(x.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
    assert!(x.chunks(3).zip(&y).all(|(pixel, &class)| pixel.iter().all(|&v| (v >= 0.5) == (class > 0))));
}

#[test]
fn a_cache_gives_the_samples_again_without_their_steps() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let folder = Folder::new("cache");
    let path = folder.0.join("words.cache");
    let source = || {
        let spec = [FieldSpec::varying("t", DType::U8, [9]), FieldSpec::new("n", DType::I64, [])];
        let words = Dataset::from_iter(
            spec,
            || 0..30usize,
            |n, out| {
                out.set(0, &vec![n as u8; n % 9])?;
                out.set(1, &[n as i64])
            },
        );
        words.filter(|_, at| {
            RUNS.fetch_add(1, Ordering::Relaxed);
            Ok(at.index % 2 == 0)
        })
    };
    let read = |dataset: Dataset| -> Vec<(Vec<u8>, Vec<i64>)> {
        let batches = dataset.padded_batch(4).batches().unwrap();
        let pair = |batch: plimsoll_data::Batch| {
            (batch.field(0).unwrap().bytes.to_vec(), batch.field(1).unwrap().get::<i64>().unwrap().to_vec())
        };
        batches.map(|batch| pair(batch.unwrap())).collect()
    };
    let expected = read(source());
    let cached = source().cache(&path).unwrap();
    assert_eq!(read(cached.clone()), expected);
    let runs = RUNS.load(Ordering::Relaxed);
    assert_eq!(read(source().cache(&path).unwrap()), expected);
    assert_eq!(RUNS.load(Ordering::Relaxed), runs);
    // A cache can be shuffled as a whole, which the stream under it cannot.
    assert_eq!(cached.samples().unwrap(), Some(15));
    let other = folder.write("other", "somebody's data, and long enough for a heading");
    assert!(failure(source().cache(other)).contains("no cache"));
}

#[test]
fn bytes_are_scaled_as_is_said_whatever_holds_them() {
    let folder = Folder::new("scale");
    let (images, labels) = (idx(8, &[1, 1, 2], &[0, 51]), idx(8, &[1], &[3]));
    folder.write("a-images-idx3-ubyte", &images);
    folder.write("a-labels-idx1-ubyte", &labels);
    folder.write("b-images-idx3-ubyte.gz", gzip(&images));
    folder.write("b-labels-idx1-ubyte.gz", gzip(&labels));
    let arrays = [
        ("x", crate::common::npy(Element::U8, &[1, 2], &[0, 51])),
        ("y", crate::common::npy(Element::U8, &[1], &[3])),
    ];
    let stored = folder.write("stored.npz", npz(&arrays, false));
    let deflated = folder.write("deflated.npz", npz(&arrays, true));
    let table = folder.write("table.csv", "0,51,3\n");
    let wanted = |name: &str, kind| vec![Wanted { name: name.into(), kind }];
    let fields = Fields { inputs: wanted("x", FieldKind::Numbers), labels: wanted("y", FieldKind::Label) };
    for path in [folder.0.join("a"), folder.0.join("b"), stored, deflated] {
        let read = |fields: Option<&Fields>, scale| {
            let open = Open { fields: fields.cloned(), scale, ..Open::default() };
            let (x, y) = x_and_y(Dataset::open_with(&path, &open).unwrap());
            assert_eq!(y, [3]);
            x[1]
        };
        assert_eq!((read(None, None), read(Some(&fields), None)), (0.2, 51.0), "{}", path.display());
        for fields in [None, Some(&fields)] {
            assert_eq!(read(fields, Some(Scale::None)), 51.0);
            assert_eq!(read(fields, Some(Scale::Unit)), 0.2);
            assert_eq!(read(fields, Some(Scale::Factor(2.0))), 102.0);
        }
    }
    let open = |scale| Open { scale: Some(scale), ..Open::default() };
    let (x, y) = x_and_y(Dataset::open_with(&table, &open(Scale::Factor(2.0))).unwrap());
    assert_eq!((x, y), (vec![0.0, 102.0], vec![3]));
    let text = folder.write("t.txt", "a text of some letters");
    let open_text = Open { window: 4, ..open(Scale::Unit) };
    assert!(failure(Dataset::open_with(&text, &open_text)).contains("cannot be divided by 255"));
    assert!(
        failure(Dataset::open_with(&table, &open(Scale::Factor(0.0)))).contains("cannot be multiplied by 0")
    );
}

#[test]
fn numbers_that_changed_are_found_by_the_checksums_of_their_files() {
    let folder = Folder::new("checksums");
    let numbers: Vec<u8> = (0..4000u32).map(|i| ((i * i) >> 5) as u8).collect();
    let arrays = [
        ("x", crate::common::npy(Element::U8, &[100, 40], &numbers)),
        ("y", crate::common::npy(Element::U8, &[100], &[1; 100])),
    ];
    for compressed in [false, true] {
        let mut bytes = npz(&arrays, compressed);
        assert!(x_and_y(Dataset::open(folder.write("sound.npz", &bytes)).unwrap()).1.len() == 100);
        // The checksum of the first array, in the directory at the end of the archive and before its bytes.
        let crc = bytes[14..18].to_vec();
        for at in 0..bytes.len() - 4 {
            if bytes[at..at + 4] == crc[..] {
                bytes[at] ^= 1;
            }
        }
        let message = failure(Dataset::open(folder.write("wrong.npz", &bytes)));
        assert!(message.contains("wrong.npz") && message.contains("array 'x'"), "{message}");
        assert!(message.contains("its checksum differs"), "{message}");
    }
    folder.write("a-labels-idx1-ubyte", idx(8, &[100], &[1; 100]));
    let mut packed = gzip(&idx(8, &[100, 40], &numbers));
    let crc = packed.len() - 8;
    packed[crc] ^= 1;
    folder.write("a-images-idx3-ubyte.gz", &packed);
    let message = failure(Dataset::idx(folder.0.join("a")));
    assert!(
        message.contains("a-images-idx3-ubyte.gz, record 99: ") && message.contains("checksum"),
        "{message}"
    );
    folder.write("a-images-idx3-ubyte.gz", &packed[..packed.len() - 5]);
    let message = failure(Dataset::idx(folder.0.join("a")));
    assert!(message.contains("a-images-idx3-ubyte.gz, record 99: the file ends too early"), "{message}");
}

#[test]
fn a_cache_of_files_that_have_changed_or_are_read_otherwise_is_made_anew() {
    let folder = Folder::new("stale");
    let cache = folder.0.join("cache");
    let write = |pixels: [u8; 4]| {
        let path = folder.write("x.npy", crate::common::npy(Element::U8, &[2, 2], &pixels));
        // A clock of whole seconds would not see two writes in one.
        let later = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(pixels[0]));
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        path
    };
    let read = |scale| {
        let open = Open { scale: Some(scale), ..Open::default() };
        let data = Dataset::open_with(folder.0.join("x.npy"), &open).unwrap().cache(&cache).unwrap();
        let batch = data.batch(2).batches().unwrap().next().unwrap().unwrap();
        batch.field(0).unwrap().get::<f32>().unwrap().to_vec()
    };
    write([1, 2, 3, 4]);
    assert_eq!(read(Scale::None), [1.0, 2.0, 3.0, 4.0]);
    write([5, 6, 7, 8]);
    assert_eq!(read(Scale::None), [5.0, 6.0, 7.0, 8.0]);
    assert_eq!(read(Scale::Factor(2.0)), [10.0, 12.0, 14.0, 16.0]);
}

#[test]
fn damaged_arrays_are_named() {
    let folder = Folder::new("damaged-arrays");
    let (images, labels) = (idx(8, &[3, 2, 2], &[1; 12]), idx(8, &[3], &[7, 0, 9]));
    folder.write("a-labels-idx1-ubyte", &labels);
    let open = |bytes: &[u8]| {
        folder.write("a-images-idx3-ubyte", bytes);
        failure(Dataset::idx(folder.0.join("a")))
    };
    assert!(
        open(&images[..20]).contains("a-images-idx3-ubyte: the file ends too early"),
        "{}",
        open(&images[..20])
    );
    assert!(open(b"PNG and so on").contains("a-images-idx3-ubyte: this is no IDX file"));
    assert!(open(&idx(8, &[u32::MAX; 3], &[])).contains("not credible"));
    assert!(open(&idx(8, &[2, 2, 2], &[1; 8])).contains("'x' has 2 rows and 'y' has 3"));
    // A gzipped file that ends early is sound up to there.
    let packed =
        gzip(&idx(8, &[3, 100, 100], &(0..30_000u32).map(|i| ((i * i) >> 7) as u8).collect::<Vec<_>>()));
    let cut = open(&packed[..packed.len() / 2]);
    assert!(cut.contains("a-images-idx3-ubyte, record 1: ") || cut.contains("record 0: "), "{cut}");
    let npz = std::fs::read(fixture("stored.npz")).unwrap();
    let path = folder.write("cut.npz", &npz[..npz.len() / 2]);
    assert!(failure(Dataset::open(&path)).contains("cut.npz: "));
    assert!(failure(Dataset::open(folder.write("x.xyz", ""))).contains("its name ends in none of"));
    assert!(failure(Dataset::open(folder.0.join("nothing"))).contains("no such file"));
}

#[test]
fn damaged_records_are_named_or_skipped_and_counted() {
    let folder = Folder::new("damaged-records");
    // A table with a word for a number and a row that is too short.
    let table = folder.write("t.csv", "1,2,0\n3,four,1\n5,6\n7,8,1\n");
    // Records of which one has a flipped bit, and the file an end that is cut off.
    let mut bytes = Vec::new();
    for n in 0..4 {
        tfrecord::write(&mut bytes, &example::ExampleWriter::default().ints("label", &[n]).finish()).unwrap();
    }
    let one = bytes.len() / 4;
    bytes[one + 14] ^= 4;
    let records = folder.write("r.tfrecord", &bytes[..3 * one + 15]);
    // Images of which one is a text, one is cut, and one is larger than allowed.
    let png = std::fs::read(fixture("gradient.png")).unwrap();
    folder.write("images/a/1.png", &png);
    folder.write("images/a/2.png", "not an image");
    folder.write("images/b/3.png", &png[..60]);
    let mut absurd = png.clone();
    absurd[16..24].copy_from_slice(&[0x7f; 8]);
    folder.write("images/b/4.png", &absurd);
    folder.write("images/b/5.png", &png);

    for (path, named, skipped, left) in [
        (table, "t.csv: line 2, column 2: 'four' is no number (sample 1)", 2, 2),
        (records, "r.tfrecord, record 1: the record is damaged", 2, 2),
        (folder.0.join("images"), "2.png, record 1: this is no image", 3, 2),
    ] {
        let message = failure(Dataset::open(&path));
        assert!(message.contains(named), "{message}");
        let dataset = Dataset::open(&path).unwrap().on_error(OnError::Skip);
        let mut batches = dataset.batch(1).batches().unwrap();
        let samples: usize = batches.by_ref().map(|batch| batch.unwrap().samples()).sum();
        assert_eq!((batches.skipped(), samples), (skipped, left), "{:?}", batches.skip_reasons());
        assert_eq!(batches.skip_reasons().len(), skipped as usize);
    }
}

#[test]
fn a_shuffled_stream_keeps_twelve_bytes_beside_a_record() {
    let folder = Folder::new("window");
    folder.write("a-images-idx3-ubyte.gz", gzip(&idx(8, &[100, 28, 28], &[1; 78400])));
    folder.write("a-labels-idx1-ubyte.gz", gzip(&idx(8, &[100], &[1; 100])));
    let dataset = Dataset::idx(folder.0.join("a")).unwrap().workers(1).prefetch(0);
    let with = |window| dataset.clone().shuffle(window, 1).memory(Bytes::gib(1)).declared_bytes().unwrap().0;
    assert_eq!(with(1_001_000) - with(1000), 1_000_000 * (784 + 1 + 12));
    // A source that is read by number needs nothing to be shuffled.
    let memory = Column::memory("x", vec![0f32; 1000], []).unwrap();
    let memory = Dataset::columns([memory]).unwrap();
    assert_eq!(
        memory.clone().shuffle(1 << 40, 1).declared_bytes().unwrap(),
        memory.declared_bytes().unwrap()
    );
}
