//! Turns JPEG, PNG, GIF, BMP and WebP files into pixels, and pixels of one size into pixels of another.
//!
//! The size of an image is read from its header before anything is allocated for it, and compared with the limit
//! that the caller gives. [`Probe`] says from the header alone what decoding will take.

mod bmp;
mod exif;
mod gif;
mod jpeg;
mod png;
mod probe;
mod resize;
mod scale;
mod webp;

use std::path::Path;

use crate::{FileError, Result};

pub use exif::{Orientation, orientation};
pub use png::decode_ids;
pub use probe::Probe;
pub use resize::{Resizer, resize_nearest, turn};
pub use scale::{Scale, decode_for};

/// Pixels, row after row, `channels` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Pixels from top to bottom.
    pub height: usize,
    /// Pixels from left to right.
    pub width: usize,
    /// 1 for gray, 3 for color.
    pub channels: usize,
}

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Photos; baseline and progressive.
    Jpeg,
    /// Anything without loss.
    Png,
    /// Of an animation, the first picture.
    Gif,
    /// Without compression.
    Bmp,
    /// With loss or without; of an animation, the first picture.
    Webp,
}

/// What the names of such files end in.
pub const ENDINGS: [&str; 6] = ["jpg", "jpeg", "png", "gif", "bmp", "webp"];

impl Format {
    /// The format of a file, by how it begins.
    pub fn of(bytes: &[u8]) -> Option<Format> {
        match bytes {
            [0xff, 0xd8, ..] => Some(Format::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Format::Webp),
            [b'B', b'M', ..] => Some(Format::Bmp),
            _ if bytes.starts_with(b"\x89PNG\r\n\x1a\n") => Some(Format::Png),
            _ if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") => Some(Format::Gif),
            _ => None,
        }
    }
}

/// Whether bytes begin as an image does, told apart from other data by more than two letters.
pub fn is_image(bytes: &[u8]) -> bool {
    match Format::of(bytes) {
        None => false,
        Some(Format::Jpeg) => bytes.get(2) == Some(&0xff),
        // The length of the file and two reserved fields follow.
        Some(Format::Bmp) => bytes.len() > 26 && bytes[6..10] == [0; 4],
        Some(_) => true,
    }
}

/// Whether a name ends as that of an image does.
pub fn is_image_name(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
    ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known))
}

fn no_image(file: &Path) -> FileError {
    FileError::damaged(file, "this is no image: it begins as no JPEG, PNG, GIF, BMP or WebP file does")
}

fn check(file: &Path, width: usize, height: usize, limit: usize) -> Result<()> {
    let pixels = width.checked_mul(height);
    if pixels == Some(0) {
        return Err(FileError::damaged(file, format!("an image of {width} × {height} pixels has none")));
    }
    if pixels.is_none_or(|pixels| pixels > limit) {
        let what = format!("an image of {width} × {height} pixels is over the limit of {limit} pixels");
        return Err(FileError::unsupported(file, what));
    }
    Ok(())
}

/// An image to be decoded: its bytes, its file's name for errors, the channels wanted and the most pixels it may have.
#[derive(Clone, Copy)]
struct Encoded<'a> {
    bytes: &'a [u8],
    file: &'a Path,
    channels: usize,
    limit: usize,
}

/// Says why a file of a format cannot be read.
fn unreadable(file: &Path, format: &str) -> impl Fn(&dyn std::fmt::Display) -> FileError {
    move |error| FileError::damaged(file, format!("the {format} is not readable: {error}"))
}

/// Decodes an image of at most `limit` pixels into `pixels`, as gray (1 channel) or color (3 channels) whatever it is.
///
/// Pixels are those of the file, not turned as its [`orientation`] says; transparency is dropped; of several pictures
/// in a file the first one counts. `file` is the name for errors.
pub fn decode(
    bytes: &[u8],
    file: &Path,
    channels: usize,
    limit: usize,
    pixels: &mut Vec<u8>,
) -> Result<Size> {
    if channels != 1 && channels != 3 {
        let what = format!("images have 1 channel (gray) or 3 (color), not {channels}");
        return Err(FileError::unsupported(file, what));
    }
    let image = Encoded { bytes, file, channels, limit };
    match Format::of(bytes) {
        Some(Format::Jpeg) => jpeg::decode(&image, pixels),
        Some(Format::Png) => png::decode(&image, pixels),
        Some(Format::Gif) => gif::decode(&image, pixels),
        Some(Format::Bmp) => bmp::decode(&image, pixels),
        Some(Format::Webp) => webp::decode(&image, pixels),
        None => Err(no_image(file)),
    }
}

