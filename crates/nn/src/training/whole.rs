//! Turns the state of a training into bytes by name and back, whole or as a rank has it of it.
//!
//! A second file of [`Training`]: what saves and loads, apart from what computes.

use plimsoll_graph::{TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::Training;
use super::layout::OF_RANKS;
use crate::Pieces;
use crate::error::refuse;

/// A part of the state as a rank has it, and what it is a part of.
pub struct OfRanks<'a> {
    /// Its name.
    pub name: &'a str,
    /// What this rank has.
    pub own: &'a Tensor,
    /// The type of all of it.
    pub whole: &'a Type,
    /// How ranks' parts lie in it, where they have parts.
    pub pieces: Option<Pieces>,
}

impl Training {
    /// Everything that is kept from step to step, by name: parameters, statistics, the optimizer's state, counters and the
    /// random state. Where ranks share the optimizer's state, this rank's shards of it ([`Training::whole_state`]).
    pub fn state(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let all = self.step.names().iter().map(|(name, _)| name.as_str()).zip(self.step.state());
        all.filter(|(name, _)| !name.starts_with(OF_RANKS))
    }

    /// Sets one part of the state from its bytes, as [`Tensor::to_bytes`] gives them.
    #[track_caller]
    pub fn restore(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let at = self.step.names().iter().position(|(known, _)| known == name);
        let at = at.ok_or_else(|| refuse(format!("restores {name}, which the training does not have")))?;
        self.step.set_state(at, bytes)
    }

    /// Sets some bytes of a part of the state, from `at` on in all of it: what is read a piece at a time need never be there whole.
    #[track_caller]
    pub fn restore_bytes(&mut self, name: &str, at: usize, bytes: &[u8]) -> Result<()> {
        let part = self.step.names().iter().position(|(known, _)| known == name);
        let part =
            part.ok_or_else(|| refuse(format!("restores {name}, which the training does not have")))?;
        let Some(divided) = self.handles.wholes.iter().find(|divided| divided.at == part) else {
            return self.step.set_state_bytes(part, at, bytes);
        };
        let pieces = divided.pieces();
        for (of_whole, of_part) in pieces.own_within(self.handles.rank.rank, at..at + bytes.len()) {
            let own = &bytes[of_whole.start - at..of_whole.end - at];
            self.step.set_state_bytes(part, of_part, own)?;
        }
        Ok(())
    }

    /// As [`Training::state`], with what each part is of on all ranks together: it differs where this rank has a part of it, or nothing.
    pub fn whole_state(&self) -> impl Iterator<Item = OfRanks<'_>> {
        let divided = |at: usize| self.handles.wholes.iter().find(|divided| divided.at == at);
        let all = self.step.names().iter().zip(self.step.state()).enumerate();
        all.map(move |(at, ((name, _), own))| {
            let divided = divided(at);
            OfRanks {
                name,
                own,
                whole: divided.map_or(own.ty(), |divided| &divided.whole),
                pieces: divided.map(|divided| divided.pieces()),
            }
        })
        .filter(|part| !part.name.starts_with(OF_RANKS))
    }

    /// Whether this rank has only its shard of some of the state, or its stage.
    pub fn is_sharded(&self) -> bool {
        !self.handles.wholes.is_empty()
    }

    /// Whether this rank has only its shards of some parameters, or those of its stage: then [`Training::values`] has those, and whoever evaluates,
    /// predicts or saves does it on all ranks at once.
    pub fn has_sharded_parameters(&self) -> bool {
        self.handles.wholes.iter().any(|divided| divided.at < self.params.len())
    }

    /// The parameters as [`Training::whole_state`] has them.
    pub fn whole_parameters(&self) -> impl Iterator<Item = OfRanks<'_>> {
        self.whole_state().take(self.params.len())
    }

    /// Sets one part of the state from the bytes of all of it, of which this rank may have a part or nothing.
    #[track_caller]
    pub fn restore_whole(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let at = self.step.names().iter().position(|(known, _)| known == name);
        let Some(divided) = self.handles.wholes.iter().find(|divided| Some(divided.at) == at) else {
            return self.restore(name, bytes);
        };
        let whole = &divided.whole;
        if bytes.len() != whole.bytes() {
            return Err(refuse(format!("restores {name}, {whole}, from {} bytes", bytes.len())));
        }
        // Straight to where each piece belongs: nothing is copied in between, so that no more than the value itself is there beside the state.
        self.restore_bytes(name, 0, bytes)
    }

    /// Sets this rank's part of a part of the state, as it lies there ([`OfRanks::pieces`]); what fills a shard up is zero.
    #[track_caller]
    pub fn restore_own(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let at = self.step.names().iter().position(|(known, _)| known == name);
        let Some(divided) = self.handles.wholes.iter().find(|divided| Some(divided.at) == at) else {
            return self.restore(name, bytes);
        };
        let (at, room) = (divided.at, self.step.state()[divided.at].ty().bytes());
        if bytes.len() == room {
            return self.step.set_state(at, bytes);
        }
        let mut own = bytes.to_vec();
        own.resize(room, 0);
        self.step.set_state(at, &own)
    }
}
