//! The model that `plimsoll tune` is asked for: a decoder or an encoder of a folder, from its texts or pictures to what is written of it.

use std::path::{Path, PathBuf};

use plimsoll::data::OnError;
use plimsoll::hub::{
    self, Adapter, EncoderConfig, EncoderInput, LABELLED_FIELDS, LabelledRows, Packed, Rows, Texts,
    Tokenizer, Tuning, Unmatched, save_adapter, save_encoder, save_model,
};
use plimsoll::internals::graph::counted;
use plimsoll::nn::{Parallel, Param};
use plimsoll::prelude::*;

use crate::config::Config;
use crate::decoder_setup::{self, DecoderSetup};
use crate::encoder_setup::EncoderSetup;
use crate::tune_run::Kept;
use crate::{Failure, Stop};

/// A folder's model, with its weights on disk and what is asked of its training.
pub enum TunedModel {
    Decoder { setup: DecoderSetup, source: hub::Folder },
    Encoder { setup: EncoderSetup, source: hub::Folder<EncoderConfig> },
}

impl TunedModel {
    /// Reads a folder's config and the headers of its weights.
    pub fn open(path: &Path, kept: &Kept, config: &Config) -> Result<TunedModel, Stop> {
        decoder_setup::has_config(path)?;
        if EncoderConfig::is_in(path) {
            let encoder = kept.encoder.described(path, &kept.lora).map_err(Stop::usage)?;
            let mut setup = EncoderSetup::new(config, encoder).map_err(Stop::usage)?;
            setup.label_by_folders(config, &kept.encoder)?;
            let source =
                hub::Folder::of_encoder(path, setup.encoder.config.clone()).map_err(Failure::from)?;
            return Ok(TunedModel::Encoder { setup, source });
        }
        if kept.encoder.is_asked() {
            let why = "--task and --labels are for encoders, and this model is none; leave them out";
            return Err(Stop::Usage(why.into()));
        }
        let based = |decoder| kept.lora.based(decoder).map_err(Stop::usage);
        let described = based(decoder_setup::described(path, kept.tuning()?)?)?;
        let mut setup = DecoderSetup::new(config, described).map_err(Stop::usage)?;
        let source = hub::Folder::open(path).map_err(Failure::from)?;
        setup.decoder = based(source.decoder(kept.tuning()?))?;
        Ok(TunedModel::Decoder { setup, source })
    }

    pub fn batch(&self) -> usize {
        match self {
            TunedModel::Decoder { setup, .. } => setup.batch,
            TunedModel::Encoder { setup, .. } => setup.batch,
        }
    }

    pub fn sequence(&self) -> usize {
        match self {
            TunedModel::Decoder { setup, .. } => setup.sequence,
            TunedModel::Encoder { setup, .. } => setup.sequence,
        }
    }

    /// What is tuned, in words.
    pub fn tuned(&self) -> &str {
        match self {
            TunedModel::Decoder { setup, .. } => &setup.tuned,
            TunedModel::Encoder { setup, .. } => &setup.tuned,
        }
    }

    pub fn trainer(&self, config: &Config, device: &Device, steps: u64) -> Result<Trainer, Failure> {
        match self {
            TunedModel::Decoder { setup, .. } => setup.trainer(config, device, steps),
            TunedModel::Encoder { setup, .. } => setup.trainer(config, device, steps),
        }
    }

    pub fn to_plan_with(&self, config: &Config) -> Dataset {
        match self {
            TunedModel::Decoder { setup, .. } => setup.to_plan_with(config),
            TunedModel::Encoder { setup, .. } => setup.to_plan_with(config),
        }
    }

    /// Texts as rows of tokens, in a folder. Pictures stay where they are, and are counted.
    pub fn pack(&self, config: &Config, model: &Path, rows: &Path, tells: bool) -> Result<Packed, Failure> {
        let path = PathBuf::from(config.data.clone().unwrap_or_default());
        let skips = config.on_error()? == OnError::Skip;
        let passed_over = |error: &hub::Error| {
            if skips && tells {
                eprintln!("plimsoll: passed over: {error}");
            }
            skips
        };
        let packed = match self {
            TunedModel::Decoder { setup, .. } => {
                let (tokenizer, wanted) = (Tokenizer::open(model)?, &setup.decoder.config);
                tokenizer.fits(wanted.vocabulary)?;
                let eos = tokenizer.eos.or(wanted.tokens.eos.first().copied());
                let mut texts = Texts::open(&path, &tokenizer, eos, wanted.vocabulary)?;
                let mut out = Rows::create(rows, setup.sequence)?;
                loop {
                    match texts.read() {
                        Ok(Some(sample)) => out.add(&sample)?,
                        Ok(None) => break,
                        Err(error @ hub::Error::Line { .. }) if passed_over(&error) => out.skip(),
                        Err(error) => return Err(error.into()),
                    }
                }
                out.finish()?
            }
            TunedModel::Encoder { setup, .. } if setup.is_image() => {
                let samples = setup.pictures(config)?.samples()?.unwrap_or(0);
                Packed { rows: samples, samples, learnt: samples, ..Packed::default() }
            }
            TunedModel::Encoder { setup, .. } => {
                let tokenizer = Tokenizer::open(model)?;
                let encoder = &setup.encoder.config;
                if let EncoderInput::Text { vocabulary, .. } = encoder.input {
                    tokenizer.fits(vocabulary)?;
                }
                let seed = config.seed.unwrap_or(42);
                let mut out = LabelledRows::create(rows, encoder, &tokenizer, setup.sequence, seed)?;
                out.read(&path, passed_over)?;
                out.finish()?
            }
        };
        match packed.rows {
            0 => Err(Failure(format!("{}: there is nothing in it to learn from", path.display()))),
            _ => Ok(packed),
        }
    }

