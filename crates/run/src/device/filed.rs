//! Finds in a file of kernel times those of the kernels that somebody asks for, and for those that are not there the ones that are nearest.
//!
//! A machine's file grows with every model that it has seen, and all that a process holds counts against its memory limit. So the file
//! is read again for each graph that is new to the process (some milliseconds), and what nobody asked for stays in it.

use std::hash::Hasher;
use std::path::Path;

use plimsoll_graph::{Op, Type};
use rustc_hash::{FxHashMap, FxHasher};

use super::costs::is_timed;
use super::likes::{Like, Work, stand_in};
use super::times::{Entry, Times};

/// What stands for the name of a kernel: 128 bits, where names have hundreds of letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct KernelId(u64, u64);

impl KernelId {
    pub(super) fn of(kernel: &str) -> KernelId {
        let half = |start: u8| {
            let mut hasher = FxHasher::default();
            hasher.write_u8(start);
            hasher.write(kernel.as_bytes());
            hasher.finish()
        };
        KernelId(half(1), half(2))
    }

    /// What stands for the kernel and its time.
    pub(super) fn with(self, seconds: f64) -> u128 {
        let mut hasher = FxHasher::default();
        hasher.write_u64(self.1);
        hasher.write_u64(seconds.to_bits());
        (u128::from(self.0) << 64) | u128::from(hasher.finish())
    }
}

/// A kernel that is asked for: its op and its work, by which one is found that stands for it.
pub(super) struct Asked {
    op: &'static str,
    /// The op whose kernels stand for it where none of its own was timed.
    stand_in: Option<&'static str>,
    work: Work,
}

impl Asked {
    pub(super) fn new(op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Asked {
        Asked { op: op.variant(), stand_in: stand_in(op), work: Work::of(op, inputs, outputs) }
    }
}

/// A kernel that was found, or that stands for another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Near {
    pub(super) id: KernelId,
    pub(super) like: Like,
}

/// Where times are looked for: a file, or the record of a device of the same kind.
#[derive(Clone, Copy)]
pub(super) enum Place<'p> {
    File(&'p Path),
    Record(&'static str),
}

impl Place<'_> {
    fn each(self, look: impl FnMut(Entry<'_>)) {
        match self {
            Place::File(file) => Times::each(file, look),
            Place::Record(text) => Times::each_of(text, look),
        };
    }
}

/// These kernels, as far as they are there.
pub(super) fn find(place: Place<'_>, asked: &FxHashMap<KernelId, Asked>) -> Vec<Near> {
    let mut found = Vec::new();
    place.each(|entry| {
        let id = KernelId::of(entry.kernel);
        if asked.contains_key(&id) {
            found.extend(entry.timed().map(|timed| Near { id, like: Like::of(entry.kernel, timed).1 }));
        }
    });
    found
}

/// For each of these kernels the one of the same op that was timed and is nearest to it, where there is any; else one of the op that stands in for it.
pub(super) fn nearest(place: Place<'_>, asked: &FxHashMap<KernelId, Asked>) -> Vec<(KernelId, Near)> {
    let mut of_op: FxHashMap<&str, Vec<Wanting<'_>>> = FxHashMap::default();
    for (&id, Asked { op, stand_in, work }) in asked {
        let mut want = |op, is_own| {
            of_op.entry(op).or_default().push(Wanting { id, work, is_own, best: None });
        };
        want(*op, true);
        stand_in.iter().for_each(|other| want(other, false));
    }
    place.each(|entry| {
        let Some(timed) = entry.timed().filter(|timed| is_timed(entry.kernel, timed)) else { return };
        let (op, like) = Like::of(entry.kernel, timed);
        let Some(wanting) = of_op.get_mut(op) else { return };
        let id = KernelId::of(entry.kernel);
        for Wanting { work, best, .. } in wanting {
            if best.as_ref().is_none_or(|best| work.prefers(&like, &best.like)) {
                *best = Some(Near { id, like });
            }
        }
    });
    let (own, others): (Vec<_>, Vec<_>) = of_op.into_values().flatten().partition(|wanting| wanting.is_own);
    let found = others.into_iter().chain(own).filter_map(|wanting| Some((wanting.id, wanting.best?)));
    // Its own come last, and so in the place of what stands in.
    found.collect::<FxHashMap<KernelId, Near>>().into_iter().collect()
}

/// A kernel for which the nearest is looked for, and what was found so far.
struct Wanting<'a> {
    id: KernelId,
    work: &'a Work,
    /// Whether among those of its own op.
    is_own: bool,
    best: Option<Near>,
}
