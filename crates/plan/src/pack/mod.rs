//! Turns buffers with lifespans into offsets such that no two that are live together overlap.
//!
//! The least memory that could do is the most bytes live at once. The packer aims at that lower bound, or, if
//! it is given a capacity, at any packing under the capacity; it stops as soon as it gets there. Finding the
//! lowest packing is NP-hard, so this is a ladder from cheap to thorough: see `solve`. It is a pure function:
//! it counts work instead of time, so the same input gives the same offsets on every machine that is not
//! so slow that the deadline comes first.
//!
//! ```text
//! bytes
//!  150       ┌───────┐
//!            │   b   │        a and b are live together, and b and c are;
//!  100   ┌───┴───┬───┴───┐    a and c are not, so one takes the other's place
//!        │   a   │   c   │
//!    0   └───────┴───────┘
//!        0   1   2   3   4  time
//! ```
//!
//! What is not here: lifespans (they come from an order of operations) and the choice of what to keep.

mod dive;
mod effort;
mod greedy;
mod index;
mod load;
mod part;
mod rank;
mod search;
mod solve;
mod state;
mod waiting;

use effort::Effort;
use part::Item;

/// A piece of memory needed from one instant to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// The first instant at which it is live.
    pub lower: u64,
    /// The first instant at which it no longer is.
    pub upper: u64,
    /// Its bytes.
    pub size: u64,
    /// What its offset must be a multiple of; 1 for any offset.
    pub alignment: u64,
}

/// What to aim at and how long to try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// A height that is good enough, in bytes; without one the lowest height is looked for.
    pub capacity: Option<u64>,
    /// How much to try, in seconds of work on a present machine. Work is counted, not timed, so that the same
    /// buffers get the same offsets.
    pub work: f64,
    /// The seconds after which the best packing so far is returned in any case.
    pub deadline: f64,
}

impl Options {
    /// Tries for at most so many seconds; the work takes half of them, so that it ends before the clock does.
    pub fn within(seconds: f64) -> Options {
        Options { capacity: None, work: seconds / 2.0, deadline: seconds }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options { capacity: None, work: 0.8, deadline: 10.0 }
    }
}

/// Offsets, and how good they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// The offset of each buffer, in the order given.
    pub offsets: Vec<u64>,
    /// The end of the highest buffer: the bytes an arena needs.
    pub height: u64,
    /// The most bytes live at once: no packing is lower.
    pub lower_bound: u64,
    /// Whether no packing is lower than this one, be it that it reaches the lower bound or that the search
    /// found nothing lower to exist.
    pub proved_optimal: bool,
    /// The seconds it took.
    pub seconds: f64,
}

impl Packing {
    /// How far the height is above the lower bound, as a fraction of it.
    ///
    /// ```
    /// use plimsoll_plan::pack::{Buffer, Options, pack};
    ///
    /// let buffer = Buffer { lower: 0, upper: 1, size: 10, alignment: 1 };
    /// assert_eq!(pack(&[buffer], &Options::default())?.gap(), 0.0);
    /// # Ok::<(), plimsoll_plan::pack::Error>(())
    /// ```
    pub fn gap(&self) -> f64 {
        if self.lower_bound == 0 {
            0.0
        } else {
            (self.height - self.lower_bound) as f64 / self.lower_bound as f64
        }
    }

    /// Whether it fits a capacity.
    pub fn fits(&self, capacity: u64) -> bool {
        self.height <= capacity
    }
}

/// Why buffers cannot be packed at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A lifespan ends before it starts.
    #[error(
        "buffer {buffer} ends at {upper}, before it starts at {lower}; lifespans are half open, lower..upper"
    )]
    Reversed {
        /// The position of the buffer.
        buffer: usize,
        /// Where it starts.
        lower: u64,
        /// Where it ends.
        upper: u64,
    },
    /// An alignment of zero.
    #[error("buffer {buffer} has alignment 0; give 1 if any offset will do")]
    NoAlignment {
        /// The position of the buffer.
        buffer: usize,
    },
    /// The sizes add up to more than offsets can count.
    #[error("the sizes up to buffer {buffer} add up to more than 2^62 bytes, which offsets cannot count")]
    TooLarge {
        /// The position of the buffer at which they do.
        buffer: usize,
    },
    /// More buffers than are counted.
    #[error("{count} buffers are more than the 2^30 that can be packed at once")]
    TooMany {
        /// How many there are.
        count: usize,
    },
}

/// Packs buffers as low as it can in the time given, or under the capacity given.
///
/// ```
/// use plimsoll_plan::pack::{Buffer, Options, pack};
///
/// let buffer = |lower, upper, size| Buffer { lower, upper, size, alignment: 1 };
/// let buffers = [buffer(0, 2, 100), buffer(1, 3, 50), buffer(2, 4, 100)];
/// let packing = pack(&buffers, &Options::default())?;
/// assert_eq!(packing.height, 150);
/// assert!(packing.proved_optimal);
/// # Ok::<(), plimsoll_plan::pack::Error>(())
/// ```
pub fn pack(buffers: &[Buffer], options: &Options) -> Result<Packing, Error> {
    pack_with(buffers, options, false)
}

