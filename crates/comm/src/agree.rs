//! A check at the start: all ranks run the same program, on the same plan, data and limit.

use std::fmt::Write;

use crate::collectives::Collectives;
use crate::communicator::Communicator;
use crate::error::{CommError, Result};

/// What one rank says of itself takes this many bytes.
const ROOM: usize = 4096;

/// A name and a value.
type Field = (String, String);

/// A field as some ranks give it, and which.
type Said<'a> = (Option<&'a Field>, Vec<usize>);

/// Compares named texts of all ranks (a version, a limit, digests of a plan and of data): every rank learns which rank differs in what.
/// Each rank must give the same names in the same order; all of it together has a little less than 4 KiB.
///
/// ```
/// use std::time::Duration;
/// use plimsoll_comm::{agree, local};
/// let ranks = local::ranks(3, Duration::from_secs(10));
/// std::thread::scope(|threads| {
///     for (rank, limit) in ranks.iter().zip(["20GiB", "20GiB", "19GiB"]) {
///         threads.spawn(move || {
///             let why = agree(rank, &[("version", "0.1.0"), ("limit", limit)]).unwrap_err();
///             assert_eq!(
///                 why.to_string(),
///                 "ranks were not started alike: limit is '19GiB' on rank 2 and '20GiB' on ranks 0, 1"
///             );
///         });
///     }
/// });
/// ```
///
/// # Errors
/// Ranks differ, or one fails.
pub fn agree(ranks: &(impl Communicator + ?Sized), fields: &[(&str, &str)]) -> Result<()> {
    let mut text = String::new();
    for (name, value) in fields {
        let clean = |text: &str| text.replace(['\n', '\0'], " ");
        let _ = writeln!(text, "{}={}", clean(name).replace('=', " "), clean(value));
    }
    if text.len() > ROOM {
        return Err(CommError::Start(format!(
            "what ranks compare at their start has {} bytes, and there is room for {ROOM}: give digests of long values",
            text.len()
        )));
    }
    let mut all = vec![0u8; ROOM * ranks.ranks()];
    let own = ROOM * ranks.rank();
    all[own..own + text.len()].copy_from_slice(text.as_bytes());
    ranks.all_gather(&mut all)?;
    let said: Vec<Vec<Field>> = all.chunks(ROOM).map(fields_of).collect();
    let n_fields = said.iter().map(Vec::len).max().unwrap_or(0);
    let differences: Vec<String> = (0..n_fields).filter_map(|field| difference(&said, field)).collect();
    match differences.is_empty() {
        true => Ok(()),
        false => Err(CommError::Disagree(differences.join("; "))),
    }
}

fn fields_of(text: &[u8]) -> Vec<Field> {
    let text = String::from_utf8_lossy(text);
    let fields = text.trim_end_matches('\0').lines().filter_map(|line| line.split_once('='));
    fields.map(|(name, value)| (name.into(), value.into())).collect()
}

/// Who says what of a field, the fewest first; none where all say the same.
fn difference(said: &[Vec<Field>], field: usize) -> Option<String> {
    let mut values: Vec<Said<'_>> = Vec::new();
    for (rank, fields) in said.iter().enumerate() {
        let value = fields.get(field);
        match values.iter_mut().find(|(known, _)| *known == value) {
            Some((_, ranks)) => ranks.push(rank),
            None => values.push((value, vec![rank])),
        }
    }
    if values.len() < 2 {
        return None;
    }
    // Of as many on both sides, rank 0's is the last, as what the others differ from.
    values.sort_by_key(|(_, ranks)| (ranks.len(), ranks[0] == 0));
    let name = values.iter().find_map(|(value, _)| value.map(|(name, _)| name.as_str())).unwrap_or("");
    let text = |(value, ranks): &Said<'_>| {
        let value = match value {
            Some((other, value)) if other == name => format!("'{value}'"),
            Some((other, _)) => format!("missing ('{other}' stands there)"),
            None => "missing".into(),
        };
        let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
        format!("{value} on {} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
    };
    let (last, first) = values.split_last()?;
    let first: Vec<String> = first.iter().map(text).collect();
    Some(format!("{name} is {} and {}", first.join(", "), text(last)))
}
