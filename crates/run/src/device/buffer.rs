//! Turns a request for bytes into a block of a device's memory that is given back when it is dropped.

use std::any::Any;

use plimsoll_device::backend::HostBlock;
use plimsoll_device::{Lease, Verdict};
use plimsoll_graph::Site;

use super::Device;
use crate::error::{Error, Result};

/// Bytes on a device, or of the host's where the device reaches them. Written by the op that makes them, then only read, until
/// the last tensor lets go of them.
pub(crate) struct Buffer {
    memory: Memory,
    device: Device,
}

enum Memory {
    Device(Lease),
    Host(Box<dyn HostBlock>),
    Borrowed(Borrowed),
}

/// Memory of another library of the process, which gets it back when `owner` is dropped.
struct Borrowed {
    at: *mut u8,
    bytes: usize,
    device: Device,
    owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: an address that is only read through, and an owner that may be dropped anywhere.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // What is queued may still read it. A device that has failed reads nothing any more.
        self.device.backend().synchronize().ok();
        drop(self.owner.take());
    }
}

impl Buffer {
    pub(crate) fn new(device: &Device, bytes: usize, op: &'static str, site: Site) -> Result<Buffer> {
        let owner = plimsoll_device::Owner::new(op, site);
        let align = plimsoll_device::backend::ALIGNMENT;
        let lease = Lease::new(device.memory(), bytes.into(), align, owner).map_err(|refusal| {
            // A device that has failed gives no memory either, and that is what must be told then.
            let failed =
                if refusal.verdict == Verdict::System { device.backend().synchronize() } else { Ok(()) };
            failed.map_or_else(|fault| Error::Fault { fault, site }, |()| Error::OutOfMemory(refusal))
        })?;
        Ok(Buffer { memory: Memory::Device(lease), device: device.clone() })
    }

    /// Bytes of the host's memory that the device reaches, zeroed; none where its memory is the host's.
    pub(crate) fn hosted(device: &Device, bytes: usize, site: Site) -> Result<Option<Buffer>> {
        let block = device.backend().host_block(bytes).map_err(|fault| Error::Fault { fault, site })?;
        Ok(block.map(|block| Buffer { memory: Memory::Host(block), device: device.clone() }))
    }

    /// Bytes that another library holds for as long as `owner` is there.
    pub(crate) fn borrowed(
        device: &Device,
        at: *mut u8,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Buffer {
        let borrowed = Borrowed { at, bytes, device: device.clone(), owner: Some(owner) };
        Buffer { memory: Memory::Borrowed(borrowed), device: device.clone() }
    }

    /// Whether another library may see its bytes, so that nothing may be written over them.
    pub(crate) fn is_borrowed(&self) -> bool {
        matches!(self.memory, Memory::Borrowed(_))
    }

    pub(crate) fn is_hosted(&self) -> bool {
        matches!(self.memory, Memory::Host(_))
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        match &self.memory {
            Memory::Device(lease) => lease.as_ptr().as_ptr(),
            Memory::Host(block) => block.ptr(),
            Memory::Borrowed(borrowed) => borrowed.at,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Device(lease) => lease.len(),
            Memory::Host(block) => block.bytes(),
            Memory::Borrowed(borrowed) => borrowed.bytes,
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Copies bytes to the host, from `start` on.
    pub(crate) fn read(&self, start: usize, into: &mut [u8], site: Site) -> Result<()> {
        if start + into.len() > self.bytes() {
            return Err(Error::Internal(format!(
                "{} bytes are read of a buffer of {}",
                start + into.len(),
                self.bytes()
            )));
        }
        if !self.is_hosted() {
            self.device.count_down(into.len());
        }
        // SAFETY: so many bytes are there, and they are not written while shared.
        unsafe { self.device.backend().download(self.ptr().add(start), into) }
            .map_err(|fault| Error::Fault { fault, site })
    }

    /// Copies bytes of the host over the first ones.
    ///
    /// # Safety
    /// Nobody else may use the buffer, and it must have as many bytes.
    pub(crate) unsafe fn write(&self, bytes: &[u8], site: Site) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.write_at(0, bytes, site) }
    }

    /// Copies bytes of the host over those from `start` on.
    ///
    /// # Safety
    /// Nobody else may use the buffer, and it must have as many bytes behind `start`.
    pub(crate) unsafe fn write_at(&self, start: usize, bytes: &[u8], site: Site) -> Result<()> {
        if !self.is_hosted() {
            self.device.count_up(bytes.len());
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.backend().upload(self.ptr().add(start), bytes) }
            .map_err(|fault| Error::Fault { fault, site })
    }
}
