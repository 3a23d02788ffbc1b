//! Traces a rank's stage: parts of the batch there and back, what comes and goes, and what the whole training finds.

use plimsoll_graph::{DType, ExchangeOps, TensorOps, Type, ValueId, shard};
use plimsoll_run::{Mode, Result, StepArgs, StepResult, Tensor, pull_back};

use super::Stages;
use super::cut::{Cut, Values};
use super::flow::{Flow, Wrt};
use super::order::{Slots, Work, one_there_one_back, there};
use crate::error::refuse;
use crate::training::computation::Computation;
use crate::training::layout::Layout;
use crate::{Model, Param};

/// What a rank found of a batch.
pub(in crate::training) struct Found {
    /// The mean loss, the same on all ranks.
    pub(in crate::training) loss: Tensor,
    /// What totals its own stage makes: zeros elsewhere.
    pub(in crate::training) totals: Vec<Tensor>,
    /// By trained parameter, of its own.
    pub(in crate::training) grads: Vec<Option<Tensor>>,
    /// By parameter: what a layer set it to.
    pub(in crate::training) updates: Vec<Option<Tensor>>,
}

/// A part of the batch in a stage.
#[derive(Default)]
struct Part {
    came: Vec<Tensor>,
    params: Vec<Tensor>,
    sent: Vec<Tensor>,
    loss: Option<Tensor>,
    /// What came back of what was sent.
    came_back: Vec<Option<Tensor>>,
    /// What goes back of what came.
    goes_back: Vec<Option<Tensor>>,
}

/// The model cut for the sizes of parts there are.
struct Cuts(Vec<(usize, Cut)>);

impl Cuts {
    fn of(&self, samples: usize) -> Result<&Cut> {
        let found = self.0.iter().find(|(size, _)| *size == samples);
        found.map(|(_, cut)| cut).ok_or_else(|| refuse("was cut for other samples"))
    }
}

/// A rank's stage while a step is traced.
struct Running<'a> {
    stages: &'a Stages,
    pass: &'a StepArgs<'a>,
    layout: &'a Layout,
    /// Of all stages.
    all: &'a [Param],
    cuts: Cuts,
    /// Which samples of the batch are in which part.
    ranges: Vec<std::ops::Range<usize>>,
    /// The values of parameters that are here: own ones, and those that this stage reads of another.
    params: Vec<Option<Tensor>>,
    parts: Vec<Part>,
    updates: Vec<Option<Tensor>>,
    loss: Option<Tensor>,
    totals: Vec<Option<Tensor>>,
    /// The model's outputs that this stage makes.
    outputs: Vec<Option<Tensor>>,
    /// By parameter, the sum over parts.
    grads: Vec<Option<Tensor>>,
}

/// A sum in a 16-bit type would lose small shares.
fn sum_dtype(of: DType) -> DType {
    if matches!(of, DType::BF16 | DType::F16) { DType::F32 } else { of }
}

fn added(sum: Option<Tensor>, more: Tensor) -> Result<Option<Tensor>> {
    match sum {
        None => Ok(Some(more)),
        Some(sum) => sum.add(&more).map(Some),
    }
}

