//! Turns the name or path of data into the part to train on, the part held back, and where that comes from.

use std::path::Path;

use plimsoll::data::Error as DataError;
use plimsoll::internals::data::{FieldSpec, Fields, Images, Open, Shapes, Split};
use plimsoll::keras::KerasModel;
use plimsoll::nn::zoo;
use plimsoll::prelude::*;
use plimsoll::train::Error as TrainError;

use crate::Failure;
use crate::config::Config;
use crate::form::Form;
use crate::model_setup::Purpose;
use crate::{digits, keras_file, onnx_file, random, tflite_file, torch_file};

/// Samples of a held-back part that is generated.
const HELD_BACK: u64 = 256;

/// The text that comes with the program, for models of text that are tried without one.
const TEXT: &[u8] = include_bytes!("../../../LICENSE-APACHE");

/// What can be done about a sample that cannot be read, to put behind the error that says so; nothing behind others.
pub fn remedy(error: &(dyn std::error::Error + 'static)) -> &'static str {
    if let Some(TrainError::Stopped { cause, .. } | TrainError::Lost { cause, .. }) = error.downcast_ref() {
        return remedy(&**cause);
    }
    let of_training = match error.downcast_ref() {
        Some(TrainError::Data(error)) => Some(error),
        _ => None,
    };
    let is_of_a_sample = error.downcast_ref().or(of_training).is_some_and(DataError::is_of_a_sample);
    if is_of_a_sample { " (--on-error skip leaves such samples out and counts them)" } else { "" }
}

/// Data for a run.
pub struct Source {
    pub train: Dataset,
    pub held_back: Option<HeldBack>,
    /// What the data is, in words.
    pub name: String,
    /// Classes of the labels, where they are known without looking.
    pub classes: Option<usize>,
    /// The names of the classes, where they have names.
    pub class_names: Vec<String>,
    /// Whether it is random numbers of the model's own sizes.
    pub is_random: bool,
    /// The Keras file that the run names, by whose inputs and outputs the data was looked through.
    pub model: Option<KerasModel>,
}

/// Data that is not learned from.
pub struct HeldBack {
    pub data: Dataset,
    /// Where it comes from, in words.
    pub name: String,
}

/// The data that a model is tried on where none is named; none where it takes more than what comes with the program.
pub fn default_data(model: Option<&str>) -> Option<&'static str> {
    match model.unwrap_or("demo") {
        "demo" | "mlp" | "cnn" | "resnet18" => Some("digits"),
        "unet" => Some("shapes:128"),
        "gpt" | "lstm" => Some("text"),
        _ => None,
    }
}

/// Whether data of this name is at a path.
pub fn is_path(name: &str) -> bool {
    !matches!(name.split(':').next(), Some("digits" | "shapes" | "text" | "random"))
}

impl Source {
    /// Finds the data that a run names.
    pub fn open(config: &Config, purpose: Purpose) -> Result<Source, Failure> {
        Source::open_as(config, purpose, None)
    }

    /// Finds the data that is named, in the form that a model was trained with.
    pub fn open_as(config: &Config, purpose: Purpose, form: Option<&Form>) -> Result<Source, Failure> {
        let model = keras_file::keras_model(config)?;
        let fields = match &model {
            Some(model) => Some(keras_file::fields(config, model, purpose)?),
            None => match torch_file::opened(config)? {
                Some(model) => Some(torch_file::fields(config, &model, purpose)),
                None => match onnx_file::unbound(config)? {
                    Some(model) => Some(onnx_file::fields(&model, purpose)),
                    None => tflite_file::fields(config, purpose)?,
                },
            },
        };
        let named = match config.data.as_deref() {
            Some(named) => named,
            None => default_data(config.model.as_deref()).ok_or_else(|| no_data(config))?,
        };
        let request = DataRequest { config, file: model.as_ref(), fields, form, purpose };
        let Parts { train, held_back, classes } = request.open(named)?;
        let class_names = train.class_names().unwrap_or_default();
        let classes = classes.or((!class_names.is_empty()).then_some(class_names.len()));
        let mut source = Source {
            train,
            held_back,
            name: named.into(),
            classes,
            class_names,
            is_random: named == RANDOM,
            model: None,
        };
        source.divide(&request)?;
        source.model = model;
        Ok(source)
    }

    /// Takes and holds back what the settings say.
    fn divide(&mut self, request: &DataRequest<'_>) -> Result<(), Failure> {
        let config = request.config;
        if let Some(named) = &config.validation {
            let Parts { train: all, held_back, .. } = request.open(named)?;
            self.held_back = Some(held_back.unwrap_or(HeldBack { data: all, name: named.clone() }));
        }
        if let Some(n) = config.take {
            self.train = self.train.clone().take(n);
        }
        if let Some(fraction) = config.validation_split {
            let (train, data) = match config.stratified {
                Some(true) => {
                    let label = self.train.spec()?.len().saturating_sub(1);
                    self.train.clone().hold_back_stratified(fraction, label)?
                }
                _ => self.train.clone().hold_back(fraction)?,
            };
            if data.samples()? == Some(0) {
                let n = train.samples()?.unwrap_or(0);
                return Err(Failure(format!(
                    "--validation-split {fraction} of {n} samples is none; hold back more"
                )));
            }
            let name = format!("{} % of {}", 100.0 * fraction, self.name);
            (self.train, self.held_back) = (train, Some(HeldBack { data, name }));
        }
        if let (Some(n), Some(part), None) = (config.take, &mut self.held_back, config.validation_split) {
            part.data = part.data.clone().take(n);
        }
        let on_error = config.on_error()?;
        self.train = self.train.clone().on_error(on_error);
        if let Some(part) = &mut self.held_back {
            part.data = part.data.clone().on_error(on_error);
        }
        Ok(())
    }

    /// The part of the data that is to be used for evaluation or prediction: the held-back one, or all of it; and what it is.
    pub fn into_used(self) -> (Dataset, String) {
        match self.held_back {
            Some(part) => (part.data, part.name),
            None => (self.train, self.name),
        }
    }
}

fn no_data(config: &Config) -> Failure {
    let model = config.model.as_deref().unwrap_or("demo");
    let takes = zoo::find(model)
        .map_or("arrays of the shapes that `plimsoll inspect` shows".into(), |entry| {
            crate::sizes::takes(&entry)
        });
    Failure(format!(
        "{model} takes {takes}; name some with --data (--data random tries its speed and memory without any)"
    ))
}

/// The name of random numbers.
const RANDOM: &str = "random";

/// What is learned from, what is held back, and the number of classes where it is known.
struct Parts {
    train: Dataset,
    held_back: Option<HeldBack>,
    classes: Option<usize>,
}

/// What data is asked for.
struct DataRequest<'a> {
    config: &'a Config,
    file: Option<&'a KerasModel>,
    /// The arrays that the Keras file takes.
    fields: Option<Fields>,
    /// The form that the model was trained with.
    form: Option<&'a Form>,
    purpose: Purpose,
}

