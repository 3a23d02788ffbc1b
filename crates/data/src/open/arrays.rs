//! Turns arrays in files (IDX, NumPy) into data sets: by offset where they are stored as they are, else as streams.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::idx::Idx;
use plimsoll_formats::{FileError, npy, npz};

use super::{Split, unknown};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::fields::Fields;
use crate::scale::Scale;
use crate::source::{Arrays, Column, Packed, PackedColumn, ReadAs};

impl Dataset {
    /// Images and labels in IDX files, plain or gzipped: `fashion-mnist/train` stands for
    /// `fashion-mnist/train-images-idx3-ubyte[.gz]` and `fashion-mnist/train-labels-idx1-ubyte[.gz]`, a folder for
    /// the training part in it.
    ///
    /// Samples are `x`, `f32` from 0 to 1 (the stored byte divided by 255) of shape height, width, 1, and `y`, `i64`.
    /// Plain files are read by offset; gzipped ones are streams.
    pub fn idx(path: impl AsRef<Path>) -> Result<Dataset> {
        idx(path.as_ref(), None)
    }

    /// Arrays of a NumPy archive: `x` and `y`, or `x_train` and `y_train` (`x_test` and `y_test`); an archive of other
    /// names gives all its arrays, in the order of the file.
    ///
    /// What `np.savez` stored is read by offset, after its checksum was compared; what `np.savez_compressed` deflated is
    /// a stream, whose checksum is compared at the end of each pass.
    pub fn npz(path: impl AsRef<Path>, split: Split) -> Result<Dataset> {
        npz(path.as_ref(), split, None)
    }

    /// Arrays of a NumPy archive that a model takes, as they are stored; see [`Fields`] for their names.
    pub fn npz_fields(path: impl AsRef<Path>, split: Split, fields: &Fields) -> Result<Dataset> {
        npz_fields(path.as_ref(), split, fields, None)
    }

    /// Arrays in NumPy files, one a field: `[("x", "x.npy"), ("y", "y.npy")]`. Rows are read by offset.
    pub fn npy<'a>(fields: impl IntoIterator<Item = (&'a str, &'a Path)>) -> Result<Dataset> {
        npy(fields, None)
    }
}

/// Reads a pair of IDX files.
pub(super) fn idx(path: &Path, scale: Option<Scale>) -> Result<Dataset> {
    let prefix = if path.is_dir() { path.join("train") } else { path.to_owned() };
    let Some((images, labels)) = idx_pair(&prefix) else {
        let prefix = prefix.display();
        let what =
            format!("there is no {prefix}-images-idx3-ubyte[.gz] with {prefix}-labels-idx1-ubyte[.gz]");
        return Err(unknown(path, what));
    };
    let read = ReadAs { kind: None, scale };
    match (Idx::open(&images)?, Idx::open(&labels)?) {
        (Idx::Plain(x, x_header), Idx::Plain(y, y_header)) => {
            let shape = with_channel(&x_header.shape);
            let x = Column::file("x", x, images, x_header.start, x_header.element, &shape);
            let y = Column::file("y", y, labels, y_header.start, y_header.element, &y_header.shape);
            Dataset::columns([x.read_as(read), y.read_as(read)])
        }
        (x, y) => Ok(Dataset::stream(Packed::new(vec![
            packed_idx("x", images, &x).read_as(read),
            packed_idx("y", labels, &y).read_as(read),
        ])?)),
    }
}

