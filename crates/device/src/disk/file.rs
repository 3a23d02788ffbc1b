//! A file without a name, as large as it will ever be.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Disk, system};
use crate::Bytes;
use crate::backend::Fault;

/// Bytes of a disk, given back with the last who holds them.
#[derive(Debug)]
pub(super) struct DiskFile {
    file: File,
    bytes: usize,
    disk: Arc<Disk>,
}

impl DiskFile {
    /// So many bytes, zeroed, that are taken from the disk at once.
    pub(super) fn new(disk: &Arc<Disk>, bytes: usize) -> Result<DiskFile, Fault> {
        let (asked, limit) = (bytes as u64, disk.limit.get());
        let add = |taken: u64| taken.checked_add(asked).filter(|all| *all <= limit);
        if let Err(taken) = disk.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            let (folder, taken) = (disk.folder.display(), Bytes(taken));
            let why = format!(
                "{} more are wanted in {folder}, of which {taken} of {} are taken; allow more of it (--disk)",
                Bytes(asked),
                disk.limit
            );
            return Err(Fault::new("disk", why));
        }
        let made = disk.unnamed().and_then(|file| {
            system::take(&file, asked)?;
            Ok(file)
        });
        match made {
            Ok(file) => Ok(DiskFile { file, bytes, disk: disk.clone() }),
            Err(why) => {
                disk.taken.fetch_sub(asked, Ordering::Relaxed);
                Err(disk.fault(&format!("given {} more", Bytes(asked)), &why))
            }
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        self.disk.taken.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}
