//! An optimizer whose state is bytes: a quarter of the memory, one pass over the parameter.

use std::sync::Arc;

use plimsoll_graph::eight_bit::LEAST;
use plimsoll_graph::ops::{EightBitUpdate, coded};
use plimsoll_graph::{DType, UpdateOps};
use plimsoll_run::{Result, Tensor};

use super::kept::{around_inner, kept_as};
use super::{Kept, Optimizer, Slot, UpdateAt, Updated};
use crate::Param;

/// Adam, momentum or Lion with state of one byte a number, and a scale for every 256 of them: about a quarter of the memory of f32.
/// After Dettmers and others, "8-bit Optimizers via Block-wise Quantization" (2022). A step reads the bytes, computes in f32 and rounds to
/// the nearest byte again, so that the same training gives the same bits every time.
///
/// Parameters of fewer than 4096 elements keep state in f32, as do those in f64.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_nn::{Adam, EightBit, Optimizer, Param, Init};
/// let adam = EightBit::of(&Adam::new(1e-3)).expect("Adam has such a form");
/// let param = |shape: [usize; 2]| {
///     Param { name: "w".into(), ty: Type::new(DType::F32, shape), init: Init::Constant(0.0), trained: true }
/// };
/// let bytes = |optimizer: &dyn Optimizer, shape| -> usize {
///     optimizer.slots(&param(shape)).iter().map(|slot| slot.ty.bytes()).sum()
/// };
/// assert_eq!(bytes(&Adam::new(1e-3), [256, 256]), 8 * 65536);
/// assert_eq!(bytes(&adam, [256, 256]), 2 * (65536 + 4 * 256));
/// assert_eq!(bytes(&adam, [10, 10]), 8 * 100);
/// ```
#[derive(Clone, Debug)]
pub struct EightBit {
    inner: Arc<dyn Optimizer>,
}

around_inner!(EightBit, Kept::EightBit);

impl EightBit {
    /// The step of a parameter whose state is bytes.
    fn rule(&self, param: &Param) -> Option<EightBitUpdate> {
        let is_large = param.ty.dtype == DType::F32 && param.ty.elements() >= LEAST;
        self.inner.rule(param).filter(|_| is_large).map(EightBitUpdate)
    }
}

/// The names of the codes and of the scales of a state.
fn names(of: &str) -> Option<[&'static str; 2]> {
    match of {
        "m" => Some(["m.codes", "m.scales"]),
        "v" => Some(["v.codes", "v.scales"]),
        "momentum" => Some(["momentum.codes", "momentum.scales"]),
        _ => None,
    }
}

impl Optimizer for EightBit {
    kept_as!(Kept::EightBit, "8bit");
    left_to_inner!(rate -> f64);

    fn slots(&self, param: &Param) -> Vec<Slot> {
        let slots = self.inner.slots(param);
        let Some(rule) = self.rule(param) else { return slots };
        let mut all = Vec::new();
        for (slot, map) in slots.iter().zip(rule.codes()) {
            let ([codes, scales], [own, others]) =
                (names(slot.name).unwrap_or(["codes", "scales"]), coded(&param.ty));
            all.push(Slot { name: codes, ty: own, init: f64::from(map.zero()) });
            all.push(Slot { name: scales, ty: others, init: 0.0 });
        }
        all
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let Some(rule) = self.rule(at.param) else { return self.inner.update(at, value, grad, slots) };
        let (scalars, state): (Vec<&Tensor>, Vec<&Tensor>) =
            (at.scalars.iter().collect(), slots.iter().collect());
        let mut moved = value.eight_bit_update(rule, grad, &scalars, &state)?;
        let value = moved.remove(0);
        Ok((value, moved.into_vec()))
    }
}
