//! Turns a model and what is wanted of it into one graph for so many samples: what stages are cut out of.

use plimsoll_graph::{DType, Graph, TensorOps, Type, ValueId};
use plimsoll_run::{Mode, Result, Sketch, Tensor};

use crate::error::refuse;
use crate::{Model, Net, Param, Recipe};

/// A model's way from a batch to what is wanted of it, with all of its parameters.
pub(super) struct Whole {
    pub(super) graph: Graph,
    /// What stands for inputs and labels.
    pub(super) batch: Vec<ValueId>,
    /// For the key of random layers.
    pub(super) key: ValueId,
    /// For the parameters.
    pub(super) params: Vec<ValueId>,
    /// Constants that the model reached for.
    pub(super) captured: Vec<(ValueId, Tensor)>,
    /// The model's outputs, of a prediction as a user has them.
    pub(super) outputs: Vec<ValueId>,
    /// Nothing where no labels are given.
    pub(super) loss: Option<ValueId>,
    pub(super) totals: Vec<ValueId>,
    /// By parameter: what its layer sets it to.
    pub(super) updates: Vec<Option<ValueId>>,
}

impl Whole {
    /// Traces a model; `given` are the types of inputs and, but for a prediction, of labels. Without labels there is no loss.
    pub(super) fn new(
        model: &(impl Model + ?Sized),
        recipe: &Recipe,
        params: &[Param],
        mode: Mode,
        given: &[Type],
    ) -> Result<Whole> {
        let sketch = Sketch::new();
        let values: Vec<Tensor> = params.iter().map(|p| sketch.tensor(&p.name, p.ty.clone())).collect();
        let batch: Vec<Tensor> = given
            .iter()
            .enumerate()
            .map(|(i, ty)| sketch.tensor(&format!("input {i}"), ty.clone()))
            .collect();
        let key = sketch.tensor("key", Net::key_type());
        let net = Net::bound(params, &values, mode == Mode::Train).precision(recipe.request.precision);
        let mut net = match mode {
            Mode::Train => net.key(key.clone()),
            Mode::Evaluate => net,
            Mode::Predict => net.predicting(),
        };
        let (inputs, labels) = batch.split_at(recipe.inputs.len().min(batch.len()));
        let found = model.forward(&mut net, inputs)?;
        let (mut loss, mut totals) = (None, Vec::new());
        if mode != Mode::Predict && !labels.is_empty() {
            let (own, parts) = recipe.loss.parts(&found, labels)?;
            let sums = recipe.metrics.iter().map(|measure| measure.sums(&found, labels, &parts));
            totals = sums.collect::<Result<_>>()?;
            loss = Some(own);
        }
        let outputs: Vec<Tensor> = match mode {
            Mode::Predict => found.iter().map(wide).collect::<Result<_>>()?,
            _ => found.iter().cloned().collect(),
        };
        let graph = sketch.graph(&[])?;
        let id = |tensor: &Tensor| {
            sketch.value(tensor).ok_or_else(|| {
                refuse("gives a tensor that was not made from its inputs, which no stage can be told from another by")
            })
        };
        let ids = |tensors: &[Tensor]| tensors.iter().map(id).collect::<Result<Vec<ValueId>>>();
        let updates = net.updates();
        Ok(Whole {
            graph,
            batch: ids(&batch)?,
            key: id(&key)?,
            params: ids(&values)?,
            captured: sketch.captured(),
            outputs: ids(&outputs)?,
            loss: loss.as_ref().map(id).transpose()?,
            totals: ids(&totals)?,
            updates: updates.iter().map(|new| new.as_ref().map(id).transpose()).collect::<Result<_>>()?,
        })
    }
}

/// Numbers are given as f32, but for those that were asked for in f64.
pub(in crate::training) fn wide(y: &Tensor) -> Result<Tensor> {
    if y.dtype() == DType::F64 { Ok(y.clone()) } else { y.cast(DType::F32) }
}
