//! Turns paths into data sets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::idx::Idx;
use plimsoll_formats::{npy, npz};

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::scale::Scale;
use crate::source::{
    Arrays, Column, Folder, Images, Packed, PackedColumn, ReadAs, Records, Shapes, ShapesSource, Table, Text,
    Tokens, has_classes,
};

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// What is learned from.
    Train,
    /// What is held back.
    Test,
}

impl Split {
    /// Names that files and folders of this part begin with.
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            Split::Train => &["train"],
            Split::Test => &["test", "t10k", "val", "valid"],
        }
    }
}

/// How [`Dataset::open_with`] reads what it finds.
#[derive(Clone, Debug)]
pub struct Open {
    /// Which part, where a data set has several.
    pub split: Split,
    /// What images become; without it, the size of the first one.
    pub images: Option<Images>,
    /// The column of a table that is the label; without it, one with a usual name, or the last.
    pub label: Option<String>,
    /// What the tokens of a text are.
    pub tokens: Tokens,
    /// Tokens in one sample of a text.
    pub window: usize,
    /// What samples are to have, by name; without it, what there is.
    pub fields: Option<Fields>,
    /// What numbers of inputs are multiplied by; without it, see [`Scale`].
    pub scale: Option<Scale>,
}

impl Open {
    /// What is said of scaling: models that take fields by name take bytes as they are.
    fn said_scale(&self) -> Option<Scale> {
        self.scale.or(self.fields.as_ref().map(|_| Scale::None))
    }
}

impl Default for Open {
    fn default() -> Open {
        Open {
            split: Split::Train,
            images: None,
            label: None,
            tokens: Tokens::Bytes,
            window: 128,
            fields: None,
            scale: None,
        }
    }
}

fn unknown(path: &Path, what: impl Into<String>) -> Error {
    Error::Unknown { path: path.display().to_string(), what: what.into() }
}

impl Dataset {
    /// Images and labels in IDX files, plain or gzipped: `fashion-mnist/train` stands for
    /// `fashion-mnist/train-images-idx3-ubyte[.gz]` and `fashion-mnist/train-labels-idx1-ubyte[.gz]`, a folder for
    /// the training part in it.
    ///
    /// Samples are `x`, `f32` from 0 to 1 (the stored byte divided by 255) of shape height, width, 1, and `y`, `i64`. Plain files are read by
    /// offset; gzipped ones are streams.
    pub fn idx(path: impl AsRef<Path>) -> Result<Dataset> {
        let path = path.as_ref();
        let prefix = if path.is_dir() { path.join("train") } else { path.to_owned() };
        let Some((images, labels)) = idx_pair(&prefix) else {
            let prefix = prefix.display();
            let what =
                format!("there is no {prefix}-images-idx3-ubyte[.gz] with {prefix}-labels-idx1-ubyte[.gz]");
            return Err(unknown(path, what));
        };
        match (Idx::open(&images)?, Idx::open(&labels)?) {
            (Idx::Plain(x, x_header), Idx::Plain(y, y_header)) => {
                let shape = with_channel(&x_header.shape);
                let x = Column::file("x", x, images, x_header.start, x_header.element, &shape);
                let y = Column::file("y", y, labels, y_header.start, y_header.element, &y_header.shape);
                Dataset::columns([x, y])
            }
            (x, y) => Ok(Dataset::stream(Packed::new(vec![
                packed_idx("x", images, &x),
                packed_idx("y", labels, &y),
            ])?)),
        }
    }

    /// Arrays of a NumPy archive: `x` and `y`, or `x_train` and `y_train` (`x_test` and `y_test`); an archive of other
    /// names gives all its arrays, in the order of the file.
    ///
    /// What `np.savez` stored is read by offset; what `np.savez_compressed` deflated is a stream.
    pub fn npz(path: impl AsRef<Path>, split: Split) -> Result<Dataset> {
        let path = path.as_ref();
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
        let mut members: Vec<_> = chosen.iter().map(|&index| members[index].clone()).collect::<Vec<_>>();
        for member in &mut members {
            // Both parts have the same fields.
            if let Some((name @ ("x" | "y"), _)) = member.name.split_once('_') {
                member.name = name.to_owned();
            }
        }
        npz_members(path, members, &[])
    }

