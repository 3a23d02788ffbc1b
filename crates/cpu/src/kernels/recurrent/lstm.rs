//! The LSTM's two passes; the formulas stand at the ops.

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

/// Gates: i, f, g, o.
const GATES: usize = 4;

/// One step of the forward pass.
#[derive(Clone, Copy)]
struct Step<T: Stored> {
    d: RecurrentDims,
    t: usize,
    /// x w + bias on entry, the gates on return, of this step: `[B, 4H]`.
    gates: *mut T::Wide,
    /// The cells before: `[B, H]`.
    before: *const T::Wide,
    cells: *mut T::Wide,
    /// h for the next step, rows [`apart`].
    h: *mut T::Wide,
    y: *mut T,
}

// SAFETY: tasks of a step touch their own units alone.
unsafe impl<T: Stored> Sync for Step<T> {}

multiversion! {
    /// Computes sixteen units from `first` on, for the whole batch; `sums` is h u, rows of 4 times sixteen.
    fn forward_units<L; T: Stored>(s: &Step<T>, first: usize, sums: *const Of<T>) {
        let units = s.d.units;
        let n = LANES.min(units - first);
        for b in 0..s.d.batch {
            // SAFETY: rows and units are inside the operands.
            unsafe {
                let row = s.gates.add(b * GATES * units + first);
                let sums = sums.add(b * GATES * LANES).cast::<[[Of<T>; LANES]; GATES]>().read_unaligned();
                let mut gates = [[Of::<T>::ZERO; LANES]; GATES];
                for g in 0..GATES {
                    let pre = load(row.add(g * units).cast_const(), n);
                    for l in 0..LANES {
                        let sum = pre[l] + sums[g][l];
                        gates[g][l] = if g == 2 { sum.tanh::<L>() } else { sum.sigmoid::<L>() };
                    }
                    store(row.add(g * units), n, &gates[g]);
                }
                let mut c = load(s.before.add(b * units + first), n);
                let mut h = [Of::<T>::ZERO; LANES];
                for l in 0..LANES {
                    c[l] = gates[1][l] * c[l] + gates[0][l] * gates[2][l];
                    h[l] = gates[3][l] * c[l].tanh::<L>();
                }
                store(s.cells.add(b * units + first), n, &c);
                store(s.h.add(b * apart(units) + first), n, &h);
                store(s.y.add((b * s.d.steps + s.t) * units + first), n, &h);
            }
        }
    }
}

