//! What outlives the process: everything a training holds, as safetensors beside a small JSON, there whole or not at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_data::Position;
use plimsoll_formats::Element;
use plimsoll_formats::durable::{self, Checksummed, FileSum};
use plimsoll_formats::safetensors::{Reader, Spec, Writer};
use plimsoll_graph::TensorOps;
use plimsoll_nn::Training;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

const STATE: &str = "state.safetensors";
const JSON: &str = "checkpoint.json";
/// The version of the JSON; a newer one is refused.
const VERSION: u32 = 1;

/// Where checkpoints go, how often, and how many stay.
///
/// ```
/// use plimsoll_train::Checkpoints;
/// let often = Checkpoints::new("run/checkpoints").every(100).keep(3);
/// assert_eq!(often.folder().to_str(), Some("run/checkpoints"));
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    every: Option<u64>,
    keep: usize,
}

impl Checkpoints {
    /// One after each epoch, the last three kept.
    pub fn new(folder: impl Into<PathBuf>) -> Checkpoints {
        Checkpoints { folder: folder.into(), every: None, keep: 3 }
    }

    /// Also one every so many steps.
    #[must_use]
    pub fn every(mut self, steps: u64) -> Checkpoints {
        self.every = (steps > 0).then_some(steps);
        self
    }

    /// How many are kept.
    #[must_use]
    pub fn keep(mut self, last: usize) -> Checkpoints {
        self.keep = last.max(1);
        self
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn is_due(&self, step: u64) -> bool {
        self.every.is_some_and(|every| step.is_multiple_of(every))
    }

    pub(crate) fn save(&self, checkpoint: &Checkpoint, training: &Training) -> Result<PathBuf> {
        std::fs::create_dir_all(&self.folder).map_err(Error::file(&self.folder))?;
        let path = checkpoint.save(&self.folder, training)?;
        durable::keep_last(&self.folder, self.keep).map_err(Error::file(&self.folder))?;
        Ok(path)
    }
}

/// How far a training has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Epochs that are complete.
    pub epoch: u64,
    /// Updates done.
    pub step: u64,
    /// Where the input pipeline stands.
    pub position: Option<Position>,
    /// Whether all batches of the epoch are done, and only its evaluation is not.
    #[serde(default)]
    pub is_epoch_over: bool,
    /// Samples of the epoch so far.
    pub samples: u64,
    /// The sum of their losses.
    pub loss: f64,
    /// The sums of each metric over them.
    pub sums: Vec<Vec<f64>>,
    /// Steps of the epoch that were left out.
    pub skipped: u64,
    /// What callbacks multiply the learning rate by.
    pub rate_factor: f64,
    /// Seconds of the epoch so far, and of those, seconds of waiting for input.
    pub seconds: f64,
    /// See above.
    pub waiting: f64,
}

impl Progress {
    pub(crate) fn begin_epoch(&mut self) {
        self.is_epoch_over = false;
        (self.samples, self.loss, self.skipped) = (0, 0.0, 0);
        (self.seconds, self.waiting) = (0.0, 0.0);
        self.sums.clear();
    }
}

/// The JSON of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    version: u32,
    /// How far the training has come.
    pub progress: Progress,
    /// What callbacks keep, by their order.
    pub callbacks: Vec<Option<serde_json::Value>>,
    /// Sums of the files beside it.
    files: Vec<FileSum>,
}

impl Checkpoint {
    pub(crate) fn new(progress: Progress, callbacks: Vec<Option<serde_json::Value>>) -> Checkpoint {
        Checkpoint { version: VERSION, progress, callbacks, files: Vec::new() }
    }

    /// Writes a checkpoint into a folder of checkpoints; returns its own folder.
    fn save(&self, folder: &Path, training: &Training) -> Result<PathBuf> {
        let path = durable::step_path(folder, self.progress.step);
        durable::write_dir(&path, |unfinished| -> Result<(), Error> {
            let state = unfinished.join(STATE);
            let file = std::fs::File::create(&state).map_err(Error::file(&state))?;
            let mut out = Checksummed::new(std::io::BufWriter::with_capacity(1 << 16, file));
            save_tensors(&mut out, training.state(), &state)?;
            let json = unfinished.join(JSON);
            let checkpoint = Checkpoint { files: vec![out.sum(STATE)], ..self.clone() };
            let text = serde_json::to_vec_pretty(&checkpoint).map_err(|e| broken(&json, e))?;
            std::fs::write(&json, text).map_err(Error::file(&json))
        })?;
        Ok(path)
    }

