//! Turns settings into a model, data and a trainer that is ready to plan. `train`, `plan`, `bench` and `inspect` all begin here, so that
//! what one says of a command is what the others do with it.

use std::path::Path;

use plimsoll::plan::PlanFigures;
use plimsoll::prelude::*;
use plimsoll::train::{BestCheckpoint, Error as TrainError, Way};

use crate::Failure;
use crate::check;
use crate::config::Config;
use crate::form::Form;
use crate::model_setup::{ModelSetup, Purpose};
use crate::source::Source;
use crate::{torch_file, ways_out};

/// Everything but the run itself.
pub struct Setup {
    pub model_setup: ModelSetup,
    pub trainer: Trainer,
    /// Shuffled and in batches.
    pub train: Dataset,
    pub form: Form,
    pub batch: usize,
    pub unbatched: Unbatched,
    /// What the model is evaluated on after every epoch, in words.
    pub held_back: Option<String>,
    /// What it was made from and for.
    config: Config,
    device: Device,
}

/// The data before it is made into batches, for whoever looks for a batch size.
pub struct Unbatched {
    pub train: Dataset,
    /// What is held back of it.
    pub validation: Option<Dataset>,
}

impl Setup {
    /// Finds data and model and fits them to each other, for a device.
    pub fn new(config: &Config, device: &Device) -> Result<Setup, Failure> {
        let source = Source::open(config, Purpose::Train)?;
        // Where labels are classes, all of them are looked at once. Random ones are what they were made to be.
        let is_random = source.is_random;
        let is_classes = config.loss.as_deref().is_none_or(|loss| loss == "cross-entropy");
        let is_counted =
            is_classes && source.model.is_none() && !is_random && !torch_file::has_own_loss(config)?;
        let form = Form::of(&source, config.classes, is_counted)?;
        if !is_random || source.model.is_some() {
            form.check_flags(config)?;
        }
        let Source { train, held_back, model, .. } = source;
        let model_setup = ModelSetup::new(config, model, &form, Purpose::Train)?;
        if let (Some(part), true) = (&held_back, model_setup.is_classifier) {
            form.check_labels(&part.data, &part.name)?;
        }
        // Where they were counted they have been looked at; a number that was said is held against every label.
        let is_checked = model_setup.is_classifier && !is_random;
        let labels = |data: Dataset| match (form.classes, is_checked, config.classes) {
            (Some(classes), true, Some(_)) => data.with_classes(form.fields.len() - 1, classes),
            _ => data,
        };
        let (train, held_back) = (labels(train), held_back.map(|part| (labels(part.data), part.name)));
        Setup::of(config, device, model_setup, form, train, held_back)
    }

    /// Plans the step as a training will run it, draws the weights and takes the memory. Weights of a Keras, ONNX or PyTorch file are the file's.
    pub fn compile(&mut self) -> Result<PlanFigures, TrainError> {
        let info = self.trainer.compile(&self.train).map_err(|error| self.advised(error))?;
        self.restore().map_err(|Failure(why)| TrainError::Mismatch(why))?;
        Ok(info)
    }

    fn restore(&mut self) -> Result<(), Failure> {
        let Some(training) = self.trainer.training_mut() else { return Ok(()) };
        let ModelSetup { keras, onnx, torch, .. } = &self.model_setup;
        if let Some(compiled) = keras {
            compiled.model.restore(training)?;
        }
        if let Some(model) = onnx {
            model.restore(training)?;
        }
        if let Some(model) = torch {
            model.restore(training)?;
        }
        Ok(())
    }

    /// A refusal with the ways out that take other data; any other error as it is.
    pub fn advised(&self, error: TrainError) -> TrainError {
        ways_out::with_smaller_samples(error, &self.config, &self.device, &self.form)
    }

