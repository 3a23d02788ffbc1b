//! Turns the size that an image is wanted at into the size at which it is decoded.

use std::path::Path;

use super::{Encoded, Format, Size, decode, jpeg};
use crate::Result;

/// At how many eighths of its size in each direction an image is decoded: 1, 2, 4 or all 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scale(usize);

impl Scale {
    /// All pixels.
    pub const WHOLE: Scale = Scale(8);

    /// The least at which a picture of `from` rows and columns is still at least twice as large as `to` in both directions. From there on
    /// a resize averages over so many pixels that what was left out before makes no difference that could be seen.
    ///
    /// ```
    /// use plimsoll_formats::image::Scale;
    ///
    /// assert_eq!(Scale::least([3000, 4000], [224, 224]).eighths(), 2);
    /// assert_eq!(Scale::least([375, 500], [224, 224]), Scale::WHOLE);
    /// ```
    pub fn least(from: [usize; 2], to: [usize; 2]) -> Scale {
        let is_enough = |eighths: usize| {
            (0..2).all(|side| from[side].saturating_mul(eighths) >= to[side].saturating_mul(16))
        };
        [1, 2, 4].into_iter().find(|&eighths| is_enough(eighths)).map_or(Scale::WHOLE, Scale)
    }

    /// Of eight pixels in a row, how many are decoded.
    pub fn eighths(self) -> usize {
        self.0
    }

    /// The rows and columns of a picture at this scale, as fractions.
    pub fn part(self, from: [usize; 2]) -> [f64; 2] {
        from.map(|side| (side * self.0) as f64 / 8.0)
    }

    /// The rows and columns of pixels that hold them.
    pub fn size(self, from: [usize; 2]) -> [usize; 2] {
        from.map(|side| (side * self.0).div_ceil(8))
    }
}

/// Decodes an image that will be resized to `to` rows and columns: as [`decode`] does, or a JPEG at a half, a quarter or an eighth of its
/// size where that is at least twice as large as `to` ([`Scale::least`]). Says the size of the pixels, and how many rows and columns of
/// them the picture covers, for [`super::Resizer::resize_part`].
///
/// # Errors
/// As for [`decode`].
pub fn decode_for(
    bytes: &[u8],
    file: &Path,
    channels: usize,
    limit: usize,
    to: [usize; 2],
    pixels: &mut Vec<u8>,
) -> Result<(Size, [f64; 2])> {
    if Format::of(bytes) == Some(Format::Jpeg) && matches!(channels, 1 | 3) {
        let image = Encoded { bytes, file, channels, limit };
        if let Some(scaled) = jpeg::decode_scaled(&image, to, pixels)? {
            return Ok(scaled);
        }
    }
    let size = decode(bytes, file, channels, limit, pixels)?;
    Ok((size, [size.height as f64, size.width as f64]))
}
