//! The caller's source line, carried by every value so that bytes and errors can be traced to it.

use std::fmt;
use std::panic::Location;

/// A place in the user's source.
///
/// ```
/// use plimsoll_graph::Site;
/// assert!(Site::here().to_string().contains(".rs:"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site(&'static Location<'static>);

impl Site {
    /// The line that called the function in which this is called, as far as `#[track_caller]` reaches.
    #[track_caller]
    pub fn here() -> Site {
        Site(Location::caller())
    }

    /// The standard library's form of it.
    pub fn location(self) -> &'static Location<'static> {
        self.0
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.file(), self.0.line())
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
