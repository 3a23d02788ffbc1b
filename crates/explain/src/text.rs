//! Turns an explanation into lines for a terminal.

use std::fmt;

use crate::bytes::{Size, percent};
use crate::explanation::{Explanation, PoolSummary};

/// The width of lines and of the bar.
const WIDTH: usize = 96;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = serde_json::to_value(self.kind).ok();
        let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or("report");
        wrapped(f, "", "", &format!("{}, {kind}: {}.", self.source.name(), self.asked()))?;
        wrapped(f, "", "", &format!("Verdict: {}.", self.verdict.words()))?;
        for reason in &self.because {
            wrapped(f, "  - ", "    ", &sentence(reason))?;
        }
        writeln!(f)?;
        let names = ["asked for", "limit", "in use", "free", "largest free", "would have fitted"];
        for (name, bytes) in names.into_iter().zip(self.table()) {
            match bytes {
                Some(bytes) => writeln!(f, "  {name:<18} {:>12}  {bytes}", Size(bytes).to_string())?,
                None => writeln!(f, "  {name:<18} {:>12}", "cannot tell")?,
            }
        }
        if let Some(pool) = &self.pool {
            picture(f, pool)?;
        }
        if !self.advice.is_empty() {
            writeln!(f, "\nWhat to change, most effective first:")?;
            for (i, advice) in self.advice.iter().enumerate() {
                let saves = advice.saves_bytes.map_or(String::new(), |bytes| format!(" [{}]", Size(bytes)));
                wrapped(f, &format!("  {}. ", i + 1), "     ", &format!("{}{saves}", advice.what))?;
            }
        }
        if !self.cannot_tell.is_empty() {
            writeln!(f, "\nI cannot tell:")?;
            for what in &self.cannot_tell {
                wrapped(f, "  - ", "    ", what)?;
            }
        }
        Ok(())
    }
}

/// The pool as a bar by address, its free chunks by size, and what is held.
fn picture(f: &mut fmt::Formatter<'_>, pool: &PoolSummary) -> fmt::Result {
    if !pool.columns.is_empty() {
        let total: u64 = pool
            .columns
            .iter()
            .fold(0, |sum, c| sum.saturating_add(c.in_use_bytes).saturating_add(c.free_bytes));
        writeln!(
            f,
            "\nThe pool by address, {} chunks in {} {}, {} a column (█ in use, ░▒▓ partly, · free):",
            pool.counts.chunks,
            pool.counts.regions_total,
            if pool.counts.regions_total == 1 { "region" } else { "regions" },
            Size(total / pool.columns.len() as u64)
        )?;
        let bar: String = pool.columns.iter().map(|c| shade(c.in_use_bytes, c.free_bytes)).collect();
        writeln!(f, "  {bar}")?;
    }
    if !pool.free_sizes.is_empty() {
        writeln!(f, "\nFree chunks by size:")?;
        let most = pool.free_sizes.iter().map(|class| class.bytes).max().unwrap_or(1).max(1);
        for class in pool.free_sizes.iter().rev().take(12) {
            let length = (u128::from(class.bytes) * 40 / u128::from(most)) as usize;
            writeln!(
                f,
                "  from {:>9} {:>7} {} {:>10}  {}",
                Size(class.at_least_bytes).to_string(),
                class.chunks,
                if class.chunks == 1 { "chunk " } else { "chunks" },
                Size(class.bytes).to_string(),
                "▪".repeat(length.max(1))
            )?;
        }
    }
    if !pool.held.is_empty() {
        writeln!(f, "\nHeld, heaviest first:")?;
        for held in pool.held.iter().take(6) {
            let by = held.by.as_deref().map_or(String::new(), |by| format!("  {by}"));
            let line = format!(
                "{:>12}  {} x {}{by}",
                Size(held.bytes).to_string(),
                held.chunks,
                Size(held.chunk_bytes)
            );
            writeln!(f, "  {line}")?;
        }
    }
    Ok(())
}

/// A column's character.
pub(crate) fn shade(used: u64, free: u64) -> char {
    match percent(used, used.saturating_add(free)) {
        _ if used == 0 => '·',
        _ if free == 0 => '█',
        0..=33 => '░',
        34..=66 => '▒',
        _ => '▓',
    }
}

/// A reason as a sentence.
pub(crate) fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", characters.as_str().trim_end_matches('.'))
}

fn wrapped(f: &mut fmt::Formatter<'_>, first: &str, next: &str, text: &str) -> fmt::Result {
    let mut line = first.to_string();
    let mut width = first.chars().count();
    let mut empty = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if !empty && width + 1 + length > WIDTH {
            writeln!(f, "{line}")?;
            line = next.to_string();
            width = next.chars().count();
            empty = true;
        }
        if !empty {
            line.push(' ');
            width += 1;
        }
        line.push_str(word);
        width += length;
        empty = false;
    }
    writeln!(f, "{line}")
}
