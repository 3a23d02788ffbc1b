//! Turns WebP files into pixels.

use std::io::Cursor;
use std::path::Path;

use super::{Encoded, Size, check, fit, recolor, unreadable};
use crate::Result;

pub fn decode(image: &Encoded<'_>, pixels: &mut Vec<u8>) -> Result<Size> {
    let Encoded { bytes, file, channels, limit } = *image;
    let damaged = unreadable(file, "WebP");
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(|error| damaged(&error))?;
    decoder.set_memory_limit(limit.saturating_mul(8));
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    check(file, width, height, limit)?;
    check_inside(bytes, file, limit)?;
    let samples = if decoder.has_alpha() { 4 } else { 3 };
    let need = decoder.output_buffer_size().ok_or_else(|| damaged(&"it has no size"))?;
    fit(pixels, need);
    decoder.read_image(pixels).map_err(|error| damaged(&error))?;
    recolor(pixels, samples, channels);
    Ok(Size { height, width, channels })
}

/// Pictures inside the file say their own sizes, and the decoder believes them before it compares.
fn check_inside(bytes: &[u8], file: &Path, limit: usize) -> Result<()> {
    let start = *b"\x9d\x01\x2a";
    for at in bytes.windows(3).enumerate().filter(|(_, three)| *three == start).map(|(at, _)| at) {
        // A frame with loss: `VP8 `, a length, three bytes, these three, then width and height of 14 bits.
        let Some(head) = at.checked_sub(11).and_then(|head| bytes.get(head..at + 7)) else { continue };
        if !head.starts_with(b"VP8 ") {
            continue;
        }
        let side = |low: usize| usize::from(u16::from_le_bytes([head[low], head[low + 1]]) & 0x3fff);
        check(file, side(14), side(16), limit)?;
    }
    Ok(())
}
