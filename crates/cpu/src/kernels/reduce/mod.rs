//! Sums, means, extremes and products over axes; the gradient of a product; the index of the largest.
//!
//! Axes are merged into groups that go and groups that stay. Two arrangements cover nearly all calls: the last group
//! goes (every result folds dense runs) or stays (rows are folded into columns, the gradient of a bias). Long folds
//! are cut into chunks by their length alone; the chunks' totals wait in scratch and are folded in order.

mod arg;
mod fold;
mod prod;

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{self, ReduceKind};
use plimsoll_graph::{DType, Type};
use smallvec::SmallVec;

use super::Kernel;
use crate::Cpu;
use crate::gemm::Shared;
use fold::{COLUMNS, Kind, Max, Min, Prod, Reducible, Sum};

/// Elements that one chunk of a long fold has, and that make a task worth waking a thread for.
const CHUNK: usize = 32 * 1024;

/// A reduction as groups of axes: the shape `[outer.., rows, width]` of which some go.
struct Groups {
    /// Length and whether it goes, outermost first; neighbours differ.
    list: SmallVec<[(usize, bool); 8]>,
}

impl Groups {
    fn new(shape: &[usize], axes: &[usize]) -> Groups {
        let mut list: SmallVec<[(usize, bool); 8]> = SmallVec::new();
        for (axis, &length) in shape.iter().enumerate().filter(|&(_, &length)| length != 1) {
            let goes = axes.contains(&axis);
            match list.last_mut() {
                Some((n, same)) if *same == goes => *n *= length,
                _ => list.push((length, goes)),
            }
        }
        Groups { list }
    }

    /// The innermost group as `(outer groups, rows that go, columns that stay)`: the last group that goes and what
    /// stays behind it.
    fn split(&self) -> (&[(usize, bool)], usize, usize) {
        match self.list.as_slice() {
            [outer @ .., (rows, true), (width, false)] => (outer, *rows, *width),
            [outer @ .., (rows, true)] => (outer, *rows, 1),
            [outer @ .., (width, false)] => (outer, 1, *width),
            [] => (&[], 1, 1),
        }
    }
}

/// How a reduction is cut into folds.
struct Plan {
    /// Results of the outer groups that stay.
    kept: usize,
    /// Folds that go into each of those results: the outer groups that go.
    gone: usize,
    rows: usize,
    width: usize,
    /// Rows of a chunk.
    chunk: usize,
    /// Chunks of the rows.
    n_chunks: usize,
}

impl Plan {
    fn new(groups: &Groups) -> Plan {
        let (outer, rows, width) = groups.split();
        let product = |goes: bool| outer.iter().filter(|g| g.1 == goes).map(|g| g.0).product::<usize>();
        let chunk = (CHUNK / width.max(1)).max(64).min(rows.max(1));
        Plan { kept: product(false), gone: product(true), rows, width, chunk, n_chunks: rows.div_ceil(chunk) }
    }

    /// Totals that wait in scratch, 8 bytes each: one a result for every fold and chunk, where there are several.
    fn totals(&self) -> usize {
        let folds = self.gone * self.n_chunks;
        if folds > 1 { self.kept * folds * self.width } else { 0 }
    }
}

/// The place of the `kept`-th result and the `gone`-th fold of it among the outer groups.
fn outer_offset(outer: &[(usize, bool)], mut kept: usize, mut gone: usize) -> usize {
    let (mut offset, mut stride) = (0, 1);
    for &(length, goes) in outer.iter().rev() {
        let index = if goes { &mut gone } else { &mut kept };
        offset += *index % length * stride;
        *index /= length;
        stride *= length;
    }
    offset
}

impl Kernel for ops::Reduce {
    fn scratch(&self, _: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        8 * Plan::new(&Groups::new(&inputs[0].shape, &self.axes)).totals()
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        macro_rules! typed {
            ($ty:ty) => {
                // SAFETY: the caller's promise, passed on; the type is the operands'.
                unsafe {
                    match self.kind {
                        ReduceKind::Sum | ReduceKind::Mean => reduce::<Sum, $ty>(self, cpu, call),
                        ReduceKind::Prod => reduce::<Prod, $ty>(self, cpu, call),
                        ReduceKind::Max => reduce::<Max, $ty>(self, cpu, call),
                        ReduceKind::Min => reduce::<Min, $ty>(self, cpu, call),
                    }
                }
            };
        }
        // Of small integers there are extremes; the shape rule lets nothing else pass.
        macro_rules! small {
            ($ty:ty) => {
                // SAFETY: as above.
                unsafe {
                    match self.kind {
                        ReduceKind::Max => reduce::<Max, $ty>(self, cpu, call),
                        _ => reduce::<Min, $ty>(self, cpu, call),
                    }
                }
            };
        }
        match call.inputs[0].ty.dtype {
            DType::F64 => typed!(f64),
            DType::BF16 => typed!(bf16),
            DType::F16 => typed!(f16),
            DType::I64 => typed!(i64),
            DType::I32 => typed!(i32),
            DType::I16 => small!(i16),
            DType::I8 => small!(i8),
            DType::U32 => small!(u32),
            DType::U16 => small!(u16),
            DType::U8 => small!(u8),
            _ => typed!(f32),
        }
        Ok(())
    }
}

