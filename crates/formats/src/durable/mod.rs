//! Turns "write this file" into a file that is there whole or not at all, also after a power cut.
//!
//! A file or folder is written under a temporary name beside its place, synced, renamed over, and the folder that holds it
//! is synced. Whoever reads the final name sees the old content or the new one, never a mixture. What a crash leaves
//! behind has a recognisable name ([`recover`] removes it), and a writer that is still alive holds a lock on it, so
//! that cleaning up never pulls a file from under another process.
//!
//! ```
//! use plimsoll_formats::durable;
//! # let folder = std::env::temp_dir().join(format!("plimsoll-durable-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! for step in [10, 20, 30] {
//!     durable::write_dir(&durable::step_path(&folder, step), |unfinished| {
//!         std::fs::write(unfinished.join("weights.bin"), [step as u8])
//!     })?;
//!     durable::keep_last(&folder, 2)?;
//! }
//! let steps: Vec<u64> = durable::steps(&folder)?.into_iter().map(|(step, _)| step).collect();
//! assert_eq!(steps, [20, 30]);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod checksum;
mod numbered;
mod temporary;

pub use checksum::{ChecksumError, Checksummed, FileSum};
pub use numbered::{keep_last, keep_last_until, step_path, steps};
pub use temporary::recover;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use temporary::Temporary;

/// Writes the file at `path` with what `write` puts into the stream, whole or not at all.
///
/// An existing file is replaced. If `write` fails, nothing is left and the old file stays. A folder is never replaced by a file:
/// that is an error. What is neither, a pipe or a device like `/dev/stdout`, is written to as it is.
pub fn write_file<T, E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> Result<T, E>,
) -> Result<T, E> {
    write_checked(path, write, |_| Ok(()))
}

/// The same for a file that is read back by `check`, still under its temporary name, before it counts as written. What is neither a file nor a
/// folder cannot be read back and is not checked.
pub fn write_checked<T, E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> Result<T, E>,
    check: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<T, E> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            let why = "there is a folder of that name; name a file";
            return Err(io::Error::new(io::ErrorKind::IsADirectory, why).into());
        }
        Ok(meta) if !meta.is_file() => {
            let file = File::options().write(true).open(path)?;
            let mut out = BufWriter::with_capacity(1 << 16, &file);
            let value = write(&mut out)?;
            out.flush()?;
            return Ok(value);
        }
        _ => {}
    }
    let temporary = Temporary::file(path)?;
    let file = File::options().write(true).open(temporary.path())?;
    let mut out = BufWriter::with_capacity(1 << 16, &file);
    let value = write(&mut out)?;
    out.flush()?;
    drop(out);
    file.sync_all()?;
    check(temporary.path())?;
    temporary.rename_to(path)?;
    sync_dir(parent(path))?;
    Ok(value)
}

/// Makes the folder at `path` with what `fill` writes into the unfinished folder it is given, whole or not at all.
///
/// An existing folder is replaced: it is moved aside, and moved back by [`recover`] should the process die between the
/// two renames. If `fill` fails, nothing is left and the old folder stays.
pub fn write_dir<T, E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let temporary = Temporary::folder(path)?;
    let value = fill(temporary.path())?;
    sync_tree(temporary.path(), 0)?;
    temporary.rename_to(path)?;
    sync_dir(parent(path))?;
    Ok(value)
}

