//! What a pipeline does, settled: the stages as asked for, sorted into those that move samples around, those that
//! change them, and those that batch them.

use std::sync::Arc;

use plimsoll_graph::ops::Rank;

use crate::batch_map::BatchStep;
use crate::error::{Error, Result};
use crate::order::{Move, Order};
use crate::plan::{Costs, ENGINE, STACK};
use crate::ring::buffer_bytes;
use crate::sample::FieldSpec;
use crate::sample_reader::{Cursor, Input, window_bytes};
use crate::source::Random;
use crate::step::{Stages, Step};

/// What happens to a sample that cannot be read or that a step refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The error takes the place of its batch, and the pipeline ends.
    #[default]
    Fail,
    /// The sample is left out and counted. A stream that breaks off has no next sample to go on with: that stays an error.
    Skip,
}

/// How far samples whose lengths vary are filled up with zeros.
#[derive(Clone, Debug)]
pub(crate) enum Padded {
    /// Not at all: such samples are refused.
    No,
    /// To the longest of a batch.
    Longest,
    /// To the first of these lengths that holds the longest of a batch, and to the most there can be where none does: so few
    /// shapes of batches.
    To(Arc<[usize]>),
}

impl Padded {
    /// The length of a batch whose longest sample has this one, where `most` is the most there can be.
    pub fn length(&self, longest: usize, most: usize) -> usize {
        match self {
            Padded::To(bounds) => {
                bounds.iter().copied().find(|&bound| bound >= longest).unwrap_or(most).min(most)
            }
            Padded::No | Padded::Longest => longest,
        }
    }
}

/// One stage as it was asked for.
#[derive(Clone)]
pub(crate) enum Stage {
    Move(Move),
    Step(Step),
    Batch {
        size: usize,
        drop_remainder: bool,
        padded: Padded,
    },
    /// What is done to finished batches. Mixup is asked for with other changes of samples, so before they are batched.
    EachBatch {
        step: BatchStep,
        is_mixup: bool,
    },
}

/// A chunk is about so many bytes of samples: large enough that taking it costs nothing beside filling it.
const CHUNK_BYTES: usize = 64 << 10;

pub(crate) struct Recipe {
    pub input: Input,
    pub first: Arc<[FieldSpec]>,
    /// For sources that are read by number.
    pub order: Option<Order>,
    /// For streams.
    pub moves: Vec<Move>,
    pub steps: Vec<Step>,
    /// Moves that come after a filter.
    pub tail: Vec<Move>,
    /// What is done to finished batches.
    pub batch_steps: Vec<BatchStep>,
    pub spec: Arc<[FieldSpec]>,
    pub batch: usize,
    pub drop_remainder: bool,
    pub padded: Padded,
    /// Passes over everything before the batch; none stands for 'without end'.
    pub passes: Option<u64>,
    pub batch_limit: Option<u64>,
    pub on_error: OnError,
    /// Samples that a thread takes at a time.
    pub chunk: usize,
    /// Whether filters or skipped errors may drop samples.
    pub drops: bool,
    /// Whether it is known only after the work which samples a batch is made of.
    pub staged: bool,
    /// Whether a shuffle after a repetition mixes epochs, so that only the end of a pass ends one.
    pub mixed: bool,
    /// Bytes of a sample after the source and after each step.
    pub stage_bytes: Vec<u64>,
    /// Tells this recipe from others, as far as it can be told.
    pub fingerprint: u64,
    /// The rank whose samples of every batch are wanted, where they are not all. It changes nothing of what batches are made of.
    pub share: Option<Rank>,
}

fn stage_error(what: &str) -> Error {
    Error::Stage(what.to_owned())
}