    /// Arrays of a NumPy archive that a model takes; see [`Fields`] for their names.
    pub fn npz_fields(path: impl AsRef<Path>, split: Split, fields: &Fields) -> Result<Dataset> {
        let path = path.as_ref();
        let members = npz::members(path)?;
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        let chosen = fields.find(&names, split).map_err(|what| unknown(path, what))?;
        let members = chosen.iter().map(|&index| members[index].clone()).collect();
        npz_members(path, members, &fields.all().map(|wanted| wanted.kind).collect::<Vec<_>>())
    }

    /// NumPy files of a folder that a model takes; see [`Fields`] for their names. `None` if there are no such files.
    fn npy_fields(folder: &Path, split: Split, fields: &Fields) -> Result<Option<Dataset>> {
        let io = |error| plimsoll_formats::FileError::io(folder, error);
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
            columns.push(column.read_as(ReadAs { kind: Some(wanted.kind), scale: None }));
        }
        Dataset::columns(columns).map(Some)
    }

    /// The same samples with these of their fields, in this order. The first ones in their own order are left as they are.
    fn chosen(self, path: &Path, split: Split, fields: &Fields) -> Result<Dataset> {
        let spec = self.spec()?;
        let names: Vec<&str> = spec.iter().map(|field| field.name.as_str()).collect();
        let chosen = fields.find(&names, split).map_err(|what| unknown(path, what))?;
        let is_start = chosen.iter().enumerate().all(|(i, &index)| i == index);
        if is_start && (chosen.len() == spec.len() || fields.labels.is_empty()) {
            return Ok(self);
        }
        let wanted: Vec<_> = chosen.iter().map(|&index| spec[index].clone()).collect();
        Ok(self.map(wanted, move |sample, out, _| {
            for (field, &index) in chosen.iter().enumerate() {
                let bytes = sample.bytes(index);
                out.bytes_mut(field)[..bytes.len()].copy_from_slice(bytes);
                out.lens[field] = sample.lens[index];
            }
            Ok(())
        }))
    }

    /// The training part of whatever is at a path; see [`Dataset::open_with`].
    pub fn open(path: impl AsRef<Path>) -> Result<Dataset> {
        Dataset::open_with(path, &Open::default())
    }

    /// Recognises what is at a path: a folder of classes with images (in `train/` and `test/` or not), of IDX files, of
    /// `x.npy` and `y.npy`, or of TFRecord files; a file `.npz`, `.npy`, `.csv`, `.tfrecord`, `.txt` or, with the
    /// feature of that name, `.parquet`; or the prefix of
    /// a pair of IDX files.
    ///
    /// With [`Open::fields`], samples have what a model takes, by name: arrays of an archive, `.npy` files of a folder,
    /// features of records.
    pub fn open_with(path: impl AsRef<Path>, open: &Open) -> Result<Dataset> {
        let path = path.as_ref();
        let Some(fields) = &open.fields else { return Dataset::recognised(path, open) };
        if path.is_dir() {
            let (x, images) = (path.join("x.npy"), has_classes(path));
            if (x.is_file() || !images)
                && let Some(data) = Dataset::npy_fields(path, open.split, fields)?
            {
                return Ok(data);
            }
        } else if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz")) {
            return Dataset::npz_fields(path, open.split, fields);
        }
        Dataset::recognised(path, open)?.chosen(path, open.split, fields)
    }

    fn recognised(path: &Path, open: &Open) -> Result<Dataset> {
        if path.is_dir() {
            return open_folder(path, open);
        }
        if !path.exists() {
            return match idx_pair(path) {
                Some(_) => Dataset::idx(path),
                None => Err(unknown(path, "there is no such file or folder")),
            };
        }
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let ending = name.rsplit('.').next().unwrap_or("");
        match ending {
            "npz" => Dataset::npz(path, open.split),
            "npy" => Dataset::npy([("x", path)]),
            "csv" => Dataset::csv(path, open.label.as_deref()),
            #[cfg(feature = "parquet")]
            "parquet" => Dataset::parquet(path, open.label.as_deref()),
            #[cfg(not(feature = "parquet"))]
            "parquet" => {
                Err(unknown(path, "Parquet files are read only when built with the feature 'parquet'"))
            }
            "txt" => Dataset::text(path, open.tokens, open.window),
            _ if ending.starts_with("tfrecord") || name.contains(".tfrecord-") => {
                Dataset::tfrecord([path.to_owned()], open.images)
            }
            _ => Err(unknown(path, "its name ends in none of npz, npy, csv, tfrecord, parquet, txt")),
        }
    }

    /// Images in folders, one folder a class: `x` is `f32` from 0 to 1, `y` the number of the class in the order of names.
    /// Without `images` all become the size of the first.
    pub fn images(path: impl AsRef<Path>, images: Option<Images>) -> Result<Dataset> {
        Ok(Dataset::source(Folder::new(path.as_ref(), images)?))
    }

    /// A table of numbers: `x` has the columns but one, `y` is the label: a whole number, the number of a name in
    /// the order of names, or a float. Rows are read by offset; 8 bytes are kept for each.
    pub fn csv(path: impl AsRef<Path>, label: Option<&str>) -> Result<Dataset> {
        Ok(Dataset::source(Table::new(path.as_ref(), label)?))
    }

    /// Numbers of a Parquet file, as from a table. It can only be decoded from front to back: a stream.
    #[cfg(feature = "parquet")]
    pub fn parquet(path: impl AsRef<Path>, label: Option<&str>) -> Result<Dataset> {
        let table = plimsoll_formats::parquet::Table::open(path.as_ref())?;
        Ok(Dataset::stream(crate::source::Columnar::new(table, label)?))
    }

    /// Records of `tf.train.Example`: the features of the first record are the fields, those named as labels last. Images
    /// are decoded to `f32` from 0 to 1. Records are read by offset; 8 bytes are kept for each.
    pub fn tfrecord(paths: impl Into<Vec<PathBuf>>, images: Option<Images>) -> Result<Dataset> {
        Ok(Dataset::source(Records::new(&paths.into(), images)?))
    }

    /// Windows of a text: `x` has `window` tokens as `i64`, `y` those one later.
    pub fn text(path: impl AsRef<Path>, tokens: Tokens, window: usize) -> Result<Dataset> {
        Ok(Dataset::source(Text::new(path.as_ref(), tokens, window)?))
    }

    /// Generated images for segmentation: `x` is `f32` from 0 to 1, `y` the class of every pixel.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Shapes};
    ///
    /// let shapes = Shapes { count: 8, height: 32, width: 32, channels: 3, most: 3, seed: 1 };
    /// let batch = Dataset::shapes(shapes).batch(8).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(1).unwrap().shape[..], [8, 32, 32]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    pub fn shapes(shapes: Shapes) -> Dataset {
        Dataset::source(ShapesSource::new(shapes))
    }

    /// Arrays in NumPy files, one a field: `[("x", "x.npy"), ("y", "y.npy")]`. Rows are read by offset.
    pub fn npy<'a>(fields: impl IntoIterator<Item = (&'a str, &'a Path)>) -> Result<Dataset> {
        let mut columns = Vec::new();
        for (name, path) in fields {
            let (file, header) = npy::Header::of_file(path)?;
            columns.push(Column::file(name, file, path.into(), header.start, header.element, &header.shape));
        }
        Dataset::columns(columns)
    }
}

