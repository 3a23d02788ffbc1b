//! The caller's source line, carried by every value so that bytes and errors can be traced to it.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;

use crate::shape::shown_as_displayed;

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
    /// Whether it is the last line that was known, and what was called stands there or after it.
    pub is_before: bool,
}

thread_local! {
    /// The last line of a user's that this thread has come from.
    static LAST: Cell<Option<Site>> = const { Cell::new(None) };
}

impl Site {
    /// A line of a file.
    pub const fn new(file: &'static str, line: u32) -> Site {
        Site { file, line, is_before: false }
    }

    /// The line of the caller; of its caller in turn where that one is `#[track_caller]`. A method that is handed on as it is
    /// (`.map(Tensor::relu)`) is called by the standard library: there it is the last line of the user's before.
    #[track_caller]
    pub fn here() -> Site {
        let site = Site::from(Location::caller());
        if site.is_of_std() {
            return LAST.get().map_or(site, |last| Site { is_before: true, ..last });
        }
        if site.of_user().is_some() {
            LAST.set(Some(site));
        }
        site
    }

    /// Does something that is not the user's own doing, like running a model of a table: whatever it calls has no line of the user's before.
    pub fn anew<T>(run: impl FnOnce() -> T) -> T {
        /// Puts the line back that was last, also where what runs ends in a panic.
        struct Before(Option<Site>);
        impl Drop for Before {
            fn drop(&mut self) {
                LAST.set(self.0);
            }
        }
        let _before = Before(LAST.take());
        run()
    }

    fn is_of_std(self) -> bool {
        self.file.starts_with("/rustc/")
    }

    /// The line, where it is one of somebody's own code. A function that is called through a closure has a line of the standard
    /// library for a caller, and a layer that the zoo, a Keras file, a loss or an optimizer made has one of this engine: neither
    /// tells its reader where to look.
    pub fn known(self) -> Option<Site> {
        let is_nobodys = self.is_of_std() || self.file.is_empty();
        (!is_nobodys && !is_beside(file!(), self.file, &["nn", "keras", "train", "cli"])).then_some(self)
    }

    /// The line, where it is one of a program that uses the engine, and not one of the engine's own: what an error should name.
    pub fn of_user(self) -> Option<Site> {
        self.known().filter(|site| !is_beside(file!(), site.file, &[]))
    }

    /// ` at FILE:LINE`, or nothing where the line is nobody's own or the engine's: for the text of errors.
    pub fn at(self) -> At {
        At(self.of_user())
    }
}

/// Whether a file is a source of the crates among which this one is, at `here`, or of those that are named: in the folder of a
/// repository, which the compiler names as it was called, or unpacked from a registry. A user's crate of the same name lies
/// elsewhere.
fn is_beside(here: &str, file: &str, crates_named: &[&str]) -> bool {
    let is_meant = |name: &str| crates_named.is_empty() || crates_named.contains(&name);
    if let Some(crates) = here.strip_suffix("graph/src/site.rs") {
        let inside = file.strip_prefix(crates).and_then(|rest| rest.split_once('/'));
        return inside.is_some_and(|(name, inside)| is_meant(name) && inside.starts_with("src/"));
    }
    let registry = here.find("plimsoll-graph").map(|at| &here[..at]);
    registry
        .and_then(|registry| file.strip_prefix(registry))
        .and_then(|rest| rest.strip_prefix("plimsoll-"))
        .is_some_and(|rest| is_meant(rest.split('-').next().unwrap_or_default()))
}

/// A line as a part of a sentence: see [`Site::at`].
#[derive(Clone, Copy, Debug)]
pub struct At(Option<Site>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |site: Site| if site.is_before { "" } else { "at " };
        self.0.map_or(Ok(()), |site| write!(f, " {}{site}", word(site)))
    }
}

impl From<&'static Location<'static>> for Site {
    fn from(location: &'static Location<'static>) -> Site {
        Site::new(location.file(), location.line())
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(Site { file, line, is_before: false }) => write!(f, "{file}:{line}"),
            Some(Site { file, line, .. }) => write!(f, "after {file}:{line}"),
            None => f.write_str("a line that is not known"),
        }
    }
}

shown_as_displayed!(Site);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_standard_library_is_nobodys() {
        let std = Site::new("/rustc/59807616/library/core/src/ops/function.rs", 79);
        assert_eq!((std.known(), std.at().to_string()), (None, String::new()));
        assert!(!std.to_string().contains("rustc") && !format!("{std:?}").contains("rustc"));
        let mine = Site::new("src/main.rs", 7);
        assert_eq!(mine.at().to_string(), " at src/main.rs:7");
    }

    #[test]
    fn a_method_that_is_handed_on_has_the_last_line_before() {
        LAST.set(Some(Site::new("src/model.rs", 7)));
        let site = true.then(Site::here).unwrap();
        assert_eq!((site.file, site.line, site.is_before), ("src/model.rs", 7, true));
        assert_eq!(site.at().to_string(), " after src/model.rs:7");
        assert_eq!(site.to_string(), "after src/model.rs:7");
        assert_eq!(Site::anew(|| true.then(Site::here)).unwrap().known(), None);
        assert_eq!(true.then(Site::here), Some(site));
    }

    #[test]
    fn lines_that_made_layers_are_the_users_alone() {
        let root = file!().strip_suffix("graph/src/site.rs").unwrap();
        let at = |path: &str| Site::new(format!("{root}{path}").leak(), 7);
        for own in
            ["nn/src/zoo/unet.rs", "keras/src/layers/dense.rs", "train/src/session.rs", "cli/src/setup.rs"]
        {
            assert_eq!(at(own).known(), None, "{own}");
        }
        for users in ["nn/tests/sites.rs", "plimsoll/examples/digits.rs"] {
            assert_eq!(at(users).known(), Some(at(users)));
        }
    }

    #[test]
    fn lines_of_the_engine_are_told_from_those_of_programs_that_use_it() {
        let here = "crates/graph/src/site.rs";
        assert!(is_beside(here, "crates/nn/src/zoo/mlp.rs", &[]));
        for theirs in ["src/main.rs", "crates/nn/tests/layers.rs", "crates/plimsoll/examples/fashion.rs"] {
            assert!(!is_beside(here, theirs, &[]), "{theirs}");
        }
        let checkout = "/home/me/.cargo/git/checkouts/plimsoll-1/2/crates/";
        let here = format!("{checkout}graph/src/site.rs");
        assert!(is_beside(&here, &format!("{checkout}run/src/execute/step.rs"), &[]));
        assert!(!is_beside(&here, "crates/train/src/main.rs", &[]), "a user's crate of the same name");
        let registry = "/home/me/.cargo/registry/src/index.crates.io-1/";
        let here = format!("{registry}plimsoll-graph-0.1.0/src/site.rs");
        assert!(is_beside(&here, &format!("{registry}plimsoll-nn-0.1.0/src/zoo/mlp.rs"), &[]));
        assert!(!is_beside(&here, &format!("{registry}other-0.1.0/src/lib.rs"), &[]));
        assert!(!is_beside(&here, "src/plimsoll-model.rs", &[]));
        assert_eq!(Site::here().of_user(), None);
    }
}