/// Inputs: x, w, u, bias, h₀, c₀. Outputs: y, the last h and c, gates, cells.
///
/// # Safety
/// As for the kernel.
pub(super) unsafe fn forward<T: Stored>(cpu: &Cpu, d: RecurrentDims, at: &mut Bound<'_, T>)
where
    Of<T>: Large,
{
    let (state, wide) = (d.batch * d.units, GATES * d.units);
    // SAFETY: the caller's promise; all places come from the operands or the scratch, with their sizes.
    unsafe {
        let pass = Forward::take(cpu, d, GATES, at);
        let (h0, c0) = (at.input(4), at.input(5));
        let (gates, cells) = (at.result(3), at.result(4));
        if !at.runs() {
            return;
        }
        let y = at.output(0);
        let blocks = pass.begin(cpu, h0, (gates, wide));
        // The cells before a step; behind the last, what they are in the end.
        let before = |t: usize| if t == 0 { c0 } else { cells.add((t - 1) * state).cast_const() };
        let step = |t: usize, _, h| Step::<T> {
            d,
            t,
            gates: gates.add(t * d.batch * wide),
            before: before(t),
            cells: cells.add(t * state),
            h,
            y,
        };
        pass.each_step(cpu, &blocks, step, |s, first, sums| forward_units(cpu.isa(), s, first, sums));
        pass.store_last(at);
        for i in 0..state {
            *at.output(2).add(i) = T::narrow(*before(d.steps).add(i));
        }
        at.finish(3, gates);
        at.finish(4, cells);
    }
}

/// One step of the backward pass.
#[derive(Clone, Copy)]
struct GradStep<T: Stored> {
    d: RecurrentDims,
    t: usize,
    /// This step's gates and cells, and the cells before it.
    gates: *const T,
    cells: *const T,
    before: *const T,
    dy: *const T,
    /// The gradient of h where no later step hands it back: at the last step.
    dh_last: *const T,
    /// Handed from step to step: `[B, H]`.
    dc: *mut T::Wide,
    /// The gradients before the gates' activations: rows [`apart`].
    dgates: *mut T::Wide,
    dbias: *mut T::Wide,
    /// Numbers from one row of the sums to the next.
    columns: usize,
}

// SAFETY: tasks of a step touch their own units alone.
unsafe impl<T: Stored> Sync for GradStep<T> {}

multiversion! {
    /// Computes thirty-two units from `start` on, for the whole batch; `sums` is what the next step hands back to h.
    fn backward_units<L; T: Stored>(s: &GradStep<T>, start: usize, sums: *const Of<T>) {
        let (units, one) = (s.d.units, Of::<T>::ONE);
        for first in (start..units.min(start + 2 * LANES)).step_by(LANES) {
            let n = LANES.min(units - first);
            let mut bias = [[Of::<T>::ZERO; LANES]; GATES];
            for b in 0..s.d.batch {
                let state = b * units + first;
                // SAFETY: rows and units are inside the operands.
                unsafe {
                    let mut dh = load(s.dy.add((b * s.d.steps + s.t) * units + first), n);
                    let back = if s.t + 1 == s.d.steps {
                        load(s.dh_last.add(state), n)
                    } else {
                        sums.add(b * s.columns + first - start).cast::<[Of<T>; LANES]>().read_unaligned()
                    };
                    let row = s.gates.add(b * GATES * units + first);
                    let [i, f, g, o] = [0, 1, 2, 3].map(|gate| load(row.add(gate * units), n));
                    let (c, before) = (load(s.cells.add(state), n), load(s.before.add(state), n));
                    let mut dc = load(s.dc.add(state).cast_const(), n);
                    let mut grads = [[Of::<T>::ZERO; LANES]; GATES];
                    for l in 0..LANES {
                        dh[l] += back[l];
                        let tanh = c[l].tanh::<L>();
                        dc[l] += dh[l] * o[l] * (one - tanh * tanh);
                        grads[0][l] = dc[l] * g[l] * i[l] * (one - i[l]);
                        grads[1][l] = dc[l] * before[l] * f[l] * (one - f[l]);
                        grads[2][l] = dc[l] * i[l] * (one - g[l] * g[l]);
                        grads[3][l] = dh[l] * tanh * o[l] * (one - o[l]);
                        dc[l] *= f[l];
                    }
                    store(s.dc.add(state), n, &dc);
                    for (gate, grad) in grads.iter().enumerate() {
                        store(s.dgates.add(b * apart(GATES * units) + gate * units + first), n, grad);
                        (0..LANES).for_each(|l| bias[gate][l] += grad[l]);
                    }
                }
            }
            for (gate, sum) in bias.iter().enumerate() {
                // SAFETY: the bias has these units.
                unsafe { add_to(s.dbias.add(gate * units + first), n, sum) };
            }
        }
    }
}

/// Inputs: x, w, u, h₀, c₀, y, gates, cells, dy, dh, dc. Outputs: dx, dw, du, dbias, dh₀, dc₀.
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
        let pass = Backward::take(cpu, d, GATES, 5, at);
        let dbias = at.result(3);
        let dc = at.scratch::<Of<T>>(state);
        let dgates = at.scratch::<Of<T>>(d.steps * step_len);
        if !at.runs() {
            return;
        }
        dbias.write_bytes(0, wide);
        for i in 0..state {
            *dc.add(i) = (*at.stored(10).add(i)).widen();
        }
        let blocks = pass.begin(cpu);
        let [c0, gates, cells, dy, dh_last] = [4, 6, 7, 8, 9].map(|i| at.stored(i));
        let step = |t: usize| GradStep::<T> {
            d,
            t,
            gates: gates.add(t * d.batch * wide),
            cells: cells.add(t * state),
            before: if t == 0 { c0 } else { cells.add((t - 1) * state) },
            dy,
            dh_last,
            dc,
            dgates: dgates.add(t * step_len),
            dbias,
            columns: blocks.columns(),
        };
        pass.each_step(cpu, &blocks, dgates, step, |s, first, sums| {
            backward_units(cpu.isa(), s, first, sums)
        });
        let dh_last = Shared(dh_last.cast_mut());
        pass.store_first(cpu, &blocks, dgates, at.output(4), |i, handed| {
            handed.unwrap_or_else(|| (*dh_last.get().add(i)).widen())
        });
        for i in 0..state {
            *at.output(5).add(i) = T::narrow(*dc.add(i));
        }
        pass.multiply(cpu, dgates, dgates, at);
        at.finish(3, dbias);
    }
}