/// Arrays of an archive, by offset where all were stored as they are. Kinds, where there are any, are one for each.
fn npz_members(path: &Path, members: Vec<npz::Member>, kinds: &[crate::FieldKind]) -> Result<Dataset> {
    if members.iter().all(|member| member.offset.is_some()) {
        let mut columns = Vec::new();
        for (i, member) in members.iter().enumerate() {
            let file =
                std::fs::File::open(path).map_err(|error| plimsoll_formats::FileError::io(path, error))?;
            let (start, header) = (member.offset.unwrap_or(0), &member.header);
            let column = Column::file(&member.name, file, path.into(), start, header.element, &header.shape);
            columns.push(match kinds.get(i) {
                Some(&kind) => column.read_as(ReadAs { kind: Some(kind), scale: None }),
                None => column,
            });
        }
        return Ok(Dataset::source(Arrays::new(columns)?));
    }
    let packed = |(i, member): (usize, npz::Member)| match kinds.get(i) {
        Some(&kind) => packed_npz(path, member).read_as(ReadAs { kind: Some(kind), scale: None }),
        None => packed_npz(path, member),
    };
    Ok(Dataset::stream(Packed::new(members.into_iter().enumerate().map(packed).collect())?))
}

fn open_folder(path: &Path, open: &Open) -> Result<Dataset> {
    for part in open.split.names() {
        if idx_pair(&path.join(part)).is_some() {
            return Dataset::idx(path.join(part));
        }
        if has_classes(&path.join(part)) {
            return Dataset::images(path.join(part), open.images);
        }
        let (x, y) = (path.join(format!("x_{part}.npy")), path.join(format!("y_{part}.npy")));
        if x.is_file() && y.is_file() {
            return Dataset::npy([("x", x.as_path()), ("y", y.as_path())]);
        }
    }
    let (x, y) = (path.join("x.npy"), path.join("y.npy"));
    if x.is_file() && y.is_file() {
        return Dataset::npy([("x", x.as_path()), ("y", y.as_path())]);
    }
    if has_classes(path) {
        return Dataset::images(path, open.images);
    }
    let files = std::fs::read_dir(path).map_err(|error| plimsoll_formats::FileError::io(path, error))?;
    let names = files.filter_map(Result::ok).map(|file| file.path());
    let is_record = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        name.contains(".tfrecord")
    };
    let mut records: Vec<_> = names.filter(is_record).collect();
    records.sort();
    let of_part = |path: &&PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        open.split.names().iter().any(|part| name.starts_with(part))
    };
    let part: Vec<_> = records.iter().filter(of_part).cloned().collect();
    match (part.is_empty(), records.is_empty()) {
        (false, _) => Dataset::tfrecord(part, open.images),
        (true, false) => Dataset::tfrecord(records, open.images),
        _ => {
            let what = "it has no folders of images, no IDX files, no x.npy with y.npy and no TFRecord files";
            Err(unknown(path, format!("{what} of the {:?} part", open.split)))
        }
    }
}

/// The files of images and labels with this prefix.
fn idx_pair(prefix: &Path) -> Option<(PathBuf, PathBuf)> {
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
    use std::io::{Seek, SeekFrom};
    let (element, shape, name) = (member.header.element, member.header.shape.clone(), member.name.clone());
    let again = path.to_owned();
    let open = move || -> Result<Box<dyn std::io::Read + Send>> {
        let io = |error| plimsoll_formats::FileError::io(&again, error);
        Ok(match member.offset {
            Some(offset) => {
                let mut file = std::fs::File::open(&again).map_err(io)?;
                file.seek(SeekFrom::Start(offset)).map_err(io)?;
                Box::new(std::io::BufReader::new(file))
            }
            None => Box::new(npz::Inflate::open(&again, &member)?),
        })
    };
    PackedColumn::new(&name, path.into(), element, &shape, Arc::new(open))
}
