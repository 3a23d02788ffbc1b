//! JPEGs that are decoded at less than their size, against all of their pixels.

use std::path::Path;

use plimsoll_formats::image::{Probe, Resizer, Scale, Size, decode, decode_for};

const HEIGHT: usize = 245;
const WIDTH: usize = 331;
const PHOTOS: [&str; 5] = ["444", "422", "420", "restarts", "gray"];

fn photo(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    std::fs::read(folder.join(format!("photo-{name}.jpg"))).unwrap()
}

fn file() -> &'static Path {
    Path::new("photo.jpg")
}

/// The picture resized from all pixels, and from those that are decoded for it, with their size.
fn both(bytes: &[u8], channels: usize, to: [usize; 2]) -> (Vec<u8>, Vec<u8>, Size) {
    let mut pixels = Vec::new();
    let (mut whole, mut scaled) = (vec![0; to[0] * to[1] * channels], vec![0; to[0] * to[1] * channels]);
    let size = decode(bytes, file(), channels, 1 << 20, &mut pixels).unwrap();
    Resizer::default().resize(&pixels, size, to, file(), &mut whole).unwrap();
    let mut pixels = Vec::new();
    let (size, part) = decode_for(bytes, file(), channels, 1 << 20, to, &mut pixels).unwrap();
    assert_eq!(pixels.len(), size.height * size.width * channels);
    Resizer::default().resize_part(&pixels, size, part, to, file(), &mut scaled).unwrap();
    (whole, scaled, size)
}

#[test]
fn a_scaled_photo_is_resized_to_nearly_the_same_pixels() {
    for name in PHOTOS {
        let bytes = photo(name);
        for (to, eighths) in [([14, 20], 1), ([30, 41], 2), ([60, 80], 4), ([15, 20], 1), ([9, 40], 2)] {
            assert_eq!(Scale::least([HEIGHT, WIDTH], to).eighths(), eighths, "{to:?}");
            for channels in [1, 3] {
                let (whole, scaled, size) = both(&bytes, channels, to);
                let expected = [HEIGHT, WIDTH].map(|side: usize| (side * eighths).div_ceil(8));
                assert_eq!([size.height, size.width], expected);
                let off: Vec<u32> =
                    whole.iter().zip(&scaled).map(|(a, b)| u32::from(a.abs_diff(*b))).collect();
                let mean = f64::from(off.iter().sum::<u32>()) / off.len() as f64;
                let most = off.iter().max().unwrap();
                assert!(mean < 1.0, "{name} at {to:?}: {mean} levels off");
                assert!(*most <= 10, "{name} at {to:?}: {most} levels off somewhere");
            }
        }
    }
}

#[test]
fn a_picture_is_scaled_only_where_it_stays_twice_as_large_in_both_directions() {
    for (to, eighths) in [
        ([15, 20], 1),
        ([15, 21], 2),
        ([16, 16], 2),
        ([30, 41], 2),
        ([31, 10], 4),
        ([61, 82], 4),
        ([62, 10], 8),
    ] {
        let from = [HEIGHT, WIDTH];
        let scale = Scale::least(from, to);
        assert_eq!(scale.eighths(), eighths, "{to:?}");
        let part = scale.part(from);
        assert!(scale == Scale::WHOLE || (0..2).all(|side| part[side] >= 2.0 * to[side] as f64), "{to:?}");
    }
}

#[test]
fn what_cannot_be_scaled_is_decoded_whole() {
    let (whole, same, size) = both(&photo("progressive"), 3, [14, 20]);
    assert_eq!((whole, size), (same, Size { height: HEIGHT, width: WIDTH, channels: 3 }));
    // A segment of Adobe's that says that colors are red, green and blue.
    let plain = photo("444");
    let adobe = |transform| {
        let segment = [&[0xff, 0xee, 0, 14][..], b"Adobe\0\x64\0\0\0\0", &[transform]].concat();
        [&plain[..2], &segment, &plain[2..]].concat()
    };
    assert_eq!(both(&adobe(0), 3, [14, 20]).2.height, HEIGHT);
    assert_eq!(both(&adobe(1), 3, [14, 20]).2.height, 31);
    for transform in [0, 1] {
        let probe = Probe::read(&mut std::io::Cursor::new(adobe(transform)), file()).unwrap();
        assert_eq!(probe.decoded_for([14, 20]).0 == Scale::WHOLE, transform == 0);
    }
}

#[test]
fn the_header_says_the_scale_and_the_bytes_before() {
    for name in PHOTOS {
        let probe = Probe::read(&mut std::io::Cursor::new(photo(name)), file()).unwrap();
        let (scale, bytes) = probe.decoded_for([14, 20]);
        assert_eq!(scale.eighths(), 1, "{name}");
        assert!(bytes < probe.decode_bytes / 2, "{name}: {bytes} of {}", probe.decode_bytes);
        assert_eq!(probe.decoded_for([245, 331]), (Scale::WHOLE, probe.decode_bytes));
    }
}

#[test]
fn no_truncation_and_no_mutation_of_a_scaled_photo_panics() {
    for name in ["420", "restarts", "gray"] {
        let bytes = photo(name);
        let read = |bytes: &[u8]| decode_for(bytes, file(), 3, 1 << 20, [14, 20], &mut Vec::new());
        assert!(read(&bytes).is_ok());
        for cut in (0..bytes.len()).step_by(211) {
            let error = read(&bytes[..cut]).unwrap_err().to_string();
            assert!(error.starts_with("photo.jpg: "), "{error}");
        }
        for at in (0..700).chain((700..bytes.len()).step_by(97)) {
            for byte in [0, 0xff, 0x7f] {
                let mut mutated = bytes.clone();
                mutated[at] = byte;
                let _ = read(&mutated);
            }
        }
        let limited = decode_for(&bytes, file(), 3, 1000, [14, 20], &mut Vec::new()).unwrap_err();
        assert!(
            limited.to_string().contains("an image of 331 × 245 pixels is over the limit of 1000 pixels")
        );
    }
}
