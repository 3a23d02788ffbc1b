//! An optimizer that holds some weights at zero, by masks.

use std::sync::Arc;

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::{Kept, Optimizer, Slot, UpdateAt, Updated};
use crate::{Param, Patterns};

/// An optimizer that holds weights at zero where a mask says so. A mask is state like the optimizer's own, a byte a weight: planned, in the
/// ledger, in checkpoints, under the name `PARAMETER.mask`. All masks begin as ones; whoever prunes sets them between steps
/// ([`Training::restore`](crate::Training::restore)), and a weight that is masked stays zero from the next update on.
///
/// Pruned are trained parameters of at least two axes in f32, the matrices and windows: not biases, not the scales of norms.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_nn::{Pruned, Recipe, Sgd, Training, model};
/// use plimsoll_run::Tensor;
/// let (x, y) = (Type::new(DType::F32, [4, 2]), Type::new(DType::I64, [4]));
/// let recipe = Recipe::cross_entropy(Pruned::new(Sgd::new(0.5)), x, y);
/// let mut training = Training::new(model(|net, x| net.dense("out", &x[0], 2, false)), recipe, 42)?;
/// training.restore("out/weight.mask", &[1, 0, 1, 0])?;
/// let x = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0, 0.1, 0.9, 0.8, 0.2], [4, 2])?;
/// training.step(&[&x], &Tensor::from_slice(&[1i64, 0, 1, 0], [4])?)?;
/// let weights = training.values()[0].to_vec::<f32>()?;
/// assert!(weights[0] != 0.0 && weights[1] == 0.0 && weights[2] != 0.0 && weights[3] == 0.0);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pruned {
    inner: Arc<dyn Optimizer>,
    patterns: Option<Arc<Patterns>>,
    /// Only where this divides the inputs of a weight.
    group: usize,
}

impl Pruned {
    /// The name of the state that holds a parameter's mask, behind the parameter's own name and a dot.
    pub const SLOT: &'static str = "mask";

    /// Masks of all weights that this optimizer moves.
    pub fn new(optimizer: impl Optimizer + 'static) -> Pruned {
        Pruned { inner: Arc::new(optimizer), patterns: None, group: 1 }
    }

    /// Only weights of these names.
    #[must_use]
    pub fn only(mut self, patterns: Option<Patterns>) -> Pruned {
        self.patterns = patterns.map(Arc::new);
        self
    }

    /// Only weights whose inputs, the last axis but one, come in whole groups of so many.
    #[must_use]
    pub fn in_groups(mut self, of: usize) -> Pruned {
        self.group = of.max(1);
        self
    }

    /// Whether a parameter has a mask.
    pub fn prunes(&self, param: &Param) -> bool {
        let shape = &param.ty.shape;
        let inputs = shape.len().checked_sub(2).map_or(0, |axis| shape[axis]);
        param.trained
            && param.ty.dtype == DType::F32
            && inputs > 0
            && inputs.is_multiple_of(self.group)
            && self.patterns.as_ref().is_none_or(|patterns| patterns.have(&param.name))
    }
}

impl Optimizer for Pruned {
    left_to_inner!(name -> &'static str, rate -> f64, rates -> Vec<f64>);

    fn patience(&self) -> f64 {
        self.inner.patience()
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        let mut slots = self.inner.slots(param);
        if self.prunes(param) {
            let ty = Type::new(DType::Bool, param.ty.shape.clone());
            slots.push(Slot { name: Pruned::SLOT, ty, init: 1.0 });
        }
        slots
    }

    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        self.inner.prepare(count, rate)
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        if !self.prunes(at.param) {
            return self.inner.update(at, value, grad, slots);
        }
        let Some((mask, own)) = slots.split_last() else {
            return Err(crate::error::refuse("prunes weights without a place for their mask"));
        };
        let (value, mut updated) = self.inner.update(at, value, grad, own)?;
        // Chosen and not multiplied: no zero is negative.
        let zero = value.full_like(Type::new(value.dtype(), []), 0.0)?;
        updated.push(mask.clone());
        Ok((mask.select(&value, &zero)?, updated))
    }

    /// The masks stay as they are.
    fn with_state(&self, kept: Kept) -> Option<Arc<dyn Optimizer>> {
        let inner = self.inner.with_state(kept)?;
        Some(Arc::new(Pruned { inner, ..self.clone() }))
    }

    left_to_inner!(kept -> Kept);
}
