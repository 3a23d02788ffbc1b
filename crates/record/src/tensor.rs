//! The tensors of a step: those that are there all the step long, and those that stay in the arena for a while.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::Kind;

/// A tensor that is there all the step long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resident {
    /// What it is called: a place in [`Step::names`](crate::Step::names).
    pub name: u32,
    /// What it is for.
    pub kind: Kind,
    /// Its shape.
    pub shape: Box<[u64]>,
    /// Its element type.
    pub dtype: Cow<'static, str>,
    /// Its bytes, rounded up to the alignment.
    pub bytes: u64,
    /// The source line of the op that reads it first, where one does: a place in [`Step::sites`](crate::Step::sites).
    pub site: Option<u32>,
}

/// A tensor's stay in the arena, from one instruction up to, not including, another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// What it is called: a place in [`Step::names`](crate::Step::names).
    pub name: u32,
    /// The layer that made it: a place in [`Step::names`](crate::Step::names).
    pub layer: u32,
    /// What it is for.
    pub kind: Kind,
    /// Its shape.
    pub shape: Box<[u64]>,
    /// Its element type.
    pub dtype: Cow<'static, str>,
    /// Its bytes, rounded up to the alignment of the arena.
    pub bytes: u64,
    /// Where it lies.
    pub offset: u64,
    /// The instruction that makes it.
    pub from: u32,
    /// The first instruction that it need not be there for.
    pub to: u32,
    /// Whether it was there before in this step and is made again.
    pub again: bool,
    /// The source line that made it: a place in [`Step::sites`](crate::Step::sites).
    pub site: Option<u32>,
}
