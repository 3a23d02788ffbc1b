//! Turns folders into the names of their images, in an order that does not depend on the system.

use std::fs::{DirEntry, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::{FileError, image};

use crate::error::{Error, Result};

/// Images in folders below a root: a few bytes and the name are kept for each.
#[derive(Clone)]
pub(crate) struct Listing {
    pub root: PathBuf,
    /// Folders below the root; an empty name stands for the root itself.
    pub folders: Arc<[String]>,
    /// The names of all files without their folders, one after the other: one allocation instead of one a file.
    names: Arc<str>,
    /// Where each name ends, and its folder.
    files: Arc<[(u32, u32)]>,
    pub longest: u64,
    /// What was left out.
    pub notes: Vec<String>,
}

/// What is in a folder, sorted by name; hidden files and folders are nobody's data.
pub(crate) fn entries(path: &Path) -> Result<Vec<DirEntry>> {
    let io = |error| FileError::io(path, error);
    let mut entries = std::fs::read_dir(path).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    entries.retain(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    // Systems list folders in any order; classes and samples must not depend on it.
    entries.sort_by_key(DirEntry::file_name);
    Ok(entries)
}

/// Whether something in a folder is as `is` says; hidden entries do not count. Looks no further than the first.
fn any(folder: &Path, is: impl Fn(&Path) -> bool) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let seen = |entry: &DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    entries.filter_map(Result::ok).filter(seen).any(|entry| is(&entry.path()))
}

/// Whether a folder itself holds images.
pub(crate) fn has_images(folder: &Path) -> bool {
    any(folder, |path| image::is_image_name(path) && !path.is_dir())
}

/// Whether a folder holds folders of images.
pub(crate) fn has_classes(root: &Path) -> bool {
    any(root, |path| path.is_dir() && has_images(path))
}

/// Folders in a folder, by name.
pub(crate) fn folders(root: &Path) -> Result<Vec<String>> {
    let all = entries(root)?.into_iter().filter(|entry| entry.path().is_dir());
    all.map(|entry| unicode(&entry.path())).collect()
}

fn unicode(path: &Path) -> Result<String> {
    match path.file_name().and_then(|name| name.to_str()) {
        Some(name) => Ok(name.to_owned()),
        None => Err(FileError::unsupported(path, "the name is not Unicode; rename it").into()),
    }
}

impl Listing {
    /// The images in these folders below a root, and those in the root itself where an empty name is among them.
    pub fn new(root: &Path, folders: Vec<String>) -> Result<Listing> {
        let (mut names, mut files, mut longest) = (String::new(), Vec::new(), 0);
        let (mut others, mut deeper) = (Vec::new(), Vec::new());
        for (number, folder) in folders.iter().enumerate() {
            for file in entries(&root.join(folder))? {
                let path = file.path();
                // Most systems tell folders from files without asking the disk again; a link must be followed.
                let kind = file.file_type().map_err(|error| FileError::io(&path, error))?;
                if kind.is_dir() || (kind.is_symlink() && path.is_dir()) {
                    if !folder.is_empty() {
                        deeper.push(format!("{folder}/{}", file.file_name().display()));
                    }
                    continue;
                }
                if !image::is_image_name(&path) {
                    others.push(file.file_name().display().to_string());
                    continue;
                }
                longest = longest.max(file.metadata().map_err(|error| FileError::io(&path, error))?.len());
                names.push_str(&unicode(&path)?);
                let Ok(end) = u32::try_from(names.len()) else {
                    let what = "the names of its files take more than 4 GiB; split the folder";
                    return Err(FileError::unsupported(root, what).into());
                };
                files.push((end, number as u32));
            }
        }
        let left_out = |what: &str, list: &[String]| match list {
            [] => None,
            [first, ..] => Some(format!("{} {what} left out: {first}{}", list.len(), more(list))),
        };
        let notes = [
            left_out("files that are no images by their names are", &others),
            left_out("folders inside folders of images are", &deeper),
        ];
        let (folders, notes) = (folders.into(), notes.into_iter().flatten().collect());
        Ok(Listing {
            root: root.to_owned(),
            folders,
            names: names.into(),
            files: files.into(),
            longest,
            notes,
        })
    }

    /// A single file.
    pub fn file(path: &Path) -> Result<Listing> {
        let longest = std::fs::metadata(path).map_err(|error| FileError::io(path, error))?.len();
        let name = unicode(path)?;
        let files = [(name.len() as u32, 0)].into();
        let root = path.parent().unwrap_or(Path::new("")).to_owned();
        let (folders, notes) = (["".to_owned()].into(), Vec::new());
        Ok(Listing { root, folders, names: name.into(), files, longest, notes })
    }

    pub fn len(&self) -> u64 {
        self.files.len() as u64
    }

    /// The folder of a file, by number.
    pub fn folder(&self, index: u64) -> usize {
        self.files[index as usize].1 as usize
    }

    /// The name of a file in its folder.
    pub fn file_name(&self, index: u64) -> &str {
        let end = self.files[index as usize].0;
        let start = index.checked_sub(1).map_or(0, |before| self.files[before as usize].0);
        &self.names[start as usize..end as usize]
    }

    /// The name of a file below the root.
    pub fn name(&self, index: u64) -> String {
        match self.folders[self.folder(index)].as_str() {
            "" => self.file_name(index).to_owned(),
            folder => format!("{folder}/{}", self.file_name(index)),
        }
    }

    pub fn path(&self, index: u64) -> PathBuf {
        self.root.join(&self.folders[self.folder(index)]).join(self.file_name(index))
    }

    /// Reads a file.
    pub fn load(&self, index: u64, bytes: &mut Vec<u8>) -> Result<PathBuf> {
        let path = self.path(index);
        let io = |error| Error::File(FileError::io(&path, error).at(index));
        let file = File::open(&path).map_err(io)?;
        bytes.clear();
        bytes.reserve_exact(usize::try_from(self.longest).unwrap_or(0));
        // Files that have grown since they were listed are cut, and then refused by the decoder.
        file.take(self.longest).read_to_end(bytes).map_err(io)?;
        Ok(path)
    }

    pub fn held(&self) -> u64 {
        let folders: usize = self.folders.iter().map(|folder| folder.len() + 24).sum();
        (self.names.len() + self.files.len() * 8 + folders) as u64
    }
}

fn more(list: &[String]) -> &'static str {
    if list.len() > 1 { ", …" } else { "" }
}
