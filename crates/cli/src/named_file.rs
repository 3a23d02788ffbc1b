//! Turns a path that somebody named into what the file holds, or into a sentence that says what is wrong with it and what the command takes.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::Failure;

/// Opens a file; `wanted` is what the command takes: `a .keras file`.
pub fn open(path: &Path, wanted: &str) -> Result<File, Failure> {
    let shown = path.display();
    if path.is_dir() {
        return Err(Failure(format!("{shown} is a folder; name {wanted}")));
    }
    File::open(path).map_err(|why| match why.kind() {
        ErrorKind::NotFound => Failure(format!("there is no file {shown}; name {wanted}")),
        _ => cannot_read(path, &why, wanted),
    })
}

fn cannot_read(path: &Path, why: &std::io::Error, wanted: &str) -> Failure {
    Failure(format!("{} cannot be read: {why}; name {wanted}", path.display()))
}

/// Refuses what is no file that can be read.
pub fn check(path: &Path, wanted: &str) -> Result<(), Failure> {
    open(path, wanted).map(drop)
}

/// A file's bytes.
pub fn bytes(path: &Path, wanted: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = open(path, wanted)?.read_to_end(&mut bytes);
    read.map_err(|why| cannot_read(path, &why, wanted))?;
    Ok(bytes)
}

/// A file as text.
pub fn text(path: &Path, wanted: &str) -> Result<String, Failure> {
    let no_text = |_| Failure(format!("{} is no text; name {wanted}", path.display()));
    String::from_utf8(bytes(path, wanted)?).map_err(no_text)
}
