//! Images of every format, size and color, in folders with classes, without, and with masks.

use crate::common::{Folder, bmp, exif, fixture, jpeg, png};
use plimsoll_data::{Dataset, Error, Images, Open, Scale, Split};
use plimsoll_device::Bytes;
use plimsoll_graph::DType;

fn batch(data: Dataset) -> plimsoll_data::Batch {
    data.batch(100).batches().unwrap().next().unwrap().unwrap()
}

fn pixels(data: Dataset) -> Vec<f32> {
    batch(data).field(0).unwrap().get::<f32>().unwrap().to_vec()
}

fn labels(data: Dataset) -> Vec<i64> {
    batch(data).field(1).unwrap().get::<i64>().unwrap().to_vec()
}

fn error(data: Result<Dataset, Error>) -> String {
    match data.and_then(|data| data.batch(9).batches()?.next().unwrap().map(drop)) {
        Err(error) => error.to_string(),
        Ok(()) => panic!("no error"),
    }
}

fn open(folder: &Folder, open: Open) -> Result<Dataset, Error> {
    Dataset::open_with(&folder.0, &open)
}

#[test]
fn photos_without_classes_come_with_their_names_whatever_they_are() {
    let folder = Folder::new("flat");
    folder.write("a.bmp", bmp(5, 3, |_, _| [255, 0, 0]));
    folder.write("b.JPG", jpeg(40, 30, 1));
    folder.write("c.png", png(2, 2, false, &[0, 255, 0, 255]));
    folder.write("d.jpeg", std::fs::read(fixture("gradient.jpg")).unwrap());
    folder.write("notes.txt", "no image");
    folder.write(".hidden.png", "no image");
    let form = |channels| Open { images: Some(Images { channels, ..Images::new(4, 4) }), ..Open::default() };
    let data = open(&folder, form(3)).unwrap();
    assert_eq!(data.spec().unwrap().len(), 1);
    assert_eq!((data.samples().unwrap(), data.class_names(), data.part()), (Some(4), None, None));
    let named: Vec<_> = (0..5).map(|i| data.sample_name(i)).collect();
    let names = ["a.bmp", "b.JPG", "c.png", "d.jpeg"].map(|name| Some(name.to_owned()));
    assert_eq!(named, [&names[..], &[None]].concat());
    let x = pixels(data.clone());
    // Red; and gray where color is wanted.
    assert_eq!((&x[..3], &x[48..51]), (&[1.0, 0.0, 0.0][..], &[128.0 / 255.0; 3][..]));
    let notes = data.notes().join("\n");
    assert!(
        notes.contains("divided by 255") && notes.contains("4 of 4 images are resized to 4 × 4"),
        "{notes}"
    );
    assert!(notes.contains("1 files that are no images by their names are left out: notes.txt"), "{notes}");
    // Color where gray is wanted.
    let gray = pixels(open(&folder, form(1)).unwrap());
    assert_eq!((gray.len(), gray[0]), (4 * 16, 76.0 / 255.0));
    // Names go with samples whatever becomes of their order.
    let shuffled = data.shuffle(9, 3).filter(|_, at| Ok(at.index != 2)).batch(2);
    let mut all = Vec::new();
    for batch in shuffled.batches().unwrap() {
        all.extend(batch.unwrap().numbers().iter().map(|&n| shuffled.sample_name(n).unwrap()));
    }
    assert_ne!(all, ["a.bmp", "b.JPG", "d.jpeg"]);
    all.sort();
    assert_eq!(all, ["a.bmp", "b.JPG", "d.jpeg"]);

    let one = Dataset::open(folder.0.join("a.bmp")).unwrap();
    assert_eq!((one.spec().unwrap()[0].shape.clone(), one.samples().unwrap()), (vec![3, 5, 3], Some(1)));
    assert_eq!(one.sample_name(0).as_deref(), Some("a.bmp"));
    assert!(error(open(&folder, Open { labelled: Some(true), ..form(3) })).contains("one folder a class"));
    let images = Some(Images { channels: 4, ..Images::new(4, 4) });
    assert!(error(open(&folder, Open { images, ..Open::default() })).contains("1 channel or 3"));
}

/// What reading a photo of fifty megapixels at this size is declared to take; a byte less is refused.
fn declared(folder: &Folder, images: Images) -> Bytes {
    folder.write("large.jpg", jpeg(8192, 6144, 1));
    let form = Open { images: Some(images), ..Open::default() };
    let data = open(folder, form).unwrap().batch(1).workers(1).prefetch(0);
    let declared = data.declared_bytes().unwrap();
    assert!(data.batches().unwrap().next().unwrap().is_ok());
    let Err(Error::Budget { least, .. }) = data.clone().memory(Bytes(1 << 10)).batches() else {
        panic!("accepted")
    };
    assert!(data.clone().memory(Bytes(least.0 - 1)).batches().is_err());
    assert!(data.memory(least).batches().unwrap().next().unwrap().is_ok());
    declared
}

