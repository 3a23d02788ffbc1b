//! Bytes of a disk at an address.

use std::sync::Arc;

use super::file::DiskFile;
use super::{Disk, system};
use crate::backend::{Fault, HostBlock};

/// A file that is mapped, for as long as somebody holds it.
#[derive(Debug)]
pub struct DiskBlock {
    at: *mut u8,
    bytes: usize,
    disk: Arc<Disk>,
}

// SAFETY: an address of a mapping that lives as long as the block; it is followed under the promises of who uses it.
unsafe impl Send for DiskBlock {}
// SAFETY: as above.
unsafe impl Sync for DiskBlock {}

impl DiskBlock {
    pub(super) fn new(disk: &Arc<Disk>, bytes: usize) -> Result<DiskBlock, Fault> {
        // What is empty has an address too.
        let file = DiskFile::new(disk, bytes.max(1))?;
        let at = system::map(file.file(), file.bytes()).map_err(|why| disk.fault("mapped", &why))?;
        disk.blocks().insert(at.addr(), Arc::new(file));
        Ok(DiskBlock { at, bytes, disk: disk.clone() })
    }
}

impl HostBlock for DiskBlock {
    fn place(&self) -> (*mut u8, usize) {
        (self.at, self.bytes)
    }
}

impl Drop for DiskBlock {
    fn drop(&mut self) {
        self.disk.blocks().remove(&self.at.addr());
        system::unmap(self.at, self.bytes.max(1));
    }
}
