//! Turns Keras's constraints into what becomes of a weight after every update.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_graph::TensorOps;
use plimsoll_nn::{Optimizer, Param, Slot, UpdateAt, Updated};
use plimsoll_run::{Result as RunResult, Tensor};

use crate::error::{Result, refuse};
use crate::named::Named;
use crate::settings::Settings;

/// Added to norms, as Keras has it.
const EPSILON: f64 = 1e-7;

/// What holds a weight.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Constraint {
    /// Nothing below 0.
    NonNegative,
    /// Norms along axes between two bounds; where `share` is below 1, brought only so far there.
    Norm { least: f64, most: f64, share: f64, axes: Vec<i64> },
    /// Norms along axes are 1.
    Unit(Vec<i64>),
}

impl Constraint {
    /// The constraint that a setting names, if it names one.
    pub(crate) fn read(settings: &Settings<'_>, key: &str) -> Result<Option<Constraint>> {
        let value = settings.get(key);
        if value.is_null() {
            return Ok(None);
        }
        let named = Named::read(value, &format!("{key} of {}", settings.place))?;
        let own = named.settings(settings.place);
        let axes = || if own.is_null("axis") { Ok(vec![0]) } else { own.integers("axis") };
        let found = match named.name {
            "NonNeg" | "non_neg" => Constraint::NonNegative,
            "UnitNorm" | "unit_norm" => Constraint::Unit(axes()?),
            "MaxNorm" | "max_norm" => Constraint::Norm {
                least: 0.0,
                most: own.number_or("max_value", 2.0)?,
                share: 1.0,
                axes: axes()?,
            },
            "MinMaxNorm" | "min_max_norm" => Constraint::Norm {
                least: own.number_or("min_value", 0.0)?,
                most: own.number_or("max_value", 1.0)?,
                share: own.number_or("rate", 1.0)?,
                axes: axes()?,
            },
            _ => return Err(settings.wrong(key, "NonNeg, MaxNorm, MinMaxNorm and UnitNorm are known")),
        };
        own.finish(&[])?;
        Ok(Some(found))
    }

    /// Whether it holds each element by itself.
    fn keeps_elements_apart(&self) -> bool {
        matches!(self, Constraint::NonNegative)
    }

    fn apply(&self, w: &Tensor) -> RunResult<Tensor> {
        let norm = |axes: &[i64]| -> RunResult<Tensor> {
            let rank = w.shape().rank() as i64;
            let place = |&axis: &i64| if axis < 0 { axis + rank } else { axis };
            let mut places: Vec<usize> = axes.iter().map(|axis| place(axis).max(0) as usize).collect();
            places.sort_unstable();
            if places.iter().any(|place| *place as i64 >= rank) {
                return Err(refuse(format!("holds norms of {} along axes {axes:?}", w.ty())));
            }
            w.square()?.sum(&places, true)?.sqrt()
        };
        match self {
            Constraint::NonNegative => w.clamp(0.0, f64::INFINITY),
            Constraint::Unit(axes) => w.div(&norm(axes)?.add_scalar(EPSILON)?),
            Constraint::Norm { least, most, share, axes } => {
                let norm = norm(axes)?;
                let mut wanted = norm.clamp(*least, *most)?;
                if *share != 1.0 {
                    wanted = wanted.mul_scalar(*share)?.add(&norm.mul_scalar(1.0 - share)?)?;
                }
                w.mul(&wanted.div(&norm.add_scalar(EPSILON)?)?)
            }
        }
    }
}

/// An optimizer after which constraints hold.
#[derive(Debug)]
pub(crate) struct Constrained {
    pub optimizer: Arc<dyn Optimizer>,
    /// By parameter.
    pub constraints: Arc<HashMap<String, Constraint>>,
}

impl Optimizer for Constrained {
    fn name(&self) -> &'static str {
        self.optimizer.name()
    }

    fn rate(&self) -> f64 {
        self.optimizer.rate()
    }

    fn patience(&self) -> f64 {
        self.optimizer.patience()
    }

    fn keeps_elements_apart(&self) -> bool {
        let mut held = self.constraints.values();
        self.optimizer.keeps_elements_apart() && held.all(Constraint::keeps_elements_apart)
    }

    fn looks_across(&self) -> Option<String> {
        let whole = self.constraints.iter().filter(|(_, held)| !held.keeps_elements_apart());
        // The first by name, so that all ranks say the same.
        let of_norm = whole.map(|(name, _)| name).min();
        let of_norm = of_norm.map(|name| format!("a constraint of the model holds norms of {name}"));
        self.optimizer.looks_across().or(of_norm)
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        self.optimizer.slots(param)
    }

    fn prepare(&self, count: &Tensor, rate: &Tensor) -> RunResult<Vec<Tensor>> {
        self.optimizer.prepare(count, rate)
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let (new, slots) = self.optimizer.update(at, value, grad, slots)?;
        Ok(match self.constraints.get(&at.param.name) {
            Some(constraint) => (constraint.apply(&new)?, slots),
            None => (new, slots),
        })
    }
}