/// The folder that holds `path`.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Makes renames and removals inside a folder survive a power cut. Only Unix lets a folder be opened for this.
fn sync_dir(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// Syncs every file below a folder, then the folder.
fn sync_tree(path: &Path, depth: usize) -> io::Result<()> {
    if depth > 64 {
        return Err(io::Error::other(format!("{} is nested more than 64 folders deep", path.display())));
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path(), depth + 1)?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    sync_dir(path)
}

fn file_name(path: &Path) -> io::Result<&std::ffi::OsStr> {
    path.file_name()
        .ok_or_else(|| io::Error::other(format!("{} does not end in a file name", path.display())))
}

/// Removes a file or a folder with all it holds; links are removed, not followed.
fn remove(path: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// A folder of its own for each test, removed when the test ends.
#[cfg(test)]
struct Scratch(std::path::PathBuf);

#[cfg(test)]
impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder for the test");
        Scratch(path)
    }

    /// A folder with one file in it.
    fn folder_with(&self, name: &str, file: &str, text: &str) -> std::path::PathBuf {
        let folder = self.0.join(name);
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join(file), text).expect("a file in it");
        folder
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .expect("the test's folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

#[cfg(test)]
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let scratch = Scratch::new("failed-write");
        let path = scratch.0.join("state.json");
        write_file(&path, |out| out.write_all(b"old")).expect("the first write");
        let result: io::Result<()> = write_file(&path, |out| {
            out.write_all(b"new but")?;
            Err(io::Error::other("no space"))
        });
        assert!(result.is_err());
        assert_eq!(fs::read(&path).expect("the old file"), b"old");
        assert_eq!(scratch.names(), ["state.json"]);
    }

    /// A name that is not UTF-8, where the system has such names.
    #[cfg(unix)]
    fn odd_name(start: &[u8]) -> std::ffi::OsString {
        use std::os::unix::ffi::OsStringExt;
        std::ffi::OsString::from_vec([start, b"\xff\xfe"].concat())
    }

    #[cfg(unix)]
    #[test]
    fn names_that_are_not_utf_8_are_names_like_any_other() {
        let scratch = Scratch::new("odd-names");
        let (file, folder) = (scratch.0.join(odd_name(b"file")), scratch.0.join(odd_name(b"folder")));
        for text in ["old", "new"] {
            write_file(&file, |out| out.write_all(text.as_bytes())).expect("a file");
            write_dir(&folder, |dir| fs::write(dir.join("x"), text)).expect("a folder");
        }
        assert_eq!(fs::read(&file).expect("the file"), b"new");
        assert_eq!(fs::read(folder.join("x")).expect("its file"), b"new");
        assert_eq!(scratch.names().len(), 2);
    }

    #[test]
    fn a_file_never_takes_the_place_of_a_folder() {
        let scratch = Scratch::new("file-over-folder");
        let folder = scratch.folder_with("photos", "one", "precious");
        let error = write_file(&folder, |out| out.write_all(b"page")).expect_err("it is a folder");
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        assert_eq!(fs::read(folder.join("one")).expect("what was there"), b"precious");
        assert_eq!(scratch.names(), ["photos"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_written_to_and_stays_a_device() {
        use std::os::unix::fs::FileTypeExt;
        write_file(Path::new("/dev/null"), |out| out.write_all(b"page")).expect("it takes everything");
        let meta = fs::metadata("/dev/null").expect("it is there");
        assert!(meta.file_type().is_char_device());
        if cfg!(target_os = "linux") {
            assert!(write_file(Path::new("/dev/full"), |out| out.write_all(b"page")).is_err());
        }
    }

    #[test]
    fn a_folder_is_replaced_whole() {
        let scratch = Scratch::new("replace");
        let path = scratch.0.join("step-00000001");
        for (name, text) in [("a", "1"), ("b", "2")] {
            write_dir(&path, |dir| fs::write(dir.join(name), text)).expect("a folder");
        }
        assert!(!path.join("a").exists());
        assert_eq!(fs::read(path.join("b")).expect("the new file"), b"2");
        assert_eq!(scratch.names(), ["step-00000001"]);
    }

    #[test]
    fn a_failed_folder_leaves_nothing() {
        let scratch = Scratch::new("failed-folder");
        let result: io::Result<()> = write_dir(&scratch.0.join("x"), |dir| {
            fs::write(dir.join("half"), "half")?;
            Err(io::Error::other("no"))
        });
        assert!(result.is_err());
        assert!(scratch.names().is_empty());
    }
}
