//! Turns the bytes of image files into a field of pixels of a fixed size.

use std::path::Path;

use plimsoll_formats::image::{self, Orientation, Probe, Resizer, Scale, Size, fit};
use plimsoll_formats::{Element, Stored};
use plimsoll_graph::DType;

use super::Scratch;
use crate::error::{Error, Result};
use crate::sample::FieldSpec;
use crate::scale::divided;

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
        let orientation = if turned { image::orientation(&scratch.bytes) } else { Orientation::UPRIGHT };
        let to = if orientation.swaps_axes() { [width, height] } else { [height, width] };
        let Scratch { bytes, decoded, .. } = scratch;
        let (size, part) = image::decode_for(bytes, path, channels, max_pixels, to, decoded)?;
        // From here on the bytes of the file are not needed; their room takes the resized image.
        let resized = &mut scratch.bytes;
        fit(resized, height * width * channels);
        scratch.resizer.resize_part(&scratch.decoded, size, part, to, path, resized)?;
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

/// Images of a source as samples: the pixels are `x`, the number of a class is `y`.
#[derive(Clone)]
pub(crate) struct Pictures {
    pub images: Images,
    needs: Needs,
    has_labels: bool,
    dtype: DType,
    divisor: f32,
    /// What is to be said of the source beside what its images need.
    pub notes: Vec<String>,
    spec: Vec<FieldSpec>,
}

impl Pictures {
    /// Pixels as f32, divided as `scale` says.
    pub fn new(
        images: Images,
        needs: Needs,
        has_labels: bool,
        scale: crate::scale::Scale,
        notes: Vec<String>,
    ) -> Pictures {
        let (dtype, divisor, spec) = (DType::F32, scale.divisor(), Vec::new());
        Pictures { images, needs, has_labels, dtype, divisor, notes, spec }.with_type(dtype, divisor)
    }

    /// The same with the bytes of pixels as they are stored.
    pub fn stored(&self) -> Pictures {
        self.clone().with_type(DType::U8, 1.0)
    }

    fn with_type(mut self, dtype: DType, divisor: f32) -> Pictures {
        (self.dtype, self.divisor) = (dtype, divisor);
        self.spec = vec![self.images.field("x", dtype)];
        if self.has_labels {
            self.spec.push(FieldSpec::new("y", DType::I64, []));
        }
        self
    }

    pub fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    pub fn has_labels(&self) -> bool {
        self.has_labels
    }

    /// Writes the pixels of image `index`, whose file is in `scratch.bytes`; `turned` says whether a photo is turned upright.
    pub fn write(
        &self,
        index: u64,
        path: &Path,
        scratch: &mut Scratch,
        turned: bool,
        out: &mut [u8],
    ) -> Result<()> {
        let written = self.images.write(path, scratch, turned, (self.dtype, self.divisor), out);
        written.map_err(|error| match error {
            Error::File(error) => Error::File(error.at(index)),
            other => other,
        })
    }

    pub fn notes(&self) -> Vec<String> {
        let scaled = format!("'x': pixels as {}, {}", self.dtype, divided(self.divisor));
        [vec![scaled], self.needs.notes(self.images), self.notes.clone()].concat()
    }

    pub fn scratch_bytes(&self) -> u64 {
        self.needs.scratch_bytes(self.images)
    }

    /// What a white pixel becomes.
    pub fn white(&self) -> f32 {
        255.0 / self.divisor
    }
}

/// What a source of [`Pictures`] says as they do.
macro_rules! of_pictures {
    () => {
        fn spec(&self) -> &[FieldSpec] {
            self.pictures.spec()
        }

        fn notes(&self) -> Vec<String> {
            self.pictures.notes()
        }

        fn scratch_bytes(&self) -> u64 {
            self.pictures.scratch_bytes()
        }

        fn white(&self) -> Option<f32> {
            Some(self.pictures.white())
        }

        fn stored(&self) -> Option<Arc<dyn Source>> {
            Some(Arc::new(Self { pictures: self.pictures.stored(), ..self.clone() }))
        }
    };
}
pub(super) use of_pictures;

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
    /// How many were looked at, are not of the size they become, are decoded at less than their size, or stand sideways.
    pub seen: u64,
    pub other_sizes: u64,
    pub scaled: u64,
    pub turned: u64,
    /// Whether an image counts as if all of its pixels were decoded: where others than those that are looked at may come, of which a smaller
    /// one that cannot be scaled would take more.
    pub counts_whole: bool,
}

impl Needs {
    /// Counts an image in. One that is over the limit is refused when it is read, and takes nothing.
    pub fn see(&mut self, probe: &Probe, images: Images) {
        self.seen += 1;
        self.turned += u64::from(probe.orientation != Orientation::UPRIGHT);
        if probe.pixels() > images.max_pixels as u64 {
            return;
        }
        let (as_stored, upright) = ([images.height, images.width], [images.width, images.height]);
        let to = if probe.orientation.swaps_axes() { upright } else { as_stored };
        let scale = self.count(probe, to, images.channels);
        if probe.orientation.swaps_axes() {
            // Beside a mask that is drawn over the stored picture it is not turned.
            self.count(probe, as_stored, images.channels);
        }
        self.scaled += u64::from(scale != Scale::WHOLE);
        self.pixels = self.pixels.max(probe.pixels());
        self.other_sizes += u64::from([probe.height, probe.width] != to);
    }

    /// Counts what an image takes on its way to so many rows and columns.
    fn count(&mut self, probe: &Probe, to: [usize; 2], channels: usize) -> Scale {
        let (scale, bytes) = probe.decoded_for(to);
        let whole = (Scale::WHOLE, probe.decode_bytes);
        let (counted, bytes) = if self.counts_whole { whole } else { (scale, bytes) };
        let [height, width] = counted.size([probe.height, probe.width]);
        self.decode = self.decode.max(bytes);
        self.resize = self.resize.max(Resizer::bytes(Size { height, width, channels }, to));
        scale
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
        if self.scaled > 0 {
            notes.push(format!(
                "{} large JPEGs are decoded at 1/2, 1/4 or 1/8 of their size, at least twice the size they become",
                self.scaled
            ));
        }
        if self.turned > 0 {
            notes.push(format!("{} photos are turned upright, as their EXIF data says", self.turned));
        }
        notes
    }
}
