//! Keras's optimizers that look at a whole parameter, or at more than moments: Lamb, Muon, Adafactor and schedule-free AdamW.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{UpdateAt, Updated};
use plimsoll_run::{Result as RunResult, Tensor};

use crate::error::refuse;
use crate::optimizer::{KerasOptimizer, Rule, follow, one_minus_power, rounded};

/// What an update is made from.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub at: &'a UpdateAt<'a>,
    pub value: &'a Tensor,
    pub grad: &'a Tensor,
    pub slots: &'a [Tensor],
}

/// The settings of Muon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// How slowly Adam's first moment follows, for parameters that are no matrices.
    pub beta1: f64,
    /// How slowly Adam's second moment follows.
    pub beta2: f64,
    /// Added to Adam's root.
    pub eps: f64,
    /// Adam's weight decay, beside that of the matrices.
    pub adam_decay: Option<f64>,
    /// Adam's share of the learning rate.
    pub adam_ratio: f64,
    /// The three numbers of an iteration.
    pub coefficients: [f64; 3],
    /// How much of the momentum stays.
    pub momentum: f64,
    /// Iterations.
    pub steps: usize,
    /// Whether the gradient is as if taken after the momentum's step.
    pub nesterov: bool,
    /// What a step is scaled by, times the root of the longer side.
    pub rms: Option<f64>,
    /// Whether embeddings are left to Adam.
    pub spares_embeddings: bool,
}

impl Muon {
    /// Whether a parameter is left to Adam.
    pub(crate) fn is_adams(&self, name: &str, shape: &[usize]) -> bool {
        shape.len() != 2 || (self.spares_embeddings && name.to_lowercase().contains("embedding"))
    }

    pub(crate) fn update(&self, given: Given<'_>) -> Updated {
        let Given { at, value, grad, slots } = given;
        match slots {
            [m, v] => {
                let m = follow(m, grad, 1.0 - self.beta1)?;
                let v = follow(v, &grad.square()?, 1.0 - self.beta2)?;
                let rate = at.rate.cast(DType::F64)?.mul_scalar(self.adam_ratio)?;
                let size = rate
                    .mul(&one_minus_power(self.beta2, at.count)?.sqrt()?)?
                    .div(&one_minus_power(self.beta1, at.count)?)?
                    .cast(value.dtype())?;
                let step = m.mul(&size)?.div(&v.sqrt()?.add_scalar(self.eps)?)?;
                Ok((value.sub(&step)?, vec![m, v]))
            }
            [m] => {
                let m = m.mul_scalar(self.momentum)?.add(grad)?;
                let g = if self.nesterov { m.mul_scalar(self.momentum)?.add(grad)? } else { m.clone() };
                let mut step = self.orthogonal(&g)?.mul(&at.rate.cast(value.dtype())?)?;
                if let Some(rms) = self.rms {
                    let longer = value.shape().iter().copied().max().unwrap_or(1) as f64;
                    step = step.mul_scalar(longer.sqrt() * rms)?;
                }
                Ok((value.sub(&step)?, vec![m]))
            }
            _ => Err(refuse("gives an optimizer fewer slots than it has")),
        }
    }

    /// The nearest matrix whose singular values are about 1, by a few iterations of Newton and Schulz.
    fn orthogonal(&self, g: &Tensor) -> RunResult<Tensor> {
        let is_tall = g.shape()[0] > g.shape()[1];
        let mut x = if is_tall { g.transpose(&[1, 0])? } else { g.clone() };
        x = x.div(&x.square()?.sum(&[], false)?.sqrt()?.add_scalar(1e-7)?)?;
        let [a, b, c] = self.coefficients;
        for _ in 0..self.steps {
            let square = x.matmul_with(&x, None, false, true)?;
            let mixed = square.mul_scalar(b)?.add(&square.mul_scalar(c)?.matmul(&square)?)?;
            x = x.mul_scalar(a)?.add(&mixed.matmul(&x)?)?;
        }
        if is_tall { x.transpose(&[1, 0]) } else { Ok(x) }
    }
}