/// Reads the arrays of an archive that their names tell.
pub(super) fn npz(path: &Path, split: Split, scale: Option<Scale>) -> Result<Dataset> {
    let members = npz::members(path)?;
    let find = |name: &str| members.iter().position(|member| member.name == name);
    let pairs = split.names().iter().map(|part| (format!("x_{part}"), format!("y_{part}")));
    let plain = std::iter::once(("x".to_owned(), "y".to_owned()));
    let known = pairs.chain(plain).find_map(|(x, y)| Some(vec![find(&x)?, find(&y)?]));
    let has_splits = members.iter().any(|member| member.name == "x_train" || member.name == "x_test");
    let chosen = match known {
        Some(chosen) => chosen,
        None if has_splits => {
            return Err(unknown(path, format!("it has no arrays for the {split:?} part")));
        }
        None => (0..members.len()).collect(),
    };
    if chosen.is_empty() {
        return Err(unknown(path, "the archive holds no arrays"));
    }
    let left: Vec<&str> =
        (0..members.len()).filter(|at| !chosen.contains(at)).map(|at| members[at].name.as_str()).collect();
    // Arrays of another part are left out by name, which needs no word.
    let other_part = |name: &&str| has_splits && (name.starts_with("x_") || name.starts_with("y_"));
    let left: Vec<&str> = left.into_iter().filter(|name| !other_part(name)).collect();
    let mut members: Vec<_> = chosen.iter().map(|&index| members[index].clone()).collect::<Vec<_>>();
    for member in &mut members {
        // Both parts have the same fields.
        if let Some((name @ ("x" | "y"), _)) = member.name.split_once('_') {
            member.name = name.to_owned();
        }
    }
    let reads = vec![ReadAs { kind: None, scale }; members.len()];
    let mut data = npz_members(path, members, &reads)?;
    if has_splits {
        data = data.of_part(split);
    }
    if !left.is_empty() {
        data.notes.push(format!("arrays of {} that are not used: {}", path.display(), left.join(", ")));
    }
    Ok(data)
}

/// Reads the arrays of an archive that are asked for.
pub(super) fn npz_fields(
    path: &Path,
    split: Split,
    fields: &Fields,
    scale: Option<Scale>,
) -> Result<Dataset> {
    let members = npz::members(path)?;
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    let chosen = fields.find(&names, split).map_err(|what| unknown(path, what))?;
    let is_parted = is_parted(&names);
    let members = chosen.iter().map(|&index| members[index].clone()).collect();
    let reads: Vec<_> = fields.all().map(|wanted| ReadAs { kind: Some(wanted.kind), scale }).collect();
    let data = npz_members(path, members, &reads)?;
    Ok(if is_parted { data.of_part(split) } else { data })
}

/// Reads NumPy files of a folder that a model takes; see [`Fields`] for their names. `None` if there are no such files.
pub(super) fn npy_fields(
    folder: &Path,
    split: Split,
    fields: &Fields,
    scale: Option<Scale>,
) -> Result<Option<Dataset>> {
    let io = |error| FileError::io(folder, error);
    let files = std::fs::read_dir(folder).map_err(io)?.filter_map(|file| Some(file.ok()?.path()));
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "npy")).collect();
    files.sort();
    let names: Vec<&str> = files.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
    if names.is_empty() || names.len() != files.len() {
        return Ok(None);
    }
    let chosen = fields.find(&names, split).map_err(|what| unknown(folder, what))?;
    let mut columns = Vec::new();
    for (&index, wanted) in chosen.iter().zip(fields.all()) {
        let (file, header) = npy::Header::of_file(&files[index])?;
        let path = files[index].clone();
        let column = Column::file(names[index], file, path, header.start, header.element, &header.shape);
        columns.push(column.read_as(ReadAs { kind: Some(wanted.kind), scale }));
    }
    let data = Dataset::columns(columns)?;
    Ok(Some(if is_parted(&names) { data.of_part(split) } else { data }))
}

/// Whether names say to which part their arrays belong.
fn is_parted(names: &[&str]) -> bool {
    let of = |split: Split, name: &str| split.names().iter().any(|part| name.ends_with(&format!("_{part}")));
    names.iter().any(|name| of(Split::Train, name) || of(Split::Test, name))
}

