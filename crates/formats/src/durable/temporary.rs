//! Turns a final name into a temporary one that is recognised as such, and removes those that crashes leave behind.
//!
//! Names: `.NAME.PID-N.unfinished` is being written or was torn by a crash; `.NAME.PID-N.replaced` is the old folder `NAME`,
//! moved aside by a replacement, or a folder on its way to be removed (`.removed`).

use super::{file_name, parent, remove, sync_dir};
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const UNFINISHED: &str = "unfinished";
const REPLACED: &str = "replaced";
const REMOVED: &str = "removed";

/// A file or folder under a temporary name, locked while this lives and removed with it unless it was renamed.
pub(super) struct Temporary {
    path: PathBuf,
    /// Holds the lock that tells a living writer from a leftover. Only Unix can open, and so lock, a folder.
    _lock: Option<File>,
    renamed: bool,
}

impl Temporary {
    pub(super) fn file(target: &Path) -> io::Result<Temporary> {
        Temporary::make(target, |path| File::create_new(path).map(Some))
    }

    pub(super) fn folder(target: &Path) -> io::Result<Temporary> {
        Temporary::make(target, |path| {
            fs::create_dir(path)?;
            open_folder(path)
        })
    }

    fn make(target: &Path, create: impl Fn(&Path) -> io::Result<Option<File>>) -> io::Result<Temporary> {
        // Another process may clean up between creation and lock; then the name is gone and the next one is tried.
        for _ in 0..100 {
            let path = name_beside(target, UNFINISHED)?;
            let handle = match create(&path) {
                Ok(handle) => handle,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e),
            };
            // A file system without locks costs only the protection against a concurrent clean-up.
            let locked = handle.as_ref().map_or(Ok(()), File::try_lock);
            if matches!(locked, Err(TryLockError::WouldBlock)) || !path.exists() {
                continue;
            }
            return Ok(Temporary { path, _lock: handle, renamed: false });
        }
        Err(io::Error::other(format!("no temporary name beside {} is free", target.display())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the content its final name, over whatever is there.
    pub(super) fn rename_to(mut self, target: &Path) -> io::Result<()> {
        // Files replace files in one step. A folder replaces only an empty one, so a full one is moved aside first.
        let aside = match fs::symlink_metadata(target) {
            Ok(meta) if meta.is_dir() => {
                // Locked, so that nobody moves it back while this process lives.
                let lock = open_folder(target)?;
                let _ = lock.as_ref().map(File::try_lock);
                let aside = name_beside(target, REPLACED)?;
                fs::rename(target, &aside)?;
                Some((aside, lock))
            }
            _ => None,
        };
        if let Err(e) = fs::rename(&self.path, target) {
            if let Some((aside, _lock)) = aside {
                fs::rename(aside, target)?;
            }
            return Err(e);
        }
        self.renamed = true;
        if let Some((aside, _lock)) = aside {
            sync_dir(parent(target))?;
            remove(&aside)?;
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing better can be done with an error here; `recover` will find what stays.
            let _ = remove(&self.path);
        }
    }
}

/// Removes `path` so that a crash on the way leaves no half of it under its name.
pub(super) fn remove_whole(path: &Path) -> io::Result<()> {
    let gone = name_beside(path, REMOVED)?;
    fs::rename(path, &gone)?;
    remove(&gone)
}

/// Removes what crashed writers left in `folder` and moves back what was about to be replaced. Returns the
/// paths removed. What a living process is writing is left alone.
pub fn recover(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some((target, kind)) = name.to_str().and_then(parse) else { continue };
        let path = entry.path();
        if !is_abandoned(&path) {
            continue;
        }
        let target = folder.join(target);
        let result = if kind == REPLACED && !target.exists() {
            fs::rename(&path, &target)
        } else {
            remove(&path).map(|()| removed.push(path))
        };
        match result {
            // Two processes may clean up at once: what is gone is gone.
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    sync_dir(folder)?;
    Ok(removed)
}

fn open_folder(path: &Path) -> io::Result<Option<File>> {
    if cfg!(unix) { File::open(path).map(Some) } else { Ok(None) }
}

/// Whether no living process holds the lock of a temporary name.
fn is_abandoned(path: &Path) -> bool {
    File::open(path).is_ok_and(|handle| handle.try_lock().is_ok())
}

fn name_beside(target: &Path, kind: &str) -> io::Result<PathBuf> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let n = COUNTER.fetch_add(1, Ordering::Relaxed);
    // Put together from parts: a name need not be UTF-8.
    let mut name = OsString::from(".");
    name.push(file_name(target)?);
    name.push(format!(".{}-{n}.{kind}", std::process::id()));
    Ok(parent(target).join(name))
}

/// Takes a temporary name apart: the final name and the kind. `None` for any other name.
fn parse(name: &str) -> Option<(&str, &str)> {
    let (rest, kind) = name.strip_prefix('.')?.rsplit_once('.')?;
    let (target, writer) = rest.rsplit_once('.')?;
    let (pid, n) = writer.split_once('-')?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let known = [UNFINISHED, REPLACED, REMOVED].contains(&kind);
    (known && digits(pid) && digits(n) && !target.is_empty()).then_some((target, kind))
}

#[cfg(test)]
mod tests {
    use super::super::Scratch;
    use super::*;

    #[test]
    fn only_names_of_ours_are_taken_for_leftovers() {
        assert_eq!(parse(".step-00000001.17-3.unfinished"), Some(("step-00000001", UNFINISHED)));
        assert_eq!(parse(".a.b.17-3.replaced"), Some(("a.b", REPLACED)));
        for other in ["step-00000001", ".hidden", ".a.17.unfinished", ".a.x-3.unfinished", "a.1-2.unfinished"]
        {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn leftovers_go_and_foreign_files_stay() {
        let scratch = Scratch::new("leftovers");
        fs::create_dir(scratch.0.join(".step-00000002.999999-0.unfinished")).expect("a leftover");
        fs::write(scratch.0.join(".state.json.999999-1.unfinished"), "half").expect("a leftover");
        fs::write(scratch.0.join("notes.txt"), "mine").expect("a foreign file");
        assert_eq!(recover(&scratch.0).expect("recovery").len(), 2);
        assert_eq!(scratch.names(), ["notes.txt"]);
    }

    #[test]
    fn a_folder_moved_aside_by_a_crashed_replacement_comes_back() {
        let scratch = Scratch::new("aside");
        let aside = scratch.folder_with(".step-00000002.999999-0.replaced", "w", "old");
        recover(&scratch.0).expect("recovery");
        assert_eq!(scratch.names(), ["step-00000002"]);
        // Once the new one is in place the old one is only a leftover.
        fs::create_dir(&aside).expect("the old folder again");
        recover(&scratch.0).expect("recovery");
        assert_eq!(scratch.names(), ["step-00000002"]);
        assert_eq!(fs::read(scratch.0.join("step-00000002/w")).expect("the file"), b"old");
    }

    #[test]
    fn a_living_writer_keeps_its_temporary_file() {
        let scratch = Scratch::new("living");
        let living = Temporary::folder(&scratch.0.join("x")).expect("a temporary folder");
        assert!(recover(&scratch.0).expect("recovery").is_empty());
        assert!(living.path().exists());
        drop(living);
        assert!(scratch.names().is_empty());
    }
}
