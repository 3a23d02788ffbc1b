//! Turns a folder of classes, each a folder of images, into samples.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::{FileError, image};
use plimsoll_graph::DType;

use super::picture::Images;
use super::{Scratch, Source};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};

/// `root/class/name.jpg`: the pixels are `x`, the number of the class in the order of names is `y`.
#[derive(Clone)]
pub(crate) struct Folder {
    root: PathBuf,
    classes: Arc<[String]>,
    /// The names of all files without their folders, one after the other: one allocation instead of one a file.
    names: Arc<str>,
    /// Where each name ends, and its class.
    files: Arc<[(u32, u32)]>,
    longest: u64,
    images: Images,
    dtype: DType,
    spec: Vec<FieldSpec>,
}

fn entries(path: &Path) -> Result<Vec<std::fs::DirEntry>> {
    let io = |error| FileError::io(path, error);
    let mut entries = std::fs::read_dir(path).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    // Systems list folders in any order; classes and samples must not depend on it.
    entries.sort_by_key(std::fs::DirEntry::file_name);
    Ok(entries)
}

/// Whether a folder holds folders of images.
pub(crate) fn has_classes(root: &Path) -> bool {
    let is_class = |folder: &std::fs::DirEntry| {
        let files =
            if folder.path().is_dir() { entries(&folder.path()).unwrap_or_default() } else { Vec::new() };
        files.iter().any(|file| image::is_image_name(&file.path()))
    };
    entries(root).unwrap_or_default().iter().any(is_class)
}

impl Folder {
    /// Lists a folder; without `images` the size of the first image is that of all.
    pub fn new(root: &Path, images: Option<Images>) -> Result<Folder> {
        let (mut classes, mut names, mut files, mut longest) = (Vec::new(), String::new(), Vec::new(), 0);
        for class in entries(root)?.into_iter().filter(|entry| entry.path().is_dir()) {
            let name = class.file_name().to_string_lossy().into_owned();
            for file in
                entries(&class.path())?.into_iter().filter(|entry| image::is_image_name(&entry.path()))
            {
                let path = file.path();
                longest = longest.max(file.metadata().map_err(|error| FileError::io(&path, error))?.len());
                let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                    return Err(
                        FileError::unsupported(&path, "the name is not Unicode; rename the file").into()
                    );
                };
                names.push_str(name);
                let Ok(end) = u32::try_from(names.len()) else {
                    let what = "the names of its files take more than 4 GiB; split the folder";
                    return Err(FileError::unsupported(root, what).into());
                };
                files.push((end, classes.len() as u32));
            }
            classes.push(name);
        }
        if files.is_empty() {
            let what = "it has no folders with JPEG or PNG files, one folder a class".to_owned();
            return Err(Error::Unknown { path: root.display().to_string(), what });
        }
        let mut folder = Folder {
            root: root.to_owned(),
            classes: classes.into(),
            names: names.into(),
            files: files.into(),
            longest,
            images: images.unwrap_or(Images::new(0, 0)),
            dtype: DType::F32,
            spec: Vec::new(),
        };
        if images.is_none() {
            let (mut scratch, limit) = (Scratch::default(), folder.images.max_pixels);
            let path = folder.load(0, &mut scratch)?.0;
            let size = image::decode(&scratch.bytes, &path, 3, limit, &mut scratch.decoded)?;
            folder.images = Images::new(size.height, size.width);
        }
        Ok(folder.with_dtype(DType::F32))
    }

    fn with_dtype(mut self, dtype: DType) -> Folder {
        self.dtype = dtype;
        self.spec = vec![self.images.field("x", dtype), FieldSpec::new("y", DType::I64, [])];
        self
    }

    /// Reads file `index` into the scratch; its path and its class.
    fn load(&self, index: u64, scratch: &mut Scratch) -> Result<(PathBuf, u32)> {
        let (end, class) = self.files[index as usize];
        let start = index.checked_sub(1).map_or(0, |before| self.files[before as usize].0);
        let name = &self.names[start as usize..end as usize];
        let path = self.root.join(&self.classes[class as usize]).join(name);
        let io = |error| FileError::io(&path, error);
        let file = File::open(&path).map_err(io)?;
        scratch.bytes.clear();
        // Files that have grown since they were listed are cut, and then refused by the decoder.
        file.take(self.longest).read_to_end(&mut scratch.bytes).map_err(io)?;
        Ok((path, class))
    }
}

impl Source for Folder {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        self.files.len() as u64
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let (path, class) = self.load(index, scratch)?;
        self.images.write(&path, scratch, self.dtype, out.bytes_mut(0)).map_err(|error| match error {
            Error::File(error) => Error::File(error.at(index)),
            other => other,
        })?;
        out.set(1, &[i64::from(class)])
    }

    fn name(&self) -> String {
        self.root.display().to_string()
    }

    fn held(&self) -> u64 {
        let classes: usize = self.classes.iter().map(|class| class.len() + 24).sum();
        (self.names.len() + self.files.len() * 8 + classes) as u64
    }

    fn scratch_bytes(&self) -> u64 {
        self.longest + self.images.scratch_bytes()
    }

    fn stored(&self) -> Option<Arc<dyn Source>> {
        Some(Arc::new(self.clone().with_dtype(DType::U8)))
    }
}
