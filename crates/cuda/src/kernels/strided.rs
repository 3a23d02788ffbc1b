//! Turns shapes that are read with strides into as few axes as will do.

use plimsoll_graph::Shape;
use smallvec::SmallVec;

/// Axes at most, after neighbours have been joined.
pub(crate) const MAX_RANK: usize = 8;

/// Axis lengths, and for each operand its distance from one index to the next, in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strided {
    pub lengths: SmallVec<[usize; 8]>,
    pub strides: Vec<SmallVec<[usize; 8]>>,
}

impl Strided {
    /// The same elements under as few axes as possible: none of length 1, none that its neighbour continues.
    pub(crate) fn new(lengths: &[usize], strides: &[SmallVec<[usize; 8]>]) -> Strided {
        let mut joined = Strided { lengths: SmallVec::new(), strides: vec![SmallVec::new(); strides.len()] };
        for axis in (0..lengths.len()).rev() {
            if lengths[axis] == 1 {
                continue;
            }
            // Built from the last axis to the first; turned around below.
            let continues = match joined.lengths.last() {
                None => false,
                Some(&length) => strides
                    .iter()
                    .zip(&joined.strides)
                    .all(|(s, j)| j.last().is_some_and(|&inner| s[axis] == inner * length)),
            };
            if continues {
                if let Some(length) = joined.lengths.last_mut() {
                    *length *= lengths[axis];
                }
            } else {
                joined.lengths.push(lengths[axis]);
                joined.strides.iter_mut().zip(strides).for_each(|(j, s)| j.push(s[axis]));
            }
        }
        joined.lengths.reverse();
        joined.strides.iter_mut().for_each(|s| s.reverse());
        joined
    }

    /// The number of axes.
    pub(crate) fn rank(&self) -> usize {
        self.lengths.len()
    }

    /// Whether an operand is read element after element.
    pub(crate) fn is_dense(&self, operand: usize) -> bool {
        let mut expected = 1;
        for (&length, &stride) in self.lengths.iter().zip(&self.strides[operand]).rev() {
            if stride != expected {
                return false;
            }
            expected *= length;
        }
        true
    }

    /// Whether an operand is one element throughout.
    pub(crate) fn is_scalar(&self, operand: usize) -> bool {
        self.strides[operand].iter().all(|&s| s == 0)
    }
}

/// The strides with which a shape is read as a larger one that it broadcasts to.
pub(crate) fn broadcast_strides(from: &Shape, to: &Shape) -> SmallVec<[usize; 8]> {
    let own = from.strides();
    let missing = to.rank() - from.rank();
    (0..to.rank())
        .map(|axis| if axis < missing || from[axis - missing] == 1 { 0 } else { own[axis - missing] })
        .collect()
}

/// Row-major strides.
pub(crate) fn dense_strides(shape: &Shape) -> SmallVec<[usize; 8]> {
    shape.strides().iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_all_operands_pass_alike_become_one() {
        let (whole, row) = (Shape::from([2, 3, 1, 4]), Shape::from([4]));
        let strides = [dense_strides(&whole), broadcast_strides(&row, &whole)];
        let joined = Strided::new(&whole, &strides);
        assert_eq!(joined.lengths.as_slice(), [6, 4]);
        assert!(joined.is_dense(0) && !joined.is_dense(1));
        assert_eq!(joined.strides[1].as_slice(), [0, 1]);
    }

    #[test]
    fn a_scalar_is_one_element_throughout() {
        let whole = Shape::from([5, 7]);
        let joined = Strided::new(&whole, &[broadcast_strides(&Shape::scalar(), &whole)]);
        assert!(joined.is_scalar(0));
        assert_eq!(joined.rank(), 1);
    }
}
