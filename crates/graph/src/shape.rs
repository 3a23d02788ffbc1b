//! Static shapes and the types (dtype and shape) of values.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::DType;

/// The lengths of a tensor's axes, outermost first; dense and row-major.
///
/// ```
/// use plimsoll_graph::Shape;
/// let s = Shape::from([2, 3, 4]);
/// assert_eq!(s.elements(), 24);
/// assert_eq!(s.to_string(), "[2, 3, 4]");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Shape(SmallVec<[usize; 5]>);

impl Shape {
    /// The shape of a scalar: no axes, one element.
    pub fn scalar() -> Shape {
        Shape::default()
    }

    /// The number of elements; the largest number where they are more than can be counted.
    pub fn elements(&self) -> usize {
        self.0.iter().fold(1, |all: usize, &n| all.saturating_mul(n))
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Appends an axis.
    pub fn push(&mut self, length: usize) {
        self.0.push(length);
    }

    /// Row-major strides, in elements.
    pub fn strides(&self) -> SmallVec<[usize; 5]> {
        let mut strides: SmallVec<[usize; 5]> = SmallVec::from_elem(1, self.rank());
        for axis in (0..self.rank().saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * self.0[axis + 1];
        }
        strides
    }

    /// The shape that both broadcast to, aligned at the last axis, or `None` where an axis differs and is not 1.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let at = |s: &Shape, axis: usize| {
            let missing = rank - s.rank();
            if axis < missing { 1 } else { s.0[axis - missing] }
        };
        let mut out = Shape::default();
        for axis in 0..rank {
            match (at(self, axis), at(other, axis)) {
                (a, b) if a == b => out.push(a),
                (1, b) => out.push(b),
                (a, 1) => out.push(a),
                _ => return None,
            }
        }
        Some(out)
    }

    /// This shape without the given axes, or with length 1 in their place.
    pub fn reduced(&self, axes: &[usize], keep: bool) -> Shape {
        let mut out = Shape::default();
        for (axis, &length) in self.0.iter().enumerate() {
            match (axes.contains(&axis), keep) {
                (false, _) => out.push(length),
                (true, true) => out.push(1),
                (true, false) => {}
            }
        }
        out
    }

    /// This shape with one axis set to another length.
    pub fn with(&self, axis: usize, length: usize) -> Shape {
        let mut out = self.clone();
        out.0[axis] = length;
        out
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(axes: [usize; N]) -> Shape {
        Shape(SmallVec::from_slice(&axes))
    }
}

impl From<&[usize]> for Shape {
    fn from(axes: &[usize]) -> Shape {
        Shape(SmallVec::from_slice(axes))
    }
}

impl From<Vec<usize>> for Shape {
    fn from(axes: Vec<usize>) -> Shape {
        Shape(SmallVec::from_vec(axes))
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(axes: I) -> Shape {
        Shape(axes.into_iter().collect())
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.as_slice())
    }
}

/// What is printed for developers is what is printed for people.
macro_rules! shown_as_displayed {
    ($( $type:ty ),+) => {
        $( impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        } )+
    };
}
pub(crate) use shown_as_displayed;

shown_as_displayed!(Shape, Type);

/// What is known of a value before it exists: element type and shape.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// let t = Type::new(DType::F32, [8, 3]);
/// assert_eq!(t.bytes(), 96);
/// assert_eq!(t.to_string(), "f32[8, 3]");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Type {
    /// The element type.
    pub dtype: DType,
    /// The axis lengths.
    pub shape: Shape,
}

impl Type {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Type {
        Type { dtype, shape: shape.into() }
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// The number of bytes, without alignment; the largest number where they are more than can be counted.
    pub fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.dtype.bytes())
    }

    /// Whether it has more bytes than any machine: sums of such sizes could not be counted any more.
    pub fn is_too_large(&self) -> bool {
        self.bytes() as u64 > 1 << 52
    }

    /// The same shape with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Type {
        Type { dtype, shape: self.shape.clone() }
    }

    /// The same element type with another shape.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> Type {
        Type { dtype: self.dtype, shape: shape.into() }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_from_the_last_axis() {
        let s = |v: &[usize]| Shape::from(v);
        assert_eq!(s(&[2, 1, 4]).broadcast(&s(&[3, 1])), Some(s(&[2, 3, 4])));
        assert_eq!(s(&[]).broadcast(&s(&[3])), Some(s(&[3])));
        assert_eq!(s(&[2]).broadcast(&s(&[3])), None);
    }

    #[test]
    fn strides_are_row_major() {
        assert_eq!(Shape::from([2, 3, 4]).strides().as_slice(), &[12, 4, 1]);
        assert!(Shape::scalar().strides().is_empty());
    }
}
