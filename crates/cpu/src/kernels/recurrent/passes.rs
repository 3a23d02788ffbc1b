//! What the passes of all cells do alike: the scratch they take, the products over all steps at once, and how the state goes from step to
//! step. A cell says how many gates it has and what becomes of its units.

use plimsoll_graph::ops::RecurrentDims;

use super::super::lanes::Stored;
use super::super::small_matmul::LANES;
use super::Of;
use super::blocks::{Blocks, Cell};
use super::large::{Large, Matrix};
use super::order::{Bound, apart};
use super::step::{GradStep, Step};
use crate::Cpu;
use crate::gemm::{Shape, Shared};

/// What a pass has in either direction: x, w and u, the first three inputs, with the next one, and its scratch.
struct Pass<T: Stored> {
    d: RecurrentDims,
    gates: usize,
    x: *const Of<T>,
    w: *const Of<T>,
    u: *const Of<T>,
    /// The bias on the way forward, h₀ on the way back.
    fourth: *const Of<T>,
    blocks: *mut Of<T>,
    sums: *mut Of<T>,
    work: *mut u8,
}

impl<T: Stored> Pass<T>
where
    Of<T>: Large,
{
    /// Takes operands and scratch: for so many numbers in blocks and in a thread's sums, and for the largest of some products.
    ///
    /// # Safety
    /// The call's operands are live.
    unsafe fn take(
        cpu: &Cpu,
        (d, gates): (RecurrentDims, usize),
        at: &mut Bound<'_, T>,
        [blocks, sums]: [usize; 2],
        products: &[Shape],
    ) -> Self {
        // SAFETY: the caller's promise.
        let (x, [w, u, fourth]) = unsafe { (at.by_time(0, &d, d.inputs, 0), [1, 2, 3].map(|i| at.input(i))) };
        let (blocks, sums) = (at.scratch(blocks), at.scratch(cpu.threads() * sums));
        let most = products.iter().map(|&shape| Of::<T>::scratch(cpu, shape)).max();
        Pass { d, gates, x, w, u, fourth, blocks, sums, work: at.scratch(most.unwrap_or(0)) }
    }

    fn cell(&self) -> Cell {
        Cell { units: self.d.units, gates: self.gates, batch: self.d.batch }
    }
}

/// A forward pass over x, w, u and bias, the first four inputs.
pub(super) struct Forward<T: Stored> {
    pass: Pass<T>,
    /// h before and after a step, in turn: rows [`apart`].
    h: [*mut Of<T>; 2],
    shape: Shape,
}

impl<T: Stored> Forward<T>
where
    Of<T>: Large,
{
    /// Takes its operands and its scratch.
    ///
    /// # Safety
    /// The call's operands are live.
    pub(super) unsafe fn take(cpu: &Cpu, d: RecurrentDims, gates: usize, at: &mut Bound<'_, T>) -> Self {
        let shape = Shape { m: d.batch * d.steps, n: gates * d.units, k: d.inputs };
        let sizes =
            [Blocks::<Of<T>>::forward_size(d.units, gates), Blocks::<Of<T>>::sums_size(d.batch, gates)];
        // SAFETY: the caller's promise.
        let pass = unsafe { Pass::take(cpu, (d, gates), at, sizes, &[shape]) };
        let h = [0, 1].map(|_| at.scratch(d.batch * apart(d.units)));
        Forward { pass, h, shape }
    }

    /// Writes x w + bias of all steps to rows of `ld` numbers, puts u in blocks, and makes h₀ the state before the first step.
    ///
    /// # Safety
    /// All is from a call that runs; `to` has room, and h₀ is `[B, H]`.
    pub(super) unsafe fn begin(
        &self,
        cpu: &Cpu,
        h0: *const Of<T>,
        (to, ld): (*mut Of<T>, usize),
    ) -> Blocks<Of<T>> {
        let Pass { gates, u, fourth: bias, blocks, work, .. } = self.pass;
        let RecurrentDims { batch, units, inputs, .. } = self.pass.d;
        let (x, w) = (Matrix::plain(self.pass.x, inputs), Matrix::plain(self.pass.w, gates * units));
        // SAFETY: the caller's promise; the scratch was taken for these sizes.
        unsafe {
            Of::<T>::multiply(cpu, self.shape, x, w, to, ld, Some(bias), work);
            for b in 0..batch {
                let to = self.h[0].add(b * apart(units));
                std::ptr::copy_nonoverlapping(h0.add(b * units), to, units);
            }
            Blocks::forward(cpu, u, self.pass.cell(), blocks)
        }
    }

    /// Goes through the steps: `own` makes what a cell has for one of its number and h before it, `units` computes some of its units.
    ///
    /// # Safety
    /// As for [`Forward::begin`], which made the blocks.
    pub(super) unsafe fn each_step<C>(
        &self,
        cpu: &Cpu,
        blocks: &Blocks<Of<T>>,
        at: &Bound<'_, T>,
        own: impl Fn(usize, *const Of<T>) -> C,
        units: impl Fn(&Step<T, C>, usize, *const Of<T>) + Sync,
    ) {
        let (d, y) = (self.pass.d, at.output(0));
        for t in 0..d.steps {
            let before = self.h[t % 2].cast_const();
            let step = Step { d, t, h: self.h[(t + 1) % 2], y, own: own(t, before) };
            let state = Some((before, apart(d.units)));
            // SAFETY: the caller's promise.
            unsafe {
                blocks.for_each(cpu, d.batch, state, self.pass.sums, |first, sums| units(&step, first, sums))
            };
        }
    }

    /// Stores h after the last step as the second output.
    ///
    /// # Safety
    /// All steps have run.
    pub(super) unsafe fn store_last(&self, at: &Bound<'_, T>) {
        let (units, h) = (self.pass.d.units, self.h[self.pass.d.steps % 2]);
        for b in 0..self.pass.d.batch {
            for j in 0..units {
                // SAFETY: the caller's promise; rows and units are inside of both.
                unsafe { *at.output(1).add(b * units + j) = T::narrow(*h.add(b * apart(units) + j)) };
            }
        }
    }
}

