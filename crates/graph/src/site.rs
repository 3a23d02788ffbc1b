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

    /// The line, where it is one of somebody's own code. A function that is called through a closure has a line of the standard
    /// library for a caller, and a layer that the zoo, a Keras file, a loss or an optimizer made has one of this engine: neither
    /// tells its reader where to look.
    pub fn known(self) -> Option<Site> {
        (!self.file.starts_with("/rustc/") && !self.is_of_engine()).then_some(self)
    }

    /// Whether it is in the engine's own layers, models, losses, optimizers or commands. Its tests and examples are not.
    pub fn is_of_engine(self) -> bool {
        let root = file!().strip_suffix("graph/src/site.rs");
        let within = root.and_then(|root| self.file.strip_prefix(root));
        within.is_some_and(|path| {
            ["nn/src/", "keras/src/", "train/src/", "cli/src/"].iter().any(|own| path.starts_with(own))
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_engine_or_of_the_standard_library_is_nobodys_own() {
        let root = file!().strip_suffix("graph/src/site.rs").unwrap();
        let at = |path: &str| Site { file: format!("{root}{path}").leak(), line: 7 };
        for own in
            ["nn/src/zoo/unet.rs", "keras/src/layers/dense.rs", "train/src/session.rs", "cli/src/case.rs"]
        {
            assert_eq!(at(own).known(), None, "{own}");
        }
        for users in ["nn/tests/sites.rs", "plimsoll/examples/digits.rs"] {
            assert_eq!(at(users).known(), Some(at(users)));
        }
        let elsewhere = Site { file: "src/nn/src/main.rs", line: 3 };
        assert_eq!(elsewhere.known(), Some(elsewhere));
        assert_eq!(Site { file: "/rustc/abc/library/core/src/ops/function.rs", line: 79 }.known(), None);
    }
}
