//! Turns folders of images, one folder a class or without classes, into samples.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::image::{Orientation, Probe};

use super::listing::{Listing, folders, has_classes, has_images};
use super::picture::{Images, Needs, Pictures, of_pictures};
use super::{Scratch, Source};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};
use crate::scale::Scale;

/// How a folder of images is read.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    /// What images become; without it, the size of the first one, in color.
    pub images: Option<Images>,
    /// Whether folders are classes; without it, they are if there are any with images.
    pub labelled: Option<bool>,
    /// The names of the classes in their order; without it, those of the folders.
    pub classes: Option<Vec<String>>,
    pub scale: Scale,
}

/// `root/class/name.jpg`: the pixels are `x`, the number of the class is `y`. Without classes there is only `x`.
#[derive(Clone)]
pub(crate) struct Folder {
    listing: Listing,
    /// None where there are no labels.
    classes: Option<Classes>,
    pictures: Pictures,
}

/// Names of classes, and the class of each folder.
#[derive(Clone)]
struct Classes {
    names: Arc<[String]>,
    numbers: Arc<[u32]>,
}

fn unknown(root: &Path, what: String) -> Error {
    Error::Unknown { path: root.display().to_string(), what }
}

impl Folder {
    /// Lists a folder, or takes a single file, and reads the headers of its images.
    pub fn new(root: &Path, form: &Form) -> Result<Folder> {
        if root.is_file() {
            let labelled = form.labelled == Some(true);
            let what = || {
                unknown(
                    root,
                    "a single image has no label; give a folder with a folder for each class".into(),
                )
            };
            return if labelled { Err(what()) } else { Folder::of(Listing::file(root)?, None, form) };
        }
        let has_labels = form.labelled.unwrap_or_else(|| has_classes(root));
        let below = folders(root)?;
        if !has_labels {
            let mut all = vec![String::new()];
            if form.labelled == Some(false) {
                all.extend(below);
            }
            return Folder::of(Listing::new(root, all)?, None, form);
        }
        let classes = form.classes.clone().unwrap_or_else(|| below.clone());
        let number = |folder: &String| match classes.iter().position(|class| class == folder) {
            Some(class) => Ok(class as u32),
            None => {
                let names = classes.join(", ");
                Err(unknown(root, format!("its folder '{folder}' is none of the classes {names}")))
            }
        };
        let numbers = below.iter().map(number).collect::<Result<Vec<u32>>>()?;
        let mut folder = Folder::of(
            Listing::new(root, below)?,
            Some(Classes { names: classes.into(), numbers: numbers.into() }),
            form,
        )?;
        if has_images(root) {
            folder
                .pictures
                .notes
                .push("images beside the folders of classes have no class and are left out".into());
        }
        Ok(folder)
    }

    fn of(listing: Listing, classes: Option<Classes>, form: &Form) -> Result<Folder> {
        if listing.len() == 0 {
            let what = match classes {
                Some(_) => "it has no folders with images, one folder a class",
                None => "it has no images (JPEG, PNG, GIF, BMP or WebP, by their names)",
            };
            return Err(unknown(&listing.root, what.into()));
        }
        let images = match form.images {
            Some(images) => images.checked()?,
            None => {
                let first = Probe::of_file(&listing.path(0)).map_err(|error| error.at(0))?;
                Images::as_first(&first, &listing.path(0))?
            }
        };
        let mut needs = Needs { longest: listing.longest, ..Needs::default() };
        for index in 0..listing.len() {
            // What is damaged is said when it is read, with its number, so that it can be skipped.
            if let Ok(probe) = Probe::of_file(&listing.path(index)) {
                needs.see(&probe, images);
            }
        }
        let notes = listing.notes.clone();
        let pictures = Pictures::new(images, needs, classes.is_some(), form.scale, notes);
        Ok(Folder { listing, classes, pictures })
    }

    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    pub fn images(&self) -> Images {
        self.pictures.images
    }

    /// Writes the pixels of image `index`; `turned` says whether a photo is turned upright.
    pub fn write(&self, index: u64, turned: bool, scratch: &mut Scratch, out: &mut [u8]) -> Result<()> {
        let path = self.listing.load(index, &mut scratch.bytes)?;
        self.pictures.write(index, &path, scratch, turned, out)
    }

    /// What the header of image `index` says.
    pub fn probe(&self, index: u64) -> Result<Probe> {
        Ok(Probe::of_file(&self.listing.path(index)).map_err(|error| error.at(index))?)
    }

    pub fn is_sideways(probe: &Probe) -> bool {
        probe.orientation != Orientation::UPRIGHT
    }
}

impl Source for Folder {
    of_pictures!();

    fn len(&self) -> u64 {
        self.listing.len()
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        self.write(index, true, scratch, out.bytes_mut(0))?;
        match &self.classes {
            Some(classes) => out.set(1, &[i64::from(classes.numbers[self.listing.folder(index)])]),
            None => Ok(()),
        }
    }

    fn class_names(&self) -> Option<Vec<String>> {
        Some(self.classes.as_ref()?.names.to_vec())
    }

    fn class(&self, index: u64) -> Option<i64> {
        let classes = self.classes.as_ref()?;
        (index < self.listing.len()).then(|| i64::from(classes.numbers[self.listing.folder(index)]))
    }

    fn sample_name(&self, index: u64) -> Option<String> {
        (index < self.listing.len()).then(|| self.listing.name(index))
    }

    fn files(&self) -> Vec<PathBuf> {
        (0..self.listing.len()).map(|index| self.listing.path(index)).collect()
    }

    fn name(&self) -> String {
        self.listing.root.display().to_string()
    }

    fn held(&self) -> u64 {
        let classes = self.classes.as_ref().map_or(0, |classes| {
            classes.names.iter().map(|class| class.len() + 24).sum::<usize>() + 4 * classes.numbers.len()
        });
        self.listing.held() + classes as u64
    }
}
