//! Turns a fraction into two parts of a data set: what is learned from, and what is held back, spread evenly over it.
//!
//! Held-back samples stand at equal distances, not at the end: a folder of images and many tables are sorted by class, and
//! their last tenth would be one class.

/// One of the two parts. Which samples belong to it depends on their numbers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// How many of a million samples are held back.
    pub held_per_million: u64,
    /// Whether this is the part that is held back.
    pub is_held: bool,
}

const MILLION: u128 = 1_000_000;

impl Part {
    /// Whether the sample of this number belongs to the part.
    pub fn has(&self, index: u64) -> bool {
        (self.held_below(index.saturating_add(1)) > self.held_below(index)) == self.is_held
    }

    /// How many of the first `len` samples belong to the part.
    pub fn len(&self, len: u64) -> u64 {
        let held = self.held_below(len);
        if self.is_held { held } else { len - held }
    }

    /// The number of the part's sample `at`.
    pub fn index(&self, at: u64) -> u64 {
        let held = u128::from(self.held_per_million).clamp(1, MILLION - 1);
        let index = match self.is_held {
            // The first number by which one more is held than `at`.
            true => ((u128::from(at) + 1) * MILLION).div_ceil(held) - 1,
            false => u128::from(at) * MILLION / (MILLION - held),
        };
        u64::try_from(index).unwrap_or(u64::MAX)
    }

    fn held_below(&self, len: u64) -> u64 {
        (u128::from(len) * u128::from(self.held_per_million) / MILLION) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_parts_are_all_samples_and_share_none() {
        for held_per_million in [1, 1_000, 100_000, 333_333, 500_000, 900_000, 999_999] {
            let part = |is_held| Part { held_per_million, is_held };
            for len in [0, 1, 2, 9, 10, 11, 999, 1_000, 1_001, 5_000] {
                let of = |part: Part| (0..part.len(len)).map(|at| part.index(at)).collect::<Vec<_>>();
                let (held, rest) = (of(part(true)), of(part(false)));
                let looked = |part: Part| (0..len).filter(|&i| part.has(i)).collect::<Vec<_>>();
                assert_eq!(held, looked(part(true)), "{held_per_million} of {len}");
                assert_eq!(rest, looked(part(false)), "{held_per_million} of {len}");
                assert_eq!(held.len() as u64, len * held_per_million / 1_000_000);
                assert_eq!(held.len() + rest.len(), len as usize);
            }
        }
    }
}
