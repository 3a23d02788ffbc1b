//! The builder: what the user says of a pipeline, until it runs.
//!
//! Constructors stand with the source that they open (`open/`, `source/random`, `source/to_come`), and stages that are a subject of their own with that
//! (`cache`, `classes`, `augment`, `batch_map`, `combine`, `held_back`, `digest`).

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::ops::Rank;

use crate::batches::Batches;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::held_back::Part;
use crate::open::Split;
use crate::order::Move;
use crate::plan::{AUTO, Amount, Limits};
use crate::position::Position;
use crate::recipe::{OnError, Padded, Recipe, Stage};
use crate::sample::{FieldSpec, Sample, SampleMut};
use crate::sample_reader::{Cursor, Input};
use crate::source::{Arrays, Column, Function, Iterators, Source, StreamSource};
use crate::step::{At, Step};

/// A source of samples and what is done with them on the way to batches.
///
/// Stages act in the order in which they are called. Nothing runs before [`Dataset::batches`]; what does not go together
/// is said there.
///
/// ```no_run
/// use plimsoll_data::{AUTO, Dataset};
///
/// let train = Dataset::idx("fashion-mnist/train")?.shuffle(10_000, 42).batch(128).prefetch(AUTO);
/// for batch in train.batches()? {
///     let batch = batch?;
///     println!("{} samples of {:?}", batch.samples(), batch.field(0).map(|x| x.shape));
/// }
/// # Ok::<(), plimsoll_data::Error>(())
/// ```
#[derive(Clone)]
pub struct Dataset {
    pub(crate) input: Input,
    pub(crate) stages: Vec<Stage>,
    memory: Option<Bytes>,
    prefetch: Amount,
    workers: Amount,
    on_error: OnError,
    /// What is to be said beside what the source says.
    pub(crate) notes: Vec<String>,
    /// Classes of a source that is behind a cache.
    pub(crate) classes: Option<Vec<String>>,
    /// Whether the first field is still what the source wrote, as far as is known: closures may do anything.
    pub(crate) keeps_first: bool,
    /// The part that the source is by name.
    pub(crate) part: Option<Split>,
    /// The rank whose samples of every batch are wanted, where they are not all.
    share: Option<Rank>,
}

impl Dataset {
    // === Sources ===

    /// Samples of a source that is read by number.
    pub fn source(source: impl Source + 'static) -> Dataset {
        Dataset::new(Input::Indexed(Arc::new(source)))
    }

    /// Samples of a source that is read from front to back.
    pub fn stream(source: impl StreamSource + 'static) -> Dataset {
        Dataset::new(Input::Stream(Arc::new(source)))
    }

    /// Samples whose fields are the rows of arrays in memory, which are not copied.
    pub fn columns(columns: impl Into<Vec<Column>>) -> Result<Dataset> {
        Ok(Dataset::source(Arrays::new(columns.into())?))
    }

