//! Turns a file of values between commas, semicolons, tabs or bars into the places of its records, and a record into its fields.
//!
//! A line break between quotes belongs to its field, so records are told apart by counting quotes, in one pass over
//! the file. After that any record can be read by offset. Written by hand, because a record is parsed where it
//! lies, without a copy, and the parser of a whole file cannot be entered in its middle.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::{FileError, Result};

/// A longer record is taken for a quote that was never closed.
pub const RECORD_LIMIT: u64 = 16 << 20;

/// The places of all records of a file.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// Where each record begins, and where the last one ends. Empty lines are no records.
    pub starts: Vec<u64>,
    /// The length of the longest.
    pub longest: usize,
    /// The line, counted from 1, in which every [`LINES_STEP`]-th record begins.
    pub lines: Vec<u64>,
}

/// Records between two whose lines are kept.
pub const LINES_STEP: usize = 1024;

impl Index {
    /// How many records there are.
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Finds the records of a file, and shows each to `see` with its number.
pub fn scan(path: &Path, mut see: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<Index> {
    let io = |error| FileError::io(path, error);
    let mut reader = BufReader::with_capacity(64 << 10, File::open(path).map_err(io)?);
    let mut index = Index::default();
    let (mut record, mut at, mut quotes, mut line) = (Vec::new(), 0u64, 0usize, 1u64);
    loop {
        let before = record.len();
        let mut limited = std::io::Read::take(&mut reader, RECORD_LIMIT + 1 - before as u64);
        let read = limited.read_until(b'\n', &mut record).map_err(io)?;
        quotes += record[before..].iter().filter(|&&byte| byte == b'"').count();
        let number = index.starts.len() as u64;
        if record.len() as u64 > RECORD_LIMIT {
            let what = format!("line {line}: the record is longer than 16 MiB; is a quote never closed?");
            return Err(FileError::damaged(path, what));
        }
        if read > 0 && quotes % 2 == 1 {
            continue;
        }
        if read == 0 && quotes % 2 == 1 {
            return Err(FileError::damaged(path, format!("line {line}: the file ends inside quotes")));
        }
        if record.is_empty() {
            break;
        }
        let text = trim_end(if at == 0 { trim_mark(&record) } else { &record });
        if !text.is_empty() {
            see(number, text)?;
            if index.starts.len().is_multiple_of(LINES_STEP) {
                index.lines.push(line);
            }
            index.starts.push(at);
            index.longest = index.longest.max(record.len());
        }
        at += record.len() as u64;
        line += count_lines(&record);
        (quotes, _) = (0, record.clear());
    }
    index.starts.push(at);
    index.starts.shrink_to_fit();
    Ok(index)
}

/// How many lines end in these bytes.
pub fn count_lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// The front of a file without the mark that some programs put before UTF-8.
pub fn trim_mark(record: &[u8]) -> &[u8] {
    record.strip_prefix(b"\xef\xbb\xbf").unwrap_or(record)
}

/// A record without its line break.
pub fn trim_end(record: &[u8]) -> &[u8] {
    let record = record.strip_suffix(b"\n").unwrap_or(record);
    record.strip_suffix(b"\r").unwrap_or(record)
}

/// What separates fields beside the comma, which is what separates them where none of these does.
const SEPARATORS: [u8; 3] = [b'\t', b';', b'|'];

/// What separates the fields of a table, by its first two records (or the one there is): of what parts both into as many fields, that which
/// leaves most numbers in the last.
///
/// ```
/// use plimsoll_formats::csv::separator;
/// assert_eq!(separator(b"age,height", Some(b"3,94.5")), b',');
/// assert_eq!(separator(b"\"fixed acidity\";pH", Some(b"7.4;3.51")), b';');
/// ```
pub fn separator(first: &[u8], second: Option<&[u8]>) -> u8 {
    let last = second.unwrap_or(first);
    let parts = |separator: u8| {
        let count = fields(first, separator).count();
        count > 1 && fields(last, separator).count() == count
    };
    let is_number = |field: &[u8]| number(field).is_some() || has_decimal_comma(field);
    let numbers = |separator: u8| fields(last, separator).filter(|field| is_number(field)).count();
    let others = SEPARATORS.into_iter().filter(|&separator| parts(separator));
    // Of several that leave as many, the last is taken: semicolons rather than the commas of decimal numbers.
    std::iter::once(b',').chain(others).max_by_key(|&separator| numbers(separator)).unwrap_or(b',')
}

/// The fields of one record, without their quotes.
///
/// ```
/// let fields: Vec<_> = plimsoll_formats::csv::fields(b"1,\"a \"\"b\"\", c\",,", b',').collect();
/// assert_eq!(fields, [&b"1"[..], b"a \"b\", c", b"", b""]);
/// ```
pub fn fields(record: &[u8], separator: u8) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let mut rest = Some(record);
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(quoted) = text.strip_prefix(b"\"") else {
            let end = text.iter().position(|&byte| byte == separator);
            rest = end.map(|end| &text[end + 1..]);
            return Some(Cow::Borrowed(&text[..end.unwrap_or(text.len())]));
        };
        let mut field = Vec::new();
        let mut at = 0;
        while at < quoted.len() {
            match (quoted[at], quoted.get(at + 1)) {
                (b'"', Some(b'"')) => {
                    field.push(b'"');
                    at += 1;
                }
                (b'"', _) => break,
                (byte, _) => field.push(byte),
            }
            at += 1;
        }
        let after = quoted.get(at + 1..).unwrap_or(&[]);
        let end = after.iter().position(|&byte| byte == separator);
        // What stands between the closing quote and the separator belongs to the field: it is not to be lost.
        field.extend_from_slice(&after[..end.unwrap_or(after.len())]);
        rest = end.map(|end| &after[end + 1..]);
        Some(Cow::Owned(field))
    })
}