/// Lamb: Adam whose step has the size of the parameter.
pub(crate) fn lamb([beta1, beta2, eps]: [f64; 3], given: Given<'_>) -> Updated {
    let Given { at, value, grad, slots } = given;
    let [m, v] = slots else { return Err(refuse("gives an optimizer fewer slots than it has")) };
    let m = follow(m, grad, 1.0 - beta1)?;
    let v = follow(v, &grad.square()?, 1.0 - beta2)?;
    let share = |beta: f64| one_minus_power(beta, at.count)?.cast(value.dtype());
    let step = m.div(&share(beta1)?)?.div(&v.div(&share(beta2)?)?.sqrt()?.add_scalar(eps)?)?;
    let norm = |x: &Tensor| x.square()?.sum(&[], false)?.sqrt();
    let (own, other) = (norm(value)?, norm(&step)?);
    let zero = own.full_like(Type::new(own.dtype(), []), 0.0)?;
    let one = own.full_like(Type::new(own.dtype(), []), 1.0)?;
    let both = own.greater(&zero)?.and(&other.greater(&zero)?)?;
    let safe = both.select(&other, &one)?;
    let ratio = both.select(&own.div(&safe)?, &one)?;
    let new = value.sub(&step.mul(&ratio)?.mul(&at.rate.cast(value.dtype())?)?)?;
    Ok((new, vec![m, v]))
}

/// The settings of Adafactor. Its `relative_step` changes nothing: a step is never longer than 1/√t.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// The power of the number of steps by which the second moment's share falls.
    pub decay: f64,
    /// Added to squares of gradients.
    pub eps1: f64,
    /// The least root mean square of a parameter.
    pub eps2: f64,
    /// The largest root mean square of a step.
    pub clip: f64,
}

fn root_mean_square(x: &Tensor) -> RunResult<Tensor> {
    x.square()?.mean(&[], false)?.sqrt()
}

impl Adafactor {
    pub(crate) fn update(&self, given: Given<'_>) -> Updated {
        let Given { at, value, grad, slots } = given;
        let dtype = value.dtype();
        let count = at.count.cast(DType::F64)?;
        let rate = at.rate.cast(DType::F64)?.minimum(&count.rsqrt()?)?.cast(dtype)?;
        let least = value.full_like(Type::new(dtype, []), self.eps2)?;
        let size = root_mean_square(value)?.maximum(&least)?.mul(&rate)?;
        let square = grad.square()?.add_scalar(self.eps1)?;
        let new = count.pow_scalar(self.decay)?;
        let (old, new) = (new.rsub_scalar(1.0)?.cast(dtype)?, new.cast(dtype)?);
        let mixed = |slot: &Tensor, now: &Tensor| slot.mul(&old)?.add(&now.mul(&new)?);
        let slots = match slots {
            [rows, columns, _] => {
                let rank = value.shape().rank();
                let rows = mixed(rows, &square.mean(&[rank - 1], false)?)?;
                let columns = mixed(columns, &square.mean(&[rank - 2], false)?)?;
                let mut tall: Vec<usize> = value.shape().to_vec();
                let mut wide = tall.clone();
                (tall[rank - 1], wide[rank - 2]) = (1, 1);
                let share = rows.div(&rows.mean(&[rank - 2], true)?)?;
                let v = share.reshape(&tall[..])?.mul(&columns.reshape(&wide[..])?)?;
                vec![rows, columns, v]
            }
            [v] => vec![mixed(v, &square)?],
            _ => return Err(refuse("gives an optimizer fewer slots than it has")),
        };
        let Some(v) = slots.last() else { return Err(refuse("gives an optimizer fewer slots than it has")) };
        let step = grad.div(&v.sqrt()?)?;
        let over = root_mean_square(&step)?.mul_scalar(1.0 / self.clip)?;
        let step = step.div(&over.clamp(1.0, f64::INFINITY)?)?;
        Ok((value.sub(&step.mul(&size)?)?, slots))
    }
}

