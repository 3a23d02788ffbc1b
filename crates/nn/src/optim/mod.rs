//! Turns gradients into new parameters.
//!
//! An optimizer is a formula over one parameter, its gradient and named state of its own, the slots. Everything that
//! is the same for all parameters of a step, the bias corrections say, is prepared once as scalars; the rest is
//! elementwise, so that a parameter's update is one pass over memory that writes over the old values. (Adafactor's
//! also takes means.)

/// Methods that an optimizer around another one leaves to that.
macro_rules! left_to_inner {
    ($($name:ident -> $gives:ty),*) => { $(fn $name(&self) -> $gives { self.inner.$name() })* };
}

mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod averaged;
mod bf16_state;
mod clip;
mod decay;
mod eight_bit;
mod ftrl;
mod kept;
mod lion;
mod nadam;
mod pruned;
mod radam;
mod rmsprop;
mod sgd;

pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adamax::Adamax;
pub use averaged::Averaged;
pub use bf16_state::Bf16State;
pub(crate) use clip::{NormScale, added, clip_by_norm_over};
pub use clip::{clip_by_global_norm, clip_by_value};
pub use decay::{Decay, DecayKind};
pub use eight_bit::EightBit;
pub use ftrl::Ftrl;
pub use kept::Kept;
pub use lion::Lion;
pub use nadam::NAdam;
pub use pruned::Pruned;
pub use radam::RAdam;
pub use rmsprop::RmsProp;
pub use sgd::Sgd;

use std::sync::Arc;

use plimsoll_graph::ops::Update;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::Param;

/// State that an optimizer keeps for a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// What it is called: `m`, `variance`.
    pub name: &'static str,
    /// Element type and shape.
    pub ty: Type,
    /// The value it starts with, everywhere.
    pub init: f64,
}

impl Slot {
    /// A slot of zeros, of the parameter's own type.
    pub fn zeros(name: &'static str, param: &Param) -> Slot {
        Slot { name, ty: param.ty.clone(), init: 0.0 }
    }
}

/// Where an update stands: what is known beside the parameter itself.
#[derive(Clone, Copy)]
pub struct UpdateAt<'a> {
    /// The number of this update as a float scalar, 1 for the first.
    pub count: &'a Tensor,
    /// The learning rate of this step, a float scalar.
    pub rate: &'a Tensor,
    /// What [`Optimizer::prepare`] gave for this step.
    pub scalars: &'a [Tensor],
    /// The parameter's name, type and kind.
    pub param: &'a Param,
    /// Elements of the parameter before those that are moved, where ranks have shards of it.
    pub first: usize,
    /// What is drawn by: seed and step, i64 `[2]`.
    pub key: &'a Tensor,
}

/// The new value of a parameter and its slots.
pub type Updated = Result<(Tensor, Vec<Tensor>)>;

/// A rule that moves parameters.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Type};
/// use plimsoll_nn::{Init, Optimizer, Param, Sgd, UpdateAt};
/// use plimsoll_run::Tensor;
/// let sgd = Sgd::new(0.1);
/// let ty = Type::new(DType::F32, [1]);
/// let param = Param { name: "w".into(), ty: ty.clone(), init: Init::Constant(0.0), trained: true };
/// let scalar = |x: f32| Tensor::from_slice(&[x], []);
/// let (count, rate) = (scalar(1.0)?, scalar(0.1)?);
/// let scalars = sgd.prepare(&count, &rate)?;
/// let key = Tensor::from_slice(&[42i64, 0], [2])?;
/// let at = UpdateAt { count: &count, rate: &rate, scalars: &scalars, param: &param, first: 0, key: &key };
/// let (w, slots) = sgd.update(&at, &Tensor::full(ty.clone(), 1.0)?, &Tensor::full(ty, 5.0)?, &[])?;
/// assert!(slots.is_empty() && (w.item()? - 0.5).abs() < 1e-6);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub trait Optimizer: std::fmt::Debug + Send + Sync {
    /// Its name, in lower case.
    fn name(&self) -> &'static str;

    /// The learning rate before any schedule.
    fn rate(&self) -> f64;

    /// The learning rates before any schedule, where groups of parameters have their own: [`Optimizer::prepare`] is then given all of them,
    /// one behind the other, in the place of one.
    fn rates(&self) -> Vec<f64> {
        vec![self.rate()]
    }

    /// After how many steps with finite gradients a loss scale doubles, where the precision has one.
    fn patience(&self) -> f64 {
        crate::scale::PATIENCE
    }

    /// The state it keeps for a parameter.
    fn slots(&self, param: &Param) -> Vec<Slot>;

    /// The scalars of a step that all updates share, from the number of the update and the learning rate, float
    /// scalars. They have the rate's type; an update is given them in its parameter's.
    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>>;

    /// The new value of a parameter and its slots.
    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated;

    /// Whether the update of an element reads nothing of other elements, but for what is one number for the whole parameter: then ranks can
    /// have shards of a parameter's state. Whoever does not say so is not asked to.
    fn keeps_elements_apart(&self) -> bool {
        false
    }

    /// What in it looks at more than an element at a time, where there is a name for that: a refusal says it.
    fn looks_across(&self) -> Option<String> {
        None
    }

    /// The same step of a parameter as one op's formula, where there is one, for slots that are kept in fewer bits ([`EightBit`],
    /// [`Bf16State`]): it takes the scalars of [`Optimizer::prepare`], and slots in the order of [`Optimizer::slots`].
    fn rule(&self, _param: &Param) -> Option<Update> {
        None
    }

    /// The same optimizer with slots that are kept so; none where it has no such form.
    fn with_state(&self, _kept: Kept) -> Option<Arc<dyn Optimizer>> {
        None
    }

    /// What slots are kept as.
    fn kept(&self) -> Kept {
        Kept::F32
    }
}

