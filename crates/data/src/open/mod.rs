//! Turns paths into data sets.

mod arrays;
mod folders;
mod parts;

use std::path::Path;

use crate::columns::{Asked, Columns};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::scale::Scale;
use crate::source::{Folder, Form, Images, Shapes, ShapesSource, Shards, Table, Text, Tokens, has_classes};

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
    /// What images become; without it, the size of the first one, in color. Images of other sizes are resized, gray ones
    /// colored and colored ones made gray. JPEG photos are turned upright as their EXIF data says, which TensorFlow does
    /// not do.
    pub images: Option<Images>,
    /// Whether there are labels. Folders of images are classes without a word, and images that lie in the folder itself
    /// have no labels; `Some(false)` takes all images, in folders too, without labels. A column of a table is a label
    /// without a word; with `Some(false)` all are inputs.
    pub labelled: Option<bool>,
    /// The names of classes in the order of their numbers, as a run was trained with; without it, the names of the folders
    /// in their order, those of the training part for both parts. A folder of another name is an error.
    pub classes: Option<Vec<String>>,
    /// The column of a table that is the label; without it, one with a usual name, or the last.
    pub label: Option<String>,
    /// The columns of a table that are read; without it, all. They name the label too.
    pub columns: Option<Columns>,
    /// What the tokens of a text are.
    pub tokens: Tokens,
    /// Tokens in one sample of a text.
    pub window: usize,
    /// What samples are to have, by name; without it, what there is.
    pub fields: Option<Fields>,
    /// What numbers of inputs are multiplied by; without it, see [`Scale`].
    pub scale: Option<Scale>,
}

impl Default for Open {
    fn default() -> Open {
        Open {
            split: Split::Train,
            images: None,
            labelled: None,
            classes: None,
            label: None,
            columns: None,
            tokens: Tokens::Bytes,
            window: 128,
            fields: None,
            scale: None,
        }
    }
}

impl Open {
    /// What is said of scaling: models that take fields by name take bytes as they are.
    fn said_scale(&self) -> Option<Scale> {
        self.scale.or(self.fields.as_ref().map(|_| Scale::None))
    }

    /// Which columns of tables are read.
    fn asked(&self) -> Asked<'_> {
        Asked { label: self.label.as_deref(), labelled: self.labelled, named: self.columns.as_ref() }
    }

    /// How folders of images are read.
    fn form(&self) -> Form {
        Form {
            images: self.images,
            labelled: self.labelled,
            classes: self.classes.clone(),
            scale: self.said_scale().unwrap_or(Scale::Unit),
        }
    }
}

fn unknown(path: &Path, what: impl Into<String>) -> Error {
    Error::Unknown { path: path.display().to_string(), what: what.into() }
}

impl Dataset {
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