impl DataRequest<'_> {
    /// The data of a name.
    fn open(&self, named: &str) -> Result<Parts, Failure> {
        match named.split(':').next().unwrap_or_default() {
            "digits" if named == "digits" => digits(),
            "text" if named == "text" => Ok(text(self.config)),
            RANDOM if named == RANDOM => {
                let (train, classes) = random::open(self.config, self.file, self.purpose)?;
                Ok(Parts { train, held_back: None, classes })
            }
            "shapes" => shapes(named, self.config.seed.unwrap_or(42)),
            _ => self.files(named),
        }
    }

    fn files(&self, named: &str) -> Result<Parts, Failure> {
        let path = Path::new(named);
        let train = self.part(path, Split::Train)?;
        // Data without a part that is marked as held back has none, and all of it is learned from.
        let held_back = match Dataset::has_part(path, Split::Test)? {
            true => {
                let data = self.part(path, Split::Test)?;
                Some(HeldBack { data, name: format!("the held-back part of {named}") })
            }
            false => None,
        };
        Ok(Parts { train, held_back, classes: self.config.classes })
    }

    fn part(&self, path: &Path, split: Split) -> Result<Dataset, Failure> {
        let DataRequest { config, form, .. } = self;
        let seen = |form: &&Form| match form.fields.first().map(|field| &field.shape[..]) {
            Some(&[height, width, channels]) => Some(Images { channels, ..Images::new(height, width) }),
            _ => None,
        };
        let images = form.as_ref().and_then(seen).or(config.image.map(|side| Images::new(side, side)));
        let classes = form.map(|form| form.class_names.clone()).filter(|names| !names.is_empty());
        // Whoever asks for predictions need not know the answers: images in folders are images too.
        let is_guess = form.is_some() && self.purpose == Purpose::Predict;
        let is_chosen = config.columns.is_some() && path.is_file();
        let labelled = (is_guess && (path.is_dir() || is_chosen)).then_some(false);
        let (window, scale, fields) = (window(config), config.scale()?, self.fields.clone());
        let columns = config.columns()?;
        let open =
            Open { split, images, labelled, classes, window, scale, fields, columns, ..Open::default() };
        let data = Dataset::open_with(path, &open)?;
        // A table that has all columns but the label has as many as the model takes.
        let inputs = |data: &Dataset| -> Result<Option<Vec<usize>>, Failure> {
            Ok(data.spec()?.first().map(|field| field.shape.clone()))
        };
        let own = form.and_then(|form| form.fields.first()).map(|field| field.shape.clone());
        if is_guess && path.is_file() && inputs(&data)? != own {
            let unlabelled = Dataset::open_with(path, &Open { labelled: Some(false), ..open })?;
            if inputs(&unlabelled)? == own {
                return Ok(unlabelled);
            }
        }
        Ok(data)
    }
}

