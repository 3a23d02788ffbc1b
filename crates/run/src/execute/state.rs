//! What a step keeps from run to run: named tensors that it updates in place, on the device or in the host's memory.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::{Site, TensorOps};
use plimsoll_record::Kind;

use crate::choose::is_movable;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::trace::StateSpec;

/// A tensor that a step keeps from run to run.
#[derive(Clone)]
pub struct StateTensor {
    /// What plans, refusals and reports call it.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Its value before the first run.
    pub tensor: Tensor,
}

impl StateTensor {
    /// The same in the host's memory, as long as `left` has room for it: where the optimizer's state is made that a plan may keep
    /// there, so that it never takes any of a device that has none for it. The first plan puts everything where it belongs. What
    /// no plan would keep there stays where it is.
    ///
    /// # Errors
    /// The host has no more memory.
    #[track_caller]
    pub fn hosted(self, left: &mut Bytes) -> Result<StateTensor> {
        let (site, bytes) = (Site::here(), self.tensor.ty().bytes());
        let device = self.tensor.buffer(site)?.device();
        let wanted = is_movable(device, self.kind, bytes) && Bytes::from(bytes) <= *left;
        if !wanted || self.tensor.is_hosted() || device.backend().rough_link().is_none() {
            return Ok(self);
        }
        *left = left.saturating_sub(bytes.into());
        let tensor = self.tensor.hosted()?;
        Ok(StateTensor { tensor, ..self })
    }
}

/// The state of a step.
#[derive(Default)]
pub(super) struct State {
    pub(super) names: Vec<(String, Kind)>,
    pub(super) tensors: Vec<Tensor>,
}

impl State {
    /// Adds parts behind those that are there, each with bytes that nobody else can see.
    pub(super) fn add(&mut self, held: Vec<StateTensor>, site: Site) -> Result<()> {
        for StateTensor { name, kind, tensor } in held {
            let is_alone = Arc::strong_count(tensor.buffer(site)?) == 1;
            self.tensors.push(if is_alone { tensor } else { tensor.copy()? });
            self.names.push((name, kind));
        }
        Ok(())
    }

    /// Forgets all parts but the first.
    pub(super) fn truncate(&mut self, n: usize) {
        self.tensors.truncate(n);
        self.names.truncate(n);
    }

    /// What planning must know of it.
    pub(super) fn specs(&self) -> Vec<StateSpec> {
        let spec = |((name, kind), tensor): (&(String, Kind), &Tensor)| StateSpec {
            is_hosted: tensor.is_hosted(),
            ..StateSpec::new(name.clone(), *kind, tensor.ty().clone())
        };
        self.names.iter().zip(&self.tensors).map(spec).collect()
    }

    /// Which of it is in the host's memory.
    pub(super) fn hosted(&self) -> Vec<bool> {
        self.tensors.iter().map(Tensor::is_hosted).collect()
    }

    /// Puts every part where the plan wants it: to the host first, so that there is room for what comes back.
    pub(super) fn settle(&mut self, hosted: &[bool], device: &Device, site: Site) -> Result<()> {
        let parts = self.tensors.iter_mut().zip(hosted);
        for (tensor, _) in parts.filter(|(tensor, wanted)| **wanted && !tensor.is_hosted()) {
            *tensor = tensor.hosted()?;
        }
        device.memory().release_unused();
        let parts = self.tensors.iter_mut().zip(hosted);
        for (tensor, _) in parts.filter(|(tensor, wanted)| !**wanted && tensor.is_hosted()) {
            *tensor = tensor.unhosted(site)?;
        }
        Ok(())
    }

    /// Gives parts of which somebody holds a clone bytes of their own, so that a clone keeps what it saw. Returns whether one of
    /// them is in the host's memory.
    pub(super) fn unshare(&mut self, site: Site) -> Result<bool> {
        let mut is_any_hosted = false;
        for tensor in &mut self.tensors {
            if Arc::strong_count(tensor.buffer(site)?) > 1 {
                *tensor = tensor.copy()?;
                is_any_hosted |= tensor.is_hosted();
            }
        }
        Ok(is_any_hosted)
    }

    /// Sets a part, of which nobody may hold a clone.
    pub(super) fn set(&mut self, i: usize, value: &[u8], site: Site) -> Result<()> {
        let n = self.tensors.len();
        let Some(tensor) = self.tensors.get(i) else {
            return Err(Error::Signature { site, why: format!("sets part {i} of a state of {n}") });
        };
        if tensor.ty().bytes() != value.len() {
            let why = format!("sets a part of the state of {} with {} bytes", tensor.ty(), value.len());
            return Err(Error::Signature { site, why });
        }
        // SAFETY: nobody else holds the bytes, and there are as many of them.
        unsafe { tensor.buffer(site)?.write(value, site) }
    }

    /// Sets some bytes of a part, of which nobody may hold a clone.
    pub(super) fn set_bytes_at(&mut self, i: usize, at: usize, value: &[u8], site: Site) -> Result<()> {
        let fits =
            |tensor: &&Tensor| at.checked_add(value.len()).is_some_and(|end| end <= tensor.ty().bytes());
        let Some(tensor) = self.tensors.get(i).filter(fits) else {
            let why = format!("sets {} bytes at {at} of part {i}, which are not there", value.len());
            return Err(Error::Signature { site, why });
        };
        // SAFETY: nobody else holds the bytes, and there are as many of them behind `at`.
        unsafe { tensor.buffer(site)?.write_at(at, value, site) }
    }
}