#[test]
fn a_photo_of_fifty_megapixels_is_read_inside_what_is_declared() {
    let folder = Folder::new("large");
    // Of more than a quarter of its size, whose pixels are all decoded: three bytes each at the least, and not many more.
    let whole = declared(&folder, Images::new(1600, 1600));
    assert!((144..256).contains(&(whole.0 >> 20)), "{whole:#}");
    // An eighth of its size in each direction is a 64th of its pixels.
    let scaled = declared(&folder, Images::new(32, 32));
    assert!((2..6).contains(&(scaled.0 >> 20)), "{scaled:#}");
    let half = declared(&folder, Images::new(800, 800));
    assert!((36..80).contains(&(half.0 >> 20)), "{half:#}");
    let images = Some(Images::new(32, 32));
    let data = open(&folder, Open { images, ..Open::default() }).unwrap();
    assert!(data.notes().iter().any(|note| note.starts_with("1 large JPEGs are decoded at 1/2, 1/4 or 1/8")));
    assert!(pixels(data).windows(2).all(|pair| pair[0] == pair[1]));
    folder.write("large.jpg", jpeg(16000, 8000, 1));
    let message = error(open(&folder, Open { images, ..Open::default() }));
    assert!(
        message.contains("large.jpg, record 0: an image of 16000 × 8000 pixels is over the limit"),
        "{message}"
    );
}

#[test]
fn photos_are_turned_as_their_cameras_say() {
    let folder = Folder::new("turned");
    let upright = std::fs::read(fixture("gradient.jpg")).unwrap();
    folder.write("1.jpg", &upright);
    let sideways = |orientation| [&upright[..2], &exif(orientation), &upright[2..]].concat();
    folder.write("3.jpg", sideways(3));
    let data = open(&folder, Open::default()).unwrap();
    assert!(
        data.notes().iter().any(|note| note.contains("1 photos are turned upright")),
        "{:?}",
        data.notes()
    );
    let x = pixels(data);
    let (first, second) = x.split_at(8 * 16 * 3);
    assert_eq!(first.chunks(3).rev().flatten().copied().collect::<Vec<_>>(), second);
    // A quarter turn: what is stored as 8 × 16 stands as 16 × 8.
    folder.write("1.jpg", sideways(6));
    std::fs::remove_file(folder.0.join("3.jpg")).unwrap();
    let data = open(&folder, Open::default()).unwrap();
    assert_eq!(data.spec().unwrap()[0].shape, [16, 8, 3]);
    let quarter = pixels(data);
    // The first column from the bottom up is the first row.
    for x in 0..8 {
        assert_eq!(quarter[3 * x..3 * x + 3], first[(7 - x) * 48..(7 - x) * 48 + 3]);
    }
}

#[test]
fn classes_have_the_same_numbers_in_both_parts_and_in_the_order_of_a_run() {
    let folder = Folder::new("parts");
    let dot = png(1, 1, false, &[9]);
    for name in
        ["train/cat/a.png", "train/dog/b.png", "train/mouse/c.png", "test/mouse/d.png", "test/cat/e.png"]
    {
        folder.write(name, &dot);
    }
    folder.write("train/.cache/x.png", &dot);
    folder.write("train/stray.png", &dot);
    let train = open(&folder, Open::default()).unwrap();
    let names = ["cat", "dog", "mouse"].map(str::to_owned).to_vec();
    assert_eq!((train.class_names(), train.part()), (Some(names.clone()), Some(Split::Train)));
    assert_eq!(train.sample_name(1).as_deref(), Some("dog/b.png"));
    assert!(train.notes().iter().any(|note| note.contains("beside the folders of classes")));
    // The test part lacks the dogs, and its mice are still class 2.
    let test = open(&folder, Open { split: Split::Test, ..Open::default() }).unwrap();
    assert_eq!((test.class_names(), test.part()), (Some(names), Some(Split::Test)));
    assert_eq!(labels(test), [0, 2]);
    let classes = |names: &[&str]| Open {
        classes: Some(names.iter().map(|n| n.to_string()).collect()),
        ..Open::default()
    };
    assert_eq!(labels(open(&folder, classes(&["mouse", "dog", "bird", "cat"])).unwrap()), [3, 1, 0]);
    let message = error(open(&folder, classes(&["dog", "cat"])));
    assert!(message.contains("its folder 'mouse' is none of the classes dog, cat"), "{message}");
    // All images, whatever folder they are in.
    let all = open(&folder, Open { labelled: Some(false), ..Open::default() }).unwrap();
    assert_eq!((all.spec().unwrap().len(), all.samples().unwrap()), (1, Some(4)));
    assert_eq!(all.sample_name(0).as_deref(), Some("stray.png"));
}

#[test]
fn a_class_may_be_named_as_a_part_is() {
    let folder = Folder::new("vehicles");
    let dot = png(1, 1, false, &[9]);
    folder.write("train/a.png", &dot);
    folder.write("ship/b.png", &dot);
    let data = open(&folder, Open::default()).unwrap();
    assert_eq!((data.class_names(), data.part()), (Some(vec!["ship".into(), "train".into()]), None));
    // Parts without classes are parts.
    std::fs::rename(folder.0.join("ship"), folder.0.join("test")).unwrap();
    let data = open(&folder, Open { split: Split::Test, ..Open::default() }).unwrap();
    assert_eq!((data.class_names(), data.sample_name(0)), (None, Some("b.png".into())));
    std::fs::remove_dir_all(folder.0.join("test")).unwrap();
    assert!(
        error(open(&folder, Open { split: Split::Test, ..Open::default() })).contains("of the Test part")
    );
}

