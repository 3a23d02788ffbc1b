//! Turns planned and measured sizes into the one account of memory: by kind and by name, side by side.
//!
//! A budget that covers only what the engine allocates itself is no budget. So everything has a row here,
//! library handles and the program's own pages too, and the plan and the run write into the same row: what
//! was promised stands beside what was taken.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_record as record;
use plimsoll_record::Kind;

use crate::{Bytes, Site};

/// One entry of the ledger. What nobody has measured says so: a plan's figure is never repeated as a measured one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// What the plan gives it.
    pub planned: Bytes,
    /// What it takes now, where that was measured.
    pub measured: Option<Bytes>,
    /// The most it was measured to take since the start or the last reset.
    pub peak: Option<Bytes>,
    /// The source line that made it, where one is known.
    pub site: Option<Site>,
}

/// A change that the ledger cannot book.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// More was taken off a row than stood there.
    #[error(
        "cannot take {asked} off the {kind} row '{name}', which holds {held}; remove only what was added"
    )]
    Overdrawn {
        /// The row's kind.
        kind: Kind,
        /// The row's name.
        name: String,
        /// What stands in the row.
        held: Bytes,
        /// What was to be taken off.
        asked: Bytes,
    },
}

/// The account of memory.
///
/// ```
/// use plimsoll_device::{Bytes, Kind, Ledger};
///
/// let mut ledger = Ledger::new();
/// ledger.plan(Kind::Parameter, "dense.weight", Bytes::mib(4));
/// ledger.add(Kind::Parameter, "dense.weight", Bytes::mib(4));
/// ledger.set(Kind::Library, "cublas", Bytes::mib(9));
/// assert_eq!(ledger.planned(), Bytes::mib(4));
/// assert_eq!(ledger.measured(), Bytes::mib(13));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    // One map a kind, so that a row is found by a borrowed name: booking to a row that exists allocates nothing.
    rows: [BTreeMap<String, Row>; Kind::ALL.len()],
    measured: Bytes,
    peak: Bytes,
}

impl Ledger {
    /// An empty account.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Writes down what the plan gives a row.
    pub fn plan(&mut self, kind: Kind, name: &str, bytes: Bytes) {
        self.update(kind, name, |row| row.planned = bytes);
    }

    /// Writes down the source line that made a row.
    pub fn trace(&mut self, kind: Kind, name: &str, site: Site) {
        self.update(kind, name, |row| row.site = Some(site));
    }

    /// Books bytes that were taken.
    pub fn add(&mut self, kind: Kind, name: &str, bytes: Bytes) {
        let held = self.held(kind, name);
        self.set(kind, name, held + bytes);
    }

    fn held(&self, kind: Kind, name: &str) -> Bytes {
        self.row(kind, name).and_then(|row| row.measured).unwrap_or(Bytes::ZERO)
    }

    /// Books bytes that were given back. The row stays, with its peak and its plan.
    ///
    /// # Errors
    /// The row holds less than that; nothing is changed.
    pub fn remove(&mut self, kind: Kind, name: &str, bytes: Bytes) -> Result<(), LedgerError> {
        let held = self.held(kind, name);
        let left = held.checked_sub(bytes).ok_or_else(|| LedgerError::Overdrawn {
            kind,
            name: name.to_owned(),
            held,
            asked: bytes,
        })?;
        self.set(kind, name, left);
        Ok(())
    }

    /// Books what was measured to be taken now, whatever stood there before.
    pub fn set(&mut self, kind: Kind, name: &str, bytes: Bytes) {
        let before = self.update(kind, name, |row| {
            row.peak = row.peak.max(Some(bytes));
            row.measured.replace(bytes)
        });
        self.measured = self.measured.saturating_sub(before.unwrap_or(Bytes::ZERO)) + bytes;
        self.peak = self.peak.max(self.measured);
    }

    /// One row.
    pub fn row(&self, kind: Kind, name: &str) -> Option<&Row> {
        self.rows[kind as usize].get(name)
    }

    /// All rows by kind, and by name within a kind.
    pub fn rows(&self) -> impl Iterator<Item = (Kind, &str, &Row)> {
        Kind::ALL.into_iter().flat_map(|kind| self.rows_of(kind).map(move |(name, row)| (kind, name, row)))
    }

    /// The rows of a kind, by name.
    pub fn rows_of(&self, kind: Kind) -> impl Iterator<Item = (&str, &Row)> {
        self.rows[kind as usize].iter().map(|(name, row)| (name.as_str(), row))
    }

    /// The sums of a kind's rows: of what was measured, those rows that were. Its peak is the sum of its rows' peaks, which
    /// need not have been at one time.
    pub fn total(&self, kind: Kind) -> Row {
        let sum = |a: Option<Bytes>, b: Option<Bytes>| match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.rows_of(kind).fold(Row::default(), |total, (_, row)| Row {
            planned: total.planned + row.planned,
            measured: sum(total.measured, row.measured),
            peak: sum(total.peak, row.peak),
            site: None,
        })
    }

    /// What the plan gives in all.
    pub fn planned(&self) -> Bytes {
        self.rows().map(|(_, _, row)| row.planned).sum()
    }

    /// What is taken in all now.
    pub fn measured(&self) -> Bytes {
        self.measured
    }

    /// The most that was taken at one time, over all rows, since the start or the last reset.
    pub fn peak(&self) -> Bytes {
        self.peak
    }

    /// Lets all peaks start again from what is taken now.
    pub fn reset_peak(&mut self) {
        self.peak = self.measured;
        for row in self.rows.iter_mut().flat_map(BTreeMap::values_mut) {
            row.peak = row.measured;
        }
    }

