//! `plimsoll devices`: what this machine can compute on, with its memory and who holds it, its link, its libraries.

use plimsoll::device::properties::{Card, HoldingProcess, LibraryFound, PcieLink};
use plimsoll::device::{AllocatorKind, Properties};
use plimsoll::internals::graph::counted;
use plimsoll::prelude::*;
use serde_json::{Value, json};

use crate::{Failure, device_args};

/// Arguments of `plimsoll devices`.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// Prints all devices.
pub fn run(args: &Args) -> Result<(), Failure> {
    let survey = Device::survey(device_args::cache_folder().as_deref())?;
    if args.json {
        let devices: Vec<Value> = survey.devices.iter().map(json).collect();
        let version = env!("CARGO_PKG_VERSION");
        say!("{}", json!({ "version": version, "devices": devices, "no_card": survey.no_card }));
        return Ok(());
    }
    survey.devices.iter().for_each(|device| text(device).iter().for_each(|line| say!("{line}")));
    if let Some(why) = &survey.no_card {
        say!("{why}");
    }
    Ok(())
}

/// A device in JSON.
pub fn json(device: &Properties) -> Value {
    let holder = |holder: &HoldingProcess| json!({ "pid": holder.pid, "name": holder.name, "bytes": holder.bytes.map(Bytes::get) });
    let library = |library: &LibraryFound| {
        json!({
            "name": library.name, "found": library.is_found(), "version": library.version, "used_for": library.used_for,
            "path": library.path.as_ref().map(|path| path.display().to_string()),
        })
    };
    let pcie = |link: &PcieLink| {
        let PcieLink { generation, width, most_generation, most_width } = link;
        json!({
            "generation": generation, "width": width, "most_generation": most_generation, "most_width": most_width,
        })
    };
    let (allocator, others) = allocators(device);
    let card = device.card.as_ref();
    let libraries = card.map_or(&[][..], |card| &card.libraries);
    json!({
        "name": device.name, "model": device.model, "allocator": allocator, "other_allocators": others,
        "memory_total_bytes": device.memory.total.map(Bytes::get), "memory_free_bytes": device.memory.free.map(Bytes::get),
        "cgroup_limit_bytes": device.memory.cgroup_limit.map(Bytes::get),
        "used_by": device.memory.holders.iter().map(holder).collect::<Vec<_>>(),
        "cores": device.compute.cores, "allowed_cores": device.compute.allowed_cores,
        "compute_capability": device.compute.capability.map(|(major, minor)| format!("{major}.{minor}")),
        "kernels": device.compute.kernels, "features": device.compute.features,
        "bus": card.map(|card| &card.bus), "pcie": card.and_then(|card| card.pcie.as_ref()).map(pcie),
        "link_bytes_per_second": card.and_then(|card| card.measured_link),
        "driver": card.map(|card| &card.driver), "libraries": libraries.iter().map(library).collect::<Vec<_>>(),
        "notes": device.notes,
    })
}

/// A device in lines.
pub fn text(device: &Properties) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", device.name, device.model)];
    let mut put = |what: &str, value: String| lines.push(format!("  {what:<10} {value}"));
    let bytes = |bytes: Option<Bytes>| bytes.map_or("unknown".into(), |bytes| bytes.to_string());
    let limit = device
        .memory
        .cgroup_limit
        .map_or(String::new(), |limit| format!("; the control group of this process allows {limit}"));
    put("memory", format!("{}, {} free{limit}", bytes(device.memory.total), bytes(device.memory.free)));
    for HoldingProcess { pid, name, bytes: held } in &device.memory.holders {
        put(
            "used by",
            format!("process {pid} ({}): {}", name.as_deref().unwrap_or("name unknown"), bytes(*held)),
        );
    }
    match device.compute.capability {
        Some((major, minor)) => {
            let units = counted(device.compute.cores, "multiprocessor");
            put(
                "computes",
                format!("compute capability {major}.{minor} ({}), {units}", device.compute.kernels),
            );
        }
        None => {
            let cores = counted(device.compute.cores, "core");
            put(
                "computes",
                format!(
                    "{cores}, {} of them for this process; kernels use {}",
                    device.compute.allowed_cores, device.compute.kernels
                ),
            );
            put("features", device.compute.features.join(" "));
        }
    }
    let (first, others) = allocators(device);
    put("allocator", format!("{first}; {} with --allocator", others.join(" or ")));
    let libraries = device.card.as_ref().map_or(&[][..], |card| &card.libraries);
    if let Some(card) = &device.card {
        put("driver", card.driver.clone());
        put("link", link(card));
    }
    for library in libraries {
        let found = match (&library.version, &library.path) {
            (Some(version), Some(path)) => format!("{version} ({})", path.display()),
            (Some(version), None) => version.clone(),
            (None, _) => "not found".into(),
        };
        put("library", format!("{} {found}, for {}", library.name, library.used_for));
    }
    device.notes.iter().for_each(|note| put("note", note.clone()));
    lines
}