/// Reads NumPy files, one a field.
pub(super) fn npy<'a>(
    fields: impl IntoIterator<Item = (&'a str, &'a Path)>,
    scale: Option<Scale>,
) -> Result<Dataset> {
    let mut columns = Vec::new();
    for (name, path) in fields {
        let (file, header) = npy::Header::of_file(path)?;
        let column = Column::file(name, file, path.into(), header.start, header.element, &header.shape);
        columns.push(column.read_as(ReadAs { kind: None, scale }));
    }
    Dataset::columns(columns)
}

/// Arrays of an archive, by offset where all were stored as they are.
fn npz_members(path: &Path, members: Vec<npz::Member>, reads: &[ReadAs]) -> Result<Dataset> {
    // Checksums of what is inflated are compared when its end is reached.
    members.iter().try_for_each(|member| member.verify(path))?;
    if members.iter().all(|member| member.offset.is_some()) {
        let mut columns = Vec::new();
        for (member, read) in members.iter().zip(reads) {
            let file = std::fs::File::open(path).map_err(|error| FileError::io(path, error))?;
            let (start, header) = (member.offset.unwrap_or(0), &member.header);
            let column = Column::file(&member.name, file, path.into(), start, header.element, &header.shape);
            columns.push(column.read_as(*read));
        }
        return Ok(Dataset::source(Arrays::new(columns)?));
    }
    let packed = |(member, read): (npz::Member, &ReadAs)| packed_npz(path, member).read_as(*read);
    Ok(Dataset::stream(Packed::new(members.into_iter().zip(reads).map(packed).collect())?))
}

/// The files of images and labels with this prefix.
pub(super) fn idx_pair(prefix: &Path) -> Option<(PathBuf, PathBuf)> {
    let with = |rest: &str| {
        let mut name = prefix.as_os_str().to_owned();
        name.push(rest);
        PathBuf::from(name)
    };
    let find = |rests: &[&str]| {
        let endings = ["", ".gz"].iter().flat_map(|end| rests.iter().map(move |rest| format!("{rest}{end}")));
        endings.map(|rest| with(&rest)).find(|path| path.is_file())
    };
    Some((
        find(&["-images-idx3-ubyte", "-images-idx4-ubyte", "-images.idx3-ubyte"])?,
        find(&["-labels-idx1-ubyte", "-labels.idx1-ubyte"])?,
    ))
}

/// Images in rows and columns get an axis of one channel, which convolutions expect.
fn with_channel(shape: &[usize]) -> Vec<usize> {
    match shape {
        [_, _, _] => [shape, &[1]].concat(),
        _ => shape.to_vec(),
    }
}

fn packed_idx(name: &str, path: PathBuf, idx: &Idx) -> PackedColumn {
    let (mut header, again) = (idx.header().clone(), path.clone());
    if name == "x" {
        header.shape = with_channel(&header.shape);
    }
    let open = move || -> Result<Box<dyn std::io::Read + Send>> {
        Ok(match Idx::open(&again)? {
            Idx::Plain(file, _) => Box::new(std::io::BufReader::new(file)),
            Idx::Gzip(reader, _) => reader,
        })
    };
    PackedColumn::new(name, path, header.element, &header.shape, Arc::new(open))
}

fn packed_npz(path: &Path, member: npz::Member) -> PackedColumn {
    use std::io::{Read, Seek, SeekFrom};
    let (element, shape, name) = (member.header.element, member.header.shape.clone(), member.name.clone());
    let bytes = member.header.bytes;
    let again = path.to_owned();
    let open = move || -> Result<Box<dyn Read + Send>> {
        let io = |error| FileError::io(&again, error);
        Ok(match member.offset {
            Some(offset) => {
                let mut file = std::fs::File::open(&again).map_err(io)?;
                file.seek(SeekFrom::Start(offset)).map_err(io)?;
                Box::new(std::io::BufReader::new(file.take(bytes)))
            }
            None => Box::new(npz::Inflate::open(&again, &member)?),
        })
    };
    PackedColumn::new(&name, path.into(), element, &shape, Arc::new(open))
}
