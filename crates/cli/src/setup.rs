//! A request in; model, data and a trainer that is ready to plan out. `train` and `plan` both begin here, so that what one says of a
//! command is what the other does with it.

use plimsoll::prelude::*;

use crate::Failure;
use crate::check;
use crate::chosen::{Chosen, Purpose};
use crate::config::Config;
use crate::form::Form;
use crate::keras_file;
use crate::plan::is_keras;
use crate::source::{Source, imagined};

/// Everything but the run itself.
pub struct Setup {
    pub chosen: Chosen,
    pub trainer: Trainer,
    /// Shuffled and in batches.
    pub train: Dataset,
    pub form: Form,
    pub batch: usize,
    /// What the model is evaluated on after every epoch, in words.
    pub held_back: Option<String>,
}

impl Setup {
    /// Finds data and model and fits them to each other, for a device.
    pub fn new(config: &Config, device: &Device) -> Result<Setup, Failure> {
        let source = Source::open(config, Purpose::Train)?;
        // Where labels are classes, all of them are looked at once.
        let counted =
            source.model.is_none() && config.loss.as_deref().is_none_or(|loss| loss == "cross-entropy");
        let form = Form::of(&source, config.classes, counted)?;
        form.check_flags(config)?;
        let Source { train, held_back, model, .. } = source;
        let chosen = Chosen::new(config, model, &form, Purpose::Train)?;
        if let (Some(part), true) = (&held_back, chosen.is_classifier) {
            form.check_labels(&part.data, &part.name)?;
        }
        // Where they were counted they have been looked at; a number that was said is held against every label.
        let labels = |data: Dataset| match (form.classes, chosen.is_classifier, config.classes) {
            (Some(classes), true, Some(_)) => data.with_classes(form.fields.len() - 1, classes),
            _ => data,
        };
        let (train, held_back) = (labels(train), held_back.map(|part| (labels(part.data), part.name)));
        Setup::of(config, device, chosen, form, train, held_back)
    }

    /// A model at the sizes of its own table, for data that is only imagined: what it would take can be said, and nothing trained.
    pub fn imagined(config: &Config, device: &Device) -> Result<Setup, Failure> {
        let name = config.model.as_deref().unwrap_or("demo");
        if is_keras(name) {
            return Setup::imagined_file(config, device);
        }
        let Some(entry) = crate::chosen::find(name)? else { return Setup::new(config, device) };
        let entry = entry.sized(|size| {
            size.classes = config.classes.unwrap_or(size.classes);
            size.image = config.image.unwrap_or(size.image);
            size.sequence = config.sequence.unwrap_or(size.sequence);
        });
        let train = imagined(&[entry.input(1)], &[entry.labels(1)], config.batch.unwrap_or(32));
        let source = Source::imagined(train.clone(), entry.size.classes);
        let form = Form::of(&source, config.classes, false)?;
        let chosen = Chosen::new(config, None, &form, Purpose::Train)?;
        Setup::of(config, device, chosen, form, train, None)
    }

    /// A Keras file, for arrays of the shapes that it names.
    fn imagined_file(config: &Config, device: &Device) -> Result<Setup, Failure> {
        let made = |classes: bool| -> Result<Setup, Failure> {
            let opened = keras_file::keras_model(config)?;
            let opened = opened.ok_or_else(|| Failure("no Keras file is named".into()))?;
            let wanted = keras_file::fields(config, &opened, Purpose::Train)?;
            let label = |i: usize| {
                let ty = &opened.outputs()[i];
                let shape = ty.shape.with(0, 1);
                match classes {
                    true => Type::new(DType::I64, &shape[..shape.rank().saturating_sub(1).max(1)]),
                    false => Type::new(DType::F32, shape),
                }
            };
            let labelled =
                |i: &usize| wanted.labels.iter().any(|label| label.name == opened.output_names()[*i]);
            let labels: Vec<Type> = (0..opened.n_outputs()).filter(labelled).map(label).collect();
            let train = imagined(&opened.inputs(1)?, &labels, config.batch.unwrap_or(32));
            let form = Form::of(&Source::imagined(train.clone(), 0), None, false)?;
            let chosen = Chosen::new(config, Some(opened), &form, Purpose::Train)?;
            Setup::of(config, device, chosen, form, train, None)
        };
        // Labels are classes where the loss takes classes, else of the outputs' shape. Which it is shows when the step is traced.
        let setup = made(true)?;
        match setup.trainer.plan(&setup.train) {
            Ok(_) | Err(plimsoll::train::Error::Run(plimsoll::run::Error::Infeasible { .. })) => Ok(setup),
            Err(_) => made(false),
        }
    }

    fn of(
        config: &Config,
        device: &Device,
        chosen: Chosen,
        form: Form,
        train: Dataset,
        held_back: Option<(Dataset, String)>,
    ) -> Result<Setup, Failure> {
        let metrics: Vec<String> = chosen.metrics.iter().map(|measure| measure.name.clone()).collect();
        check::early_stopping(config, &metrics, held_back.is_some())?;
        let (batch, epochs) = (config.batch.unwrap_or(32), config.epochs.unwrap_or(1));
        if let Some((data, name)) = &held_back {
            form.check(&data.spec()?, name)?;
        }
        if train.samples()? == Some(0) {
            return Err(Failure(format!("{} has no samples to train on", form.data)));
        }
        let train = train.shuffle(1 << 14, config.seed.unwrap_or(42)).batch(batch);
        let steps = train.samples()?.unwrap_or(0).div_ceil(batch as u64).saturating_mul(epochs);
        let mut trainer =
            chosen.trainer(config, &train, device.clone())?.schedule(chosen.schedule(config, steps)?);
        if let Some(compiled) = &chosen.keras {
            trainer = trainer.beside(compiled.model.restoring_bytes());
        }
        let mut name = None;
        if let Some((data, own)) = held_back {
            trainer = trainer.validation(data.batch(batch));
            name = Some(own);
        }
        Ok(Setup { chosen, trainer, train, form, batch, held_back: name })
    }
}
