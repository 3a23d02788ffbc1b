//! A device with a folder of a disk beside its memory: what a step keeps there it brings before it is wanted and takes back.

use std::path::Path;
use std::sync::Arc;

use plimsoll_device::backend::Backend;
use plimsoll_device::{Bytes, Disk};
use plimsoll_graph::Site;

use super::Device;
use crate::error::{Error, Result};

/// What timing a disk takes of memory.
const TIMED_IN: Bytes = Bytes::mib(1);

impl Device {
    /// The same device, kernels and memory, with so many bytes of a folder beside them: a step whose plan wants it keeps weights and the
    /// optimizer's state in files there, and copies activations there and back, as far as
    /// [`MemoryRequest::host_limit`](crate::MemoryRequest::host_limit) says; to a trainer that is all of it. How fast the disk is, is timed once
    /// where times are kept ([`Device::calibrate`]). The files have no names and are gone with the device, however its process ends.
    ///
    /// ```
    /// use plimsoll_run::Device;
    /// let device = Device::cpu_with(1, "64MiB".parse().unwrap())?;
    /// # #[cfg(target_os = "linux")]
    /// assert!(device.with_disk(&std::env::temp_dir(), "1MiB".parse().unwrap())?.disk().is_some());
    /// assert!(device.with_disk("no such folder".as_ref(), "1MiB".parse().unwrap()).is_err());
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// The folder is not there, cannot be written to, or its disk has not so much left; or the device is a card, which keeps such things
    /// in the host's memory.
    #[track_caller]
    pub fn with_disk(&self, folder: &Path, bytes: Bytes) -> Result<Device> {
        let site = Site::here();
        let disk = Disk::new(folder, bytes).map_err(|why| Error::Disk { why: why.to_string(), site })?;
        let Some(backend) = self.0.backend.with_disk(&disk) else {
            let why = format!(
                "{} keeps nothing on a disk, only the CPU does; give it host memory (--host-memory) instead",
                self.name()
            );
            return Err(Error::Disk { why, site });
        };
        let device = self.with_backend(backend);
        device.costs().time_link(&device, TIMED_IN)?;
        Ok(device)
    }

    /// The same with other means, and the same ranks.
    fn with_backend(&self, backend: Arc<dyn Backend>) -> Device {
        let mut device = self.alike(self.0.memory.clone());
        device.backend = backend;
        let device = Device(Arc::new(device));
        match self.ranks().cloned() {
            Some(peers) => device.with_ranks(peers),
            None => device,
        }
    }

    /// The same with a disk that is not there, to ask what a step would take with one; none where it can have none, or copies elsewhere
    /// already.
    pub(crate) fn imagining_disk(&self, bytes: Bytes) -> Option<Device> {
        let disk = Disk::imagined(bytes).filter(|_| !self.copies_to_host())?;
        self.0.backend.with_disk(&disk).map(|backend| self.with_backend(backend))
    }

    /// The folder of a disk that it has beside its memory.
    pub fn disk(&self) -> Option<&Arc<Disk>> {
        self.0.backend.disk()
    }
}
