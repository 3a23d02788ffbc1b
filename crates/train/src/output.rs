//! Lines for people and programs to standard output, and what became of them.
//!
//! A run must not end because a pager did or a disk is full, so a line that cannot be written does not stop it. But results that
//! nobody got are no success either: what was lost is remembered, and whoever ends the process asks for it.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

static LOST: OnceLock<String> = OnceLock::new();

/// Prints a line. A reader that went away has seen enough; any other failure is remembered.
///
/// ```
/// plimsoll_train::output::line(format_args!("{} samples", 3));
/// assert_eq!(plimsoll_train::output::lost(), None);
/// ```
pub fn line(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    keep(writeln!(out, "{text}"));
}

/// Why a line could not be written, the first time that happened.
pub fn lost() -> Option<&'static str> {
    keep(std::io::stdout().flush());
    LOST.get().map(String::as_str)
}

fn keep(written: std::io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        LOST.get_or_init(|| error.to_string());
    }
}
