//! What outlives the process: everything a training holds, as safetensors beside a small JSON, there whole or not at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::Position;
use plimsoll_device::Peers;
use plimsoll_formats::Element;
use plimsoll_formats::durable::{self, ChecksumError, Checksummed, FileSum};
use plimsoll_formats::safetensors::{self, Reader, Spec, Tensor as Stored, Writer};
use plimsoll_graph::Type;
use plimsoll_nn::{OfRanks, Pieces, Training};
use serde::{Deserialize, Serialize};

use crate::best::BestEpoch;
use crate::callback::Callback;
use crate::error::{Error, Result};
use crate::parts_file;
use crate::pieces::Staged;
use crate::terms::Terms;

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
    /// Whether every rank writes one of its own, whole.
    on_each: bool,
}

impl Checkpoints {
    /// One after each epoch, the last three kept.
    pub fn new(folder: impl Into<PathBuf>) -> Checkpoints {
        Checkpoints { folder: folder.into(), every: None, keep: 3, on_each: false }
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

    /// One on every rank, each with all of the state.
    pub(crate) fn on_each(mut self) -> Checkpoints {
        self.on_each = true;
        self
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn is_due(&self, step: u64) -> bool {
        self.every.is_some_and(|every| step.is_multiple_of(every))
    }

    pub(crate) fn save(
        &self,
        checkpoint: &Checkpoint,
        training: &Training,
        ranks: Option<&Arc<dyn Peers>>,
    ) -> Result<PathBuf> {
        std::fs::create_dir_all(&self.folder).map_err(Error::file(&self.folder))?;
        let path = checkpoint.save(self, training, ranks)?;
        // What is newer than this one, of a training that went further, is not for this one to count or to remove.
        let step = checkpoint.progress.step;
        durable::keep_last_until(&self.folder, self.keep, step).map_err(Error::file(&self.folder))?;
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
    /// Which pass over the data the batches of the epoch are of.
    #[serde(default)]
    pub pass: Option<u64>,
    /// Samples of the epoch so far.
    pub samples: u64,
    /// The sum of their losses.
    #[serde(with = "number")]
    pub loss: f64,
    /// The sums of each metric over them.
    #[serde(with = "numbers")]
    pub sums: Vec<Vec<f64>>,
    /// Steps of the epoch that were left out.
    pub skipped: u64,
    /// The loss of the last that was left out only because its gradients were too large for f16.
    #[serde(default)]
    pub skipped_loss: Option<f64>,
    /// What the loss was multiplied by in the last step, with f16.
    #[serde(default)]
    pub loss_scale: Option<f64>,
    /// The norms of the epoch's gradients, where they are known.
    #[serde(default)]
    pub norms: Norms,
    /// The best epoch so far, where one is kept.
    #[serde(default)]
    pub best: Option<BestEpoch>,
    /// What callbacks multiply the learning rate by.
    pub rate_factor: f64,
    /// Seconds of the epoch so far: of steps, of waiting for input, and of whatever callbacks do in between.
    pub seconds: f64,
    /// Of those, seconds in which nothing was computed because the next batch was not there.
    pub waiting: f64,
    /// Of those, seconds of steps.
    #[serde(default)]
    pub stepping: f64,
}

impl Progress {
    /// Before the first step.
    pub(crate) fn start() -> Progress {
        Progress { rate_factor: 1.0, ..Progress::default() }
    }

    /// Whether some batches of the epoch were seen.
    pub fn is_begun(&self) -> bool {
        self.samples > 0 || self.skipped > 0
    }

    pub(crate) fn begin_epoch(&mut self) {
        (self.is_epoch_over, self.pass) = (false, None);
        (self.samples, self.loss, self.skipped, self.skipped_loss) = (0, 0.0, 0, None);
        (self.seconds, self.waiting, self.stepping) = (0.0, 0.0, 0.0);
        self.sums.clear();
        self.norms = Norms::default();
    }
}

/// The norms of an epoch's gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Norms {
    /// Steps whose norm is known.
    pub steps: u64,
    /// The sum of their norms.
    #[serde(with = "number")]
    pub sum: f64,
    /// The largest of them.
    #[serde(with = "number")]
    pub most: f64,
}

impl Norms {
    pub(crate) fn add(&mut self, norm: f64) {
        self.steps += 1;
        self.sum += norm;
        self.most = self.most.max(norm);
    }

    pub(crate) fn mean(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.sum / self.steps as f64)
    }
}

/// The JSON of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    version: u32,
    /// The version of the program that wrote it; none in early ones.
    #[serde(default)]
    pub plimsoll: Option<String>,
    /// How far the training has come.
    pub progress: Progress,
    /// What it stands on; none in checkpoints of before it was written down.
    #[serde(default)]
    pub terms: Option<Terms>,
    /// What callbacks keep, by their order.
    pub callbacks: Vec<Option<serde_json::Value>>,
    /// Which callbacks those are.
    #[serde(default)]
    pub callback_names: Vec<String>,
    /// Sums of the files beside it.
    files: Vec<FileSum>,
}

