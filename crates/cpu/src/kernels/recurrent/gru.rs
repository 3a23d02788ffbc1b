//! The GRU's two passes; the formulas stand at the ops.

use plimsoll_graph::ops::RecurrentDims;

use super::super::lanes::{Stored, Wide};
use super::super::small_matmul::LANES;
use super::Of;
use super::large::Large;
use super::order::{Bound, add_to, apart, load, store};
use super::passes::{Backward, Forward};
use super::step::{GradStep, Step};
use crate::Cpu;
use crate::gemm::Shared;
use crate::simd::multiversion;

/// Gates: r, z, n.
const GATES: usize = 3;
/// What is saved of a unit: the gates and h u + bias_u of n.
const SAVED: usize = 4;

/// What a step of the forward pass has beside what every cell's has.
#[derive(Clone, Copy)]
struct Own<E> {
    /// x w + bias in the first three quarters on entry, what is saved on return: `[B, 4H]`.
    saved: *mut E,
    bias_u: *const E,
    /// h before this step, rows [`apart`].
    before: *const E,
}

multiversion! {
    /// Computes sixteen units from `first` on, for the whole batch; `sums` is h u, rows of 3 times sixteen.
    fn forward_units<L; T: Stored>(s: &Step<T, Own<Of<T>>>, first: usize, sums: *const Of<T>) {
        let (units, n) = (s.d.units, LANES.min(s.d.units - first));
        // SAFETY: the bias has these units.
        let bias = unsafe { [0, 1, 2].map(|gate| load(s.own.bias_u.add(gate * units + first), n)) };
        for b in 0..s.d.batch {
            // SAFETY: rows and units are inside the operands.
            unsafe {
                let mut state = s.sums::<GATES>(b, sums);
                for (sums, bias) in state.iter_mut().zip(&bias) {
                    (0..LANES).for_each(|l| sums[l] += bias[l]);
                }
                let row = s.own.saved.add(b * SAVED * units + first);
                let [mut r, mut z, mut new] = [0, 1, 2].map(|gate| load(row.add(gate * units).cast_const(), n));
                let mut h = load(s.own.before.add(b * apart(units) + first), n);
                for l in 0..LANES {
                    r[l] = (r[l] + state[0][l]).sigmoid::<L>();
                    z[l] = (z[l] + state[1][l]).sigmoid::<L>();
                    new[l] = (new[l] + r[l] * state[2][l]).tanh::<L>();
                    h[l] = (Of::<T>::ONE - z[l]) * new[l] + z[l] * h[l];
                }
                for (place, values) in [&r, &z, &new, &state[2]].into_iter().enumerate() {
                    store(row.add(place * units), n, values);
                }
                s.store_h(b, first, n, &h);
            }
        }
    }
}

/// Inputs: x, w, u, bias, bias_u, h₀. Outputs: y, the last h, what is saved.
///
/// # Safety
/// As for the kernel.
pub(super) unsafe fn forward<T: Stored<Wide: Large>>(cpu: &Cpu, d: RecurrentDims, at: &mut Bound<'_, T>) {
    // SAFETY: the caller's promise; all places come from the operands or the scratch, with their sizes.
    unsafe {
        let pass = Forward::take(cpu, d, GATES, at);
        let (bias_u, h0, saved) = (at.input(4), at.input(5), at.result(2));
        if !at.runs() {
            return;
        }
        let blocks = pass.begin(cpu, h0, (saved, SAVED * d.units));
        let own = |t: usize, before| {
            let saved = saved.add(t * d.batch * SAVED * d.units);
            Own { saved, bias_u, before }
        };
        pass.each_step(cpu, &blocks, at, own, |s, first, sums| forward_units(cpu.isa(), s, first, sums));
        pass.store_last(at);
        at.finish(2, saved);
    }
}

/// What a step of the backward pass has beside what every cell's has.
#[derive(Clone, Copy)]
struct GradOwn<T: Stored> {
    saved: *const T,
    /// h before this step: `[B, H]`.
    before: *const T::Wide,
    /// The gradient of h that comes from later steps but for the product: `[B, H]`.
    dh: *mut T::Wide,
    /// The gradients of x w + bias and of h u + bias_u: rows [`apart`].
    to_x: *mut T::Wide,
    to_h: *mut T::Wide,
    dbias: *mut T::Wide,
    dbias_u: *mut T::Wide,
}

