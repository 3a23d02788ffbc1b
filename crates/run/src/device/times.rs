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
//! A kernel's numbers are nanoseconds, bytes of scratch, floating-point operations and bytes that it moves. A sign behind the
//! nanoseconds says how far they are to be trusted (`48230~2`: see [`Trust`]); none says that they are. Reading is
//! forgiving, as for any cache: a line that is not understood is as good as none.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use plimsoll_device::Bytes;
use plimsoll_device::backend::{Backend, Speed};
use rustc_hash::{FxHashMap, FxHashSet};

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
    /// How far the time is to be trusted.
    pub(crate) trust: Trust,
}

/// How far the time of a kernel is to be trusted, and so whether it is timed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Trust {
    /// It was timed on a quiet machine.
    #[default]
    Sure,
    /// It was timed so often, each time on a busy machine; the least is kept.
    Noisy(u8),
    /// Steps took far more or less than was predicted; it has been corrected by them, and is to be timed again.
    Doubted,
    /// It has been timed again since.
    Again,
    /// Steps contradicted that too: what they say counts, and it is timed no more.
    Corrected,
    /// It was not timed, because there was no time for it, but scaled from one that was. Whoever has more time times it.
    Estimated,
}

/// After so many times on a busy machine a kernel is timed no more.
const MOST_TRIES: u8 = 4;

impl Trust {
    /// Whether a kernel is to be timed again when it is next planned; of an estimate those say so who have the time.
    pub(crate) fn wants_timing(self) -> bool {
        match self {
            Trust::Noisy(tries) => tries < MOST_TRIES,
            Trust::Doubted => true,
            Trust::Sure | Trust::Again | Trust::Corrected | Trust::Estimated => false,
        }
    }

    fn parse(sign: &str) -> Option<Trust> {
        match sign {
            "" => Some(Trust::Sure),
            "?" => Some(Trust::Doubted),
            "!" => Some(Trust::Again),
            "=" => Some(Trust::Corrected),
            "^" => Some(Trust::Estimated),
            noisy => Some(Trust::Noisy(noisy.strip_prefix('~')?.parse().ok()?)),
        }
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trust::Sure => Ok(()),
            Trust::Noisy(tries) => write!(f, "~{tries}"),
            Trust::Doubted => f.write_str("?"),
            Trust::Again => f.write_str("!"),
            Trust::Corrected => f.write_str("="),
            Trust::Estimated => f.write_str("^"),
        }
    }
}

impl Timed {
    /// The time of a kernel that was timed again, where this is what was known of it.
    pub(crate) fn timed_again(self, seconds: f64, is_noisy: bool) -> Timed {
        match (self.trust, is_noisy) {
            // What steps have said is better than a time from a busy machine.
            (Trust::Doubted, true) => Timed { trust: Trust::Again, ..self },
            (Trust::Doubted, false) => Timed { seconds, trust: Trust::Again, ..self },
            (_, false) => Timed { seconds, trust: Trust::Sure, ..self },
            (Trust::Noisy(tries), true) => Timed {
                seconds: seconds.min(self.seconds),
                trust: Trust::Noisy(tries.saturating_add(1)),
                ..self
            },
            (_, true) => Timed { seconds, trust: Trust::Noisy(1), ..self },
        }
    }

    /// The same corrected by steps that took `factor` of what was predicted.
    pub(crate) fn corrected(self, factor: f64) -> Timed {
        let trust = match self.trust {
            Trust::Sure | Trust::Noisy(_) | Trust::Doubted => Trust::Doubted,
            Trust::Again | Trust::Corrected => Trust::Corrected,
            Trust::Estimated => Trust::Estimated,
        };
        Timed { seconds: self.seconds * factor, trust, ..self }
    }
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

/// A kernel's line as it stands in a file: what it is filed under, and its numbers.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'l> {
    /// The op with its attributes, and the types of its inputs.
    pub(crate) kernel: &'l str,
    line: &'l str,
}

