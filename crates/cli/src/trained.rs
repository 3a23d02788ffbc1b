//! A model that is there already, of a run or of a Keras file, with the data to use it on.

use std::path::Path;

use plimsoll::prelude::*;

use crate::config::{Config, USUAL_BATCH};
use crate::folder::Folder;
use crate::form::Form;
use crate::model_setup::{ModelSetup, Purpose};
use crate::request::is_model_file;
use crate::source::Source;
use crate::{Failure, device_args};

/// A trained model, and data.
pub struct Trained {
    pub model_setup: ModelSetup,
    pub trainer: Trainer,
    /// In batches.
    pub data: Dataset,
    /// What the data is, in words.
    pub data_name: String,
    /// Whether the model was trained on this very data.
    pub is_seen: bool,
    pub form: Form,
}

impl Trained {
    /// The model at a path, for data that is named or, of a run, the run's own.
    pub fn open(what: &Path, said: Config, purpose: Purpose) -> Result<Trained, Failure> {
        match what.to_str().filter(|path| is_model_file(path)) {
            Some(path) => Trained::file(path, said, purpose),
            None => Trained::run(what, said, purpose),
        }
    }

    /// The model of a Keras, ONNX or PyTorch file with its weights.
    fn file(path: &str, said: Config, purpose: Purpose) -> Result<Trained, Failure> {
        if !Path::new(path).exists() {
            return Err(Failure(format!(
                "there is no {path}; name a .keras, .h5, .onnx or .pt2 file, or the folder of a run"
            )));
        }
        if said.data.is_none() {
            return Err(Failure(format!("{path} does not say what data is for it; name some with --data")));
        }
        let config = Config { model: Some(path.into()), ..said };
        let source = Source::open(&config, purpose)?;
        let form = Form::of(&source, None, false)?;
        let model = source.model.clone();
        let (data, data_name) = source.into_used();
        let data = data.batch(config.samples().unwrap_or(USUAL_BATCH));
        let model_setup = ModelSetup::new(&config, model, &form, purpose)?;
        let mut trainer = model_setup.trainer(&config, &data, device_args::device(&config)?)?;
        if let Some(compiled) = &model_setup.keras {
            trainer = trainer.reserve(compiled.model.restoring_bytes());
            trainer.prepare_blank(&data)?;
            if let Some(training) = trainer.training_mut() {
                compiled.model.restore_weights(training)?;
            }
        }
        if let Some(model) = &model_setup.onnx {
            trainer = trainer.reserve(model.restoring_bytes());
            trainer.prepare_blank(&data)?;
            if let Some(training) = trainer.training_mut() {
                model.restore(training)?;
            }
        }
        if let Some(model) = &model_setup.torch {
            trainer = trainer.reserve(Bytes::from(model.restoring_bytes()));
            trainer.prepare_blank(&data)?;
            if let Some(training) = trainer.training_mut() {
                model.restore(training)?;
            }
        }
        Ok(Trained { model_setup, trainer, data, data_name, is_seen: false, form })
    }

    /// The model that a run trained.
    pub fn run(run: &Path, said: Config, purpose: Purpose) -> Result<Trained, Failure> {
        let folder = Folder::of(run)?;
        if !folder.model().is_file() {
            let shown = run.display();
            return Err(Failure(format!(
                "{shown} has no trained model yet; let the run end, or go on with: plimsoll train --resume --out {shown}"
            )));
        }
        // The limit was that of training.
        let kept =
            Config { memory: None, host_memory: None, disk: None, allocator: None, ..folder.settings()? };
        let form = match folder.form().is_file() {
            true => Form::read(&folder.form())?,
            false => Form::of(&Source::open(&kept, Purpose::Train)?, kept.classes, true)?,
        };
        let named = said.data.is_some();
        let model = Config { loss: said.loss.clone(), metrics: said.metrics.clone(), ..Config::default() };
        let own = model.over(kept.clone());
        // How the run cut up its own data is nothing to other data.
        let kept = match named {
            true => Config { take: None, validation: None, validation_split: None, data: None, ..kept },
            false => kept,
        };
        let config = said.over(kept);
        let source = Source::open_as(&config, purpose, Some(&form))?;
        let model_setup = ModelSetup::new(&own, source.model.clone(), &form, purpose)?;
        let is_seen = !named && source.held_back.is_none();
        let (data, data_name) = source.into_used();
        let spec = data.spec()?;
        let compared = if purpose == Purpose::Predict { spec.len().min(1) } else { spec.len() };
        form.check(&spec[..compared], &data_name)?;
        if purpose == Purpose::Evaluate && spec.len() < form.fields.len() {
            return Err(Failure(format!(
                "{data_name} has no labels to evaluate against; plimsoll predict needs none"
            )));
        }
        let data = data.batch(config.samples().unwrap_or(USUAL_BATCH));
        let mut trainer = model_setup.trainer(&config, &data, device_args::device(&config)?)?;
        trainer.load(folder.model(), &data)?;
        Ok(Trained { model_setup, trainer, data, data_name, is_seen, form })
    }
}
