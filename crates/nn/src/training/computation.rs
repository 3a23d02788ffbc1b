//! What is traced of a training: forward, loss, backward, update; and what of that an evaluation and a prediction are.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Mode, Result, StepArgs, StepResult, Tape, Tensor};
use smallvec::SmallVec;

use super::due::Due;
use super::layout::Layout;
use super::ranks::Shared;
use super::stages::{Found, wide};
use super::{Clip, Parallel, Recipe};
use crate::error::refuse;
use crate::optim::{NormScale, added, clip_by_norm_over};
use crate::parts::{Cut, Own, Sketched};
use crate::scale::LossScale;
use crate::{Kept, Model, Net, Param, UpdateAt, clip_by_value};

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
    fn carried(&self, carried: Vec<Option<Tensor>>, state: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut new = state.to_vec();
        for (i, value) in carried.into_iter().enumerate() {
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
        if let Some(stages) = &self.recipe.stages {
            return stages.asked(self, pass, Mode::Evaluate);
        }
        let Computed { loss, totals, carried, .. } =
            self.computed(pass.state, pass.inputs, None, |net| net.first(pass.first))?;
        Ok(StepResult { state: self.carried(carried, pass.state)?, outputs: vec![loss], totals })
    }

    pub(super) fn predict(&self, pass: &StepArgs<'_>) -> Result<StepResult> {
        if let Some(stages) = &self.recipe.stages {
            return stages.asked(self, pass, Mode::Predict);
        }
        let (outputs, carried) = match self.recipe.is_parted() {
            false => {
                let mut net = self.net(pass).predicting();
                (self.model.forward(&mut net, pass.inputs)?.to_vec(), net.carried())
            }
            true => {
                let computed = self.over_parts(pass.state, pass.inputs, None, |whole| {
                    let mut net = self.net_over(&whole.params, false).predicting();
                    let outputs = self.model.forward(&mut net, &whole.inputs)?;
                    Ok((outputs.iter().map(|y| (y.clone(), None)).collect(), ()))
                });
                (computed?.0, Vec::new())
            }
        };
        let outputs = outputs.iter().map(wide).collect::<Result<Vec<Tensor>>>()?;
        Ok(StepResult { state: self.carried(carried, pass.state)?, outputs, totals: Vec::new() })
    }

    /// What the model, the loss and the metrics come to, in training where there is a key. Where ranks have parts of the weights, with this rank's.
    fn computed(
        &self,
        state: &[Tensor],
        batch: &[Tensor],
        key: Option<&Tensor>,
        set: impl Fn(Net) -> Net,
    ) -> Result<Computed> {
        let n = self.recipe.inputs.len();
        let compute = |state: &[Tensor], batch: &[Tensor], key: Option<&Tensor>| {
            let (inputs, labels) = batch.split_at(n);
            let net = set(self.net_over(state, key.is_some()));
            let mut net = match key {
                Some(key) => net.key(key.clone()),
                None => net,
            };
            let outputs = self.model.forward(&mut net, inputs)?;
            let loss = &self.recipe.loss;
            let (loss, parts) = match key {
                Some(_) => loss.to_train(&outputs, labels)?,
                None => loss.parts(&outputs, labels)?,
            };
            let totals = self.sums(&outputs, labels, &parts)?;
            let (carried, updates) = match key {
                Some(_) => (Vec::new(), net.updates()),
                None => (net.carried(), Vec::new()),
            };
            Ok(Computed { loss, totals, carried, updates })
        };
        if !self.recipe.is_parted() {
            return compute(state, batch, key);
        }
        let (tensors, updated) = self.over_parts(state, batch, key, |whole| {
            let found = compute(&whole.params, &whole.inputs, key.map(|_| &whole.key))?;
            let updated: Vec<bool> = found.updates.iter().map(Option::is_some).collect();
            let updates = found.updates.iter().zip(&self.params);
            let updates =
                updates.filter_map(|(new, param)| Some((new.clone()?, self.recipe.parts.of(param))));
            let wholes = [found.loss].into_iter().chain(found.totals).map(|x| (x, None));
            Ok((wholes.chain(updates).collect(), updated))
        })?;
        let mut tensors = tensors.into_iter();
        let Some(loss) = tensors.next() else { return Err(refuse("has no loss")) };
        let totals = tensors.by_ref().take(self.recipe.metrics.len()).collect();
        let updates = updated.into_iter().map(|is_new| if is_new { tensors.next() } else { None }).collect();
        Ok(Computed { loss, totals, carried: Vec::new(), updates })
    }

    /// What is computed over whole values, by a rank that has parts of the weights.
    fn over_parts<T>(
        &self,
        state: &[Tensor],
        inputs: &[Tensor],
        key: Option<&Tensor>,
        body: impl FnOnce(&Sketched) -> Result<(Vec<(Tensor, Option<Cut>)>, T)>,
    ) -> Result<(Vec<Tensor>, T)> {
        let own = Own { inputs, params: &state[..self.params.len()], key };
        self.recipe.parts.run(self.recipe.of_model(), &self.params, &own, body)
    }

    fn sums(&self, outputs: &[Tensor], labels: &[Tensor], parts: &[Tensor]) -> Result<Vec<Tensor>> {
        self.recipe.metrics.iter().map(|measure| measure.sums(outputs, labels, parts)).collect()
    }

    /// What a pass over this rank's samples finds.
    fn found(&self, shared: Option<&Shared<'_>>, pass: &StepArgs<'_>) -> Result<Found> {
        let Computation { recipe, layout, .. } = self;
        let state = pass.state;
        let wrt: Vec<&Tensor> = layout.trained.iter().map(|&i| &state[i]).collect();
        let tape = Tape::new();
        for w in &wrt {
            tape.watch(w)?;
        }
        let first = shared.map(|shared| shared.first(pass.first)).transpose()?;
        let key = Tensor::concat(&[&state[layout.key], first.as_ref().unwrap_or(pass.first)], 0)?;
        // Where all ranks have the same samples, statistics are of all of them anyway.
        let synced = shared.filter(|_| recipe.sync_batch_norm && !recipe.is_parted());
        let Computed { loss, totals, updates, .. } =
            self.computed(state, pass.inputs, Some(&key), |net| match synced {
                Some(shared) => net.synced(recipe.rank, shared.share()),
                None => net,
            })?;
        // What is differentiated may be the sum of all ranks' losses, each by its share. The mean is exchanged before that, so that it is known before
        // anything is written.
        let (target, mean) = match shared.filter(|_| recipe.weighs_loss()) {
            Some(shared) => (shared.counted(&loss)?, Some(shared.mean(&loss)?)),
            None => (loss.clone(), None),
        };
        let grads = match &layout.scale {
            None => tape.try_gradient(&target, &wrt)?,
            Some(scale) => scale.gradient(&tape, &target, &wrt, state)?,
        };
        Ok(Found { loss: mean.unwrap_or(loss), totals, grads, updates })
    }

    /// Of squares where this rank has no gradients.
    fn zero(&self) -> Result<Tensor> {
        let is_wide = self.layout.trained.iter().any(|&i| self.params[i].ty.dtype == DType::F64);
        Tensor::zeros(Type::new(if is_wide { DType::F64 } else { DType::F32 }, []))
    }

    pub(super) fn train(&self, pass: &StepArgs<'_>) -> Result<StepResult> {
        let Computation { recipe, params, layout, .. } = self;
        let state = pass.state;
        let stages = recipe.stages.as_deref();
        let shared = Shared::of(recipe, layout, state);
        let Found { loss, totals, grads: found, updates } = match stages {
            Some(stages) => stages.train(self, pass)?,
            None => self.found(shared.as_ref(), pass)?,
        };
        // The parameters that move, with their slots and gradients.
        let (mut moved, mut grads) = (Vec::new(), Vec::new());
        for ((&i, slots), grad) in layout.trained.iter().zip(&layout.slots).zip(found) {
            match grad {
                Some(grad) => {
                    moved.push((i, slots));
                    grads.push(grad);
                }
                None if recipe.loss.leaves_out() || recipe.is_elsewhere(&params[i]) => {}
                None => return Err(refuse(format!("has a loss that does not depend on {}", params[i].name))),
            }
        }
        let sharded = shared.as_ref().filter(|_| recipe.is_sharded());
        let parted = shared.as_ref().filter(|_| recipe.is_parted());
        let is_apart = sharded.is_some() || parted.is_some() && recipe.optimizer.keeps_elements_apart();
        if !is_apart && shared.is_some() && stages.is_none() && recipe.parallel != Parallel::Data {
            let why = recipe.optimizer.looks_across();
            let why = why.unwrap_or_else(|| "8-bit state, averages of weights and Adafactor cannot".into());
            return Err(refuse(format!(
                "shares the state of {} among ranks, which as it is used here cannot be cut into shards: {why}; take another one, or have all of it \
                 on every rank (--parallel data)",
                recipe.optimizer.name()
            )));
        }
        // From here on everything is of all ranks' samples, and the same on all of them, but for shards of gradients.
        let (mut loss, mut updates) = (loss, updates);
        let is_part = |i: usize| recipe.parts.of(&params[i]).is_some();
        if let Some(shared) = &shared {
            if !recipe.weighs_loss() {
                loss = shared.mean(&loss)?;
            }
            // What was gathered has come back as this rank's shard of the sum already, and of what a rank has a part of, nobody else has a gradient.
            let left = moved.iter().enumerate().filter(|(_, (i, _))| !layout.gathered[*i] && !is_part(*i));
            let left: Vec<usize> = left.map(|(at, _)| at).collect();
            let own: Vec<Tensor> = left.iter().map(|&at| grads[at].clone()).collect();
            let of_all = match sharded {
                Some(_) => shared.shards_of_gradients(&own)?,
                None => shared.gradients(&own)?,
            };
            left.iter().zip(of_all).for_each(|(&at, grad)| grads[at] = grad);
            // But where there are groups: in each, one has it.
            if shared.is_batch_shared() {
                let parts: Vec<usize> = (0..moved.len()).filter(|at| is_part(moved[*at].0)).collect();
                let own: Vec<Tensor> = parts.iter().map(|&at| grads[at].clone()).collect();
                let of_groups = shared.gradients_of_parts(&own)?;
                parts.iter().zip(of_groups).for_each(|(&at, grad)| grads[at] = grad);
                let each = updates.iter().enumerate();
                updates =
                    each.map(|(i, new)| shared.statistic(new.as_ref(), is_part(i))).collect::<Result<_>>()?;
            }
        }
        let mut finite = layout.scale.as_ref().map(|_| LossScale::all_finite(&grads)).transpose()?;
        if let (Some(shared), Some(own)) = (sharded.or(parted), &finite) {
            finite = Some(shared.all(own)?);
        }
        if let (Some(stages), Some(own)) = (stages, &finite) {
            finite = Some(stages.all(own)?);
        }
        let due = match &layout.sums {
            None => None,
            Some(sums) => Some(Due::new(sums, &moved, &mut grads, layout, state, recipe.accumulate)?),
        };
        // What all ranks have counts once.
        let over_ranks = |own: Vec<Tensor>| {
            if let Some(stages) = stages {
                return stages.sum(&added(own)?.map_or_else(|| self.zero(), Ok)?).map(Some);
            }
            let are_own = moved.iter().map(|(i, _)| sharded.is_some() || is_part(*i));
            let (apart, alike): (Vec<_>, Vec<_>) =
                own.into_iter().zip(are_own).partition(|(_, is_own)| *is_own);
            let sum = |all: Vec<(Tensor, bool)>| added(all.into_iter().map(|(x, _)| x));
            match (shared.as_ref(), sum(apart)?, sum(alike)?) {
                (Some(shared), Some(own), Some(all)) => shared.sum(&own)?.add(&all).map(Some),
                (Some(shared), Some(own), None) => shared.sum(&own).map(Some),
                (_, None, all) => Ok(all),
                (None, own, _) => Ok(own),
            }
        };
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
        // A step that rounds to bf16 by itself computes in f32.
        let rounds = recipe.optimizer.kept() == Kept::Bf16;
        let computed_in = |i: usize| match params[i].ty.dtype {
            DType::BF16 if rounds => DType::F32,
            own => own,
        };
        let scalars = in_types(&prepared, layout.trained.iter().map(|&i| computed_in(i)))?;
        let mut new: Vec<Tensor> = state.to_vec();
        // What layers set themselves; of a parameter that moves, it is where it moves from.
        let (mut whose, mut own_values) = (Vec::new(), Vec::new());
        for (&(i, slots), grad) in moved.iter().zip(&grads) {
            let own = scalars.iter().find(|(dtype, _)| *dtype == computed_in(i));
            let scalars = own.map_or(&prepared, |(_, scalars)| scalars);
            let own = recipe.updated(&params[i]);
            let (param, first) = (own.as_ref().unwrap_or(&params[i]), recipe.first_updated(&params[i]));
            let at = UpdateAt { count: &count, rate, scalars, param, first, key: &state[layout.key] };
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
                // Of what is cut, a part was found.
                new[i] = if is_part(i) { value } else { recipe.held(&params[i], value)? };
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
        let totals = stages.map_or(Ok(totals.clone()), |stages| stages.totals(&totals))?;
        let totals = match shared.as_ref().filter(|shared| shared.is_batch_shared()) {
            Some(shared) => totals.iter().map(|total| shared.total(total)).collect::<Result<_>>()?,
            None => totals,
        };
        let next = Tensor::from_slice(&[0i64, 1], [2])?;
        new[layout.key] = state[layout.key].add(&next)?;
        Ok(StepResult { state: new, outputs, totals })
    }
}

/// What a model comes to on a batch.
struct Computed {
    loss: Tensor,
    totals: Vec<Tensor>,
    /// By parameter: what a pass that trains nothing leaves in it. Nothing where ranks have parts of weights: no such model is trained so.
    carried: Vec<Option<Tensor>>,
    updates: Vec<Option<Tensor>>,
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
