//! Keras's optimizers, in Keras's formulas, with their state in Keras's order.
//!
//! They differ from others of the same names in small ways: Adam's ε stands outside of the bias correction, RMSprop's inside of
//! the root, momentum holds the learning rate. A model that goes on training here must not notice that it changed house.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{Ftrl, Optimizer, Param, Slot, UpdateAt, Updated};
use plimsoll_run::{Result as RunResult, Tensor};

use crate::error::refuse;
use crate::optimizer_more::{self, Adafactor, Given, Muon, ScheduleFree};

/// After so many steps with finite gradients a loss scale doubles, where nothing else is said.
pub(crate) const GROWTH: u64 = 2000;
/// How fast Nadam's momentum comes to its full size.
const NADAM_DECAY: f64 = 0.96;
/// The slot of the product of Nadam's momentums.
const PRODUCT: &str = "product";

/// An optimizer as a Keras file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct KerasOptimizer {
    /// The formula.
    pub rule: Rule,
    /// The largest norm of a single parameter's gradient.
    pub clip_norm: Option<f64>,
    /// The largest element of a gradient.
    pub clip_value: Option<f64>,
    /// The learning rate.
    pub lr: f64,
    /// The share of lr that a parameter shrinks by at every step, beside the update.
    pub weight_decay: Option<f64>,
    /// How slowly averages of the parameters follow, and after how many steps they take the parameters' place, where they do.
    pub average: Option<(f64, Option<u64>)>,
    /// After how many steps an update is made, of the mean of their gradients; none for every step.
    pub accumulate: Option<u64>,
    /// After how many steps with finite gradients a loss scale doubles; none for as many as Keras takes without a word.
    pub growth: Option<u64>,
    /// Optimizers of single parameters, where it only hands each to one of them.
    pub parts: Vec<Part>,
}

/// An optimizer of some of a model's parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The optimizer.
    pub optimizer: KerasOptimizer,
    /// Where Keras stores its parameters.
    pub paths: Vec<String>,
    /// The names of its parameters here.
    pub names: Vec<String>,
}

/// The formula of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Gradient descent.
    Sgd {
        /// The share of the last step that is taken again.
        momentum: f64,
        /// Whether the gradient is as if taken after the momentum's step.
        nesterov: bool,
    },
    /// Adam, and AdamW with a weight decay.
    Adam {
        /// How slowly the first moment follows.
        beta1: f64,
        /// How slowly the second moment follows.
        beta2: f64,
        /// Added to the root, after the bias correction was taken into the rate.
        eps: f64,
        /// Whether the largest second moment so far counts.
        amsgrad: bool,
    },
    /// Adam that looks one step ahead, with a momentum that grows.
    Nadam {
        /// What the first moment's share grows towards.
        beta1: f64,
        /// How slowly the second moment follows.
        beta2: f64,
        /// Added to the root.
        eps: f64,
    },
    /// Adam with the largest gradient in place of the second moment.
    Adamax {
        /// How slowly the first moment follows.
        beta1: f64,
        /// How slowly the largest gradient is forgotten.
        beta2: f64,
        /// Added to the denominator.
        eps: f64,
    },
    /// RMSprop.
    RmsProp {
        /// How slowly the mean square follows.
        rho: f64,
        /// The share of the last step that is taken again.
        momentum: f64,
        /// Added inside of the root.
        eps: f64,
        /// Whether the square of the mean gradient is taken off.
        centered: bool,
    },
    /// Adagrad.
    Adagrad {
        /// What the sum of squares starts with.
        start: f64,
        /// Added inside of the root.
        eps: f64,
    },
    /// Adadelta.
    Adadelta {
        /// How slowly the means follow.
        rho: f64,
        /// Added inside of the roots.
        eps: f64,
    },
    /// Ftrl; the learning rate in it is not read.
    Ftrl(Ftrl),
    /// Adam whose step has the size of the parameter.
    Lamb {
        /// How slowly the first moment follows.
        beta1: f64,
        /// How slowly the second moment follows.
        beta2: f64,
        /// Added to the root.
        eps: f64,
    },
    /// Matrices by their orthogonal direction, others by Adam.
    Muon(Muon),
    /// Second moments of rows and columns in place of those of elements.
    Adafactor(Adafactor),
    /// AdamW without a schedule, by an average of all steps.
    ScheduleFree(ScheduleFree),
    /// Lion.
    Lion {
        /// The share of the momentum in the step.
        beta1: f64,
        /// How slowly the momentum follows.
        beta2: f64,
    },
}

