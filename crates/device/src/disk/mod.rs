//! Turns a folder of a disk into memory that is large and slow: what a device keeps there it brings before it is wanted and takes back.
//!
//! Files have no names: each is taken out of the folder as soon as it is open, so that nothing is left behind however a process ends. All
//! bytes of a file are taken from the disk when it is made, so that a disk that is full is told then and not in the middle of a step. Tensors
//! there have addresses (`block`), which everything but a kernel is spared: bytes are read and written through the file, since pages that are
//! touched at an address count as the process's own.

mod arena;
mod block;
mod file;
mod speed;
mod system;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use arena::DiskArena;
pub use block::DiskBlock;

use crate::Bytes;
use crate::backend::Fault;
use file::DiskFile;

/// A folder of a disk, and how much of it may be taken.
///
/// ```
/// use plimsoll_device::{Bytes, Disk};
/// let disk = Disk::new(&std::env::temp_dir(), Bytes::mib(1));
/// # #[cfg(target_os = "linux")]
/// assert_eq!(disk.unwrap().taken(), Bytes::ZERO);
/// assert!(Disk::new("there is no such folder".as_ref(), Bytes::mib(1)).is_err());
/// ```
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    limit: Bytes,
    taken: AtomicU64,
    /// By the address of its first byte: where each block is, and how long.
    blocks: Mutex<BTreeMap<usize, Arc<DiskFile>>>,
}

/// Why a folder is none to keep tensors in.
#[derive(Debug, thiserror::Error)]
pub enum NoDisk {
    /// It is not there, or no folder.
    #[error("{folder}: there is no such folder; make it, or name another")]
    Missing {
        /// As it was named.
        folder: PathBuf,
    },
    /// No file can be made in it.
    #[error("{folder}: no file can be made there ({why}); name a folder that this user may write to")]
    NotWritable {
        /// As it was named.
        folder: PathBuf,
        /// What the system says.
        why: std::io::Error,
    },
    /// Its disk has not so much left.
    #[error("{folder}: {asked} are asked for and its disk has {free} left; ask for less, or free some of it")]
    TooFull {
        /// As it was named.
        folder: PathBuf,
        /// What was asked for.
        asked: Bytes,
        /// What is left.
        free: Bytes,
    },
    /// Nothing was asked for.
    #[error("{folder}: nothing is asked of it; say how much may be taken, as in {folder}:200GiB")]
    Nothing {
        /// As it was named.
        folder: PathBuf,
    },
    /// Files cannot be read and written at addresses here.
    #[error("tensors are kept on a disk under Linux alone")]
    NotHere,
}

impl Disk {
    /// A folder of which so many bytes may be taken. A file is made there and written to, to see that it can be.
    ///
    /// # Errors
    /// The folder is not there, cannot be written to, or its disk has not so much left.
    pub fn new(folder: &Path, limit: Bytes) -> Result<Arc<Disk>, NoDisk> {
        let named = || folder.to_path_buf();
        if !system::IS_HERE {
            return Err(NoDisk::NotHere);
        }
        if !folder.is_dir() {
            return Err(NoDisk::Missing { folder: named() });
        }
        if limit == Bytes::ZERO {
            return Err(NoDisk::Nothing { folder: named() });
        }
        let refused = |why| NoDisk::NotWritable { folder: named(), why };
        let first = system::unnamed(folder).map_err(refused)?;
        system::write(&first, 0, &[0; 512]).map_err(refused)?;
        if let Some(free) = system::free(folder).filter(|free| *free < limit) {
            return Err(NoDisk::TooFull { folder: named(), asked: limit, free });
        }
        Ok(Arc::new(Disk { folder: named(), limit, taken: AtomicU64::new(0), blocks: Mutex::default() }))
    }

    /// A disk that is not there, to plan with: nothing can be kept on it. None where nothing could be kept on any.
    pub fn imagined(limit: Bytes) -> Option<Arc<Disk>> {
        let disk =
            || Disk { folder: PathBuf::new(), limit, taken: AtomicU64::new(0), blocks: Mutex::default() };
        system::IS_HERE.then(|| Arc::new(disk()))
    }

    /// A new file without a name in its folder; a disk that is only imagined has none.
    fn unnamed(&self) -> std::io::Result<std::fs::File> {
        if self.folder.as_os_str().is_empty() {
            return Err(std::io::Error::other("the disk is only planned for"));
        }
        system::unnamed(&self.folder)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How much of it may be taken.
    pub fn limit(&self) -> Bytes {
        self.limit
    }

    /// How much of it is taken.
    pub fn taken(&self) -> Bytes {
        Bytes(self.taken.load(Ordering::Relaxed))
    }

    /// Whether its files are in memory, and no memory is saved by them.
    pub fn is_in_memory(&self) -> bool {
        system::is_in_memory(&self.folder)
    }

    /// So many bytes of it at an address, zeroed.
    ///
    /// # Errors
    /// More than may be taken, or the disk is full.
    pub fn block(self: &Arc<Disk>, bytes: usize) -> Result<DiskBlock, Fault> {
        DiskBlock::new(self, bytes)
    }

    /// Reads bytes of a block; nothing happens where the address is of none.
    ///
    /// # Errors
    /// What the disk says.
    pub fn read(&self, from: *const u8, into: &mut [u8]) -> Result<bool, Fault> {
        let Some((file, offset)) = self.find(from, into.len()) else { return Ok(false) };
        system::read(file.file(), offset, into).map_err(|why| self.fault("read", &why))?;
        Ok(true)
    }

    /// Writes bytes of a block; nothing happens where the address is of none.
    ///
    /// # Errors
    /// What the disk says.
    pub fn write(&self, to: *mut u8, bytes: &[u8]) -> Result<bool, Fault> {
        let Some((file, offset)) = self.find(to, bytes.len()) else { return Ok(false) };
        system::write(file.file(), offset, bytes).map_err(|why| self.fault("written", &why))?;
        Ok(true)
    }

    /// Whether an address is of a block.
    pub fn has(&self, at: *const u8) -> bool {
        self.find(at, 0).is_some()
    }

    /// The file of a block that has these bytes, and where they are in it.
    fn find(&self, at: *const u8, bytes: usize) -> Option<(Arc<DiskFile>, u64)> {
        let blocks = self.blocks();
        let (start, file) = blocks.range(..=at.addr()).next_back()?;
        let offset = at.addr() - start;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= file.bytes());
        // An empty slice behind the last byte of a block is of none.
        (is_inside && offset < file.bytes()).then(|| (file.clone(), offset as u64))
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<DiskFile>>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is said of bytes that could not be read, written or taken.
    fn fault(&self, what: &str, why: &std::io::Error) -> Fault {
        let folder = self.folder.display();
        let todo = "see that its disk has room and may be written to; a run goes on from its last checkpoint";
        Fault::new("disk", format!("tensors kept in {folder} could not be {what}: {why}; {todo}"))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
