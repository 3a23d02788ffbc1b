//! What is traced of a training: forward, loss, backward, update; and what of that an evaluation and a prediction are.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, StepArgs, StepResult, Tape, Tensor};
use smallvec::SmallVec;

use super::due::Due;
use super::layout::Layout;
use super::ranks::Shared;
use super::{Clip, Parallel, Recipe, shards};
use crate::error::refuse;
use crate::optim::{NormScale, clip_by_norm_over};
use crate::scale::LossScale;
use crate::{Model, Net, Param, UpdateAt, clip_by_value};

/// What is traced: forward, loss, backward, update.
pub(super) struct Computation<M> {
    pub(super) model: M,
    pub(super) recipe: Recipe,
    pub(super) params: Vec<Param>,
    pub(super) layout: Layout,
}

impl<M: Model + 'static> Computation<M> {
    /// The net for everything but training.
    fn net(&self, pass: &StepArgs<'_>) -> Net {
        self.net_over(pass.state, false).first(pass.first)
    }

    /// The state after a pass that trains nothing: most models leave it as it is.
    fn carried(&self, net: Net, state: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut new = state.to_vec();
        for (i, value) in net.carried().into_iter().enumerate() {
            if let Some(value) = value {
                new[i] = self.recipe.held(&self.params[i], value)?;
            }
        }
        Ok(new)
    }

    fn net_over(&self, state: &[Tensor], training: bool) -> Net {
        Net::bound(&self.params, &state[..self.params.len()], training)
            .precision(self.recipe.request.precision)
            .gathering(self.recipe.rank, &self.layout.gathered)
    }

    pub(super) fn evaluate(&self, pass: &StepArgs<'_>) -> Result<StepResult> {
        let (inputs, labels) = pass.inputs.split_at(self.recipe.inputs.len());
        let mut net = self.net(pass);
        let outputs = self.model.forward(&mut net, inputs)?;
        let (loss, parts) = self.recipe.loss.parts(&outputs, labels)?;
        let totals = self.sums(&outputs, labels, &parts)?;
        Ok(StepResult { state: self.carried(net, pass.state)?, outputs: vec![loss], totals })
    }

    pub(super) fn predict(&self, pass: &StepArgs<'_>) -> Result<StepResult> {
        let mut net = self.net(pass).predicting();
        let outputs = self.model.forward(&mut net, pass.inputs)?;
        // Numbers are given as f32, but for those that were asked for in f64.
        let wide = |y: &Tensor| if y.dtype() == DType::F64 { Ok(y.clone()) } else { y.cast(DType::F32) };
        let outputs = outputs.iter().map(wide).collect::<Result<Vec<Tensor>>>()?;
        Ok(StepResult { state: self.carried(net, pass.state)?, outputs, totals: Vec::new() })
    }

    fn sums(&self, outputs: &[Tensor], labels: &[Tensor], parts: &[Tensor]) -> Result<Vec<Tensor>> {
        self.recipe.metrics.iter().map(|measure| measure.sums(outputs, labels, parts)).collect()
    }

    pub(super) fn train(&self, pass: &StepArgs<'_>) -> Result<StepResult> {
        let Computation { model, recipe, params, layout } = self;
        let state = pass.state;
        let (inputs, labels) = pass.inputs.split_at(recipe.inputs.len());
        let wrt: Vec<&Tensor> = layout.trained.iter().map(|&i| &state[i]).collect();
        let tape = Tape::new();
        for w in &wrt {
            tape.watch(w)?;
        }
        let shared = Shared::of(recipe, layout, state);
        let first = shared.as_ref().map(|shared| shared.first(pass.first)).transpose()?;
        let key = Tensor::concat(&[&state[layout.key], first.as_ref().unwrap_or(pass.first)], 0)?;
        let mut net = self.net_over(state, true).key(key);
        if let Some(shared) = shared.as_ref().filter(|_| recipe.sync_batch_norm) {
            net = net.synced(recipe.rank, shared.share());
        }
        let outputs = model.forward(&mut net, inputs)?;
        let (loss, parts) = recipe.loss.parts(&outputs, labels)?;
        let totals = self.sums(&outputs, labels, &parts)?;
        // What is differentiated may be the sum of all ranks' losses, each by its share. The mean is exchanged before that, so that it is known before
        // anything is written.
        let (target, mean) = match shared.as_ref().filter(|_| recipe.weighs_loss()) {
            Some(shared) => (shared.counted(&loss)?, Some(shared.mean(&loss)?)),
            None => (loss.clone(), None),
        };
        let found = match &layout.scale {
            None => tape.try_gradient(&target, &wrt)?,
            Some(scale) => scale.gradient(&tape, &target, &wrt, state)?,
        };
        // The parameters that move, with their slots and gradients.
        let (mut moved, mut grads) = (Vec::new(), Vec::new());
        for ((&i, slots), grad) in layout.trained.iter().zip(&layout.slots).zip(found) {
            match grad {
                Some(grad) => {
                    moved.push((i, slots));
                    grads.push(grad);
                }
                None if recipe.loss.leaves_out() => {}
                None => return Err(refuse(format!("has a loss that does not depend on {}", params[i].name))),
            }
        }
        let sharded = shared.as_ref().filter(|_| recipe.is_sharded());
        if sharded.is_none() && shared.is_some() && recipe.parallel != Parallel::Data {
            return Err(refuse(format!(
                "shares the state of {} among ranks, which as it is used here cannot be cut into shards: 8-bit state, averages of weights, \
                 Adafactor and optimizers of a Keras file cannot; take another one, or have all of it on every rank (--parallel data)",
                recipe.optimizer.name()
            )));
        }
        // From here on everything is of all ranks' samples, and the same on all of them, but for shards of gradients.
        let (mut loss, mut updates) = (loss, net.updates());
        if let Some(shared) = &shared {
            loss = mean.map_or_else(|| shared.mean(&loss), Ok)?;
            // What was gathered has come back as this rank's shard of the sum already.
            let left = moved.iter().enumerate().filter(|(_, (i, _))| !layout.gathered[*i]);
            let left: Vec<usize> = left.map(|(at, _)| at).collect();
            let own: Vec<Tensor> = left.iter().map(|&at| grads[at].clone()).collect();
            let of_all = match sharded {
                Some(_) => shared.shards_of_gradients(&own)?,
                None => shared.gradients(&own)?,
            };
            left.iter().zip(of_all).for_each(|(&at, grad)| grads[at] = grad);
            updates = updates.iter().map(|new| shared.statistic(new.as_ref())).collect::<Result<_>>()?;
        }
        let mut finite = layout.scale.as_ref().map(|_| LossScale::all_finite(&grads)).transpose()?;
        if let (Some(sharded), Some(own)) = (sharded, &finite) {
            finite = Some(sharded.all(own)?);
        }
        let due = match &layout.sums {
            None => None,
            Some(sums) => Some(Due::new(sums, &moved, &mut grads, layout, state, recipe.accumulate)?),
        };
        let over_ranks = |own: Tensor| sharded.map_or(Ok(own.clone()), |sharded| sharded.sum(&own));
        let mut norm = None;
        match recipe.clip {
            None => {}
            Some(Clip::Value(most)) => grads = clip_by_value(&grads, most)?,
            Some(clip @ (Clip::Norm(most) | Clip::PlainNorm(most))) => {
                let scale = if clip == Clip::PlainNorm(most) { NormScale::Plain } else { NormScale::Padded };
                let (clipped, found) = clip_by_norm_over(&grads, most, scale, over_ranks)?;
                (grads, norm) = (clipped, Some(found));
            }
        }
        let count = state[layout.count].add_scalar(1.0)?;
        let rate = &layout.rates_of(state)?;
        let prepared = recipe.optimizer.prepare(&count, rate)?;
        let scalars = in_types(&prepared, layout.trained.iter().map(|&i| params[i].ty.dtype))?;
        let mut new: Vec<Tensor> = state.to_vec();
        // What layers set themselves; of a parameter that moves, it is where it moves from.
        let (mut whose, mut own_values) = (Vec::new(), Vec::new());
        for (&(i, slots), grad) in moved.iter().zip(&grads) {
            let own = scalars.iter().find(|(dtype, _)| *dtype == params[i].ty.dtype);
            let scalars = own.map_or(&prepared, |(_, scalars)| scalars);
            let own = sharded.map(|_| shards::of_param(&params[i], recipe.rank));
            let at = UpdateAt { count: &count, rate, scalars, param: own.as_ref().unwrap_or(&params[i]) };
            let set = updates.get_mut(i).and_then(Option::take);
            let own_start = match sharded {
                Some(sharded) if set.is_some() || !layout.gathered[i] => {
                    Some(sharded.shard(set.as_ref().unwrap_or(&state[i]))?)
                }
                _ => None,
            };
            let start = own_start.as_ref().or(set.as_ref()).unwrap_or(&state[i]);
            let (value, updated) = recipe.optimizer.update(&at, start, grad, &state[slots.clone()])?;
            if updated.len() != slots.len() {
                let (name, given, own) = (recipe.optimizer.name(), updated.len(), slots.len());
                return Err(refuse(format!("uses {name}, which updated {given} slots of {own}")));
            }
            match sharded {
                Some(_) if !layout.gathered[i] => {
                    whose.push(i);
                    own_values.push(value);
                }
                _ => new[i] = value,
            }
            new[slots.clone()].clone_from_slice(&updated);
        }
        if let Some(sharded) = sharded {
            let wholes: Vec<&Type> = whose.iter().map(|&i| &params[i].ty).collect();
            for (i, value) in whose.iter().zip(sharded.gathered(&own_values, &wholes)?) {
                new[*i] = value;
            }
        }
        new[layout.count] = count;
        if let Some(due) = due {
            due.keep_until_then(&moved, layout, state, &mut new)?;
        }
        for (i, update) in updates.into_iter().enumerate() {
            if let Some(value) = update {
                new[i] = recipe.held(&params[i], value)?;
            }
        }
        let mut outputs = vec![loss];
        if let (Some(scale), Some(finite)) = (&layout.scale, finite) {
            // A step with a gradient that is not finite changes nothing but the scale.
            for (i, value) in new.iter_mut().enumerate() {
                if !matches!(i, i if i == layout.key || layout.is_rate(i) || scale.is(i)) {
                    *value = finite.select(value, &state[i])?;
                }
            }
            scale.update(&finite, state, &mut new)?;
            outputs.extend([finite.cast(DType::F32)?, new[scale.scale].clone()]);
        }
        // It is known only where gradients are clipped by it: without that it would take a pass over all of them.
        outputs.extend(norm);
        // Last: an exchange reads the token of the one before it, and nothing that is no total is to depend on totals.
        let totals = match &shared {
            Some(shared) => totals.iter().map(|total| shared.total(total)).collect::<Result<_>>()?,
            None => totals,
        };
        let next = Tensor::from_slice(&[0i64, 1], [2])?;
        new[layout.key] = state[layout.key].add(&next)?;
        Ok(StepResult { state: new, outputs, totals })
    }
}

/// Scalars by type.
type InTypes = SmallVec<[(DType, Vec<Tensor>); 2]>;

/// An optimizer's scalars in each type that parameters have: usually one.
fn in_types(scalars: &[Tensor], dtypes: impl Iterator<Item = DType>) -> Result<InTypes> {
    let mut all = InTypes::new();
    for dtype in dtypes {
        if all.iter().all(|(known, _)| *known != dtype) {
            all.push((dtype, scalars.iter().map(|x| x.cast(dtype)).collect::<Result<_>>()?));
        }
    }
    Ok(all)
}