impl<O: Optimizer + ?Sized> Optimizer for Arc<O> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn rate(&self) -> f64 {
        (**self).rate()
    }

    fn rates(&self) -> Vec<f64> {
        (**self).rates()
    }

    fn patience(&self) -> f64 {
        (**self).patience()
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        (**self).slots(param)
    }

    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        (**self).prepare(count, rate)
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        (**self).update(at, value, grad, slots)
    }

    fn keeps_elements_apart(&self) -> bool {
        (**self).keeps_elements_apart()
    }

    fn looks_across(&self) -> Option<String> {
        (**self).looks_across()
    }

    fn rule(&self, param: &Param) -> Option<Update> {
        (**self).rule(param)
    }

    fn with_state(&self, kept: Kept) -> Option<Arc<dyn Optimizer>> {
        (**self).with_state(kept)
    }

    fn kept(&self) -> Kept {
        (**self).kept()
    }
}

/// The name of an optimizer, and its learning rate as its settings have it.
macro_rules! name_and_rate {
    ($name:literal) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn rate(&self) -> f64 {
            self.lr
        }
    };
}
use name_and_rate;

/// An optimizer by name, with a learning rate and the usual settings: `sgd`, `momentum`, `nesterov`, `adam`, `adamw`,
/// `rmsprop`, `adagrad`, `ftrl`, `lion` or `adafactor`.
///
/// ```
/// assert_eq!(plimsoll_nn::optimizer("adamw", 1e-3).map(|o| o.rate()), Some(1e-3));
/// assert!(plimsoll_nn::optimizer("sdg", 1e-3).is_none());
/// ```
pub fn optimizer(name: &str, lr: f64) -> Option<Arc<dyn Optimizer>> {
    Some(match name {
        "sgd" => Arc::new(Sgd::new(lr)),
        "momentum" => Arc::new(Sgd::momentum(lr, 0.9)),
        "nesterov" => Arc::new(Sgd::nesterov(lr, 0.9)),
        "adam" => Arc::new(Adam::new(lr)),
        "adamw" => Arc::new(Adam::w(lr, 0.01)),
        "rmsprop" => Arc::new(RmsProp::new(lr)),
        "adagrad" => Arc::new(Adagrad::new(lr)),
        "ftrl" => Arc::new(Ftrl::new(lr)),
        "lion" => Arc::new(Lion::new(lr)),
        "adafactor" => Arc::new(Adafactor::new(lr)),
        _ => return None,
    })
}

/// 1 - βᵗ. In f64, so that the powers are exact enough over any number of steps.
fn one_minus_power(beta: f64, count: &Tensor) -> Result<Tensor> {
    count.cast(DType::F64)?.mul_scalar(beta.ln())?.exp()?.rsub_scalar(1.0)
}

/// rate / (1 - βᵗ): the rate for a mean that starts from zero.
fn unbiased(rate: &Tensor, beta: f64, count: &Tensor) -> Result<Tensor> {
    rate.cast(DType::F64)?.div(&one_minus_power(beta, count)?)?.cast(rate.dtype())
}

/// old + share · (new - old)
fn follow(old: &Tensor, new: &Tensor, share: f64) -> Result<Tensor> {
    old.add(&new.sub(old)?.mul_scalar(share)?)
}

/// keep · old + (1 - keep) · new
fn mix(old: &Tensor, new: &Tensor, keep: f64) -> Result<Tensor> {
    old.mul_scalar(keep)?.add(&new.mul_scalar(1.0 - keep)?)
}

/// The slots of an update, as many as the optimizer has.
#[track_caller]
fn taken<'a, const N: usize>(slots: &'a [Tensor], what: &str) -> Result<&'a [Tensor; N]> {
    slots.try_into().map_err(|_| {
        crate::error::refuse(format!("gives {} {what} to an optimizer that has {N}", slots.len()))
    })
}
