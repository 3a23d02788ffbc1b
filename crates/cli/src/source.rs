//! Data by name or path: the part to train on, the part held back, and how many classes there are.

use std::path::Path;

use plimsoll::data::{Fields, Images, Open, Shapes, Split};
use plimsoll::keras::KerasModel;
use plimsoll::prelude::*;

use crate::Failure;
use crate::chosen::Purpose;
use crate::config::Config;
use crate::digits;
use crate::keras_file;

/// Samples of a held-back part that is generated.
const HELD_BACK: u64 = 256;

/// Data for a run.
pub struct Source {
    pub train: Dataset,
    pub test: Option<Dataset>,
    /// Classes of the labels, where they are known without looking.
    pub classes: Option<usize>,
    /// The Keras file that the run names, by whose inputs and outputs the data was looked through.
    pub model: Option<KerasModel>,
}

impl Source {
    /// Finds the data that a run names.
    pub fn open(config: &Config, purpose: Purpose) -> Result<Source, Failure> {
        let model = keras_file::keras_model(config)?;
        let fields = model.as_ref().map(|model| keras_file::fields(config, model, purpose)).transpose()?;
        let named = config.data.as_deref().unwrap_or("digits");
        let mut source = match named.split(':').next().unwrap_or_default() {
            "digits" => digits()?,
            "shapes" => shapes(named, config.seed.unwrap_or(42))?,
            _ => files(Path::new(named), config, fields.as_ref())?,
        };
        source.model = model;
        if let Some(path) = &config.validation {
            source.test = Some(part(Path::new(path), config, fields.as_ref(), Split::Test)?);
        }
        if let Some(n) = config.take {
            source.train = source.train.take(n);
            source.test = source.test.map(|test| test.take(n));
        }
        let on_error = config.on_error()?;
        source.train = source.train.on_error(on_error);
        source.test = source.test.map(|test| test.on_error(on_error));
        Ok(source)
    }

    /// The part of the data that is to be used for evaluation or prediction: the held-back one, or all of it.
    pub fn held_back(self) -> Dataset {
        self.test.unwrap_or(self.train)
    }
}

fn digits() -> Result<Source, Failure> {
    let columns = |part: digits::Digits| -> Result<Dataset, Failure> {
        let x = Column::memory("x", part.images, [8, 8, 1])?;
        let y = Column::memory("y", part.labels, [])?;
        Ok(Dataset::columns([x, y])?)
    };
    let (train, test) = (columns(digits::train())?, columns(digits::test())?);
    Ok(Source { train, test: Some(test), classes: Some(10), model: None })
}

fn shapes(named: &str, seed: u64) -> Result<Source, Failure> {
    let number = |text: Option<&str>, default: u64| match text {
        None => Ok(default),
        Some(text) => {
            text.parse().map_err(|_| Failure(format!("'{named}' is no data; write shapes:SIDE:COUNT")))
        }
    };
    let mut parts = named.split(':').skip(1);
    let (side, count) = (number(parts.next(), 64)? as usize, number(parts.next(), 1024)?);
    let make = |count, seed| {
        Dataset::shapes(Shapes { count, height: side, width: side, channels: 3, most: 3, seed })
    };
    let test = make(HELD_BACK.min(count), seed.wrapping_add(1));
    Ok(Source { train: make(count, seed), test: Some(test), classes: Some(Shapes::CLASSES), model: None })
}

fn files(path: &Path, config: &Config, fields: Option<&Fields>) -> Result<Source, Failure> {
    let train = part(path, config, fields, Split::Train)?;
    // What is held back is optional; a path without it is no error.
    let test = part(path, config, fields, Split::Test).ok();
    Ok(Source { train, test, classes: config.classes, model: None })
}

fn part(path: &Path, config: &Config, fields: Option<&Fields>, split: Split) -> Result<Dataset, Failure> {
    let images = config.image.map(|side| Images::new(side, side));
    let mut open = Open { split, images, fields: fields.cloned(), ..Open::default() };
    if let Some(window) = config.sequence {
        open.window = window;
    }
    Ok(Dataset::open_with(path, &open)?)
}

/// The number of classes in the labels: one more than the largest.
pub fn count_classes(data: &Dataset) -> Result<usize, Failure> {
    let mut most = 0;
    let last = data.spec()?.len() - 1;
    // Before the run and under no line yet, so it makes do with little.
    let little = data.clone().batch(64).prefetch(1).workers(1);
    let little = match little.clone().memory(Bytes::mib(1)).declared_bytes() {
        Err(plimsoll::data::Error::Budget { least, .. }) => little.memory(least),
        _ => little.memory(Bytes::mib(1)),
    };
    for batch in little.batches()? {
        let batch = batch?;
        let Some(field) = batch.field(last) else { continue };
        if field.dtype != DType::I64 {
            return Err(Failure(format!("labels are {}, not classes; say --classes", field.dtype)));
        }
        most = field.get::<i64>()?.iter().copied().fold(most, i64::max);
    }
    usize::try_from(most + 1).map_err(|_| Failure("labels are negative; classes count from 0".into()))
}