/// A backward pass over x, w, u and h₀, the first four inputs, to dx, dw and du, the first three outputs.
pub(super) struct Backward<T: Stored> {
    pass: Pass<T>,
    /// h before every step, h₀ first: `[T + 1, B, H]`.
    h: *mut Of<T>,
    dx: *mut Of<T>,
    dw: *mut Of<T>,
    du: *mut Of<T>,
}

impl<T: Stored> Backward<T>
where
    Of<T>: Large,
{
    /// Takes its operands and its scratch; `y` is the number of the input with every h.
    ///
    /// # Safety
    /// The call's operands are live.
    pub(super) unsafe fn take(
        cpu: &Cpu,
        d: RecurrentDims,
        gates: usize,
        y: usize,
        at: &mut Bound<'_, T>,
    ) -> Self {
        let sizes = [Blocks::<Of<T>>::backward_size(d.units, gates), Blocks::<Of<T>>::sums_size(d.batch, 2)];
        // SAFETY: the caller's promise.
        let (pass, h) = unsafe {
            let pass = Pass::take(cpu, (d, gates), at, sizes, &shapes(&d, gates));
            (pass, at.by_time(y, &d, d.units, d.batch * d.units))
        };
        let [dw, du] = [1, 2].map(|i| at.result(i));
        Backward { pass, h, dx: at.scratch(d.batch * d.steps * d.inputs), dw, du }
    }

    /// h before a step.
    pub(super) fn before(&self, t: usize) -> *const Of<T> {
        self.h.wrapping_add(t * self.pass.d.batch * self.pass.d.units)
    }

    /// Puts uᵀ in blocks, and h₀ before the first step.
    ///
    /// # Safety
    /// All is from a call that runs.
    pub(super) unsafe fn begin(&self, cpu: &Cpu) -> Blocks<Of<T>> {
        let Pass { d, u, fourth: h0, blocks, .. } = self.pass;
        // SAFETY: the caller's promise; the scratch was taken for these sizes.
        unsafe {
            std::ptr::copy_nonoverlapping(h0, self.h, d.batch * d.units);
            Blocks::backward(cpu, u, self.pass.cell(), blocks)
        }
    }

    /// The gradients of a step's gates as rows to be multiplied with uᵀ, where there is such a step; rows [`apart`].
    fn handed_back(&self, to_h: *const Of<T>, t: usize) -> Option<(*const Of<T>, usize)> {
        let ld = apart(self.pass.gates * self.pass.d.units);
        (t < self.pass.d.steps).then(|| (to_h.wrapping_add(t * self.pass.d.batch * ld), ld))
    }

    /// Goes through the steps from the last to the first: `own` makes what a cell has for one of its number, `units` computes sixteen of its
    /// units from dy and what the next one hands back through `to_h`, the gradients of h u of all steps.
    ///
    /// # Safety
    /// As for [`Backward::begin`], which made the blocks; `to_h` is `[T, B, ..]`, rows [`apart`].
    pub(super) unsafe fn each_step<C>(
        &self,
        cpu: &Cpu,
        blocks: &Blocks<Of<T>>,
        (to_h, dy): (*const Of<T>, *const T),
        own: impl Fn(usize) -> C,
        units: impl Fn(&GradStep<T, C>, usize, *const Of<T>) + Sync,
    ) {
        let (d, columns) = (self.pass.d, blocks.columns());
        for t in (0..d.steps).rev() {
            let step = GradStep { d, t, dy, columns, own: own(t) };
            let task = |start: usize, sums: *const Of<T>| {
                for first in (start..d.units.min(start + columns)).step_by(LANES) {
                    units(&step, first, sums.wrapping_add(first - start));
                }
            };
            // SAFETY: the caller's promise.
            unsafe { blocks.for_each(cpu, d.batch, self.handed_back(to_h, t + 1), self.pass.sums, task) };
        }
    }

    /// Stores the gradient of h₀: `grad` makes it of a unit's place and what the first step hands back to it, if there is one.
    ///
    /// # Safety
    /// As for [`Backward::each_step`], which has run; `dh0` is `[B, H]`.
    pub(super) unsafe fn store_first(
        &self,
        cpu: &Cpu,
        blocks: &Blocks<Of<T>>,
        to_h: *const Of<T>,
        dh0: *mut T,
        grad: impl Fn(usize, Option<Of<T>>) -> Of<T> + Sync,
    ) {
        let RecurrentDims { batch, units, steps, .. } = self.pass.d;
        let (dh0, columns) = (Shared(dh0), blocks.columns());
        let store = |start: usize, sums: *const Of<T>| {
            for b in 0..batch {
                for j in start..units.min(start + columns) {
                    // SAFETY: the caller's promise; a unit is one task's.
                    unsafe {
                        let handed = (steps > 0).then(|| *sums.add(b * columns + j - start));
                        *dh0.get().add(b * units + j) = T::narrow(grad(b * units + j, handed));
                    }
                }
            }
        };
        // SAFETY: the caller's promise.
        unsafe { blocks.for_each(cpu, batch, self.handed_back(to_h, 0), self.pass.sums, store) };
    }

    /// Computes and stores dx, dw and du from the gradients of x w and of h u of all steps, rows [`apart`].
    ///
    /// # Safety
    /// All steps have run.
    pub(super) unsafe fn multiply(
        &self,
        cpu: &Cpu,
        to_x: *const Of<T>,
        to_h: *const Of<T>,
        at: &Bound<'_, T>,
    ) {
        let (d, wide) = (&self.pass.d, self.pass.gates * self.pass.d.units);
        let [dx, dw, du] = shapes(d, self.pass.gates);
        let (to_x, to_h) = (Matrix::plain(to_x, apart(wide)), Matrix::plain(to_h, apart(wide)));
        let [w, x] =
            [(self.pass.w, wide), (self.pass.x, d.inputs)].map(|(data, ld)| Matrix::transposed(data, ld));
        let h = Matrix::transposed(self.h.cast_const(), d.units);
        // SAFETY: the caller's promise; the scratch was taken for these sizes.
        unsafe {
            Of::<T>::multiply(cpu, dx, to_x, w, self.dx, d.inputs, None, self.pass.work);
            at.store_by_sample(0, d, d.inputs, self.dx);
            Of::<T>::multiply(cpu, dw, x, to_x, self.dw, wide, None, self.pass.work);
            Of::<T>::multiply(cpu, du, h, to_h, self.du, wide, None, self.pass.work);
            at.finish(1, self.dw);
            at.finish(2, self.du);
        }
    }
}

/// The products that make dx, dw and du.
fn shapes(d: &RecurrentDims, gates: usize) -> [Shape; 3] {
    let (rows, wide) = (d.batch * d.steps, gates * d.units);
    [(rows, d.inputs, wide), (d.inputs, wide, rows), (d.units, wide, rows)].map(|(m, n, k)| Shape { m, n, k })
}
