//! Turns settings and a Hugging Face folder's config into a decoder and a trainer over packed rows: for `tune` and `plan` alike.

use std::path::Path;
use std::sync::Arc;

use plimsoll::data::FieldSpec;
use plimsoll::hub::{self, Decoder, TokenLoss, Tuning};
use plimsoll::internals::graph::quant::QuantForm;
use plimsoll::internals::hub::FIELDS;
use plimsoll::nn::{Model, TrainOnly};
use plimsoll::prelude::*;

use crate::config::{BatchSize, Config};
use crate::{Failure, names};

/// Tokens of a row where nothing is said, as far as the model has positions.
const SEQUENCE: usize = 1024;
/// Rows of a step where nothing is said.
const BATCH: usize = 8;

/// Settings of a run that mean something for a language model of a folder.
const KNOWN: &[&str] = &[
    "model",
    "data",
    "batch",
    "epochs",
    "optimizer",
    "lr",
    "weight-decay",
    "schedule",
    "warm-up",
    "clip-norm",
    "precision",
    "memory",
    "host-memory",
    "allocator",
    "state",
    "exact",
    "micro-batch",
    "device",
    "tf32",
    "threads",
    "no-plan-cache",
    "seed",
    "checkpoint-every",
    "keep",
    "on-error",
    "sequence",
    "train",
    "soft-placement",
    "place",
    "from",
    "parallel",
];

/// Whether a name is that of a folder with a model of Hugging Face's form.
pub fn is_folder(name: &str) -> bool {
    let path = Path::new(name);
    path.is_dir() && path.join("config.json").is_file() && !path.join("config.toml").is_file()
}

/// Refuses what is no folder with a model of Hugging Face's form.
pub fn has_config(folder: &Path) -> Result<(), Failure> {
    if folder.join("config.json").is_file() {
        return Ok(());
    }
    let why = "is no folder of a language model: it has no config.json; name one with config.json, model.safetensors and tokenizer.json";
    Err(Failure(format!("{} {why}", folder.display())))
}

/// Opens a folder with a model of Hugging Face's form.
pub fn open(folder: &Path) -> Result<hub::Folder, Failure> {
    has_config(folder)?;
    Ok(hub::Folder::open(folder)?)
}

/// Refuses settings that mean nothing for a language model of a folder.
pub fn check(config: &Config) -> Result<(), Failure> {
    let table = toml::Table::try_from(config).map_err(|e| Failure(e.to_string()))?;
    match table.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        Some(key) => Err(Failure(format!("--{key} is not for language models of a folder; leave it out"))),
        None => Ok(()),
    }
}

/// A decoder with what is asked of its training.
pub struct DecoderSetup {
    pub decoder: Decoder,
    pub batch: usize,
    pub sequence: usize,
    /// What it tunes, in words.
    pub tuned: String,
}

impl DecoderSetup {
    pub fn new(config: &Config, decoder: Decoder) -> Result<DecoderSetup, Failure> {
        check(config)?;
        let sequence = sequence(config.sequence, SEQUENCE, decoder.config.context)?;
        let batch = batch(config, BATCH)?;
        let tuned = match &decoder.tuning {
            Tuning::Lora(lora) => {
                let beside = match decoder.base {
                    None => "",
                    Some(QuantForm::Int8) => " beside weights in int8",
                    Some(QuantForm::Nf4) => " beside weights in NF4",
                };
                format!("adapters of rank {}{beside}", lora.rank)
            }
            _ => named_weights(config),
        };
        Ok(DecoderSetup { decoder, batch, sequence, tuned })
    }

    /// A trainer on a device, for so many steps.
    pub fn trainer(&self, config: &Config, device: &Device, steps: u64) -> Result<Trainer, Failure> {
        let is_whole = self.decoder.tuning == Tuning::Full;
        let whole = TrainedModel {
            model: self.decoder.clone(),
            loss: TokenLoss {
                logit_cap: self.decoder.config.caps.logits,
                is_frozen: self.decoder.tuning != Tuning::Full,
            },
            labels: 2,
            rate: if is_whole { 2e-5 } else { 2e-4 },
            is_whole,
        };
        whole.trainer(config, device, steps)
    }

    /// Rows as a training reads them: in batches whose weights, the field of that number, make the loss the mean over the tokens that
    /// count.
    pub fn batches(&self, rows: Dataset, weights: usize, config: &Config) -> Dataset {
        weighted(rows, self.batch, Some(weights), config)
    }

