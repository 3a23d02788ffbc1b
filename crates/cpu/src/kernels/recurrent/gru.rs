//! The GRU's two passes; the formulas stand at the ops.

use plimsoll_graph::ops::RecurrentDims;

use super::super::lanes::{Stored, Wide};
use super::super::small_matmul::LANES;
use super::Of;
use super::blocks::{Blocks, Cell};
use super::large::{Large, Matrix};
use super::order::{Bound, apart, load, store};
use crate::Cpu;
use crate::gemm::{Shape, Shared};
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
    let (rows, units, wide) = (d.batch * d.steps, d.units, GATES * d.units);
    // SAFETY: the caller's promise; all places come from the operands or the scratch, with their sizes.
    unsafe {
        let x = at.by_time(0, &d, d.inputs, 0);
        let [w, u, bias, bias_u, h0] = [1, 2, 3, 4, 5].map(|i| at.input(i));
        let saved = at.result(2);
        let h: [*mut Of<T>; 2] = [0, 1].map(|_| at.scratch(d.batch * apart(units)));
        let blocks = at.scratch(Blocks::<Of<T>>::forward_size(units, GATES));
        let sums = at.scratch::<Of<T>>(cpu.threads() * Blocks::<Of<T>>::sums_size(d.batch, GATES));
        let shape = Shape { m: rows, n: wide, k: d.inputs };
        let work = at.scratch::<u8>(Of::<T>::scratch(cpu, shape));
        if !at.runs() {
            return;
        }
        let (x, w) = (Matrix::plain(x, d.inputs), Matrix::plain(w, wide));
        Of::<T>::multiply(cpu, shape, x, w, saved, SAVED * units, Some(bias), work);
        let blocks = Blocks::forward(cpu, u, Cell { units, gates: GATES, batch: d.batch }, blocks);
        for b in 0..d.batch {
            std::ptr::copy_nonoverlapping(h0.add(b * units), h[0].add(b * apart(units)), units);
        }
        for t in 0..d.steps {
            let before = h[t % 2].cast_const();
            let saved = saved.add(t * d.batch * SAVED * units);
            let step = &Step::<T> { d, t, saved, bias_u, before, h: h[(t + 1) % 2], y: at.output(0) };
            blocks.for_each(cpu, d.batch, Some((before, apart(units))), sums, |first, sums| {
                forward_units(cpu.isa(), step, first, sums);
            });
        }
        for b in 0..d.batch {
            for j in 0..units {
                *at.output(1).add(b * units + j) = T::narrow(*h[d.steps % 2].add(b * apart(units) + j));
            }
        }
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

/// Adds sixteen sums to a bias' gradient.
#[inline(always)]
unsafe fn add_bias<E: Wide>(place: *mut E, n: usize, sums: &[E; LANES]) {
    // SAFETY: the caller has `n` numbers there.
    unsafe {
        let mut total = load(place.cast_const(), n);
        (0..LANES).for_each(|l| total[l] += sums[l]);
        store(place, n, &total);
    }
}

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
                    add_bias(s.dbias.add(gate * units + first), n, &bias[gate]);
                    add_bias(s.dbias_u.add(gate * units + first), n, &bias[if gate == 2 { 3 } else { gate }]);
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
    let (rows, units, wide) = (d.batch * d.steps, d.units, GATES * d.units);
    let (state, ld) = (d.batch * units, apart(wide));
    // SAFETY: the caller's promise; all places come from the operands or the scratch, with their sizes.
    unsafe {
        let (x, h) = (at.by_time(0, &d, d.inputs, 0), at.by_time(4, &d, units, state));
        let (w, u, h0) = (at.input(1), at.input(2), at.input(3));
        let [dw, du, dbias, dbias_u] = [1, 2, 3, 4].map(|i| at.result(i));
        let dx = at.scratch::<Of<T>>(rows * d.inputs);
        let dh = at.scratch::<Of<T>>(state);
        let [to_x, to_h]: [*mut Of<T>; 2] = [0, 1].map(|_| at.scratch(rows * ld));
        let blocks = at.scratch(Blocks::<Of<T>>::backward_size(units, GATES));
        let sums = at.scratch::<Of<T>>(cpu.threads() * Blocks::<Of<T>>::sums_size(d.batch, 2));
        let [dx_shape, dw_shape, du_shape] =
            [(rows, d.inputs, wide), (d.inputs, wide, rows), (units, wide, rows)].map(|(m, n, k)| Shape {
                m,
                n,
                k,
            });
        let most = [dx_shape, dw_shape, du_shape].map(|shape| Of::<T>::scratch(cpu, shape)).into_iter().max();
        let work = at.scratch::<u8>(most.unwrap_or(0));
        if !at.runs() {
            return;
        }
        std::ptr::copy_nonoverlapping(h0, h, state);
        dbias.write_bytes(0, wide);
        dbias_u.write_bytes(0, wide);
        for i in 0..state {
            *dh.add(i) = (*at.stored(7).add(i)).widen();
        }
        let blocks = Blocks::backward(cpu, u, Cell { units, gates: GATES, batch: d.batch }, blocks);
        let columns = blocks.columns();
        let handed_back = |t: usize| (t < d.steps).then(|| (to_h.add(t * d.batch * ld).cast_const(), ld));
        for t in (0..d.steps).rev() {
            let step = &GradStep::<T> {
                d,
                t,
                saved: at.stored(5).add(t * d.batch * SAVED * units),
                before: h.add(t * state),
                dy: at.stored(6),
                dh,
                to_x: to_x.add(t * d.batch * ld),
                to_h: to_h.add(t * d.batch * ld),
                dbias,
                dbias_u,
                columns,
            };
            blocks.for_each(cpu, d.batch, handed_back(t + 1), sums, |first, sums| {
                backward_units(cpu.isa(), step, first, sums);
            });
        }
        let (dh0, dh) = (Shared(at.output(5)), Shared(dh));
        blocks.for_each(cpu, d.batch, handed_back(0), sums, |start, sums| {
            for b in 0..d.batch {
                for j in start..units.min(start + columns) {
                    let handed =
                        if d.steps == 0 { Of::<T>::ZERO } else { *sums.add(b * columns + j - start) };
                    *dh0.get().add(b * units + j) = T::narrow(*dh.get().add(b * units + j) + handed);
                }
            }
        });
        let (to_x, to_h) = (Matrix::plain(to_x, ld), Matrix::plain(to_h, ld));
        Of::<T>::multiply(cpu, dx_shape, to_x, Matrix::transposed(w, wide), dx, d.inputs, None, work);
        at.store_by_sample(0, &d, d.inputs, dx);
        Of::<T>::multiply(cpu, dw_shape, Matrix::transposed(x, d.inputs), to_x, dw, wide, None, work);
        Of::<T>::multiply(cpu, du_shape, Matrix::transposed(h, units), to_h, du, wide, None, work);
        at.finish(1, dw);
        at.finish(2, du);
        at.finish(3, dbias);
        at.finish(4, dbias_u);
    }
}
