//! What a rank sends to other stages and receives of them while its own is traced, in the one order of all ranks.

use plimsoll_graph::{ExchangeOps, TensorOps};
use plimsoll_run::Result;

use super::flow::Flow;
use super::run::{Part, Running, added, sum_dtype};
use crate::error::refuse;

impl Running<'_> {
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
    pub(super) fn lend_parameters(&mut self) -> Result<()> {
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
    pub(super) fn hand_back_gradients(&mut self, flow: &Flow) -> Result<()> {
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

    /// What goes from a stage to the next, where this is one of the two.
    pub(super) fn pass_on(&mut self, stage: usize, part: usize) -> Result<()> {
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
    pub(super) fn pass_back(&mut self, stage: usize, part: usize, flow: Option<&Flow>) -> Result<()> {
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
}