    /// The ways out of a refusal that take other data, yet to be looked at.
    pub fn ways(&self) -> Vec<Way<'_>> {
        let Setup { config, device, form, .. } = self;
        vec![Box::new(|| ways_out::smaller_samples(config, device, form))]
    }

    fn of(
        config: &Config,
        device: &Device,
        model_setup: ModelSetup,
        form: Form,
        train: Dataset,
        held_back: Option<(Dataset, String)>,
    ) -> Result<Setup, Failure> {
        let metrics: Vec<String> = model_setup.metrics.iter().map(|measure| measure.name.clone()).collect();
        check::followed(config, &metrics, held_back.is_some())?;
        // A size that is yet to be found is looked for from one sample on.
        let (batch, epochs) = (config.samples().unwrap_or(1), config.epochs.unwrap_or(1));
        if let Some((data, name)) = &held_back {
            form.check(&data.spec()?, name)?;
        }
        if train.samples()? == Some(0) {
            return Err(Failure(format!("{} has no samples to train on", form.data)));
        }
        let (train, held_back) = augmented(config, &model_setup, &form, train, held_back)?;
        let unbatched = train.shuffle(1 << 14, config.seed.unwrap_or(42));
        let train = unbatched.clone().batch(batch);
        let steps = train.samples()?.unwrap_or(0).div_ceil(batch as u64).saturating_mul(epochs);
        let mut trainer = model_setup
            .trainer(config, &train, device.clone())?
            .schedule(model_setup.schedule(config, steps)?);
        if let Some(decay) = config.average {
            trainer = trainer.average(decay)?;
        }
        if let Some(pruning) = config.pruning(steps)? {
            trainer = trainer.prune(pruning)?;
        }
        if let Some(metric) = config.best_metric() {
            // Where it is kept is known when the run has a folder; what it takes of memory counts in every plan.
            trainer = trainer.best(best(config, metric, Path::new("best")));
        }
        if let Some(compiled) = &model_setup.keras {
            trainer = trainer.reserve(compiled.model.restoring_bytes());
        }
        if let Some(model) = &model_setup.onnx {
            trainer = trainer.reserve(model.restoring_bytes());
        }
        if let Some(model) = &model_setup.torch {
            trainer = trainer.reserve(Bytes::from(model.restoring_bytes()));
        }
        let (mut name, mut unbatched_validation) = (None, None);
        if let Some((data, own)) = held_back {
            trainer = trainer.validation(data.clone().batch(batch));
            (name, unbatched_validation) = (Some(own), Some(data));
        }
        Ok(Setup {
            model_setup,
            trainer,
            train,
            form,
            batch,
            unbatched: Unbatched { train: unbatched, validation: unbatched_validation },
            held_back: name,
            config: config.clone(),
            device: device.clone(),
        })
    }
}

/// Which epoch is kept as the best, in this folder.
pub fn best(config: &Config, metric: &str, folder: &Path) -> BestCheckpoint {
    let best = BestCheckpoint::new(metric, folder).min_delta(config.min_delta.unwrap_or(0.0));
    if config.restore_best == Some(true) { best.restore() } else { best }
}

/// The part to train on with its pictures changed as the settings say, and the part that is held back, whose pictures stay as they
/// are. Where labels are mixed, those of both become one-hot.
fn augmented(
    config: &Config,
    model_setup: &ModelSetup,
    form: &Form,
    mut train: Dataset,
    mut held_back: Option<(Dataset, String)>,
) -> Result<(Dataset, Option<(Dataset, String)>), Failure> {
    let Some(augment) = config.augment()? else { return Ok((train, held_back)) };
    let label = form.fields.len().saturating_sub(1);
    let is_class = train.spec()?.get(label).is_some_and(|field| field.dtype == DType::I64);
    if augment.mixes_labels() && is_class {
        let refused =
            |why: &str| Failure(format!("--augment {augment}: mixup mixes labels as one-hot numbers, {why}"));
        if model_setup.keras.is_some() {
            return Err(refused(
                "and the loss of a Keras file takes class numbers here; give it one-hot labels",
            ));
        }
        let classes = form.classes.ok_or_else(|| refused("but the number of classes is not known"))?;
        train = train.one_hot(label, classes)?;
        held_back = match held_back {
            Some((data, name)) => Some((data.one_hot(label, classes)?, name)),
            None => None,
        };
    }
    let train = train.augment(&augment, config.seed.unwrap_or(42))?;
    Ok((train, held_back))
}
