//! The caller's source line, carried by every value so that bytes and errors can be traced to it.

use std::fmt;
use std::panic::Location;

/// A line of source code.
///
/// ```
/// use plimsoll_graph::Site;
/// assert!(Site::here().to_string().contains(".rs:"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

    /// The line, where it is one of somebody's own code: a function that is called through a closure has a line of the standard
    /// library for a caller, which tells nobody anything.
    pub fn known(self) -> Option<Site> {
        (!self.file.starts_with("/rustc/")).then_some(self)
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

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