impl KerasOptimizer {
    /// The slots in the order of the file: groups of slots, each group's for every parameter in turn.
    pub(crate) fn file_order(&self) -> Vec<Vec<&'static str>> {
        let before = [self.average.map(|_| vec!["average"]), self.accumulate.map(|_| vec!["accumulated"])];
        before.into_iter().flatten().chain(self.own_order()).collect()
    }

    /// The shape of a slot of a parameter; none where it has none such.
    pub(crate) fn slot_shape(&self, slot: &str, name: &str, shape: &[usize]) -> Option<Vec<usize>> {
        match (&self.rule, slot, shape) {
            (Rule::Muon(muon), "velocity", _) if !muon.is_adams(name, shape) => None,
            (Rule::Adafactor(_), "rows" | "columns", [] | [_]) => None,
            (Rule::Adafactor(_), "rows", [rows @ .., _]) => Some(rows.to_vec()),
            (Rule::Adafactor(_), "columns", [outer @ .., _, last]) => {
                Some(outer.iter().chain([last]).copied().collect())
            }
            _ => Some(shape.to_vec()),
        }
    }

    /// The part that moves a parameter, and where its scalars begin among those of all.
    fn part(&self, name: &str) -> RunResult<(&Part, usize)> {
        let mut first = 0;
        for part in &self.parts {
            if part.names.iter().any(|own| own == name) {
                return Ok((part, first));
            }
            first += part.optimizer.scalars();
        }
        Err(refuse(format!("has no optimizer for {name}")))
    }

    /// How many scalars `prepare` gives.
    fn scalars(&self) -> usize {
        let own = match self.rule {
            Rule::Nadam { .. } => 3,
            Rule::Ftrl(_) => 2,
            _ => 0,
        };
        1 + usize::from(self.weight_decay.is_some()) + own
    }

    /// Whether Keras keeps a number also where a parameter has no slot of a name.
    pub(crate) fn fills_up(&self) -> bool {
        matches!(self.rule, Rule::Adafactor(_))
    }

    fn own_order(&self) -> Vec<Vec<&'static str>> {
        match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => Vec::new(),
            Rule::Sgd { .. } | Rule::Lion { .. } => vec![vec!["momentum"]],
            Rule::Adam { amsgrad: false, .. } | Rule::Nadam { .. } => vec![vec!["m", "v"]],
            Rule::Adam { amsgrad: true, .. } => vec![vec!["m", "v"], vec!["largest"]],
            Rule::Adamax { .. } => vec![vec!["m", "norm"]],
            Rule::RmsProp { momentum, centered, .. } => {
                let all =
                    [Some("velocity"), (momentum > 0.0).then_some("momentum"), centered.then_some("mean")];
                all.into_iter().flatten().map(|name| vec![name]).collect()
            }
            Rule::Adagrad { .. } => vec![vec!["sum"]],
            Rule::Adadelta { .. } => vec![vec!["squares", "steps"]],
            Rule::Ftrl(_) => vec![vec!["sum", "linear"]],
            Rule::Lamb { .. } => vec![vec!["m", "v"]],
            Rule::Muon(_) | Rule::ScheduleFree(_) => vec![vec!["momentum", "velocity"]],
            Rule::Adafactor(_) => vec![vec!["rows", "columns", "velocity"]],
        }
    }
}

impl KerasOptimizer {
    /// The slot that is the same number for every parameter, which Keras keeps once, after all others.
    pub(crate) fn shared(&self) -> Option<&'static str> {
        matches!(self.rule, Rule::Nadam { .. }).then_some(PRODUCT)
    }
}