    /// Recognises what is at a path: a folder of classes with images (in `train/` and `test/` or not), of images alone, of
    /// `images/` with `masks/` (or `labels/`), of IDX files, of `x.npy` and `y.npy`, of TFRecord files, or of tar archives; a
    /// file `.npz`, `.npy`, `.csv`, `.tsv`, `.tfrecord`, `.tar`, `.txt`, an image or, with the feature of that name (which `plimsoll`
    /// switches on), `.parquet`; or the prefix of a pair of IDX files.
    ///
    /// With [`Open::fields`], samples have what a model takes, by name: arrays of an archive, `.npy` files of a folder,
    /// features of records.
    pub fn open_with(path: impl AsRef<Path>, open: &Open) -> Result<Dataset> {
        let path = path.as_ref();
        open.scale.map(Scale::checked).transpose()?;
        let Some(fields) = &open.fields else { return Dataset::recognised(path, open) };
        let scale = open.said_scale();
        if path.is_dir() {
            let (x, images) = (path.join("x.npy"), has_classes(path));
            if (x.is_file() || !images)
                && let Some(data) = arrays::npy_fields(path, open.split, fields, scale)?
            {
                return Ok(data);
            }
        } else if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz")) {
            return arrays::npz_fields(path, open.split, fields, scale);
        }
        Dataset::recognised(path, open)?.chosen(path, open.split, fields)
    }

    fn recognised(path: &Path, open: &Open) -> Result<Dataset> {
        let scale = open.said_scale();
        let is_table = ["csv", "tsv", "parquet"].iter().any(|known| {
            path.is_file() && path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(known))
        });
        if open.columns.is_some() && !is_table {
            return Err(unknown(path, "columns are chosen of tables (csv, tsv, parquet), and this is none"));
        }
        if open.columns.is_some() && open.label.is_some() {
            return Err(unknown(
                path,
                "the columns that are chosen name the label; leave the other name out",
            ));
        }
        if path.is_dir() {
            return folders::open(path, open);
        }
        if !path.exists() {
            return match arrays::idx_pair(path) {
                Some(_) => arrays::idx(path, scale),
                None => Err(unknown(path, "there is no such file or folder")),
            };
        }
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let ending = name.rsplit('.').next().unwrap_or("");
        match ending {
            "npz" => arrays::npz(path, open.split, scale),
            "npy" => arrays::npy([("x", path)], scale),
            "csv" | "tsv" => Dataset::source(Table::new(path, open.asked())?).scaled(path, open.scale),
            #[cfg(feature = "parquet")]
            "parquet" => {
                Dataset::stream(crate::source::Columnar::new(path, open.asked())?).scaled(path, open.scale)
            }
            #[cfg(not(feature = "parquet"))]
            "parquet" => {
                Err(unknown(path, "Parquet files are read only when built with the feature 'parquet'"))
            }
            "txt" => Dataset::text(path, open.tokens, open.window)?.scaled(path, open.scale),
            "tar" => {
                let scale = scale.unwrap_or(Scale::Unit);
                Ok(Dataset::source(Shards::new(&[path.to_owned()], open.images, scale)?))
            }
            _ if ending.starts_with("tfrecord")
                || name.contains(".tfrecord-")
                || name.ends_with(".tfrecord.gz") =>
            {
                folders::of_records(&[path.to_owned()], open.images, scale)
            }
            _ if plimsoll_formats::image::is_image_name(path) => {
                Ok(Dataset::source(Folder::new(path, &open.form())?))
            }
            _ => {
                let known = "npz, npy, csv, tsv, tfrecord, tar, parquet, txt, jpg, png, gif, bmp, webp";
                let packed = matches!(ending, "gz" | "bz2" | "xz" | "zst" | "zip" | "7z");
                let unpack = if packed { "; it is compressed: unpack it first" } else { "" };
                Err(unknown(path, format!("its name ends in none of {known}{unpack}")))
            }
        }
    }

    /// The same samples with the numbers of `x` scaled as was said.
    fn scaled(self, path: &Path, scale: Option<Scale>) -> Result<Dataset> {
        let Some(scale) = scale.filter(|scale| *scale != Scale::None) else { return Ok(self) };
        let is_number = self.spec()?.first().is_some_and(|field| field.dtype == plimsoll_graph::DType::F32);
        if !is_number {
            return Err(unknown(path, format!("its inputs cannot be {scale}: they are no numbers")));
        }
        let divisor = scale.divisor();
        let mut data = self.map_in_place(move |sample, _| {
            sample.get_mut::<f32>(0)?.iter_mut().for_each(|x| *x /= divisor);
            Ok(())
        });
        data.notes.push(format!("'x': numbers {scale}"));
        Ok(data)
    }

    /// Images in folders, one folder a class: `x` is `f32` from 0 to 1, `y` the number of the class in the order of names;
    /// or images that lie in the folder itself, without labels. Without `images` all become the size of the first.
    pub fn images(path: impl AsRef<Path>, images: Option<Images>) -> Result<Dataset> {
        Ok(Dataset::source(Folder::new(path.as_ref(), &Open { images, ..Open::default() }.form())?))
    }

    /// A table of numbers: `x` has the columns but one, `y` is the label: a whole number, the number of a name in
    /// the order of names, or a float. Rows are read by offset; 8 bytes are kept for each.
    pub fn csv(path: impl AsRef<Path>, label: Option<&str>) -> Result<Dataset> {
        Ok(Dataset::source(Table::new(path.as_ref(), Asked { label, ..Asked::default() })?))
    }

    /// Numbers of a Parquet file, as from a table. It can only be decoded from front to back: a stream.
    #[cfg(feature = "parquet")]
    pub fn parquet(path: impl AsRef<Path>, label: Option<&str>) -> Result<Dataset> {
        Ok(Dataset::stream(crate::source::Columnar::new(path.as_ref(), Asked { label, ..Asked::default() })?))
    }

    /// Records of `tf.train.Example`: the features of the first record are the fields, those named as labels last. Images
    /// are decoded to `f32` from 0 to 1. Records are read by offset; 8 bytes are kept for each. Gzipped files can only be read from
    /// front to back: a stream.
    pub fn tfrecord(paths: impl Into<Vec<std::path::PathBuf>>, images: Option<Images>) -> Result<Dataset> {
        folders::of_records(&paths.into(), images, None)
    }

    /// Tar archives as WebDataset writes them: `NAME.jpg` (or another image) with `NAME.cls`, the number of its class, one behind the
    /// other. `x` is `f32` from 0 to 1, `y` the class; without classes there is only `x`. Samples are read by offset; 32
    /// bytes are kept for each.
    pub fn shards(paths: impl Into<Vec<std::path::PathBuf>>, images: Option<Images>) -> Result<Dataset> {
        Ok(Dataset::source(Shards::new(&paths.into(), images, Scale::Unit)?))
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
}
