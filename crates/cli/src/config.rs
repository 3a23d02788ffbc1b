//! What a run is: a file of settings, the flags over it, and the defaults under it.

mod batch;
mod values;

pub use batch::{BatchSize, USUAL_BATCH};

use std::path::{Path, PathBuf};

use plimsoll::nn::Patterns;
use plimsoll::prelude::*;
use plimsoll::train::{Pruning, Sparsity};
use serde::{Deserialize, Serialize};

use crate::request::{is_keras, is_model_file};
use crate::session::Session;
use crate::source::is_path;
use crate::{Failure, named_file};

/// The settings of a run. Every one is a flag of `train`, `plan`, `bench` and `inspect` and a key of a TOML file; a run's folder
/// keeps them.
#[derive(clap::Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Config {
    /// The model: a name of the zoo, or `demo`.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Where a run keeps its copy of the Keras file that `model` names.
    #[arg(skip)]
    #[serde(skip)]
    pub model_copy: Option<PathBuf>,
    /// The data: `digits`, `shapes[:SIDE[:COUNT]]`, `text`, or `random` (numbers of the model's own sizes, to try speed and memory), or
    /// a path: a folder of images (a sub-folder a class), or of `images` and `masks`; IDX, .npz, .npy, .csv, .parquet,
    /// .tfrecord, .tar (WebDataset), .txt files.
    /// For a Keras file with several inputs or outputs: arrays of their names, or x0, x1, y0, y1. [default: digits; shapes:128
    /// for unet, text for gpt and lstm; for other models `plan`, `bench` and `inspect` take random]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Data to evaluate on after every epoch: a name or path as of --data. [default: the part of the data that is marked as test
    /// or validation, if there is one]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<String>,
    /// Hold back this fraction of the data and evaluate on it after every epoch: `0.1`. The samples are spread evenly over the data.
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_split: Option<f64>,
    /// Hold back the same share of every class with --validation-split.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stratified: Option<bool>,
    /// What stored bytes (uint8 arrays and images) become: `none` (0 to 255), `unit` (divided by 255), or a number to multiply by.
    /// [default: none for a file of a model, as Keras does; unit for models by name]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<String>,
    /// The columns of a table (.csv, .parquet) that are read, by name, others passed over: `x=age,height,y=price`. [default: all]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<String>,
    /// Changes of training pictures, differently in every epoch, with commas: `flip`, `crop:4` (moved by up to 4 pixels), `rotate:15`
    /// (degrees), `color:0.2` (brightness, contrast, saturation), `cutout:8` (a black square), `mixup:0.2`. Masks are changed with
    /// their pictures; evaluation never is. [default: none]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub augment: Option<String>,
    /// Samples a step; or `auto`: the size that the planner finds fastest within `--memory`, whole or in micro-batches. The learning
    /// rate is not changed with it. [default: 32; 250 for the demo]
    #[arg(long, help_heading = "Training", value_name = "N | auto")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchSize>,
    /// Passes over the training data. [default: 10; 15 for the demo]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, ftrl, lion or adafactor. [default: adam, or a Keras file's own]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<String>,
    /// The learning rate. [default: 0.001; 0.05 for sgd, momentum and nesterov; 0.004 for the demo; or a Keras file's own]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// How strongly weights are drawn to 0: for sgd, momentum, nesterov and adam as L2 regularization, for adamw decoupled.
    /// [default: none; 0.01 for adamw]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// How the learning rate goes on: constant, cosine, exponential or one-cycle. [default: constant, or a Keras file's own]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// Steps over which the learning rate rises to its full value. [default: 0]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<u64>,
    /// All gradients together are scaled down to this norm. [default: as they are, or as a Keras file says]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Also keep an exponential average of the weights (EMA) with this decay, `0.999`, and write it as `model-average.safetensors`. It takes
    /// the memory of the weights once more. [default: none]
    #[arg(long, help_heading = "Training", value_name = "DECAY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average: Option<f64>,
    /// cross-entropy, mse, mae, binary-cross-entropy or dice. Of a Keras file with several outputs one for all, or those of
    /// some by name: `age=mse,class=cross-entropy`. [default: cross-entropy, mse where labels are numbers, or a Keras file's own]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// How much each class counts in the cross-entropy, in the order of its numbers, with commas: `1,1,5`. The mean stays over samples.
    /// [default: all the same]
    #[arg(long, help_heading = "Training", value_name = "W0,W1,…")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_weights: Option<String>,
    /// What is counted beside the loss, with commas: accuracy, binary-accuracy, top5, auc, precision, recall, mean-iou,
    /// cross-entropy, perplexity, mae, mse, rmse, r2; of outputs by name: `age=mae,class=accuracy`; or none. [default: accuracy, and mean-iou
    /// of pixels; none beside a named loss; or a Keras file's own]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// f32, f64, mixed-bf16, mixed-f16, or bf16 (weights are kept in bf16, too, with no copy in f32; the optimizer's state is bf16 then, and both are rounded stochastically); with commas also those of layers by name: `mixed-bf16,head=f32`, `block*=f32`.
    /// [default: f32, or a Keras file's own]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// The memory limit: the most that the process may take (`200MiB`, `1.5GiB`, plain bytes, or `max` for what is free). On a
    /// card it is of the card's memory. [default: none; 34MiB for the demo]
    #[arg(long, help_heading = "Memory", allow_hyphen_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// What the input pipeline may take of it. On a card, the limit of the host's memory, with everything that the process takes of
    /// it: program and libraries, pipeline, staging; the rest is for activations that are fetched back, weights and the optimizer's state.
    /// [default: an eighth, at most 64MiB; on a card what the machine has, and nothing is copied]
    #[arg(long, help_heading = "Memory", allow_hyphen_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_memory: Option<String>,
    /// A folder of a disk, and how much of it may be taken (`/scratch:200GiB`), on the CPU: weights, the optimizer's state and activations that the
    /// memory limit has no room for are kept there in files without names, brought before they are wanted and taken back. The plan says how
    /// much, and what that costs. [default: nothing is kept on a disk]
    #[arg(long, help_heading = "Memory", value_name = "FOLDER:SIZE", allow_hyphen_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// How a device's memory is divided among tensors: best-fit, system, pages or pool. A card has pages, pool and system.
    /// [default: best-fit; on a card pages]
    #[arg(long, help_heading = "Memory", allow_hyphen_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator: Option<String>,
    /// How the optimizer's state is kept (adam, adamw, momentum, nesterov, lion): f32, or approximately, with losses that differ a little: bf16,
    /// rounded stochastically, for half its memory, or 8bit for a byte a number with a scale for every 256, a quarter, where tensors under 4096
    /// elements stay in f32. [default: f32]
    #[arg(long, help_heading = "Memory", value_name = "f32 | bf16 | 8bit")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// How far plans may depart from the bits of an unlimited run: bitwise (the same bits: other order, recompute, offload),
    /// reassociated (the same maths, sums in another order: micro-batches too) or approximate (micro-batches also with batch statistics
    /// of their own). [default: reassociated]
    #[arg(long, help_heading = "Memory")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<Exactness>,
    /// Samples in a micro-batch. [default: the planner chooses]
    #[arg(long, help_heading = "Memory")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<usize>,
    /// Where it runs: cpu, cuda or cuda:N. [default: cpu]
    #[arg(long, help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Let a card's f32 products round their operands to TF32's ten bits: faster, other results.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tf32: Option<bool>,
    /// Devices of layers by name, with commas: `embed=cpu,block*=cpu`. On a card, the ops of a layer on the CPU copy what they read to the
    /// host and what they make back.
    #[arg(long, value_name = "LAYER=DEVICE,…", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Let ops that a card has no kernel for run on the host, instead of refusing the model; the run says which.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soft_placement: Option<bool>,
    /// How several ranks share a training, each with its share of every batch: data (all of the model on each), shard (each has all parameters, and its
    /// shard of gradients and of the optimizer's state), parameters (its shard of those, too: they are gathered where they are used), tensor (parts of
    /// the weights, with which each computes on all samples: columns and rows of dense layers, heads, words), pipeline (a stage of the model, through which
    /// parts of the batch go, as many samples each as --micro-batch says), data+tensor and data+pipeline (groups of ranks that share every batch, two or as
    /// many as data:4+tensor says, and the ranks of a group have parts or stages), auto (of those that fit the fastest). [default: data]
    #[arg(
        long,
        help_heading = "Ranks",
        value_name = "auto | data | shard | parameters | tensor | pipeline | data:N+tensor | data:N+pipeline"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<String>,
    /// Let batch norms take their statistics over the samples of all ranks, as one rank with the whole batch would; otherwise each takes those
    /// of its own.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", help_heading = "Ranks")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_batch_norm: Option<bool>,
    /// Threads. [default: as many as this process may use]
    #[arg(long, help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Search for plans even where the same step was planned before, and keep none in the cache folder.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", help_heading = "Machine")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_plan_cache: Option<bool>,
    /// Where all randomness starts. [default: 42]
    #[arg(long, help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Also a checkpoint every so many steps. [default: one an epoch]
    #[arg(long, help_heading = "Run")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<u64>,
    /// How many checkpoints are kept. [default: 3]
    #[arg(long, help_heading = "Run")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<usize>,
    /// What happens to samples that cannot be read: fail or skip. [default: fail]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_error: Option<String>,
    /// Use the first so many samples only. [default: all]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub take: Option<u64>,
    /// Classes of the labels, or words of the vocabulary. [default: they are counted; the model's own for random data]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<usize>,
    /// Channels of the model's first stage, or of its residual stream. [default: the model's own, see `plimsoll models`]
    #[arg(long, help_heading = "Model size")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Layers, stages or blocks of the model. [default: the model's own]
    #[arg(long, help_heading = "Model size")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// Heads of each attention: gpt, gpt2 and vit. [default: the model's own]
    #[arg(long, help_heading = "Model size")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Pixels of a patch's side: vit. [default: 16]
    #[arg(long, help_heading = "Model size")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<usize>,
    /// Pixels of an image's side: images of a folder are resized to it, random ones made so. [default: the size of the first]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<usize>,
    /// Tokens of a sequence, of a text or of random data. [default: the model's own]
    #[arg(long, help_heading = "Data")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<usize>,
    /// Lengths of axes that an ONNX file leaves open, by their names or by input and number, with commas: `sequence=128,image.2=96`.
    /// [default: those of the data]
    #[arg(long, help_heading = "Data", value_name = "AXIS=LENGTH,…")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<String>,
    /// The weights that are trained, by name, with commas: `head`, `layers.3[01].*`; `*` stands for any letters, `[01]` for one of some, and
    /// parts of a name may be left out at both ends. All others stay as they are, without gradient and state. [default: all]
    #[arg(long, help_heading = "Training", value_name = "PATTERN,…")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<String>,
    /// Hold this share of each weight at zero, its smallest elements (`0.8`), or two of every four along its inputs (`2:4`). Biases and norms are spared.
    /// Masks take a byte a weight; checkpoints have them. [default: none]
    #[arg(long, help_heading = "Training", value_name = "SHARE | 2:4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<String>,
    /// How `--prune` goes on: `polynomial` (more and more, from a tenth of the steps to three quarters) or `constant` (all at once, after a
    /// quarter of them). [default: polynomial; constant for 2:4]
    #[arg(long, help_heading = "Training", value_name = "HOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune_schedule: Option<String>,
    /// The weights that `--prune` is of, by name, as of --train. [default: all of two axes or more]
    #[arg(long, help_heading = "Training", value_name = "PATTERN,…")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune_pattern: Option<String>,
    /// Train with the rounding of int8 in dense layers and convolutions, so that `export --quantize int8` costs less: for models of the zoo.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", help_heading = "Training")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantize_aware: Option<bool>,
    /// Begin with the weights of this safetensors file, as far as their names and shapes are the model's; what matched and what did not is
    /// listed. [default: drawn, or a file's own]
    #[arg(long, help_heading = "Training", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Stop when this metric (`val_loss`, `accuracy` …) has not become better for `--patience` epochs. [default: never]
    #[arg(long, help_heading = "Run")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<String>,
    /// Epochs that early stopping waits. [default: 3]
    #[arg(long, help_heading = "Run")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// Only what is better by more than this counts as better, for early stopping and the best checkpoint. [default: 0]
    #[arg(long, help_heading = "Run")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_delta: Option<f64>,
    /// Keep the checkpoint of the epoch with the best value of this metric (`val_loss`, `accuracy` …) in the run's folder `best`.
    /// [default: none; the metric of --early-stopping where --restore-best is asked for]
    #[arg(long, help_heading = "Run", value_name = "METRIC")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<String>,
    /// Let the trained model be that of the best epoch and not of the last: for --best or --early-stopping.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", help_heading = "Run")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_best: Option<bool>,
}