/// Like [`pack`]; with `polish`, most of the effort goes to small changes of orders.
pub(crate) fn pack_with(buffers: &[Buffer], options: &Options, polish: bool) -> Result<Packing, Error> {
    // Only what is to be lower than something else may not be found.
    let none = |buffers: &[Buffer]| Packing {
        offsets: vec![0; buffers.len()],
        height: u64::MAX,
        lower_bound: 0,
        proved_optimal: false,
        seconds: 0.0,
    };
    Ok(pack_below(buffers, options, polish, u64::MAX)?.unwrap_or_else(|| none(buffers)))
}

/// Like [`pack_with`], where only a packing lower than `below` is of use: what cannot become one is left as soon as that is seen.
pub(crate) fn pack_below(
    buffers: &[Buffer],
    options: &Options,
    polish: bool,
    below: u64,
) -> Result<Option<Packing>, Error> {
    let mut effort = Effort::new(options.work, options.deadline);
    check(buffers)?;
    // Sizes in units of what divides all alignments: most often every alignment is then 1.
    let live = |buffer: &&Buffer| buffer.size > 0 && buffer.lower < buffer.upper;
    let unit = buffers.iter().filter(live).map(|buffer| buffer.alignment).fold(0, gcd).max(1);
    let padding = buffers.iter().filter(live).map(|buffer| buffer.size.next_multiple_of(unit) - buffer.size);
    let padding = padding.max().unwrap_or(0);
    let mut items: Vec<Item> = (buffers.iter().enumerate())
        .filter(|(_, buffer)| live(buffer))
        .map(|(id, buffer)| Item {
            id,
            lower: buffer.lower,
            upper: buffer.upper,
            size: buffer.size.div_ceil(unit),
            alignment: buffer.alignment / unit,
        })
        .collect();
    // Ties in any order are broken by position, which should not depend on how the caller listed them.
    items.sort_by_key(|item| (item.lower, item.upper, item.size, item.alignment));

    let mut settled = Vec::new();
    let parts = part::split(items, &mut settled);
    let live = parts.first().map_or(0, |part| part.base + part.live());
    // What was settled may be all there is, or may end above every part.
    let mut height =
        settled.iter().map(|&(id, offset)| offset + buffers[id].size.div_ceil(unit)).max().unwrap_or(0);
    let live = live.max(height);
    let mut goal = options.capacity.map_or(live, |capacity| (capacity / unit).max(live));
    let mut lower = live;
    for part in &parts {
        let aim = solve::Aim {
            goal: goal - part.base,
            // A height in units may be padded: what rounds up to `below` may still be lower.
            below: below.div_ceil(unit).saturating_add(1).saturating_sub(part.base),
            lower_is_better: options.capacity.is_none(),
            polish,
        };
        let Some(solved) = solve::solve(part, aim, &mut effort) else { return Ok(None) };
        settled.extend(
            part.items.iter().zip(&solved.offsets).map(|(item, offset)| (item.id, part.base + offset)),
        );
        height = height.max(part.base + solved.height);
        lower = lower.max(part.base + solved.lower);
        // The other parts may be as high as this one came out.
        goal = goal.max(height);
    }

    let mut offsets = vec![0; buffers.len()];
    for (id, offset) in settled {
        offsets[id] = offset * unit;
    }
    let ends =
        buffers.iter().zip(&offsets).filter(|(buffer, _)| buffer.size > 0 && buffer.lower < buffer.upper);
    let height = ends.map(|(buffer, offset)| offset + buffer.size).max().unwrap_or(0);
    // The topmost buffer needs no padding, and it may be the one with most of it.
    let lower_bound = most_live(buffers).max((live * unit).saturating_sub(padding));
    let proved_optimal = height <= lower_bound.max((lower * unit).saturating_sub(padding));
    let packing = Packing { offsets, height, lower_bound, proved_optimal, seconds: effort.seconds() };
    Ok((height < below || below == u64::MAX).then_some(packing))
}

/// The most bytes live at once.
fn most_live(buffers: &[Buffer]) -> u64 {
    // Ends sort before starts at the same instant.
    let mut events: Vec<(u64, bool, u64)> = Vec::with_capacity(2 * buffers.len());
    for buffer in buffers.iter().filter(|buffer| buffer.lower < buffer.upper) {
        events.push((buffer.lower, true, buffer.size));
        events.push((buffer.upper, false, buffer.size));
    }
    events.sort_unstable();
    let (mut live, mut most) = (0u64, 0);
    for (_, start, size) in events {
        live = if start { live + size } else { live - size };
        most = most.max(live);
    }
    most
}

fn check(buffers: &[Buffer]) -> Result<(), Error> {
    if buffers.len() > 1 << 30 {
        return Err(Error::TooMany { count: buffers.len() });
    }
    let mut sum = 0u64;
    for (at, buffer) in buffers.iter().enumerate() {
        let Buffer { lower, upper, size, alignment } = *buffer;
        if upper < lower {
            return Err(Error::Reversed { buffer: at, lower, upper });
        }
        if alignment == 0 {
            return Err(Error::NoAlignment { buffer: at });
        }
        sum = size
            .checked_add(alignment)
            .and_then(|need| sum.checked_add(need))
            .filter(|&sum| sum <= 1 << 62)
            .ok_or(Error::TooLarge { buffer: at })?;
    }
    Ok(())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
