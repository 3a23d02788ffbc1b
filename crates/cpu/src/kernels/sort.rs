//! The order of elements along an axis: each line as numbers that hold key and place, sorted.
//!
//! Keys are unsigned integers in the order of the elements; with the place below the key no two numbers are equal, so that a sort that
//! is not stable is. The scratch holds a line for every task.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Element, Fault};
use plimsoll_graph::ops::ArgSort;
use plimsoll_graph::{DType, Type};

use super::Kernel;
use super::gather::around;
use super::lanes::{Place, Stored};
use crate::Cpu;

/// A key and, below it, a place of 32 bits.
trait Keyed: Copy + Ord {
    fn new(key: u64, place: usize) -> Self;
    fn place(self) -> usize;
}

impl Keyed for u64 {
    fn new(key: u64, place: usize) -> u64 {
        key << 32 | place as u64
    }
    fn place(self) -> usize {
        self as u32 as usize
    }
}

impl Keyed for u128 {
    fn new(key: u64, place: usize) -> u128 {
        u128::from(key) << 32 | place as u128
    }
    fn place(self) -> usize {
        self as u32 as usize
    }
}

/// An element whose order is that of an unsigned integer.
trait Sorts: Element {
    /// Holds a key of this type and a place.
    type Keyed: Keyed;
    /// The key, the largest of which is `LAST`.
    fn key(self) -> u64;
    const LAST: u64;
}

/// The key of a float from its bits: negative ones from their other end, zeros alike, what is no number last.
macro_rules! float_key {
    ($x:expr, $bits:ty) => {{
        let x = $x;
        let sign = 1 << (<$bits>::BITS - 1);
        // 0 + -0 is 0.
        let bits = (x + 0.0).to_bits();
        let key = if bits & sign != 0 { !bits } else { bits | sign };
        u64::from(if x.is_nan() { <$bits>::MAX } else { key })
    }};
}

macro_rules! sorts {
    ($($t:ty, $keyed:ty, $last:expr, $key:expr;)+) => { $(
        impl Sorts for $t {
            type Keyed = $keyed;
            const LAST: u64 = $last;
            #[inline(always)]
            fn key(self) -> u64 {
                $key(self)
            }
        }
    )+ };
}
sorts! {
    f32, u64, u32::MAX as u64, |x: f32| float_key!(x, u32);
    bf16, u64, u32::MAX as u64, |x: bf16| float_key!(Stored::widen(x), u32);
    f16, u64, u32::MAX as u64, |x: f16| float_key!(Stored::widen(x), u32);
    f64, u128, u64::MAX, |x: f64| float_key!(x, u64);
    i64, u128, u64::MAX, |x: i64| x as u64 ^ 1 << 63;
    i32, u64, u32::MAX as u64, |x: i32| u64::from(x as u32 ^ 1 << 31);
    i16, u64, u16::MAX as u64, |x: i16| u64::from(x as u16 ^ 1 << 15);
    i8, u64, u8::MAX as u64, |x: i8| u64::from(x as u8 ^ 1 << 7);
    u32, u64, u32::MAX as u64, u64::from;
    u16, u64, u16::MAX as u64, u64::from;
    u8, u64, u8::MAX as u64, u64::from;
}

/// Lines that are sorted at a time.
fn tasks(cpu: &Cpu, lines: usize) -> usize {
    lines.min(cpu.threads())
}

unsafe fn sort<T: Sorts>(op: &ArgSort, cpu: &Cpu, call: &Call<'_>) {
    let (outer, n, inner) = around(&call.inputs[0].ty.shape, op.axis);
    let (lines, wanted) = (outer * inner, op.wanted(call.inputs[0].ty));
    let x = Place::<T>::new(call.inputs[0].ptr);
    let y = Place::<u8>::new(call.outputs[0].ptr);
    let base = (call.scratch as usize).next_multiple_of(align_of::<T::Keyed>()) - call.scratch as usize;
    let scratch = Place::<T::Keyed>::new(call.scratch.wrapping_add(base));
    let tasks = tasks(cpu, lines);
    cpu.pool().run(tasks, |task| {
        // SAFETY: the scratch holds a line for every task.
        let keyed = unsafe { std::slice::from_raw_parts_mut(scratch.at(task * n), n) };
        for line in (task..lines).step_by(tasks) {
            let from = line / inner * n * inner + line % inner;
            for (k, slot) in keyed.iter_mut().enumerate() {
                // SAFETY: the place is one of the line's.
                let key = unsafe { x.at(from + k * inner).read() }.key();
                *slot = T::Keyed::new(if op.descending { T::LAST - key } else { key }, k);
            }
            if wanted > 0 && wanted < n {
                keyed.select_nth_unstable(wanted - 1);
            }
            let first = &mut keyed[..wanted];
            first.sort_unstable();
            for (k, keyed) in first.iter().enumerate() {
                let to = (line / inner * wanted + k) * inner + line % inner;
                // SAFETY: result `to` belongs to this line, and lines to one task each.
                unsafe {
                    match op.dtype {
                        DType::I32 => y.at(to * 4).cast::<i32>().write(keyed.place() as i32),
                        _ => y.at(to * 8).cast::<i64>().write(keyed.place() as i64),
                    }
                }
            }
        }
    });
}

impl Kernel for ArgSort {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        let (outer, n, inner) = around(&inputs[0].shape, self.axis);
        let keyed = if inputs[0].dtype.bytes() == 8 { size_of::<u128>() } else { size_of::<u64>() };
        // Room to align the first.
        (tasks(cpu, outer * inner) * n + 1) * keyed
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise, passed on; each type is the operand's.
        unsafe {
            match call.inputs[0].ty.dtype {
                DType::F32 => sort::<f32>(self, cpu, call),
                DType::F64 => sort::<f64>(self, cpu, call),
                DType::BF16 => sort::<bf16>(self, cpu, call),
                DType::F16 => sort::<f16>(self, cpu, call),
                DType::I64 => sort::<i64>(self, cpu, call),
                DType::I32 => sort::<i32>(self, cpu, call),
                DType::I16 => sort::<i16>(self, cpu, call),
                DType::I8 => sort::<i8>(self, cpu, call),
                DType::U32 => sort::<u32>(self, cpu, call),
                DType::U16 => sort::<u16>(self, cpu, call),
                DType::U8 | DType::Bool => sort::<u8>(self, cpu, call),
            }
        }
        Ok(())
    }
}
