//! Turns a `.pt2` archive into its JSON texts and the bytes of its tensors. Pickles in it are never read.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

use crate::error::{Error, Result};

/// The most that is believed of an archive.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Members.
    pub members: usize,
    /// Bytes of one JSON text.
    pub json: u64,
    /// Bytes of a tensor that repeats its elements (a stride of 0): all others are no larger than their members.
    pub repeated: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { members: 1 << 18, json: 1 << 29, repeated: 1 << 26 }
    }
}

trait ReadSeek: Read + Seek + Send {}
impl<T: Read + Seek + Send> ReadSeek for T {}

/// An archive that is open.
pub struct Archive {
    file: String,
    /// The folder in which every member is.
    folder: String,
    zip: Mutex<ZipArchive<BufReader<Box<dyn ReadSeek>>>>,
}

impl Archive {
    pub fn open(path: &Path, limits: &Limits) -> Result<Archive> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|source| Error::Io { file: name.clone(), source })?;
        Archive::of(Box::new(file), name, limits)
    }

    pub fn from_bytes(bytes: Vec<u8>, name: &str, limits: &Limits) -> Result<Archive> {
        Archive::of(Box::new(Cursor::new(bytes)), name.into(), limits)
    }

    fn of(file: Box<dyn ReadSeek>, name: String, limits: &Limits) -> Result<Archive> {
        let broken = |why: String| Error::Archive { file: name.clone(), why };
        // PyTorch's archives begin where the file begins. Looking for their beginning goes wrong where the first name has 30 letters: behind the members stand two
        // records that are not counted, of as many bytes as such a member's header.
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let mut zip = ZipArchive::with_config(config, BufReader::new(file))
            .map_err(|error| broken(format!("it is no .pt2 archive, which is a zip file: {error}")))?;
        if zip.len() > limits.members {
            let most = limits.members;
            return Err(broken(format!("it has {} members, and at most {most} are read", zip.len())));
        }
        if zip.has_duplicate_names() {
            return Err(broken("two members have the same name".into()));
        }
        let mut folder = None;
        for i in 0..zip.len() {
            let member = zip.by_index_raw(i).map_err(|error| broken(error.to_string()))?;
            let Ok(name) = std::str::from_utf8(member.name_raw()) else {
                return Err(broken(format!("the name of member {i} is not text in UTF-8")));
            };
            if member.encrypted() || member.compression() != CompressionMethod::Stored {
                return Err(broken(format!("its member {name} is not stored as it is; PyTorch stores all")));
            }
            if let Some(before) = name.strip_suffix("models/model.json") {
                folder = Some(before.to_string());
            }
        }
        let Some(folder) = folder else {
            let why = "it holds no models/model.json, so that it is no exported program; write one with torch.export.save";
            return Err(broken(why.into()));
        };
        Ok(Archive { file: name, folder, zip: Mutex::new(zip) })
    }

    pub fn file(&self) -> &str {
        &self.file
    }

    /// Reads a JSON text; none where there is no such member.
    pub fn json<T: serde::de::DeserializeOwned>(&self, member: &str, limits: &Limits) -> Result<Option<T>> {
        let Some(bytes) = self.text(member, limits)? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| self.broken(format!("{member}: {error}")))
    }

    fn text(&self, member: &str, limits: &Limits) -> Result<Option<Vec<u8>>> {
        let Some(size) = self.size(member)? else { return Ok(None) };
        if size > limits.json {
            return Err(
                self.broken(format!("{member} has {size} bytes, and at most {} are read", limits.json))
            );
        }
        let mut bytes = Vec::new();
        self.with(member, |read| read.take(size).read_to_end(&mut bytes).map(drop))?;
        Ok(Some(bytes))
    }

    /// The bytes of a member; none where there is none such.
    pub fn size(&self, member: &str) -> Result<Option<u64>> {
        let path = format!("{}{member}", self.folder);
        let mut zip = self.zip.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = zip.index_for_name(&path) else { return Ok(None) };
        let size = zip.by_index_raw(index).map(|member| member.size());
        size.map(Some).map_err(|error| self.broken(format!("{member}: {error}")))
    }

    /// Reads a member to its end, where its checksum is compared.
    pub fn read_into(&self, member: &str, buffer: &mut [u8]) -> Result<()> {
        self.with(member, |read| {
            read.read_exact(buffer)?;
            io::copy(read, &mut io::sink()).map(drop)
        })
    }

    fn with(&self, member: &str, body: impl FnOnce(&mut dyn Read) -> io::Result<()>) -> Result<()> {
        let path = format!("{}{member}", self.folder);
        let mut zip = self.zip.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = zip.by_name(&path).map_err(|error| self.broken(format!("{member}: {error}")))?;
        body(&mut found).map_err(|error| self.broken(format!("{member}: {error}")))
    }

    pub fn broken(&self, why: String) -> Error {
        Error::Archive { file: self.file.clone(), why }
    }
}
