//! Turns pieces of memory with lifespans into offsets of one arena, as few bytes as it finds.
//!
//! Pieces are placed one after the other at the lowest offset that is free during their lifespan. The order decides: several are tried, then
//! the best is changed at random (the same at random in every run) while that helps and until the arena is as small as what is live at once.

use alloc::vec::Vec;

/// Offsets are multiples of this, so that vectors of 16 bytes do not cross more lines than they must.
pub const ALIGNMENT: usize = 16;

/// A piece of memory that must be there from operator `first` to operator `last`, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
}

impl Piece {
    pub fn meets(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn room(&self) -> usize {
        self.bytes.next_multiple_of(ALIGNMENT)
    }
}

/// Where every piece lies, and how many bytes that takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub offsets: Vec<usize>,
    pub bytes: usize,
}

/// How many comparisons of pieces the search may take: a few hundredths of a second.
const EFFORT: usize = 20_000_000;

/// Places all pieces.
pub fn place(pieces: &[Piece]) -> Layout {
    let least = live_at_once(pieces);
    let mut best = Layout { offsets: Vec::new(), bytes: usize::MAX };
    let mut best_order = Vec::new();
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    let tries = (EFFORT / (pieces.len() * pieces.len()).max(1)).clamp(1, 2000);
    let length = |piece: &Piece| (piece.last - piece.first + 1) as u128;
    let keys: [&dyn Fn(&Piece) -> u128; 4] = [
        &|piece| piece.bytes as u128,
        &|piece| piece.bytes as u128 * length(piece),
        &|piece| length(piece),
        &|piece| (usize::MAX - piece.first) as u128,
    ];
    for key in keys.into_iter().take(tries) {
        order.sort_by_key(|index| core::cmp::Reverse(key(&pieces[*index])));
        keep_if_better(place_in_order(pieces, &order), &order, &mut best, &mut best_order);
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |count: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % count
    };
    for _ in keys.len()..tries {
        if best.bytes <= least || pieces.len() < 2 {
            break;
        }
        order.clone_from(&best_order);
        for _ in 0..1 + below(3) {
            // A piece is placed earlier, where it has more choice.
            let from = below(order.len());
            let piece = order.remove(from);
            order.insert(below(from + 1), piece);
        }
        keep_if_better(place_in_order(pieces, &order), &order, &mut best, &mut best_order);
    }
    if pieces.is_empty() { Layout::default() } else { best }
}

fn keep_if_better(layout: Layout, order: &[usize], best: &mut Layout, best_order: &mut Vec<usize>) {
    // One that is as good is kept too: from there another way may lead on.
    if layout.bytes <= best.bytes {
        *best = layout;
        best_order.clear();
        best_order.extend_from_slice(order);
    }
}

/// The most bytes that are live at one operator: no layout is smaller.
pub fn live_at_once(pieces: &[Piece]) -> usize {
    // What is live changes only where a piece begins.
    let mut ends: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * pieces.len());
    for piece in pieces {
        ends.push((piece.first, true, piece.room()));
        ends.push((piece.last.saturating_add(1), false, piece.room()));
    }
    ends.sort_unstable();
    let (mut live, mut most) = (0, 0usize);
    for (_, begins, bytes) in ends {
        live = if begins { live + bytes } else { live - bytes };
        most = most.max(live);
    }
    most
}

fn place_in_order(pieces: &[Piece], order: &[usize]) -> Layout {
    // Those placed, by offset.
    let mut placed: Vec<(usize, usize)> = Vec::with_capacity(pieces.len());
    let mut layout = Layout { offsets: alloc::vec![0; pieces.len()], bytes: 0 };
    for &index in order {
        let piece = &pieces[index];
        let mut offset = 0;
        for &(other_offset, other) in &placed {
            if !piece.meets(&pieces[other]) {
                continue;
            }
            if other_offset >= offset && other_offset - offset >= piece.room() {
                break;
            }
            offset = offset.max(other_offset + pieces[other].room());
        }
        let at = placed.partition_point(|(other_offset, _)| *other_offset <= offset);
        placed.insert(at, (offset, index));
        layout.offsets[index] = offset;
        layout.bytes = layout.bytes.max(offset + piece.room());
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[Piece]) -> usize {
        let layout = place(pieces);
        for (index, piece) in pieces.iter().enumerate() {
            assert_eq!(layout.offsets[index] % ALIGNMENT, 0);
            assert!(layout.offsets[index] + piece.bytes <= layout.bytes);
            for other in 0..index {
                let (a, b) = (layout.offsets[index], layout.offsets[other]);
                let apart = a + piece.bytes <= b || b + pieces[other].bytes <= a;
                assert!(apart || !piece.meets(&pieces[other]), "{index} and {other} overlap");
            }
        }
        assert!(layout.bytes >= live_at_once(pieces));
        layout.bytes
    }

    #[test]
    fn pieces_that_live_together_lie_apart() {
        let mut state = 7u64;
        let mut dice = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..50 {
            let pieces: Vec<Piece> = (0..1 + dice(40))
                .map(|_| {
                    let first = dice(30) as usize;
                    Piece { bytes: dice(1000) as usize + 1, first, last: first + dice(6) as usize }
                })
                .collect();
            check(&pieces);
        }
    }

    // op     0 1 2 3
    // a 64   ##
    // b 32     ##
    // c 96       ##
    #[test]
    fn a_chain_takes_no_more_than_its_two_largest_neighbours() {
        let piece = |bytes, first, last| Piece { bytes, first, last };
        assert_eq!(check(&[piece(64, 0, 1), piece(32, 1, 2), piece(96, 2, 3)]), 128);
        assert_eq!(check(&[]), 0);
    }
}
