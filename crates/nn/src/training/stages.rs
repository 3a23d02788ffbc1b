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

use plimsoll_graph::TensorOps;
use plimsoll_graph::micro_batch::{Frame, Splits, splits};
use plimsoll_graph::ops::Rank;
use plimsoll_run::{Exactness, Result, Sketch, Tape, Tensor};
use rustc_hash::FxHashMap;

use crate::error::refuse;
use crate::{Model, Net, Param, Recipe};
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
        Ok(Stages { rank: recipe.rank, owners, by_name, asked, splits: OnceLock::new() })
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
        let said = match self.splits.get() {
            Some(said) => said,
            None => {
                let said = self.traced_splits(model, recipe, params)?;
                self.splits.get_or_init(|| said)
            }
        };
        let why = match said {
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

    /// Whether a step over the batch is the weighted mean of steps over its parts.
    fn traced_splits(
        &self,
        model: &(impl Model + ?Sized),
        recipe: &Recipe,
        params: &[Param],
    ) -> Result<Splits> {
        let traced = |samples: usize| {
            let sketch = Sketch::new();
            let values: Vec<Tensor> = params.iter().map(|p| sketch.tensor(&p.name, p.ty.clone())).collect();
            let given = recipe.types().into_iter().map(|ty| ty.with_shape(ty.shape.with(0, samples)));
            let batch: Vec<Tensor> = given.map(|ty| sketch.tensor("input", ty)).collect();
            let key = sketch.tensor("key", Net::key_type());
            let wrt: Vec<&Tensor> =
                params.iter().zip(&values).filter(|(p, _)| p.trained).map(|(_, value)| value).collect();
            let tape = Tape::new();
            let mut net = Net::bound(params, &values, true).precision(recipe.request.precision).key(key);
            let (inputs, labels) = batch.split_at(recipe.inputs.len());
            let outputs = model.forward(&mut net, inputs)?;
            let loss = recipe.loss.loss(&outputs, labels)?;
            let grads = tape.try_gradient(&loss, &wrt)?;
            let mut grads = grads.into_iter();
            let mut new = Vec::with_capacity(values.len() + 1);
            for ((param, value), set) in params.iter().zip(&values).zip(net.updates()) {
                let grad = if param.trained { grads.next().flatten() } else { None };
                new.push(match (grad, set) {
                    (Some(grad), _) => value.sub(&grad.cast(value.dtype())?)?,
                    (None, set) => set.unwrap_or(value.clone()),
                });
            }
            new.push(loss);
            sketch.graph(&new.iter().collect::<Vec<_>>())
        };
        // Of a single sample a trace is another one: sums over one row are left out.
        let (few, more) = (traced(4)?, traced(6)?);
        let frame = Frame { state: params.len(), inputs: recipe.types().len() + 1, totals: 0 };
        Ok(splits((&few, &more), (4, 6), &frame))
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
