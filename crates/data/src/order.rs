//! Turns a position in the pipeline into the number of a sample in its source.
//!
//! Taking, skipping, sharding, shuffling and repeating a source of which any sample can be read are functions
//! on numbers. Composed, they give the sample at any position at once: no list of indices is kept, whatever the
//! number of samples, and a run resumes at a position without passing through those before it.
//!
//! ```text
//! position ── repeat ──► (epoch, position in epoch) ── shuffle(epoch) ──► … ── shard ──► sample
//! ```

use plimsoll_graph::philox::mix;

use crate::held_back::Part;

/// One stage that moves samples around without looking at them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Take(u64),
    Skip(u64),
    Shard { index: u64, count: u64 },
    Part(Part),
    Shuffle { window: u64, seed: u64 },
    Repeat(Option<u64>),
}

/// The stages in the order in which they were asked for, over a source of `len` samples.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    moves: Vec<Move>,
    /// The number of samples before each move, and after the last; nothing stands for 'without end'.
    lens: Vec<Option<u64>>,
}

impl Order {
    pub fn new(len: u64, moves: &[Move]) -> Order {
        let mut lens = vec![Some(len)];
        for step in moves {
            let before = *lens.last().unwrap_or(&None);
            lens.push(step.len_after(before));
        }
        Order { moves: moves.to_vec(), lens }
    }

    /// The number of samples after all moves, if it has an end.
    pub fn len(&self) -> Option<u64> {
        self.lens.last().copied().flatten()
    }

    /// The epoch and the number in the source of the sample at a position; `pass` counts the passes over the
    /// whole order, so that each shuffles anew.
    pub fn at(&self, pass: u64, position: u64) -> (u64, u64) {
        let (mut epoch, mut at) = (pass, position);
        for (step, len) in self.moves.iter().zip(&self.lens).rev() {
            match *step {
                Move::Take(_) => {}
                Move::Skip(n) => at += n,
                Move::Shard { index, count } => at = at * count + index,
                Move::Part(part) => at = part.index(at),
                Move::Shuffle { window, seed } => {
                    // Over an endless repetition there is no permutation of the whole; windows are permuted.
                    let (block, size) = match *len {
                        Some(len) => (0, len),
                        None => (at / window.max(1), window.max(1)),
                    };
                    let key = mix(seed.wrapping_add(mix(epoch.wrapping_add(1)))).wrapping_add(mix(block + 1));
                    at = block * size + permute(at - block * size, size, key);
                }
                Move::Repeat(times) => {
                    let len = len.unwrap_or(u64::MAX).max(1);
                    epoch = epoch.wrapping_mul(times.unwrap_or(1)).wrapping_add(at / len);
                    at %= len;
                }
            }
        }
        (epoch, at)
    }
}

impl Move {
    pub fn len_after(&self, len: Option<u64>) -> Option<u64> {
        match *self {
            Move::Take(n) => Some(len.map_or(n, |len| len.min(n))),
            Move::Skip(n) => len.map(|len| len.saturating_sub(n)),
            Move::Shard { index, count } => len.map(|len| len.saturating_sub(index).div_ceil(count)),
            Move::Part(part) => len.map(|len| part.len(len)),
            Move::Shuffle { .. } => len,
            // Nothing repeated without end is still nothing.
            Move::Repeat(None) => len.filter(|&len| len == 0),
            Move::Repeat(Some(times)) => len.map(|len| len.saturating_mul(times)),
        }
    }
}

/// Where a one-to-one map of `0..len`, chosen by `key`, sends `at`.
///
/// A Feistel network permutes the next even power of two; numbers that land outside are sent on until one
/// lands inside ("cycle walking"), fewer than four times on average.
pub(crate) fn permute(at: u64, len: u64, key: u64) -> u64 {
    const ROUNDS: u64 = 6;
    if len <= 1 {
        return at;
    }
    let bits = u64::BITS - (len - 1).leading_zeros();
    let half = bits.div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut x = at;
    loop {
        let (mut left, mut right) = (x >> half, x & mask);
        for round in 0..ROUNDS {
            let word = mix(right ^ key.wrapping_add(round.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            // The upper bits of the mix are its best.
            (left, right) = (right, left ^ (word >> (64 - half)));
        }
        x = (left << half) | right;
        if x < len {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(order: &Order, pass: u64) -> Vec<u64> {
        (0..order.len().unwrap()).map(|position| order.at(pass, position).1).collect()
    }

    #[test]
    fn a_shuffle_is_a_permutation_of_any_length() {
        for len in (1..70).chain([255, 256, 257, 1000]) {
            let mut seen = all(&Order::new(len, &[Move::Shuffle { window: 1, seed: 7 }]), 0);
            seen.sort_unstable();
            assert_eq!(seen, (0..len).collect::<Vec<_>>(), "{len}");
        }
    }

    #[test]
    fn every_place_is_taken_by_every_sample_equally_often() {
        // 20 samples, 4000 epochs: each of the 400 pairs is expected 200 times. The sum of squares over
        // expectation has 19 · 19 degrees of freedom: mean 361, standard deviation 27.
        let order = Order::new(20, &[Move::Shuffle { window: 1, seed: 1 }]);
        let mut counts = [[0f64; 20]; 20];
        for epoch in 0..4000 {
            for (place, sample) in all(&order, epoch).into_iter().enumerate() {
                counts[place][sample as usize] += 1.0;
            }
        }
        let chi: f64 = counts.iter().flatten().map(|n| (n - 200.0) * (n - 200.0) / 200.0).sum();
        assert!((250.0..480.0).contains(&chi), "{chi}");
    }

    #[test]
    fn epochs_and_seeds_shuffle_differently() {
        let order = |seed| Order::new(100, &[Move::Shuffle { window: 1, seed }, Move::Repeat(Some(2))]);
        let both = all(&order(1), 0);
        assert_ne!(both[..100], both[100..]);
        assert_ne!(all(&order(1), 0), all(&order(2), 0));
        assert_eq!(all(&order(1), 0), both);
        assert_eq!(order(1).at(0, 150).0, 1);
    }

    #[test]
    fn moves_mean_what_their_order_says() {
        let order = |moves: &[Move]| all(&Order::new(10, moves), 0);
        assert_eq!(order(&[Move::Skip(2), Move::Take(3)]), [2, 3, 4]);
        assert_eq!(order(&[Move::Take(3), Move::Skip(2)]), [2]);
        assert_eq!(order(&[Move::Shard { index: 1, count: 4 }]), [1, 5, 9]);
        assert_eq!(order(&[Move::Skip(8), Move::Repeat(Some(2))]), [8, 9, 8, 9]);
        let mut first = order(&[Move::Take(4), Move::Shuffle { window: 9, seed: 3 }]);
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2, 3]);
    }

    #[test]
    fn endless_repetition_shuffles_in_windows_without_losing_a_sample() {
        let moves = [Move::Repeat(None), Move::Shuffle { window: 8, seed: 3 }, Move::Take(16)];
        let mut seen = all(&Order::new(4, &moves), 0);
        seen.sort_unstable();
        assert_eq!(seen, [[0; 4], [1; 4], [2; 4], [3; 4]].concat());
        assert_eq!(Order::new(0, &[Move::Repeat(None)]).len(), Some(0));
        assert_eq!(Order::new(1, &[Move::Repeat(None)]).len(), None);
    }
}
