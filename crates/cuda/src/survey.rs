//! Turns what driver, NVML and libraries say into the properties of every card, without making a context on any of them.

use std::ffi::c_int;

use cudarc::driver::sys;
use nvml_wrapper::Nvml;
use plimsoll_device::properties::{self, Compute, HoldingProcess, LibraryFound, Memory, PcieLink};
use plimsoll_device::{Bytes, Properties};

use crate::card::{Card, Identity};
use crate::error::{Error, cuda_version};
use crate::holders;
use crate::library::{self, Library};
use crate::{Cuda, dnn};

impl Cuda {
    /// What is known of every card that the driver sees. Nothing is run, and no memory of a card is taken.
    ///
    /// ```
    /// use plimsoll_cuda::Cuda;
    /// match Cuda::survey() {
    ///     Ok(cards) => cards.iter().for_each(|card| println!("{}: {}", card.name, card.model)),
    ///     Err(why) => assert!(why.to_string().starts_with("no CUDA device")),
    /// }
    /// ```
    ///
    /// # Errors
    /// There is no driver, one that is too old, or one that sees no card.
    pub fn survey() -> Result<Vec<Properties>, Error> {
        match Card::count()? {
            0 => Err(Error::NoCard { is_hidden: std::env::var_os("CUDA_VISIBLE_DEVICES").is_some() }),
            count => (0..count).map(|ordinal| properties(&Identity::new(ordinal)?, ordinal)).collect(),
        }
    }

    /// NVIDIA's graphics and compute cards on the PCI bus, whether there is a driver for them or not.
    pub fn cards_on_bus() -> usize {
        let Ok(devices) = std::fs::read_dir("/sys/bus/pci/devices") else { return 0 };
        let is = |device: &std::path::Path, file: &str, start: &str| {
            std::fs::read_to_string(device.join(file)).is_ok_and(|text| text.starts_with(start))
        };
        let is_card = |path: &std::path::Path| is(path, "vendor", "0x10de") && is(path, "class", "0x03");
        devices.filter_map(Result::ok).filter(|device| is_card(&device.path())).count()
    }
}

/// What is known of one card.
pub(crate) fn properties(card: &Identity, ordinal: usize) -> Result<Properties, Error> {
    let Identity { name, bus, capability: (major, minor), multiprocessors, .. } = card;
    let nvml = Nvml::init().ok();
    let known = nvml.as_ref().and_then(|nvml| nvml.device_by_pci_bus_id(bus.as_str()).ok());
    let memory = known.as_ref().and_then(|device| device.memory_info().ok());
    let pcie = known.as_ref().and_then(|device| {
        Some(PcieLink {
            generation: device.current_pcie_link_gen().ok()?,
            width: device.current_pcie_link_width().ok()?,
            most_generation: device.max_pcie_link_gen().ok()?,
            most_width: device.max_pcie_link_width().ok()?,
        })
    });
    let stands_for = cuda_version(driver_version());
    let driver = match nvml.as_ref().and_then(|nvml| nvml.sys_driver_version().ok()) {
        Some(version) => format!("{version} (CUDA {stands_for})"),
        None => format!("CUDA {stands_for}"),
    };
    let libraries = libraries();
    let mut notes = Vec::new();
    if nvml.is_none() {
        notes.push(
            "NVML (libnvidia-ml.so.1) does not answer: who holds the card's memory is not known".into(),
        );
    }
    for missing in libraries.iter().filter(|library| !library.is_found()) {
        notes.push(missing_note(missing));
    }
    Ok(Properties {
        name: format!("cuda:{ordinal}"),
        model: name.clone(),
        memory: Memory {
            total: Some(memory.as_ref().map_or(Bytes::from(card.total_bytes), |memory| Bytes(memory.total))),
            free: memory.map(|memory| Bytes(memory.free)),
            cgroup_limit: None,
            holders: holding(nvml.as_ref(), bus),
        },
        compute: Compute {
            cores: *multiprocessors,
            allowed_cores: *multiprocessors,
            capability: Some((*major, *minor)),
            kernels: format!("sm_{major}{minor}"),
            features: Vec::new(),
        },
        card: Some(properties::Card { bus: bus.clone(), pcie, measured_link: None, driver, libraries }),
        notes,
    })
}