impl<'a> Running<'a> {
    fn new<M: Model + 'static>(
        stages: &'a Stages,
        computation: &'a Computation<M>,
        pass: &'a StepArgs<'a>,
        mode: Mode,
        parts: usize,
    ) -> Result<Running<'a>> {
        let Computation { model, recipe, params, layout } = computation;
        let samples = pass.inputs.first().and_then(|x| x.shape().first().copied()).unwrap_or(1);
        let ranges: Vec<std::ops::Range<usize>> =
            (0..parts).map(|part| shard(samples, parts, part)).collect();
        let mut cuts = Cuts(Vec::new());
        for range in &ranges {
            if cuts.of(range.len()).is_err() {
                let given: Vec<Type> =
                    pass.inputs.iter().map(|x| of_part(x.ty(), range.len(), parts)).collect();
                cuts.0.push((range.len(), stages.cut(model, recipe, params, mode, &given)?));
            }
        }
        let mut values: Vec<Option<Tensor>> = vec![None; params.len()];
        for (i, param) in params.iter().enumerate() {
            if !stages.is_elsewhere(param) {
                values[i] = Some(pass.state[i].clone());
            }
        }
        let mut running = Running {
            stages,
            pass,
            layout,
            all: params,
            cuts,
            parts: ranges.iter().map(|_| Part::default()).collect(),
            ranges,
            params: values,
            updates: vec![None; params.len()],
            loss: None,
            totals: vec![None; recipe.metrics.len()],
            outputs: Vec::new(),
            grads: vec![None; params.len()],
        };
        running.lend_parameters()?;
        Ok(running)
    }

    fn own(&self) -> usize {
        self.stages.rank.rank
    }

    fn first_cut(&self) -> &Cut {
        &self.cuts.0[0].1
    }

    /// Who reads a parameter that another stage has: pairs of parameter and reader.
    fn borrowed(&self) -> Vec<(usize, usize)> {
        let cut = self.first_cut();
        let readers =
            (0..self.stages.rank.ranks).flat_map(|stage| cut.reads(stage).iter().map(move |i| (*i, stage)));
        let mut all: Vec<(usize, usize)> =
            readers.filter(|(i, stage)| self.stages.owners[*i] != *stage).collect();
        all.sort_unstable();
        all
    }

    /// Sends parameters to the other stages that read them: once a step.
    fn lend_parameters(&mut self) -> Result<()> {
        let rank = self.stages.rank;
        for (i, reader) in self.borrowed() {
            let owner = self.stages.owners[i];
            if owner == rank.rank {
                self.pass.state[i].send_to(rank, reader)?;
            } else if reader == rank.rank {
                self.params[i] = Some(self.pass.first.received(rank, owner, self.all[i].ty.clone())?);
            }
        }
        Ok(())
    }

    /// Sends sums of gradients of those back to where the parameters are.
    fn hand_back_gradients(&mut self, flow: &Flow) -> Result<()> {
        let rank = self.stages.rank;
        for (i, reader) in self.borrowed() {
            let owner = self.stages.owners[i];
            let cut = self.first_cut();
            let at = cut.reads(reader).iter().position(|own| *own == i);
            if !at.is_some_and(|at| flow.of_params[reader][at]) {
                continue;
            }
            let ty = self.all[i].ty.with_dtype(sum_dtype(self.all[i].ty.dtype));
            if reader == rank.rank {
                let own = self.grads[i].take().ok_or_else(|| refuse("has a stage that found no gradient"))?;
                own.send_to(rank, owner)?;
            } else if owner == rank.rank {
                let theirs = self.pass.first.received(rank, reader, ty)?;
                self.grads[i] = added(self.grads[i].take(), theirs)?;
            }
        }
        Ok(())
    }

    /// Works through all slots.
    fn run(
        &mut self,
        slots: &Slots,
        flow: Option<&Flow>,
        seed: impl Fn(&Tensor, f64) -> Result<Tensor>,
    ) -> Result<()> {
        for slot in slots {
            match slot[self.own()] {
                Some(Work::Forward(part)) => self.forward(part)?,
                Some(Work::Backward(part)) => self.backward(part, flow, &seed)?,
                None => {}
            }
            for (stage, work) in slot.iter().enumerate() {
                match work {
                    Some(Work::Forward(part)) if stage + 1 < slot.len() => self.pass_on(stage, *part)?,
                    Some(Work::Backward(part)) if stage > 0 => self.pass_back(stage, *part, flow)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// What goes from a stage to the next, where this is one of the two.
    fn pass_on(&mut self, stage: usize, part: usize) -> Result<()> {
        let rank = self.stages.rank;
        if rank.rank == stage {
            for x in &self.parts[part].sent {
                x.send_to(rank, stage + 1)?;
            }
        } else if rank.rank == stage + 1 {
            let cut = self.cuts.of(self.ranges[part].len())?;
            let types = cut.goes(stage).iter().map(|v| cut.whole.graph.ty(*v).clone());
            let came = types.map(|ty| self.pass.first.received(rank, stage, ty));
            self.parts[part].came = came.collect::<Result<_>>()?;
        }
        Ok(())
    }

    /// The gradients that go from a stage to the one before.
    fn pass_back(&mut self, stage: usize, part: usize, flow: Option<&Flow>) -> Result<()> {
        let rank = self.stages.rank;
        let Some(flow) = flow else { return Ok(()) };
        let is_back = &flow.back[stage - 1];
        if rank.rank == stage {
            let part = &mut self.parts[part];
            for (grad, came) in
                part.goes_back.iter().zip(&part.came).zip(is_back).filter(|(_, is)| **is).map(|(x, _)| x)
            {
                let none = || came.full_like(came.ty().clone(), 0.0);
                grad.clone().map_or_else(none, Ok)?.send_to(rank, stage - 1)?;
            }
            // Nothing of it is wanted any more.
            *part = Part::default();
        } else if rank.rank + 1 == stage {
            let cut = self.cuts.of(self.ranges[part].len())?;
            let mut came_back = vec![None; is_back.len()];
            for (i, v) in cut.goes(stage - 1).iter().enumerate().filter(|(i, _)| is_back[*i]) {
                let ty = cut.whole.graph.ty(*v).clone();
                came_back[i] = Some(self.pass.first.received(rank, stage, ty)?);
            }
            self.parts[part].came_back = came_back;
        }
        Ok(())
    }

    /// The samples of a part, and the key of its random layers.
    fn batch(&self, cut: &Cut, part: usize) -> Result<Vec<(ValueId, Tensor)>> {
        let range = &self.ranges[part];
        let own = |x: &Tensor| {
            if self.ranges.len() == 1 { Ok(x.clone()) } else { x.narrow(0, range.start, range.end) }
        };
        let inputs = self.pass.inputs.iter().map(own).collect::<Result<Vec<Tensor>>>()?;
        let mut given: Vec<(ValueId, Tensor)> = cut.whole.batch.iter().copied().zip(inputs).collect();
        let first = match range.start {
            0 => self.pass.first.clone(),
            start => self.pass.first.add_scalar(start as f64)?,
        };
        if self.pass.state.len() > self.layout.key {
            given.push((cut.whole.key, Tensor::concat(&[&self.pass.state[self.layout.key], &first], 0)?));
        }
        Ok(given)
    }

    fn forward(&mut self, part: usize) -> Result<()> {
        let (stage, cut) = (self.own(), self.cuts.of(self.ranges[part].len())?);
        let graph = &cut.whole.graph;
        let mut given = self.batch(cut, part)?;
        let missing = || refuse("has a stage without one of its parameters");
        let own = cut.reads(stage).iter().map(|i| self.params[*i].clone().ok_or_else(missing));
        let params = own.collect::<Result<Vec<Tensor>>>()?;
        let reads = cut.reads(stage).iter().map(|i| cut.whole.params[*i]);
        given.extend(reads.zip(params.iter().cloned()));
        given.extend(cut.comes(stage).iter().copied().zip(self.parts[part].came.iter().cloned()));
        let values = cut.run(stage, &given, self.pass.first)?;
        let sent = cut.goes(stage).iter().map(|v| values.get(graph, *v)).collect::<Result<Vec<Tensor>>>()?;
        let is_own = |v: &ValueId| cut.stage_of(*v) == stage;
        let loss = cut.whole.loss.filter(is_own).map(|v| values.get(graph, v)).transpose()?;
        let mut totals = Vec::with_capacity(cut.whole.totals.len());
        for v in &cut.whole.totals {
            totals.push(if is_own(v) { Some(values.get(graph, *v)?) } else { None });
        }
        let updates = self.own_updates(cut, &values)?;
        let outputs = cut.whole.outputs.iter().map(|v| is_own(v).then(|| values.get(graph, *v)).transpose());
        let outputs = outputs.collect::<Result<Vec<Option<Tensor>>>>()?;
        self.outputs = outputs;
        for (i, new) in updates {
            // What layers keep goes on from part to part.
            if !self.all[i].trained {
                self.params[i] = Some(new.clone());
            }
            self.updates[i] = Some(new);
        }
        for (at, more) in totals.into_iter().enumerate() {
            if let Some(more) = more {
                self.totals[at] = added(self.totals[at].take(), more)?;
            }
        }
        if let Some(loss) = &loss {
            let weight = self.weight(part);
            let more = if weight == 1.0 { loss.clone() } else { loss.mul_scalar(weight)? };
            self.loss = added(self.loss.take(), more)?;
        }
        let here = &mut self.parts[part];
        (here.params, here.sent, here.loss) = (params, sent, loss);
        Ok(())
    }

    /// Which share of the samples is in a part.
    fn weight(&self, part: usize) -> f64 {
        let all: usize = self.ranges.iter().map(std::ops::Range::len).sum();
        if self.ranges.len() == 1 { 1.0 } else { self.ranges[part].len() as f64 / all as f64 }
    }

    /// What layers of this stage set.
    fn own_updates(&self, cut: &Cut, values: &Values) -> Result<Vec<(usize, Tensor)>> {
        let own = cut.whole.updates.iter().enumerate().filter(|(i, _)| self.stages.owners[*i] == self.own());
        let own = own.filter_map(|(i, new)| new.map(|new| (i, new)));
        own.map(|(i, new)| Ok((i, values.get(&cut.whole.graph, new)?))).collect()
    }

    fn backward(
        &mut self,
        part: usize,
        flow: Option<&Flow>,
        seed: impl Fn(&Tensor, f64) -> Result<Tensor>,
    ) -> Result<()> {
        let Some(flow) = flow else { return Ok(()) };
        let (stage, weight) = (self.own(), self.weight(part));
        let cut = self.cuts.of(self.ranges[part].len())?;
        let here = &self.parts[part];
        let mut targets: Vec<(Tensor, Tensor)> = Vec::new();
        for (sent, back) in here.sent.iter().zip(&here.came_back) {
            targets.extend(back.as_ref().map(|back| (sent.clone(), back.clone())));
        }
        if let Some(loss) = &here.loss {
            targets.push((loss.clone(), seed(loss, weight)?));
        }
        let wrt = {
            let all = Wrt::new(cut, stage, self.all);
            let has = |i: &usize| flow.of_params[stage][*i];
            Wrt { params: all.params.into_iter().filter(has).collect(), ..all }
        };
        let own = wrt.params.iter().map(|i| &here.params[*i]);
        let tensors: Vec<&Tensor> = own.chain(wrt.comes.iter().map(|i| &here.came[*i])).collect();
        let targets: Vec<(&Tensor, &Tensor)> = targets.iter().map(|(target, seed)| (target, seed)).collect();
        let mut found = pull_back(&targets, &tensors)?;
        let came = found.split_off(wrt.params.len());
        for (i, grad) in wrt.params.iter().zip(found) {
            let param = cut.reads(stage)[*i];
            if let Some(grad) = grad {
                let grad = grad.cast(sum_dtype(grad.dtype()))?;
                self.grads[param] = added(self.grads[param].take(), grad)?;
            }
        }
        let mut goes_back = vec![None; cut.comes(stage).len()];
        wrt.comes.iter().zip(came).for_each(|(i, grad)| goes_back[*i] = grad);
        self.parts[part].goes_back = goes_back;
        Ok(())
    }

    /// What the stage that has a value has of it, on all ranks.
    fn of_all(&self, own: Option<Tensor>, v: ValueId) -> Result<Tensor> {
        let ty = self.first_cut().whole.graph.ty(v).clone();
        own.map_or_else(|| self.pass.first.full_like(ty, 0.0), Ok)
    }

    /// The loss of the whole batch, on all ranks, and totals as this one has them.
    fn loss_and_totals(&mut self) -> Result<(Tensor, Vec<Tensor>)> {
        let (loss, totals) = (self.loss.take(), std::mem::take(&mut self.totals));
        let whole = &self.first_cut().whole;
        let at = whole.loss.ok_or_else(|| refuse("has no labels to train with"))?;
        let loss = self.of_all(loss, at)?.all_reduce(self.stages.rank)?;
        let totals = totals.into_iter().zip(&whole.totals).map(|(own, v)| self.of_all(own, *v));
        Ok((loss, totals.collect::<Result<_>>()?))
    }
}

/// The type of a part of a batch.
fn of_part(ty: &Type, samples: usize, parts: usize) -> Type {
    if parts == 1 { ty.clone() } else { ty.with_shape(ty.shape.with(0, samples)) }
}

impl Stages {
    /// What a training finds of a batch, on this rank.
    pub(in crate::training) fn train<M: Model + 'static>(
        &self,
        computation: &Computation<M>,
        pass: &StepArgs<'_>,
    ) -> Result<Found> {
        let Computation { model, recipe, params, layout } = computation;
        let samples = pass.inputs.first().and_then(|x| x.shape().first().copied()).unwrap_or(1);
        let parts = self.parts(model, recipe, params, samples)?;
        let mut running = Running::new(self, computation, pass, Mode::Train, parts)?;
        let flow = Flow::new(running.first_cut(), params)?;
        let scale = layout.scale.as_ref().map(|scale| &pass.state[scale.scale]);
        let seed = |loss: &Tensor, weight: f64| {
            let seed = loss.full_like(loss.ty().clone(), weight)?;
            scale.map_or(Ok(seed.clone()), |scale| seed.mul(&scale.cast(loss.dtype())?))
        };
        running.run(&one_there_one_back(self.rank.ranks, parts), Some(&flow), seed)?;
        running.hand_back_gradients(&flow)?;
        let (loss, totals) = running.loss_and_totals()?;
        let back = scale.map(|scale| scale.reciprocal()).transpose()?;
        let mut grads = Vec::with_capacity(layout.trained.len());
        for &i in &layout.trained {
            let Some(mut grad) = running.grads[i].take() else {
                grads.push(None);
                continue;
            };
            if let Some(back) = &back {
                grad = grad.mul(&back.cast(grad.dtype())?)?;
            }
            grads.push(Some(grad.cast(params[i].ty.dtype)?));
        }
        Ok(Found { loss, totals, grads, updates: running.updates })
    }

    /// The loss and the totals of a batch, the same on all ranks.
    pub(in crate::training) fn evaluate<M: Model + 'static>(
        &self,
        computation: &Computation<M>,
        pass: &StepArgs<'_>,
    ) -> Result<StepResult> {
        let mut running = Running::new(self, computation, pass, Mode::Evaluate, 1)?;
        running.run(&there(self.rank.ranks), None, |loss, _| Ok(loss.clone()))?;
        let (loss, totals) = running.loss_and_totals()?;
        let totals = self.totals(&totals)?;
        Ok(StepResult { state: pass.state.to_vec(), outputs: vec![loss], totals })
    }

    /// What the model makes of inputs, on all ranks.
    pub(in crate::training) fn predict<M: Model + 'static>(
        &self,
        computation: &Computation<M>,
        pass: &StepArgs<'_>,
    ) -> Result<StepResult> {
        let mut running = Running::new(self, computation, pass, Mode::Predict, 1)?;
        running.run(&there(self.rank.ranks), None, |loss, _| Ok(loss.clone()))?;
        let own = std::mem::take(&mut running.outputs);
        let cut = running.first_cut();
        let outputs = own.into_iter().zip(&cut.whole.outputs);
        let outputs = outputs.map(|(own, v)| running.of_all(own, *v)?.of_rank(self.rank, cut.stage_of(*v)));
        Ok(StepResult {
            state: pass.state.to_vec(),
            outputs: outputs.collect::<Result<_>>()?,
            totals: Vec::new(),
        })
    }

    /// Totals of all stages, on all ranks.
    pub(in crate::training) fn totals(&self, own: &[Tensor]) -> Result<Vec<Tensor>> {
        own.iter().map(|total| total.all_reduce_total(self.rank)).collect()
    }

    /// Whether something holds on all ranks.
    pub(in crate::training) fn all(&self, own: &Tensor) -> Result<Tensor> {
        let said = self.sum(&own.cast(DType::F32)?)?;
        said.equal(&said.full_like(said.ty().clone(), self.rank.ranks as f64)?)
    }

    /// The sum over all ranks of what each found of its own parameters.
    pub(in crate::training) fn sum(&self, own: &Tensor) -> Result<Tensor> {
        own.all_reduce(self.rank)
    }
}