pub(crate) fn follow(old: &Tensor, new: &Tensor, share: f64) -> RunResult<Tensor> {
    old.add(&new.sub(old)?.mul_scalar(share)?)
}

/// keep · old + (1 - keep) · new
fn mix(old: &Tensor, new: &Tensor, keep: f64) -> RunResult<Tensor> {
    old.mul_scalar(keep)?.add(&new.mul_scalar(1.0 - keep)?)
}

/// 1 - βᵗ, in f64.
pub(crate) fn one_minus_power(beta: f64, count: &Tensor) -> RunResult<Tensor> {
    count.cast(DType::F64)?.mul_scalar(rounded(beta).ln())?.exp()?.rsub_scalar(1.0)
}

/// A setting as Keras has it where it casts it to a variable's type, whichever that is: rounded to f32 first.
pub(crate) fn rounded(setting: f64) -> f64 {
    f64::from(setting as f32)
}

impl Optimizer for KerasOptimizer {
    fn name(&self) -> &'static str {
        match self.rule {
            Rule::Sgd { .. } => "keras sgd",
            Rule::Adam { .. } => "keras adam",
            Rule::Nadam { .. } => "keras nadam",
            Rule::Adamax { .. } => "keras adamax",
            Rule::RmsProp { .. } => "keras rmsprop",
            Rule::Adagrad { .. } => "keras adagrad",
            Rule::Adadelta { .. } => "keras adadelta",
            Rule::Ftrl(_) => "keras ftrl",
            Rule::Lion { .. } => "keras lion",
            Rule::Lamb { .. } => "keras lamb",
            Rule::Muon(_) => "keras muon",
            Rule::Adafactor(_) => "keras adafactor",
            Rule::ScheduleFree(_) => "keras schedule-free adamw",
        }
    }

    fn rate(&self) -> f64 {
        self.lr
    }

    fn patience(&self) -> f64 {
        self.growth.unwrap_or(GROWTH) as f64
    }

    fn keeps_elements_apart(&self) -> bool {
        self.whole_of().is_none()
    }

    fn looks_across(&self) -> Option<String> {
        self.whole_of().map(String::from)
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        if !self.parts.is_empty() {
            return self.part(&param.name).map_or(Vec::new(), |(part, _)| part.optimizer.slots(param));
        }
        let start = if let Rule::Adagrad { start, .. } = self.rule { start } else { 0.0 };
        // Not a number until it is the parameter: see `ScheduleFree::taken_up`.
        let is_free = matches!(self.rule, Rule::ScheduleFree(_));
        let own: Vec<Slot> = if let Rule::Ftrl(ftrl) = self.rule { ftrl.slots(param) } else { Vec::new() };
        let slot = |name: &'static str| {
            let shape = self.slot_shape(name, &param.name, &param.ty.shape)?;
            let is_before = name == "average" || name == "accumulated";
            if let Some(own) = own.iter().find(|own| own.name == name) {
                return Some(own.clone());
            }
            Some(Slot {
                name,
                ty: Type::new(param.ty.dtype, &shape[..]),
                init: match name {
                    _ if is_before => 0.0,
                    "momentum" if is_free => f64::NAN,
                    _ => start,
                },
            })
        };
        let mut slots: Vec<Slot> = self.file_order().into_iter().flatten().filter_map(slot).collect();
        if let Rule::Nadam { .. } = self.rule {
            // The product of all momentums so far. Keras keeps one for all parameters, see `shared`.
            slots.push(Slot { name: PRODUCT, ty: Type::new(param.ty.dtype, []), init: 1.0 });
        }
        slots
    }

    /// The size of a step, and what else all updates share.
    fn prepare(&self, count: &Tensor, rate: &Tensor) -> RunResult<Vec<Tensor>> {
        if !self.parts.is_empty() {
            let of_part = |part: &Part| {
                part.optimizer.prepare(count, &rate.full_like(rate.ty().clone(), part.optimizer.lr)?)
            };
            let all: Vec<Vec<Tensor>> = self.parts.iter().map(of_part).collect::<RunResult<_>>()?;
            return Ok(all.concat());
        }
        let count = &self.counted(count)?;
        let wide = rate.cast(DType::F64)?;
        let size = match self.rule {
            Rule::Adam { beta1, beta2, .. } => {
                wide.mul(&one_minus_power(beta2, count)?.sqrt()?)?.div(&one_minus_power(beta1, count)?)?
            }
            Rule::Adamax { beta1, .. } => wide.div(&one_minus_power(beta1, count)?)?,
            _ => wide.clone(),
        };
        let mut scalars = vec![size.cast(rate.dtype())?];
        if let Some(decay) = self.weight_decay {
            scalars.push(wide.mul_scalar(-rounded(decay))?.add_scalar(1.0)?.cast(rate.dtype())?);
        }
        if let Rule::Nadam { beta1, beta2, .. } = self.rule {
            // The momentum β₁ (1 - ½ 0.96ᵗ) of this step and of the next, and the second moment's correction.
            let momentum = |count: &Tensor| {
                let fading = count.cast(DType::F64)?.mul_scalar(rounded(NADAM_DECAY).ln())?.exp()?;
                fading.mul_scalar(-0.5 * rounded(beta1))?.add_scalar(rounded(beta1))?.cast(rate.dtype())
            };
            scalars.extend([momentum(count)?, momentum(&count.add_scalar(1.0)?)?]);
            scalars.push(one_minus_power(beta2, count)?.sqrt()?.cast(rate.dtype())?);
        }
        if let Rule::Ftrl(ftrl) = self.rule {
            scalars.extend(ftrl.prepare(count, rate)?);
        }
        Ok(scalars)
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        if !self.parts.is_empty() {
            let (Part { optimizer, .. }, first) = self.part(&at.param.name)?;
            let own = first..first + optimizer.scalars();
            let Some(scalars) = at.scalars.get(own) else { return Err(refuse("gives an optimizer no rate")) };
            let rate = at.rate.full_like(at.rate.ty().clone(), optimizer.lr)?;
            return optimizer.update(&UpdateAt { scalars, rate: &rate, ..*at }, value, grad, slots);
        }
        // Averages and sums of gradients stand before what the formula keeps.
        let (before, slots) = slots.split_at(
            (usize::from(self.average.is_some()) + usize::from(self.accumulate.is_some())).min(slots.len()),
        );
        let begun;
        let slots = match (&self.rule, slots) {
            (Rule::ScheduleFree(_), [momentum, velocity]) => {
                begun = [ScheduleFree::taken_up(momentum, value)?, velocity.clone()];
                &begun[..]
            }
            _ => slots,
        };
        let mut kept: Vec<Tensor> = Vec::new();
        let count = self.counted(at.count)?;
        let own_at = &UpdateAt { count: &count, ..*at };
        let (mut new, mut own) = match (self.accumulate, before.last()) {
            (Some(steps), Some(sum)) => {
                let sum = sum.add(grad)?;
                let (new, own) =
                    self.step(own_at, value, &sum.mul_scalar(1.0 / steps.max(1) as f64)?, slots)?;
                let is_due = every(at.count, steps)?;
                let chosen =
                    |new: &Tensor, old: &Tensor| is_due.broadcast(new.shape().clone())?.select(new, old);
                let own =
                    own.iter().zip(slots).map(|(new, old)| chosen(new, old)).collect::<RunResult<_>>()?;
                kept.push(chosen(&sum.full_like(sum.ty().clone(), 0.0)?, &sum)?);
                (chosen(&new, value)?, own)
            }
            _ => self.step(own_at, value, grad, slots)?,
        };
        if let (Some((momentum, often)), Some(average)) = (self.average, before.first()) {
            let mixed = mix(average, &new, rounded(momentum))?;
            let first = at.count.equal(&at.count.full_like(Type::new(at.count.dtype(), []), 1.0)?)?;
            let average = first.broadcast(new.shape().clone())?.select(&new, &mixed)?;
            if let Some(steps) = often {
                new = every(at.count, steps)?.broadcast(new.shape().clone())?.select(&average, &new)?;
            }
            kept.insert(0, average);
        }
        kept.append(&mut own);
        Ok((new, kept))
    }
}

