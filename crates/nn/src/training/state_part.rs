//! A part of a training's state as all ranks together have it.

use std::ops::Range;

use plimsoll_graph::ops::Rank;
use plimsoll_graph::{TensorOps, Type};
use plimsoll_run::Tensor;

use super::layout::Divided;
use super::shards;

/// A named part of the state, and what ranks have of it.
#[derive(Clone, Copy, Debug)]
pub struct StatePart<'a> {
    /// Its name.
    pub name: &'a str,
    /// What this rank has.
    pub own: &'a Tensor,
    divided: Option<&'a Divided>,
}

impl<'a> StatePart<'a> {
    pub(super) fn new(name: &'a str, own: &'a Tensor, divided: Option<&'a Divided>) -> StatePart<'a> {
        StatePart { name, own, divided }
    }

    /// The type that it has on all ranks together.
    pub fn whole(&self) -> &'a Type {
        self.divided.map_or(self.own.ty(), |divided| &divided.whole)
    }

    /// Whether no rank can say all of it by itself, or only one can.
    pub fn is_divided(&self) -> bool {
        self.divided.is_some()
    }

    /// Which bytes of the whole are a rank's, the first ones of what it has.
    pub fn bytes_of(&self, rank: Rank) -> Range<usize> {
        self.divided.map_or(0..self.own.ty().bytes(), |divided| divided.bytes_of(rank))
    }
}

impl Divided {
    /// Which bytes of the whole are a rank's.
    pub(super) fn bytes_of(&self, rank: Rank) -> Range<usize> {
        match self.owner {
            None => shards::own_bytes(&self.whole, rank),
            Some(owner) if owner == rank.rank => 0..self.whole.bytes(),
            // Behind what the ranks before it have.
            Some(owner) if owner < rank.rank => self.whole.bytes()..self.whole.bytes(),
            Some(_) => 0..0,
        }
    }
}