/// The settings of schedule-free AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleFree {
    /// The share of the average in what gradients are taken at.
    pub beta1: f64,
    /// How slowly the second moment follows.
    pub beta2: f64,
    /// Added to the root.
    pub eps: f64,
    /// In so many steps the rate rises to its full size.
    pub warm_up: f64,
}

impl ScheduleFree {
    /// The point that steps go from: the parameter itself where there is none yet.
    pub(crate) fn taken_up(momentum: &Tensor, value: &Tensor) -> RunResult<Tensor> {
        momentum.is_finite()?.select(momentum, value)
    }

    pub(crate) fn update(&self, given: Given<'_>) -> Updated {
        let Given { at, value, grad, slots } = given;
        let [old, v] = slots else { return Err(refuse("gives an optimizer fewer slots than it has")) };
        let (dtype, beta1) = (value.dtype(), rounded(self.beta1));
        let count = at.count.cast(DType::F64)?;
        let mut rate = at.rate.cast(DType::F64)?;
        if self.warm_up > 0.0 {
            rate = rate.mul(&count.mul_scalar(1.0 / self.warm_up)?.clamp(0.0, 1.0)?)?;
        }
        let v = follow(v, &grad.square()?, 1.0 - rounded(self.beta2))?;
        let correction = one_minus_power(self.beta2, at.count)?.cast(dtype)?;
        let spread = v.div(&correction)?.sqrt()?.add_scalar(self.eps)?;
        let point = old.sub(&grad.mul(&rate.cast(dtype)?)?.div(&spread)?)?;
        // The average of all points comes back from the parameter, which lies between it and the point before: by the formula. On
        // TensorFlow and PyTorch Keras has moved that point by then, and so it is here.
        let average = value.sub(&point.mul_scalar(1.0 - beta1)?)?.mul_scalar(1.0 / beta1)?;
        let share = count.reciprocal()?;
        let (rest, share) = (share.rsub_scalar(1.0)?.cast(dtype)?, share.cast(dtype)?);
        let average = average.mul(&rest)?.add(&point.mul(&share)?)?;
        let new = point.mul_scalar(1.0 - beta1)?.add(&average.mul_scalar(beta1)?)?;
        Ok((new, vec![point, v]))
    }
}

impl KerasOptimizer {
    /// What in an update reads more than the element that it moves, or is kept whole; none where ranks can have shards of its state.
    pub(crate) fn whole_of(&self) -> Option<&'static str> {
        if !self.parts.is_empty() {
            return self.parts.iter().find_map(|part| part.optimizer.whole_of());
        }
        if self.clip_norm.is_some_and(|most| most > 0.0) {
            return Some(
                "clipnorm takes the norm of a whole gradient; global_clipnorm and clipvalue can be used",
            );
        }
        if self.average.is_some() {
            return Some("averages of weights (use_ema) take the place of whole weights");
        }
        if self.accumulate.is_some() {
            return Some("gradients that it adds up itself (gradient_accumulation_steps) are kept whole");
        }
        match self.rule {
            Rule::Lamb { .. } => Some("Lamb's step has the size of a whole weight"),
            Rule::Muon(_) => Some("Muon turns whole matrices"),
            Rule::Adafactor(_) => Some("Adafactor keeps moments of whole rows and columns"),
            Rule::Sgd { .. }
            | Rule::Adam { .. }
            | Rule::Nadam { .. }
            | Rule::Adamax { .. }
            | Rule::RmsProp { .. }
            | Rule::Adagrad { .. }
            | Rule::Adadelta { .. }
            | Rule::Ftrl(_)
            | Rule::ScheduleFree(_)
            | Rule::Lion { .. } => None,
        }
    }
}