    /// `len` samples that a function makes from their number.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, FieldSpec};
    /// use plimsoll_graph::DType;
    ///
    /// let squares = Dataset::from_fn([FieldSpec::new("x", DType::I64, [])], 5, |i, out| out.set(0, &[(i * i) as i64]));
    /// let batch = squares.batch(5).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(0).unwrap().get::<i64>()?, [0, 1, 4, 9, 16]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    pub fn from_fn<F>(spec: impl Into<Vec<FieldSpec>>, len: u64, f: F) -> Dataset
    where
        F: Fn(u64, &mut SampleMut<'_>) -> Result<()> + Send + Sync + 'static,
    {
        Dataset::source(Function { spec: spec.into(), len, f })
    }

    /// Samples from an iterator; `make` starts a new one for each pass, `write` puts an item into a sample.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, FieldSpec};
    /// use plimsoll_graph::DType;
    ///
    /// let spec = [FieldSpec::new("x", DType::I32, [])];
    /// let count = Dataset::from_iter(spec, || 0..7, |n, out| out.set(0, &[n])).batch(4);
    /// assert_eq!(count.batches()?.count(), 2);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    pub fn from_iter<I, M, W>(spec: impl Into<Vec<FieldSpec>>, make: M, write: W) -> Dataset
    where
        I: Iterator + Send + 'static,
        M: Fn() -> I + Send + Sync + 'static,
        W: Fn(I::Item, &mut SampleMut<'_>) -> Result<()> + Clone + Send + Sync + 'static,
    {
        Dataset::stream(Iterators { spec: spec.into(), make, write })
    }

    pub(crate) fn new(input: Input) -> Dataset {
        let (on_error, notes) = (OnError::Fail, Vec::new());
        Dataset {
            input,
            stages: Vec::new(),
            memory: None,
            prefetch: AUTO,
            workers: AUTO,
            on_error,
            notes,
            classes: None,
            keeps_first: true,
            part: None,
            share: None,
        }
    }

    /// Leaves types as they are stored: pixels stay `u8`, labels keep their width. Sources convert otherwise: `u8` pixels
    /// become `f32` divided by 255, doubles become `f32`, labels and other whole numbers become `i64`.
    #[must_use]
    pub fn stored(mut self) -> Dataset {
        self.input = match &self.input {
            Input::Indexed(source) => Input::Indexed(source.stored().unwrap_or_else(|| source.clone())),
            Input::Stream(source) => Input::Stream(source.stored().unwrap_or_else(|| source.clone())),
        };
        self
    }

    // === What moves samples around ===

    /// Shuffles, anew in each pass. A source that is read by number is shuffled as a whole and without memory, whatever
    /// the window. A stream is shuffled in a window of so many packed samples, each with at most 16 bytes beside it.
    #[must_use]
    pub fn shuffle(self, window: usize, seed: u64) -> Dataset {
        self.with(Stage::Move(Move::Shuffle { window: window.max(1) as u64, seed }))
    }

    /// Only the first `n`: samples, or after [`Dataset::batch`] batches.
    #[must_use]
    pub fn take(self, n: u64) -> Dataset {
        self.with(Stage::Move(Move::Take(n)))
    }

    /// All but the first `n` samples.
    #[must_use]
    pub fn skip(self, n: u64) -> Dataset {
        self.with(Stage::Move(Move::Skip(n)))
    }

    /// Every `count`-th sample, from number `index` on: the part of one of `count` machines.
    #[must_use]
    pub fn shard(self, index: u64, count: u64) -> Dataset {
        self.with(Stage::Move(Move::Shard { index, count }))
    }

    /// Two parts: what is learned from, and this fraction of the samples, which is held back. Held-back samples are spread
    /// evenly over the data, and are the same ones however it is shuffled later.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    ///
    /// let numbers: Vec<f32> = (0..50).map(|i| i as f32).collect();
    /// let (train, test) = Dataset::columns([Column::memory("x", numbers, [])?])?.hold_back(0.1)?;
    /// assert_eq!((train.samples()?, test.samples()?), (Some(45), Some(5)));
    /// assert_eq!(test.batch(5).batches()?.next().unwrap()?.field(0).unwrap().get::<f32>()?, [9.0, 19.0, 29.0, 39.0, 49.0]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// The fraction is not above 0 and below 1.
    pub fn hold_back(self, fraction: f64) -> Result<(Dataset, Dataset)> {
        let part = Part::held(fraction)?;
        let part = |is_held| Stage::Move(Move::Part(Part { is_held, ..part }));
        Ok((self.clone().with(part(false)), self.with(part(true))))
    }

    /// So many passes over everything before. Before [`Dataset::batch`] a batch may reach over the end of a pass; after
    /// it each pass ends with a batch of its own.
    #[must_use]
    pub fn repeat(self, times: u64) -> Dataset {
        self.with(Stage::Move(Move::Repeat(Some(times))))
    }

    /// Passes without end.
    #[must_use]
    pub fn repeat_forever(self) -> Dataset {
        self.with(Stage::Move(Move::Repeat(None)))
    }

    // === What changes samples ===

    /// Makes new samples, with fields as `spec` says, on many threads; their order stays.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset, FieldSpec};
    /// use plimsoll_graph::DType;
    ///
    /// let x = Column::memory("x", vec![1i64, 2, 3], [])?;
    /// let halves = Dataset::columns([x])?.map([FieldSpec::new("h", DType::F32, [])], |x, out, _| {
    ///     out.set(0, &[x.get::<i64>(0)?[0] as f32 / 2.0])
    /// });
    /// assert_eq!(halves.batch(3).batches()?.next().unwrap()?.field(0).unwrap().get::<f32>()?, [0.5, 1.0, 1.5]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    #[must_use]
    pub fn map<F>(self, spec: impl Into<Vec<FieldSpec>>, f: F) -> Dataset
    where
        F: Fn(&Sample<'_>, &mut SampleMut<'_>, &At) -> Result<()> + Send + Sync + 'static,
    {
        let mut data = self.with(Stage::Step(Step::Map(Arc::new(f), spec.into().into())));
        data.keeps_first = false;
        data
    }

    /// Changes samples where they are, on many threads; fields stay what they are.
    #[must_use]
    pub fn map_in_place<F>(self, f: F) -> Dataset
    where
        F: Fn(&mut SampleMut<'_>, &At) -> Result<()> + Send + Sync + 'static,
    {
        let mut data = self.with(Stage::Step(Step::InPlace(Arc::new(f))));
        data.keeps_first = false;
        data
    }

    /// Keeps the samples of which `f` says so.
    #[must_use]
    pub fn filter<F>(self, f: F) -> Dataset
    where
        F: Fn(&Sample<'_>, &At) -> Result<bool> + Send + Sync + 'static,
    {
        self.with(Stage::Step(Step::Filter(Arc::new(f))))
    }

    // === What batches them ===

    /// Batches of `size` samples; the last of a pass may have fewer.
    #[must_use]
    pub fn batch(self, size: usize) -> Dataset {
        self.with(Stage::Batch { size, drop_remainder: false, padded: Padded::No })
    }

    /// Batches of exactly `size` samples; what is left at the end of a pass is dropped.
    #[must_use]
    pub fn batch_exact(self, size: usize) -> Dataset {
        self.with(Stage::Batch { size, drop_remainder: true, padded: Padded::No })
    }

    /// Batches of samples whose lengths vary: each is filled up with zeros to the longest of its batch.
    #[must_use]
    pub fn padded_batch(self, size: usize) -> Dataset {
        self.with(Stage::Batch { size, drop_remainder: false, padded: Padded::Longest })
    }

    /// As [`Dataset::padded_batch`], to the first of these lengths that holds the longest of a batch, and to the most there can be where
    /// none does. So there are few shapes of batches, and a step is planned once for each.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset, FieldSpec};
    /// use plimsoll_graph::DType;
    /// let lengths = Dataset::columns([Column::memory("n", vec![3i64, 2, 7, 9], [])?])?;
    /// let ones = lengths.map([FieldSpec::varying("x", DType::I64, [10])], |sample, out, _| {
    ///     out.set(0, &vec![1i64; sample.get::<i64>(0)?[0] as usize])
    /// });
    /// let mut batches = ones.padded_batch_to(2, &[4, 8]).batches()?;
    /// assert_eq!(batches.next().unwrap()?.field(0).unwrap().shape[..], [2, 4]);
    /// assert_eq!(batches.next().unwrap()?.field(0).unwrap().shape[..], [2, 10]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    #[must_use]
    pub fn padded_batch_to(self, size: usize, lengths: &[usize]) -> Dataset {
        let mut lengths = lengths.to_vec();
        lengths.sort_unstable();
        self.with(Stage::Batch { size, drop_remainder: false, padded: Padded::To(lengths.into()) })
    }

    /// The lengths that samples of a varying field are filled up to, each a shape of batches: shortest first, the most there can be
    /// last. Empty where no length varies, or where batches may have any length.
    pub fn padded_lengths(&self) -> Result<Vec<usize>> {
        let recipe = self.recipe()?;
        let most = recipe.spec.iter().filter(|field| field.varying).map(FieldSpec::first).max();
        Ok(match (&recipe.padded, most) {
            (Padded::To(bounds), Some(most)) => {
                bounds.iter().copied().filter(|&bound| bound < most).chain([most]).collect()
            }
            _ => Vec::new(),
        })
    }

    pub(crate) fn with(mut self, stage: Stage) -> Dataset {
        self.stages.push(stage);
        self
    }

    // === How it runs ===

    /// How many batches are made ahead: a number, or [`AUTO`], which is what holds without a word.
    #[must_use]
    pub fn prefetch(mut self, batches: impl Into<Amount>) -> Dataset {
        self.prefetch = batches.into();
        self
    }

    /// How many threads make batches: a number, or [`AUTO`], which is what holds without a word.
    #[must_use]
    pub fn workers(mut self, threads: impl Into<Amount>) -> Dataset {
        self.workers = threads.into();
        self
    }

    /// The bytes that the pipeline may take in all: source, windows, threads, batches. Without a word 256 MiB, or an
    /// eighth of what the process can have if that is less.
    #[must_use]
    pub fn memory(mut self, bytes: Bytes) -> Dataset {
        self.memory = Some(bytes);
        self
    }

    /// What happens to a sample that cannot be read or that a step refuses.
    #[must_use]
    pub fn on_error(mut self, what: OnError) -> Dataset {
        self.on_error = what;
        self
    }

    /// One rank's share of every batch, of several that train together: which samples make a batch, and in which order batches come, does
    /// not depend on how many ranks there are, and neither does a [`Position`]. What a filter, a stream or a step over batches needs all
    /// of is read by every rank; else each reads its own samples alone.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_graph::ops::Rank;
    ///
    /// let data = Dataset::columns([Column::memory("x", (0..7i64).collect::<Vec<_>>(), [])?])?.batch(4);
    /// let second = data.shared(Rank::new(1, 2));
    /// let batches: Vec<_> = second.batches()?.collect::<Result<_, _>>()?;
    /// assert_eq!(batches[0].field(0).unwrap().get::<i64>()?, [2, 3]);
    /// // Of the last three, the first rank has two.
    /// assert_eq!(batches[1].field(0).unwrap().get::<i64>()?, [6]);
    /// assert_eq!((batches[1].share().first, batches[1].share().whole), (2, 3));
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    #[must_use]
    pub fn shared(mut self, rank: Rank) -> Dataset {
        self.share = (rank.ranks > 1).then_some(rank);
        self
    }

    /// Whether batches are random numbers that whoever takes them writes: nothing is gained by taking one ahead.
    pub fn is_random(&self) -> Result<bool> {
        Ok(self.recipe()?.random().is_some())
    }

    /// Samples in a batch, if it makes batches.
    pub fn batch_size(&self) -> Option<usize> {
        self.stages.iter().rev().find_map(|stage| match stage {
            Stage::Batch { size, .. } => Some(*size),
            _ => None,
        })
    }

    /// What the fields of a sample look like at the end.
    pub fn spec(&self) -> Result<Vec<FieldSpec>> {
        Ok(self.recipe()?.spec.to_vec())
    }

    /// What happens to numbers and files on the way to a sample, one sentence each: conversions, scaling, resizing, what is
    /// left out. For people; print it where a run begins.
    pub fn notes(&self) -> Vec<String> {
        [self.input.notes(), self.notes.clone()].concat()
    }

    /// Which part of a data set this is, where the data set has parts by name (`x_train`, `test/`, `t10k-…`). Nothing where
    /// it has none: then the same samples come whichever part is asked for.
    pub fn part(&self) -> Option<Split> {
        self.part
    }

    pub(crate) fn of_part(mut self, split: Split) -> Dataset {
        self.part = Some(split);
        self
    }

    /// The names of the classes that labels number: those of folders, in their order, or of a column of a table.
    pub fn class_names(&self) -> Option<Vec<String>> {
        let own = match &self.input {
            Input::Indexed(source) => source.class_names(),
            Input::Stream(_) => None,
        };
        own.or_else(|| self.classes.clone())
    }

    /// The name of a sample, where samples are files, by its number in the source
    /// ([`Batch::numbers`](crate::Batch::numbers)).
    pub fn sample_name(&self, number: u64) -> Option<String> {
        match &self.input {
            Input::Indexed(source) => source.sample_name(number),
            Input::Stream(_) => None,
        }
    }

    /// The number that a white pixel is, where the source knows and nothing was done to its samples since.
    pub(crate) fn white(&self) -> Option<f32> {
        match &self.input {
            Input::Indexed(source) if self.keeps_first => source.white(),
            _ => None,
        }
    }

    /// The number of samples of one pass, if it is known and has an end.
    pub fn samples(&self) -> Result<Option<u64>> {
        let recipe = self.recipe()?;
        if recipe.drops {
            return Ok(None);
        }
        // A stream of unknown length is as long as one without end, as far as is known.
        let len = recipe.moves.iter().fold(recipe.input.len(), |len, step| match (step, len) {
            (Move::Take(_), None) => None,
            (step, len) => step.len_after(len),
        });
        let batch = recipe.batch as u64;
        Ok(len.map(|len| if recipe.drop_remainder { len - len % batch } else { len }))
    }

    /// The bytes that the pipeline will hold at most: its budget, or less where it can never use all of it.
    pub fn declared_bytes(&self) -> Result<Bytes> {
        Ok(self.limits(&self.recipe()?)?.declared())
    }

    /// Starts the pipeline at its beginning.
    pub fn batches(&self) -> Result<Batches> {
        self.start(Cursor::default())
    }

    /// Starts the pipeline where another run of it stood, and the batches are those that would have come.
    pub fn resume(&self, position: &Position) -> Result<Batches> {
        let known = self.recipe()?.fingerprint;
        if known != position.pipeline {
            let what = "its source, stages, batch size or seeds differ; start at the beginning instead";
            return Err(Error::Position(what.to_owned()));
        }
        self.start(position.cursor())
    }

    /// A number that tells this pipeline from others as far as a [`Position`] goes: source, stages, batch size and seeds.
    pub fn fingerprint(&self) -> Result<u64> {
        Ok(self.recipe()?.fingerprint)
    }

    /// The same settings over another source, without stages.
    pub(crate) fn over(self, input: Input) -> Dataset {
        let (notes, classes) = (self.notes(), self.class_names());
        Dataset { input, stages: Vec::new(), notes, classes, keeps_first: false, ..self }
    }

    /// The bytes that it may take.
    pub(crate) fn memory_limit(&self) -> Bytes {
        Limits::budget(self.memory)
    }

    pub(crate) fn recipe(&self) -> Result<Recipe> {
        let recipe = Recipe::new(&self.input, &self.stages, self.on_error)?;
        Ok(Recipe { share: self.share, ..recipe })
    }

    fn limits(&self, recipe: &Recipe) -> Result<Limits> {
        Limits::new(recipe.costs(), self.memory, self.workers, self.prefetch)
    }

    fn start(&self, cursor: Cursor) -> Result<Batches> {
        let recipe = self.recipe()?;
        let limits = self.limits(&recipe)?;
        Ok(Batches::new(Engine::start(recipe, limits, cursor)?, cursor))
    }
}
