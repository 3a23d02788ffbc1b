//! What a training in stages comes to, for people and for those who choose among ways to share one.

use plimsoll_graph::Type;
use plimsoll_run::{Mode, Result};

use super::Stages;
use super::flow::Flow;
use super::whole::Whole;
use crate::{Model, Param, Recipe};

/// A training in stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// How many parts the batch goes through the stages in.
    pub parts: usize,
    /// The stages, in order.
    pub stages: Vec<StageFigures>,
}

/// One of the stages.
#[derive(Clone, Debug, PartialEq)]
pub struct StageFigures {
    /// The first of its parameters.
    pub first: String,
    /// The last of them.
    pub last: String,
    /// Bytes of its parameters.
    pub parameters: u64,
    /// Bytes that it sends in a step, to the next stage and back to the one before.
    pub sent: u64,
}

impl Pipeline {
    /// How many times as long a step takes as the work of its longest stage: stages wait for the first part and for the last.
    pub fn longer(&self) -> f64 {
        (self.parts + self.stages.len() - 1) as f64 / self.parts as f64
    }
}

impl Pipeline {
    /// What the stages of a recipe come to.
    pub(in crate::training) fn new(
        all: &Stages,
        model: &(impl Model + ?Sized),
        recipe: &Recipe,
        params: &[Param],
    ) -> Result<Pipeline> {
        let given: Vec<Type> = recipe.types();
        let samples = given.first().and_then(|ty| ty.shape.first().copied()).unwrap_or(1);
        let parts = all.parts(model, recipe, params, samples)?;
        let cut = all.cut(Whole::new(model, recipe, params, Mode::Train, &given)?, params)?;
        let flow = Flow::new(&cut, params)?;
        let bytes =
            |boundary: usize| cut.crossing[boundary].iter().map(|v| cut.whole.graph.ty(*v).bytes() as u64);
        let stage = |stage: usize| {
            let own = || params.iter().zip(&all.owners).filter(|(_, owner)| **owner == stage).map(|(p, _)| p);
            let name = |param: Option<&Param>| param.map_or(String::new(), |param| param.name.clone());
            let on: u64 = if stage < cut.crossing.len() { bytes(stage).sum() } else { 0 };
            let back: u64 = match stage.checked_sub(1) {
                None => 0,
                Some(before) => {
                    let all = bytes(before).zip(&flow.back[before]);
                    all.filter(|(_, is_back)| **is_back).map(|(bytes, _)| bytes).sum()
                }
            };
            StageFigures {
                first: name(own().next()),
                last: name(own().next_back()),
                parameters: own().map(|param| param.ty.bytes() as u64).sum(),
                sent: on + back,
            }
        };
        Ok(Pipeline { parts, stages: (0..all.rank.ranks).map(stage).collect() })
    }
}
