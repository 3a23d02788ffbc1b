//! Turns a refused allocation into an error that says who asked, who holds what, and why it did not fit.
//!
//! The error is made at once from figures that the allocator keeps anyway: no waiting for memory that nobody
//! is going to free, no walk over the live blocks.

use std::fmt;

use crate::{Bytes, Owner, Stats};

/// How many holders an [`OutOfMemory`] names.
pub const HOLDERS_IN_AN_ERROR: usize = 10;

/// All live blocks that one source line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The op and the line.
    pub owner: Owner,
    /// What its blocks take together.
    pub bytes: Bytes,
    /// How many blocks it holds.
    pub blocks: usize,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.blocks == 1 { "" } else { "s" };
        write!(f, "{:>9} in {} block{s} by {}", self.bytes, self.blocks, self.owner)
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The request alone is more than the limit: it would not fit if nothing else were held.
    Limit,
    /// More is asked than is free: it would not fit if all free memory were joined.
    Capacity,
    /// Enough is free, but no hole is large enough.
    Fragmentation,
    /// The limit allows it, but the operating system or the driver of a card did not give the memory.
    System,
    /// More is asked than a memory limit for the whole process leaves.
    MemoryLimit,
    /// It was made to fail, to rehearse what happens then ([`crate::Failing`]).
    Rehearsed,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Limit => "limit",
            Verdict::Capacity => "capacity",
            Verdict::Fragmentation => "fragmentation",
            Verdict::System => "system",
            Verdict::MemoryLimit => "memory limit",
            Verdict::Rehearsed => "rehearsed",
        })
    }
}

/// A request for memory that could not be met, with everything needed to see why.
///
/// The first line of its text is a sentence that stands alone; the figures and the holders follow.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", self.text())]
pub struct OutOfMemory {
    /// What was asked.
    pub requested: Bytes,
    /// By which op at which line.
    pub owner: Owner,
    /// What all live blocks take.
    pub in_use: Bytes,
    /// The limit less what is in use.
    pub free: Bytes,
    /// The most that may be in use.
    pub limit: Bytes,
    /// The largest request that could have been met.
    pub largest_free: Bytes,
    /// The part of the free memory that lies outside the largest free block, from 0 to 1.
    pub fragmentation: f64,
    /// Why it did not fit.
    pub verdict: Verdict,
    /// The largest holders, largest first: at most [`HOLDERS_IN_AN_ERROR`].
    pub holders: Vec<Holder>,
}

impl OutOfMemory {
    /// Judges a request that an allocator with these figures could not meet.
    pub fn new(requested: Bytes, owner: Owner, stats: &Stats, holders: Vec<Holder>) -> OutOfMemory {
        let free = stats.free();
        let verdict = if requested > stats.limit {
            Verdict::Limit
        } else if requested > free {
            Verdict::Capacity
        } else {
            Verdict::Fragmentation
        };
        OutOfMemory {
            requested,
            owner,
            in_use: stats.in_use,
            free,
            limit: stats.limit,
            largest_free: stats.largest_free,
            fragmentation: stats.fragmentation,
            verdict,
            holders,
        }
    }

    /// The same refusal, but by the operating system or the driver of a card.
    pub fn by_system(self) -> OutOfMemory {
        OutOfMemory { verdict: Verdict::System, ..self }
    }

    /// The same refusal, by a memory limit for the whole process that the limit follows from.
    pub fn by_limit(self) -> OutOfMemory {
        OutOfMemory { verdict: Verdict::MemoryLimit, ..self }
    }

    /// A refusal that was asked for, to rehearse what happens then.
    pub fn rehearsed(self) -> OutOfMemory {
        OutOfMemory { verdict: Verdict::Rehearsed, ..self }
    }

