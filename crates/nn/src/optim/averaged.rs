//! An optimizer that also keeps an exponential average of the weights (EMA).

use std::sync::Arc;

use plimsoll_graph::{DType, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::{Kept, Optimizer, Slot, UpdateAt, Updated};
use crate::Param;

/// An optimizer that also keeps, for each parameter, an exponential average of its values: a ← d a + (1 - d) w after every update.
/// It is state like the optimizer's own: planned, in the ledger, in checkpoints, under the name `PARAMETER.average`.
///
/// The first averages are of few values, so d is min(decay, (t - 1) / (t + 9)) at update t: the average starts at the first weights and
/// not at zero.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_nn::{Averaged, Recipe, Sgd, Training, model};
/// use plimsoll_run::Tensor;
/// let (x, y) = (Type::new(DType::F32, [4, 2]), Type::new(DType::I64, [4]));
/// let recipe = Recipe::cross_entropy(Averaged::new(Sgd::new(0.5), 0.9), x, y);
/// let mut training = Training::new(model(|net, x| net.dense("out", &x[0], 2, false)), recipe, 42)?;
/// let x = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0, 0.1, 0.9, 0.8, 0.2], [4, 2])?;
/// training.step(&[&x], &Tensor::from_slice(&[1i64, 0, 1, 0], [4])?)?;
/// let state: std::collections::HashMap<&str, &Tensor> = training.state().collect();
/// // After one update the average is the weights.
/// assert_eq!(state["out/weight.average"].to_vec::<f32>()?, state["out/weight"].to_vec::<f32>()?);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Averaged {
    inner: Arc<dyn Optimizer>,
    decay: f64,
    /// After how many updates the average begins with the weights themselves, where it does not begin little by little.
    begins: Begins,
}

/// How an average that has no value yet comes to one.
#[derive(Clone, Copy, Debug)]
enum Begins {
    /// With the first updates, whose average it is.
    Early,
    /// With the weights at the update after so many; none where it has begun.
    After(Option<u64>),
}

impl Averaged {
    /// The name of the state that holds a parameter's average, behind the parameter's own name and a dot.
    pub const SLOT: &'static str = "average";

    /// Averages of weights that this optimizer moves. A decay of 0.999 averages over about the last thousand updates.
    pub fn new(optimizer: impl Optimizer + 'static, decay: f64) -> Averaged {
        Averaged { inner: Arc::new(optimizer), decay, begins: Begins::Early }
    }

    /// Averages as PyTorch's `AveragedModel` keeps them: the weights themselves at the update after so many, and d = decay from then on.
    /// Without a number they have begun: their state is one that was kept.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use plimsoll_nn::{Averaged, Optimizer, Sgd};
    /// assert_eq!(Averaged::from_update(Arc::new(Sgd::new(0.1)), 0.999, Some(0)).rate(), 0.1);
    /// ```
    pub fn from_update(optimizer: Arc<dyn Optimizer>, decay: f64, after: Option<u64>) -> Averaged {
        Averaged { inner: optimizer, decay, begins: Begins::After(after) }
    }
}

impl Optimizer for Averaged {
    left_to_inner!(name -> &'static str, rate -> f64, rates -> Vec<f64>);

    fn slots(&self, param: &Param) -> Vec<Slot> {
        let mut slots = self.inner.slots(param);
        slots.push(Slot::zeros(Averaged::SLOT, param));
        slots
    }

    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        let mut scalars = self.inner.prepare(count, rate)?;
        let t = count.cast(DType::F64)?;
        let decay = match self.begins {
            Begins::Early => {
                let early = t.add_scalar(-1.0)?.div(&t.add_scalar(9.0)?)?;
                early.clamp(0.0, self.decay)?
            }
            Begins::After(None) => t.full_like(t.ty().clone(), self.decay)?,
            // 0 at that update and before it, decay after it.
            Begins::After(Some(updates)) => {
                t.add_scalar(-1.0 - updates as f64)?.clamp(0.0, 1.0)?.mul_scalar(self.decay)?
            }
        };
        scalars.push(decay.cast(rate.dtype())?);
        Ok(scalars)
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let (Some((average, own)), Some((decay, scalars))) = (slots.split_last(), at.scalars.split_last())
        else {
            return Err(crate::error::refuse("averages weights without a place for the average"));
        };
        let (value, mut updated) = self.inner.update(&UpdateAt { scalars, ..*at }, value, grad, own)?;
        // a + (1 - d)(w - a): exactly w at the first update, where d is 0 and a is 0.
        let step = value.sub(average)?.mul(&decay.rsub_scalar(1.0)?)?;
        updated.push(average.add(&step)?);
        Ok((value, updated))
    }

    /// The averages stay as they are.
    fn with_state(&self, kept: Kept) -> Option<Arc<dyn Optimizer>> {
        let inner = self.inner.with_state(kept)?;
        Some(Arc::new(Averaged { inner, ..self.clone() }))
    }

    left_to_inner!(kept -> Kept);
}