/// Takes each field from the flags where it is set there.
macro_rules! over {
    ($flags:expr, $file:expr, $($field:ident)*) => {
        Config { $($field: $flags.$field.or($file.$field)),* }
    };
}

impl Config {
    /// Reads a TOML file.
    pub fn read(path: &Path) -> Result<Config, Failure> {
        let text = std::fs::read_to_string(path).map_err(|e| Failure(format!("{}: {e}", path.display())))?;
        toml::from_str(&text).map_err(|e| Failure(format!("{}: {e}", path.display())))
    }

    /// Reads a TOML file that somebody wrote: settings of a run, and what is asked of one call.
    pub fn read_request(path: &Path) -> Result<(Config, Session), Failure> {
        let failed = |e: &dyn std::fmt::Display| Failure(format!("{}: {e}", path.display()));
        let text = named_file::text(path, "a file of settings (the config.toml of a run is one)")?;
        let mut table: toml::Table = toml::from_str(&text).map_err(|e| failed(&e))?;
        if table.is_empty() {
            return Err(failed(
                &"it sets nothing; every flag of plimsoll train is a key of it, say model = \"cnn\"",
            ));
        }
        let words: toml::Table = Session::KEYS.iter().filter_map(|key| table.remove_entry(*key)).collect();
        // Read from the text where it can be, so that an error has its line.
        let config = match words.is_empty() {
            true => toml::from_str(&text),
            false => table.try_into(),
        };
        Ok((config.map_err(|e| failed(&e))?, words.try_into().map_err(|e: toml::de::Error| failed(&e))?))
    }