    fn sentence(&self) -> String {
        let OutOfMemory { requested, owner, free, limit, largest_free, .. } = self;
        let asked = format!("out of memory: {owner} asked for {requested}");
        match self.verdict {
            Verdict::Limit => format!("{asked}, more than the whole limit of {limit}; raise the limit"),
            Verdict::Capacity => {
                format!("{asked}, but only {free} of {limit} are free; free something or raise the limit")
            }
            Verdict::Fragmentation if largest_free < requested => format!(
                "{asked}, and {free} of {limit} are free, but because of fragmentation the largest free \
                 block is only {largest_free}; free neighbouring blocks or raise the limit"
            ),
            Verdict::Fragmentation => format!(
                "{asked}, and {free} of {limit} are free, but because of fragmentation no free block has \
                 room at the alignment asked; ask for less alignment or raise the limit"
            ),
            Verdict::MemoryLimit => format!(
                "{asked}, but only {free} of the {limit} that the step's memory limit leaves for tensors are free; free \
                 something, or raise the memory limit"
            ),
            Verdict::Rehearsed => format!(
                "{asked}, and this allocation was made to fail: a rehearsal, as was asked for; there is no lack of memory \
                 within the limit of {limit}"
            ),
            Verdict::System => format!(
                "{asked}, which the limit of {limit} allows, but the system refused: something else may hold \
                 the rest; end it, or lower the limit to what is left"
            ),
        }
    }

    fn text(&self) -> String {
        let mut text = self.sentence();
        text += &format!("\n  verdict        {:>9}", self.verdict);
        for (name, bytes) in [
            ("requested", self.requested),
            ("in use", self.in_use),
            ("free", self.free),
            ("limit", self.limit),
            ("largest free", self.largest_free),
        ] {
            text += &format!("\n  {name:<14} {bytes:>9}");
        }
        text += &format!("\n  fragmentation  {:>7.0} %", self.fragmentation * 100.0);
        if !self.holders.is_empty() {
            text += "\nlargest holders:";
        }
        for holder in &self.holders {
            text += &format!("\n  {holder}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Site;

    fn refusal(requested: Bytes, in_use: Bytes, largest_free: Bytes) -> OutOfMemory {
        let limit = Bytes::mib(256);
        let owner = Owner::new("matmul", Site::new("src/train.rs", 7));
        let stats = Stats::new(in_use, in_use, in_use, limit, largest_free, 31);
        OutOfMemory::new(requested, owner, &stats, vec![Holder { owner, bytes: in_use, blocks: 31 }])
    }

    #[test]
    fn the_text_opens_with_a_sentence_and_lists_figures_and_holders() {
        let text = refusal(Bytes::mib(8), Bytes::mib(124), Bytes::mib(4)).to_string();
        let expected = "\
out of memory: matmul at src/train.rs:7 asked for 8 MiB, and 132 MiB of 256 MiB are free, but because of \
fragmentation the largest free block is only 4 MiB; free neighbouring blocks or raise the limit
  verdict        fragmentation
  requested          8 MiB
  in use           124 MiB
  free             132 MiB
  limit            256 MiB
  largest free       4 MiB
  fragmentation       97 %
largest holders:
    124 MiB in 31 blocks by matmul at src/train.rs:7";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_verdict_follows_from_the_figures() {
        let verdict = |requested| refusal(requested, Bytes::mib(124), Bytes::mib(4)).verdict;
        assert_eq!(verdict(Bytes::mib(132)), Verdict::Fragmentation);
        assert_eq!(verdict(Bytes(Bytes::mib(132).0 + 1)), Verdict::Capacity);
        assert_eq!(verdict(Bytes::mib(256)), Verdict::Capacity);
        assert_eq!(verdict(Bytes(Bytes::mib(256).0 + 1)), Verdict::Limit);
    }

    #[test]
    fn every_verdict_has_a_first_line_that_names_op_line_and_size() {
        let capacity = refusal(Bytes::mib(200), Bytes::mib(124), Bytes::mib(4));
        let aligned = refusal(Bytes::mib(8), Bytes::mib(124), Bytes::mib(9));
        let limit = refusal(Bytes::gib(1), Bytes::ZERO, Bytes::mib(256));
        for error in [
            capacity.clone(),
            aligned,
            limit,
            capacity.clone().by_system(),
            capacity.clone().by_limit(),
            capacity.rehearsed(),
        ] {
            let text = error.to_string();
            let first = text.lines().next().unwrap();
            assert!(first.contains("matmul at src/train.rs:7 asked for"), "{first}");
            assert!(first.contains(&error.requested.to_string()), "{first}");
            assert!(first.contains(&error.limit.to_string()), "{first}");
        }
    }
}
