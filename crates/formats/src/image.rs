//! Turns JPEG and PNG files into pixels, and pixels of one size into pixels of another.
//!
//! The size of an image is read from its header before anything is allocated for it, and compared with the limit
//! that the caller gives.

use std::io::Cursor;
use std::path::Path;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::{FileError, Result};

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

/// Whether bytes begin as a JPEG or PNG file does.
pub fn is_image(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xd8, 0xff]) || bytes.starts_with(b"\x89PNG\r\n\x1a\n")
}

/// Whether a name ends as that of a JPEG or PNG file does.
pub fn is_image_name(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
    ["jpg", "jpeg", "png"].iter().any(|known| ending.eq_ignore_ascii_case(known))
}

fn check(file: &Path, width: usize, height: usize, limit: usize) -> Result<()> {
    let pixels = width.checked_mul(height);
    if pixels.is_none_or(|pixels| pixels == 0 || pixels > limit) {
        let what = format!("an image of {width} × {height} pixels is over the limit of {limit} pixels");
        return Err(FileError::unsupported(file, what));
    }
    Ok(())
}

/// Decodes an image of at most `limit` pixels into `pixels`, as gray (1 channel) or color (3 channels) whatever it is.
///
/// Transparency is dropped; `file` is the name for errors.
pub fn decode(
    bytes: &[u8],
    file: &Path,
    channels: usize,
    limit: usize,
    pixels: &mut Vec<u8>,
) -> Result<Size> {
    if bytes.starts_with(&[0xff, 0xd8]) {
        decode_jpeg(bytes, file, channels, limit, pixels)
    } else if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        decode_png(bytes, file, channels, limit, pixels)
    } else {
        Err(FileError::damaged(file, "this is no image: it begins neither as a JPEG nor as a PNG file does"))
    }
}

fn decode_jpeg(
    bytes: &[u8],
    file: &Path,
    channels: usize,
    limit: usize,
    pixels: &mut Vec<u8>,
) -> Result<Size> {
    let damaged = |error: &dyn std::fmt::Display| {
        FileError::damaged(file, format!("the JPEG is not readable: {error}"))
    };
    let color = if channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    let options = DecoderOptions::default().jpeg_set_out_colorspace(color).jpeg_set_max_scans(64);
    let options = options.set_max_width(1 << 16).set_max_height(1 << 16).set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| damaged(&error))?;
    let Some((width, height)) = decoder.dimensions() else { return Err(damaged(&"it has no size")) };
    check(file, width, height, limit)?;
    let need = decoder.output_buffer_size().ok_or_else(|| damaged(&"it has no size"))?;
    let given = decoder.output_colorspace().map_or(3, |color| color.num_components());
    pixels.resize(need, 0);
    decoder.decode_into(pixels).map_err(|error| damaged(&error))?;
    recolor(pixels, given, channels);
    Ok(Size { height, width, channels })
}

