//! Turns a value into the part of it that a rank has, where an axis of it is cut, and says where that part lies in the whole.

use std::ops::Range;

use plimsoll_graph::ops::Rank;
use plimsoll_graph::{ExchangeOps, Shape, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

/// An axis of which each rank has a part: the axis is so many blocks one after the other, and of each a rank has its part. Queries, keys and values that
/// stand beside each other are three blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// The axis.
    pub axis: usize,
    /// How many blocks it is.
    pub blocks: usize,
}

impl Cut {
    /// An axis in one block.
    pub(crate) fn at(axis: usize) -> Cut {
        Cut { axis, blocks: 1 }
    }

    /// Whether all ranks have as much of such a value, and nothing is filled up.
    pub(crate) fn is_even(self, whole: &Type, ranks: usize) -> bool {
        whole.shape[self.axis].is_multiple_of(self.blocks * ranks)
    }

    /// Whether such a value can be cut so: a single block may be filled up with zeros, and no rank may have nothing else.
    pub(crate) fn fits(self, whole: &Type, ranks: usize) -> bool {
        let Some(&len) = whole.shape.get(self.axis) else { return false };
        let own = len.div_ceil(ranks);
        self.blocks > 0
            && len > 0
            && (self.is_even(whole, ranks) || self.blocks == 1 && own * (ranks - 1) < len)
    }

    /// Places of a block that a rank has, those that are filled up among them.
    fn of_block(self, whole: &Type, ranks: usize) -> usize {
        (whole.shape[self.axis] / self.blocks).div_ceil(ranks)
    }

    /// The type of a rank's part.
    pub(crate) fn of_type(self, whole: &Type, ranks: usize) -> Type {
        whole.with_shape(whole.shape.with(self.axis, self.blocks * self.of_block(whole, ranks)))
    }

    /// Which places of an axis in one block are a rank's own, without what is filled up.
    pub(crate) fn places(self, whole: &Type, rank: Rank) -> Range<usize> {
        let (len, own) = (whole.shape[self.axis] / self.blocks, self.of_block(whole, rank.ranks));
        (rank.rank * own).min(len)..((rank.rank + 1) * own).min(len)
    }

    /// A rank's part of a value that it has all of.
    pub(crate) fn own(self, value: &Tensor, rank: Rank) -> Result<Tensor> {
        let (whole, part) = (value.ty(), self.of_type(value.ty(), rank.ranks));
        let places = self.places(whole, rank);
        if self.blocks == 1 {
            let found = value.narrow(self.axis, places.start, places.end)?;
            let missing = part.shape[self.axis] - places.len();
            if missing == 0 {
                return Ok(found);
            }
            let mut padding = vec![(0, 0); part.shape.rank()];
            padding[self.axis].1 = missing;
            return found.pad(&padding, 0.0);
        }
        let [outer, inner] = self.around(&whole.shape);
        let len = whole.shape[self.axis] / self.blocks;
        let blocks = value.reshape([outer * self.blocks, len, inner])?;
        blocks.narrow(1, places.start, places.end)?.reshape(part.shape)
    }

    /// All of a value of which every rank has its part.
    pub(crate) fn gathered(self, part: &Tensor, whole: &Type, rank: Rank) -> Result<Tensor> {
        let [outer, inner] = self.around(&whole.shape);
        let (units, own) = (outer * self.blocks, self.of_block(whole, rank.ranks));
        let all = part.flatten(0)?.all_gather(rank, Shape::from([rank.ranks, units, own * inner]))?;
        let all = all.transpose(&[1, 0, 2])?;
        let padded = whole.shape.with(self.axis, self.blocks * own * rank.ranks);
        let all = all.reshape(padded)?;
        match self.is_even(whole, rank.ranks) {
            true => Ok(all),
            false => all.narrow(self.axis, 0, whole.shape[self.axis]),
        }
    }

    /// Elements before and behind an element of the axis.
    fn around(self, shape: &Shape) -> [usize; 2] {
        [shape[..self.axis].iter().product(), shape[self.axis + 1..].iter().product()]
    }