impl<'l> Entry<'l> {
    fn of(line: &'l str) -> Option<Entry<'l>> {
        line.splitn(5, '\t').nth(4).map(|kernel| Entry { kernel, line })
    }

    /// What was measured of it; none if the numbers are none.
    pub(crate) fn timed(&self) -> Option<Timed> {
        let mut fields = self.line.splitn(5, '\t');
        let mut next = || fields.next();
        let ns = next()?;
        let (ns, sign) = ns.split_at(ns.find(|c: char| !c.is_ascii_digit()).unwrap_or(ns.len()));
        let (seconds, trust) = (ns.parse::<u64>().ok()? as f64 / 1e9, Trust::parse(sign)?);
        let scratch = next()?.parse().ok()?;
        let (flops, bytes) = (next().and_then(positive)?, next().and_then(positive)?);
        Some(Timed { seconds, scratch, flops, bytes, trust })
    }
}

/// The lines of a file of times, read in turn: what they say of the device adds up, and kernels are handed on.
#[derive(Default)]
struct Reading {
    facts: Option<Facts>,
    /// Whether the first line was that of this format; none before it was seen.
    is_ours: Option<bool>,
}

impl Reading {
    fn line<'l>(&mut self, line: &'l str) -> Option<Entry<'l>> {
        let is_first = self.is_ours.is_none();
        if !*self.is_ours.get_or_insert(line == HEADER) || is_first {
            return None;
        }
        if let Some(entry) = Entry::of(line) {
            return Some(entry);
        }
        let (first, rest) = line.split_once('\t')?;
        let facts = self.facts.get_or_insert_with(Facts::unknown);
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
            _ => {}
        }
        None
    }

    /// What was said of the device; nothing of one without a signature.
    fn facts(self) -> Option<Facts> {
        self.facts.filter(|facts| !facts.signature.is_empty())
    }
}

/// A line that is longer is no kernel's.
const MOST_OF_A_LINE: u64 = 64 << 10;
/// So much of a file is in memory at a time.
const AT_A_TIME: usize = 16 << 10;

/// Looks at the lines of a file in turn. Files of times grow with every model that a machine has seen, and what is resident counts
/// against memory limits: no more than a line and a buffer are held.
fn each_line(file: &Path, mut look: impl FnMut(&str) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut from = BufReader::with_capacity(AT_A_TIME, fs::File::open(file)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = Read::by_ref(&mut from).take(MOST_OF_A_LINE).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        match line.strip_suffix(b"\n") {
            None if read as u64 == MOST_OF_A_LINE => _ = from.skip_until(b'\n')?,
            ended => {
                let line = std::str::from_utf8(ended.unwrap_or(&line)).unwrap_or_default();
                look(line.strip_suffix('\r').unwrap_or(line))?;
            }
        }
    }
}

/// Times of kernels on one device, all in memory: of a record that steps are planned by.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub(crate) facts: Option<Facts>,
    /// By kernel.
    pub(crate) kernels: FxHashMap<String, Timed>,
}

impl Times {
    /// Reads a file's text; one of another format holds nothing.
    pub(crate) fn parse(text: &str) -> Times {
        let mut kernels = FxHashMap::default();
        let facts = Times::each_of(text, |entry| {
            if let Some(timed) = entry.timed() {
                kernels.insert(entry.kernel.into(), timed);
            }
        });
        Times { facts, kernels }
    }

