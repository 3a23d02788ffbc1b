//! Turns GIF files into the pixels of their first picture.

use super::{Encoded, Size, check, fit, recolor, unreadable};
use crate::Result;

pub fn decode(image: &Encoded<'_>, pixels: &mut Vec<u8>) -> Result<Size> {
    let Encoded { bytes, file, channels, limit } = *image;
    let damaged = unreadable(file, "GIF");
    let mut options = gif::DecodeOptions::new();
    // A picture that reaches over the canvas is damaged, not a larger one.
    options.check_frame_consistency(true);
    options.set_color_output(gif::ColorOutput::Indexed);
    let most = std::num::NonZeroU64::new(limit as u64).unwrap_or(std::num::NonZeroU64::MIN);
    options.set_memory_limit(gif::MemoryLimit::Bytes(most));
    let mut decoder = options.read_info(bytes).map_err(|error| damaged(&error))?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    check(file, width, height, limit)?;
    let found = decoder.next_frame_info().map_err(|error| damaged(&error))?;
    let frame = found.ok_or_else(|| damaged(&"it has no picture"))?;
    let (left, top, wide, high) = (
        usize::from(frame.left),
        usize::from(frame.top),
        usize::from(frame.width),
        usize::from(frame.height),
    );
    let palette = decoder.palette().map_err(|error| damaged(&error))?.to_vec();
    let mut entries = vec![0; decoder.buffer_size()];
    decoder.read_into_buffer(&mut entries).map_err(|error| damaged(&error))?;
    // What the picture leaves of the canvas is black.
    fit(pixels, width * height * 3);
    pixels.fill(0);
    for (row, entries) in entries.chunks_exact(wide.max(1)).take(high).enumerate() {
        for (column, &entry) in entries.iter().enumerate() {
            let at = ((top + row) * width + left + column) * 3;
            let color = palette.get(3 * usize::from(entry)..).and_then(|rest| rest.get(..3));
            let (Some(color), Some(pixel)) = (color, pixels.get_mut(at..at + 3)) else {
                return Err(damaged(&format!("it has no color {entry}")));
            };
            pixel.copy_from_slice(color);
        }
    }
    recolor(pixels, 3, channels);
    Ok(Size { height, width, channels })
}
