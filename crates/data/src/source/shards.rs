//! Turns tar archives of images and labels, as WebDataset writes them, into samples.
//!
//! Files of a sample stand one after another and share their name up to the first dot: `0001.jpg`, `0001.cls`. Places are found
//! once; after that any sample can be read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::image::{ENDINGS, Probe};
use plimsoll_formats::tar::{self, Member};
use plimsoll_formats::{FileError, Result as FileResult};

use super::picture::{Images, Needs, Pictures, of_pictures};
use super::{Scratch, Source, read_at};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};
use crate::scale::Scale;

/// What the name of a label ends in: a whole number in digits.
const LABEL: &str = "cls";
/// A label has no more digits than this.
const LABEL_MOST: u64 = 32;
/// An image of more bytes is none.
const IMAGE_MOST: u64 = 1 << 30;

/// Samples of several archives; 32 bytes a sample are kept.
#[derive(Clone)]
pub(crate) struct Shards {
    files: Arc<[(File, PathBuf)]>,
    samples: Arc<[Place]>,
    pictures: Pictures,
}

/// Where a sample lies.
#[derive(Clone, Copy)]
struct Place {
    file: u32,
    len: u32,
    start: u64,
    label: i64,
}

/// A sample in the finding.
#[derive(Default)]
struct Found {
    key: Option<String>,
    image: Option<(u64, u32)>,
    label: Option<i64>,
}

