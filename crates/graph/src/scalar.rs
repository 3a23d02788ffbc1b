//! A floating-point attribute of an op, comparable and hashable by its bits.

use std::fmt;
use std::hash::{Hash, Hasher};

/// An `f64` attribute. Two are equal when their bits are, so that equal ops can be found and shared.
///
/// ```
/// use plimsoll_graph::Scalar;
/// assert_eq!(Scalar::from(0.5), Scalar(0.5));
/// assert_ne!(Scalar(0.0), Scalar(-0.0));
/// ```
#[derive(Clone, Copy, PartialOrd)]
pub struct Scalar(pub f64);

impl PartialEq for Scalar {
    fn eq(&self, other: &Scalar) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Scalar {}

impl Hash for Scalar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Scalar {
        Scalar(value)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
