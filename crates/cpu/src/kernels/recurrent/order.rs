//! Turns a call's operands into what the recurrences compute with: widened, in time-major order, or as they are.
//!
//! The same code runs twice: once to count the scratch, when nothing is touched, and once to compute.

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::RecurrentDims;

use super::super::real::{Carver, Real, Stored};
use super::super::small_matmul::LANES;
use super::{Of, is_narrow};
use crate::Cpu;
use crate::gemm::Shared;
use crate::simd::multiversion;

/// A call's operands (or only their types) and the scratch that is left.
pub(super) struct Bound<'a, T> {
    input_types: Vec2<'a>,
    pointers: Option<(&'a Cpu, &'a Call<'a>)>,
    carver: &'a mut Carver,
    stored: std::marker::PhantomData<T>,
}

/// Input types, then output types.
type Vec2<'a> = (TypeList<'a>, TypeList<'a>);

#[derive(Clone, Copy)]
enum TypeList<'a> {
    Types(&'a [&'a Type]),
    Operands(&'a [plimsoll_device::backend::Operand<'a>]),
}

impl TypeList<'_> {
    fn elements(&self, i: usize) -> usize {
        match self {
            TypeList::Types(types) => types[i].elements(),
            TypeList::Operands(operands) => operands[i].ty.elements(),
        }
    }
}

/// Rows that one task of a copy moves.
const COPY_ROWS: usize = 64;

impl<'a, T: Stored> Bound<'a, T> {
    pub(super) fn counting(inputs: &'a [&'a Type], outputs: &'a [&'a Type], carver: &'a mut Carver) -> Self {
        let input_types = (TypeList::Types(inputs), TypeList::Types(outputs));
        Bound { input_types, pointers: None, carver, stored: std::marker::PhantomData }
    }

    pub(super) fn running(cpu: &'a Cpu, call: &'a Call<'a>, carver: &'a mut Carver) -> Self {
        let input_types = (TypeList::Operands(call.inputs), TypeList::Operands(call.outputs));
        Bound { input_types, pointers: Some((cpu, call)), carver, stored: std::marker::PhantomData }
    }

    /// Whether this pass computes.
    pub(super) fn runs(&self) -> bool {
        self.pointers.is_some()
    }

    /// Scratch for `n` numbers.
    pub(super) fn scratch<E>(&mut self, n: usize) -> *mut E {
        self.carver.take(n)
    }

    /// An input as stored.
    pub(super) fn stored(&self, i: usize) -> *const T {
        self.pointers.map_or(std::ptr::null(), |(_, call)| call.inputs[i].ptr.cast_const().cast())
    }

    /// An output as stored.
    pub(super) fn output(&self, i: usize) -> *mut T {
        self.pointers.map_or(std::ptr::null_mut(), |(_, call)| call.outputs[i].ptr.cast())
    }

    /// An input in the type that is computed with, in its own order.
    ///
    /// # Safety
    /// The call's operands are live.
    pub(super) unsafe fn input(&mut self, i: usize) -> *const Of<T> {
        if !is_narrow(T::DTYPE) {
            return self.stored(i).cast();
        }
        let n = self.input_types.0.elements(i);
        let copy = self.carver.take::<Of<T>>(n);
        if let Some((cpu, _)) = self.pointers {
            // SAFETY: the caller's promise, and room for `n` numbers.
            unsafe { copy_rows(cpu, n.div_ceil(1024), 1024, n, |r| r, self.stored(i), copy) };
        }
        copy
    }

    /// A place for an output in the type that is computed with; [`Bound::finish`] stores it.
    pub(super) fn result(&mut self, i: usize) -> *mut Of<T> {
        if !is_narrow(T::DTYPE) {
            return self.output(i).cast();
        }
        self.carver.take(self.input_types.1.elements(i))
    }

    /// Stores a finished result.
    ///
    /// # Safety
    /// It is complete, and from [`Bound::result`] of this output.
    pub(super) unsafe fn finish(&self, i: usize, result: *const Of<T>) {
        let Some((cpu, _)) = self.pointers else { return };
        if is_narrow(T::DTYPE) {
            let n = self.input_types.1.elements(i);
            // SAFETY: the caller's promise.
            unsafe { store_rows(cpu, n.div_ceil(1024), 1024, n, |r| r, result, self.output(i)) };
        }
    }

    /// A sequence `[B, T, width]` in the order `[T, B, width]`, in the type that is computed with, after room for
    /// `lead` numbers.
    ///
    /// # Safety
    /// The call's operands are live.
    pub(super) unsafe fn by_time(
        &mut self,
        i: usize,
        d: &RecurrentDims,
        width: usize,
        lead: usize,
    ) -> *mut Of<T> {
        let (batch, steps) = (d.batch, d.steps);
        let copy = self.carver.take::<Of<T>>(lead + batch * steps * width);
        if let Some((cpu, _)) = self.pointers {
            let from = |row: usize| row % batch * steps + row / batch;
            let to = copy.wrapping_add(lead);
            // SAFETY: the caller's promise; rows of the copy are rows of the sequence in another order.
            unsafe { copy_rows(cpu, batch * steps, width, batch * steps * width, from, self.stored(i), to) };
        }
        copy
    }

    /// Stores a result `[T, B, width]` as a sequence `[B, T, width]`.
    ///
    /// # Safety
    /// The result is complete.
    pub(super) unsafe fn store_by_sample(
        &self,
        i: usize,
        d: &RecurrentDims,
        width: usize,
        result: *const Of<T>,
    ) {
        let (batch, steps) = (d.batch, d.steps);
        if let Some((cpu, _)) = self.pointers {
            let to = |row: usize| row % batch * steps + row / batch;
            // SAFETY: the caller's promise; rows of the output are rows of the result in another order.
            unsafe {
                store_rows(cpu, batch * steps, width, batch * steps * width, to, result, self.output(i))
            };
        }
    }
}

