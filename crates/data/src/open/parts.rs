//! Says which parts the data at a path is marked to have, so that nobody takes all of it for a part that was held back.

use std::path::Path;

use plimsoll_formats::npz;

use super::Split;
use super::arrays::idx_pair;
use crate::dataset::Dataset;
use crate::error::Result;

impl Dataset {
    /// Whether the data at a path has a part of this kind by its names: `test/`, `t10k-images-idx3-ubyte`, `x_val.npy`,
    /// `test-00.tfrecord`, or an array `x_test` of an archive. Without one, [`Dataset::open_with`] gives all there is for either.
    pub fn has_part(path: impl AsRef<Path>, split: Split) -> Result<bool> {
        let path = path.as_ref();
        let marks = |stem: &str| split.names().iter().any(|part| stem.ends_with(&format!("_{part}")));
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz")) && path.is_file() {
            return Ok(npz::members(path)?.iter().any(|member| marks(&member.name)));
        }
        if !path.is_dir() {
            return Ok(false);
        }
        if split.names().iter().any(|part| idx_pair(&path.join(part)).is_some() || path.join(part).is_dir()) {
            return Ok(true);
        }
        let io = |error| plimsoll_formats::FileError::io(path, error);
        for file in std::fs::read_dir(path).map_err(io)? {
            let name = file.map_err(io)?.file_name().to_string_lossy().to_lowercase();
            let is_array = name.strip_suffix(".npy").is_some_and(marks);
            let begins = split.names().iter().any(|part| name.starts_with(part));
            if is_array || (begins && (name.contains(".tfrecord") || name.ends_with(".tar"))) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
