//! An optimizer's step over a block of numbers, whatever their state is kept as.

use plimsoll_device::backend::Call;
use plimsoll_graph::eight_bit::BLOCK;
use plimsoll_graph::ops::{Update, UpdateRule, UpdateStep};

use crate::gemm::Shared;
use crate::isa::Isa;
use crate::simd::multiversion;

/// A parameter that is moved, block by block; where it is not f32, its numbers are not read here ([`Moved::step_here`]).
pub(super) struct Moved {
    /// Its elements.
    pub n: usize,
    rule: UpdateRule,
    step: UpdateStep,
    value: Shared<f32>,
    grad: Shared<f32>,
    out: Shared<f32>,
}

impl Moved {
    /// The parameter, the gradient and the scalars of a call, which are its first inputs.
    ///
    /// # Safety
    /// The call is one of a step that the op's shape rule has accepted.
    pub unsafe fn of(update: &Update, call: &Call<'_>) -> Moved {
        let first = update.first_state();
        // SAFETY: the call's scalars are one number each.
        let scalars = [2, 3, first - 1].map(|at| unsafe { *call.inputs[at].ptr.cast::<f32>() });
        Moved {
            n: call.inputs[0].ty.elements(),
            rule: update.rule,
            step: update.step(&scalars[..first - 2]),
            value: Shared(call.inputs[0].ptr.cast()),
            grad: Shared(call.inputs[1].ptr.cast()),
            out: Shared(call.outputs[0].ptr.cast()),
        }
    }

    /// Moves `n` numbers from one on, a block at most, by their state, which is moved too.
    #[inline(always)]
    pub fn step(&self, isa: Isa, start: usize, n: usize, m: &mut [f32; BLOCK], v: &mut [f32; BLOCK]) {
        let (value, grad) = (self.value.get().wrapping_add(start), self.grad.get().wrapping_add(start));
        step(isa, self.rule, &self.step, value, grad, self.out.get().wrapping_add(start), n, m, v);
    }

    /// Moves `n` numbers, a block at most, that are here in f32 whatever they are kept as.
    #[inline(always)]
    pub fn step_here(
        &self,
        isa: Isa,
        n: usize,
        values: &mut [f32; BLOCK],
        grads: &[f32; BLOCK],
        m: &mut [f32; BLOCK],
        v: &mut [f32; BLOCK],
    ) {
        let out = values.as_mut_ptr();
        step(isa, self.rule, &self.step, out, grads.as_ptr(), out, n, m, v);
    }
}

multiversion! {
    /// A step of `n` numbers, a block at most; the new parameter may lie where the old one or its gradient does.
    fn step<L>(
        rule: UpdateRule,
        step: &UpdateStep,
        value: *const f32,
        grad: *const f32,
        out: *mut f32,
        n: usize,
        m: &mut [f32; BLOCK],
        v: &mut [f32; BLOCK],
    ) {
        match rule {
            UpdateRule::Adam { .. } => for i in 0..n {
                // SAFETY: the caller gives `n` numbers, and an element is read before it is written.
                unsafe { (*out.add(i), m[i], v[i]) = step.adam(*value.add(i), *grad.add(i), m[i], v[i]) };
            },
            UpdateRule::Momentum { is_nesterov, .. } => for i in 0..n {
                // SAFETY: the caller gives `n` numbers, and an element is read before it is written.
                unsafe { (*out.add(i), m[i]) = step.momentum(is_nesterov, *value.add(i), *grad.add(i), m[i]) };
            },
            UpdateRule::Lion { .. } => for i in 0..n {
                // SAFETY: the caller gives `n` numbers, and an element is read before it is written.
                unsafe { (*out.add(i), m[i]) = step.lion(*value.add(i), *grad.add(i), m[i]) };
            },
        }
    }
}
