//! The GRU's two passes; the formulas stand at the ops.

use plimsoll_graph::ops::RecurrentDims;

use super::super::lanes::{Stored, Wide};
use super::super::small_matmul::LANES;
use super::Of;
use super::large::Large;
use super::order::{Bound, add_to, apart, load, store};
use super::passes::{Backward, Forward};
use crate::Cpu;
use crate::gemm::Shared;
use crate::simd::multiversion;

/// Gates: r, z, n.
const GATES: usize = 3;
/// What is saved of a unit: the gates and h u + bias_u of n.
const SAVED: usize = 4;

/// One step of the forward pass.
#[derive(Clone, Copy)]
struct Step<T: Stored> {
    d: RecurrentDims,
    t: usize,
    /// x w + bias in the first three quarters on entry, what is saved on return: `[B, 4H]`.
    saved: *mut T::Wide,
    bias_u: *const T::Wide,
    /// h before and after this step, rows [`apart`].
    before: *const T::Wide,
    h: *mut T::Wide,
    y: *mut T,
}

// SAFETY: tasks of a step touch their own units alone.
unsafe impl<T: Stored> Sync for Step<T> {}

multiversion! {
    /// Computes sixteen units from `first` on, for the whole batch; `sums` is h u, rows of 3 times sixteen.
    fn forward_units<L; T: Stored>(s: &Step<T>, first: usize, sums: *const Of<T>) {
        let units = s.d.units;
        let n = LANES.min(units - first);
        for b in 0..s.d.batch {
            // SAFETY: rows and units are inside the operands.
            unsafe {
                let row = s.saved.add(b * SAVED * units + first);
                let mut state = sums.add(b * GATES * LANES).cast::<[[Of<T>; LANES]; GATES]>().read_unaligned();
                for (gate, sums) in state.iter_mut().enumerate() {
                    let bias = load(s.bias_u.add(gate * units + first), n);
                    (0..LANES).for_each(|l| sums[l] += bias[l]);
                }
                let [mut r, mut z, mut new] = [0, 1, 2].map(|gate| load(row.add(gate * units).cast_const(), n));
                let mut h = load(s.before.add(b * apart(units) + first), n);
                for l in 0..LANES {
                    r[l] = (r[l] + state[0][l]).sigmoid::<L>();
                    z[l] = (z[l] + state[1][l]).sigmoid::<L>();
                    new[l] = (new[l] + r[l] * state[2][l]).tanh::<L>();
                    h[l] = (Of::<T>::ONE - z[l]) * new[l] + z[l] * h[l];
                }
                for (place, values) in [&r, &z, &new, &state[2]].into_iter().enumerate() {
                    store(row.add(place * units), n, values);
                }
                store(s.h.add(b * apart(units) + first), n, &h);
                store(s.y.add((b * s.d.steps + s.t) * units + first), n, &h);
            }
        }
    }
}

