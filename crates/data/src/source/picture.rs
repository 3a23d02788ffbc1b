//! Turns JPEG and PNG bytes into a field of pixels of a fixed size.

use std::path::Path;

use plimsoll_formats::{Element, Stored, image};
use plimsoll_graph::DType;

use super::Scratch;
use crate::error::Result;
use crate::sample::FieldSpec;

/// What images are turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// Pixels from top to bottom after resizing.
    pub height: usize,
    /// Pixels from left to right after resizing.
    pub width: usize,
    /// 3 for color, 1 for gray.
    pub channels: usize,
    /// Larger files are refused: each thread needs twelve bytes for a pixel while it decodes.
    pub max_pixels: usize,
}

impl Images {
    /// Images of this size in color, decoded from files of at most two million pixels.
    pub fn new(height: usize, width: usize) -> Images {
        Images { height, width, channels: 3, max_pixels: 2_000_000 }
    }

    pub(crate) fn field(&self, name: &str, dtype: DType) -> FieldSpec {
        FieldSpec::new(name, dtype, [self.height, self.width, self.channels])
    }

    /// What a thread needs while it decodes: coefficients, pixels, rows between the two axes, the result.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        (self.max_pixels * 12 + self.height * self.width * self.channels) as u64
    }

    /// Decodes `scratch.bytes` into a field.
    pub(crate) fn write(
        &self,
        path: &Path,
        scratch: &mut Scratch,
        dtype: DType,
        out: &mut [u8],
    ) -> Result<()> {
        let size = image::decode(&scratch.bytes, path, self.channels, self.max_pixels, &mut scratch.decoded)?;
        // From here on the bytes of the file are not needed; their room takes the resized image.
        let resized = &mut scratch.bytes;
        resized.resize(self.height * self.width * self.channels, 0);
        image::resize(&scratch.decoded, size, self.height, self.width, &mut scratch.floats, resized);
        let divisor = if dtype == DType::U8 { 1.0 } else { 255.0 };
        Stored::from(Element::U8).convert(resized, dtype, divisor, out);
        Ok(())
    }
}
