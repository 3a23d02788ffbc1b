//! Turns folders into data sets, whatever lies in them.

use std::path::{Path, PathBuf};

use plimsoll_formats::{FileError, tfrecord};

use super::{Open, Split, arrays, unknown};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::scale::Scale;
use crate::source::{
    Folder, Images, Masks, PackedRecords, Records, Shards, folders, has_classes, has_images, has_masks,
};

pub(super) fn open(path: &Path, open: &Open) -> Result<Dataset> {
    let scale = open.said_scale();
    let below = folders(path)?;
    let is_part = |name: &String| {
        [Split::Train, Split::Test].iter().any(|split| split.names().contains(&name.as_str()))
    };
    // A folder named as a part may be a class like others: there is a train among cars and ships.
    let pictured: Vec<&String> = below.iter().filter(|name| has_images(&path.join(name))).collect();
    let are_parts = pictured.iter().all(|name| is_part(name));
    for part in open.split.names() {
        let below = path.join(part);
        let data = if arrays::idx_pair(&below).is_some() {
            arrays::idx(&below, scale)?
        } else if has_masks(&below) || has_classes(&below) || (are_parts && has_images(&below)) {
            pictures(&below, path, open)?
        } else {
            let (x, y) = (path.join(format!("x_{part}.npy")), path.join(format!("y_{part}.npy")));
            if !x.is_file() || !y.is_file() {
                continue;
            }
            arrays::npy([("x", x.as_path()), ("y", y.as_path())], scale)?
        };
        return Ok(data.of_part(open.split));
    }
    let (x, y) = (path.join("x.npy"), path.join("y.npy"));
    if x.is_file() && y.is_file() {
        return arrays::npy([("x", x.as_path()), ("y", y.as_path())], scale);
    }
    // What has parts has this part or not; its parts are no classes.
    let has_parts = below.iter().any(|name| is_part(name) && has_classes(&path.join(name)))
        || (are_parts && !pictured.is_empty());
    if !has_parts && (has_masks(path) || has_classes(path) || has_images(path)) {
        return pictures(path, path, open);
    }
    records(path, open)
}

/// Images with masks, in folders of classes, or alone.
fn pictures(path: &Path, whole: &Path, open: &Open) -> Result<Dataset> {
    let mut form = open.form();
    if has_masks(path) && open.labelled.is_none() && open.classes.is_none() {
        return Ok(Dataset::source(Masks::new(path, &form)?));
    }
    // Numbers of classes must mean the same in both parts, also where one lacks a class.
    let first = Split::Train.names().iter().map(|part| whole.join(part)).find(|part| has_classes(part));
    if let (None, Some(first)) = (&form.classes, first.filter(|_| open.split == Split::Test)) {
        form.classes = Some(folders(&first)?);
    }
    Ok(Dataset::source(Folder::new(path, &form)?))
}

/// Records of files that are all gzipped or all not.
pub(super) fn of_records(paths: &[PathBuf], images: Option<Images>, scale: Option<Scale>) -> Result<Dataset> {
    let gzipped = paths.iter().map(|path| tfrecord::is_gzipped(path)).collect::<Result<Vec<_>, _>>()?;
    match (gzipped.contains(&true), gzipped.contains(&false)) {
        (true, true) => {
            let path = paths.first().map_or(Path::new(""), PathBuf::as_path);
            Err(unknown(path, "some of the TFRecord files are gzipped and some are not; gzip all or none"))
        }
        (true, false) => Ok(Dataset::stream(PackedRecords::new(paths, images, scale)?)),
        (false, _) => Ok(Dataset::source(Records::new(paths, images, scale)?)),
    }
}

/// Files of records or archives of the part that is wanted.
fn records(path: &Path, open: &Open) -> Result<Dataset> {
    let io = |error| FileError::io(path, error);
    let files = std::fs::read_dir(path).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    let names = files.into_iter().map(|file| file.path());
    let name = |path: &PathBuf| {
        path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default()
    };
    let (mut records, mut archives) = (Vec::new(), Vec::new());
    for path in names {
        match name(&path) {
            record if record.contains(".tfrecord") => records.push(path),
            archive if archive.ends_with(".tar") => archives.push(path),
            _ => {}
        }
    }
    if !records.is_empty() && !archives.is_empty() {
        return Err(unknown(
            path,
            "it has TFRecord files and tar archives; keep them in folders of their own",
        ));
    }
    let are_archives = records.is_empty();
    let mut records = if are_archives { archives } else { records };
    records.sort();
    let is_of = |split: Split, path: &PathBuf| split.names().iter().any(|part| name(path).starts_with(part));
    let part: Vec<_> = records.iter().filter(|path| is_of(open.split, path)).cloned().collect();
    let other = if open.split == Split::Train { Split::Test } else { Split::Train };
    let has_parts = records.iter().any(|path| is_of(other, path));
    let is_parted = !part.is_empty();
    let chosen = match (part.is_empty(), records.is_empty() || has_parts) {
        (false, _) => part,
        (true, false) => records,
        _ => {
            let what =
                "it has no images, no IDX files, no x.npy with y.npy, no TFRecord files and no tar archives";
            return Err(unknown(path, format!("{what} of the {:?} part", open.split)));
        }
    };
    let scale = open.said_scale();
    let data = match are_archives {
        true => Dataset::source(Shards::new(&chosen, open.images, scale.unwrap_or(Scale::Unit))?),
        false => of_records(&chosen, open.images, scale)?,
    };
    Ok(if is_parted { data.of_part(open.split) } else { data })
}
