//! Turns comma-separated text into buffers to pack, and a packing into the same text with an offset column.
//!
//! The columns are those of MiniMalloc's files: `id,lower,upper,size` and, if wanted, `alignment`, `hint`,
//! `gaps` and `offset`, in any order. The older form has `buffer,start,end,size`, where the end is the last
//! instant of the lifespan instead of the first one after it. Rows are kept, so that what is written differs from
//! what was read only in the offsets.
//!
//! What is not here: quoting (no value of these files needs it), and buffers with gaps in their lifespan.

use crate::pack::Buffer;
use std::fmt::Write as _;

/// A file's buffers and the rows they came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The buffers, one a row.
    pub buffers: Vec<Buffer>,
    /// Their names.
    pub ids: Vec<String>,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// What is wrong with a file, and in which line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no header.
    #[error("the file is empty; its first line must name the columns, such as id,lower,upper,size")]
    Empty,
    /// A column that is not known.
    #[error(
        "line 1: unknown column `{column}`; known are id, lower, upper, size, alignment, hint, gaps, offset"
    )]
    UnknownColumn {
        /// Its name.
        column: String,
    },
    /// A column given twice.
    #[error("line 1: column `{column}` is there twice; remove one")]
    DoubleColumn {
        /// Its name.
        column: String,
    },
    /// A column that has to be there and is not.
    #[error("line 1: there is no column `{column}`; the least a file has is id,lower,upper,size")]
    NoColumn {
        /// Its name.
        column: &'static str,
    },
    /// A row with more or fewer values than columns.
    #[error("line {line}: {found} values for {expected} columns; give each column one value")]
    Width {
        /// The line, counted from 1.
        line: usize,
        /// How many values there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A value that is no number.
    #[error("line {line}: {column} is `{value}`; it must be a whole number from 0 to 18446744073709551615")]
    Number {
        /// The line, counted from 1.
        line: usize,
        /// The column.
        column: &'static str,
        /// What is there.
        value: String,
    },
    /// A lifespan that ends before it starts.
    #[error("line {line}: the lifespan ends at {upper}, before it starts at {lower}; exchange them")]
    Reversed {
        /// The line, counted from 1.
        line: usize,
        /// Where it starts.
        lower: u64,
        /// Where it ends.
        upper: u64,
    },
    /// An alignment of zero.
    #[error("line {line}: the alignment is 0; give 1 if any offset will do")]
    NoAlignment {
        /// The line, counted from 1.
        line: usize,
    },
    /// Gaps, which are not packed.
    #[error(
        "line {line}: gaps `{gaps}` in a lifespan cannot be packed; split the buffer or empty the column"
    )]
    Gaps {
        /// The line, counted from 1.
        line: usize,
        /// What is there.
        gaps: String,
    },
    /// Sizes that add up to too much.
    #[error("line {line}: the sizes up to here add up to more than 2^62 bytes, which offsets cannot count")]
    TooLarge {
        /// The line, counted from 1.
        line: usize,
    },
}

/// Where each column is.
struct Columns {
    id: usize,
    lower: usize,
    upper: usize,
    /// Whether the end of a lifespan is its last instant.
    inclusive: bool,
    size: usize,
    alignment: Option<usize>,
    gaps: Option<usize>,
}

/// Reads a table.
///
/// ```
/// let table = plimsoll_plan::csv::read("id,lower,upper,size\nweights,0,9,4096\n")?;
/// assert_eq!(table.buffers[0].upper, 9);
/// assert_eq!(table.ids[0], "weights");
/// # Ok::<(), plimsoll_plan::csv::Error>(())
/// ```
pub fn read(text: &str) -> Result<Table, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, first) = lines.next().ok_or(Error::Empty)?;
    let header = values(first);
    let columns = columns(&header)?;
    let mut table = Table { buffers: Vec::new(), ids: Vec::new(), header, rows: Vec::new() };
    let mut sum = 0u64;
    for (at, text) in lines {
        let line = at + 1;
        let row = values(text);
        if row.len() != table.header.len() {
            return Err(Error::Width { line, found: row.len(), expected: table.header.len() });
        }
        let buffer = buffer(&row, &columns, line)?;
        sum = buffer
            .size
            .checked_add(buffer.alignment)
            .and_then(|need| sum.checked_add(need))
            .filter(|&sum| sum <= 1 << 62)
            .ok_or(Error::TooLarge { line })?;
        table.buffers.push(buffer);
        table.ids.push(row[columns.id].clone());
        table.rows.push(row);
    }
    Ok(table)
}

/// Writes the rows of `table` as they were read, with `offsets` in the offset column.
///
/// ```
/// let table = plimsoll_plan::csv::read("id,lower,upper,size\na,0,9,4096\n")?;
/// assert_eq!(plimsoll_plan::csv::write(&table, &[64]), "id,lower,upper,size,offset\na,0,9,4096,64\n");
/// # Ok::<(), plimsoll_plan::csv::Error>(())
/// ```
pub fn write(table: &Table, offsets: &[u64]) -> String {
    let mut text = String::new();
    let column = table.header.iter().position(|column| column == "offset");
    let mut push = |row: &[String], offset: &dyn std::fmt::Display| {
        for (at, value) in row.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            // Writing to a string cannot fail.
            let _ = if Some(at) == column {
                write!(text, "{comma}{offset}")
            } else {
                write!(text, "{comma}{value}")
            };
        }
        let _ = if column.is_none() { writeln!(text, ",{offset}") } else { writeln!(text) };
    };
    push(&table.header, &"offset");
    for (row, offset) in table.rows.iter().zip(offsets) {
        push(row, offset);
    }
    text
}

