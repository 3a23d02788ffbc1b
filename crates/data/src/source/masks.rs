//! Turns a folder of images and a folder of masks with the same names into samples for segmentation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::{FileError, image};
use plimsoll_graph::DType;

use super::folder::{Folder, Form};
use super::listing::{Listing, has_images};
use super::{Scratch, Source};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};

/// Folders of masks go by these names, beside `images`.
const NAMES: [&str; 2] = ["masks", "labels"];
/// So many masks tell whether they hold classes, or black and white.
const LOOKED_AT: u64 = 32;

/// `root/images/a.jpg` and `root/masks/a.png`: the pixels are `x`, the class of every pixel is `y`.
#[derive(Clone)]
pub(crate) struct Masks {
    pictures: Folder,
    masks: Listing,
    /// The mask of each picture.
    mask_of: Arc<[u32]>,
    /// Whether masks are black and white: 255 is class 1.
    is_binary: bool,
    most_pixels: u64,
    spec: Vec<FieldSpec>,
}

/// Whether a folder holds images and masks.
pub(crate) fn has_masks(root: &Path) -> bool {
    has_images(&root.join("images")) && NAMES.iter().any(|name| has_images(&root.join(name)))
}

fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

impl Masks {
    /// Lists both folders and looks for the mask of every image.
    pub fn new(root: &Path, form: &Form) -> Result<Masks> {
        let unknown = |what: String| Error::Unknown { path: root.display().to_string(), what };
        let form = Form { labelled: Some(false), classes: None, ..form.clone() };
        let pictures = Folder::new(&root.join("images"), &form)?;
        let named = NAMES.iter().find(|name| has_images(&root.join(name)));
        let Some(named) = named else { return Err(unknown("it has no folder of masks".into())) };
        let masks = Listing::new(&root.join(named), vec![String::new()])?;
        let mut by_stem = BTreeMap::new();
        for index in 0..masks.len() {
            if by_stem.insert(stem(masks.file_name(index)), index as u32).is_some() {
                return Err(unknown(format!("{named} has two masks named {}", stem(masks.file_name(index)))));
            }
        }
        let listing = pictures.listing();
        let mask = |index: u64| {
            let name = listing.file_name(index);
            by_stem.remove(stem(name)).ok_or_else(|| unknown(format!("images/{name} has no mask in {named}")))
        };
        let mask_of = (0..listing.len()).map(mask).collect::<Result<Vec<u32>>>()?;
        if let Some((stem, _)) = by_stem.first_key_value() {
            return Err(unknown(format!("{named}/{stem} has no image in images")));
        }
        let (x, images) = (pictures.spec()[0].clone(), pictures.images());
        let spec = vec![x, FieldSpec::new("y", DType::I64, [images.height, images.width])];
        let mut all =
            Masks { pictures, masks, mask_of: mask_of.into(), is_binary: false, most_pixels: 0, spec };
        all.look()?;
        Ok(all)
    }

    /// Reads headers for the largest mask, and some masks for what they hold.
    fn look(&mut self) -> Result<()> {
        let mut scratch = Scratch::default();
        let (mut seen, mut is_white) = ([false; 256], false);
        for index in 0..self.masks.len() {
            let path = self.masks.path(index);
            let probe = image::Probe::of_file(&path)?;
            if probe.pixels() <= self.pictures.images().max_pixels as u64 {
                self.most_pixels = self.most_pixels.max(probe.pixels());
            }
            if index < LOOKED_AT {
                self.masks.load(index, &mut scratch.bytes)?;
                let limit = self.pictures.images().max_pixels;
                image::decode_ids(&scratch.bytes, &path, limit, &mut scratch.decoded)?;
                scratch.decoded.iter().for_each(|&class| seen[usize::from(class)] = true);
            }
        }
        is_white |= seen[255];
        self.is_binary = is_white && seen[1..255].iter().all(|&seen| !seen);
        Ok(())
    }

    fn write_mask(&self, index: u64, scratch: &mut Scratch, out: &mut [i64]) -> Result<()> {
        let mask = u64::from(self.mask_of[index as usize]);
        let path = self.masks.load(mask, &mut scratch.bytes)?;
        let images = self.pictures.images();
        let at = |error: FileError| Error::File(error.at(index));
        let size =
            image::decode_ids(&scratch.bytes, &path, images.max_pixels, &mut scratch.decoded).map_err(at)?;
        image::fit(&mut scratch.bytes, images.height * images.width);
        image::resize_nearest(&scratch.decoded, size, images.height, images.width, &mut scratch.bytes);
        for (class, &value) in out.iter_mut().zip(&scratch.bytes) {
            *class = match (self.is_binary, value) {
                (false, class) => class.into(),
                (true, 0) => 0,
                (true, 255) => 1,
                (true, other) => {
                    let what = format!("the mask holds {other} where the first ones hold 0 and 255 only");
                    return Err(at(FileError::damaged(&path, what)));
                }
            };
        }
        Ok(())
    }
}

impl Source for Masks {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        self.pictures.len()
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let (picture, mask) = (self.pictures.probe(index)?, u64::from(self.mask_of[index as usize]));
        let mask_path = self.masks.path(mask);
        let mask = image::Probe::of_file(&mask_path).map_err(|error| error.at(index))?;
        // A mask is drawn over the picture as it is stored or as it is shown; only the one that fits can be meant.
        let fits = |height: usize, width: usize| {
            let (a, b) = (height as f64 * mask.width as f64, width as f64 * mask.height as f64);
            (a - b).abs() <= 0.02 * a.max(b)
        };
        let turned = Folder::is_sideways(&picture)
            && picture.orientation.swaps_axes()
            && !fits(picture.height, picture.width)
            && fits(picture.width, picture.height);
        if !turned && !fits(picture.height, picture.width) {
            let what = format!(
                "the mask of {} × {} pixels does not fit its image of {} × {}",
                mask.height, mask.width, picture.height, picture.width
            );
            return Err(FileError::damaged(&mask_path, what).at(index).into());
        }
        self.pictures.write(index, turned, scratch, out.bytes_mut(0))?;
        self.write_mask(index, scratch, out.get_mut::<i64>(1)?)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.pictures.notes();
        notes.extend(self.masks.notes.clone());
        notes.push(match self.is_binary {
            true => "'y': masks hold 0 and 255 only, which are classes 0 and 1".into(),
            false => "'y': the class of each pixel is the number in its mask; resized without mixing".into(),
        });
        notes
    }

    fn sample_name(&self, index: u64) -> Option<String> {
        self.pictures.sample_name(index)
    }

    fn files(&self) -> Vec<PathBuf> {
        let masks = (0..self.masks.len()).map(|index| self.masks.path(index));
        self.pictures.files().into_iter().chain(masks).collect()
    }

    fn name(&self) -> String {
        self.pictures.name()
    }

    fn held(&self) -> u64 {
        self.pictures.held() + self.masks.held() + 4 * self.mask_of.len() as u64
    }

    fn scratch_bytes(&self) -> u64 {
        // Masks go through the same buffers: up to four bytes a pixel while decoding.
        let masks = self.masks.longest + 4 * self.most_pixels + (256 << 10);
        self.pictures.scratch_bytes().max(masks) + self.masks.longest
    }

    fn white(&self) -> Option<f32> {
        self.pictures.white()
    }

    fn stored(&self) -> Option<Arc<dyn Source>> {
        None
    }
}
