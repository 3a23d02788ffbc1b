//! The memory that a step's forms share, and what happens when there is more or less of it than was planned.

use plimsoll_device::Bytes;
use plimsoll_graph::Site;

use super::{Step, StepOptions};
use crate::account::{left_for_libraries, own as own_bytes};
use crate::device::Hold;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Tensor};
use crate::variant::Variant;

impl Step {
    /// Gives the workspace the size that the largest form needs. The old one is given back first: two would not fit.
    pub(super) fn fit_workspace(&mut self, site: Site) -> Result<()> {
        let wanted = self.variants.iter().map(Variant::workspace).max().unwrap_or(0);
        if wanted != self.workspace.bytes() {
            self.drop_workspace(site)?;
            self.workspace = Buffer::new(&self.device, wanted, "step workspace", site)?;
        }
        self.hold_line();
        let rooms = || self.variants.iter().map(Variant::host_room);
        let bytes = rooms().map(|(bytes, _)| bytes).max().unwrap_or(0);
        let slots = rooms().map(|(_, slots)| slots).max().unwrap_or(0);
        if let Some(host) = &mut self.host
            && (host.bytes() != bytes || host.slots() < slots)
        {
            host.fit(bytes, slots).map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(())
    }

    /// Gives back the workspace, the host's part too: while a plan is made, either is free for timing.
    pub(super) fn drop_workspace(&mut self, site: Site) -> Result<()> {
        self.hold = None;
        self.workspace = Buffer::new(&self.device, 0, "step workspace", site)?;
        self.device.memory().release_unused();
        if let Some(host) = self.host.as_mut().filter(|host| host.bytes() > 0) {
            host.fit(0, 0).map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(())
    }

    /// Under a line, holds everybody who asks the device for memory to what libraries leave of it: an eager op beside the
    /// step must not take the process past the line either. What was planned is always within that.
    fn hold_line(&mut self) {
        // The old one goes first: it may be of another line.
        self.hold = None;
        let (line, own) = (self.options.memory, own_bytes(&self.device));
        let program = self.variants.iter().map(|v| v.info.account.program).max();
        if let (Some(line), Some(own), Some(program)) = (line, own, program) {
            let most = line.saturating_sub(left_for_libraries(own, program));
            self.hold = Some(Hold::new(&self.device, most));
        }
    }

    /// Makes what copies beside kernels, where they are allowed and possible: before the device's memory is counted, of which
    /// that takes a little.
    pub(super) fn start_copying(&mut self, host_memory: Option<Bytes>, site: Site) -> Result<()> {
        if self.host.is_none() && host_memory.is_some_and(|bytes| bytes > Bytes::ZERO) {
            self.host = self.device.backend().host_arena().map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(())
    }

    /// Which of the state is in the host's memory.
    pub(super) fn hosted(&self) -> Vec<bool> {
        self.state.iter().map(Tensor::is_hosted).collect()
    }

    /// Puts the state where the plan wants it: to the host first, so that there is room for what comes back.
    pub(super) fn settle_state(&mut self, hosted: &[bool], site: Site) -> Result<()> {
        if self.hosted() == hosted {
            return Ok(());
        }
        self.variants.clear();
        for (tensor, _) in self.state.iter_mut().zip(hosted).filter(|(t, wanted)| **wanted && !t.is_hosted())
        {
            *tensor = tensor.hosted()?;
        }
        self.device.memory().release_unused();
        for (tensor, _) in self.state.iter_mut().zip(hosted).filter(|(t, wanted)| !**wanted && t.is_hosted())
        {
            *tensor = tensor.unhosted(site)?;
        }
        Ok(())
    }

    /// Plans the step anew for another line or other terms; the state stays as it is.
    ///
    /// # Errors
    /// There is no plan within the new line; the step goes on under the old one.
    #[track_caller]
    pub fn replan(&mut self, options: StepOptions) -> Result<()> {
        let site = Site::here();
        let Some(inputs) = self.variants.iter().rev().find(|v| v.body == 0).map(|v| v.inputs.clone()) else {
            self.options = options;
            self.variants.clear();
            return self.fit_workspace(site);
        };
        self.drop_workspace(site)?;
        self.start_copying(options.host_memory, site)?;
        let variant = match self.build(0, &inputs, &options, false, false, site) {
            Ok(variant) => variant,
            Err(error) => {
                // As in `prepare`: the refusal is told, and not what follows from it.
                self.fit_workspace(site).ok();
                return Err(error);
            }
        };
        self.options = options;
        self.runs = 0;
        self.variants.clear();
        self.variants.push(variant);
        self.fit_or_plan_anew(false, site)
    }

    /// As [`Step::fit_workspace`]; where a device has not so much left any more, the form used last is planned anew within
    /// what it has. `present` says that its inputs exist.
    pub(super) fn fit_or_plan_anew(&mut self, present: bool, site: Site) -> Result<()> {
        match self.fit_workspace(site) {
            Err(Error::OutOfMemory(_)) if self.device.capacity().is_some() => {}
            fitted => return fitted,
        }
        let last = self.variants.last().map(|v| (v.body, v.inputs.clone()));
        // The others share the workspace, and it is not known which of them would fit into a smaller one.
        self.variants.clear();
        match last {
            Some((body, inputs)) => self.prepare(body, &inputs, present, site),
            None => self.fit_workspace(site),
        }
    }

    /// Looks whether the process takes more of a device's own memory beside the step than was declared, as libraries may
    /// when they first need something, and plans anew if so.
    pub(super) fn look_again(&mut self, site: Site) -> Result<()> {
        let (Some(line), Some(own)) = (self.options.memory, own_bytes(&self.device)) else { return Ok(()) };
        let declared = self.info().account.program;
        if own <= declared {
            self.hold_line();
            return Ok(());
        }
        let grown = own.saturating_sub(declared);
        let why = format!(
            "libraries and code on {} took {grown:#} more than was declared ({own:#} in all): planned anew within {line:#}",
            self.device.name()
        );
        // What was planned before no longer keeps the line, so there is no going back to it.
        let inputs = self.variants.last().map(|v| v.inputs.clone());
        self.variants.clear();
        self.runs = 0;
        if let Some(inputs) = inputs {
            self.prepare(0, &inputs, true, site)?;
        }
        self.notice = Some(why);
        Ok(())
    }

    /// Under a line, gives back what eager ops have left mapped on a device with memory of its own: nobody uses it, and it
    /// counts.
    pub(super) fn give_back_idle(&self) {
        if self.options.memory.is_none() || self.device.backend().is_host() {
            return;
        }
        let held = self.device.memory_info();
        if held.reserved > held.current {
            self.device.memory().release_unused();
        }
    }

    /// What happened since the last call that the owner should be told: that the step was planned anew by itself, and why.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }
}