/// A part of a file, from its front.
struct Section<'a> {
    file: &'a File,
    start: u64,
    len: u64,
    at: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = out.len().min(usize::try_from(self.len.saturating_sub(self.at)).unwrap_or(usize::MAX));
        read_at(self.file, &mut out[..count], self.start + self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Section<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = target.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// The name of a sample and what kind of file of it this is.
fn parts(name: &str) -> (&str, &str) {
    let from = name.rfind('/').map_or(0, |slash| slash + 1);
    name[from..].find('.').map_or((name, ""), |dot| (&name[..from + dot], &name[from + dot + 1..]))
}

/// What is found in one archive after another.
struct Finder {
    samples: Vec<Place>,
    /// Kinds of files that are left out.
    others: BTreeSet<String>,
    labelled: u64,
}

impl Finder {
    fn archive(&mut self, number: u32, file: &File, path: &Path) -> FileResult<()> {
        let mut found = Found::default();
        tar::scan(path, |member| {
            let (key, kind) = parts(&member.name);
            if found.key.as_deref() != Some(key) {
                let before = std::mem::take(&mut found);
                self.keep(number, before, path)?;
                found.key = Some(key.to_owned());
            }
            self.member(&mut found, kind, &member, file, path)
        })?;
        self.keep(number, found, path)
    }

    fn member(
        &mut self,
        found: &mut Found,
        kind: &str,
        member: &Member,
        file: &File,
        path: &Path,
    ) -> FileResult<()> {
        let wrong = |what: &str| FileError::damaged(path, format!("{}: {what}", member.name));
        if ENDINGS.iter().any(|ending| kind.eq_ignore_ascii_case(ending)) {
            let len = u32::try_from(member.len).ok().filter(|_| member.len <= IMAGE_MOST);
            let len = len.ok_or_else(|| wrong("an image of more than 1 GiB is none"))?;
            if found.image.replace((member.start, len)).is_some() {
                return Err(wrong("the sample has two images; one is read"));
            }
        } else if kind.eq_ignore_ascii_case(LABEL) {
            let mut digits = vec![0; member.len.min(LABEL_MOST) as usize];
            read_at(file, &mut digits, member.start).map_err(|error| FileError::io(path, error))?;
            let label = std::str::from_utf8(&digits).ok().and_then(|digits| digits.trim().parse().ok());
            let label = label.filter(|_| member.len <= LABEL_MOST);
            found.label = Some(label.ok_or_else(|| wrong("a label is a whole number in digits"))?);
        } else if self.others.len() < 16 {
            self.others.insert(if kind.is_empty() { member.name.clone() } else { format!(".{kind}") });
        }
        Ok(())
    }

    fn keep(&mut self, file: u32, found: Found, path: &Path) -> FileResult<()> {
        let (Some(key), Some((start, len))) = (&found.key, found.image) else {
            return match (found.key, found.label) {
                (Some(key), Some(_)) => {
                    Err(FileError::damaged(path, format!("sample {key} has a label and no image")))
                }
                _ => Ok(()),
            };
        };
        let count = self.samples.len() as u64;
        if (self.labelled > 0) != found.label.is_some() && count > 0 {
            let what = format!("sample {key}: some samples have a label (.{LABEL}) and some have none");
            return Err(FileError::damaged(path, what));
        }
        self.labelled += u64::from(found.label.is_some());
        self.samples.push(Place { file, len, start, label: found.label.unwrap_or(0) });
        Ok(())
    }
}

impl Shards {
    /// Follows the headers of all archives, and reads those of the images.
    pub fn new(paths: &[PathBuf], images: Option<Images>, scale: Scale) -> Result<Shards> {
        let mut finder = Finder { samples: Vec::new(), others: BTreeSet::new(), labelled: 0 };
        let mut files = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            let file = File::open(path).map_err(|error| FileError::io(path, error))?;
            finder.archive(number as u32, &file, path)?;
            files.push((file, path.clone()));
        }
        let Finder { samples, others, labelled } = finder;
        let probe = |place: &Place| {
            let (file, path) = &files[place.file as usize];
            let section = Section { file, start: place.start, len: u64::from(place.len), at: 0 };
            Probe::read(&mut std::io::BufReader::with_capacity(4 << 10, section), path)
        };
        let Some(first) = samples.first() else {
            let path = paths.first().map_or(String::new(), |path| path.display().to_string());
            let what = "it has no images (NAME.jpg, with NAME.cls for the number of its class)".into();
            return Err(Error::Unknown { path, what });
        };
        let images = match images {
            Some(images) => images.checked()?,
            None => Images::as_first(&probe(first).map_err(|error| error.at(0))?, &files[0].1)?,
        };
        let longest = samples.iter().map(|place| u64::from(place.len)).max().unwrap_or(0);
        let mut needs = Needs { longest, ..Needs::default() };
        // What is damaged is said when it is read, with its number, so that it can be skipped.
        samples.iter().filter_map(|place| probe(place).ok()).for_each(|probe| needs.see(&probe, images));
        let mut notes = Vec::new();
        if !others.is_empty() {
            let others: Vec<String> = others.into_iter().collect();
            notes.push(format!("files of other kinds in the archives are left out: {}", others.join(", ")));
        }
        let pictures = Pictures::new(images, needs, labelled > 0, scale, notes);
        Ok(Shards { files: files.into(), samples: samples.into(), pictures })
    }
}

impl Source for Shards {
    of_pictures!();

    fn len(&self) -> u64 {
        self.samples.len() as u64
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let Place { file, len, start, label } = self.samples[index as usize];
        let (file, path) = &self.files[file as usize];
        scratch.bytes.resize(len as usize, 0);
        read_at(file, &mut scratch.bytes, start).map_err(|error| FileError::io(path, error).at(index))?;
        self.pictures.write(index, path, scratch, true, out.bytes_mut(0))?;
        if self.pictures.has_labels() { out.set(1, &[label]) } else { Ok(()) }
    }

    fn class(&self, index: u64) -> Option<i64> {
        let place = self.samples.get(usize::try_from(index).ok()?)?;
        self.pictures.has_labels().then_some(place.label)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.iter().map(|(_, path)| path.clone()).collect()
    }

    fn name(&self) -> String {
        self.files.first().map_or(String::new(), |(_, path)| path.display().to_string())
    }

    fn held(&self) -> u64 {
        (size_of::<Place>() * self.samples.len() + 512 * self.files.len()) as u64
    }
}
