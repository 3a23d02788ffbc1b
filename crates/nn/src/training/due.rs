//! Several steps that make one update: gradients are added up, and the update is kept only where it is due.

use std::ops::Range;

use plimsoll_graph::TensorOps;
use plimsoll_run::{Result, Tensor};

use super::layout::{Layout, Sums};

/// The sums of a step and whether its update is due.
pub(super) struct Due<'a> {
    sums: &'a Sums,
    /// A truth value.
    is_due: Tensor,
    steps: Tensor,
    /// The sums with this step's gradients, of the parameters that move.
    added: Vec<(usize, Tensor)>,
}

impl<'a> Due<'a> {
    /// Adds gradients to the sums; what is clipped and handed to the optimizer from here on is their mean.
    pub(super) fn new(
        sums: &'a Sums,
        moved: &[(usize, &Range<usize>)],
        grads: &mut [Tensor],
        layout: &Layout,
        state: &[Tensor],
        every: usize,
    ) -> Result<Due<'a>> {
        let n = every.max(1) as f64;
        let steps = state[sums.steps].add_scalar(1.0)?;
        // Half a step is added, so that rounding the quotient moves no multiple below itself.
        let whole = steps.mul_scalar(1.0 / n)?.add_scalar(0.5 / n)?.floor()?.mul_scalar(n)?;
        let is_due = steps.equal(&whole)?;
        let mut added = Vec::with_capacity(moved.len());
        for ((i, _), grad) in moved.iter().zip(grads) {
            let at = layout.trained.iter().position(|known| known == i).map(|at| sums.gradients[at]);
            let Some(at) = at else { continue };
            let sum = state[at].add(&grad.cast(state[at].dtype())?)?;
            *grad = sum.mul_scalar(1.0 / n)?;
            added.push((at, sum));
        }
        Ok(Due { sums, is_due, steps, added })
    }

    /// Leaves parameters, the optimizer's state and the number of updates as they were where no update is due; the sums start anew
    /// where one is.
    pub(super) fn keep_until_then(
        self,
        moved: &[(usize, &Range<usize>)],
        layout: &Layout,
        state: &[Tensor],
        new: &mut [Tensor],
    ) -> Result<()> {
        let chosen =
            |due: &Tensor, other: &Tensor| self.is_due.broadcast(due.shape().clone())?.select(due, other);
        let all = moved.iter().flat_map(|(i, slots)| std::iter::once(*i).chain((*slots).clone()));
        for i in all.chain([layout.count]) {
            new[i] = chosen(&new[i], &state[i])?;
        }
        for (at, sum) in &self.added {
            new[*at] = chosen(&sum.full_like(sum.ty().clone(), 0.0)?, sum)?;
        }
        new[self.sums.steps] = self.steps;
        Ok(())
    }
}