fn missing_note(library: &LibraryFound) -> String {
    let LibraryFound { name, used_for, .. } = library;
    match *name {
        "NVRTC" => format!(
            "{name} was not found, and without it no kernel can be compiled: install CUDA's libraries"
        ),
        "NCCL" => format!("{name} was not found: {used_for} needs it; one card does not"),
        _ => format!("{name} was not found: {used_for} run on slower kernels; install it for full speed"),
    }
}

/// Who holds memory of a card, with names.
fn holding(nvml: Option<&Nvml>, bus: &str) -> Vec<HoldingProcess> {
    let name = |pid: u32| {
        let seen = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        seen.map(|name| name.trim().to_string()).or_else(|| nvml?.sys_process_name(pid, 256).ok())
    };
    let holders = holders::of(bus).unwrap_or_default();
    holders
        .into_iter()
        .map(|(pid, bytes)| HoldingProcess { pid, name: name(pid), bytes: bytes.map(Bytes) })
        .collect()
}

/// The newest version of CUDA that the driver knows, as it numbers them.
pub(crate) fn driver_version() -> i32 {
    let mut version = 0;
    // SAFETY: the address is of a number; where the driver refuses, it stays.
    unsafe {
        let _ = sys::cuDriverGetVersion(&mut version);
    }
    version
}

/// The libraries that kernels and several cards use, those that are missing too.
fn libraries() -> Vec<LibraryFound> {
    let found = |library: Library, name, used_for, version: &dyn Fn() -> Option<String>| {
        let version = library.is_present().then(version).flatten();
        LibraryFound { name, used_for, path: version.as_ref().and_then(|_| library.path()), version }
    };
    let nvrtc = || {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is there, and the addresses are of numbers.
        let status = unsafe { cudarc::nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
        (status == cudarc::nvrtc::sys::nvrtcResult::NVRTC_SUCCESS).then(|| format!("{major}.{minor}"))
    };
    // SAFETY: asked only where the library is there.
    let blas = || Some(parts(unsafe { cudarc::cublaslt::sys::cublasLtGetVersion() }));
    let (nccl, path) = nccl_version();
    vec![
        found(Library::Nvrtc, "NVRTC", "compiling kernels", &nvrtc),
        found(Library::BlasLt, "cuBLASLt", "matrix products", &blas),
        found(Library::Dnn, "cuDNN", "convolutions", &|| dnn::Dnn::version().map(parts)),
        LibraryFound { name: "NCCL", used_for: "training on several cards", version: nccl, path },
    ]
}

/// A version as NVIDIA's libraries number theirs: 91002 is 9.10.2, and of older ones 8907 is 8.9.7.
fn parts(version: usize) -> String {
    let major = if version >= 10_000 { 10_000 } else { 1000 };
    format!("{}.{}.{}", version / major, version % major / 100, version % 100)
}

/// NCCL's version and file, where it is installed.
fn nccl_version() -> (Option<String>, Option<std::path::PathBuf>) {
    const STEM: &str = "libnccl.so";
    let open = || {
        // SAFETY: opening NVIDIA's libraries runs their initialisers, which have no requirements.
        unsafe { libloading::Library::new("libnccl.so.2") }.ok()
    };
    let opened = open().or_else(|| library::find(STEM).then(open).flatten());
    let Some(nccl) = opened else { return (None, None) };
    let mut version: c_int = 0;
    // SAFETY: the function has this signature in every version of the library, and the address is of a number.
    let status = unsafe {
        match nccl.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion\0") {
            Ok(get) => get(&mut version),
            Err(_) => 1,
        }
    };
    let path = library::loaded(STEM);
    (usize::try_from(version).ok().filter(|_| status == 0).map(parts), path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_write_them() {
        assert_eq!(parts(91_002), "9.10.2");
        assert_eq!(parts(8907), "8.9.7");
        assert_eq!(parts(130_101), "13.1.1");
        assert_eq!(parts(22_705), "2.27.5");
    }

    #[test]
    fn a_library_that_is_missing_is_told_with_what_it_is_for() {
        let missing =
            |name, used_for| missing_note(&LibraryFound { name, used_for, version: None, path: None });
        assert!(missing("cuDNN", "convolutions").contains("convolutions run on slower kernels"));
        assert!(missing("NVRTC", "compiling kernels").contains("install"));
        assert!(missing("NCCL", "training on several cards").contains("one card does not"));
    }
}
