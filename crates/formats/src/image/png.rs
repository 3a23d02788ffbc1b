//! Turns PNG files into pixels, or into the numbers of classes that they hold.

use std::io::Cursor;
use std::path::Path;

use png::{BitDepth, ColorType};

use super::{Encoded, Size, check, fit, recolor, unreadable};
use crate::{FileError, Result};

pub fn decode(image: &Encoded<'_>, pixels: &mut Vec<u8>) -> Result<Size> {
    let Encoded { bytes, file, channels, limit } = *image;
    let damaged = unreadable(file, "PNG");
    let limits = png::Limits { bytes: limit.saturating_mul(8).saturating_add(64 << 10) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let info = decoder.read_header_info().map_err(|error| damaged(&error))?;
    let (width, height) = (info.width as usize, info.height as usize);
    check(file, width, height, limit)?;
    let mut reader = decoder.read_info().map_err(|error| damaged(&error))?;
    let need = reader.output_buffer_size().ok_or_else(|| damaged(&"it has no size"))?;
    fit(pixels, need);
    let frame = reader.next_frame(pixels).map_err(|error| damaged(&error))?;
    recolor(pixels, frame.color_type.samples(), channels);
    Ok(Size { height, width, channels })
}

/// Decodes a PNG whose pixels are numbers of classes: entries of a palette, or levels of gray. A colored picture whose
/// three channels are equal is one of gray; others are refused, because their colors are no numbers.
pub fn decode_ids(bytes: &[u8], file: &Path, limit: usize, pixels: &mut Vec<u8>) -> Result<Size> {
    let damaged = unreadable(file, "PNG");
    if !bytes.starts_with(b"\x89PNG") {
        let what = "masks are read from PNG files only: other formats change the numbers of classes";
        return Err(FileError::unsupported(file, what));
    }
    let limits = png::Limits { bytes: limit.saturating_mul(8).saturating_add(64 << 10) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::IDENTITY);
    let info = decoder.read_header_info().map_err(|error| damaged(&error))?;
    let (width, height, color, depth) =
        (info.width as usize, info.height as usize, info.color_type, info.bit_depth);
    check(file, width, height, limit)?;
    if depth == BitDepth::Sixteen {
        return Err(FileError::unsupported(
            file,
            "masks have at most 256 classes; this one has 16 bits a pixel",
        ));
    }
    let mut reader = decoder.read_info().map_err(|error| damaged(&error))?;
    let need = reader.output_buffer_size().ok_or_else(|| damaged(&"it has no size"))?;
    fit(pixels, need);
    let frame = reader.next_frame(pixels).map_err(|error| damaged(&error))?;
    let count = width * height;
    match color {
        ColorType::Grayscale | ColorType::Indexed => {
            unpack(pixels, frame.line_size, width, height, depth as usize);
        }
        ColorType::GrayscaleAlpha => (0..count).for_each(|at| pixels[at] = pixels[2 * at]),
        ColorType::Rgb | ColorType::Rgba => {
            let samples = color.samples();
            for at in 0..count {
                let pixel = &pixels[at * samples..][..3];
                if pixel[0] != pixel[1] || pixel[1] != pixel[2] {
                    let place = (at / width, at % width);
                    let what = format!(
                        "the mask is colored at row {}, column {}: {pixel:?}; save it with a palette or as gray, one \
                         number a class",
                        place.0 + 1,
                        place.1 + 1
                    );
                    return Err(FileError::unsupported(file, what));
                }
                pixels[at] = pixels[at * samples];
            }
        }
    }
    pixels.truncate(count);
    Ok(Size { height, width, channels: 1 })
}

/// Spreads pixels of fewer than eight bits, packed in rows of whole bytes, to a byte each.
fn unpack(pixels: &mut Vec<u8>, line: usize, width: usize, height: usize, bits: usize) {
    if bits == 8 {
        return;
    }
    pixels.resize(width * height, 0);
    let mask = ((1u16 << bits) - 1) as u8;
    // From the last pixel on: each lies behind the bits that it is read from.
    for at in (0..width * height).rev() {
        let (y, x) = (at / width, at % width * bits);
        pixels[at] = pixels[y * line + x / 8] >> (8 - bits - x % 8) & mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(color: ColorType, depth: BitDepth, width: u32, height: u32, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, width, height);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == ColorType::Indexed {
            encoder.set_palette((0..48).collect::<Vec<u8>>());
        }
        encoder.write_header().unwrap().write_image_data(bytes).unwrap();
        out
    }

    #[test]
    fn masks_are_numbers_whatever_holds_them() {
        let read = |bytes: &[u8]| {
            let mut pixels = Vec::new();
            decode_ids(bytes, Path::new("mask.png"), 1000, &mut pixels).map(|_| pixels)
        };
        let four = write(ColorType::Indexed, BitDepth::Four, 3, 2, &[0x12, 0x30, 0x4f, 0x50]);
        assert_eq!(read(&four).unwrap(), [1, 2, 3, 4, 15, 5]);
        let one = write(ColorType::Grayscale, BitDepth::One, 9, 2, &[0b1010_0000, 0x80, 0b0000_0001, 0]);
        assert_eq!(read(&one).unwrap(), [1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        let gray = write(ColorType::Rgb, BitDepth::Eight, 2, 1, &[7, 7, 7, 255, 255, 255]);
        assert_eq!(read(&gray).unwrap(), [7, 255]);
        let color = write(ColorType::Rgb, BitDepth::Eight, 2, 1, &[7, 7, 7, 255, 0, 255]);
        let error = read(&color).unwrap_err().to_string();
        assert!(error.starts_with("mask.png: the mask is colored at row 1, column 2"), "{error}");
        assert!(read(b"\xff\xd8\xff").unwrap_err().to_string().contains("PNG files only"));
    }
}
