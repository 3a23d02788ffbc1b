//! The LSTM's two passes; the formulas stand at the ops.

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

/// Gates: i, f, g, o.
const GATES: usize = 4;

/// What a step of the forward pass has beside what every cell's has.
#[derive(Clone, Copy)]
struct Own<E> {
    /// x w + bias on entry, the gates on return, of this step: `[B, 4H]`.
    gates: *mut E,
    /// The cells before and after it: `[B, H]`.
    cells: (*const E, *mut E),
}

multiversion! {
    /// Computes sixteen units from `first` on, for the whole batch; `sums` is h u, rows of 4 times sixteen.
    fn forward_units<L; T: Stored>(s: &Step<T, Own<Of<T>>>, first: usize, sums: *const Of<T>) {
        let (units, n) = (s.d.units, LANES.min(s.d.units - first));
        for b in 0..s.d.batch {
            // SAFETY: rows and units are inside the operands.
            unsafe {
                let sums = s.sums::<GATES>(b, sums);
                let row = s.own.gates.add(b * GATES * units + first);
                let mut gates = [[Of::<T>::ZERO; LANES]; GATES];
                for g in 0..GATES {
                    let pre = load(row.add(g * units).cast_const(), n);
                    for l in 0..LANES {
                        let sum = pre[l] + sums[g][l];
                        gates[g][l] = if g == 2 { sum.tanh::<L>() } else { sum.sigmoid::<L>() };
                    }
                    store(row.add(g * units), n, &gates[g]);
                }
                let mut c = load(s.own.cells.0.add(b * units + first), n);
                let mut h = [Of::<T>::ZERO; LANES];
                for l in 0..LANES {
                    c[l] = gates[1][l] * c[l] + gates[0][l] * gates[2][l];
                    h[l] = gates[3][l] * c[l].tanh::<L>();
                }
                store(s.own.cells.1.add(b * units + first), n, &c);
                s.store_h(b, first, n, &h);
            }
        }
    }
}

/// Inputs: x, w, u, bias, h₀, c₀. Outputs: y, the last h and c, gates, cells.
///
/// # Safety
/// As for the kernel.
pub(super) unsafe fn forward<T: Stored<Wide: Large>>(cpu: &Cpu, d: RecurrentDims, at: &mut Bound<'_, T>) {
    let (state, wide) = (d.batch * d.units, GATES * d.units);
    // SAFETY: the caller's promise; all places come from the operands or the scratch, with their sizes.
    unsafe {
        let pass = Forward::take(cpu, d, GATES, at);
        let (h0, c0) = (at.input(4), at.input(5));
        let (gates, cells) = (at.result(3), at.result(4));
        if !at.runs() {
            return;
        }
        let blocks = pass.begin(cpu, h0, (gates, wide));
        // The cells before a step; behind the last, what they are in the end.
        let before = |t: usize| if t == 0 { c0 } else { cells.add((t - 1) * state).cast_const() };
        let own = |t: usize, _| Own {
            gates: gates.add(t * d.batch * wide),
            cells: (before(t), cells.add(t * state)),
        };
        pass.each_step(cpu, &blocks, at, own, |s, first, sums| forward_units(cpu.isa(), s, first, sums));
        pass.store_last(at);
        for i in 0..state {
            *at.output(2).add(i) = T::narrow(*before(d.steps).add(i));
        }
        at.finish(3, gates);
        at.finish(4, cells);
    }
}

/// What a step of the backward pass has beside what every cell's has.
#[derive(Clone, Copy)]
struct GradOwn<T: Stored> {
    /// This step's gates and cells, and the cells before it.
    gates: *const T,
    cells: *const T,
    before: *const T,
    /// The gradient of h where no later step hands it back: at the last step.
    dh_last: *const T,
    /// Handed from step to step: `[B, H]`.
    dc: *mut T::Wide,
    /// The gradients before the gates' activations: rows [`apart`].
    dgates: *mut T::Wide,
    dbias: *mut T::Wide,
}

multiversion! {
    /// Computes sixteen units from `first` on, for the whole batch; `sums` is what the next step hands back to h.
    fn backward_units<L; T: Stored>(s: &GradStep<T, GradOwn<T>>, first: usize, sums: *const Of<T>) {
        let mut bias = [[Of::<T>::ZERO; LANES]; GATES];
        let (own, units, one) = (&s.own, s.d.units, Of::<T>::ONE);
        let n = LANES.min(units - first);
        for b in 0..s.d.batch {
            let state = b * units + first;
            // SAFETY: rows and units are inside the operands.
            unsafe {
                let mut dh = s.dy(b, first, n);
                let back = match s.handed(b, sums) {
                    Some(back) => back,
                    None => load(own.dh_last.add(state), n),
                };
                let row = own.gates.add(b * GATES * units + first);
                let [i, f, g, o] = [0, 1, 2, 3].map(|gate| load(row.add(gate * units), n));
                let (c, before) = (load(own.cells.add(state), n), load(own.before.add(state), n));
                let mut dc = load(own.dc.add(state).cast_const(), n);
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
                store(own.dc.add(state), n, &dc);
                for (gate, grad) in grads.iter().enumerate() {
                    store(own.dgates.add(b * apart(GATES * units) + gate * units + first), n, grad);
                    (0..LANES).for_each(|l| bias[gate][l] += grad[l]);
                }
            }
        }
        for (gate, sum) in bias.iter().enumerate() {
            // SAFETY: the bias has these units.
            unsafe { add_to(own.dbias.add(gate * units + first), n, sum) };
        }
    }
}

/// Inputs: x, w, u, h₀, c₀, y, gates, cells, dy, dh, dc. Outputs: dx, dw, du, dbias, dh₀, dc₀.
///
/// # Safety
/// As for the kernel.
pub(super) unsafe fn backward<T: Stored<Wide: Large>>(cpu: &Cpu, d: RecurrentDims, at: &mut Bound<'_, T>) {
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
        let own = |t: usize| GradOwn::<T> {
            gates: gates.add(t * d.batch * wide),
            cells: cells.add(t * state),
            before: if t == 0 { c0 } else { cells.add((t - 1) * state) },
            dh_last,
            dc,
            dgates: dgates.add(t * step_len),
            dbias,
        };
        let units = |s: &_, first, sums| backward_units(cpu.isa(), s, first, sums);
        pass.each_step(cpu, &blocks, (dgates, dy), own, units);
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
