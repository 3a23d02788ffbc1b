//! Turns the figures of a refusal into its text: what was asked, the least, what that consists of, who is heaviest, ways out.
//!
//! All sizes are in one unit, so that they can be compared at a glance; the least is also given to the last byte, and the limit
//! that is proposed is one that can be typed as it stands.

use plimsoll_device::Bytes;

use super::{FixedMemory, HostAccount};

/// Something that would lower the least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The flag of the command that does it.
    pub flag: String,
    /// What it changes, in words.
    pub change: String,
    /// A memory limit that would then do. It is found in passing: the least of some is lower.
    pub least: Bytes,
}

/// What a refusal is about.
pub(crate) struct Refusal<'a> {
    pub(crate) asked: Bytes,
    pub(crate) least: Bytes,
    pub(crate) account: &'a FixedMemory,
    /// The op at which the arena is fullest.
    pub(crate) fullest: Option<&'a str>,
    pub(crate) heaviest: &'a [(String, Bytes)],
    pub(crate) ways: &'a [Remedy],
}

impl Refusal<'_> {
    /// The text, in several lines without an end of line behind the last.
    pub(crate) fn text(&self) -> String {
        let Refusal { asked, least, account, .. } = *self;
        let unit = Unit::of(least.max(asked));
        let (limit, lowest) = (unit.asked(asked, least), unit.short(least));
        let mut lines = vec![format!(
            "a memory limit of {limit} cannot be kept: the least for this step is {lowest} ({} bytes)",
            least.get()
        )];
        let mut parts = vec![
            ("program", account.program),
            ("state", account.tensors),
            ("inputs", account.inputs),
            ("pipeline", account.reserved),
            ("ranks", account.ranks),
            ("arena", least.saturating_sub(account.total())),
        ];
        parts.retain(|(_, bytes)| *bytes > Bytes::ZERO);
        let width = unit.width(parts.iter().map(|(_, bytes)| *bytes));
        for (name, bytes) in parts {
            let at = self
                .fullest
                .filter(|_| name == "arena")
                .map_or(String::new(), |op| format!("  fullest at {op}"));
            lines.push(format!("  {name:<8}  {:>width$} {}{at}", unit.figure(bytes), unit.name()));
        }
        if !self.heaviest.is_empty() {
            lines.push("the heaviest tensors:".into());
            let width = unit.width(self.heaviest.iter().map(|(_, bytes)| *bytes));
            for (name, bytes) in self.heaviest {
                lines.push(format!("  {:>width$} {}  {name}", unit.figure(*bytes), unit.name()));
            }
        }
        let higher = Remedy {
            flag: format!("--memory {}", unit.enough(least)),
            change: "a higher memory limit".into(),
            least,
        };
        lines.extend(ways_out("--memory", asked, higher, self.ways, unit));
        lines.join("\n")
    }
}

/// What a refusal of the host's memory is about.
pub(crate) struct HostRefusal<'a> {
    pub(crate) account: &'a HostAccount,
    pub(crate) least: Bytes,
    pub(crate) ways: &'a [Remedy],
}

impl HostRefusal<'_> {
    /// The text, in several lines without an end of line behind the last.
    pub(crate) fn text(&self) -> String {
        let HostRefusal { account, least, ways } = *self;
        let asked = account.limit.unwrap_or(Bytes::ZERO);
        let unit = Unit::of(least.max(asked));
        let (limit, lowest) = (unit.asked(asked, least), unit.short(least));
        let what = match account.is_given {
            true => format!("a host memory limit of {limit} cannot be kept"),
            false => format!("the host has {limit} for this process, which is not enough"),
        };
        let bytes = least.get();
        let mut lines = vec![format!("{what}: the least for this training is {lowest} ({bytes} bytes)")];
        let parts = account.parts().into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO);
        let parts: Vec<(&str, Bytes)> = parts.collect();
        let width = unit.width(parts.iter().map(|(_, bytes)| *bytes));
        for (name, bytes) in parts {
            lines.push(format!("  {name:<8}  {:>width$} {}", unit.figure(bytes), unit.name()));
        }
        let change =
            if account.is_given { "a higher limit of the host's memory" } else { "a larger machine" };
        let flag = format!("--host-memory {}", unit.enough(least));
        let higher = Remedy { flag, change: change.into(), least };
        lines.extend(ways_out("--host-memory", asked, higher, ways, unit));
        lines.join("\n")
    }
}

