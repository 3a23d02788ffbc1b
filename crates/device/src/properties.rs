//! What a device is, in figures: who made it, its memory and who holds that, what it computes with, which libraries it found.

use std::path::PathBuf;

use crate::Bytes;

/// What is known of a device without running anything on it. What the system does not tell is none or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties {
    /// Its name here: `cpu`, `cuda:0`.
    pub name: String,
    /// What it calls itself: `NVIDIA H200`.
    pub model: String,
    /// Its memory and who holds that.
    pub memory: Memory,
    /// What it computes with.
    pub compute: Compute,
    /// How a card is reached and driven; none for a CPU.
    pub card: Option<Card>,
    /// What its user should know, a sentence each.
    pub notes: Vec<String>,
}

/// The memory of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// All of it: the machine's for a CPU.
    pub total: Option<Bytes>,
    /// What nobody holds of it now.
    pub free: Option<Bytes>,
    /// The limit of the control group that this process is in: for the host's memory only.
    pub cgroup_limit: Option<Bytes>,
    /// Who holds it: processes that the system lists for a card.
    pub holders: Vec<HoldingProcess>,
}

/// What a device computes with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compute {
    /// Processors of the machine, or multiprocessors of a card.
    pub cores: usize,
    /// How many of them this process may use.
    pub allowed_cores: usize,
    /// The generation of a card, as CUDA numbers them: (9, 0).
    pub capability: Option<(usize, usize)>,
    /// What kernels are made for: the instruction set `avx512`, the architecture `sm_90`.
    pub kernels: String,
    /// What a processor offers beyond the plainest of its kind: `avx2`, `fma`.
    pub features: Vec<&'static str>,
}

/// How a card is reached from the host, and what drives it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Card {
    /// Where the card is on the PCI bus.
    pub bus: String,
    /// Its PCI Express link.
    pub pcie: Option<PcieLink>,
    /// How fast copies between host and card were when that was last measured, in bytes a second: the slower of both ways.
    pub measured_link: Option<f64>,
    /// The version of its driver.
    pub driver: String,
    /// Libraries that it uses, those that are missing too.
    pub libraries: Vec<LibraryFound>,
}

/// A process that holds memory of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldingProcess {
    /// Its number, as the card's driver knows it: inside a container that may be another than the container's own.
    pub pid: u32,
    /// What it is called, where that can be seen.
    pub name: Option<String>,
    /// Its bytes, where the driver tells.
    pub bytes: Option<Bytes>,
}

/// A PCI Express link. A card at rest may have turned it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieLink {
    /// Its generation now.
    pub generation: u32,
    /// Its lanes now.
    pub width: u32,
    /// The generation that card and slot can do together.
    pub most_generation: u32,
    /// The lanes that card and slot can do together.
    pub most_width: u32,
}

/// A library that is loaded at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryFound {
    /// What it is called: `cuBLASLt`.
    pub name: &'static str,
    /// What it is for.
    pub used_for: &'static str,
    /// Its version; none where it was not found.
    pub version: Option<String>,
    /// The file that was loaded, where the system tells.
    pub path: Option<PathBuf>,
}

impl LibraryFound {
    /// Whether it is there.
    pub fn is_found(&self) -> bool {
        self.version.is_some()
    }
}

/// What a library took of a device's own memory when it was started, or its code when it was loaded: measured then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryBytes {
    /// What it is called.
    pub name: &'static str,
    /// What the device had less of afterwards.
    pub bytes: Bytes,
}
