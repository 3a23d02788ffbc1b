//! Records of machines that need not be here: what a device has, and the links between devices, each figure with its source.
//!
//! A record is a text file: a line that names the format, then a line a figure, in any order, with tabs between:
//!
//! ```text
//! plimsoll machine 1
//! name<TAB>A100-80G<TAB>NVIDIA A100-SXM4-80GB in an HGX or DGX A100
//! memory<TAB>85899345920<TAB>81920 MiB as nvidia-smi reports it
//! ```
//!
//! Bytes, seconds, bytes a second, operations a second. A figure without a source is refused, and so is one that is missing, unknown or
//! given twice: what is planned from a record is no better than it.

use crate::link::Link;

/// The first line of a record; another format gets another number.
const FORMAT: &str = "plimsoll machine 1";

/// The figures of a record, in the order in which they are written.
const FIGURES: [&str; 12] = [
    "memory",
    "memory-bandwidth",
    "flops-f32",
    "flops-tf32",
    "flops-16",
    "library",
    "devices",
    "call-latency",
    "inside-latency",
    "inside-bandwidth",
    "between-latency",
    "between-bandwidth",
];

/// Records that come with the program.
const KNOWN: [&str; 3] = [
    include_str!("../machines/a100-80g.machine"),
    include_str!("../machines/h100.machine"),
    include_str!("../machines/h200.machine"),
];

/// A machine with several devices of one kind, and others like it on a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Its name, as one asks for it: `A100-80G`.
    pub name: String,
    /// Bytes of a device's memory.
    pub memory: u64,
    /// Bytes a second that a device reads and writes its memory with.
    pub memory_bandwidth: f64,
    /// Operations a second in f32.
    pub flops_f32: f64,
    /// Operations a second of matrix products of f32 in reduced precision.
    pub flops_tf32: f64,
    /// Operations a second of matrix products of bf16 and f16.
    pub flops_16: f64,
    /// Bytes of a device that a library takes for itself to connect it to others.
    pub library: u64,
    /// Devices of a machine.
    pub devices: usize,
    /// Seconds that a call takes beside its messages.
    pub call_latency: f64,
    /// The link of a device to another one of its machine.
    pub inside: Link,
    /// A device's share of the link of its machine to another one.
    pub between: Link,
    /// Each figure's source, by its name in the record.
    pub sources: Vec<(String, String)>,
}

impl Machine {
    /// Reads a record.
    ///
    /// # Errors
    /// What is wrong with it, and in which line.
    pub fn parse(text: &str) -> Result<Machine, String> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        if lines.next().map(|(_, line)| line.trim()) != Some(FORMAT) {
            return Err(format!("this is no record of a machine: its first line is not '{FORMAT}'"));
        }
        let mut name = None;
        let mut found: [Option<f64>; FIGURES.len()] = [None; FIGURES.len()];
        let mut sources = Vec::new();
        for (i, line) in lines {
            let wrong = |why: String| Err(format!("line {}: {why}", i + 1));
            let [key, value, source] = line.split('\t').map(str::trim).collect::<Vec<_>>()[..] else {
                return wrong(
                    "a figure has three parts with tabs between: its name, its value, its source".into(),
                );
            };
            if source.is_empty() {
                return wrong(format!("{key} has no source"));
            }
            if sources.iter().any(|(known, _)| known == key) {
                return wrong(format!("{key} is given twice"));
            }
            sources.push((key.to_string(), source.to_string()));
            if key == "name" {
                name = Some(value.to_string());
                continue;
            }
            let Some(at) = FIGURES.iter().position(|figure| *figure == key) else {
                return wrong(format!("{key} is not known; known are name, {}", FIGURES.join(", ")));
            };
            match value.parse::<f64>() {
                Ok(figure) if figure.is_finite() && figure > 0.0 => found[at] = Some(figure),
                _ => return wrong(format!("{key} is '{value}', which is no number above 0")),
            }
        }
        let figure = |key: &str| {
            let at = FIGURES.iter().position(|figure| *figure == key);
            at.and_then(|at| found[at]).ok_or_else(|| format!("{key} is missing"))
        };
        Ok(Machine {
            name: name.ok_or("name is missing")?,
            memory: figure("memory")? as u64,
            memory_bandwidth: figure("memory-bandwidth")?,
            flops_f32: figure("flops-f32")?,
            flops_tf32: figure("flops-tf32")?,
            flops_16: figure("flops-16")?,
            library: figure("library")? as u64,
            devices: figure("devices")?.max(1.0) as usize,
            call_latency: figure("call-latency")?,
            inside: Link { latency: figure("inside-latency")?, bandwidth: figure("inside-bandwidth")? },
            between: Link { latency: figure("between-latency")?, bandwidth: figure("between-bandwidth")? },
            sources,
        })
    }

    /// The record of machines with such cards, by what a card calls itself.
    ///
    /// ```
    /// use plimsoll_comm::Machine;
    /// assert_eq!(Machine::of_card("NVIDIA A100-SXM4-80GB").unwrap().name, "A100-80G");
    /// assert!(Machine::of_card("NVIDIA A100-SXM4-40GB").is_none());
    /// ```
    pub fn of_card(model: &str) -> Option<Machine> {
        let model = model.to_ascii_lowercase();
        let is_of = |name: &str| name.to_ascii_lowercase().split('-').all(|part| model.contains(part));
        Machine::all_known().find(|machine| is_of(&machine.name))
    }

    /// The record of that name which comes with the program, whatever its case.
    ///
    /// ```
    /// use plimsoll_comm::Machine;
    /// let machine = Machine::known("a100-80g").unwrap();
    /// assert_eq!((machine.devices, machine.memory >> 30), (8, 80));
    /// assert!(Machine::known("abacus").is_none());
    /// ```
    pub fn known(name: &str) -> Option<Machine> {
        Machine::all_known().find(|machine| machine.name.eq_ignore_ascii_case(name))
    }

    /// All records that come with the program.
    pub fn all_known() -> impl Iterator<Item = Machine> {
        KNOWN.iter().filter_map(|text| Machine::parse(text).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_that_comes_with_the_program_is_read_and_has_its_sources() {
        for text in KNOWN {
            let machine = Machine::parse(text).unwrap();
            assert_eq!(machine.sources.len(), FIGURES.len() + 1, "{}", machine.name);
            assert!(machine.inside.bandwidth > machine.between.bandwidth, "{}", machine.name);
            assert!(machine.flops_16 > machine.flops_tf32 && machine.flops_tf32 > machine.flops_f32);
        }
        let names: Vec<String> = Machine::all_known().map(|machine| machine.name).collect();
        assert_eq!(names, ["A100-80G", "H100", "H200"]);
    }

    #[test]
    fn what_is_wrong_with_a_record_is_named_with_its_line() {
        let with = |line: &str| Machine::parse(&format!("{FORMAT}\n{line}\n")).unwrap_err();
        assert!(Machine::parse("").unwrap_err().contains("no record"));
        assert_eq!(with("memory\t8\t"), "line 2: memory has no source");
        assert!(with("memory 8").contains("three parts"));
        assert!(with("memory\tmuch\tme").contains("'much'") && with("memory\t-1\tme").contains("'-1'"));
        assert!(with("wheels\t4\tme").contains("wheels is not known"));
        assert_eq!(with("memory\t8\tme\nmemory\t9\tme"), "line 3: memory is given twice");
        assert_eq!(with("name\tx\tme"), "memory is missing");
    }
}
