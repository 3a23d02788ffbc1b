//! A folder of a test's own.

use std::path::{Path, PathBuf};

/// A folder that is removed when the test ends.
pub struct Scratch(PathBuf);

impl Scratch {
    /// An empty folder of this name, and of no other process, in the system's place for such things.
    pub fn new(name: &str) -> Scratch {
        Scratch::within(&std::env::temp_dir(), name)
    }

    /// The same in another place.
    ///
    /// # Panics
    /// Where it cannot be made.
    pub fn within(place: &Path, name: &str) -> Scratch {
        let path = place.join(format!("plimsoll-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Scratch(path)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Something in it, as a command wants to be told.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