/// The allocator that a device has without a word, and the others that it can have.
fn allocators(device: &Properties) -> (&'static str, Vec<&'static str>) {
    let kinds: &[AllocatorKind] = match device.card {
        Some(_) => &[AllocatorKind::Pages, AllocatorKind::Pool, AllocatorKind::System],
        None => &AllocatorKind::ALL,
    };
    let names: Vec<&'static str> = kinds.iter().map(|kind| kind.name()).collect();
    (names[0], names[1..].to_vec())
}

/// The link between host and card, in words.
fn link(card: &Card) -> String {
    let measured = match card.measured_link {
        Some(speed) => format!("{:.1} GB/s measured", speed / 1e9),
        None => "speed not measured yet (the first plan with --host-memory measures it)".to_string(),
    };
    let Some(PcieLink { generation, width, most_generation, most_width }) = card.pcie else {
        return measured;
    };
    let most = match (generation, width) == (most_generation, most_width) {
        true => String::new(),
        false => format!(" (up to generation {most_generation} x{most_width} under load)"),
    };
    format!("PCIe generation {generation} x{width}{most}, {measured}")
}

#[cfg(test)]
mod tests {
    use plimsoll::device::properties::{Compute, Memory};

    use super::*;

    fn card() -> Properties {
        Properties {
            name: "cuda:0".into(),
            model: "NVIDIA H200".into(),
            memory: Memory {
                total: Some(Bytes::gib(139)),
                free: Some(Bytes::gib(100)),
                cgroup_limit: None,
                holders: vec![HoldingProcess {
                    pid: 7,
                    name: Some("python".into()),
                    bytes: Some(Bytes::gib(39)),
                }],
            },
            compute: Compute {
                cores: 132,
                allowed_cores: 132,
                capability: Some((9, 0)),
                kernels: "sm_90".into(),
                features: Vec::new(),
            },
            card: Some(Card {
                bus: "0000:18:00.0".into(),
                pcie: Some(PcieLink { generation: 1, width: 16, most_generation: 5, most_width: 16 }),
                measured_link: Some(53e9),
                driver: "580.1 (CUDA 13.0)".into(),
                libraries: vec![
                    LibraryFound {
                        name: "cuDNN",
                        used_for: "convolutions",
                        version: Some("9.10.2".into()),
                        path: None,
                    },
                    LibraryFound { name: "NCCL", used_for: "several cards", version: None, path: None },
                ],
            }),
            ..Properties::default()
        }
    }

    #[test]
    fn a_card_is_told_with_who_uses_it_its_link_and_its_libraries() {
        let text = text(&card()).join("\n");
        for part in [
            "cuda:0: NVIDIA H200",
            "process 7 (python): 39.0 GiB",
            "compute capability 9.0 (sm_90), 132 multiprocessors",
            "PCIe generation 1 x16 (up to generation 5 x16 under load), 53.0 GB/s measured",
            "580.1 (CUDA 13.0)",
            "cuDNN 9.10.2, for convolutions",
            "NCCL not found",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let json = json(&card());
        assert_eq!(json["used_by"][0]["bytes"], 39u64 << 30);
        assert_eq!(
            (&json["pcie"]["most_generation"], &json["compute_capability"]),
            (&5.into(), &"9.0".into())
        );
        assert_eq!(json["libraries"][1]["found"], false);
    }
}