impl Checkpoint {
    pub(crate) fn new(
        progress: Progress,
        terms: Option<Terms>,
        callbacks: &[Box<dyn Callback>],
    ) -> Checkpoint {
        Checkpoint {
            version: VERSION,
            plimsoll: Some(env!("CARGO_PKG_VERSION").into()),
            progress,
            terms,
            callbacks: callbacks.iter().map(|callback| callback.state()).collect(),
            callback_names: callbacks.iter().map(|callback| callback.name().to_string()).collect(),
            files: Vec::new(),
        }
    }

    /// Gives each callback what it kept: the first of a name what the first of that name kept, and so on.
    pub(crate) fn restore_callbacks(&self, callbacks: &mut [Box<dyn Callback>]) {
        let mut left: Vec<(Option<&String>, &serde_json::Value)> = Vec::new();
        for (i, state) in self.callbacks.iter().enumerate() {
            left.extend(state.as_ref().map(|state| (self.callback_names.get(i), state)));
        }
        for callback in callbacks.iter_mut().filter(|callback| callback.state().is_some()) {
            let own = |(name, _): &(Option<&String>, _)| name.is_none_or(|name| name == callback.name());
            if let Some(at) = left.iter().position(own) {
                callback.restore(left.remove(at).1);
            }
        }
    }

    /// Writes a checkpoint into a folder of checkpoints; returns its own folder.
    fn save(
        &self,
        into: &Checkpoints,
        training: &Training,
        ranks: Option<&Arc<dyn Peers>>,
    ) -> Result<PathBuf> {
        let path = durable::step_path(&into.folder, self.progress.step);
        durable::write_dir(&path, |unfinished| -> Result<(), Error> {
            let state = unfinished.join(STATE);
            let sum = match !into.on_each && write_parts(Some(&state), training, ranks)? {
                true => FileSum::of(unfinished, STATE).map_err(|e| unwritten(&state, e))?,
                false => {
                    let file = std::fs::File::create(&state).map_err(Error::file(&state))?;
                    let mut out = Checksummed::new(std::io::BufWriter::with_capacity(1 << 16, file));
                    save_tensors(&mut out, kept(training), ranks, &state)?;
                    out.sum(STATE)
                }
            };
            let json = unfinished.join(JSON);
            let checkpoint = Checkpoint { files: vec![sum], ..self.clone() };
            let text = serde_json::to_vec_pretty(&checkpoint).map_err(|e| unwritten(&json, e))?;
            std::fs::write(&json, text).map_err(Error::file(&json))
        })
        .map_err(|error| error.at(&path))?;
        Ok(path)
    }

    /// The newest checkpoint of a folder: of a run, of its checkpoints, or of one checkpoint. `None` if there is none.
    /// Whether it is whole, [`Checkpoint::read`] says.
    pub fn newest(folder: &Path) -> Result<Option<PathBuf>> {
        Ok(Checkpoint::all(folder)?.into_iter().next())
    }