/// Inputs: x, w, u, bias, bias_u, h₀. Outputs: y, the last h, what is saved.
///
/// # Safety
/// As for the kernel.
pub(super) unsafe fn forward<T: Stored>(cpu: &Cpu, d: RecurrentDims, at: &mut Bound<'_, T>)
where
    Of<T>: Large,
{
    // SAFETY: the caller's promise; all places come from the operands or the scratch, with their sizes.
    unsafe {
        let pass = Forward::take(cpu, d, GATES, at);
        let (bias_u, h0, saved) = (at.input(4), at.input(5), at.result(2));
        if !at.runs() {
            return;
        }
        let y = at.output(0);
        let blocks = pass.begin(cpu, h0, (saved, SAVED * d.units));
        let step = |t: usize, before, h| {
            let saved = saved.add(t * d.batch * SAVED * d.units);
            Step::<T> { d, t, saved, bias_u, before, h, y }
        };
        pass.each_step(cpu, &blocks, step, |s, first, sums| forward_units(cpu.isa(), s, first, sums));
        pass.store_last(at);
        at.finish(2, saved);
    }
}

/// One step of the backward pass.
#[derive(Clone, Copy)]
struct GradStep<T: Stored> {
    d: RecurrentDims,
    t: usize,
    saved: *const T,
    /// h before this step: `[B, H]`.
    before: *const T::Wide,
    dy: *const T,
    /// The gradient of h that comes from later steps but for the product: `[B, H]`.
    dh: *mut T::Wide,
    /// The gradients of x w + bias and of h u + bias_u: rows [`apart`].
    to_x: *mut T::Wide,
    to_h: *mut T::Wide,
    dbias: *mut T::Wide,
    dbias_u: *mut T::Wide,
    /// Numbers from one row of the sums to the next.
    columns: usize,
}

// SAFETY: tasks of a step touch their own units alone.
unsafe impl<T: Stored> Sync for GradStep<T> {}

multiversion! {
    /// Computes thirty-two units from `start` on, for the whole batch; `sums` is what the next step's product hands back.
    fn backward_units<L; T: Stored>(s: &GradStep<T>, start: usize, sums: *const Of<T>) {
        let (units, one) = (s.d.units, Of::<T>::ONE);
        for first in (start..units.min(start + 2 * LANES)).step_by(LANES) {
            let n = LANES.min(units - first);
            // Of r, z, n, and of h u + bias_u of n.
            let mut bias = [[Of::<T>::ZERO; LANES]; SAVED];
            for b in 0..s.d.batch {
                let state = b * units + first;
                // SAFETY: rows and units are inside the operands.
                unsafe {
                    let mut dh = load(s.dh.add(state).cast_const(), n);
                    let dy = load(s.dy.add((b * s.d.steps + s.t) * units + first), n);
                    if s.t + 1 < s.d.steps {
                        let back = sums.add(b * s.columns + first - start).cast::<[Of<T>; LANES]>().read_unaligned();
                        (0..LANES).for_each(|l| dh[l] += back[l]);
                    }
                    let row = s.saved.add(b * SAVED * units + first);
                    let [r, z, new, product] = [0, 1, 2, 3].map(|place| load(row.add(place * units), n));
                    let before = load(s.before.add(state), n);
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
                    store(s.dh.add(state), n, &dh);
                    let place = b * apart(GATES * units) + first;
                    for gate in 0..GATES {
                        store(s.to_x.add(place + gate * units), n, &grads[gate]);
                        store(s.to_h.add(place + gate * units), n, &grads[if gate == 2 { 3 } else { gate }]);
                    }
                    for (sum, grad) in bias.iter_mut().zip(&grads) {
                        (0..LANES).for_each(|l| sum[l] += grad[l]);
                    }
                }
            }
            for gate in 0..GATES {
                // SAFETY: the biases have these units.
                unsafe {
                    add_to(s.dbias.add(gate * units + first), n, &bias[gate]);
                    add_to(s.dbias_u.add(gate * units + first), n, &bias[if gate == 2 { 3 } else { gate }]);
                }
            }
        }
    }
}

/// Inputs: x, w, u, h₀, y, what is saved, dy, dh. Outputs: dx, dw, du, dbias, dbias_u, dh₀.
///
/// # Safety
/// As for the kernel.
pub(super) unsafe fn backward<T: Stored>(cpu: &Cpu, d: RecurrentDims, at: &mut Bound<'_, T>)
where
    Of<T>: Large,
{
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
        let (saved, dy, columns) = (at.stored(5), at.stored(6), blocks.columns());
        let step = |t: usize| GradStep::<T> {
            d,
            t,
            saved: saved.add(t * d.batch * SAVED * d.units),
            before: pass.before(t),
            dy,
            dh,
            to_x: to_x.add(t * step_len),
            to_h: to_h.add(t * step_len),
            dbias,
            dbias_u,
            columns,
        };
        pass.each_step(cpu, &blocks, to_h, step, |s, first, sums| backward_units(cpu.isa(), s, first, sums));
        let dh = Shared(dh);
        pass.store_first(cpu, &blocks, to_h, at.output(5), |i, handed| {
            *dh.get().add(i) + handed.unwrap_or(Of::<T>::ZERO)
        });
        pass.multiply(cpu, to_x, to_h, at);
        at.finish(3, dbias);
        at.finish(4, dbias_u);
    }
}
