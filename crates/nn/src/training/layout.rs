//! Where everything is in the state of a training, and what it starts with.

use std::sync::Arc;

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::recipe::nothing_of;
use super::{Recipe, shards};
use crate::Param;
use crate::parts::{Cut, Pieces};
use crate::scale::LossScale;

/// What names of the state begin with that only say which samples a rank has: set before every step, and in no checkpoint.
pub(super) const OF_RANKS: &str = "ranks.";

/// Where things are in a step's state: parameters, the slots of each trained one, then single values.
pub(super) struct Layout {
    pub(super) trained: Vec<usize>,
    /// For each trained parameter.
    pub(super) slots: Vec<std::ops::Range<usize>>,
    /// The number of updates.
    pub(super) count: usize,
    /// Seed and step of random layers.
    pub(super) key: usize,
    pub(super) rate: usize,
    /// How many there are, one behind the other: of groups of parameters.
    pub(super) rates: usize,
    /// Sums of gradients, where several steps make one update.
    pub(super) sums: Option<Sums>,
    pub(super) scale: Option<LossScale>,
    /// Where several ranks share a batch: which part of it is this rank's.
    pub(super) share: Option<Share>,
    /// Which parts of the state ranks have of each other's.
    pub(super) wholes: Vec<Divided>,
    /// By parameter: whether a rank has its shard of it alone.
    pub(super) gathered: Arc<[bool]>,
}

/// A part of the state that no rank, or one alone, has all of.
#[derive(Clone, Debug)]
pub(super) struct Divided {
    /// Where it is.
    pub(super) at: usize,
    /// Its type on all ranks together.
    pub(super) whole: Type,
    /// What each rank has of it.
    pub(super) among: Among,
    /// How many ranks have it between them. Where there are groups, each group has all of it.
    pub(super) ranks: usize,
}

/// What ranks have of a part of the state.
#[derive(Clone, Copy, Debug)]
pub(super) enum Among {
    /// Each has a shard of its elements, one after the other.
    Shards,
    /// Each has a part along an axis.
    Parts(Cut),
    /// One has all of it, and the others nothing.
    Owner(usize),
}

impl Divided {
    /// How the parts of all ranks lie in it.
    pub(super) fn pieces(&self) -> Pieces {
        let ranks = self.ranks;
        match self.among {
            Among::Shards => shards::pieces_of(&self.whole, ranks),
            Among::Parts(cut) => cut.pieces(&self.whole, ranks),
            Among::Owner(owner) => {
                let bytes = self.whole.bytes();
                let own = (0..ranks).map(|rank| if rank == owner { bytes } else { 0 });
                Pieces { units: 1, stride: bytes, own: own.collect() }
            }
        }
    }
}

/// Where gradients are added up until an update is due.
pub(super) struct Sums {
    /// The number of steps in all.
    pub(super) steps: usize,
    /// For each trained parameter.
    pub(super) gradients: Vec<usize>,
}

/// Where it stands in the state which samples of a batch a rank has.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// Their share of the batch.
    pub(super) of_batch: usize,
    /// The position in the batch of the first.
    pub(super) first: usize,
}

/// What a part of the state starts with.
pub(super) enum Start {
    Value(f64),
    /// The seed, and no steps yet.
    Seed,
}