/// Makes a list so long, with no more room than that, because what decoding takes is declared before. What it held may be
/// lost.
pub fn fit<T: Clone + Default>(list: &mut Vec<T>, len: usize) {
    if list.capacity() < len {
        list.clear();
        list.reserve_exact(len);
    }
    list.resize(len, T::default());
}

/// Turns pixels of `from` channels (gray, gray with transparency, color, color with transparency) into pixels of `to`.
fn recolor(pixels: &mut Vec<u8>, from: usize, to: usize) {
    if from == to || from == 0 {
        return;
    }
    let count = pixels.len() / from;
    let gray = |pixel: &[u8]| match *pixel {
        [r, g, b, ..] => ((u32::from(r) * 299 + u32::from(g) * 587 + u32::from(b) * 114 + 500) / 1000) as u8,
        [gray, ..] => gray,
        [] => 0,
    };
    if to < from {
        for at in 0..count {
            let pixel = [0, 1, 2, 3].map(|channel| pixels[at * from + channel.min(from - 1)]);
            match to {
                1 => pixels[at] = gray(&pixel[..from.min(4)]),
                _ => pixels[at * to..][..to].copy_from_slice(&pixel[..to]),
            }
        }
        // Gray with transparency has two channels, of which the first counts.
        pixels.truncate(count * to);
        return;
    }
    // From the last pixel on, since each needs more room than it had.
    pixels.reserve_exact(count * to - pixels.len());
    pixels.resize(count * to, 0);
    for at in (0..count).rev() {
        let value = pixels[at * from];
        pixels[at * to..][..to].fill(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::png;

    fn png(color: png::ColorType, width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(color);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header().unwrap().write_image_data(pixels).unwrap();
        bytes
    }

    fn gif(width: u16, height: u16, frame: ::gif::Frame<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let palette = [0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255];
        let mut encoder = ::gif::Encoder::new(&mut bytes, width, height, &palette).unwrap();
        encoder.write_frame(&frame).unwrap();
        // A second picture, which does not count.
        encoder.write_frame(&::gif::Frame { buffer: vec![3].into(), width: 1, height: 1, ..frame }).unwrap();
        drop(encoder);
        bytes
    }

    fn webp(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let encoder = image_webp::WebPEncoder::new(&mut bytes);
        encoder.encode(pixels, width, height, image_webp::ColorType::Rgb8).unwrap();
        bytes
    }

    #[test]
    fn of_a_gif_the_first_picture_counts_at_its_place_on_the_canvas() {
        let frame = ::gif::Frame {
            left: 1,
            top: 1,
            width: 2,
            height: 1,
            buffer: vec![1, 2].into(),
            ..Default::default()
        };
        let (size, pixels) = read(&gif(3, 2, frame), 3, 100).unwrap();
        assert_eq!(size, Size { height: 2, width: 3, channels: 3 });
        assert_eq!(pixels, [&[0; 12][..], &[255, 0, 0, 0, 255, 0]].concat());
    }

    #[test]
    fn a_webp_without_loss_is_read_exactly() {
        let pixels: Vec<u8> = (0..60).map(|i| (i * 4) as u8).collect();
        let bytes = webp(5, 4, &pixels);
        assert_eq!(read(&bytes, 3, 100).unwrap(), (Size { height: 4, width: 5, channels: 3 }, pixels));
        assert_eq!(read(&bytes, 1, 100).unwrap().1.len(), 20);
        assert!(read(&bytes, 3, 19).unwrap_err().to_string().contains("5 × 4 pixels is over the limit"));
        let probe = Probe::read(&mut std::io::Cursor::new(&bytes), Path::new("a")).unwrap();
        assert_eq!((probe.width, probe.height), (5, 4));
    }

    fn resize(pixels: &[u8], size: Size, to: [usize; 2], out: &mut [u8]) {
        Resizer::default().resize(pixels, size, to, Path::new("cat.png"), out).unwrap();
    }

    fn read(bytes: &[u8], channels: usize, limit: usize) -> Result<(Size, Vec<u8>)> {
        let mut pixels = Vec::new();
        let size = decode(bytes, Path::new("cat.png"), channels, limit, &mut pixels)?;
        Ok((size, pixels))
    }

    #[test]
    fn every_kind_of_color_becomes_gray_or_color() {
        let gray = png(png::ColorType::Grayscale, 2, 1, &[9, 200]);
        assert_eq!(read(&gray, 1, 100).unwrap(), (Size { height: 1, width: 2, channels: 1 }, vec![9, 200]));
        assert_eq!(read(&gray, 3, 100).unwrap().1, [9, 9, 9, 200, 200, 200]);
        let color = png(png::ColorType::Rgba, 2, 1, &[255, 0, 0, 7, 0, 0, 255, 7]);
        assert_eq!(read(&color, 3, 100).unwrap().1, [255, 0, 0, 0, 0, 255]);
        assert_eq!(read(&color, 1, 100).unwrap().1, [76, 29]);
        let faint = png(png::ColorType::GrayscaleAlpha, 2, 1, &[9, 1, 200, 1]);
        assert_eq!(read(&faint, 1, 100).unwrap().1, [9, 200]);
        assert_eq!(read(&faint, 3, 100).unwrap().1, [9, 9, 9, 200, 200, 200]);
    }

    #[test]
    fn large_and_foreign_files_are_refused_by_name() {
        let image = png(png::ColorType::Grayscale, 20, 20, &[0; 400]);
        let message = |bytes: &[u8], limit| read(bytes, 1, limit).unwrap_err().to_string();
        assert!(message(&image, 399).starts_with("cat.png: an image of 20 × 20 pixels is over the limit"));
        assert!(message(b"II*\0 a TIFF", 399).contains("no image"));
        assert!(message(b"", 399).contains("no image"));
        let mut absurd = image.clone();
        absurd[16..24].fill(0x7f);
        assert!(read(&absurd, 1, 1 << 20).is_err());
    }

    #[test]
    fn no_truncation_and_no_mutation_panics() {
        let pixels: Vec<u8> = (0..300).map(|i| (i * 7) as u8).collect();
        let jpeg = include_bytes!("../../fixtures/gradient.jpg");
        assert_eq!(read(jpeg, 3, 1 << 12).unwrap().0, Size { height: 8, width: 16, channels: 3 });
        let frame = ::gif::Frame { width: 9, height: 7, buffer: vec![1; 63].into(), ..Default::default() };
        let small = [gif(10, 8, frame), webp(10, 10, &pixels)];
        let images = [png(png::ColorType::Rgb, 10, 10, &pixels), jpeg.to_vec()];
        for image in images.into_iter().chain(small) {
            for cut in 0..image.len() {
                let _ = read(&image[..cut], 3, 1 << 12);
            }
            for at in 0..image.len() {
                for byte in [0, 0xff, 0x7f] {
                    let mut mutated = image.clone();
                    mutated[at] = byte;
                    let _ = read(&mutated, 3, 1 << 12);
                }
            }
        }
    }

    #[test]
    fn pixels_are_those_of_tensorflow() {
        let (size, exact) = read(include_bytes!("../../fixtures/gradient.png"), 3, 1 << 12).unwrap();
        assert_eq!((size.height, size.width, &exact[3..6]), (8, 16, &[16, 0, 128][..]));
        let (_, decoded) = read(include_bytes!("../../fixtures/gradient.jpg"), 3, 1 << 12).unwrap();
        let error: u32 = decoded.iter().zip(&exact).map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
        // A smooth image at quality 90: a few levels at each pixel.
        assert!(error < 4 * exact.len() as u32, "{error}");
        let mut small = [0; 45];
        resize(&exact, size, [3, 5], &mut small);
        let golden = include_bytes!("../../fixtures/gradient-3x5.npy");
        for (ours, theirs) in small.iter().zip(&golden[golden.len() - 45..]) {
            assert!(ours.abs_diff(*theirs) <= 1, "{small:?}");
        }
    }

    #[test]
    fn shrinking_averages_and_growing_interpolates() {
        let size = Size { height: 1, width: 4, channels: 1 };
        let mut out = [0; 2];
        resize(&[0, 100, 100, 200], size, [1, 2], &mut out);
        // The triangle over pixels 0, 1, 2 with weights 3, 3, 1: (0 + 300 + 100) / 7, and its mirror image.
        assert_eq!(out, [57, 143]);
        let mut out = [0; 4];
        resize(&[0, 100], Size { height: 1, width: 2, channels: 1 }, [1, 4], &mut out);
        assert_eq!(out, [0, 25, 75, 100]);
        let mut out = [0; 12];
        resize(&[50; 27], Size { height: 3, width: 3, channels: 3 }, [2, 2], &mut out);
        assert_eq!(out, [50; 12]);
    }
}
