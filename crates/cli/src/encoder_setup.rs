//! Turns settings and the folder of an encoder (BERT, RoBERTa, DistilBERT, ViT) into a model and a trainer: for `tune` and `plan` alike.

use std::path::Path;

use plimsoll::data::{Draw, FieldSpec, Random};
use plimsoll::hub::{Encoder, EncoderConfig, EncoderInput, LABELLED_FIELDS, Task, TokenLoss};
use plimsoll::internals::data::{Images, Open, Scale};
use plimsoll::prelude::*;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::config::Config;
use crate::decoder_setup::{self, TrainedModel};
use crate::lora_args::LoraArgs;

/// Tokens of a row where nothing is said, as far as the model has positions.
const SEQUENCE: usize = 128;
/// Samples of a step where nothing is said.
const BATCH: usize = 16;

/// What an encoder is to say.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncoderArgs {
    /// What the head of an encoder says. A head that the files do not have begins anew. [default: as config.json has it]
    #[arg(long, value_enum, help_heading = "Encoders")]
    pub task: Option<TaskName>,
    /// The labels of an encoder in the order of their numbers, with commas. [default: those of config.json; of pictures, the folders of the
    /// data where those have other names]
    #[arg(long, value_name = "LABEL,…", help_heading = "Encoders")]
    pub labels: Option<String>,
}

/// The tasks of encoders.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskName {
    /// Words that are hidden.
    MaskedWords,
    /// One label a text.
    Sequence,
    /// One label a word.
    Tokens,
    /// One label a picture.
    Image,
}

impl EncoderArgs {
    pub fn is_asked(&self) -> bool {
        *self != EncoderArgs::default()
    }

    fn task(&self) -> Option<Task> {
        self.task.map(|task| match task {
            TaskName::MaskedWords => Task::MaskedWords,
            TaskName::Sequence => Task::Sequence,
            TaskName::Tokens => Task::Tokens,
            TaskName::Image => Task::Image,
        })
    }

    fn labels(&self) -> Result<Option<Vec<String>>, Failure> {
        let Some(named) = &self.labels else { return Ok(None) };
        let labels: Vec<String> = named.split(',').map(|label| label.trim().to_string()).collect();
        let is_twice = |(i, label): (usize, &String)| label.is_empty() || labels[..i].contains(label);
        match labels.iter().enumerate().any(is_twice) {
            true => Err(Failure(format!("--labels {named}: a label is empty or there twice"))),
            false => Ok(Some(labels)),
        }
    }

    /// The encoder of a folder's config alone.
    pub fn described(&self, folder: &Path, lora: &LoraArgs) -> Result<Encoder, Failure> {
        if lora.is_asked() {
            let why = "adapters and --base are for models that say what follows; an encoder is tuned whole, or in part with --train";
            return Err(Failure(why.into()));
        }
        Ok(Encoder { config: EncoderConfig::open(folder, self.task(), self.labels()?)? })
    }
}

/// An encoder with what is asked of its training.
pub struct EncoderSetup {
    pub encoder: Encoder,
    pub batch: usize,
    /// Tokens of a row; of pictures, patches.
    pub sequence: usize,
    /// What it tunes, in words.
    pub tuned: String,
}

impl EncoderSetup {
    pub fn new(config: &Config, encoder: Encoder) -> Result<EncoderSetup, Failure> {
        decoder_setup::check(config)?;
        let context = encoder.config.context();
        let is_text = matches!(encoder.config.input, EncoderInput::Text { .. });
        let sequence = match (is_text, config.sequence) {
            (true, asked) => decoder_setup::sequence(asked, SEQUENCE, context)?,
            (false, None) => context,
            (false, Some(_)) => return Err(Failure("--sequence is not for pictures; leave it out".into())),
        };
        let tuned = decoder_setup::named_weights(config);
        Ok(EncoderSetup { batch: decoder_setup::batch(config, BATCH)?, sequence, tuned, encoder })
    }

    /// A trainer on a device, for so many steps.
    pub fn trainer(&self, config: &Config, device: &Device, steps: u64) -> Result<Trainer, Failure> {
        let labels = if self.is_image() { 1 } else { 2 };
        let whole = TrainedModel {
            model: self.encoder.clone(),
            loss: TokenLoss::default(),
            labels,
            rate: 2e-5,
            is_whole: true,
        };
        whole.trainer(config, device, steps)
    }

    pub fn is_image(&self) -> bool {
        self.encoder.config.task == Task::Image
    }

    /// Samples as a training reads them.
    pub fn batches(&self, rows: Dataset, config: &Config) -> Dataset {
        let weights = (!self.is_image()).then_some(3);
        decoder_setup::weighted(rows, self.batch, weights, config)
    }

    /// Pictures of a folder, a sub-folder a label.
    pub fn pictures(&self, config: &Config) -> Result<Dataset, Failure> {
        let EncoderInput::Image { size: [height, width], channels, .. } = self.encoder.config.input else {
            return Err(Failure("an encoder of texts reads no pictures".into()));
        };
        let path = config.data.clone().unwrap_or_default();
        let open = Open {
            images: Some(Images { channels, ..Images::new(height, width) }),
            scale: Some(Scale::Unit),
            classes: Some(self.encoder.config.labels.clone()),
            ..Open::default()
        };
        let data = Dataset::open_with(Path::new(&path), &open)?.on_error(config.on_error()?);
        match data.spec()?.len() {
            2 => Ok(data),
            _ => Err(Failure(format!("{path}: pictures lie in folders of their labels"))),
        }
    }

    /// Takes the folders of pictures as labels, where none are named and those of the config are others.
    pub fn label_by_folders(&mut self, config: &Config, args: &EncoderArgs) -> Result<(), Failure> {
        if !self.is_image() || args.labels.is_some() {
            return Ok(());
        }
        let path = config.data.clone().unwrap_or_default();
        let found = Dataset::open_with(Path::new(&path), &Open::default())?.class_names().unwrap_or_default();
        let own = &self.encoder.config.labels;
        if !found.iter().all(|label| own.contains(label)) {
            self.encoder.config.has_new_labels = true;
            self.encoder.config.labels = found;
        }
        Ok(())
    }

    /// Rows that texts will become, to plan with; of pictures, random ones.
    pub fn to_plan_with(&self, config: &Config) -> Dataset {
        let (model, count) = (&self.encoder.config, 2 * self.batch as u64);
        let samples = match &model.input {
            EncoderInput::Image { size: [height, width], channels, .. } => {
                let spec = vec![
                    FieldSpec::new("x", DType::F32, [*height, *width, *channels]),
                    FieldSpec::new("y", DType::I64, []),
                ];
                let draws = vec![Draw::One, Draw::Below(model.classes())];
                Dataset::random(Random { spec, draws, count, seed: 1 })
            }
            EncoderInput::Text { .. } => {
                let labels = if model.task == Task::Sequence { 1 } else { self.sequence };
                let of = |i: usize, dtype, n: usize| FieldSpec::new(LABELLED_FIELDS[i], dtype, [n]);
                let spec = vec![
                    of(0, DType::I32, self.sequence),
                    of(1, DType::I32, self.sequence),
                    of(2, DType::I32, labels),
                    of(3, DType::F32, labels),
                ];
                Dataset::npy_to_come(spec, count)
            }
        };
        self.batches(samples, config)
    }
}