fn digits() -> Result<Parts, Failure> {
    let columns = |part: digits::Digits| -> Result<Dataset, Failure> {
        let x = Column::memory("x", part.images, [8, 8, 1])?;
        let y = Column::memory("y", part.labels, [])?;
        Ok(Dataset::columns([x, y])?)
    };
    let held = HeldBack { data: columns(digits::test())?, name: "the held-back part of digits".into() };
    Ok(Parts { train: columns(digits::train())?, held_back: Some(held), classes: Some(10) })
}

fn shapes(named: &str, seed: u64) -> Result<Parts, Failure> {
    let bad = || Failure(format!("'{named}' is no data; write shapes, shapes:SIDE or shapes:SIDE:COUNT"));
    let mut parts =
        named.split(':').skip(1).map(|text| text.parse::<u32>().ok().filter(|&n| n > 0).ok_or_else(bad));
    let side = parts.next().transpose()?.unwrap_or(64) as usize;
    let count = u64::from(parts.next().transpose()?.unwrap_or(1024));
    if parts.next().is_some() || side > 1 << 14 {
        return Err(bad());
    }
    let make = |count, seed| {
        Dataset::shapes(Shapes { count, height: side, width: side, channels: 3, most: 3, seed })
    };
    let data = make(HELD_BACK.min(count), seed.wrapping_add(1));
    let held = HeldBack { data, name: "the held-back part of shapes".into() };
    Ok(Parts { train: make(count, seed), held_back: Some(held), classes: Some(Shapes::CLASSES) })
}

/// Windows of the text that comes with the program; the last tenth is held back.
fn text(config: &Config) -> Parts {
    let window = window(config).min(TEXT.len() / 20);
    let spec = ["x", "y"].map(|name| FieldSpec::new(name, DType::I64, [window]));
    let windows = |text: &'static [u8]| {
        let count = text.len().saturating_sub(1) / window;
        Dataset::from_fn(spec.clone(), count as u64, move |i, out| {
            for (field, begin) in [i as usize * window, i as usize * window + 1].into_iter().enumerate() {
                let tokens: Vec<i64> =
                    text[begin..begin + window].iter().map(|&byte| i64::from(byte)).collect();
                out.set(field, &tokens)?;
            }
            Ok(())
        })
    };
    let (train, held) = TEXT.split_at(TEXT.len() / 10 * 9);
    let held = HeldBack { data: windows(held), name: "the held-back part of text".into() };
    Parts { train: windows(train), held_back: Some(held), classes: Some(128) }
}

/// Tokens of a sequence: as asked for, or as the model has it.
fn window(config: &Config) -> usize {
    let own = || config.model.as_deref().and_then(zoo::find).map(|entry| entry.size.sequence);
    config.sequence.or_else(own).filter(|&n| n > 0).unwrap_or(Open::default().window)
}
