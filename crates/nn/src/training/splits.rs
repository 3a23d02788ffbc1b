//! Turns a model and its loss into whether parts of a batch add up to the whole, for groups and stages of ranks whose own steps exchange too much to tell.

use plimsoll_graph::TensorOps;
use plimsoll_graph::micro_batch::{Frame, Splits, splits};
use plimsoll_run::{Result, Sketch, Tape, Tensor};

use super::Recipe;
use crate::error::refuse;
use crate::{Model, Net, Param};

/// Refuses groups of ranks whose parts of a batch do not add up.
pub(super) fn check(said: &Splits) -> Result<()> {
    match said {
        Splits::Not(why) => {
            Err(refuse(format!("is trained by groups of ranks that cannot share a batch, since {why}")))
        }
        _ => Ok(()),
    }
}

/// Whether a step over the batch is the weighted mean of steps over its parts.
pub(super) fn of_model(model: &(impl Model + ?Sized), recipe: &Recipe, params: &[Param]) -> Result<Splits> {
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
