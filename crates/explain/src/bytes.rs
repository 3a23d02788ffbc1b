//! Turns the ways in which systems write sizes into bytes, and bytes into what people read.

use std::fmt;

/// A number of bytes that a message may leave out.
pub(crate) type Figure = Option<u64>;

/// A number of bytes for people: `4 MiB`, `31.4 GiB`.
#[derive(Clone, Copy)]
pub(crate) struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // What would be printed as 1024 is the next unit's 1.
        while value >= 1023.995 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if value >= 100.0 { format!("{value:.1}") } else { format!("{value:.2}") };
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        write!(f, "{text} {}", units[unit])
    }
}

/// A share as a whole percentage; of nothing, zero.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 { 0 } else { (u128::from(part) * 100 / u128::from(whole)).min(999) as u64 }
}

/// Reads a size at the start of a text: `4.00MiB`, `1.2 GiB`, `17.34G`, `530M`, `0 bytes`, `4194304`. `G` alone is what XLA
/// writes for GiB; `GB` is what Metal writes for GiB, too.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    // A full stop after a number ends the sentence.
    let number = text.get(..digits)?.trim_end_matches('.');
    if number.is_empty() || number.len() > 40 {
        return None;
    }
    let rest = text.get(digits..)?.trim_start_matches(' ');
    let unit: String = rest.chars().take_while(char::is_ascii_alphabetic).take(6).collect();
    let shift = match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => 0,
    };
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift),
        Err(_) => {
            let bytes = number.parse::<f64>().ok()? * (1u64 << shift) as f64;
            // Two decimals of a GiB are no more exact than ten million bytes; rounding down is the careful side.
            (bytes.is_finite() && bytes < u64::MAX as f64).then_some(bytes as u64)
        }
    }
}

/// The size that follows a marker.
pub(crate) fn after(text: &str, marker: &str) -> Option<u64> {
    parse(rest_after(text, marker)?)
}

/// The size that stands before a marker: `4.00 GiB total capacity`.
pub(crate) fn before(text: &str, marker: &str) -> Option<u64> {
    let head = text.get(..text.find(marker)?)?.trim_end();
    let mut from = head.len();
    // The last word, and the one before it where the last is a unit by itself.
    for _ in 0..2 {
        let trimmed = head.get(..from)?.trim_end();
        from = trimmed.rfind([' ', '(', ';', ',']).map_or(0, |at| at + 1);
        let found = head.get(from..)?;
        if found.starts_with(|c: char| c.is_ascii_digit()) {
            return parse(found);
        }
    }
    None
}

/// What follows a marker.
pub(crate) fn rest_after<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    text.get(text.find(marker)? + marker.len()..)
}

/// What stands between two markers.
pub(crate) fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let rest = rest_after(text, from)?;
    rest.get(..rest.find(to)?)
}

/// The word at the start of a text.
pub(crate) fn word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or("")
}

/// A text cut to a length that is kept.
pub(crate) fn short(text: &str) -> String {
    const MOST: usize = 160;
    match text.char_indices().nth(MOST) {
        None => text.to_string(),
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or("")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_systems_way_of_writing_a_size_is_read() {
        let cases = [
            ("4.00MiB (rounded", 4 << 20),
            ("1.50 GiB.", 3 << 29),
            ("17.34G.", (17.34 * (1u64 << 30) as f64) as u64),
            ("530.00M ", 530 << 20),
            ("0 bytes free", 0),
            ("4194304)", 4194304),
            ("256B", 256),
            ("384.0KiB", 384 << 10),
            ("9.07 GB,", (9.07 * (1u64 << 30) as f64) as u64),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for text in
            ["", "MiB", ".", "-5", "99999999999999999999999999999999999999999999", "18446744073709551615 GiB"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_size_before_a_marker_is_read_with_and_without_a_space() {
        assert_eq!(before("(GPU 0; 4.00 GiB total capacity; x", " total capacity"), Some(4 << 30));
        assert_eq!(
            before("Chunks in use: 51 12.0KiB allocated for chunks.", " allocated for"),
            Some(12 << 10)
        );
        assert_eq!(before("nothing free", " free"), None);
        assert_eq!(before(" free", " free"), None);
    }

    #[test]
    fn sizes_are_printed_as_people_write_them() {
        let shown =
            [0, 1023, 1024, 1536, (1 << 20) - 1, 4 << 20, (1 << 30) + (1 << 29)].map(|n| Size(n).to_string());
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "4 MiB", "1.5 GiB"]);
    }
}