/// The ways out as lines: a higher limit first, then the others, and for those that do not keep the limit that was asked what `flag`
/// must be raised to.
fn ways_out(flag: &str, asked: Bytes, higher: Remedy, others: &[Remedy], unit: Unit) -> Vec<String> {
    let ways: Vec<&Remedy> = std::iter::once(&higher).chain(others).collect();
    let flags = ways.iter().map(|way| way.flag.chars().count()).max().unwrap_or(0);
    let width = unit.width(ways.iter().map(|way| way.least));
    let words = if others.is_empty() { "least".len() } else { "enough".len() };
    let mut lines = vec!["ways out:".to_string()];
    for way in ways {
        let is_kept = way.least <= asked || way.flag == higher.flag;
        let keeps = if is_kept { String::new() } else { format!(", with {flag} raised to that") };
        // Only of the step as it was asked for the least was looked for to the end.
        let word = if way.flag == higher.flag { "least" } else { "enough" };
        let (bytes, unit) = (unit.figure(way.least), unit.name());
        lines.push(format!(
            "  {:<flags$}  {word:<words$} {bytes:>width$} {unit}  {}{keeps}",
            way.flag, way.change
        ));
    }
    lines
}

/// The one unit of a text.
#[derive(Clone, Copy)]
enum Unit {
    Mib,
    Gib,
}

impl Unit {
    /// GiB from ten of them on.
    fn of(most: Bytes) -> Unit {
        if most >= Bytes::gib(10) { Unit::Gib } else { Unit::Mib }
    }

