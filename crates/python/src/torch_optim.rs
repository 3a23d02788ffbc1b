//! Turns parameter groups of a `torch.optim` optimizer into an optimizer of the engine.

use std::collections::BTreeMap;

use plimsoll::nn::{Adagrad, Adam, Adamax, Decay, Lion, NAdam, RAdam, RmsProp, Sgd};
use plimsoll::torch::{Cycled, Rule, TorchOptimizer};
use pyo3::prelude::*;

use crate::errors::{Failure, plain};

/// A group: the optimizer's class, its settings by PyTorch's names (truth values as 0 and 1), and the parameters that it moves.
#[derive(FromPyObject)]
pub struct Group {
    #[pyo3(item)]
    rule: String,
    #[pyo3(item)]
    settings: BTreeMap<String, f64>,
    #[pyo3(item)]
    names: Vec<String>,
    /// Whether its momentum, or Adam's first beta, is given with every step as its learning rate is.
    #[pyo3(item)]
    cycled: bool,
    /// The decay of averages of its weights, and after how many updates they begin; without that, they have begun.
    #[pyo3(item)]
    average: Option<(f64, Option<u64>)>,
}

/// An optimizer of such groups.
pub fn optimizer(groups: &[Group]) -> Result<TorchOptimizer, Failure> {
    let read = |group: &Group| {
        let rule = group.rule()?;
        let rule = match group.average {
            Some((decay, after)) => rule.averaged(decay, after),
            None => rule,
        };
        Ok((rule, group.names.clone()))
    };
    let groups = groups.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
    Ok(TorchOptimizer::new(groups)?)
}

impl Group {
    fn number(&self, name: &str) -> Result<f64, Failure> {
        let missing = || plain(format!("a group of {} has no setting {name}", self.rule));
        self.settings.get(name).copied().ok_or_else(missing)
    }

    fn decay(&self, is_decoupled: bool) -> Result<Decay, Failure> {
        let rate = self.number("weight_decay")?;
        Ok(if is_decoupled { Decay::decoupled(rate) } else { Decay::l2(rate) })
    }

    fn rule(&self) -> Result<Rule, Failure> {
        let lr = self.number("lr")?;
        let betas = || Ok::<_, Failure>((self.number("beta1")?, self.number("beta2")?));
        let is_decoupled = || Ok::<_, Failure>(self.number("decoupled_weight_decay")? != 0.0);
        Ok(match self.rule.as_str() {
            "SGD" => {
                let (momentum, is_nesterov) = (self.number("momentum")?, self.number("nesterov")? != 0.0);
                let sgd = Sgd { lr, momentum, is_nesterov, decay: self.decay(false)? };
                if self.cycled { Cycled::from(sgd).into() } else { sgd.into() }
            }
            "Adam" | "AdamW" => {
                let (beta1, beta2) = betas()?;
                let decay = self.decay(self.rule == "AdamW" || is_decoupled()?)?;
                let adam = Adam { lr, beta1, beta2, eps: self.number("eps")?, decay };
                if self.cycled { Cycled::from(adam).into() } else { adam.into() }
            }
            "Adamax" => {
                let (beta1, beta2) = betas()?;
                Adamax { lr, beta1, beta2, eps: self.number("eps")?, decay: self.decay(false)? }.into()
            }
            "NAdam" => {
                let (beta1, beta2) = betas()?;
                let (eps, momentum_decay) = (self.number("eps")?, self.number("momentum_decay")?);
                NAdam { lr, beta1, beta2, eps, momentum_decay, decay: self.decay(is_decoupled()?)? }.into()
            }
            "RAdam" => {
                let (beta1, beta2) = betas()?;
                RAdam { lr, beta1, beta2, eps: self.number("eps")?, decay: self.decay(is_decoupled()?)? }
                    .into()
            }
            "RMSprop" => RmsProp {
                lr,
                alpha: self.number("alpha")?,
                eps: self.number("eps")?,
                momentum: self.number("momentum")?,
                is_centered: self.number("centered")? != 0.0,
                decay: self.decay(false)?,
            }
            .into(),
            "Adagrad" => Adagrad {
                lr,
                lr_decay: self.number("lr_decay")?,
                start: self.number("initial_accumulator_value")?,
                eps: self.number("eps")?,
                decay: self.decay(false)?,
            }
            .into(),
            "Lion" => {
                let (beta1, beta2) = betas()?;
                Lion { lr, beta1, beta2, decay: self.decay(true)? }.into()
            }
            other => return Err(plain(format!("the optimizer {other} is not known here"))),
        })
    }
}
