//! Dynamic loss scaling: small gradients in f16 are kept from vanishing by multiplying the loss before, dividing after.

use plimsoll_graph::{DType, TensorOps};
use plimsoll_run::{Result, Tape, Tensor};

/// After so many steps without a gradient that is not finite, the scale doubles, unless an optimizer says otherwise.
pub(crate) const PATIENCE: f64 = 2000.0;
/// The scale's bounds: what f32 and common sense allow.
const LEAST: f64 = 1.0;
const MOST: f64 = 1.0e18;

/// Where the scale and the number of finite steps since its last change are in a step's state.
pub(crate) struct LossScale {
    pub scale: usize,
    pub good: usize,
    /// After so many steps without a gradient that is not finite, the scale doubles.
    pub patience: f64,
}

impl LossScale {
    /// The scale a training starts with.
    pub(crate) const START: f64 = 32768.0;

    /// Whether a part of the state is one of its own.
    pub(crate) fn is(&self, part: usize) -> bool {
        part == self.scale || part == self.good
    }

    /// The gradients of a loss, taken at the scale and brought back; none where the loss does not depend on a tensor.
    pub(crate) fn gradient(
        &self,
        tape: &Tape,
        loss: &Tensor,
        wrt: &[&Tensor],
        state: &[Tensor],
    ) -> Result<Vec<Option<Tensor>>> {
        let scaled = loss.mul(&state[self.scale].cast(loss.dtype())?)?;
        let back = state[self.scale].reciprocal()?;
        let grads = tape.try_gradient(&scaled, wrt)?;
        grads.iter().map(|g| g.as_ref().map(|g| g.mul(&back.cast(g.dtype())?)).transpose()).collect()
    }

    /// A truth value: whether all elements of all gradients are finite. (0 · x is not a number where x is not finite.)
    pub(crate) fn all_finite(grads: &[Tensor]) -> Result<Tensor> {
        let mut sum: Option<Tensor> = None;
        for g in grads {
            let zero = g.cast(DType::F32)?.mul_scalar(0.0)?.sum(&[], false)?;
            sum = Some(match sum {
                None => zero,
                Some(sum) => sum.add(&zero)?,
            });
        }
        match sum {
            Some(sum) => sum.equal(&sum),
            None => Err(crate::error::refuse("scales the loss of a model without parameters")),
        }
    }

    /// Halves the scale after a step that was not finite, doubles it after many that were.
    pub(crate) fn update(&self, finite: &Tensor, state: &[Tensor], new: &mut [Tensor]) -> Result<()> {
        let (scale, good) = (&state[self.scale], state[self.good].add_scalar(1.0)?);
        let patience = good.full_like(good.ty().clone(), self.patience)?;
        let long = good.greater_equal(&patience)?;
        let zero = good.full_like(good.ty().clone(), 0.0)?;
        let grown = long.select(&scale.mul_scalar(2.0)?, scale)?;
        new[self.scale] = finite.select(&grown, &scale.mul_scalar(0.5)?)?.clamp(LEAST, MOST)?;
        new[self.good] = finite.select(&long.select(&zero, &good)?, &zero)?;
        Ok(())
    }
}
