//! The rows of a profile as a table for a terminal.

use std::fmt;

use crate::ProfileRow;

/// Rows of a profile, to be printed. At most so many; the rest is one line.
pub struct ProfileTable<'a> {
    /// What takes the time, the most first.
    pub rows: &'a [ProfileRow],
    /// The most lines of rows.
    pub most: usize,
}

/// Bytes in the unit that fits.
fn size(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

impl fmt::Display for ProfileTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = |row: &ProfileRow| match row.what.note() {
            "" => row.name.to_string(),
            note => format!("{} ({note})", row.name),
        };
        let shown = &self.rows[..self.rows.len().min(self.most)];
        let width = shown.iter().map(|row| title(row).chars().count()).max().unwrap_or(0).max(4);
        let is_predicted = shown.iter().any(|row| row.predicted_ms.is_some());
        write!(
            f,
            "{:<width$}  {:>8}  {:>11}  {:>10}  {:>6}",
            "what", "calls", "total ms", "mean µs", "share"
        )?;
        if is_predicted {
            write!(f, "  {:>12}", "predicted ms")?;
        }
        writeln!(f, "  {:>10}", "bytes")?;
        for row in shown {
            let name = title(row);
            let (count, total, mean, share) = (row.count, row.total_ms, row.mean_us, row.share * 100.0);
            write!(f, "{name:<width$}  {count:>8}  {total:>11.3}  {mean:>10.1}  {share:>5.1}%")?;
            if is_predicted {
                match row.predicted_ms {
                    Some(ms) => write!(f, "  {ms:>12.3}")?,
                    None => write!(f, "  {:>12}", "")?,
                }
            }
            writeln!(f, "  {:>10}", size(row.bytes as f64))?;
        }
        let rest = &self.rows[shown.len()..];
        if !rest.is_empty() {
            let (calls, ms) =
                (rest.iter().map(|row| row.count).sum::<u64>(), rest.iter().map(|row| row.total_ms));
            writeln!(f, "and {} more rows: {calls} calls, {:.3} ms", rest.len(), ms.sum::<f64>())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Action;

    #[test]
    fn a_table_has_a_line_a_row_and_one_for_the_rest() {
        let row = |name: &'static str, what, predicted_ms| ProfileRow {
            name: name.into(),
            what,
            count: 4,
            total_ms: 2.0,
            mean_us: 500.0,
            share: 0.25,
            predicted_ms,
            bytes: 3 << 20,
        };
        let rows = [
            row("matmul", Action::Run, Some(1.5)),
            row("matmul", Action::Again, None),
            row("tanh", Action::Run, None),
        ];
        let text = ProfileTable { rows: &rows, most: 2 }.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].contains("predicted ms") && lines[1].contains("25.0%"), "{text}");
        assert!(lines[1].contains("3.0 MiB") && lines[2].starts_with("matmul (again)"), "{text}");
        assert_eq!(lines[3], "and 1 more rows: 4 calls, 2.000 ms");
        assert!(!ProfileTable { rows: &rows[1..], most: 9 }.to_string().contains("predicted"));
    }
}
