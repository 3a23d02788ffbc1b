//! What kernels over images share: rows of an output handed to the threads, and sums over channels.

use super::lanes::Stored;
use crate::Cpu;

/// Elements that one task computes at least: enough to hide what handing out a task costs.
const TASK: usize = 1 << 14;

/// Channels whose sums stand on the stack at a time. Loops over them have a length that the compiler does not know, so
/// that it vectorises them: one of known length it would unroll, and then leave scalar.
pub(super) const CHUNK: usize = 256;

/// Calls `f(row, elements)` for every row of `row_len` elements, on all threads.
pub(super) fn for_each_row<T: Send>(
    cpu: &Cpu,
    out: &mut [T],
    row_len: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    // SAFETY: `()` takes no memory, so a slice of any length of them exists everywhere.
    let nothing: &mut [()] = unsafe { std::slice::from_raw_parts_mut(std::ptr::dangling_mut(), out.len()) };
    for_each_row_of_two(cpu, out, nothing, row_len, |row, elements, _| f(row, elements));
}

/// [`for_each_row`] of two outputs of one shape.
pub(super) fn for_each_row_of_two<A: Send, B: Send>(
    cpu: &Cpu,
    a: &mut [A],
    b: &mut [B],
    row_len: usize,
    f: impl Fn(usize, &mut [A], &mut [B]) + Sync,
) {
    if row_len == 0 || a.is_empty() {
        return;
    }
    let rows = a.len() / row_len;
    assert!(b.len() >= rows * row_len, "the two outputs differ in size");
    let rows_a_task = (TASK / row_len).max(1);
    let (a, b) = (Place(a.as_mut_ptr()), Place(b.as_mut_ptr()));
    cpu.pool().run(rows.div_ceil(rows_a_task), |task| {
        for row in task * rows_a_task..((task + 1) * rows_a_task).min(rows) {
            // SAFETY: rows are disjoint, each belongs to one task, and both outputs have `rows` of them.
            let (a, b) = unsafe {
                let (a, b) = (a.at(row * row_len), b.at(row * row_len));
                (std::slice::from_raw_parts_mut(a, row_len), std::slice::from_raw_parts_mut(b, row_len))
            };
            f(row, a, b);
        }
    });
}

/// A pointer that several threads may hold; what they do with it is theirs to justify.
struct Place<T>(*mut T);

// SAFETY: only disjoint rows are reached through it.
unsafe impl<T: Send> Sync for Place<T> {}

impl<T> Place<T> {
    fn at(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}

/// Adds `weight · values` to the sums of as many channels.
#[inline(always)]
pub(super) fn add_weighted<T: Stored>(sums: &mut [T::Wide], values: &[T], weight: T::Wide) {
    let values = &values[..sums.len()];
    for i in 0..sums.len() {
        sums[i] += weight * values[i].widen();
    }
}

/// Rounds as many sums as `out` has elements.
#[inline(always)]
pub(super) fn store<T: Stored>(sums: &[T::Wide], out: &mut [T]) {
    let sums = &sums[..out.len()];
    for i in 0..out.len() {
        out[i] = T::narrow(sums[i]);
    }
}