    fn name(self) -> &'static str {
        match self {
            Unit::Mib => "MiB",
            Unit::Gib => "GiB",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Unit::Mib => 1 << 20,
            Unit::Gib => 1 << 30,
        }
    }

    /// Digits behind the point.
    fn digits(self) -> usize {
        match self {
            Unit::Mib => 1,
            Unit::Gib => 2,
        }
    }

    fn figure(self, bytes: Bytes) -> String {
        format!("{:.*}", self.digits(), bytes.get() as f64 / self.bytes() as f64)
    }

    /// How many characters the widest of these figures has.
    fn width(self, figures: impl Iterator<Item = Bytes>) -> usize {
        figures.map(|bytes| self.figure(bytes).len()).max().unwrap_or(0)
    }

    /// With its unit, and without digits that say nothing.
    fn short(self, bytes: Bytes) -> String {
        let figure = self.figure(bytes);
        format!("{} {}", figure.trim_end_matches('0').trim_end_matches('.'), self.name())
    }

    /// A limit that was asked for: in bytes where its figure would be that of nothing (60, where 60MiB was meant), with them where it
    /// would be that of the least.
    fn asked(self, asked: Bytes, least: Bytes) -> String {
        match self.short(asked) {
            limit if limit == self.short(Bytes::ZERO) => format!("{} bytes", asked.get()),
            limit if limit == self.short(least) => format!("{limit} ({} bytes)", asked.get()),
            limit => limit,
        }
    }

    /// The size rounded up so that, typed as it stands, it is at least as much.
    fn enough(self, least: Bytes) -> String {
        let parts = 10u64.pow(self.digits() as u32);
        let mut n = (u128::from(least.get()) * u128::from(parts)).div_ceil(u128::from(self.bytes())) as u64;
        loop {
            let text = format!("{:.*}", self.digits(), n as f64 / parts as f64);
            let text = format!("{}{}", text.trim_end_matches('0').trim_end_matches('.'), self.name());
            // A reader may round down what stands behind the point.
            if text.parse::<Bytes>().is_ok_and(|typed| typed < least) {
                n += 1;
                continue;
            }
            return text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> FixedMemory {
        let (program, tensors) = (Bytes::mib(16), Bytes(23_172_608));
        FixedMemory { program, tensors, inputs: Bytes::kib(1280), ..FixedMemory::NOTHING }
    }

    #[test]
    fn a_refusal_is_a_table_in_one_unit_with_ways_out_that_can_be_typed() {
        let ways = [
            Remedy {
                flag: "--exact approximate".into(),
                change: "micro-batches".into(),
                least: Bytes::mib(45),
            },
            Remedy { flag: "--batch 4".into(), change: "4 samples a step".into(), least: Bytes(65_000_000) },
        ];
        let heaviest =
            [("up0/concat".to_string(), Bytes::mib(16)), ("down3/weight".into(), Bytes::kib(2304))];
        let refusal = Refusal {
            asked: Bytes::mib(60),
            least: Bytes(75_842_816),
            account: &account(),
            fullest: Some("mean"),
            heaviest: &heaviest,
            ways: &ways,
        };
        let expected = "\
a memory limit of 60 MiB cannot be kept: the least for this step is 72.3 MiB (75842816 bytes)
  program   16.0 MiB
  state     22.1 MiB
  inputs     1.2 MiB
  arena     33.0 MiB  fullest at mean
the heaviest tensors:
  16.0 MiB  up0/concat
   2.2 MiB  down3/weight
ways out:
  --memory 72.4MiB     least  72.3 MiB  a higher memory limit
  --exact approximate  enough 45.0 MiB  micro-batches
  --batch 4            enough 62.0 MiB  4 samples a step, with --memory raised to that";
        assert_eq!(refusal.text(), expected);
    }

    #[test]
    fn the_limit_that_is_proposed_is_never_below_the_least() {
        for least in
            [1u64, 1 << 20, (1 << 20) + 1, 75_842_816, 75_916_902, 75_916_903, 10 << 30, (10 << 30) + 1]
        {
            let typed = Unit::of(Bytes(least)).enough(Bytes(least));
            let bytes: Bytes = typed.parse().unwrap();
            assert!(bytes >= Bytes(least), "{typed} for {least}");
            assert!(bytes.get() - least <= Unit::of(Bytes(least)).bytes() / 9, "{typed} for {least}");
        }
    }

    #[test]
    fn sizes_that_look_alike_are_told_apart_to_the_byte() {
        let least = Bytes(75_842_816);
        let (account, heaviest, ways) = (account(), [], []);
        let refused = |asked: Bytes| {
            Refusal { asked, least, account: &account, fullest: None, heaviest: &heaviest, ways: &ways }
                .text()
        };
        // Sixty bytes, where sixty MiB were meant.
        assert!(refused(Bytes(60)).starts_with("a memory limit of 60 bytes cannot be kept"));
        let text = refused(Bytes(least.get() - 1));
        assert!(
            text.contains("of 72.3 MiB (75842815 bytes) cannot") && text.contains("(75842816 bytes)"),
            "{text}"
        );
    }

    #[test]
    fn a_refusal_of_the_host_names_who_holds_what_and_the_least() {
        let account = HostAccount {
            limit: Some(Bytes::mib(700)),
            is_given: true,
            program: Bytes::mib(786),
            pipeline: Bytes::mib(3),
            staging: Bytes(13 << 19),
            ..HostAccount::default()
        };
        let way = Remedy { flag: "--batch 4".into(), change: "4 samples".into(), least: Bytes::mib(790) };
        let (least, ways) = (account.beside(), [way]);
        let expected = "\
a host memory limit of 700 MiB cannot be kept: the least for this training is 795.5 MiB (834142208 bytes)
  program   786.0 MiB
  pipeline    3.0 MiB
  staging     6.5 MiB
ways out:
  --host-memory 795.5MiB  least  795.5 MiB  a higher limit of the host's memory
  --batch 4               enough 790.0 MiB  4 samples, with --host-memory raised to that";
        assert_eq!(HostRefusal { account: &account, least, ways: &ways }.text(), expected);
        let machine = HostAccount { is_given: false, ..account };
        let text = HostRefusal { account: &machine, least, ways: &[] }.text();
        assert!(text.starts_with("the host has 700 MiB for this process, which is not enough"), "{text}");
    }
}
