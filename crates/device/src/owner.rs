//! Turns the place of a call into the owner of a block: an op's name and a source line.
//!
//! An error that says 'out of memory' without saying whose memory helps nobody. An owner is small and `Copy`,
//! so that naming one costs an allocation nothing.

use std::fmt;

pub use plimsoll_graph::Site;

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
        // A function that is called through a closure has no line that tells anybody anything.
        match self.site.known() {
            Some(site) if site.is_before => write!(f, "{} {site}", self.op),
            Some(site) => write!(f, "{} at {site}", self.op),
            None => f.write_str(self.op),
        }
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
        assert_eq!(owner.site, Site::new(file!(), line));
        assert_eq!(owner.to_string(), format!("op at {}:{line}", file!()));
    }
}
