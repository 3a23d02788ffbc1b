//! Turns a call's operands into what the recurrences compute with: widened, in time-major order, or as they are.
//!
//! The same code runs twice: once to count the scratch, when nothing is touched, and once to compute.

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::RecurrentDims;

use super::super::carver::Carver;
use super::super::lanes::{Stored, Wide};
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
            unsafe { Rows::flat(n).copy(cpu, |r| r, self.stored(i), copy) };
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
            unsafe { Rows::flat(n).store(cpu, |r| r, (result, self.output(i))) };
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
            unsafe { Rows::whole(batch * steps, width).copy(cpu, from, self.stored(i), to) };
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
            unsafe { Rows::whole(batch * steps, width).store(cpu, to, (result, self.output(i))) };
        }
    }
}

multiversion! {
    fn widen_row<L; T: Stored>(from: &[T], to: &mut [T::Wide]) {
        to.iter_mut().zip(from).for_each(|(y, x)| *y = x.widen());
    }

    fn narrow_row<L; T: Stored>(from: &[T::Wide], to: &mut [T]) {
        to.iter_mut().zip(from).for_each(|(y, x)| *y = T::narrow(*x));
    }
}

/// Rows that are moved: how many, how wide each is (the last may be cut short), and how many numbers there are in all.
#[derive(Clone, Copy)]
struct Rows {
    count: usize,
    width: usize,
    total: usize,
}

impl Rows {
    /// Rows of a sequence, whole ones.
    fn whole(count: usize, width: usize) -> Rows {
        Rows { count, width, total: count * width }
    }

    /// So many numbers in a row, cut into rows for the tasks.
    fn flat(total: usize) -> Rows {
        Rows { count: total.div_ceil(1024), width: 1024, total }
    }

    /// Calls `run` with every row, where it begins and how many numbers it has; on all threads, a row once.
    fn each(self, cpu: &Cpu, run: impl Fn(usize, usize, usize) + Sync) {
        cpu.pool().run(self.count.div_ceil(COPY_ROWS), |task| {
            for row in task * COPY_ROWS..((task + 1) * COPY_ROWS).min(self.count) {
                let start = row * self.width;
                run(row, start, self.width.min(self.total - start));
            }
        });
    }

    /// `to[row] = from[place(row)]`.
    ///
    /// # Safety
    /// All rows lie inside of both.
    unsafe fn copy<T: Stored>(
        self,
        cpu: &Cpu,
        place: impl Fn(usize) -> usize + Sync,
        from: *const T,
        to: *mut T::Wide,
    ) {
        let (from, to) = (Shared(from.cast_mut()), Shared(to));
        self.each(cpu, |row, start, n| {
            // SAFETY: the caller's promise; every row is one task's.
            unsafe {
                let src = std::slice::from_raw_parts(from.get().add(place(row) * self.width).cast_const(), n);
                widen_row(cpu.isa(), src, std::slice::from_raw_parts_mut(to.get().add(start), n));
            }
        });
    }

    /// `to[place(row)] = from[row]`.
    ///
    /// # Safety
    /// All rows lie inside of both, and no two have one place.
    unsafe fn store<T: Stored>(
        self,
        cpu: &Cpu,
        place: impl Fn(usize) -> usize + Sync,
        (from, to): (*const T::Wide, *mut T),
    ) {
        let (from, to) = (Shared(from.cast_mut()), Shared(to));
        self.each(cpu, |row, start, n| {
            // SAFETY: the caller's promise; every row is one task's.
            unsafe {
                let src = std::slice::from_raw_parts(from.get().add(start).cast_const(), n);
                narrow_row(
                    cpu.isa(),
                    src,
                    std::slice::from_raw_parts_mut(to.get().add(place(row) * self.width), n),
                );
            }
        });
    }
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
pub(super) unsafe fn load<T: Stored>(from: *const T, n: usize) -> [T::Wide; LANES] {
    let mut out = [T::Wide::ZERO; LANES];
    // SAFETY: the caller's promise.
    unsafe {
        if n == LANES {
            let all = from.cast::<[T; LANES]>().read_unaligned();
            (0..LANES).for_each(|l| out[l] = all[l].widen());
        } else {
            out.iter_mut().enumerate().take(n).for_each(|(l, x)| *x = (*from.add(l)).widen());
        }
    }
    out
}

/// Stores the first `n` of sixteen numbers.
///
/// # Safety
/// `to` has room for `n` numbers.
#[inline(always)]
pub(super) unsafe fn store<T: Stored>(to: *mut T, n: usize, values: &[T::Wide; LANES]) {
    // SAFETY: the caller's promise.
    unsafe {
        if n == LANES {
            let mut all = [T::narrow(T::Wide::ZERO); LANES];
            (0..LANES).for_each(|l| all[l] = T::narrow(values[l]));
            to.cast::<[T; LANES]>().write_unaligned(all);
        } else {
            values.iter().enumerate().take(n).for_each(|(l, &x)| *to.add(l) = T::narrow(x));
        }
    }
}

/// Adds sixteen sums to up to sixteen numbers.
///
/// # Safety
/// `place` has `n` numbers.
#[inline(always)]
pub(super) unsafe fn add_to<E: Wide>(place: *mut E, n: usize, sums: &[E; LANES]) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut total = load(place.cast_const(), n);
        (0..LANES).for_each(|l| total[l] += sums[l]);
        store(place, n, &total);
    }
}