    /// What was packed, in words.
    pub fn packed_text(&self, packed: &Packed) -> Vec<String> {
        let mut said = Vec::new();
        match self {
            TunedModel::Encoder { setup, .. } if setup.is_image() => {
                let labels = counted(setup.encoder.config.labels.len() as u64, "label");
                said.push(format!("{} of {labels}", counted(packed.samples, "picture")));
            }
            _ => {
                let filled =
                    100.0 * packed.filled as f64 / (packed.rows * self.sequence() as u64).max(1) as f64;
                said.push(format!(
                    "{} in {} of {} tokens, {filled:.0} % filled, {} learnt",
                    counted(packed.samples, "text"),
                    counted(packed.rows, "row"),
                    self.sequence(),
                    packed.learnt
                ));
            }
        }
        if packed.truncated > 0 {
            let texts = counted(packed.truncated, "text");
            said.push(format!("{texts} longer than a row and lost their end (--sequence)"));
        }
        if packed.skipped > 0 {
            said.push(format!("{} could not be read and were passed over", counted(packed.skipped, "line")));
        }
        said
    }

    /// Rows or pictures as a training reads them.
    pub fn data(&self, config: &Config, rows: &Path, packed: &Packed) -> Result<Dataset, Failure> {
        match self {
            TunedModel::Decoder { setup, .. } => {
                // Where no row has several texts, positions are places: causal attention needs to be told nothing.
                let paths: Vec<_> = Rows::paths(rows)
                    .into_iter()
                    .filter(|(name, _)| packed.shared > 0 || *name != "positions")
                    .collect();
                let rows = Dataset::npy(paths.iter().map(|(name, path)| (*name, path.as_path())))?.stored();
                Ok(setup.batches(rows, paths.len() - 1, config))
            }
            TunedModel::Encoder { setup, .. } if setup.is_image() => {
                Ok(setup.batches(setup.pictures(config)?, config))
            }
            TunedModel::Encoder { setup, .. } => {
                let paths = LABELLED_FIELDS.map(|name| (name, rows.join(format!("{name}.npy"))));
                let rows = Dataset::npy(paths.iter().map(|(name, path)| (*name, path.as_path())))?.stored();
                Ok(setup.batches(rows, config))
            }
        }
    }

    /// Gives a trainer the folder's weights, and adapters theirs: those that the run begins with, or a start of their own. So have heads
    /// that the files do not hold.
    pub fn load(
        &mut self,
        trainer: &mut Trainer,
        data: &Dataset,
        kept: &Kept,
        seed: u64,
    ) -> Result<Unmatched, Failure> {
        trainer.prepare_blank(data)?;
        let Some(training) = trainer.training_mut() else { return Ok(Unmatched::default()) };
        let params = training.params().to_vec();
        let adapters = params.iter().filter(|param| hub::Decoder::tensor_name(&param.name).is_none());
        let draw = |param: &Param| param.init.draw(&param.name, &param.ty, seed)?.to_bytes();
        for param in adapters {
            training.restore_whole(&param.name, &draw(param)?)?;
        }
        if let TunedModel::Decoder { source, .. } = self {
            source.magnitudes(&params, |param, bytes| Ok(training.restore_whole(&param.name, bytes)?))?;
        }
        if let Some(adapter) = &kept.adapter {
            Adapter::open(adapter)?
                .load(&params, |param, bytes| Ok(training.restore_whole(&param.name, bytes)?))?;
        }
        let give =
            |param: &Param, at: usize, bytes: &[u8]| Ok(training.restore_bytes(&param.name, at, bytes)?);
        let unmatched = match self {
            TunedModel::Decoder { source, .. } => source.load_in_pieces(&params, give)?,
            TunedModel::Encoder { source, .. } => source.load_in_pieces(&params, give)?,
        };
        for param in params.iter().filter(|param| unmatched.anew.contains(&param.name)) {
            training.restore_whole(&param.name, &draw(param)?)?;
        }
        Ok(unmatched)
    }

    /// Refuses ranks that have parts of what is written whole: of adapters alone, which are few, they are put together.
    pub fn check_parallel(&self, parallel: Parallel) -> Result<(), Failure> {
        let is_whole = matches!(parallel, Parallel::Data | Parallel::Shard);
        let has_adapters = matches!(self, TunedModel::Decoder { setup, .. } if matches!(setup.decoder.tuning, Tuning::Lora(_)));
        if is_whole || has_adapters {
            return Ok(());
        }
        Err(Failure(format!(
            "--parallel {parallel}: plimsoll tune has all parameters on every rank, to write them, unless it tunes adapters (--lora); take data or shard \
             (plimsoll plan says what others would take)"
        )))
    }

    /// Writes what was tuned into a run's folder; where to. Where ranks have parts of it, the others call [`Trainer::whole_trained`].
    pub fn save(&self, run: &Path, trainer: &Trainer) -> Result<PathBuf, Failure> {
        let (values, path) = (trainer.parameters(), run.join("model"));
        match self {
            TunedModel::Decoder { setup, source } => match &setup.decoder.tuning {
                Tuning::Lora(lora) => {
                    let (path, base) = (run.join("adapter"), source.path.to_string_lossy());
                    let whole = trainer.whole_trained()?;
                    let values = whole.iter().map(|(param, value)| (param, value));
                    save_adapter(&path, lora, setup.decoder.config.family, &base, values)?;
                    return Ok(path);
                }
                _ => save_model(source, &path, values)?,
            },
            TunedModel::Encoder { source, .. } => save_encoder(source, &path, values)?,
        }
        Ok(path)
    }
}
