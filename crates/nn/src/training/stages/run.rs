//! A rank's stage while a step is traced: parts of the batch there and back. What comes and goes meanwhile is in `messages`.

use plimsoll_graph::{DType, ExchangeOps, TensorOps, Type, ValueId, shard};
use plimsoll_run::{Mode, Result, StepArgs, Tensor, pull_back};

use super::Stages;
use super::cut::{Cut, Values};
use super::flow::{Flow, Wrt};
use super::order::{Slots, Work};
use super::whole::Whole;
use crate::error::refuse;
use crate::training::computation::Computation;
use crate::training::layout::Layout;
use crate::{Model, Param};

/// A part of the batch in a stage.
#[derive(Default)]
pub(super) struct Part {
    pub(super) came: Vec<Tensor>,
    pub(super) params: Vec<Tensor>,
    pub(super) sent: Vec<Tensor>,
    pub(super) loss: Option<Tensor>,
    /// What came back of what was sent.
    pub(super) came_back: Vec<Option<Tensor>>,
    /// What goes back of what came.
    pub(super) goes_back: Vec<Option<Tensor>>,
}

/// The model cut for the sizes of parts there are.
pub(super) struct Cuts(Vec<(usize, Cut)>);

impl Cuts {
    pub(super) fn of(&self, samples: usize) -> Result<&Cut> {
        let found = self.0.iter().find(|(size, _)| *size == samples);
        found.map(|(_, cut)| cut).ok_or_else(|| refuse("was cut for other samples"))
    }
}

/// A rank's stage while a step is traced.
pub(super) struct Running<'a> {
    pub(super) stages: &'a Stages,
    pub(super) pass: &'a StepArgs<'a>,
    pub(super) layout: &'a Layout,
    /// Of all stages.
    pub(super) all: &'a [Param],
    pub(super) cuts: Cuts,
    /// Which samples of the batch are in which part.
    pub(super) ranges: Vec<std::ops::Range<usize>>,
    /// The values of parameters that are here: own ones, and those that this stage reads of another.
    pub(super) params: Vec<Option<Tensor>>,
    pub(super) parts: Vec<Part>,
    pub(super) updates: Vec<Option<Tensor>>,
    pub(super) loss: Option<Tensor>,
    pub(super) totals: Vec<Option<Tensor>>,
    /// The model's outputs that this stage makes.
    pub(super) outputs: Vec<Option<Tensor>>,
    /// By parameter, the sum over parts.
    pub(super) grads: Vec<Option<Tensor>>,
}

/// A sum in a 16-bit type would lose small shares.
pub(super) fn sum_dtype(of: DType) -> DType {
    if matches!(of, DType::BF16 | DType::F16) { DType::F32 } else { of }
}

pub(super) fn added(sum: Option<Tensor>, more: Tensor) -> Result<Option<Tensor>> {
    match sum {
        None => Ok(Some(more)),
        Some(sum) => sum.add(&more).map(Some),
    }
}

impl<'a> Running<'a> {
    pub(super) fn new<M: Model + 'static>(
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
                let whole = Whole::new(model, recipe, params, mode, &given)?;
                cuts.0.push((range.len(), stages.cut(whole, params)?));
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

    pub(super) fn own(&self) -> usize {
        self.stages.rank.rank
    }

    pub(super) fn first_cut(&self) -> &Cut {
        &self.cuts.0[0].1
    }
    /// Works through all slots.
    pub(super) fn run(
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
            // Where groups share the batch, a position is one of the whole.
            let first = match self.layout.share {
                Some(share) => first.add(&self.pass.state[share.first])?,
                None => first,
            };
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
    pub(super) fn of_all(&self, own: Option<Tensor>, v: ValueId) -> Result<Tensor> {
        let ty = self.first_cut().whole.graph.ty(v).clone();
        own.map_or_else(|| self.pass.first.full_like(ty, 0.0), Ok)
    }

    /// The loss of the whole batch, on all ranks, and totals as this one has them.
    pub(super) fn loss_and_totals(&mut self) -> Result<(Tensor, Vec<Tensor>)> {
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
