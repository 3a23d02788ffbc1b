//! The memory that all forms of a step run in, one at a time: a block of the device, and of the host where they copy to it.

use plimsoll_device::Bytes;
use plimsoll_device::backend::HostArena;
use plimsoll_graph::Site;

use super::variant::Variant;
use crate::choose::left_for_libraries;
use crate::device::{Buffer, Device, Hold, own};
use crate::error::{Error, Result};

/// The workspace of a step.
pub(super) struct Workspace {
    device: Device,
    buffer: Buffer,
    /// What all forms copy to; none where nothing may be copied.
    host: Option<Box<dyn HostArena>>,
    /// What a memory limit leaves for others, once the workspace is there.
    hold: Option<Hold>,
}

impl Workspace {
    /// Nothing yet.
    pub(super) fn new(device: &Device, site: Site) -> Result<Workspace> {
        let buffer = empty(device, site)?;
        Ok(Workspace { device: device.clone(), buffer, host: None, hold: None })
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(super) fn host(&self) -> Option<&dyn HostArena> {
        self.host.as_deref()
    }

    /// Bytes of the host that are taken to copy to.
    pub(super) fn host_bytes(&self) -> usize {
        self.host.as_ref().map_or(0, |host| host.bytes())
    }

    /// Whether a form has not the room it needs: a refusal of memory may have left too little.
    pub(super) fn is_too_small(&self, variant: &Variant) -> bool {
        variant.workspace() > self.buffer.bytes() || variant.host_room().0 > self.host_bytes()
    }

    /// Takes the size that the largest form needs. The old one is given back first: two would not fit.
    pub(super) fn fit(&mut self, variants: &[Variant], limit: Option<Bytes>, site: Site) -> Result<()> {
        let wanted = variants.iter().map(Variant::workspace).max().unwrap_or(0);
        if wanted != self.buffer.bytes() {
            self.give_back(site)?;
            self.buffer = Buffer::new(&self.device, wanted, "step workspace", site)?;
        }
        self.hold_others(variants, limit);
        let rooms = || variants.iter().map(Variant::host_room);
        let bytes = rooms().map(|(bytes, _)| bytes).max().unwrap_or(0);
        let slots = rooms().map(|(_, slots)| slots).max().unwrap_or(0);
        if let Some(host) = &mut self.host
            && (host.bytes() != bytes || host.slots() < slots)
        {
            host.fit(bytes, slots).map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(())
    }

    /// Gives back everything, the host's part too: while a plan is made, either is free for timing.
    pub(super) fn give_back(&mut self, site: Site) -> Result<()> {
        self.hold = None;
        self.buffer = empty(&self.device, site)?;
        self.device.memory().release_unused();
        if let Some(host) = self.host.as_mut().filter(|host| host.bytes() > 0) {
            host.fit(0, 0).map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(())
    }

    /// Under a memory limit, holds everybody who asks the device for memory to what libraries leave of it: an eager op beside the
    /// step must not take the process past the limit either. What was planned is always within that.
    pub(super) fn hold_others(&mut self, variants: &[Variant], limit: Option<Bytes>) {
        // The old one goes first: it may be of another limit.
        self.hold = None;
        let declared = variants.iter().map(|variant| variant.info.account.for_no_tensor()).max();
        if let (Some(limit), Some(own), Some(declared)) = (limit, own(&self.device), declared) {
            let most = limit.saturating_sub(left_for_libraries(own, declared));
            self.hold = Some(Hold::new(&self.device, most));
        }
    }

    /// Makes what copies beside kernels, where they are allowed and possible: before the device's memory is counted, of which
    /// that takes a little.
    pub(super) fn start_copying(&mut self, host_limit: Option<Bytes>, site: Site) -> Result<()> {
        if self.host.is_none() && host_limit.is_some_and(|bytes| bytes > Bytes::ZERO) {
            self.host = self.device.backend().host_arena().map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(())
    }
}

fn empty(device: &Device, site: Site) -> Result<Buffer> {
    Buffer::new(device, 0, "step workspace", site)
}
