//! A file of kernel times as data: what is known of a device, and of every kernel that was timed there.
//!
//! One line a fact, then one line a kernel, in the order in which they were seen:
//!
//! ```text
//! plimsoll kernel times 3
//! signature<TAB>cuda NVIDIA H200 sm_90 …
//! own<TAB>563085312
//! 48230<TAB>4194304<TAB>2.1e9<TAB>3.3e7<TAB>MatMul(…) bf16[…] bf16[…]
//! ```
//!
//! A kernel's numbers are nanoseconds, bytes of scratch, floating-point operations and bytes that it moves. Reading is
//! forgiving, as for any cache: a line that is not understood is as good as none.

use std::fs;
use std::io::Write;
use std::path::Path;

use plimsoll_device::Bytes;
use plimsoll_device::backend::{Backend, Speed};
use rustc_hash::FxHashMap;

/// The first line of a file; another format gets another number.
const HEADER: &str = "plimsoll kernel times 3";

/// What was measured of one kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timed {
    /// Seconds of a call.
    pub(crate) seconds: f64,
    /// Bytes of scratch that it declares.
    pub(crate) scratch: usize,
    /// Floating-point operations.
    pub(crate) flops: f64,
    /// Bytes read and written.
    pub(crate) bytes: f64,
}

/// What is known of the device itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Facts {
    /// What tells it from other devices.
    pub(crate) signature: String,
    /// How fast it is, roughly.
    pub(crate) speed: Speed,
    /// Bytes of its own memory; none for a device that uses the host's.
    pub(crate) total: Bytes,
    /// Bytes of a page of it.
    pub(crate) page: Bytes,
    /// The most that a process was seen to take of it beside tensors.
    pub(crate) own: Bytes,
}

/// Times of kernels on one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub(crate) facts: Option<Facts>,
    /// By kernel: the op with its attributes, and the types of its inputs.
    pub(crate) kernels: FxHashMap<String, Timed>,
}

impl Times {
    /// Reads a file's text; one of another format holds nothing.
    pub(crate) fn parse(text: &str) -> Times {
        let mut times = Times::default();
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return times;
        }
        let mut facts = Facts {
            signature: String::new(),
            speed: Speed { flops: 1e12, bytes: 1e11, call: 1e-5 },
            total: Bytes::ZERO,
            page: Bytes(1),
            own: Bytes::ZERO,
        };
        for line in lines {
            let Some((first, rest)) = line.split_once('\t') else { continue };
            let bytes = || rest.parse().map_or(Bytes::ZERO, Bytes);
            match first {
                "signature" => facts.signature = rest.into(),
                "total" => facts.total = bytes(),
                "page" => facts.page = bytes().max(Bytes(1)),
                "own" => facts.own = facts.own.max(bytes()),
                "speed" => {
                    let parsed: Vec<f64> = rest.split('\t').filter_map(positive).collect();
                    if let [flops, bytes, call] = parsed[..] {
                        facts.speed = Speed { flops, bytes, call };
                    }
                }
                ns => {
                    let mut fields = rest.splitn(4, '\t');
                    let mut next = || fields.next();
                    let known = (ns.parse::<u64>().ok(), next().and_then(|s| s.parse().ok()));
                    let (flops, bytes) = (next().and_then(positive), next_bytes(&mut next));
                    if let ((Some(ns), Some(scratch)), Some(flops), Some((bytes, kernel))) =
                        (known, flops, bytes)
                    {
                        let timed = Timed { seconds: ns as f64 / 1e9, scratch, flops, bytes };
                        times.kernels.insert(kernel.into(), timed);
                    }
                }
            }
        }
        times.facts = (!facts.signature.is_empty()).then_some(facts);
        times
    }

    /// The times of a file; one that cannot be read is as good as none.
    pub(crate) fn read(file: &Path) -> Times {
        Times::parse(&fs::read_to_string(file).unwrap_or_default())
    }

    /// Adds times to a file, whole or not at all: the new file takes the old one's place.
    pub(crate) fn append(file: &Path, facts: &Facts, timed: &[(String, Timed)]) -> std::io::Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let old = fs::read_to_string(file).unwrap_or_default();
        let known = Times::parse(&old).facts;
        let fresh = file.with_extension(format!("{}.new", std::process::id()));
        let mut out = std::io::BufWriter::new(fs::File::create(&fresh)?);
        match &known {
            Some(known) => {
                out.write_all(old.as_bytes())?;
                if facts.own > known.own {
                    writeln!(out, "own\t{}", facts.own.get())?;
                }
            }
            None => facts.write(&mut out)?,
        }
        timed.iter().try_for_each(|(kernel, timed)| timed.write(kernel, &mut out))?;
        out.flush()?;
        fs::rename(&fresh, file)
    }

    /// Writes a file of these times and no others.
    pub(crate) fn write(file: &Path, facts: &Facts, timed: &[(&String, &Timed)]) -> std::io::Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut out = std::io::BufWriter::new(fs::File::create(file)?);
        facts.write(&mut out)?;
        timed.iter().try_for_each(|(kernel, timed)| timed.write(kernel, &mut out))?;
        out.flush()
    }
}