    /// All checkpoints of a folder, the newest first: of a run, of its checkpoints, or of one checkpoint.
    pub fn all(folder: &Path) -> Result<Vec<PathBuf>> {
        if folder.join(JSON).is_file() {
            return Ok(vec![folder.into()]);
        }
        for place in [folder.join("checkpoints"), folder.into()] {
            let steps = durable::steps(&place).map_err(Error::file(&place))?;
            if !steps.is_empty() {
                return Ok(steps.into_iter().rev().map(|(_, path)| path).collect());
            }
        }
        Ok(Vec::new())
    }

    /// Reads a checkpoint and puts its state into a training of the same model and optimizer.
    ///
    /// # Errors
    /// It is damaged, or of another model; then the training is as it was.
    pub fn restore(folder: &Path, training: &mut Training) -> Result<Checkpoint> {
        let checkpoint = Checkpoint::read(folder)?;
        checkpoint.restore_state(folder, training)?;
        Ok(checkpoint)
    }

    pub(crate) fn restore_state(&self, folder: &Path, training: &mut Training) -> Result<()> {
        load_tensors(&folder.join(STATE), training, true).map_err(|error| unlike(folder, error))
    }

    /// Sets the parameters alone to what they were.
    pub(crate) fn restore_weights(&self, folder: &Path, training: &mut Training) -> Result<()> {
        load_tensors(&folder.join(STATE), training, false).map_err(|error| unlike(folder, error))
    }

    /// Reads the JSON of a checkpoint and checks the files beside it.
    ///
    /// # Errors
    /// [`Error::Damaged`] where it is not what was written, [`Error::Unlike`] where a newer program wrote it, and else what the
    /// system says.
    pub fn read(folder: &Path) -> Result<Checkpoint> {
        let json = folder.join(JSON);
        let text = std::fs::read_to_string(&json).map_err(|e| unread(folder, JSON, e))?;
        let versioned: Versioned =
            serde_json::from_str(&text).map_err(|e| damaged(folder, format!("{JSON}: {e}")))?;
        if versioned.version > VERSION {
            let why = format!("it is of version {}, and this program knows {VERSION}", versioned.version);
            return Err(Error::Unlike { path: folder.into(), why });
        }
        let checkpoint: Checkpoint =
            serde_json::from_str(&text).map_err(|e| damaged(folder, format!("{JSON}: {e}")))?;
        if !checkpoint.files.iter().any(|file| file.name == STATE) {
            return Err(damaged(folder, format!("it does not say what {STATE} should be")));
        }
        for file in &checkpoint.files {
            file.verify(folder).map_err(|error| match error {
                ChecksumError::Io { name, source } => unread(folder, &name, source),
                other => damaged(folder, other),
            })?;
        }
        Ok(checkpoint)
    }
}

/// What every version of the JSON has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Writes this rank's parts of the state into the file of the first rank, or hands them to it, where it does not see that file; all ranks are at the same
/// place.
pub(crate) fn hand_shards(training: &Training, ranks: Option<&Arc<dyn Peers>>) -> Result<()> {
    if !training.is_sharded() || write_parts(None, training, ranks)? {
        return Ok(());
    }
    // The same as the first rank does, to nowhere: so all exchange the same in the same order.
    save_tensors(&mut std::io::sink(), kept(training), ranks, Path::new("nowhere"))
}

/// Has all ranks write their parts of the state at once, where they have parts and see the same files; whether they did.
fn write_parts(first: Option<&Path>, training: &Training, ranks: Option<&Arc<dyn Peers>>) -> Result<bool> {
    let Some(ranks) = ranks.filter(|_| training.is_sharded()) else { return Ok(false) };
    parts_file::write(first, &kept(training).collect::<Vec<_>>(), ranks)
}

