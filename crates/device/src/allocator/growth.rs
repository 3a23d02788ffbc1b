//! Turns what is live at each step's end into the names of the lines whose tensors pile up.
//!
//! A loop that keeps a tensor a step, in a list of losses say, runs for hours before it runs out of memory,
//! and then fails in some other line. Counting the live blocks of each line at every step's end finds the
//! line that keeps them within a few steps.

use std::fmt;

use rustc_hash::FxHashMap;

use super::Allocator;
use crate::{Bytes, Owner};

/// A line that held more blocks at the end of each of the last steps than at the end of the step before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// The op and the line that made the blocks.
    pub owner: Owner,
    /// How many of its blocks are live now.
    pub count: usize,
    /// What they take.
    pub bytes: Bytes,
    /// For how many steps in a row their number has grown.
    pub steps: usize,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Growth { owner, count, bytes, steps } = self;
        write!(
            f,
            "{owner} holds {count} tensors ({bytes}), more after each of the last {steps} steps; drop them \
             or keep only their values"
        )
    }
}

/// Watches an allocator from step to step.
///
/// ```
/// use plimsoll_device::{Allocator, Bytes, GrowthWatch, Owner, System};
///
/// let memory = System::new(Bytes::mib(1));
/// let mut watch = GrowthWatch::new(3);
/// let mut losses = Vec::new();
/// let mut named = Vec::new();
/// for _step in 0..5 {
///     losses.push(memory.allocate(Bytes(4), 64, Owner::here("mean"))?);
///     named = watch.mark_step(&memory);
/// }
/// assert_eq!((named[0].owner.op, named[0].count, named[0].steps), ("mean", 5, 4));
/// # Ok::<(), plimsoll_device::OutOfMemory>(())
/// ```
#[derive(Clone, Debug)]
pub struct GrowthWatch {
    window: usize,
    /// Number of steps marked so far.
    marks: usize,
    seen: FxHashMap<Owner, Seen>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: usize,
    steps: usize,
    /// The mark at which the owner was last live.
    mark: usize,
}

impl GrowthWatch {
    /// How many steps of growth in a row make a suspect, unless told otherwise.
    pub const DEFAULT_WINDOW: usize = 5;

    /// Names what grows in `window` steps in a row; a window of zero counts as one.
    pub fn new(window: usize) -> GrowthWatch {
        GrowthWatch { window: window.max(1), marks: 0, seen: FxHashMap::default() }
    }

    /// Looks at what is live at a step's end and names what has grown, largest first.
    ///
    /// The first mark is the level to compare with, and names nothing.
    pub fn mark_step(&mut self, memory: &dyn Allocator) -> Vec<Growth> {
        self.marks += 1;
        let mut growths = Vec::new();
        for holder in memory.holders(usize::MAX) {
            let seen = self.seen.entry(holder.owner).or_default();
            let grown = self.marks > 1 && holder.blocks > seen.count;
            let steps = if grown { seen.steps + 1 } else { 0 };
            *seen = Seen { count: holder.blocks, steps, mark: self.marks };
            if steps >= self.window {
                let Seen { count, .. } = *seen;
                growths.push(Growth { owner: holder.owner, count, bytes: holder.bytes, steps });
            }
        }
        // An owner that holds nothing now starts from nothing when it comes back.
        self.seen.retain(|_, seen| seen.mark == self.marks);
        growths
    }
}

impl Default for GrowthWatch {
    fn default() -> GrowthWatch {
        GrowthWatch::new(GrowthWatch::DEFAULT_WINDOW)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Site, System};

    fn at(line: u32) -> Owner {
        Owner::new("op", Site::new("loop.rs", line))
    }

    fn ask(memory: &System, line: u32) -> Block {
        memory.allocate(Bytes(128), 64, at(line)).unwrap()
    }

    #[test]
    fn a_line_that_keeps_one_a_step_is_named_after_five_steps_and_others_are_not() {
        let memory = System::new(Bytes::mib(1));
        let mut watch = GrowthWatch::default();
        let mut kept = Vec::new();
        let _weights = ask(&memory, 1);
        for step in 0..8 {
            let passing = ask(&memory, 2);
            kept.push(ask(&memory, 3));
            memory.release(passing).unwrap();
            let named = watch.mark_step(&memory);
            // Step 0 sets the level; steps 1 to 5 are the five that grow.
            if step < 5 {
                assert_eq!(named, [], "step {step}");
            } else {
                let count = step + 1;
                let bytes = Bytes(128 * count as u64);
                assert_eq!(named, [Growth { owner: at(3), count, bytes, steps: step }]);
            }
        }
        assert!(watch.mark_step(&memory).is_empty(), "a step without growth ends the row");
    }

    #[test]
    fn a_line_that_first_appears_later_is_found_too() {
        let memory = System::new(Bytes::mib(1));
        let mut watch = GrowthWatch::new(2);
        assert!(watch.mark_step(&memory).is_empty());
        let _a = ask(&memory, 9);
        assert!(watch.mark_step(&memory).is_empty());
        let _b = ask(&memory, 9);
        let named = watch.mark_step(&memory);
        assert_eq!(named.len(), 1);
        let text = "op at loop.rs:9 holds 2 tensors (256 B), more after each of the last 2 steps";
        assert!(named[0].to_string().starts_with(text));
    }

    #[test]
    fn a_saw_tooth_is_not_growth() {
        let memory = System::new(Bytes::mib(1));
        let mut watch = GrowthWatch::new(3);
        let mut kept = Vec::new();
        for step in 0..20 {
            kept.push(ask(&memory, 4));
            if step % 3 == 2 {
                kept.drain(..).for_each(|block| memory.release(block).unwrap());
            }
            assert!(watch.mark_step(&memory).is_empty());
        }
    }
}