multiversion! {
    /// Computes sixteen units from `first` on, for the whole batch; `sums` is what the next step's product hands back.
    fn backward_units<L; T: Stored>(s: &GradStep<T, GradOwn<T>>, first: usize, sums: *const Of<T>) {
        let (own, units, one) = (&s.own, s.d.units, Of::<T>::ONE);
        let n = LANES.min(units - first);
        // Of r, z, n, and of h u + bias_u of n.
        let mut bias = [[Of::<T>::ZERO; LANES]; SAVED];
        for b in 0..s.d.batch {
            let state = b * units + first;
            // SAFETY: rows and units are inside the operands.
            unsafe {
                let (mut dh, dy) = (load(own.dh.add(state).cast_const(), n), s.dy(b, first, n));
                if let Some(back) = s.handed(b, sums) {
                    (0..LANES).for_each(|l| dh[l] += back[l]);
                }
                let row = own.saved.add(b * SAVED * units + first);
                let [r, z, new, product] = [0, 1, 2, 3].map(|place| load(row.add(place * units), n));
                let before = load(own.before.add(state), n);
                let mut grads = [[Of::<T>::ZERO; LANES]; SAVED];
                for l in 0..LANES {
                    dh[l] += dy[l];
                    let dn = dh[l] * (one - z[l]) * (one - new[l] * new[l]);
                    grads[0][l] = dn * product[l] * r[l] * (one - r[l]);
                    grads[1][l] = dh[l] * (before[l] - new[l]) * z[l] * (one - z[l]);
                    grads[2][l] = dn;
                    grads[3][l] = dn * r[l];
                    dh[l] *= z[l];
                }
                store(own.dh.add(state), n, &dh);
                let place = b * apart(GATES * units) + first;
                for gate in 0..GATES {
                    store(own.to_x.add(place + gate * units), n, &grads[gate]);
                    store(own.to_h.add(place + gate * units), n, &grads[if gate == 2 { 3 } else { gate }]);
                }
                for (sum, grad) in bias.iter_mut().zip(&grads) {
                    (0..LANES).for_each(|l| sum[l] += grad[l]);
                }
            }
        }
        for gate in 0..GATES {
            // SAFETY: the biases have these units.
            unsafe {
                add_to(own.dbias.add(gate * units + first), n, &bias[gate]);
                add_to(own.dbias_u.add(gate * units + first), n, &bias[if gate == 2 { 3 } else { gate }]);
            }
        }
    }
}

/// Inputs: x, w, u, h₀, y, what is saved, dy, dh. Outputs: dx, dw, du, dbias, dbias_u, dh₀.
///
/// # Safety
/// As for the kernel.
pub(super) unsafe fn backward<T: Stored<Wide: Large>>(cpu: &Cpu, d: RecurrentDims, at: &mut Bound<'_, T>) {
    let (state, wide) = (d.batch * d.units, GATES * d.units);
    let step_len = d.batch * apart(wide);
    // SAFETY: the caller's promise; all places come from the operands or the scratch, with their sizes.
    unsafe {
        let pass = Backward::take(cpu, d, GATES, 4, at);
        let [dbias, dbias_u] = [3, 4].map(|i| at.result(i));
        let dh = at.scratch::<Of<T>>(state);
        let [to_x, to_h]: [*mut Of<T>; 2] = [0, 1].map(|_| at.scratch(d.steps * step_len));
        if !at.runs() {
            return;
        }
        dbias.write_bytes(0, wide);
        dbias_u.write_bytes(0, wide);
        for i in 0..state {
            *dh.add(i) = (*at.stored(7).add(i)).widen();
        }
        let blocks = pass.begin(cpu);
        let (saved, dy) = (at.stored(5), at.stored(6));
        let own = |t: usize| GradOwn::<T> {
            saved: saved.add(t * d.batch * SAVED * d.units),
            before: pass.before(t),
            dh,
            to_x: to_x.add(t * step_len),
            to_h: to_h.add(t * step_len),
            dbias,
            dbias_u,
        };
        let units = |s: &_, first, sums| backward_units(cpu.isa(), s, first, sums);
        pass.each_step(cpu, &blocks, (to_h, dy), own, units);
        let dh = Shared(dh);
        pass.store_first(cpu, &blocks, to_h, at.output(5), |i, handed| {
            *dh.get().add(i) + handed.unwrap_or(Of::<T>::ZERO)
        });
        pass.multiply(cpu, to_x, to_h, at);
        at.finish(3, dbias);
        at.finish(4, dbias_u);
    }
}
