//! Turns the names of NVIDIA's libraries into loaded libraries, wherever they are installed.
//!
//! The bindings open libraries by bare name only. One that lies outside the loader's path is opened here first, by its
//! absolute path and with its symbols visible to all: the bindings' later request then finds it by its name. cuDNN is not called by the bindings but by
//! [`crate::dnn`], since a process may have one already.

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Unix, RTLD_GLOBAL, RTLD_LAZY};

use crate::dnn::functions;

/// A library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Driver,
    Nvrtc,
    BlasLt,
    Dnn,
}

impl Library {
    /// The usual file name, for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so.1",
            Library::Nvrtc => "libnvrtc.so",
            Library::BlasLt => "libcublasLt.so",
            Library::Dnn => "libcudnn.so",
        }
    }

    /// How its files' names begin.
    fn stem(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so",
            Library::Nvrtc => "libnvrtc.so",
            Library::BlasLt => "libcublasLt.so",
            Library::Dnn => functions::STEM,
        }
    }

    fn is_visible(self) -> bool {
        // SAFETY: opening NVIDIA's libraries runs their initialisers, which have no requirements.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::BlasLt => cudarc::cublaslt::sys::is_culib_present(),
                Library::Dnn => functions::are_there(),
            }
        }
    }

    /// Whether the library can be called: it is in the loader's path, or was found elsewhere and opened.
    pub(crate) fn is_present(self) -> bool {
        if self.is_visible() {
            return true;
        }
        find(self.stem());
        self.is_visible()
    }

    /// The file that was loaded, where the system tells.
    pub(crate) fn path(self) -> Option<PathBuf> {
        loaded(self.stem())
    }
}

/// Opens a library that lies in one of the folders, whichever comes first, for the life of the process.
pub(crate) fn find(stem: &str) -> bool {
    // It must stay open for as long as its symbols are used, which is to the end.
    installed(stem).map(std::mem::forget).is_some()
}

fn installed(stem: &str) -> Option<Unix> {
    folders().iter().find_map(|folder| newest(folder, stem))
}

/// A library as the process has it already, since something else in it brought its own; or by its stem with one of these endings in the loader's path; or from one of the folders.
pub(crate) fn opened(stem: &str, endings: &[&str]) -> Option<Unix> {
    let named = || endings.iter().find_map(|ending| open(format!("{stem}{ending}").as_ref()));
    loaded(stem).as_deref().and_then(open).or_else(named).or_else(|| installed(stem))
}

/// The file of a loaded library whose name starts with a stem.
pub(crate) fn loaded(stem: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let file = |line: &str| Some(PathBuf::from(line.get(line.find('/')?..)?));
    maps.lines()
        .filter_map(file)
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(stem)))
}

/// Where libraries may lie: what the environment names, the usual folders, and packages of Python in an environment.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for variable in ["PLIMSOLL_CUDA_PATH", "CUDA_HOME", "CUDA_PATH"] {
        let Some(value) = std::env::var_os(variable) else { continue };
        for root in std::env::split_paths(&value) {
            folders.extend([root.clone(), root.join("lib64"), root.join("lib")]);
            // The layout of site-packages/nvidia: one folder a package, each with a lib.
            if let Ok(entries) = std::fs::read_dir(&root) {
                let mut packages: Vec<PathBuf> =
                    entries.filter_map(Result::ok).map(|e| e.path().join("lib")).collect();
                packages.sort();
                folders.extend(packages);
            }
        }
    }
    for folder in
        ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"]
    {
        folders.push(folder.into());
    }
    folders
}

/// The newest file of a folder whose name starts with a stem.
fn newest(folder: &Path, stem: &str) -> Option<Unix> {
    let entries = std::fs::read_dir(folder).ok()?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(stem)))
        .collect();
    files.sort();
    files.iter().rev().find_map(|file| open(file))
}

/// Opens a file for all to see.
fn open(file: &Path) -> Option<Unix> {
    // SAFETY: opening NVIDIA's libraries runs their initialisers, which have no requirements.
    unsafe { Unix::open(Some(file), RTLD_LAZY | RTLD_GLOBAL) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_the_process_has_is_taken_before_any_other() {
        // Of the two libraries the process has the first; endings are tried for others alone.
        let own = loaded("libc.so").expect("every process has it");
        let found = opened("libc.so", &[".no-such-ending"]).expect("it is there");
        // SAFETY: the type of getpid.
        let number =
            unsafe { found.get::<unsafe extern "C" fn() -> i32>(b"getpid\0").map(|getpid| getpid()) };
        assert_eq!(number.ok(), i32::try_from(std::process::id()).ok(), "{}", own.display());
        assert!(opened("libno-such-library.so", &["", ".9"]).is_none());
    }
}