    /// The ledger as a record of a run.
    pub fn record(&self) -> record::Ledger {
        let row = |(kind, name, row): (Kind, &str, &Row)| record::LedgerRow {
            kind,
            name: name.into(),
            planned_bytes: row.planned.get(),
            measured_bytes: row.measured.map(Bytes::get),
        };
        record::Ledger { rows: self.rows().map(row).collect(), ..record::Ledger::default() }
    }

    fn update<T>(&mut self, kind: Kind, name: &str, change: impl FnOnce(&mut Row) -> T) -> T {
        let rows = &mut self.rows[kind as usize];
        match rows.get_mut(name) {
            Some(row) => change(row),
            None => change(rows.entry(name.to_owned()).or_default()),
        }
    }
}

/// Writes a table: a line for each row, a sum for each kind of more than one row, and the total. What was not measured has a
/// dash; peaks are shown where one is above what is taken now.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.rows().map(|(_, name, _)| name.chars().count());
        let width = names.max().unwrap_or(0).max("name".len());
        let peaks = self.peak > self.measured || self.rows().any(|(_, _, row)| row.peak > row.measured);
        let peak = |text: &str| if peaks { format!("  {text:>9}") } else { String::new() };
        let head = peak("peak");
        writeln!(f, "{:<10}  {:<width$}  {:>9}  {:>9}{head}", "kind", "name", "planned", "measured")?;
        let figure = |bytes: Option<Bytes>| bytes.map_or("–".to_string(), |bytes| bytes.to_string());
        let mut line = |kind: &str, name: &str, row: &Row| {
            let Row { planned, measured, peak: most, site } = row;
            let (measured, most) = (figure(*measured), peak(&figure(*most)));
            write!(f, "{kind:<10}  {name:<width$}  {planned:>9}  {measured:>9}{most}")?;
            site.map_or(Ok(()), |site| write!(f, "  {site}"))?;
            writeln!(f)
        };
        for kind in Kind::ALL {
            for (name, row) in self.rows_of(kind) {
                line(kind.name(), name, row)?;
            }
            if self.rows_of(kind).nth(1).is_some() {
                line(kind.name(), "(sum)", &self.total(kind))?;
            }
        }
        let (planned, measured, peak) = (self.planned(), Some(self.measured), Some(self.peak));
        line("total", "", &Row { planned, measured, peak, site: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planned_and_measured_stand_side_by_side_in_an_aligned_table() {
        let mut ledger = Ledger::new();
        ledger.plan(Kind::Activation, "conv1", Bytes::mib(12));
        ledger.add(Kind::Activation, "conv1", Bytes::mib(10));
        ledger.plan(Kind::Parameter, "dense.weight", Bytes::mib(4));
        ledger.set(Kind::Parameter, "dense.weight", Bytes::mib(4));
        ledger.plan(Kind::Parameter, "dense.bias", Bytes::kib(4));
        ledger.set(Kind::Parameter, "dense.bias", Bytes::kib(4));
        ledger.trace(Kind::Parameter, "dense.bias", Site::new("src/main.rs", 9));
        let expected = "\
kind        name            planned   measured
parameter   dense.bias        4 KiB      4 KiB  src/main.rs:9
parameter   dense.weight      4 MiB      4 MiB
parameter   (sum)             4 MiB      4 MiB
activation  conv1            12 MiB     10 MiB
total                        16 MiB     14 MiB
";
        assert_eq!(ledger.to_string(), expected);
        ledger.set(Kind::Activation, "conv1", Bytes::mib(9));
        assert!(ledger.to_string().contains("12 MiB      9 MiB     10 MiB\n"), "{ledger}");
    }

    #[test]
    fn what_was_planned_and_not_measured_says_so() {
        let mut ledger = Ledger::new();
        ledger.plan(Kind::Program, "room for planning", Bytes::mib(3));
        assert_eq!(ledger.row(Kind::Program, "room for planning").unwrap().measured, None);
        assert_eq!((ledger.planned(), ledger.measured()), (Bytes::mib(3), Bytes::ZERO));
        assert_eq!(ledger.total(Kind::Program).measured, None);
        assert!(ledger.to_string().contains("3 MiB          –\n"), "{ledger}");
    }

    #[test]
    fn the_peak_is_that_of_the_sum_over_time() {
        let mut ledger = Ledger::new();
        ledger.add(Kind::Scratch, "a", Bytes(100));
        ledger.remove(Kind::Scratch, "a", Bytes(100)).unwrap();
        ledger.add(Kind::Scratch, "b", Bytes(80));
        assert_eq!((ledger.measured(), ledger.peak()), (Bytes(80), Bytes(100)));
        assert_eq!(ledger.total(Kind::Scratch).peak, Some(Bytes(180)));
        ledger.reset_peak();
        assert_eq!(ledger.peak(), Bytes(80));
        assert_eq!(ledger.row(Kind::Scratch, "a").unwrap().peak, Some(Bytes::ZERO));
    }

    #[test]
    fn one_byte_more_than_a_row_holds_cannot_be_removed() {
        let mut ledger = Ledger::new();
        ledger.add(Kind::Input, "batch", Bytes(10));
        let error = ledger.remove(Kind::Input, "batch", Bytes(11)).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot take 11 B off the input row 'batch', which holds 10 B")
        );
        assert_eq!(ledger.measured(), Bytes(10));
        assert!(ledger.remove(Kind::Input, "other", Bytes(1)).is_err());
        assert_eq!(ledger.remove(Kind::Input, "batch", Bytes(10)), Ok(()));
        assert_eq!(ledger.measured(), Bytes::ZERO);
    }
}
