//! Gradient descent and Adam whose momentum is a number of the step, as schedulers that turn it with the learning rate want it.

use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::{Adam, Decay, DecayKind, Optimizer, Param, Sgd, Slot, UpdateAt, Updated};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;

/// An optimizer whose rates are two: the learning rate, and μ of gradient descent or β₁ of Adam.
///
/// ```
/// use plimsoll_nn::{Adam, Optimizer};
/// use plimsoll_torch::Cycled;
/// assert_eq!(Cycled::from(Adam::new(0.1)).rates(), [0.1, 0.9]);
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Cycled {
    /// Gradient descent with momentum.
    Sgd(Sgd),
    /// Adam.
    Adam(Adam),
}

impl From<Sgd> for Cycled {
    fn from(sgd: Sgd) -> Cycled {
        Cycled::Sgd(sgd)
    }
}

impl From<Adam> for Cycled {
    fn from(adam: Adam) -> Cycled {
        Cycled::Adam(adam)
    }
}

impl Cycled {
    fn decay(&self) -> Decay {
        match self {
            Cycled::Sgd(sgd) => sgd.decay,
            Cycled::Adam(adam) => adam.decay,
        }
    }
}

impl Optimizer for Cycled {
    fn name(&self) -> &'static str {
        match self {
            Cycled::Sgd(sgd) => sgd.name(),
            Cycled::Adam(adam) => adam.name(),
        }
    }

    fn rate(&self) -> f64 {
        match self {
            Cycled::Sgd(sgd) => sgd.lr,
            Cycled::Adam(adam) => adam.lr,
        }
    }

    fn rates(&self) -> Vec<f64> {
        let second = match self {
            Cycled::Sgd(sgd) => sgd.momentum,
            Cycled::Adam(adam) => adam.beta1,
        };
        vec![self.rate(), second]
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        match self {
            Cycled::Sgd(_) => vec![Slot::zeros("momentum", param)],
            Cycled::Adam(adam) => adam.slots(param),
        }
    }

    /// The learning rate, what a decoupled decay leaves, and the second number; for Adam also lr / (1 - β₁ᵗ) and √(1 - β₂ᵗ).
    fn prepare(&self, count: &Tensor, rates: &Tensor) -> Result<Vec<Tensor>> {
        let dtype = rates.dtype();
        let at = |i: usize| rates.narrow(0, i, i + 1)?.reshape([])?.cast(DType::F64);
        let (rate, second) = (at(0)?, at(1)?);
        let shrink = rate.mul_scalar(-self.decay().rate)?.add_scalar(1.0)?.cast(dtype)?;
        let mut scalars = vec![rate.cast(dtype)?, shrink, second.cast(dtype)?];
        if let Cycled::Adam(adam) = self {
            let count = count.cast(DType::F64)?;
            let left = second.log()?.mul(&count)?.exp()?.rsub_scalar(1.0)?;
            let root = count.mul_scalar(adam.beta2.ln())?.exp()?.rsub_scalar(1.0)?.sqrt()?;
            scalars.extend([rate.div(&left)?.cast(dtype)?, root.cast(dtype)?]);
        }
        Ok(scalars)
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let fewer = || refuse("gives an optimizer fewer numbers than it has");
        let [rate, shrink, second, rest @ ..] = at.scalars else { return Err(fewer()) };
        let decay = self.decay();
        let acts = |kind: DecayKind| decay.kind == kind && decay.rate != 0.0;
        let grad = match acts(DecayKind::L2) {
            true => grad.add(&value.mul_scalar(decay.rate)?)?,
            false => grad.clone(),
        };
        let value = if acts(DecayKind::Decoupled) { value.mul(shrink)? } else { value.clone() };
        match (self, slots, rest) {
            (Cycled::Sgd(sgd), [momentum], []) => {
                let momentum = momentum.mul(second)?.add(&grad)?;
                let step = match sgd.is_nesterov {
                    true => grad.add(&momentum.mul(second)?)?,
                    false => momentum.clone(),
                };
                Ok((value.sub(&step.mul(rate)?)?, vec![momentum]))
            }
            (Cycled::Adam(adam), [m, v], [size, root]) => {
                let m = m.add(&grad.sub(m)?.mul(&second.rsub_scalar(1.0)?)?)?;
                let v = v.mul_scalar(adam.beta2)?.add(&grad.square()?.mul_scalar(1.0 - adam.beta2)?)?;
                let scale = v.sqrt()?.div(root)?.add_scalar(adam.eps)?;
                Ok((value.sub(&m.div(&scale)?.mul(size)?)?, vec![m, v]))
            }
            _ => Err(fewer()),
        }
    }
}