fn decode_png(
    bytes: &[u8],
    file: &Path,
    channels: usize,
    limit: usize,
    pixels: &mut Vec<u8>,
) -> Result<Size> {
    let damaged =
        |error: &dyn std::fmt::Display| FileError::damaged(file, format!("the PNG is not readable: {error}"));
    let limits = png::Limits { bytes: limit.saturating_mul(8).saturating_add(64 << 10) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let info = decoder.read_header_info().map_err(|error| damaged(&error))?;
    let (width, height) = (info.width as usize, info.height as usize);
    check(file, width, height, limit)?;
    let mut reader = decoder.read_info().map_err(|error| damaged(&error))?;
    let need = reader.output_buffer_size().ok_or_else(|| damaged(&"it has no size"))?;
    pixels.resize(need, 0);
    let frame = reader.next_frame(pixels).map_err(|error| damaged(&error))?;
    recolor(pixels, frame.color_type.samples(), channels);
    Ok(Size { height, width, channels })
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
    pixels.resize(count * to, 0);
    for at in (0..count).rev() {
        let value = pixels[at * from];
        pixels[at * to..][..to].fill(value);
    }
}

/// Resizes by a triangle filter as wide as the scale, so that shrinking averages instead of skipping pixels.
///
/// The result is in `out`; `scratch` holds the weights and the image between its two axes.
pub fn resize(
    pixels: &[u8],
    size: Size,
    height: usize,
    width: usize,
    scratch: &mut Vec<f32>,
    out: &mut [u8],
) {
    let Size { height: from_height, width: from_width, channels } = size;
    if (from_height, from_width) == (height, width) {
        out.copy_from_slice(&pixels[..out.len()]);
        return;
    }
    let (across, down) = (Taps::new(from_width, width), Taps::new(from_height, height));
    let row = width * channels;
    scratch.resize(across.room() + down.room() + from_height * row + row, 0.0);
    let (x_taps, rest) = scratch.split_at_mut(across.room());
    let (y_taps, rest) = rest.split_at_mut(down.room());
    let (between, sums) = rest.split_at_mut(from_height * row);
    across.fill(x_taps);
    down.fill(y_taps);
    // First every row to its new width, kept as floats so that rounding happens once.
    for (input, output) in pixels.chunks_exact(from_width * channels).zip(between.chunks_exact_mut(row)) {
        for (taps, output) in x_taps.chunks_exact(across.stride).zip(output.chunks_exact_mut(channels)) {
            let first = taps[0] as usize * channels;
            output.fill(0.0);
            // Weights behind the last pixel are zero and meet no pixel.
            for (weight, pixel) in taps[1..].iter().zip(input[first..].chunks_exact(channels)) {
                output.iter_mut().zip(pixel).for_each(|(sum, &value)| *sum += weight * f32::from(value));
            }
        }
    }
    for (taps, output) in y_taps.chunks_exact(down.stride).zip(out.chunks_exact_mut(row)) {
        sums.fill(0.5);
        for (weight, input) in taps[1..].iter().zip(between[taps[0] as usize * row..].chunks_exact(row)) {
            sums.iter_mut().zip(input).for_each(|(sum, value)| *sum += weight * value);
        }
        output.iter_mut().zip(&*sums).for_each(|(pixel, sum)| *pixel = sum.clamp(0.0, 255.0) as u8);
    }
}

/// The weights of the old pixels that make each new pixel: a triangle around its center.
struct Taps {
    from: usize,
    to: usize,
    ratio: f32,
    /// Numbers for each new pixel: the first old pixel, then the weights from there on.
    stride: usize,
}

impl Taps {
    fn new(from: usize, to: usize) -> Taps {
        let ratio = from as f32 / to as f32;
        Taps { from, to, ratio, stride: 2 * ratio.max(1.0).ceil() as usize + 3 }
    }

    fn room(&self) -> usize {
        self.to * self.stride
    }

    fn fill(&self, taps: &mut [f32]) {
        let scale = self.ratio.max(1.0);
        for (at, taps) in taps.chunks_exact_mut(self.stride).enumerate() {
            let center = (at as f32 + 0.5) * self.ratio;
            let first = ((center - scale + 0.5).max(0.0) as usize).min(self.from - 1);
            let end = ((center + scale + 0.5) as usize).clamp(first + 1, self.from);
            let weight = |pixel: usize| (1.0 - (pixel as f32 + 0.5 - center).abs() / scale).max(0.0);
            let total = (first..end).map(weight).sum::<f32>().max(f32::MIN_POSITIVE);
            taps.fill(0.0);
            taps[0] = first as f32;
            taps[1..].iter_mut().zip(first..end).for_each(|(tap, pixel)| *tap = weight(pixel) / total);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(color: png::ColorType, width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(color);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header().unwrap().write_image_data(pixels).unwrap();
        bytes
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
        assert!(message(b"GIF89a", 399).contains("no image"));
        assert!(message(b"", 399).contains("no image"));
        let mut absurd = image.clone();
        absurd[16..24].fill(0x7f);
        assert!(read(&absurd, 1, 1 << 20).is_err());
    }

    #[test]
    fn no_truncation_and_no_mutation_panics() {
        let pixels: Vec<u8> = (0..300).map(|i| (i * 7) as u8).collect();
        let jpeg = include_bytes!("../fixtures/gradient.jpg");
        assert_eq!(read(jpeg, 3, 1 << 12).unwrap().0, Size { height: 8, width: 16, channels: 3 });
        for image in [png(png::ColorType::Rgb, 10, 10, &pixels), jpeg.to_vec()] {
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
        let (size, exact) = read(include_bytes!("../fixtures/gradient.png"), 3, 1 << 12).unwrap();
        assert_eq!((size.height, size.width, &exact[3..6]), (8, 16, &[16, 0, 128][..]));
        let (_, decoded) = read(include_bytes!("../fixtures/gradient.jpg"), 3, 1 << 12).unwrap();
        let error: u32 = decoded.iter().zip(&exact).map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
        // A smooth image at quality 90: a few levels at each pixel.
        assert!(error < 4 * exact.len() as u32, "{error}");
        let mut small = [0; 45];
        resize(&exact, size, 3, 5, &mut Vec::new(), &mut small);
        let golden = include_bytes!("../fixtures/gradient-3x5.npy");
        for (ours, theirs) in small.iter().zip(&golden[golden.len() - 45..]) {
            assert!(ours.abs_diff(*theirs) <= 1, "{small:?}");
        }
    }

    #[test]
    fn shrinking_averages_and_growing_interpolates() {
        let size = Size { height: 1, width: 4, channels: 1 };
        let mut out = [0; 2];
        resize(&[0, 100, 100, 200], size, 1, 2, &mut Vec::new(), &mut out);
        // The triangle over pixels 0, 1, 2 with weights 3, 3, 1: (0 + 300 + 100) / 7, and its mirror image.
        assert_eq!(out, [57, 143]);
        let mut out = [0; 4];
        resize(&[0, 100], Size { height: 1, width: 2, channels: 1 }, 1, 4, &mut Vec::new(), &mut out);
        assert_eq!(out, [0, 25, 75, 100]);
        let mut out = [0; 12];
        resize(&[50; 27], Size { height: 3, width: 3, channels: 3 }, 2, 2, &mut Vec::new(), &mut out);
        assert_eq!(out, [50; 12]);
    }
}