/// Whether the number of an update is a multiple of another.
fn every(count: &Tensor, steps: u64) -> RunResult<Tensor> {
    let steps = steps.max(1) as f64;
    let whole = count.mul_scalar(1.0 / steps)?.add_scalar(0.5 / steps)?.floor()?.mul_scalar(steps)?;
    count.equal(&whole)
}

impl KerasOptimizer {
    /// The number of an update as the formula has it: of several steps that make one, all have the same.
    fn counted(&self, count: &Tensor) -> RunResult<Tensor> {
        match self.accumulate {
            None | Some(0 | 1) => Ok(count.clone()),
            Some(steps) => {
                let steps = steps as f64;
                count.add_scalar(-0.5)?.mul_scalar(1.0 / steps)?.floor()?.add_scalar(1.0)
            }
        }
    }

    /// The formula itself.
    fn step(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let Some(size) = at.scalars.first() else { return Err(refuse("gives an optimizer no rate")) };
        let mut grad = grad.clone();
        if let Some(most) = self.clip_norm.filter(|most| *most > 0.0) {
            let norm = grad.square()?.sum(&[], false)?.sqrt()?;
            grad = grad.mul_scalar(most)?.div(&norm.clamp(most, f64::INFINITY)?)?;
        } else if let Some(most) = self.clip_value.filter(|most| *most > 0.0) {
            grad = grad.clamp(-most, most)?;
        }
        let value = match (&self.rule, self.weight_decay.and(at.scalars.get(1))) {
            (Rule::Muon(muon), _) if muon.is_adams(&at.param.name, &at.param.ty.shape) => match muon
                .adam_decay
            {
                Some(decay) => {
                    let shrink = at.rate.cast(DType::F64)?.mul_scalar(-rounded(decay))?.add_scalar(1.0)?;
                    value.mul(&shrink.cast(value.dtype())?)?
                }
                None => value.clone(),
            },
            (_, Some(shrink)) => value.mul(shrink)?,
            (_, None) => value.clone(),
        };
        let slot =
            |i: usize| slots.get(i).ok_or_else(|| refuse("gives an optimizer fewer slots than it has"));
        match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => Ok((value.sub(&grad.mul(size)?)?, Vec::new())),
            Rule::Sgd { momentum, nesterov } => {
                let momentum = rounded(momentum);
                let step = grad.mul(size)?;
                let m = slot(0)?.mul_scalar(momentum)?.sub(&step)?;
                let new = match nesterov {
                    true => value.add(&m.mul_scalar(momentum)?.sub(&step)?)?,
                    false => value.add(&m)?,
                };
                Ok((new, vec![m]))
            }
            Rule::Adam { beta1, beta2, eps, amsgrad } => {
                let m = follow(slot(0)?, &grad, 1.0 - beta1)?;
                let v = follow(slot(1)?, &grad.square()?, 1.0 - beta2)?;
                let mut new = vec![m.clone(), v.clone()];
                let mut spread = v;
                if amsgrad {
                    spread = slot(2)?.maximum(&spread)?;
                    new.push(spread.clone());
                }
                let step = m.mul(size)?.div(&spread.sqrt()?.add_scalar(eps)?)?;
                Ok((value.sub(&step)?, new))
            }
            // p ← p - lr (u' m / (1 - U u') + (1 - u) g / (1 - U)) / (√(v / (1 - β₂ᵗ)) + ε), where u and u' are the
            // momentums of this step and the next, U the product of all up to this one.
            Rule::Nadam { beta1, beta2, eps } => {
                let [.., now, next, root] = at.scalars else {
                    return Err(refuse("gives an optimizer fewer scalars than it prepared"));
                };
                let (beta1, beta2) = (rounded(beta1), rounded(beta2));
                let product = slot(2)?.mul(now)?;
                let m = follow(slot(0)?, &grad, 1.0 - beta1)?;
                let v = follow(slot(1)?, &grad.square()?, 1.0 - beta2)?;
                let ahead = next.div(&product.mul(next)?.rsub_scalar(1.0)?)?;
                let own = now.rsub_scalar(1.0)?.div(&product.rsub_scalar(1.0)?)?;
                let direction = m.mul(&ahead)?.add(&grad.mul(&own)?)?;
                let step = direction.mul(size)?.div(&v.sqrt()?.div(root)?.add_scalar(eps)?)?;
                Ok((value.sub(&step)?, vec![m, v, product]))
            }
            Rule::Adamax { beta1, beta2, eps } => {
                let m = follow(slot(0)?, &grad, 1.0 - beta1)?;
                let norm = slot(1)?.mul_scalar(beta2)?.maximum(&grad.abs()?)?;
                let step = m.mul(size)?.div(&norm.add_scalar(eps)?)?;
                Ok((value.sub(&step)?, vec![m, norm]))
            }
            Rule::RmsProp { rho, momentum, eps, centered } => {
                let velocity = mix(slot(0)?, &grad.square()?, rho)?;
                let mut spread = velocity.clone();
                let has_momentum = momentum > 0.0;
                let mean = match centered {
                    true => Some(mix(slot(1 + usize::from(has_momentum))?, &grad, rho)?),
                    false => None,
                };
                if let Some(mean) = &mean {
                    spread = spread.sub(&mean.square()?)?;
                }
                let mut step = grad.mul(size)?.div(&spread.add_scalar(eps)?.sqrt()?)?;
                let mut new = vec![velocity];
                if has_momentum {
                    step = slot(1)?.mul_scalar(momentum)?.add(&step)?;
                    new.push(step.clone());
                }
                new.extend(mean);
                Ok((value.sub(&step)?, new))
            }
            Rule::Adagrad { eps, .. } => {
                let sum = slot(0)?.add(&grad.square()?)?;
                let step = grad.mul(size)?.div(&sum.add_scalar(eps)?.sqrt()?)?;
                Ok((value.sub(&step)?, vec![sum]))
            }
            Rule::Adadelta { rho, eps } => {
                let squares = mix(slot(0)?, &grad.square()?, rho)?;
                let root = |x: &Tensor| x.add_scalar(eps)?.sqrt();
                let step = root(slot(1)?)?.mul(&grad)?.div(&root(&squares)?)?;
                let steps = mix(slot(1)?, &step.square()?, rho)?;
                Ok((value.sub(&step.mul(size)?)?, vec![squares, steps]))
            }
            Rule::Ftrl(ftrl) => {
                let [.., inverse, added] = at.scalars else {
                    return Err(refuse("gives an optimizer fewer scalars than it prepared"));
                };
                let at = UpdateAt { scalars: &[inverse.clone(), added.clone()], ..*at };
                ftrl.update(&at, &value, &grad, slots)
            }
            Rule::Lamb { beta1, beta2, eps } => {
                optimizer_more::lamb([beta1, beta2, eps], Given { at, value: &value, grad: &grad, slots })
            }
            Rule::Muon(muon) => muon.update(Given { at, value: &value, grad: &grad, slots }),
            Rule::Adafactor(own) => own.update(Given { at, value: &value, grad: &grad, slots }),
            Rule::ScheduleFree(own) => own.update(Given { at, value: &value, grad: &grad, slots }),
            Rule::Lion { beta1, beta2 } => {
                let (beta1, beta2) = (rounded(beta1), rounded(beta2));
                let step = mix(slot(0)?, &grad, beta1)?.sign()?.mul(size)?;
                Ok((value.sub(&step)?, vec![mix(slot(0)?, &grad, beta2)?]))
            }
        }
    }
}