/// # Safety
/// As for [`plimsoll_device::backend::Backend::run`], with operands of `T`.
unsafe fn reduce<K: Kind, T: Reducible>(op: &ops::Reduce, cpu: &Cpu, call: &Call<'_>) {
    // SAFETY: the input is never written while this runs.
    let x = unsafe { call.inputs[0].slice::<T>() };
    let n_results = call.outputs[0].ty.elements();
    if n_results == 0 {
        return;
    }
    let mean_of = (op.kind == ReduceKind::Mean).then(|| x.len() / n_results);
    let y = Shared(call.outputs[0].ptr.cast::<T>());
    let groups = Groups::new(&call.inputs[0].ty.shape, &op.axes);
    let (outer, _, _) = groups.split();
    let plan = Plan::new(&groups);
    let totals = Shared(call.scratch.cast::<T::Total>());
    let Plan { kept, gone, rows, width, chunk, n_chunks } = plan;
    if x.is_empty() {
        // SAFETY: every result is written once; a fold of nothing is where the fold starts.
        (0..n_results).for_each(|i| unsafe { *y.get().add(i) = T::finish(K::start(), None) });
        return;
    }
    // One task folds a chunk of rows for a stretch of columns; small ones are taken several at a time.
    let stretches = width.div_ceil(COLUMNS);
    let folds = gone * n_chunks;
    let n_folds = kept * folds * stretches;
    let per_task = (CHUNK / (chunk * width.min(COLUMNS))).max(1);
    cpu.pool().run(n_folds.div_ceil(per_task), |task| {
        for fold in task * per_task..((task + 1) * per_task).min(n_folds) {
            let (first, rest) = (fold % stretches * COLUMNS, fold / stretches);
            let (part, rest) = (rest % n_chunks, rest / n_chunks);
            let (fold, result) = (rest % gone, rest / gone);
            let n_rows = chunk.min(rows - part * chunk);
            let start = (outer_offset(outer, result, fold) * rows + part * chunk) * width + first;
            let n_cols = COLUMNS.min(width - first);
            let place = ((result * gone + fold) * n_chunks + part) * width + first;
            let finish = |column: usize, total: T::Total| {
                // SAFETY: every result has one writer.
                unsafe { *y.get().add(place + column) = T::finish(total, mean_of) };
            };
            if width == 1 {
                let total = T::fold_run::<K>(cpu.isa(), &x[start..start + n_rows]);
                match folds {
                    1 => finish(0, total),
                    // SAFETY: every fold has its own total, for which the scratch was declared.
                    _ => unsafe { *totals.get().add(place) = total },
                }
            } else if folds == 1 {
                let mut own = [K::start::<T::Total>(); COLUMNS];
                T::fold_rows::<K>(cpu.isa(), &x[start..], n_cols, n_rows, width, &mut own);
                own[..n_cols].iter().enumerate().for_each(|(column, &total)| finish(column, total));
            } else {
                // SAFETY: every fold has its own totals, for which the scratch was declared.
                let to = unsafe { std::slice::from_raw_parts_mut(totals.get().add(place), n_cols) };
                T::fold_rows::<K>(cpu.isa(), &x[start..], n_cols, n_rows, width, to);
            }
        }
    });
    if folds == 1 {
        return;
    }
    let per_task = (CHUNK / folds).max(1);
    cpu.pool().run(n_results.div_ceil(per_task), |task| {
        for i in task * per_task..((task + 1) * per_task).min(n_results) {
            let (result, column) = (i / width, i % width);
            let at = |fold: usize| totals.get().wrapping_add((result * folds + fold) * width + column);
            // SAFETY: all totals are written, and every result has one writer.
            unsafe {
                let total = (0..folds).fold(K::start(), |total, fold| K::join(total, *at(fold)));
                *y.get().add(i) = T::finish(total, mean_of);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_axes_become_one_group() {
        let groups = Groups::new(&[8, 4, 4, 64], &[0, 1, 2]);
        assert_eq!(groups.list.as_slice(), [(128, true), (64, false)]);
        let groups = Groups::new(&[2, 1, 3, 5], &[0, 3]);
        assert_eq!(groups.list.as_slice(), [(2, true), (3, false), (5, true)]);
    }

    #[test]
    fn a_bias_gradient_is_cut_into_chunks_by_its_length() {
        let plan = Plan::new(&Groups::new(&[65536, 64], &[0]));
        assert_eq!((plan.rows, plan.width, plan.chunk, plan.n_chunks), (65536, 64, 512, 128));
    }
}