impl Layout {
    /// The layout, and what is kept beside the parameters: names, types, values to start with.
    pub(super) fn new(recipe: &Recipe, params: &[Param]) -> (Layout, Vec<(String, Type, Start)>) {
        let mut kept: Vec<(String, Type, Start)> = Vec::new();
        let n = params.len();
        let mut keep = |name: String, ty: Type, start: Start| {
            kept.push((name, ty, start));
            n + kept.len() - 1
        };
        let trained: Vec<usize> = (0..n).filter(|&i| params[i].trained).collect();
        let gathered: Arc<[bool]> = params.iter().map(|param| recipe.gathers(param)).collect();
        // What ranks have of what belongs to a parameter, where not all have all of it.
        let among = |i: usize| match (recipe.parts.of(&params[i]), &recipe.stages) {
            (Some(cut), _) => Some(Among::Parts(cut)),
            (None, Some(stages)) => stages.owner(&params[i]).map(Among::Owner),
            (None, None) => None,
        };
        let held = |i: usize| among(i).or(gathered[i].then_some(Among::Shards));
        let divided = |at: usize, whole: Type, among: Among| {
            let of = if matches!(among, Among::Shards) { recipe.rank } else { recipe.of_model() };
            Divided { at, whole, among, ranks: of.ranks }
        };
        let held = (0..n).filter_map(|i| Some(divided(i, params[i].ty.clone(), held(i)?)));
        let mut wholes: Vec<Divided> = held.collect();
        let updated = |i: usize| among(i).or(recipe.is_sharded().then_some(Among::Shards));
        // What this rank has of what belongs to a parameter.
        let here =
            |i: usize, ty: &Type| if recipe.is_elsewhere(&params[i]) { nothing_of(ty) } else { ty.clone() };
        let (mut slots, mut first) = (Vec::new(), n);
        for &i in &trained {
            let mut end = first;
            let own = recipe.updated(&params[i]);
            for slot in recipe.optimizer.slots(own.as_ref().unwrap_or(&params[i])) {
                let name = format!("{}.{}", params[i].name, slot.name);
                // What is one number for a parameter is the same on all ranks.
                if own.as_ref().is_some_and(|own| own.ty.shape == slot.ty.shape) {
                    let whole = params[i].ty.with_dtype(slot.ty.dtype);
                    wholes.extend(updated(i).map(|among| divided(end, whole, among)));
                } else if let Some(among @ Among::Owner(_)) = updated(i) {
                    wholes.push(divided(end, slot.ty.clone(), among));
                }
                end = keep(name, here(i, &slot.ty), Start::Value(slot.init)) + 1;
            }
            slots.push(first..end);
            first = end;
        }
        let (f32s, f64s) = (Type::new(DType::F32, []), Type::new(DType::F64, []));
        let count = keep("training.updates".into(), f64s.clone(), Start::Value(0.0));
        let key = keep("training.random".into(), Type::new(DType::I64, [2]), Start::Seed);
        let rates = recipe.optimizer.rates();
        let rate = keep("training.rate".into(), f64s.clone(), Start::Value(recipe.optimizer.rate()));
        for (i, own) in rates.iter().enumerate().skip(1) {
            keep(format!("training.rate.{i}"), f64s.clone(), Start::Value(*own));
        }
        let sums = (recipe.accumulate > 1).then(|| Sums {
            steps: keep("training.steps".into(), f64s, Start::Value(0.0)),
            gradients: trained
                .iter()
                .map(|&i| {
                    let (name, whole) = (format!("{}.gradients", params[i].name), params[i].ty.clone());
                    let own = recipe.updated(&params[i]).map_or_else(|| here(i, &whole), |own| own.ty);
                    let at = keep(name, own, Start::Value(0.0));
                    if let Some(among) = updated(i) {
                        wholes.push(divided(at, whole, among));
                    }
                    at
                })
                .collect(),
        });
        let scale = recipe.needs_loss_scale().then(|| LossScale {
            scale: keep("training.loss_scale".into(), f32s.clone(), Start::Value(LossScale::START)),
            good: keep("training.finite_steps".into(), f32s.clone(), Start::Value(0.0)),
            patience: recipe.optimizer.patience(),
        });
        let first = Type::new(DType::I64, [1]);
        // Where several have the same samples, each counts for its share of them.
        let ranks =
            if recipe.is_staged() { recipe.parallel.samples_of(recipe.rank) } else { recipe.rank }.ranks;
        let share = (ranks > 1).then(|| Share {
            of_batch: keep(
                format!("{OF_RANKS}share"),
                Type::new(DType::F64, []),
                Start::Value(1.0 / ranks as f64),
            ),
            first: keep(format!("{OF_RANKS}first"), first, Start::Value(0.0)),
        });
        (
            Layout {
                trained,
                slots,
                count,
                key,
                rate,
                rates: rates.len().max(1),
                sums,
                scale,
                share,
                wholes,
                gathered,
            },
            kept,
        )
    }
}

impl Layout {
    /// Whether a part of the state is a learning rate.
    pub(super) fn is_rate(&self, i: usize) -> bool {
        (self.rate..self.rate + self.rates).contains(&i)
    }

    /// The learning rate, or all of them in one tensor.
    pub(super) fn rates_of(&self, state: &[Tensor]) -> Result<Tensor> {
        if self.rates == 1 {
            return Ok(state[self.rate].clone());
        }
        let rates = state[self.rate..self.rate + self.rates].iter().map(|rate| rate.reshape([1]));
        let rates = rates.collect::<Result<Vec<Tensor>>>()?;
        Tensor::concat(&rates.iter().collect::<Vec<&Tensor>>(), 0)
    }
}

impl Start {
    /// A tensor that starts so.
    pub(super) fn tensor(&self, ty: Type, seed: u64) -> Result<Tensor> {
        match self {
            Start::Value(value) => Tensor::full(ty, *value),
            Start::Seed => Tensor::from_slice(&[seed as i64, 0], [2]),
        }
    }

    /// Its bytes, for one that is there already.
    pub(super) fn bytes(&self, ty: &Type, seed: u64) -> Result<Vec<u8>> {
        match self {
            Start::Value(value) => {
                let one = Tensor::full(Type::new(ty.dtype, []), *value)?.to_bytes()?;
                Ok(one.repeat(ty.elements()))
            }
            Start::Seed => self.tensor(ty.clone(), seed)?.to_bytes(),
        }
    }
}
