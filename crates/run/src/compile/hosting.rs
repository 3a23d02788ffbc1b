//! Turns the host's memory into a choice: how much of a step's state lives there between updates.
//!
//! What the optimizer keeps of a parameter is wanted once a step, by its update, and is as large as the parameter. Where the host
//! may be copied to, it can live there, come to the device just before its update and go back after it, beside the kernels.
//! How much of it should is searched with everything else: none, about half, or all that the host has room for, the largest
//! tensors first, since a copy of a small one is all beginning and end.

use plimsoll_device::Bytes;
use plimsoll_graph::TensorOps;
use plimsoll_plan::Kind;

use super::Compile;
use crate::account::{blocks, whole_pages};
use crate::device::Device;

/// Which state is in the host's memory, and what that takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hosting {
    /// By part of the state.
    pub(crate) hosted: Vec<bool>,
    /// Bytes of the device that state takes which could be on the host and is not.
    pub(crate) here: Bytes,
    /// Bytes of the host that state takes.
    pub(crate) away: Bytes,
    /// Bytes of the host that are left for activations.
    pub(crate) left: Bytes,
}

/// Whether a part of the state can live on the host: an optimizer's, and so large that it has pages of its own, so that the device
/// has as many more without it.
pub(crate) fn is_movable(device: &Device, kind: Kind, bytes: usize) -> bool {
    kind == Kind::Optimizer && bytes as u64 > device.memory().page().get() / 2
}

impl Compile<'_> {
    /// The ways to keep the state, all on the device first; only the one that is settled, if it is.
    pub(super) fn hostings(&self) -> Vec<Hosting> {
        if let Some(hosted) = self.settled {
            return vec![self.hosting(hosted.to_vec())];
        }
        let mut parts: Vec<usize> =
            self.movable().into_iter().enumerate().filter_map(|(i, yes)| yes.then_some(i)).collect();
        let bytes = |i: usize| self.state[i].ty().bytes() as u64;
        parts.sort_by_key(|&i| std::cmp::Reverse(bytes(i)));
        let largest = |most: u64| {
            let mut left = most;
            let mut hosted = vec![false; self.state.len()];
            for &i in &parts {
                if let Some(rest) = left.checked_sub(bytes(i)) {
                    (hosted[i], left) = (true, rest);
                }
            }
            self.hosting(hosted)
        };
        let mut all = vec![largest(0)];
        let most = largest(self.host().get());
        // Between the two the link is busy enough with state, and a search with more choices takes longer.
        let half = Hosting { left: Bytes::ZERO, ..largest(most.away.get() / 2) };
        for hosting in [half, most] {
            if all.iter().all(|other| other.hosted != hosting.hosted) {
                all.push(hosting);
            }
        }
        all
    }

    /// Which parts of the state may be on the host or are there.
    fn movable(&self) -> Vec<bool> {
        let may = self.host() > Bytes::ZERO;
        let movable = |((_, kind), tensor): (&(String, Kind), &crate::Tensor)| {
            tensor.is_hosted() || (may && is_movable(self.device, *kind, tensor.ty().bytes()))
        };
        self.names.iter().zip(self.state).map(movable).collect()
    }

    fn hosting(&self, hosted: Vec<bool>) -> Hosting {
        let (mut here, mut away) = (Bytes::ZERO, Bytes::ZERO);
        for ((is_movable, &is_hosted), tensor) in self.movable().iter().zip(&hosted).zip(self.state) {
            let bytes = tensor.ty().bytes();
            match (is_hosted, is_movable) {
                (true, _) => away += Bytes::from(bytes),
                (false, true) => here += blocks(self.device, std::iter::once(bytes)),
                (false, false) => {}
            }
        }
        Hosting { hosted, here, away, left: self.host().saturating_sub(away) }
    }

    /// Bytes of the device that state takes at present which may go to the host; of state that is only sketched, what it would.
    pub(super) fn movable_here(&self) -> Bytes {
        let parts =
            self.movable().into_iter().zip(self.state).filter(|(yes, tensor)| *yes && !tensor.is_hosted());
        let bytes = parts.map(|(_, tensor)| blocks(self.device, std::iter::once(tensor.ty().bytes())));
        whole_pages(self.device, bytes.sum())
    }
}
