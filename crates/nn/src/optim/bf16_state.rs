//! An optimizer whose state is bf16: half the memory, one pass over the parameter.

use std::sync::Arc;

use plimsoll_graph::ops::Bf16Update;
use plimsoll_graph::{DType, TensorOps, UpdateOps};
use plimsoll_run::{Result, Tensor};

use super::kept::{around_inner, kept_as};
use super::{Kept, Optimizer, Slot, UpdateAt, Updated};
use crate::Param;

/// Adam, momentum or Lion with state in bf16, half the memory of f32. A step reads it, computes in f32 and rounds stochastically: up as often
/// as a number is near the upper one of its neighbours, so that means that move by less than bf16 tells apart still move, and are right on
/// average. What is drawn is said by the training's seed, the step, the parameter's name and the element: the same training gives
/// the same bits every time, on any number of threads, and where it goes on.
///
/// Parameters that are bf16 themselves ([`Precision::Bf16`](plimsoll_run::Precision)) are rounded the same way; parameters of other
/// types keep state of their own type.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_nn::{Adam, Bf16State, Optimizer, Param, Init};
/// let adam = Bf16State::of(&Adam::new(1e-3)).expect("Adam has such a form");
/// let ty = Type::new(DType::F32, [256, 256]);
/// let param = Param { name: "w".into(), ty, init: Init::Constant(0.0), trained: true };
/// let bytes: usize = adam.slots(&param).iter().map(|slot| slot.ty.bytes()).sum();
/// assert_eq!(bytes, 4 * 65536);
/// ```
#[derive(Clone, Debug)]
pub struct Bf16State {
    inner: Arc<dyn Optimizer>,
}

around_inner!(Bf16State, Kept::Bf16);

impl Bf16State {
    /// The step of a parameter whose state is bf16, of which this begins at an element.
    fn step(&self, param: &Param, first: usize) -> Option<Bf16Update> {
        let update = self.inner.rule(param);
        let update = update.filter(|_| matches!(param.ty.dtype, DType::F32 | DType::BF16))?;
        Some(Bf16Update { update, stream: stream(&param.name), first })
    }
}

/// A parameter's own number among those that are drawn for, by its name (FNV-1a). Layers that draw have small numbers.
fn stream(name: &str) -> u32 {
    let hash =
        name.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash | 1 << 31
}

impl Optimizer for Bf16State {
    kept_as!(Kept::Bf16, "bf16");
    left_to_inner!(rate -> f64, keeps_elements_apart -> bool);

    fn slots(&self, param: &Param) -> Vec<Slot> {
        let slots = self.inner.slots(param);
        match self.step(param, 0) {
            Some(_) => {
                slots.into_iter().map(|slot| Slot { ty: slot.ty.with_dtype(DType::BF16), ..slot }).collect()
            }
            None => slots,
        }
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let Some(op) = self.step(at.param, at.first) else {
            return self.inner.update(at, value, grad, slots);
        };
        // Whoever asks may have them in the parameter's type.
        let scalars = at.scalars.iter().map(|x| x.cast(DType::F32)).collect::<Result<Vec<Tensor>>>()?;
        let (scalars, state): (Vec<&Tensor>, Vec<&Tensor>) =
            (scalars.iter().collect(), slots.iter().collect());
        let mut moved = value.bf16_update(op, grad, &scalars, at.key, &state)?;
        let value = moved.remove(0);
        Ok((value, moved.into_vec()))
    }
}
