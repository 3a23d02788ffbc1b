//! Turns a model into what one of several ranks does of it that each have parts of its weights: columns of one layer and rows of the next, some of the heads,
//! some of the words.
//!
//! The model is traced as one rank would run it (`find` says which weights are cut, by `rules`), and the trace is run over parts (`replay`), with sums over
//! ranks where parts meet (`together`). All ranks have the same samples. The loss that is differentiated is each rank's share of the one loss, so that the
//! gradient of what all have is the sum of theirs, as where they share a batch.

mod cut;
mod find;
mod replay;
mod rules;
mod together;

pub use cut::{Cut, Pieces};

use std::sync::Arc;

use plimsoll_graph::ops::Rank;
use plimsoll_graph::{TensorOps, Type, ValueId};
use plimsoll_run::{Result, Sketch, Tensor};
use rustc_hash::FxHashMap;

use crate::Param;
use crate::error::refuse;
use replay::{Held, Replay};

/// Which parameters ranks have parts of, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts(Arc<FxHashMap<String, Cut>>);

/// What a computation reads that is sketched: tensors that stand for inputs, parameters and a key.
pub(crate) struct Sketched {
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) params: Vec<Tensor>,
    pub(crate) key: Tensor,
}

impl Sketched {
    fn new(sketch: &Sketch, inputs: &[Type], params: &[Param]) -> Sketched {
        Sketched {
            inputs: inputs.iter().map(|ty| sketch.tensor("input", ty.clone())).collect(),
            params: params.iter().map(|param| sketch.tensor(&param.name, param.ty.clone())).collect(),
            key: sketch.tensor("key", crate::Net::key_type()),
        }
    }
}

/// What a rank has of what a computation reads.
pub(crate) struct Own<'a> {
    pub(crate) inputs: &'a [Tensor],
    pub(crate) params: &'a [Tensor],
    pub(crate) key: Option<&'a Tensor>,
}

impl Parts {
    /// The parts of a model among ranks, from what its loss is made of: `loss` gives what must be whole on all of them.
    ///
    /// # Errors
    /// Nothing of the model can be cut.
    pub(crate) fn find(
        params: &[Param],
        inputs: &[Type],
        ranks: usize,
        loss: impl FnOnce(&Sketched) -> Result<Vec<Tensor>>,
    ) -> Result<Parts> {
        let sketch = Sketch::new();
        let sketched = Sketched::new(&sketch, inputs, params);
        let wanted = loss(&sketched)?;
        let graph = sketch.graph(&wanted.iter().collect::<Vec<_>>())?;
        let id = |tensor: &Tensor| sketch.value(tensor);
        let ids: Vec<ValueId> = sketched.params.iter().filter_map(id).collect();
        let wanted: Vec<ValueId> = wanted.iter().filter_map(id).collect();
        let found = find::find(&graph, &ids, &wanted, ranks);
        let cuts: FxHashMap<String, Cut> = params
            .iter()
            .zip(&ids)
            .filter_map(|(param, id)| Some((param.name.clone(), *found.get(id)?)))
            .collect();
        if cuts.is_empty() {
            let names: Vec<&str> = params.iter().take(3).map(|param| param.name.as_str()).collect();
            return Err(refuse(format!(
                "has no weights that {ranks} ranks can have parts of: dense layers, attention by heads and tables of words can be cut, where their \
                 sizes are multiples of the ranks; these are {}{}. Take --parallel data or shard",
                names.join(", "),
                if params.len() > names.len() { " …" } else { "" }
            )));
        }
        Ok(Parts(Arc::new(cuts)))
    }

    /// The cut of a parameter, where ranks have parts of it.
    pub fn of(&self, param: &Param) -> Option<Cut> {
        self.0.get(&param.name).copied()
    }

    /// Whether ranks have all of everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs a computation as one of these ranks. `body` gives what is wanted, from tensors that stand for the whole; what comes back is whole, or cut
    /// where `wanted` says so of it.
    pub(crate) fn run<T>(
        &self,
        rank: Rank,
        params: &[Param],
        own: &Own<'_>,
        body: impl FnOnce(&Sketched) -> Result<(Vec<(Tensor, Option<Cut>)>, T)>,
    ) -> Result<(Vec<Tensor>, T)> {
        let sketch = Sketch::new();
        let types: Vec<Type> = own.inputs.iter().map(|x| x.ty().clone()).collect();
        let sketched = Sketched::new(&sketch, &types, params);
        let (wanted, rest) = body(&sketched)?;
        let graph = sketch.graph(&wanted.iter().map(|(tensor, _)| tensor).collect::<Vec<_>>())?;
        let mut values: FxHashMap<ValueId, Held> = FxHashMap::default();
        let mut bind = |stand_in: &Tensor, tensor: &Tensor, cut: Option<Cut>| {
            if let Some(v) = sketch.value(stand_in) {
                values.insert(v, Held { tensor: tensor.clone(), cut });
            }
        };
        sketched.inputs.iter().zip(own.inputs).for_each(|(s, x)| bind(s, x, None));
        let each = sketched.params.iter().zip(own.params).zip(params);
        each.for_each(|((s, value), param)| bind(s, value, self.of(param)));
        if let Some(key) = own.key {
            bind(&sketched.key, key, None);
        }
        for (v, tensor) in sketch.captured() {
            values.insert(v, Held { tensor, cut: None });
        }
        let Some(anchor) = own.params.first().or(own.inputs.first()) else {
            return Err(refuse("has neither parameters nor inputs"));
        };
        let mut replay = Replay::new(&graph, rank, values, anchor.clone());
        replay.run()?;
        // In the order in which they are wanted: an output that was sketched elsewhere is the constant that it is.
        let outputs = graph.outputs().iter().zip(&wanted).map(|(v, (_, cut))| replay.value(*v, *cut));
        Ok((outputs.collect::<Result<_>>()?, rest))
    }
}
