//! What is asked of a training in stages: a step, an evaluation, a prediction, and what all ranks make of what each has.

use plimsoll_graph::{DType, ExchangeOps, TensorOps};
use plimsoll_run::{Mode, Result, StepArgs, StepResult, Tensor};

use super::Stages;
use super::flow::Flow;
use super::order::{one_there_one_back, there};
use super::run::Running;
use crate::Model;
use crate::training::computation::Computation;

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

    /// The loss and the totals of a batch, or what the model makes of inputs: the same on all ranks, and nothing is changed.
    pub(in crate::training) fn asked<M: Model + 'static>(
        &self,
        computation: &Computation<M>,
        pass: &StepArgs<'_>,
        mode: Mode,
    ) -> Result<StepResult> {
        let mut running = Running::new(self, computation, pass, mode, 1)?;
        running.run(&there(self.rank.ranks), None, |loss, _| Ok(loss.clone()))?;
        let state = pass.state.to_vec();
        if mode == Mode::Evaluate {
            let (loss, totals) = running.loss_and_totals()?;
            return Ok(StepResult { state, outputs: vec![loss], totals: self.totals(&totals)? });
        }
        let own = std::mem::take(&mut running.outputs);
        let cut = running.first_cut();
        let outputs = own.into_iter().zip(&cut.whole.outputs);
        let outputs = outputs.map(|(own, v)| running.of_all(own, *v)?.of_rank(self.rank, cut.stage_of(*v)));
        Ok(StepResult { state, outputs: outputs.collect::<Result<_>>()?, totals: Vec::new() })
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
