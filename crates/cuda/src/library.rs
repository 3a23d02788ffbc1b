//! Turns the names of NVIDIA's libraries into loaded libraries, wherever they are installed.
//!
//! The bindings open libraries by bare name only. One that lies outside the loader's path is opened here first, by its
//! absolute path and with its symbols visible to all: the bindings' later request then finds it by its name.

use std::path::{Path, PathBuf};

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
            Library::Dnn => "libcudnn.so",
        }
    }

    fn is_visible(self) -> bool {
        // SAFETY: opening NVIDIA's libraries runs their initialisers, which have no requirements.
        unsafe {
            match self {
                Library::Driver => cudarc::driver::sys::is_culib_present(),
                Library::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Library::BlasLt => cudarc::cublaslt::sys::is_culib_present(),
                Library::Dnn => cudarc::cudnn::sys::is_culib_present(),
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

/// Opens a library that lies in one of the folders, whichever comes first.
pub(crate) fn find(stem: &str) -> bool {
    folders().iter().any(|folder| open(folder, stem))
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

/// Opens the newest file of a folder whose name starts with a stem, for all to see and for the life of the process.
fn open(folder: &Path, stem: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let mut files: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(stem)))
        .collect();
    files.sort();
    for file in files.iter().rev() {
        use libloading::os::unix::{Library as Unix, RTLD_GLOBAL, RTLD_LAZY};
        // SAFETY: opening NVIDIA's libraries runs their initialisers, which have no requirements.
        if let Ok(library) = unsafe { Unix::open(Some(file), RTLD_LAZY | RTLD_GLOBAL) } {
            // It must stay open for as long as its symbols are used, which is to the end.
            std::mem::forget(library);
            return true;
        }
    }
    false
}
