//! Turns a training into one stage of it a rank: each has the parameters, gradients and optimizer state of its stage alone, and parts of the batch go through all of them.
//!
//! A model is cut once, by its parameters ([`owners`]); whatever is asked of it, a step, an evaluation or a prediction, is traced whole, and each rank takes what is its own
//! ([`cut`]). What crosses from stage to stage is sent and received by ops of the graph, in one order for all ranks ([`order`]).

mod asked;
mod cut;
mod figures;
mod flow;
mod messages;
mod order;
mod owners;
mod places;
mod run;
mod whole;

use std::sync::OnceLock;

use plimsoll_graph::micro_batch::Splits;
use plimsoll_graph::ops::Rank;
use plimsoll_run::{Exactness, Result};
use rustc_hash::FxHashMap;

use super::splits;
use crate::error::refuse;
use crate::{Model, Param, Recipe};
pub(super) use asked::Found;
use cut::Cut;
pub use figures::{Pipeline, StageFigures};
use whole::Whole;
pub(super) use whole::wide;

/// Parts of a batch for each stage: with twice as many as stages, a stage waits for a third of a step at most.
const PARTS: usize = 2;

/// A model cut into stages, one a rank.
#[derive(Debug)]
pub struct Stages {
    rank: Rank,
    /// By parameter: which rank has it.
    owners: Vec<usize>,
    by_name: FxHashMap<String, usize>,
    /// What else decides what goes from stage to stage.
    asked: String,
    /// Whether parts of a batch add up to the whole, once that was asked.
    splits: OnceLock<Splits>,
}

impl Stages {
    /// Cuts a model.
    pub(super) fn new(model: &(impl Model + ?Sized), recipe: &Recipe, params: &[Param]) -> Result<Stages> {
        let owners = owners::owners(model, recipe, params)?;
        let by_name = params.iter().zip(&owners).map(|(p, owner)| (p.name.clone(), *owner)).collect();
        let asked = format!("{:?} in parts of {:?}", recipe.request.exactness, recipe.request.micro_batch);
        let stages = Stages { rank: recipe.of_model(), owners, by_name, asked, splits: OnceLock::new() };
        // What is only used shares nothing.
        if recipe.shares_batch() && !recipe.labels.is_empty() {
            splits::check(stages.splits(model, recipe, params)?)?;
        }
        Ok(stages)
    }

    /// The rank that has a parameter.
    pub fn owner(&self, param: &Param) -> Option<usize> {
        self.by_name.get(&param.name).copied()
    }

    /// Whether another rank than this one has a parameter.
    pub(super) fn is_elsewhere(&self, param: &Param) -> bool {
        self.owner(param) != Some(self.rank.rank)
    }

    /// How many parts a batch of so many samples is cut into.
    fn parts(
        &self,
        model: &(impl Model + ?Sized),
        recipe: &Recipe,
        params: &[Param],
        samples: usize,
    ) -> Result<usize> {
        if samples < 2 || !recipe.is_batched() {
            return Ok(1);
        }
        let asked = recipe.request.micro_batch.map(|each| samples.div_ceil(each.max(1)));
        let exactness = recipe.request.exactness;
        if exactness == Exactness::Bitwise {
            return match asked {
                Some(2..) => Err(refuse(
                    "has stages that take the batch in parts (--micro-batch), which gives other bits (--exact bitwise)",
                )),
                _ => Ok(1),
            };
        }
        let why = match self.splits(model, recipe, params)? {
            Splits::Exactly => None,
            Splits::Approximately(_) if exactness == Exactness::Approximate => None,
            Splits::Approximately(why) | Splits::Not(why) => Some(why),
        };
        match (why, asked) {
            (Some(why), Some(2..)) => Err(refuse(format!(
                "has stages that take the batch in parts (--micro-batch), and {why}; leave it out: then the batch goes through the stages whole"
            ))),
            (Some(_), _) => Ok(1),
            (None, asked) => Ok(asked.unwrap_or(PARTS * self.rank.ranks).min(samples)),
        }
    }

    /// Whether parts of a batch add up to the whole.
    fn splits(&self, model: &(impl Model + ?Sized), recipe: &Recipe, params: &[Param]) -> Result<&Splits> {
        match self.splits.get() {
            Some(said) => Ok(said),
            None => {
                let said = splits::of_model(model, recipe, params)?;
                Ok(self.splits.get_or_init(|| said))
            }
        }
    }

    /// A model for so many samples, cut.
    fn cut(&self, whole: Whole, params: &[Param]) -> Result<Cut> {
        Cut::new(whole, params, &self.owners, self.rank.ranks)
    }

    /// What stages tell each other that they have: the same on all ranks, or they were not cut alike.
    pub(super) fn said(&self) -> Vec<String> {
        let owners = self.owners.iter().map(|owner| format!("stage {owner}"));
        owners.chain([self.asked.clone()]).collect()
    }
}
