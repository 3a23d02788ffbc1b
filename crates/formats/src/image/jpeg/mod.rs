//! Turns JPEG files into pixels, all of them or a half, a quarter or an eighth in each direction.
//!
//! All pixels are decoded by `zune-jpeg`, which cannot scale. Scaled ones are decoded here: the crate that could (`jpeg-decoder`)
//! starts threads for each picture and queues coefficients between them without a bound.

mod bits;
mod frame;
mod scaled;
mod transform;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::{Encoded, Size, check, fit, recolor, unreadable};
use crate::Result;

pub use frame::{Frame, Grid, Part};
pub use scaled::{adobe, decode as decode_scaled};

pub fn decode(image: &Encoded<'_>, pixels: &mut Vec<u8>) -> Result<Size> {
    let Encoded { bytes, file, channels, limit } = *image;
    let damaged = unreadable(file, "JPEG");
    let color = if channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    let options = DecoderOptions::default().jpeg_set_out_colorspace(color).jpeg_set_max_scans(64);
    let options = options.set_max_width(1 << 16).set_max_height(1 << 16).set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| damaged(&error))?;
    let Some((width, height)) = decoder.dimensions() else { return Err(damaged(&"it has no size")) };
    check(file, width, height, limit)?;
    let need = decoder.output_buffer_size().ok_or_else(|| damaged(&"it has no size"))?;
    let given = decoder.output_colorspace().map_or(3, |color| color.num_components());
    fit(pixels, need);
    decoder.decode_into(pixels).map_err(|error| damaged(&error))?;
    recolor(pixels, given, channels);
    Ok(Size { height, width, channels })
}