/// A field as a number.
pub fn number(field: &[u8]) -> Option<f64> {
    std::str::from_utf8(field).ok()?.trim().parse().ok()
}

/// Whether a field would be a number if its comma were a point.
///
/// ```
/// use plimsoll_formats::csv::has_decimal_comma;
/// assert!(has_decimal_comma(b"0,25") && !has_decimal_comma(b"0.25") && !has_decimal_comma(b"a,b"));
/// ```
pub fn has_decimal_comma(field: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(field) else { return false };
    text.matches(',').count() == 1 && number(text.replace(',', ".").as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan_text(text: &[u8]) -> (Result<Index>, Vec<Vec<u8>>) {
        let name = format!("plimsoll-csv-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        let mut seen = Vec::new();
        let index = scan(&path, |_, record| {
            seen.push(record.to_vec());
            Ok(())
        });
        std::fs::remove_file(path).unwrap();
        (index, seen)
    }

    #[test]
    fn line_breaks_in_quotes_do_not_end_a_record() {
        let (index, seen) = scan_text(b"a,b\r\n\n\"x\ny\",2\n3,\"4\"");
        assert_eq!(seen, [&b"a,b"[..], b"\"x\ny\",2", b"3,\"4\""]);
        let index = index.unwrap();
        assert_eq!((index.starts, index.lines), (vec![0, 6, 14, 19], vec![1]));
        let (index, _) = scan_text(&b"1\n\n2\n".repeat(LINES_STEP));
        assert_eq!(index.unwrap().lines, [1, 1 + 3 * LINES_STEP as u64 / 2]);
        assert_eq!(scan_text(b"\xef\xbb\xbfa,b\n").1, [b"a,b"]);
    }

    #[test]
    fn what_separates_fields_is_what_leaves_most_numbers() {
        let of = |text: &str| {
            let mut lines = text.lines().map(str::as_bytes);
            char::from(separator(lines.next().unwrap(), lines.next()))
        };
        assert_eq!(of("a,b\n1,2"), ',');
        assert_eq!(of("a;b\n1;2"), ';');
        assert_eq!(of("a\tb\n1\t2"), '\t');
        assert_eq!(of("a|b\n1|2"), '|');
        assert_eq!(of("\"a;b\",c\n\"1;2\",3"), ',');
        assert_eq!(of("0,5;0,25\n0,75;1,5"), ';');
        // A semicolon in a text, and one that not every record has.
        assert_eq!(of("1,2,a;b\n3,4,c;d"), ',');
        assert_eq!(of("a;b\n1,2"), ',');
        assert_eq!(of("7"), ',');
    }

    #[test]
    fn what_follows_a_closing_quote_is_not_lost() {
        let fields: Vec<_> = fields(b"\"12\"3,\"a\" b,c", b',').collect();
        assert_eq!(fields, [&b"123"[..], b"a b", b"c"]);
    }

    #[test]
    fn a_quote_that_is_never_closed_is_named() {
        let error = scan_text(b"1,2\n3,\"4\n5,6\n").0.unwrap_err().to_string();
        assert!(error.ends_with(": line 2: the file ends inside quotes"), "{error}");
    }

    #[test]
    fn no_mutation_panics() {
        let text = b"a,\"b \"\"c\"\"\"\r\n1,\"2\n3\"\n";
        for at in 0..text.len() {
            for byte in [b'"', b',', b'\n', b'\r', 0, 0xff] {
                let mut mutated = text.to_vec();
                mutated[at] = byte;
                for record in scan_text(&mutated).1 {
                    let _ = fields(&record, separator(&record, None)).count();
                }
            }
        }
    }
}
