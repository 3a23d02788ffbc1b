//! Turns a `.keras` archive into its two JSON texts and the bytes of its weights.
//!
//! Keras stores the members without compression, so the weights are read straight from their place in the archive. A
//! compressed archive (people re-zip them) is inflated into memory, within the limits.

use super::bytes::{Bytes, Cursor};
use super::{Limits, Reason};
use std::io::{self, Read};
use zip::{CompressionMethod, ZipArchive};

pub(super) const CONFIG: &str = "config.json";
pub(super) const METADATA: &str = "metadata.json";
pub(super) const WEIGHTS: &str = "model.weights.h5";

pub(super) struct Archive {
    pub config: String,
    pub metadata: String,
    pub weights: Bytes,
}

pub(super) fn open(bytes: &Bytes, limits: &Limits) -> Result<Archive, Reason> {
    let broken = |e: zip::result::ZipError| Reason::member("", format!("the archive is broken: {e}"));
    let mut zip = ZipArchive::new(io::BufReader::new(Cursor::new(bytes.clone()))).map_err(broken)?;
    if zip.len() as u64 > limits.members {
        return Err(Reason::limit("the number of archive members", zip.len() as u64, limits.members));
    }
    if zip.has_duplicate_names() {
        return Err(Reason::member("", "two members have the same name"));
    }
    for i in 0..zip.len() {
        let member = zip.by_index_raw(i).map_err(broken)?;
        // Nothing is ever extracted, but a name that leaves the archive says that its maker meant harm.
        let name = String::from_utf8_lossy(member.name_raw()).into_owned();
        if leads_out(&name) || member.is_symlink() {
            return Err(Reason::member(&name, "its name leads out of the archive"));
        }
    }
    let config = text(&mut zip, CONFIG, limits)?.ok_or_else(|| Reason::member(CONFIG, "it is missing"))?;
    let metadata = text(&mut zip, METADATA, limits)?.unwrap_or_default();
    let weights = weights(&mut zip, bytes, limits)?;
    Ok(Archive { config, metadata, weights })
}

fn leads_out(name: &str) -> bool {
    name.starts_with(['/', '\\'])
        || name.contains([':', '\0'])
        || name.split(['/', '\\']).any(|piece| piece == "..")
}

type Zip = ZipArchive<io::BufReader<Cursor>>;

/// A member's index after its announced sizes have been found acceptable.
fn find(zip: &mut Zip, name: &str, limit: u64, limits: &Limits) -> Result<Option<usize>, Reason> {
    let Some(index) = zip.index_for_name(name) else { return Ok(None) };
    let member = zip.by_index_raw(index).map_err(|e| Reason::member(name, e))?;
    if member.encrypted() {
        return Err(Reason::member(name, "it is encrypted"));
    }
    if member.size() > limit {
        return Err(Reason::limit(&format!("the size of {name}"), member.size(), limit));
    }
    let ratio = member.size() / member.compressed_size().max(1);
    if ratio > limits.expansion {
        return Err(Reason::limit(&format!("the expansion of {name}"), ratio, limits.expansion));
    }
    Ok(Some(index))
}

fn text(zip: &mut Zip, name: &str, limits: &Limits) -> Result<Option<String>, Reason> {
    let Some(index) = find(zip, name, limits.json, limits)? else { return Ok(None) };
    let bytes = inflate(zip, index, name, limits.json)?;
    String::from_utf8(bytes).map(Some).map_err(|_| Reason::member(name, "it is not text in UTF-8"))
}

/// Reads a member into memory; the bytes that come out count, not those announced.
fn inflate(zip: &mut Zip, index: usize, name: &str, limit: u64) -> Result<Vec<u8>, Reason> {
    let member = zip.by_index(index).map_err(|e| Reason::member(name, e))?;
    let mut bytes = Vec::new();
    member.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| Reason::member(name, e))?;
    if bytes.len() as u64 > limit {
        return Err(Reason::limit(&format!("the size of {name}"), bytes.len() as u64, limit));
    }
    Ok(bytes)
}

fn weights(zip: &mut Zip, bytes: &Bytes, limits: &Limits) -> Result<Bytes, Reason> {
    let Some(index) = find(zip, WEIGHTS, u64::MAX, limits)? else {
        let is_sharded = zip.index_for_name("model.weights.json").is_some();
        let why = match is_sharded {
            true => {
                "it is missing, for the weights are spread over several files (shards); save the model without max_shard_size"
            }
            false => {
                "it is missing; weights in other forms are not read, so save the model with Keras's own save"
            }
        };
        return Err(Reason::member(WEIGHTS, why));
    };
    let mut member = zip.by_index(index).map_err(|e| Reason::member(WEIGHTS, e))?;
    if member.compression() == CompressionMethod::Stored {
        let place = member.data_start().ok_or_else(|| Reason::member(WEIGHTS, "its place is unknown"))?;
        let size = member.size();
        // One pass over the member lets the archive's checksum speak before any weight is believed.
        io::copy(&mut member, &mut io::sink()).map_err(|e| Reason::member(WEIGHTS, e))?;
        return bytes.range(place, size).map_err(|e| Reason::member(WEIGHTS, e));
    }
    drop(member);
    let inflated = inflate(zip, index, WEIGHTS, limits.inflated)?;
    Ok(Bytes::new(Box::new(io::Cursor::new(inflated)))?)
}
