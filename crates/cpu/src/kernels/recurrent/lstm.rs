//! The LSTM's two passes; the formulas stand at the ops.

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
    let (rows, units, wide) = (d.batch * d.steps, d.units, GATES * d.units);
    // SAFETY: the caller's promise; all places come from the operands or the scratch, with their sizes.
    unsafe {
        let x = at.by_time(0, &d, d.inputs, 0);
        let [w, u, bias, h0, c0] = [1, 2, 3, 4, 5].map(|i| at.input(i));
        let (gates, cells) = (at.result(3), at.result(4));
        let h: [*mut Of<T>; 2] = [0, 1].map(|_| at.scratch(d.batch * apart(units)));
        let blocks = at.scratch(Blocks::<Of<T>>::forward_size(units, GATES));
        let sums = at.scratch::<Of<T>>(cpu.threads() * Blocks::<Of<T>>::sums_size(d.batch, GATES));
        let shape = Shape { m: rows, n: wide, k: d.inputs };
        let work = at.scratch::<u8>(Of::<T>::scratch(cpu, shape));
        if !at.runs() {
            return;
        }
        Of::<T>::multiply(
            cpu,
            shape,
            Matrix::plain(x, d.inputs),
            Matrix::plain(w, wide),
            gates,
            wide,
            Some(bias),
            work,
        );
        let blocks = Blocks::forward(cpu, u, Cell { units, gates: GATES, batch: d.batch }, blocks);
        for b in 0..d.batch {
            std::ptr::copy_nonoverlapping(h0.add(b * units), h[0].add(b * apart(units)), units);
        }
        for t in 0..d.steps {
            let state = t * d.batch * units;
            let step = Step::<T> {
                d,
                t,
                gates: gates.add(t * d.batch * wide),
                before: if t == 0 { c0 } else { cells.add(state - d.batch * units) },
                cells: cells.add(state),
                h: h[(t + 1) % 2],
                y: at.output(0),
            };
            let before = Some((h[t % 2].cast_const(), apart(units)));
            let step = &step;
            blocks.for_each(cpu, d.batch, before, sums, |first, sums| {
                forward_units(cpu.isa(), step, first, sums)
            });
        }
        let last = if d.steps == 0 { c0 } else { cells.add((d.steps - 1) * d.batch * units) };
        for b in 0..d.batch {
            for j in 0..units {
                let h = h[d.steps % 2].add(b * apart(units) + j);
                *at.output(1).add(b * units + j) = T::narrow(*h);
                *at.output(2).add(b * units + j) = T::narrow(*last.add(b * units + j));
            }
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
                unsafe {
                    let place = s.dbias.add(gate * units + first);
                    let mut total = load(place.cast_const(), n);
                    (0..LANES).for_each(|l| total[l] += sum[l]);
                    store(place, n, &total);
                }
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
    let (rows, units, wide) = (d.batch * d.steps, d.units, GATES * d.units);
    let (state, ld) = (d.batch * units, apart(wide));
    // SAFETY: the caller's promise; all places come from the operands or the scratch, with their sizes.
    unsafe {
        let (x, h) = (at.by_time(0, &d, d.inputs, 0), at.by_time(5, &d, units, state));
        let (w, u, h0) = (at.input(1), at.input(2), at.input(3));
        let (dw, du, dbias) = (at.result(1), at.result(2), at.result(3));
        let dx = at.scratch::<Of<T>>(rows * d.inputs);
        let dc = at.scratch::<Of<T>>(state);
        let dgates = at.scratch::<Of<T>>(rows * ld);
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
        for i in 0..state {
            *dc.add(i) = (*at.stored(10).add(i)).widen();
        }
        let blocks = Blocks::backward(cpu, u, Cell { units, gates: GATES, batch: d.batch }, blocks);
        let handed_back = |t: usize| (t < d.steps).then(|| (dgates.add(t * d.batch * ld).cast_const(), ld));
        for t in (0..d.steps).rev() {
            let step = GradStep::<T> {
                d,
                t,
                gates: at.stored(6).add(t * d.batch * wide),
                cells: at.stored(7).add(t * state),
                before: if t == 0 { at.stored(4) } else { at.stored(7).add((t - 1) * state) },
                dy: at.stored(8),
                dh_last: at.stored(9),
                dc,
                dgates: dgates.add(t * d.batch * ld),
                dbias,
                columns: blocks.columns(),
            };
            let step = &step;
            blocks.for_each(cpu, d.batch, handed_back(t + 1), sums, |first, sums| {
                backward_units(cpu.isa(), step, first, sums);
            });
        }
        let (dh0, dh_last) = (Shared(at.output(4)), Shared(at.stored(9).cast_mut()));
        let columns = blocks.columns();
        blocks.for_each(cpu, d.batch, handed_back(0), sums, |start, sums| {
            for b in 0..d.batch {
                for j in start..units.min(start + columns) {
                    let handed = if d.steps == 0 {
                        (*dh_last.get().add(b * units + j)).widen()
                    } else {
                        *sums.add(b * columns + j - start)
                    };
                    *dh0.get().add(b * units + j) = T::narrow(handed);
                }
            }
        });
        for i in 0..state {
            *at.output(5).add(i) = T::narrow(*dc.add(i));
        }
        let dgates = Matrix::plain(dgates, ld);
        Of::<T>::multiply(cpu, dx_shape, dgates, Matrix::transposed(w, wide), dx, d.inputs, None, work);
        at.store_by_sample(0, &d, d.inputs, dx);
        Of::<T>::multiply(cpu, dw_shape, Matrix::transposed(x, d.inputs), dgates, dw, wide, None, work);
        Of::<T>::multiply(cpu, du_shape, Matrix::transposed(h, units), dgates, du, wide, None, work);
        at.finish(1, dw);
        at.finish(2, du);
        at.finish(3, dbias);
    }
}
