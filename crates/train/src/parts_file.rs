//! Turns a state that ranks have parts of into one file: each rank writes its own bytes where they belong, and none passes another's.
//!
//! In two phases. The first rank makes the file, as long as it will be, with its header; all ranks say whether they see it. Where one does not, because its
//! disk is another, nothing is written this way, and parts are handed to the first. Else each writes and says whether it could. What becomes of the file is the first
//! rank's to do, once all have said so: until then it is in a folder that is not there yet.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_device::Peers;
use plimsoll_formats::safetensors::Reader;
use plimsoll_graph::ops::Rank;
use plimsoll_nn::OfRanks;

use crate::checkpoint::{header, unwritten};
use crate::error::{Error, Result};
use crate::pieces::Staged;
use crate::ranks::failed;

/// The longest path that ranks tell each other.
const PATH_BYTES: usize = 4096;

/// Writes a state into one file, by all ranks at once; `first` is where, on the first rank. Whether it was written: not where ranks do not see the same files.
///
/// # Errors
/// A rank could not write: none of the file counts.
pub(crate) fn write(first: Option<&Path>, parts: &[OfRanks<'_>], ranks: &Arc<dyn Peers>) -> Result<bool> {
    let began = first.map_or(Ok(()), |path| begin(path, parts));
    let Some(path) = path_of_first(first.filter(|_| began.is_ok()), ranks)? else {
        return began.map(|()| false);
    };
    // Where something of the file is not as all know it, it is another file.
    let seen = find(&path, parts);
    if !all(ranks, seen.is_ok())? {
        return Ok(false);
    }
    let done = seen.and_then(|places| write_own(&path, parts, &places, ranks.rank()));
    let is_done = all(ranks, done.is_ok())?;
    done?;
    match is_done {
        true => Ok(true),
        false => Err(unwritten(&path, "another rank could not write its part")),
    }
}

/// A file with the header alone, as long as it will be.
fn begin(path: &Path, parts: &[OfRanks<'_>]) -> Result<()> {
    let mut file = File::create(path).map_err(Error::file(path))?;
    header(&mut file, parts, path)?;
    let start = file.stream_position().map_err(Error::file(path))?;
    let bytes: u64 = parts.iter().map(|part| part.whole.bytes() as u64).sum();
    file.set_len(start + bytes).map_err(Error::file(path))
}

/// Where each part begins in the file.
fn find(path: &Path, parts: &[OfRanks<'_>]) -> Result<Vec<u64>> {
    let reader = Reader::open(path).map_err(|why| unwritten(path, why))?;
    let length = std::fs::metadata(path).map_err(Error::file(path))?.len();
    let all: u64 = reader.tensors().iter().map(|tensor| tensor.bytes as u64).sum();
    let place = |part: &OfRanks<'_>| {
        let tensor = reader.tensor(part.name).map_err(|why| unwritten(path, why))?;
        match tensor.bytes == part.whole.bytes() && length >= all {
            true => Ok(length - all + tensor.offset),
            false => Err(unwritten(path, format!("{} is another one there", part.name))),
        }
    };
    parts.iter().map(place).collect()
}

/// Writes this rank's bytes; those that all ranks have are the first one's to write.
fn write_own(path: &Path, parts: &[OfRanks<'_>], places: &[u64], rank: Rank) -> Result<()> {
    let io = |source| Error::File { path: path.into(), source };
    let mut file = OpenOptions::new().write(true).open(path).map_err(io)?;
    let mut staged = Staged::default();
    for (part, place) in parts.iter().zip(places) {
        let own = match &part.pieces {
            Some(pieces) if !pieces.is_writer(rank.rank) => continue,
            Some(pieces) => pieces.own_within(rank.rank, 0..part.whole.bytes()),
            None if rank.rank == 0 => vec![(0..part.whole.bytes(), 0)],
            None => continue,
        };
        staged.forget();
        for (of_whole, of_part) in own {
            file.seek(SeekFrom::Start(place + of_whole.start as u64)).map_err(io)?;
            staged.read(part.own, of_part..of_part + of_whole.len(), &mut |bytes| {
                file.write_all(bytes).map_err(io)
            })?;
        }
    }
    file.sync_all().map_err(io)
}

/// The first rank's path, on all; nothing where it has none to say.
fn path_of_first(own: Option<&Path>, ranks: &Arc<dyn Peers>) -> Result<Option<PathBuf>> {
    let own = own.and_then(Path::to_str).filter(|path| path.len() < PATH_BYTES);
    let mut text = own.unwrap_or_default().as_bytes().to_vec();
    text.resize(PATH_BYTES, 0);
    ranks.of_rank(0, &mut text).map_err(failed)?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let path = String::from_utf8_lossy(&text[..end]).into_owned();
    Ok((!path.is_empty()).then(|| PathBuf::from(path)))
}

/// Whether all ranks say so.
fn all(ranks: &Arc<dyn Peers>, own: bool) -> Result<bool> {
    Ok(!ranks.any(!own).map_err(failed)?)
}
