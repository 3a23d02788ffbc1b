//! Turns the place of a call into the owner of a block: an op's name and a source line.
//!
//! An error that says 'out of memory' without saying whose memory helps nobody. An owner is small and `Copy`,
//! so that naming one costs an allocation nothing.

use std::fmt;
use std::panic::Location;

/// A line of source code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The file, as the compiler was given it.
    pub file: &'static str,
    /// The line, counted from one.
    pub line: u32,
}

impl Site {
    /// The line of the caller; of its caller in turn where that one is `#[track_caller]`.
    #[track_caller]
    pub fn here() -> Site {
        Site::from(Location::caller())
    }
}

impl From<&'static Location<'static>> for Site {
    fn from(location: &'static Location<'static>) -> Site {
        Site { file: location.file(), line: location.line() }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Who asked for a block of memory: which op, at which line.
///
/// ```
/// use plimsoll_device::Owner;
///
/// let owner = Owner::here("matmul");
/// assert_eq!(owner.op, "matmul");
/// assert!(owner.to_string().starts_with("matmul at "));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The op's name, as in the table of all ops.
    pub op: &'static str,
    /// The line of the user's code that called it.
    pub site: Site,
}

impl Owner {
    /// An owner at a known line.
    pub fn new(op: &'static str, site: impl Into<Site>) -> Owner {
        Owner { op, site: site.into() }
    }

    /// An owner at the line of the caller.
    #[track_caller]
    pub fn here(op: &'static str) -> Owner {
        Owner { op, site: Site::here() }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.op, self.site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn op() -> Owner {
        Owner::here("op")
    }

    #[test]
    fn the_line_is_the_callers_through_tracked_functions() {
        let (owner, line) = (op(), line!());
        assert_eq!(owner.site, Site { file: file!(), line });
        assert_eq!(owner.to_string(), format!("op at {}:{line}", file!()));
    }
}