impl Recipe {
    pub fn new(input: &Input, stages: &[Stage], on_error: OnError) -> Result<Recipe> {
        let first: Arc<[FieldSpec]> = input.first_spec().into();
        let mut steps = Vec::new();
        if let Input::Stream(source) = input
            && source.spec() != source.packed()
        {
            steps.push(Step::Unpack(source.clone(), source.spec().into()));
        }
        let (mut moves, mut tail, mut batch) = (Vec::new(), Vec::new(), None);
        let mut batch_steps = Vec::new();
        let (mut passes, mut batch_limit, mut filtered) = (Some(1u64), None, false);
        for stage in stages {
            match (stage, &batch) {
                (Stage::Batch { size, drop_remainder, padded }, None) => {
                    if *size == 0 {
                        return Err(stage_error(
                            "a batch of no samples cannot be made; batch(1) is the least",
                        ));
                    }
                    batch = Some((*size, *drop_remainder, padded.clone()));
                }
                (Stage::Batch { .. }, Some(_)) => return Err(stage_error("batches cannot be batched again")),
                (Stage::Step(step), None) => {
                    filtered |= matches!(step, Step::Filter(_));
                    steps.push(step.clone());
                }
                (Stage::EachBatch { is_mixup: false, .. }, None) => {
                    return Err(stage_error("map_batch works on batches; put it behind batch"));
                }
                (Stage::EachBatch { step, .. }, _) => batch_steps.push(step.clone()),
                (Stage::Step(_), Some(_)) => {
                    return Err(stage_error(
                        "map, filter and augment work on samples; put them before batch",
                    ));
                }
                (Stage::Move(step), None) => match step {
                    Move::Shard { index, count } if index >= count => {
                        let what = format!("there is no shard {index} of {count}; they count from 0");
                        return Err(Error::Stage(what));
                    }
                    // A shuffle of what a filter lets through is a filter on what was shuffled.
                    Move::Shuffle { .. } if tail.is_empty() => moves.push(step.clone()),
                    Move::Repeat(_) if tail.is_empty() => moves.push(step.clone()),
                    Move::Shuffle { .. } | Move::Repeat(_) if filtered => {
                        let what = "shuffle and repeat cannot follow a take, skip or shard that follows a filter; \
                                    put them before, or cache in between";
                        return Err(stage_error(what));
                    }
                    _ if filtered => tail.push(step.clone()),
                    _ => moves.push(step.clone()),
                },
                (Stage::Move(Move::Repeat(times)), Some(_)) if batch_limit.is_none() => {
                    passes = passes.zip(*times).map(|(passes, times)| passes.saturating_mul(times));
                }
                (Stage::Move(Move::Take(n)), Some(_)) => {
                    batch_limit = Some(batch_limit.map_or(*n, |limit: u64| limit.min(*n)));
                }
                (Stage::Move(_), Some(_)) => {
                    let what = "after batch only repeat, then take and prefetch can follow; put shuffle, skip and \
                                shard before it";
                    return Err(stage_error(what));
                }
            }
        }
        let (batch, drop_remainder, padded) = batch.unwrap_or((1, false, Padded::Longest));
        let spec: Arc<[FieldSpec]> =
            steps.iter().filter_map(Step::spec).next_back().unwrap_or(&first).clone();
        if let Some(field) = spec.iter().find(|field| field.varying && matches!(padded, Padded::No)) {
            let what =
                format!("the length of field '{}' varies; use padded_batch instead of batch", field.name);
            return Err(Error::Stage(what));
        }
        let bytes = |spec: &[FieldSpec]| spec.iter().map(FieldSpec::bytes).sum::<usize>();
        let order = match input {
            Input::Indexed(source) => Some(Order::new(source.len(), &moves)),
            Input::Stream(_) => None,
        };
        let mut stage_bytes = vec![bytes(&first) as u64];
        for step in &steps {
            let before = stage_bytes[stage_bytes.len() - 1];
            stage_bytes.push(step.spec().map_or(before, |spec| bytes(spec) as u64));
        }
        let widest = bytes(&spec).max(bytes(&first)).max(1);
        // At least four chunks a batch, so that threads share even a single one.
        let chunk = (CHUNK_BYTES / widest).clamp(1, batch.div_ceil(4));
        let drops = filtered || on_error == OnError::Skip;
        // Whether a stream fills one more batch is known only when it has.
        let staged = drops || (drop_remainder && input.is_stream());
        let repeated = moves.iter().position(|step| matches!(step, Move::Repeat(_)));
        let mixed =
            repeated.is_some_and(|at| moves[at..].iter().any(|step| matches!(step, Move::Shuffle { .. })));
        let mut recipe = Recipe {
            input: input.clone(),
            first,
            order,
            moves,
            steps,
            tail,
            batch_steps,
            spec,
            batch,
            drop_remainder,
            padded,
            passes,
            batch_limit,
            on_error,
            chunk,
            drops,
            staged,
            mixed,
            stage_bytes,
            fingerprint: 0,
            share: None,
        };
        recipe.fingerprint = recipe.fingerprint();
        Ok(recipe)
    }

    /// The random numbers that batches are made of, where nothing is done with them on the way: nobody makes such batches ahead.
    pub fn random(&self) -> Option<&Random> {
        let is_plain = self.steps.is_empty() && self.batch_steps.is_empty() && !self.staged;
        self.input.random().filter(|_| is_plain)
    }

    pub fn costs(&self) -> Costs {
        if self.random().is_some() {
            return Costs { engine: 0, source: 0, window: 0, worker: 0, batch: 0, least_batches: 1 };
        }
        let stream = self.input.is_stream();
        let scratch = self.input.scratch_bytes();
        let staging = if self.staged { 2 * buffer_bytes(&self.spec, self.chunk) } else { 0 };
        let rows = Stages::bytes(&self.first, &self.steps, stream, self.chunk);
        let window = if stream { window_bytes(&self.first, &self.moves) } else { 0 };
        Costs {
            engine: ENGINE,
            source: self.input.held(),
            window,
            worker: STACK as u64 + scratch + staging + rows,
            batch: buffer_bytes(&self.spec, self.rows()),
            least_batches: if self.staged && self.drop_remainder { 2 } else { 1 },
        }
    }