/// Writes named tensors as safetensors, without a copy of them. Where ranks have shards of them, all ranks call it, and pieces go from each to all.
pub(crate) fn save_tensors<'a>(
    out: &mut impl std::io::Write,
    tensors: impl Iterator<Item = OfRanks<'a>>,
    ranks: Option<&Arc<dyn Peers>>,
    path: &Path,
) -> Result<()> {
    let tensors: Vec<OfRanks<'_>> = tensors.collect();
    let by_name: BTreeMap<&str, &OfRanks<'_>> = tensors.iter().map(|part| (part.name, part)).collect();
    let mut writer = header(&mut *out, &tensors, path)?;
    let mut staged = Staged::default();
    while let Some(next) = writer.next_tensor() {
        let part = by_name[next.name.as_str()];
        let mut write = |bytes: &[u8]| writer.write(bytes).map_err(|e| unwritten(path, e));
        match (&part.pieces, ranks) {
            (Some(pieces), Some(ranks)) => staged.gather(part.own, pieces, ranks, &mut write)?,
            _ => staged.copy(part.own, 0, part.whole.bytes(), None, &mut write)?,
        }
    }
    writer.finish().map_err(|e| unwritten(path, e))?;
    out.flush().map_err(Error::file(path))
}

/// The header of a file of these tensors, as all ranks together have them.
pub(crate) fn header<W: std::io::Write>(out: W, parts: &[OfRanks<'_>], path: &Path) -> Result<Writer<W>> {
    let spec = |part: &OfRanks<'_>| Spec {
        name: part.name.to_string(),
        element: Element::from(part.whole.dtype),
        shape: part.whole.shape[..].to_vec(),
    };
    let metadata = BTreeMap::from([
        ("format".to_string(), "plimsoll".to_string()),
        ("plimsoll".to_string(), env!("CARGO_PKG_VERSION").to_string()),
    ]);
    Writer::new(out, parts.iter().map(spec).collect(), &metadata).map_err(|e| unwritten(path, e))
}

/// The state of a training but for parameters whose values are those of a file and stay so.
fn kept(training: &Training) -> impl Iterator<Item = OfRanks<'_>> {
    let is_given = |i: usize| training.params().get(i).is_some_and(plimsoll_nn::Param::is_given);
    training.whole_state().enumerate().filter(move |(i, _)| !is_given(*i)).map(|(_, part)| part)
}

/// Reads tensors of a safetensors file into a training. With `all`, the file must hold exactly its state; else the
/// parameters are read, and whatever else it holds is not looked at. What does not fit is refused before anything is read.
pub(crate) fn load_tensors(path: &Path, training: &mut Training, all: bool) -> Result<()> {
    let mut reader = Reader::open(path).map_err(|error| match error {
        // The name of the file is said once.
        safetensors::Error::File { source, .. } => match *source {
            safetensors::Error::Io(source) => Error::File { path: path.into(), source },
            why => unfit(path, why),
        },
        why => unfit(path, why),
    })?;
    let given = training.params().iter().filter(|param| param.is_given()).count();
    let n = if all { usize::MAX } else { training.params().len() - given };
    // Of what ranks have parts of, this one reads its own.
    let wanted: Vec<(String, Type, Option<Pieces>)> =
        kept(training).take(n).map(|part| (part.name.to_string(), part.whole.clone(), part.pieces)).collect();
    for (name, ty, _) in &wanted {
        let tensor = reader.tensor(name).map_err(|_| unfit(path, missing(name, reader.tensors())))?;
        if tensor.element != Element::from(ty.dtype) || tensor.shape[..] != ty.shape[..] {
            let found = format!("{}{:?}", tensor.element, tensor.shape);
            return Err(unfit(path, format!("{name} is {found} there, and {ty} in this model")));
        }
    }
    let known = |name: &str| wanted.iter().any(|(own, ..)| own == name);
    if let Some(other) = reader.tensors().iter().find(|tensor| all && !known(&tensor.name)) {
        return Err(unfit(path, format!("it also holds {}, which this training does not have", other.name)));
    }
    let mut buffer = Vec::new();
    for (name, ty, pieces) in &wanted {
        buffer.clear();
        buffer.resize(pieces.as_ref().map_or(ty.bytes(), Pieces::bytes), 0);
        let own = match pieces {
            None => vec![(0..ty.bytes(), 0)],
            Some(pieces) => pieces.own_within(training.rank().rank, 0..ty.bytes()),
        };
        for (of_whole, of_part) in own {
            let own = &mut buffer[of_part..of_part + of_whole.len()];
            reader.read_part(name, of_whole.start, own).map_err(|e| unfit(path, e))?;
        }
        training.restore_own(name, &buffer)?;
    }
    Ok(())
}