impl Timed {
    fn write(&self, kernel: &str, out: &mut impl Write) -> std::io::Result<()> {
        let Timed { seconds, scratch, flops, bytes } = self;
        // A time that was read comes as near to a whole number as a float can, from either side.
        let ns = (seconds * 1e9 - 1e-3).ceil() as u64;
        writeln!(out, "{ns}\t{scratch}\t{flops:e}\t{bytes:e}\t{kernel}")
    }
}

impl Facts {
    /// What a backend says of itself; `own` and `page` are its memory's.
    pub(crate) fn new(backend: &dyn Backend, page: Bytes, own: Bytes) -> Facts {
        let total = backend.total().unwrap_or(Bytes::ZERO);
        Facts { signature: backend.signature(), speed: backend.speed(), total, page, own }
    }

    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Facts { signature, speed, total, page, own } = self;
        writeln!(out, "{HEADER}\nsignature\t{signature}")?;
        writeln!(out, "speed\t{:e}\t{:e}\t{:e}", speed.flops, speed.bytes, speed.call)?;
        writeln!(out, "total\t{}\npage\t{}\nown\t{}", total.get(), page.get(), own.get())
    }
}

fn positive(text: &str) -> Option<f64> {
    text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0)
}

/// The last two fields: bytes, and the kernel.
fn next_bytes<'t>(next: &mut impl FnMut() -> Option<&'t str>) -> Option<(f64, &'t str)> {
    let bytes = next().and_then(positive)?;
    Some((bytes, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(own: u64) -> Facts {
        let speed = Speed { flops: 2.5e13, bytes: 3e12, call: 4e-6 };
        Facts {
            signature: "a card".into(),
            speed,
            total: Bytes::gib(8),
            page: Bytes::mib(2),
            own: Bytes(own),
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_the_most_of_its_own_counts() {
        let folder = std::env::temp_dir().join(format!("plimsoll-times-{}", std::process::id()));
        let file = folder.join("a.times");
        let timed = Timed { seconds: 1.5e-6, scratch: 4096, flops: 2e9, bytes: 3e6 };
        Times::append(&file, &facts(70), &[("MatMul(a) f32[2, 3]".into(), timed)]).unwrap();
        Times::append(&file, &facts(90), &[("Exp f32[4]".into(), Timed { scratch: 0, ..timed })]).unwrap();
        Times::append(&file, &facts(80), &[]).unwrap();
        let times = Times::read(&file);
        assert_eq!(times.facts, Some(facts(90)));
        assert_eq!(times.kernels.len(), 2);
        assert_eq!(times.kernels["MatMul(a) f32[2, 3]"], timed);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn lines_that_are_not_understood_are_as_good_as_none() {
        let text = format!(
            "{HEADER}\nsignature\tx\nspeed\t1\tnan\t2\n12\t0\tinf\t1\tA\n13\t-1\t1\t1\tB\n14\t0\t1\t1\tC\n\n15"
        );
        let times = Times::parse(&text);
        assert_eq!(times.kernels.keys().collect::<Vec<_>>(), ["C"]);
        assert_eq!(times.facts.unwrap().speed.flops, 1e12);
        assert!(Times::parse("plimsoll kernel times 2\n12\tA").kernels.is_empty());
    }
}