    /// The names of the counters: the source, each step, the batch.
    pub fn stage_names(&self) -> Vec<String> {
        let mut names = vec!["source".to_owned()];
        for (index, step) in self.steps.iter().enumerate() {
            let before = self.steps[..index].iter().filter(|other| other.name() == step.name()).count();
            names.push(if before == 0 {
                step.name().to_owned()
            } else {
                format!("{}{}", step.name(), before + 1)
            });
        }
        names.push("batch".to_owned());
        names
    }

    pub fn has_pass(&self, pass: u64) -> bool {
        self.passes.is_none_or(|passes| pass < passes)
    }

    /// How many samples of this pass are left, where that is known; moves on to the next pass where there are none. At
    /// the end of everything there is no answer.
    pub fn left(&self, cursor: &mut Cursor, batch_is_open: bool) -> Option<Option<u64>> {
        if !batch_is_open && !self.staged && self.is_limit(cursor.batches) {
            return None;
        }
        let Some(order) = &self.order else { return self.has_pass(cursor.pass).then_some(None) };
        let Some(len) = order.len() else { return self.has_pass(cursor.pass).then_some(None) };
        let least = match self.drop_remainder && !self.staged && !batch_is_open {
            true => self.batch as u64,
            false => 1,
        };
        if len < least {
            return None;
        }
        if len.saturating_sub(cursor.position) < least {
            (cursor.pass, cursor.position) = (cursor.pass + 1, 0);
        }
        self.has_pass(cursor.pass).then_some(Some(len - cursor.position))
    }

    /// Whether no batch follows in the pass of a source that is read by number; of others this is not known here.
    pub fn pass_ends(&self, cursor: Cursor) -> bool {
        let least = if self.drop_remainder { self.batch as u64 } else { 1 };
        let len = self.order.as_ref().and_then(Order::len);
        len.is_some_and(|len| len.saturating_sub(cursor.position) < least)
    }

    /// Whether an epoch ends in or right behind the batch between two cursors, inside a pass.
    pub fn epoch_ends(&self, start: Cursor, end: Cursor) -> bool {
        let Some(order) = &self.order else { return false };
        let epoch = |cursor: Cursor| order.at(cursor.pass, cursor.position).0;
        self.is_epoch_over(epoch(start), epoch(end))
    }

    /// Whether an epoch ends between a sample of one epoch and a later one of another.
    pub fn is_epoch_over(&self, first: u64, next: u64) -> bool {
        !self.mixed && first != next
    }

    /// Whether so many batches are all that was asked for.
    pub fn is_limit(&self, batches: u64) -> bool {
        self.batch_limit.is_some_and(|limit| batches >= limit)
    }

    /// So many samples lie between two of neighboring epochs, where epochs are mixed.
    pub fn spread(&self) -> u64 {
        let window = |step: &Move| if let Move::Shuffle { window, .. } = step { *window } else { 0 };
        let len = self.input.len().unwrap_or(0);
        self.moves.iter().map(window).fold(len, u64::saturating_add)
    }

    /// What is said of a pass that made no batch.
    pub fn empty(&self, skipped: u64, last_error: Option<String>) -> Error {
        let why = match (self.input.len(), last_error) {
            (Some(0), _) => "it has no samples".to_owned(),
            (_, Some(error)) => {
                format!("{skipped} samples were skipped because of errors, the last: {error}")
            }
            _ if self.drop_remainder => format!(
                "what take, skip, shard and filter leave of its samples does not fill one batch of {}, and the \
                 remainder is dropped",
                self.batch
            ),
            (Some(len), None) => {
                format!("take, skip, shard, repeat or filter leave none of its {len} samples")
            }
            (None, None) => {
                "it has no samples, or take, skip, shard, repeat and filter leave none".to_owned()
            }
        };
        Error::Empty { origin: self.input.name(), why }
    }

    fn fingerprint(&self) -> u64 {
        let len = self.input.len();
        let steps: Vec<_> = self.steps.iter().map(|step| (step.name(), step.spec())).collect();
        let is_padded = !matches!(self.padded, Padded::No);
        let batch = (self.batch, self.drop_remainder, is_padded, self.passes);
        let text = format!(
            "{len:?} {:?} {:?} {:?} {steps:?} {batch:?} {:?}",
            self.first, self.moves, self.tail, self.on_error
        );
        // Only where there are some, so that other pipelines are known by the numbers that they had.
        let augmented = self.steps.iter().filter_map(|step| match step {
            Step::Augment(augmenter, _) => Some(augmenter.said()),
            _ => None,
        });
        let batch_steps = self.batch_steps.iter().map(|step| format!("{} {}", step.name, step.said));
        let bounds = match &self.padded {
            Padded::To(bounds) => Some(format!("{bounds:?}")),
            Padded::No | Padded::Longest => None,
        };
        let input = Some(self.input.fingerprint()).filter(|&number| number != 0);
        let input = input.into_iter().map(|number| number.to_string());
        let text = augmented
            .chain(batch_steps)
            .chain(bounds)
            .chain(input)
            .fold(text, |text, more| format!("{text} {more}"));
        // FNV-1a: the same on every machine and in every version of the standard library.
        text.bytes()
            .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
    }
}
