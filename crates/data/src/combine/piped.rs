//! Turns a pipeline without batches into a source, so that it can be a part of another.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counters::Sum;
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::order::{Move, Order};
use crate::recipe::{Recipe, Stage};
use crate::sample::{FieldSpec, SampleMut};
use crate::sample_reader::Input;
use crate::source::{Scratch, Source};
use crate::step::{At, Stages};

/// A pipeline of which any sample can be made by its position.
pub(super) struct Piped {
    /// Tells what threads keep for it from what they keep for others.
    id: u64,
    recipe: Recipe,
    source: Arc<dyn Source>,
    order: Order,
    len: u64,
    white: Option<f32>,
}

/// What a thread keeps for a pipeline inside another.
pub(crate) struct Nested {
    id: u64,
    scratch: Scratch,
    stages: Stages,
    sums: Vec<Sum>,
}

impl Piped {
    /// The pipeline so far; `what` is the name of the stage that reads from it.
    pub fn new(data: &Dataset, what: &str) -> Result<Piped> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let refused = |why: &str| Err(Error::Stage(format!("{what} {why}")));
        if data.stages.iter().any(|stage| matches!(stage, Stage::Batch { .. } | Stage::EachBatch { .. })) {
            return refused("works on samples; put it before batch and mixup");
        }
        let recipe = data.recipe()?;
        let (Input::Indexed(source), Some(order)) = (recipe.input.clone(), recipe.order.clone()) else {
            return refused("needs samples by number, and this is a stream; load or cache it first");
        };
        if recipe.drops {
            return refused(
                "needs samples by number, and filter or skipped errors leave some out; put filter behind it, or cache first",
            );
        }
        let Some(len) = order.len() else {
            return refused("needs an end; put repeat_forever behind it");
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Piped { id, recipe, source, order, len, white: data.white() })
    }

    pub fn spec(&self) -> &[FieldSpec] {
        &self.recipe.spec
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn white(&self) -> Option<f32> {
        self.white
    }

    pub fn fingerprint(&self) -> u64 {
        self.recipe.fingerprint
    }

    pub fn files(&self) -> Vec<PathBuf> {
        self.source.files()
    }

    pub fn name(&self) -> String {
        self.source.name()
    }

    /// Samples of the source, whatever of them are used.
    pub fn source_len(&self) -> u64 {
        self.source.len()
    }

    /// The number in the source of the sample at a position, in the pass over everything of this number.
    pub fn number(&self, pass: u64, position: u64) -> u64 {
        self.order.at(pass, position).1
    }

    /// The name of the sample at a position, where that is the same in every pass.
    pub fn sample_name(&self, position: u64) -> Option<String> {
        let is_shuffled = self.recipe.moves.iter().any(|step| matches!(step, Move::Shuffle { .. }));
        if is_shuffled || position >= self.len {
            None
        } else {
            self.source.sample_name(self.number(0, position))
        }
    }

    pub fn held(&self) -> u64 {
        self.source.held()
    }

    /// Bytes that a thread keeps to read from it.
    pub fn scratch_bytes(&self) -> u64 {
        self.source.scratch_bytes() + Stages::bytes(&self.recipe.first, &self.recipe.steps, false, 1)
    }

    /// Writes the sample at a position. The pass is that of the whole pipeline, so that shuffles and steps are those of its epoch.
    pub fn read(&self, position: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let Recipe { first, steps, .. } = &self.recipe;
        let kept = scratch.nested.iter().position(|nested| nested.id == self.id);
        // Taken out while it is used, because those of pipelines further inside lie in it.
        let mut nested = match kept {
            Some(at) => scratch.nested.swap_remove(at),
            None => Nested {
                id: self.id,
                scratch: Scratch::default(),
                stages: Stages::new(first, steps, false, 1),
                sums: vec![Sum::default(); steps.len()],
            },
        };
        let (epoch, index) = self.order.at(scratch.epoch, position);
        nested.scratch.epoch = epoch;
        let result = match nested.stages.first(0) {
            Some(mut row) => self.source.read(index, &mut nested.scratch, &mut row),
            None => self.source.read(index, &mut nested.scratch, out),
        };
        let at = At { epoch, index };
        let result =
            result.and_then(|()| nested.stages.run(steps, 0, out, &at, &mut nested.sums).map(|_| ()));
        scratch.nested.push(nested);
        result
    }
}
