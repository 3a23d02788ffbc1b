//! Writes what a command was asked for to a place that the user named: whole or not at all, and never over what was read.

use std::io::Write;
use std::path::Path;

use crate::Failure;

/// Writes a text. `flag` is what names the place, for the message; `read` is what the command read, which is never written over.
pub fn write(path: &Path, text: &str, flag: &str, read: &Path) -> Result<(), Failure> {
    check(path, flag, read)?;
    let written = plimsoll::formats::durable::write_file(path, |out| out.write_all(text.as_bytes()));
    let shown = path.display();
    written.map_err(|e| Failure(format!("{shown} cannot be written: {e}; name another place with {flag}")))
}

/// Refuses to write over what is read.
pub fn check(path: &Path, flag: &str, read: &Path) -> Result<(), Failure> {
    if is_same(path, read) {
        let shown = path.display();
        return Err(Failure(format!("{shown} is what is read; name another place with {flag}")));
    }
    Ok(())
}

/// Whether two paths name one file.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(one).is_some_and(|path| real(other) == Some(path))
}