#[test]
fn pixels_are_scaled_as_is_said() {
    let folder = Folder::new("scaled");
    folder.write("a/1.png", png(1, 1, false, &[51]));
    let with = |scale| open(&folder, Open { scale, ..Open::default() }).unwrap();
    assert_eq!(pixels(with(None)), [0.2; 3]);
    assert_eq!(pixels(with(Some(Scale::Unit))), [0.2; 3]);
    assert_eq!(pixels(with(Some(Scale::None))), [51.0; 3]);
    assert_eq!(pixels(with(Some(Scale::Factor(2.0)))), [102.0; 3]);
    assert!(with(Some(Scale::None)).notes()[0].contains("pixels as f32, as stored"));
    assert_eq!(with(None).stored().spec().unwrap()[0].dtype, DType::U8);
}

#[test]
fn damaged_images_of_every_format_are_named() {
    let folder = Folder::new("damaged-images");
    for (name, bytes) in [
        ("1.bmp", bmp(9, 9, |_, _| [1, 2, 3])),
        ("1.jpg", std::fs::read(fixture("gradient.jpg")).unwrap()),
        ("1.png", png(9, 9, false, &[7; 81])),
        (
            "1.gif",
            b"GIF89a\x02\0\x01\0\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0\x02\0\x01\0\0\x02\x02\x0c\n\0;".to_vec(),
        ),
    ] {
        let path = folder.write(name, &bytes);
        let one =
            |path| Dataset::open_with(path, &Open { images: Some(Images::new(4, 4)), ..Open::default() });
        assert!(one(&path).unwrap().batch(1).batches().unwrap().next().unwrap().is_ok(), "{name}");
        folder.write(name, &bytes[..bytes.len() / 2]);
        let message = error(one(&path));
        assert!(message.contains(name), "{name}: {message}");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn images_with_masks_are_classes_of_pixels() {
    let folder = Folder::new("masks");
    folder.write("images/a.bmp", bmp(2, 2, |x, y| [(x + 2 * y) as u8 * 51, 0, 0]));
    folder.write("images/b.bmp", bmp(4, 4, |_, _| [255; 3]));
    folder.write("masks/a.png", png(2, 2, true, &[0, 1, 2, 7]));
    folder.write("masks/b.png", png(4, 4, false, &[3; 16]));
    let data = open(&folder, Open::default()).unwrap();
    let spec = data.spec().unwrap();
    assert_eq!(
        (&spec[0].shape[..], &spec[1].shape[..], spec[1].dtype),
        (&[2, 2, 3][..], &[2, 2][..], DType::I64)
    );
    assert_eq!(data.sample_name(1).as_deref(), Some("b.bmp"));
    assert!(data.notes().iter().any(|note| note.contains("the number in its mask")), "{:?}", data.notes());
    assert_eq!(labels(data.clone()), [0, 1, 2, 7, 3, 3, 3, 3]);
    assert_eq!(pixels(data)[..6], [0.0, 0.0, 0.0, 0.2, 0.0, 0.0]);
    // Masks grow without making up classes between others.
    let grown = open(&folder, Open { images: Some(Images::new(4, 4)), ..Open::default() }).unwrap();
    assert_eq!(labels(grown)[..8], [0, 0, 1, 1, 0, 0, 1, 1]);

    // Black and white.
    folder.write("masks/a.png", png(2, 2, false, &[0, 255, 0, 255]));
    folder.write("masks/b.png", png(4, 4, false, &[0; 16]));
    let data = open(&folder, Open::default()).unwrap();
    assert!(data.notes().iter().any(|note| note.contains("which are classes 0 and 1")), "{:?}", data.notes());
    assert_eq!(labels(data), [0, 1, 0, 1, 0, 0, 0, 0]);

    let with = |name: &str, bytes: Vec<u8>| {
        let path = folder.write(name, bytes);
        let message = error(open(&folder, Open::default()));
        std::fs::remove_file(path).unwrap();
        message
    };
    assert!(with("images/c.bmp", bmp(2, 2, |_, _| [0; 3])).contains("images/c.bmp has no mask in masks"));
    assert!(with("masks/c.png", png(2, 2, false, &[0; 4])).contains("masks/c has no image in images"));
    folder.write("images/c.bmp", bmp(2, 2, |_, _| [0; 3]));
    let message = with("masks/c.png", png(4, 1, false, &[0; 4]));
    assert!(
        message.contains("c.png, record 2: the mask of 1 × 4 pixels does not fit its image of 2 × 2"),
        "{message}"
    );
    assert!(with("masks/c.jpg", jpeg(2, 2, 1)).contains("PNG files only"));
}
