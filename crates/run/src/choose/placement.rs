//! Turns the host's memory into a choice: how much of a step's state lives there between updates.
//!
//! What the optimizer keeps of a parameter is wanted once a step, by its update, and is as large as the parameter. Where the host
//! may be copied to, it can live there, come to the device just before its update and go back after it, beside the kernels. So can
//! parameters, which are wanted more often: once in each phase of a step. How much should is searched with everything else: none, about
//! half of the optimizer's, all of it, then half of the parameters too, or all that the host has room for; the largest tensors first, since
//! a copy of a small one is all beginning and end. Where a device has a disk beside its memory, that is the host here.

use plimsoll_device::Bytes;
use plimsoll_record::Kind;

use super::StepToPlan;
use crate::device::{Device, blocks, whole_pages};

/// Which state is in the host's memory, and what that takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatePlacement {
    /// By part of the state.
    pub(crate) hosted: Vec<bool>,
    /// Bytes of the device that state takes which could be on the host and is not.
    pub(crate) device: Bytes,
    /// Bytes of the host that state takes.
    pub(crate) host: Bytes,
    /// Bytes of the host that are left for activations.
    pub(crate) host_free: Bytes,
}

/// What the host's memory has no page of its own for is not worth a file: so many bytes are.
const WORTH_A_FILE: u64 = 32 << 10;

/// Whether a part of the state can live on the host: an optimizer's or a parameter, and so large that it has pages of its own, so that
/// the device has as many more without it.
pub(crate) fn is_movable(device: &Device, kind: Kind, bytes: usize) -> bool {
    // What shares a page with others leaves none behind.
    let own_page = device.memory().page().get() / 2 + 1;
    let least = device.disk().map_or(own_page, |_| WORTH_A_FILE.max(own_page));
    matches!(kind, Kind::Optimizer | Kind::Parameter) && bytes as u64 >= least
}

impl StepToPlan {
    /// The placements to consider, all state on the device first; only the one that is settled, if it is; none that has less on the host than
    /// it must.
    pub(super) fn placements(&self) -> Vec<StatePlacement> {
        if let Some(hosted) = &self.present.placement {
            return vec![self.placement(hosted.clone())];
        }
        let mut parts: Vec<usize> =
            self.movable().into_iter().enumerate().filter_map(|(i, yes)| yes.then_some(i)).collect();
        let bytes = |i: usize| self.step.state[i].ty.bytes() as u64;
        let is_parameter = |i: usize| self.step.state[i].kind == Kind::Parameter;
        parts.sort_by_key(|&i| (is_parameter(i), std::cmp::Reverse(bytes(i))));
        let largest = |most: u64| {
            let mut left = most;
            let mut hosted = vec![false; self.step.state.len()];
            for &i in &parts {
                if let Some(rest) = left.checked_sub(bytes(i)) {
                    (hosted[i], left) = (true, rest);
                }
            }
            self.placement(hosted)
        };
        let mut all = vec![largest(0)];
        let host = self.host().get();
        let optimizer: u64 = parts.iter().filter(|i| !is_parameter(**i)).map(|&i| bytes(i)).sum();
        let (without, most) = (largest(host.min(optimizer)), largest(host));
        // Between them the link is busy enough with state, and a search with more choices takes longer.
        let up_to = |bytes: u64| StatePlacement { host_free: Bytes::ZERO, ..largest(bytes) };
        let half = up_to(without.host.get() / 2);
        let more = up_to(without.host.get().midpoint(most.host.get()));
        for placement in [half, without, more, most] {
            if all.iter().all(|other| other.hosted != placement.hosted) {
                all.push(placement);
            }
        }
        if let Some(hosted) = &self.present.at_least {
            all.retain(|placement| placement.hosted.iter().zip(hosted).all(|(is, must)| *is || !must));
            if all.is_empty() {
                all.push(self.placement(hosted.clone()));
            }
        }
        all
    }

    /// Which parts of the state may be on the host or are there.
    fn movable(&self) -> Vec<bool> {
        let (may, device) = (self.host() > Bytes::ZERO, &self.step.device);
        let movable = |part: &crate::trace::StateSpec| {
            part.is_hosted || (may && is_movable(device, part.kind, part.ty.bytes()))
        };
        self.step.state.iter().map(movable).collect()
    }

    fn placement(&self, hosted: Vec<bool>) -> StatePlacement {
        let (mut device, mut host) = (Bytes::ZERO, Bytes::ZERO);
        for ((is_movable, &is_hosted), part) in self.movable().iter().zip(&hosted).zip(&self.step.state) {
            let bytes = part.ty.bytes();
            match (is_hosted, is_movable) {
                (true, _) => host += Bytes::from(bytes),
                (false, true) => device += blocks(&self.step.device, std::iter::once(bytes)),
                (false, false) => {}
            }
        }
        StatePlacement { hosted, device, host, host_free: self.host().saturating_sub(host) }
    }

    /// Bytes of the device that state takes at present which may go to the host; of state that is not there yet, what it would.
    pub(super) fn movable_bytes(&self) -> Bytes {
        let device = &self.step.device;
        let parts =
            self.movable().into_iter().zip(&self.step.state).filter(|(yes, part)| *yes && !part.is_hosted);
        let bytes = parts.map(|(_, part)| blocks(device, std::iter::once(part.ty.bytes())));
        whole_pages(device, bytes.sum())
    }
}