    /// How the parts of all ranks lie in the whole.
    pub(crate) fn pieces(self, whole: &Type, ranks: usize) -> Pieces {
        let [outer, inner] = self.around(&whole.shape);
        let width = whole.dtype.bytes() * inner;
        let own = |rank: usize| self.places(whole, Rank::new(rank, ranks)).len() * width;
        Pieces {
            units: outer * self.blocks,
            stride: self.of_block(whole, ranks) * width,
            own: (0..ranks).map(own).collect(),
        }
    }
}

/// How the bytes of ranks' parts lie in a whole: unit by unit, of each the ranks' bytes one after the other. Where there are groups of so many ranks, each has
/// all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// How many units there are.
    pub units: usize,
    /// Bytes from one unit to the next in a rank's part.
    pub stride: usize,
    /// Bytes of a unit that each rank has in the whole: the first ones of its own.
    pub own: Vec<usize>,
}

impl Pieces {
    /// Bytes of a rank's part, where it has one.
    pub fn bytes(&self) -> usize {
        self.units * self.stride
    }

    /// Whether a rank writes its part: in the first of all groups.
    pub fn is_writer(&self, rank: usize) -> bool {
        rank < self.own.len()
    }

    /// Which bytes of a range of the whole are a rank's, each with where they lie in its part.
    pub fn own_within(&self, rank: usize, range: Range<usize>) -> Vec<(Range<usize>, usize)> {
        let rank = rank % self.own.len().max(1);
        let unit: usize = self.own.iter().sum();
        let before: usize = self.own[..rank].iter().sum();
        // Of nothing there are no units.
        let units = range.start / unit.max(1)..range.end.div_ceil(unit.max(1)).min(self.units);
        let own = units.filter_map(|i| {
            let start = (i * unit + before).max(range.start);
            let end = (i * unit + before + self.own[rank]).min(range.end);
            (start < end).then(|| (start..end, i * self.stride + start - i * unit - before))
        });
        own.collect()
    }

    /// The bytes of a rank's part, from those of the whole.
    #[cfg(test)]
    fn part(&self, rank: usize, whole: &[u8]) -> Vec<u8> {
        let mut part = vec![0; self.bytes()];
        for (of_whole, of_part) in self.own_within(rank, 0..whole.len()) {
            part[of_part..of_part + of_whole.len()].copy_from_slice(&whole[of_whole]);
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::DType;

    use super::*;

    /// What a rank has of `0, 1, 2, ..` by its bytes is what it has by its values.
    #[test]
    fn parts_of_bytes_are_parts_of_values() {
        for (shape, cut, ranks) in [
            (vec![4, 6], Cut::at(1), 3),
            (vec![4, 6], Cut::at(0), 2),
            (vec![2, 12, 3], Cut { axis: 1, blocks: 3 }, 2),
            (vec![7, 2], Cut::at(0), 3),
            (vec![2, 7], Cut::at(1), 2),
        ] {
            let whole = Type::new(DType::F32, &shape[..]);
            let values: Vec<f32> = (0..whole.elements()).map(|i| i as f32).collect();
            let tensor = Tensor::from_slice(&values, &shape[..]).unwrap();
            assert!(cut.fits(&whole, ranks));
            let pieces = cut.pieces(&whole, ranks);
            assert_eq!(pieces.units * pieces.own.iter().sum::<usize>(), whole.bytes());
            for rank in 0..ranks {
                let own = cut.own(&tensor, Rank::new(rank, ranks)).unwrap();
                assert_eq!(own.ty(), &cut.of_type(&whole, ranks));
                assert_eq!(own.to_bytes().unwrap(), pieces.part(rank, &tensor.to_bytes().unwrap()));
            }
        }
    }

    #[test]
    fn what_leaves_a_rank_with_nothing_is_no_cut() {
        let ty = |n: usize| Type::new(DType::F32, [n]);
        assert!(Cut::at(0).fits(&ty(7), 4) && !Cut::at(0).fits(&ty(5), 4) && !Cut::at(0).fits(&ty(3), 4));
        assert!(!Cut { axis: 0, blocks: 3 }.fits(&ty(9), 2) && !Cut::at(1).fits(&ty(8), 2));
    }
}
