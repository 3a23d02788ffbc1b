//! What can go wrong with a card, as values: nothing here is a panic.

use std::path::PathBuf;

use plimsoll_device::backend::Fault;

/// Why a CUDA device cannot be used, or what it refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A library is not on this machine.
    #[error(
        "no CUDA device: {library} was not found in the system's library path, /usr/local/cuda or the folders of \
         CUDA_HOME and PLIMSOLL_CUDA_PATH; install NVIDIA's driver and CUDA's libraries, or run on the CPU"
    )]
    Missing {
        /// The library's usual name.
        library: &'static str,
    },
    /// The driver is too old.
    #[error(
        "no CUDA device: the driver is made for CUDA {}, and {} or later is needed; install a newer NVIDIA driver, or \
         run on the CPU",
        cuda_version(*found),
        cuda_version(*least)
    )]
    OldDriver {
        /// The CUDA version that the driver stands for, as it numbers them.
        found: i32,
        /// The least that is needed.
        least: i32,
    },
    /// There is a driver, but no such card.
    #[error(
        "no CUDA device {ordinal}: the driver sees {count}; choose one below that number, or run on the CPU"
    )]
    NoSuchDevice {
        /// The number asked for.
        ordinal: usize,
        /// The number of cards that the driver sees.
        count: usize,
    },
    /// There is a driver, and it sees no card at all.
    #[error(
        "no CUDA device: the driver sees no card{}; run on the CPU, or make a card visible",
        if *is_hidden { ", because CUDA_VISIBLE_DEVICES hides them" } else { "" }
    )]
    NoCard {
        /// Whether the environment hides cards.
        is_hidden: bool,
    },
    /// The driver refused a call.
    #[error("the CUDA driver refused {call}: {why}")]
    Driver {
        /// The function.
        call: &'static str,
        /// Its error, in words.
        why: String,
    },
    /// The card has not enough free memory.
    #[error("the card refused {bytes} bytes and has {free} free; another process may hold the rest")]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
        /// What the driver says is free.
        free: usize,
    },
    /// The driver has no memory left for something that it keeps itself: code, a graph, a table of pages.
    #[error("the CUDA driver has no memory left for {call}: {free} bytes of the card are free")]
    NoRoom {
        /// The function.
        call: &'static str,
        /// What the driver says is free.
        free: usize,
    },
    /// A kernel's source did not compile.
    #[error("kernel {name} did not compile for {target}: {log}")]
    Compile {
        /// The family of kernels.
        name: String,
        /// What it was compiled for.
        target: String,
        /// The compiler's words.
        log: String,
    },
    /// A library other than the driver refused a call.
    #[error("{library} refused {call}: {why}")]
    Library {
        /// The library.
        library: &'static str,
        /// The function.
        call: &'static str,
        /// Its error, in words.
        why: String,
    },
    /// The emulator could not work with a file.
    #[error("the emulator cannot use {}: {why}", path.display())]
    Emulator {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A kernel refused its operands' values, seen when the stream was waited for.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A version as people write it: 12.8 for 12080.
pub(crate) fn cuda_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

impl Error {
    /// The same as what kernels report.
    pub(crate) fn into_fault(self) -> Fault {
        match self {
            Error::Fault(fault) => fault,
            other => Fault::new("cuda", other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_missing_is_said_in_one_sentence_with_what_to_install() {
        let old = Error::OldDriver { found: 11_040, least: 12_080 }.to_string();
        assert!(
            old.contains("CUDA 11.4") && old.contains("12.8") && old.contains("newer NVIDIA driver"),
            "{old}"
        );
        let missing = Error::Missing { library: "libnvrtc.so" }.to_string();
        assert!(missing.contains("libnvrtc.so") && missing.contains("install"), "{missing}");
        for text in [old, missing] {
            assert!(text.starts_with("no CUDA device") && !text.contains('\n'), "{text}");
        }
    }
}