fn values(line: &str) -> Vec<String> {
    line.split(',').map(|value| value.trim().to_owned()).collect()
}

fn columns(header: &[String]) -> Result<Columns, Error> {
    const KNOWN: [&str; 11] =
        ["id", "lower", "upper", "size", "alignment", "hint", "gaps", "offset", "buffer", "start", "end"];
    for (at, column) in header.iter().enumerate() {
        if !KNOWN.contains(&column.as_str()) {
            return Err(Error::UnknownColumn { column: column.clone() });
        }
        if header[..at].contains(column) {
            return Err(Error::DoubleColumn { column: column.clone() });
        }
    }
    let find = |name: &str| header.iter().position(|column| column == name);
    let need = |name: &'static str, old: &'static str| match (find(name), find(old)) {
        (Some(_), Some(_)) => Err(Error::DoubleColumn { column: old.to_owned() }),
        (Some(at), None) | (None, Some(at)) => Ok(at),
        (None, None) => Err(Error::NoColumn { column: name }),
    };
    Ok(Columns {
        id: need("id", "buffer")?,
        lower: need("lower", "start")?,
        upper: need("upper", "end")?,
        inclusive: find("end").is_some(),
        size: find("size").ok_or(Error::NoColumn { column: "size" })?,
        alignment: find("alignment"),
        gaps: find("gaps"),
    })
}

fn buffer(row: &[String], columns: &Columns, line: usize) -> Result<Buffer, Error> {
    let number = |at: usize, column: &'static str| {
        let value = &row[at];
        value.parse::<u64>().map_err(|_| Error::Number { line, column, value: value.clone() })
    };
    let lower = number(columns.lower, "lower")?;
    let mut upper = number(columns.upper, "upper")?;
    if columns.inclusive {
        let value = row[columns.upper].clone();
        upper = upper.checked_add(1).ok_or(Error::Number { line, column: "end", value })?;
    }
    let size = number(columns.size, "size")?;
    // An empty alignment is none.
    let alignment = match columns.alignment {
        Some(at) if !row[at].is_empty() => number(at, "alignment")?,
        _ => 1,
    };
    if let Some(gaps) = columns.gaps.map(|at| &row[at])
        && !gaps.is_empty()
    {
        return Err(Error::Gaps { line, gaps: gaps.clone() });
    }
    if upper < lower {
        return Err(Error::Reversed { line, lower, upper });
    }
    if alignment == 0 {
        return Err(Error::NoAlignment { line });
    }
    Ok(Buffer { lower, upper, size, alignment })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        read(text).map_or_else(|error| error.to_string(), |_| "no error".to_owned())
    }

    #[test]
    fn columns_may_come_in_any_order_and_blank_lines_are_passed_over() {
        let table =
            read("size,id,upper,lower,alignment\n\n7,a,5,2,64\n8,b,6,3,\n").expect("it is well formed");
        assert_eq!(table.ids, ["a", "b"]);
        assert_eq!(table.buffers[0], Buffer { lower: 2, upper: 5, size: 7, alignment: 64 });
        assert_eq!(table.buffers[1], Buffer { lower: 3, upper: 6, size: 8, alignment: 1 });
    }

    #[test]
    fn the_old_form_counts_the_last_instant() {
        let table = read("buffer,start,end,size\na,2,5,7\n").expect("it is well formed");
        assert_eq!(table.buffers[0], Buffer { lower: 2, upper: 6, size: 7, alignment: 1 });
    }

    #[test]
    fn offsets_replace_those_that_were_there() {
        let text = "id,offset,lower,upper,size,hint\na,99,0,1,4,-1\nb,,0,1,4,3\n";
        let table = read(text).expect("it is well formed");
        assert_eq!(write(&table, &[4, 0]), "id,offset,lower,upper,size,hint\na,4,0,1,4,-1\nb,0,0,1,4,3\n");
    }

    #[test]
    fn an_unknown_column_is_named() {
        assert!(message("id,lower,upper,size,colour\n").contains("unknown column `colour`"));
        assert!(message("id,lower,upper,size,id\n").contains("`id` is there twice"));
        assert!(message("id,lower,start,upper,size\n").contains("`start` is there twice"));
        assert!(message("id,lower,upper\n").contains("no column `size`"));
        assert!(message(" \n").contains("empty"));
    }

    #[test]
    fn a_bad_value_is_named_with_its_line() {
        let rows = |row: &str| message(&format!("id,lower,upper,size,alignment,gaps\na,0,1,4,1,\n{row}\n"));
        assert!(rows("b,0,1,4").starts_with("line 3: 4 values for 6 columns"));
        assert!(rows("b,x,1,4,1,").starts_with("line 3: lower is `x`"));
        assert!(rows("b,0,1,-4,1,").starts_with("line 3: size is `-4`"));
        assert!(rows("b,0,1,18446744073709551616,1,").starts_with("line 3: size"));
        assert!(rows("b,0,1,18446744073709551615,1,").starts_with("line 3: the sizes up to here"));
        assert!(rows("b,3,1,4,1,").starts_with("line 3: the lifespan ends at 1, before it starts at 3"));
        assert!(rows("b,0,1,4,0,").starts_with("line 3: the alignment is 0"));
        assert!(rows("b,0,9,4,1,2-3").starts_with("line 3: gaps `2-3`"));
        assert!(message("buffer,start,end,size\na,0,18446744073709551615,1\n").starts_with("line 2: end"));
    }
}