    /// The newest checkpoint of a folder: of a run, of its checkpoints, or of one checkpoint. `None` if there is none.
    pub fn newest(folder: &Path) -> Result<Option<PathBuf>> {
        if folder.join(JSON).is_file() {
            return Ok(Some(folder.into()));
        }
        for place in [folder.join("checkpoints"), folder.into()] {
            let steps = durable::steps(&place).map_err(Error::file(&place))?;
            if let Some((_, path)) = steps.into_iter().next_back() {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Reads a checkpoint and puts its state into a training of the same model and optimizer.
    pub fn restore(folder: &Path, training: &mut Training) -> Result<Checkpoint> {
        let checkpoint = Checkpoint::read(folder)?;
        load_tensors(&folder.join(STATE), training, true)?;
        Ok(checkpoint)
    }

    /// Reads the JSON of a checkpoint and checks the files beside it.
    pub fn read(folder: &Path) -> Result<Checkpoint> {
        let json = folder.join(JSON);
        let text = std::fs::read_to_string(&json).map_err(Error::file(&json))?;
        let checkpoint: Checkpoint = serde_json::from_str(&text).map_err(|e| broken(folder, e))?;
        if checkpoint.version > VERSION {
            let why = format!("it is of version {}, and this program knows {VERSION}", checkpoint.version);
            return Err(broken(folder, why));
        }
        if !checkpoint.files.iter().any(|file| file.name == STATE) {
            return Err(broken(folder, format!("it does not say what {STATE} should be")));
        }
        for file in &checkpoint.files {
            file.verify(folder).map_err(|e| broken(folder, e))?;
        }
        Ok(checkpoint)
    }
}

/// Tensors of a device are read through a buffer of this size.
const STAGED_BYTES: usize = 1 << 16;

/// Writes named tensors as safetensors, without a copy of them.
pub(crate) fn save_tensors<'a>(
    out: &mut impl std::io::Write,
    tensors: impl Iterator<Item = (&'a str, &'a plimsoll_run::Tensor)>,
    path: &Path,
) -> Result<()> {
    let tensors: Vec<(&str, &plimsoll_run::Tensor)> = tensors.collect();
    let by_name: BTreeMap<&str, &plimsoll_run::Tensor> = tensors.iter().copied().collect();
    let spec = |(name, tensor): &(&str, &plimsoll_run::Tensor)| Spec {
        name: name.to_string(),
        element: Element::from(tensor.dtype()),
        shape: tensor.shape()[..].to_vec(),
    };
    let metadata = BTreeMap::from([("format".to_string(), "plimsoll".to_string())]);
    let specs = tensors.iter().map(spec).collect();
    let mut writer = Writer::new(&mut *out, specs, &metadata).map_err(|e| broken(path, e))?;
    let mut buffer = Vec::new();
    while let Some(next) = writer.next_tensor() {
        let tensor = by_name[next.name.as_str()];
        let bytes = tensor.ty().bytes();
        for start in (0..bytes).step_by(STAGED_BYTES) {
            buffer.resize(STAGED_BYTES.min(bytes - start), 0);
            tensor.read_bytes(start, &mut buffer)?;
            writer.write(&buffer).map_err(|e| broken(path, e))?;
        }
    }
    writer.finish().map_err(|e| broken(path, e))?;
    out.flush().map_err(Error::file(path))
}

/// Reads tensors of a safetensors file into a training; with `all`, the file must hold exactly its state, else it may hold
/// more than the parameters.
pub(crate) fn load_tensors(path: &Path, training: &mut Training, all: bool) -> Result<()> {
    let mut reader = Reader::open(path).map_err(|e| broken(path, e))?;
    let wanted: Vec<(String, plimsoll_graph::Type)> =
        training.state().map(|(name, tensor)| (name.to_string(), tensor.ty().clone())).collect();
    if all && reader.tensors().len() != wanted.len() {
        let (found, own) = (reader.tensors().len(), wanted.len());
        return Err(broken(
            path,
            format!("it holds {found} tensors, and this model and optimizer have {own}"),
        ));
    }
    for (name, ty) in &wanted {
        let tensor = reader.tensor(name).map_err(|_| broken(path, format!("it does not hold {name}")))?;
        if tensor.element != Element::from(ty.dtype) || tensor.shape[..] != ty.shape[..] {
            let found = format!("{}{:?}", tensor.element, tensor.shape);
            return Err(broken(path, format!("{name} is {found} there, and {ty} in this model")));
        }
    }
    let mut buffer = Vec::new();
    for (name, ty) in &wanted {
        buffer.resize(ty.bytes(), 0);
        reader.read_into(name, &mut buffer).map_err(|e| broken(path, e))?;
        training.restore(name, &buffer)?;
    }
    Ok(())
}

fn broken(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::Checkpoint { path: path.into(), why: why.to_string() }
}

impl From<std::io::Error> for Error {
    fn from(source: std::io::Error) -> Error {
        Error::File { path: PathBuf::from("a checkpoint"), source }
    }
}
