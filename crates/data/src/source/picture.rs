//! Turns the bytes of image files into a field of pixels of a fixed size.

use std::path::Path;

use plimsoll_formats::image::{self, Orientation, Probe, Resizer, Size, fit};
use plimsoll_formats::{Element, Stored};
use plimsoll_graph::DType;

use super::Scratch;
use crate::error::{Error, Result};
use crate::sample::FieldSpec;

/// What images are turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// Pixels from top to bottom after resizing.
    pub height: usize,
    /// Pixels from left to right after resizing.
    pub width: usize,
    /// 3 for color, 1 for gray; images of the other kind are converted.
    pub channels: usize,
    /// Larger files are refused. What decoding the largest takes is counted in the pipeline's bytes.
    pub max_pixels: usize,
}

impl Images {
    /// Images of this size in color, decoded from files of at most 64 megapixels.
    pub fn new(height: usize, width: usize) -> Images {
        Images { height, width, channels: 3, max_pixels: 64 << 20 }
    }

    /// The size of the first image, upright, in color. One that is too large is refused by name before a batch of such is planned.
    pub(crate) fn as_first(first: &Probe, file: &Path) -> Result<Images> {
        let (mut height, mut width) = (first.height, first.width);
        if first.orientation.swaps_axes() {
            (height, width) = (width, height);
        }
        let all = Images::new(height, width);
        let limit = all.max_pixels;
        if first.pixels() > limit as u64 {
            let what = format!("the first image has {height} × {width} pixels, over the limit of {limit}");
            return Err(Error::Unknown { path: file.display().to_string(), what });
        }
        Ok(all)
    }

    pub(crate) fn field(&self, name: &str, dtype: DType) -> FieldSpec {
        FieldSpec::new(name, dtype, [self.height, self.width, self.channels])
    }

    /// The same, unless no image can be so.
    pub(crate) fn checked(self) -> Result<Images> {
        let Images { height, width, channels, .. } = self;
        if height == 0 || width == 0 || !matches!(channels, 1 | 3) {
            let what = format!("images of {height} × {width} × {channels}: give a size, and 1 channel or 3");
            return Err(Error::Stage(what));
        }
        Ok(self)
    }

    /// Decodes `scratch.bytes` into a field, each value divided by `divisor`. Photos are turned upright where `turned`
    /// says so.
    pub(crate) fn write(
        &self,
        path: &Path,
        scratch: &mut Scratch,
        turned: bool,
        (dtype, divisor): (DType, f32),
        out: &mut [u8],
    ) -> Result<()> {
        let Images { height, width, channels, max_pixels } = *self;
        let size = image::decode(&scratch.bytes, path, channels, max_pixels, &mut scratch.decoded)?;
        let orientation = if turned { image::orientation(&scratch.bytes) } else { Orientation::UPRIGHT };
        // From here on the bytes of the file are not needed; their room takes the resized image.
        let resized = &mut scratch.bytes;
        fit(resized, height * width * channels);
        let (down, across) = if orientation.swaps_axes() { (width, height) } else { (height, width) };
        scratch.resizer.resize(&scratch.decoded, size, [down, across], path, resized)?;
        let mut pixels = &scratch.bytes;
        if orientation != Orientation::UPRIGHT {
            fit(&mut scratch.record, height * width * channels);
            image::turn(pixels, orientation, height, width, channels, &mut scratch.record);
            pixels = &scratch.record;
        }
        Stored::from(Element::U8).convert(pixels, dtype, divisor, out);
        Ok(())
    }
}

/// What decoding the files of a source takes at most, as their headers say.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// The longest file.
    pub longest: u64,
    /// Bytes of decoding, and of resizing.
    pub decode: u64,
    pub resize: u64,
    /// The most pixels of an image.
    pub pixels: u64,
    /// How many were looked at, are not of the size they become, or stand sideways.
    pub seen: u64,
    pub other_sizes: u64,
    pub turned: u64,
}

impl Needs {
    /// Counts an image in. One that is over the limit is refused when it is read, and takes nothing.
    pub fn see(&mut self, probe: &Probe, images: Images) {
        self.seen += 1;
        self.turned += u64::from(probe.orientation != Orientation::UPRIGHT);
        if probe.pixels() > images.max_pixels as u64 {
            return;
        }
        let (mut height, mut width) = (images.height, images.width);
        if probe.orientation.swaps_axes() {
            (height, width) = (width, height);
        }
        let size = Size { height: probe.height, width: probe.width, channels: images.channels };
        self.decode = self.decode.max(probe.decode_bytes);
        self.resize = self.resize.max(Resizer::bytes(size, [height, width]));
        self.pixels = self.pixels.max(probe.pixels());
        self.other_sizes += u64::from((probe.height, probe.width) != (height, width));
    }

    /// Bytes that a thread needs: the file, its pixels, the picture between its two axes, the result and the result turned.
    pub fn scratch_bytes(&self, images: Images) -> u64 {
        let result = (images.height * images.width * images.channels) as u64;
        self.longest.max(result) + self.decode + self.resize + result
    }

    /// What a user should know.
    pub fn notes(&self, images: Images) -> Vec<String> {
        let Images { height, width, .. } = images;
        let mut notes = Vec::new();
        if self.other_sizes > 0 {
            notes.push(format!(
                "{} of {} images are resized to {height} × {width}",
                self.other_sizes, self.seen
            ));
        }
        if self.turned > 0 {
            notes.push(format!("{} photos are turned upright, as their EXIF data says", self.turned));
        }
        notes
    }
}