/// Says that a tensor is not there, and what is.
fn missing(name: &str, there: &[Stored]) -> String {
    let names: Vec<&str> = there.iter().take(3).map(|tensor| tensor.name.as_str()).collect();
    let more = if there.len() > names.len() { " …" } else { "" };
    format!("it holds no {name}, but {} tensors: {}{more}", there.len(), names.join(", "))
}

/// What does not fit is of another training.
fn unlike(folder: &Path, error: Error) -> Error {
    match error {
        Error::Weights { why, .. } => Error::Unlike { path: folder.into(), why },
        other => other,
    }
}

fn damaged(folder: &Path, why: impl std::fmt::Display) -> Error {
    Error::Damaged { path: folder.into(), why: why.to_string() }
}

fn unfit(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::Weights { path: path.into(), why: why.to_string() }
}

pub(crate) fn unwritten(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::Unwritten { path: path.into(), why: why.to_string() }
}

/// A file of a checkpoint that could not be read: it is damage where it is gone or holds nonsense, and else the system's affair,
/// for which no checkpoint is to be passed over.
fn unread(folder: &Path, name: &str, source: std::io::Error) -> Error {
    use std::io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    match source.kind() {
        NotFound => damaged(folder, format!("{name} is not there")),
        InvalidData | UnexpectedEof => damaged(folder, format!("{name}: {source}")),
        _ => Error::File { path: folder.join(name), source },
    }
}

/// Numbers as JSON has none: an infinity or what is no number must not make a checkpoint that nobody can read.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Other(String),
}

impl Number {
    fn new(value: f64) -> Number {
        if value.is_finite() { Number::Finite(value) } else { Number::Other(value.to_string()) }
    }

    fn get<E: serde::de::Error>(&self) -> Result<f64, E> {
        match self {
            Number::Finite(value) => Ok(*value),
            Number::Other(text) => text.parse().map_err(|_| E::custom(format!("{text} is no number"))),
        }
    }
}

pub(crate) mod number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Number;

    pub(crate) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        Number::new(*value).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        Number::deserialize(from)?.get()
    }
}

mod numbers {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Number;

    pub(super) fn serialize<S: Serializer>(values: &[Vec<f64>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(|row| row.iter().map(|&x| Number::new(x)).collect::<Vec<Number>>()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<f64>>, D::Error> {
        let rows = Vec::<Vec<Number>>::deserialize(from)?;
        rows.iter().map(|row| row.iter().map(Number::get).collect()).collect()
    }
}

impl From<std::io::Error> for Error {
    fn from(source: std::io::Error) -> Error {
        Error::File { path: PathBuf::new(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_with_numbers_that_json_has_not_comes_back() {
        let sums = vec![vec![f64::INFINITY, 1.5], vec![f64::NAN]];
        let progress = Progress { loss: f64::NEG_INFINITY, sums, ..Progress::start() };
        let again: Progress = serde_json::from_str(&serde_json::to_string(&progress).unwrap()).unwrap();
        assert_eq!((again.loss, again.sums[0].clone()), (f64::NEG_INFINITY, vec![f64::INFINITY, 1.5]));
        assert!(again.sums[1][0].is_nan());
    }
}