    /// Rows that texts will become, to plan with.
    pub fn to_plan_with(&self, config: &Config) -> Dataset {
        let field = |i: usize| {
            FieldSpec::new(FIELDS[i], if i == 3 { DType::F32 } else { DType::I32 }, [self.sequence])
        };
        let rows = Dataset::npy_to_come((0..4).map(field).collect(), 2 * self.batch as u64);
        self.batches(rows, 3, config)
    }
}

/// A folder's model with what its training is told of it.
pub struct TrainedModel<M> {
    pub model: M,
    pub loss: TokenLoss,
    /// Fields of a sample that are labels.
    pub labels: usize,
    /// The learning rate where none is named.
    pub rate: f64,
    /// Whether weights are trained, and not adapters.
    pub is_whole: bool,
}

impl<M: Model + 'static> TrainedModel<M> {
    /// The optimizer: adamw without decay where nothing is said, at a rate that is usual for what is tuned.
    fn optimizer(&self, config: &Config) -> Result<Arc<dyn plimsoll::nn::Optimizer>, Failure> {
        let name = config.optimizer.as_deref().unwrap_or("adamw");
        let decay = config.weight_decay.or((name == "adamw").then_some(0.0));
        names::with_state(names::optimizer(name, config.lr.unwrap_or(self.rate), decay)?, config)
    }

    /// A trainer on a device, for so many steps.
    pub fn trainer(self, config: &Config, device: &Device, steps: u64) -> Result<Trainer, Failure> {
        let (all, layers) = config.precision()?;
        if !layers.is_empty() {
            return Err(Failure(
                "--precision names layers; a model of a folder computes in one precision".into(),
            ));
        }
        let patterns = config.patterns()?;
        if patterns.is_some() && !self.is_whole {
            return Err(Failure(
                "--train names weights, and --lora tunes adapters alone; leave one out".into(),
            ));
        }
        let optimizer = self.optimizer(config)?;
        let model: Arc<dyn Model> = match patterns {
            Some(patterns) => Arc::new(TrainOnly::new(self.model, patterns)),
            None => Arc::new(self.model),
        };
        Ok(Trainer::new(model, self.loss, optimizer)
            .memory_request(&config.memory_request(all.unwrap_or_default(), device)?)
            .parallel(crate::ranks::parallel(config))
            .labels(self.labels)
            .clip(config.clip())
            .schedule(config.schedule(steps)?)
            .seed(config.seed.unwrap_or(42))
            .reading_back())
    }
}

/// Rows in batches whose weights, the field of that number, make the loss the mean over what counts.
pub fn weighted(rows: Dataset, batch: usize, weights: Option<usize>, config: &Config) -> Dataset {
    let shuffled = rows.shuffle(1 << 14, config.seed.unwrap_or(42)).batch(batch);
    let Some(weights) = weights else { return shuffled };
    shuffled.map_batch(move |batch| {
        let samples = batch.samples() as f32;
        let weights = batch.get_mut::<f32>(weights)?;
        let counted: f32 = weights.iter().sum();
        if counted > 0.0 {
            weights.iter_mut().for_each(|weight| *weight *= samples / counted);
        }
        Ok(())
    })
}

/// Tokens of a row: as asked for, or a usual number, as far as there are positions.
pub fn sequence(asked: Option<usize>, usual: usize, context: usize) -> Result<usize, Failure> {
    match asked.unwrap_or(usual.min(context)) {
        n if (1..=context).contains(&n) => Ok(n),
        n => Err(Failure(format!("--sequence {n}: the model has {context} positions; use 1 to {context}"))),
    }
}

/// Samples of a step: as asked for, or a usual number.
pub fn batch(config: &Config, usual: usize) -> Result<usize, Failure> {
    match config.batch {
        None => Ok(usual),
        Some(BatchSize::Samples(0)) => Err(Failure("--batch 0 trains on nothing".into())),
        Some(BatchSize::Samples(n)) => Ok(n),
        Some(BatchSize::Auto) => {
            Err(Failure("--batch auto is not for language models of a folder; name a number of rows".into()))
        }
    }
}

/// The weights that are trained, in words.
pub fn named_weights(config: &Config) -> String {
    match &config.train {
        Some(named) => format!("the weights {named}"),
        None => "all weights".into(),
    }
}

/// The decoder of a folder's config alone, before any weight is looked at.
pub fn described(folder: &Path, tuning: Tuning) -> Result<Decoder, Failure> {
    Ok(Decoder::new(hub::Config::open(folder)?, tuning))
}

/// The last part of a folder's path.
pub fn short_name(folder: &Path) -> String {
    let name = folder.canonicalize().unwrap_or(folder.to_path_buf());
    name.file_name().and_then(|name| name.to_str()).unwrap_or("model").to_string()
}