    /// Looks at the kernels of a text in turn; returns what it says of the device.
    pub(crate) fn each_of(text: &str, look: impl FnMut(Entry<'_>)) -> Option<Facts> {
        let mut reading = Reading::default();
        text.lines().filter_map(|line| reading.line(line)).for_each(look);
        reading.facts()
    }

    /// Looks at the kernels of a file in turn, holding none of them; returns what it says of the device. A file that cannot be read is
    /// as good as none.
    pub(crate) fn each(file: &Path, mut look: impl FnMut(Entry<'_>)) -> Option<Facts> {
        let mut reading = Reading::default();
        each_line(file, |line| {
            reading.line(line).into_iter().for_each(&mut look);
            Ok(())
        })
        .ok()?;
        reading.facts()
    }

    /// Adds times to a file, whole or not at all: the new file takes the old one's place. Old lines of the same kernels go.
    pub(crate) fn append(file: &Path, facts: &Facts, timed: &[(String, Timed)]) -> std::io::Result<()> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let known = Times::each(file, |_| {});
        let fresh = file.with_extension(format!("{}.new", std::process::id()));
        let mut out = BufWriter::new(fs::File::create(&fresh)?);
        match &known {
            Some(known) => {
                let new: FxHashSet<&str> = timed.iter().map(|(kernel, _)| kernel.as_str()).collect();
                each_line(file, |line| match Entry::of(line) {
                    Some(entry) if new.contains(entry.kernel) => Ok(()),
                    _ => writeln!(out, "{line}"),
                })?;
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

    /// Writes a file of those kernels of another that `pick` has something to say of, and of no others.
    pub(crate) fn copy(
        from: &Path,
        to: &Path,
        facts: &Facts,
        pick: impl Fn(&Entry<'_>) -> Option<Timed>,
    ) -> std::io::Result<()> {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut out = BufWriter::new(fs::File::create(to)?);
        facts.write(&mut out)?;
        let mut written = Ok(());
        Times::each(from, |entry| {
            if let Some(timed) = pick(&entry)
                && written.is_ok()
            {
                written = timed.write(entry.kernel, &mut out);
            }
        });
        written?;
        out.flush()
    }
}

impl Timed {
    fn write(&self, kernel: &str, out: &mut impl Write) -> std::io::Result<()> {
        let Timed { seconds, scratch, flops, bytes, trust } = self;
        // A time that was read comes as near to a whole number as a float can, from either side.
        let ns = (seconds * 1e9 - 1e-3).ceil() as u64;
        writeln!(out, "{ns}{trust}\t{scratch}\t{flops:e}\t{bytes:e}\t{kernel}")
    }
}

impl Facts {
    /// What is taken for granted of a device of which a file says nothing.
    fn unknown() -> Facts {
        let speed = Speed { flops: 1e12, bytes: 1e11, call: 1e-5 };
        Facts { signature: String::new(), speed, total: Bytes::ZERO, page: Bytes(1), own: Bytes::ZERO }
    }

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
        let timed = Timed { seconds: 1.5e-6, scratch: 4096, flops: 2e9, bytes: 3e6, trust: Trust::Sure };
        Times::append(&file, &facts(70), &[("MatMul(a) f32[2, 3]".into(), timed)]).unwrap();
        Times::append(&file, &facts(90), &[("Exp f32[4]".into(), Timed { scratch: 0, ..timed })]).unwrap();
        Times::append(&file, &facts(80), &[]).unwrap();
        let read = || Times::parse(&fs::read_to_string(&file).unwrap());
        let times = read();
        assert_eq!(times.facts, Some(facts(90)));
        let mut seen = Vec::new();
        let streamed =
            Times::each(&file, |entry| seen.push((entry.kernel.to_string(), entry.timed().unwrap())));
        assert_eq!((streamed, seen.into_iter().collect()), (times.facts.clone(), times.kernels.clone()));
        assert_eq!(times.kernels.len(), 2);
        assert_eq!(times.kernels["MatMul(a) f32[2, 3]"], timed);
        // What is written again takes the old line's place, with what it is worth.
        let again = [Trust::Doubted, Trust::Again, Trust::Corrected, Trust::Estimated, Trust::Sure];
        for trust in [Trust::Noisy(3)].into_iter().chain(again) {
            let again = Timed { seconds: 2e-6, trust, ..timed };
            Times::append(&file, &facts(80), &[("MatMul(a) f32[2, 3]".into(), again)]).unwrap();
            assert_eq!(read().kernels["MatMul(a) f32[2, 3]"], again);
            assert_eq!(fs::read_to_string(&file).unwrap().matches("MatMul").count(), 1);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn lines_that_are_not_understood_are_as_good_as_none() {
        let text = format!(
            "{HEADER}\nsignature\tx\nspeed\t1\tnan\t2\n12\t0\tinf\t1\tA\n13\t-1\t1\t1\tB\n14\t0\t1\t1\tC\n13~x\t0\t1\t1\tD\n13#\t0\t1\t1\tE\n\n15"
        );
        let times = Times::parse(&text);
        assert_eq!(times.kernels.keys().collect::<Vec<_>>(), ["C"]);
        assert_eq!(times.facts.unwrap().speed.flops, 1e12);
        assert!(Times::parse("plimsoll kernel times 2\n12\tA").kernels.is_empty());
    }

    #[test]
    fn a_noisy_time_is_taken_again_until_it_is_sure_or_has_been_tried_often() {
        let first = Timed { seconds: 5e-3, scratch: 0, flops: 1.0, bytes: 1.0, trust: Trust::Noisy(1) };
        assert!(first.trust.wants_timing());
        let sure = first.timed_again(6e-3, false);
        assert_eq!((sure.seconds, sure.trust), (6e-3, Trust::Sure));
        let mut busy = first;
        let mut tries = 0;
        while busy.trust.wants_timing() {
            busy = busy.timed_again(4e-3, true);
            tries += 1;
        }
        assert_eq!((tries, busy.seconds), (3, 4e-3), "the least is kept, and it ends");
    }

    #[test]
    fn steps_correct_a_time_and_then_it_is_taken_once_more_and_then_they_have_the_last_word() {
        let sure = Timed { seconds: 1.0, scratch: 0, flops: 1.0, bytes: 1.0, trust: Trust::Sure };
        let doubted = sure.corrected(0.2);
        assert_eq!((doubted.seconds, doubted.trust), (0.2, Trust::Doubted));
        assert!(doubted.trust.wants_timing());
        let again = doubted.timed_again(0.5, false);
        assert_eq!((again.seconds, again.trust, again.trust.wants_timing()), (0.5, Trust::Again, false));
        assert_eq!(doubted.timed_again(0.5, true).seconds, 0.2, "a busy machine does not overrule steps");
        let corrected = again.corrected(2.0);
        assert_eq!((corrected.seconds, corrected.trust), (1.0, Trust::Corrected));
        assert!(!corrected.trust.wants_timing());
    }
}
