//! Turns folders into data sets, whatever lies in them.

use std::path::{Path, PathBuf};

use plimsoll_formats::FileError;

use super::{Open, Split, arrays, unknown};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::source::{Folder, Masks, Records, folders, has_classes, has_images, has_masks};

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

fn records(path: &Path, open: &Open) -> Result<Dataset> {
    let io = |error| FileError::io(path, error);
    let files = std::fs::read_dir(path).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    let names = files.into_iter().map(|file| file.path());
    let name = |path: &PathBuf| {
        path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default()
    };
    let mut records: Vec<_> = names.filter(|path| name(path).contains(".tfrecord")).collect();
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
            let what = "it has no images, no IDX files, no x.npy with y.npy and no TFRecord files";
            return Err(unknown(path, format!("{what} of the {:?} part", open.split)));
        }
    };
    let data = Dataset::source(Records::new(&chosen, open.images, open.said_scale())?);
    Ok(if is_parted { data.of_part(open.split) } else { data })
}