    /// Puts in what everybody gets who says nothing.
    pub fn complete(&mut self, demo: bool) {
        let (batch, epochs, lr) = if demo { (250, 15, 4e-3) } else { (32, 10, 1e-3) };
        self.batch.get_or_insert(BatchSize::Samples(batch));
        self.epochs.get_or_insert(epochs);
        // A Keras file brings its own.
        if self.optimizer.is_none() && !self.model.as_deref().is_some_and(is_keras) {
            self.lr.get_or_insert(lr);
        }
    }

    /// Samples a step, where a number is named.
    pub fn samples(&self) -> Option<usize> {
        self.batch.and_then(BatchSize::samples)
    }

    /// The weights that are trained, where not all are.
    pub fn patterns(&self) -> Result<Option<Patterns>, Failure> {
        let parse = |text: &String| Patterns::parse(text).map_err(|why| Failure(format!("--train: {why}")));
        self.train.as_ref().map(parse).transpose()
    }

    /// The weights that are held at zero, over so many steps.
    pub fn pruning(&self, steps: u64) -> Result<Option<Pruning>, Failure> {
        let Some(prune) = &self.prune else {
            let alone =
                [("--prune-schedule", &self.prune_schedule), ("--prune-pattern", &self.prune_pattern)];
            return match alone.into_iter().find(|(_, said)| said.is_some()) {
                Some((flag, _)) => Err(Failure(format!("{flag} is for --prune, which is not asked for"))),
                None => Ok(None),
            };
        };
        let wrong = || Failure(format!("--prune {prune}: it is a share between 0 and 1, as 0.8 is, or 2:4"));
        let sparsity = match prune.as_str() {
            "2:4" => Sparsity::TwoOfFour,
            share => Sparsity::Share(share.parse().map_err(|_| wrong())?),
        };
        if matches!(sparsity, Sparsity::Share(share) if !(share > 0.0 && share < 1.0)) {
            return Err(wrong());
        }
        if self.average.is_some() {
            let why =
                "averages of weights are not zero where pruned weights are; leave --prune or --average out";
            return Err(Failure(why.into()));
        }
        let pruning = match (self.prune_schedule.as_deref(), sparsity) {
            (Some("constant"), _) | (None, Sparsity::TwoOfFour) => Pruning::at_once(sparsity, steps),
            (Some("polynomial") | None, _) => Pruning::gradual(sparsity, steps)?,
            (Some(other), _) => {
                return Err(Failure(format!("--prune-schedule {other}: it is polynomial or constant")));
            }
        };
        let Some(text) = &self.prune_pattern else { return Ok(Some(pruning)) };
        let patterns = Patterns::parse(text).map_err(|why| Failure(format!("--prune-pattern: {why}")))?;
        Ok(Some(pruning.only(patterns)))
    }