multiversion! {
    fn widen_row<L; T: Stored>(from: &[T], to: &mut [T::Compute]) {
        to.iter_mut().zip(from).for_each(|(y, x)| *y = x.get());
    }

    fn narrow_row<L; T: Stored>(from: &[T::Compute], to: &mut [T]) {
        to.iter_mut().zip(from).for_each(|(y, x)| *y = T::put(*x));
    }
}

/// `to[row] = from[place(row)]` for rows of `width` numbers, `total` in all.
unsafe fn copy_rows<T: Stored>(
    cpu: &Cpu,
    rows: usize,
    width: usize,
    total: usize,
    place: impl Fn(usize) -> usize + Sync,
    from: *const T,
    to: *mut T::Compute,
) {
    let (from, to) = (Shared(from.cast_mut()), Shared(to));
    cpu.pool().run(rows.div_ceil(COPY_ROWS), |task| {
        for row in task * COPY_ROWS..((task + 1) * COPY_ROWS).min(rows) {
            let (at, n) = (place(row) * width, width.min(total - row * width));
            // SAFETY: the caller's promise; every task has its own rows.
            unsafe {
                let src = std::slice::from_raw_parts(from.get().add(at).cast_const(), n);
                widen_row(cpu.isa(), src, std::slice::from_raw_parts_mut(to.get().add(row * width), n));
            }
        }
    });
}

/// `to[place(row)] = from[row]` for rows of `width` numbers, `total` in all.
unsafe fn store_rows<T: Stored>(
    cpu: &Cpu,
    rows: usize,
    width: usize,
    total: usize,
    place: impl Fn(usize) -> usize + Sync,
    from: *const T::Compute,
    to: *mut T,
) {
    let (from, to) = (Shared(from.cast_mut()), Shared(to));
    cpu.pool().run(rows.div_ceil(COPY_ROWS), |task| {
        for row in task * COPY_ROWS..((task + 1) * COPY_ROWS).min(rows) {
            let (at, n) = (place(row) * width, width.min(total - row * width));
            // SAFETY: the caller's promise; every task has its own rows.
            unsafe {
                let src = std::slice::from_raw_parts(from.get().add(row * width).cast_const(), n);
                narrow_row(cpu.isa(), src, std::slice::from_raw_parts_mut(to.get().add(at), n));
            }
        }
    });
}

/// Rows of a state in scratch are this far apart: whole vectors, and one more so that rows do not meet in the cache.
pub(super) fn apart(width: usize) -> usize {
    width.next_multiple_of(LANES) + LANES
}

/// Up to sixteen stored numbers, zeros past `n`.
///
/// # Safety
/// `from` has `n` numbers.
#[inline(always)]
pub(super) unsafe fn load<T: Stored>(from: *const T, n: usize) -> [T::Compute; LANES] {
    let mut out = [T::Compute::ZERO; LANES];
    // SAFETY: the caller's promise.
    unsafe {
        if n == LANES {
            let all = from.cast::<[T; LANES]>().read_unaligned();
            (0..LANES).for_each(|l| out[l] = all[l].get());
        } else {
            out.iter_mut().enumerate().take(n).for_each(|(l, x)| *x = (*from.add(l)).get());
        }
    }
    out
}

/// Stores the first `n` of sixteen numbers.
///
/// # Safety
/// `to` has room for `n` numbers.
#[inline(always)]
pub(super) unsafe fn store<T: Stored>(to: *mut T, n: usize, values: &[T::Compute; LANES]) {
    // SAFETY: the caller's promise.
    unsafe {
        if n == LANES {
            let mut all = [T::put(T::Compute::ZERO); LANES];
            (0..LANES).for_each(|l| all[l] = T::put(values[l]));
            to.cast::<[T; LANES]>().write_unaligned(all);
        } else {
            values.iter().enumerate().take(n).for_each(|(l, &x)| *to.add(l) = T::put(x));
        }
    }
}