    /// The metric whose best epoch is kept.
    pub fn best_metric(&self) -> Option<&str> {
        let stopping = self.early_stopping.as_deref().filter(|_| self.restore_best == Some(true));
        self.best.as_deref().or(stopping)
    }

    /// These settings, with those of `file` where nothing is said.
    pub fn over(self, file: Config) -> Config {
        over!(self, file, model model_copy data validation validation_split stratified scale columns augment batch epochs optimizer lr weight_decay schedule warm_up clip_norm average loss class_weights metrics precision tf32
            memory host_memory disk allocator state exact micro_batch device place soft_placement parallel sync_batch_norm threads no_plan_cache seed checkpoint_every keep on_error take classes width depth heads
            patch image sequence bind train prune prune_schedule prune_pattern quantize_aware from early_stopping patience min_delta best restore_best)
    }

    /// These settings with paths that mean the same from every folder, so that a run can be used from anywhere.
    pub fn anchored(mut self) -> Result<Config, Failure> {
        let anchored = |name: &mut Option<String>, is_path: fn(&str) -> bool| -> Result<(), Failure> {
            if let Some(path) = name.as_deref().filter(|name| is_path(name)) {
                let path = std::path::absolute(path).map_err(|e| Failure(format!("{path}: {e}")))?;
                *name = Some(path.to_string_lossy().into_owned());
            }
            Ok(())
        };
        anchored(&mut self.data, is_path)?;
        anchored(&mut self.from, |_| true)?;
        // With how much of it behind it.
        anchored(&mut self.disk, |_| true)?;
        anchored(&mut self.validation, is_path)?;
        anchored(&mut self.model, is_model_file)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_over_the_file_and_come_back_from_one() {
        let file: Config =
            toml::from_str("model = \"cnn\"\nbatch = 32\nclip-norm = 1.0\nexact = \"bitwise\"").unwrap();
        let flags = Config { batch: Some(BatchSize::Samples(8)), ..Config::default() };
        let both = flags.over(file);
        assert_eq!(
            (both.samples(), both.clip_norm, both.model.as_deref()),
            (Some(8), Some(1.0), Some("cnn"))
        );
        let again: Config = toml::from_str(&toml::to_string(&both).unwrap()).unwrap();
        assert_eq!(toml::to_string(&again).unwrap(), toml::to_string(&both).unwrap());
        assert!(toml::from_str::<Config>("bacth = 3").is_err());
    }
}
