//! The types of values that ranks exchange, and values of several ranks as one.

use bytemuck::{Pod, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use plimsoll_graph::DType;

use crate::call::Reduce;

/// A type of values that ranks exchange.
pub trait Element: Pod + Send + Sync {
    /// The same as a value.
    const DTYPE: DType;
}

/// An element with the type in which it is added.
trait Number: Element {
    type Wide: Pod;
    fn widen(from: &[Self], to: &mut [Self::Wide]);
    fn narrow(from: &[Self::Wide], to: &mut [Self]);
    fn add(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn larger(a: Self::Wide, b: Self::Wide) -> Self::Wide;
}

macro_rules! element {
    ($type:ty, $dtype:ident, $wide:ty, $widen:expr, $narrow:expr, $add:expr, $larger:expr) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
        impl Number for $type {
            type Wide = $wide;
            fn widen(from: &[$type], to: &mut [$wide]) {
                $widen(from, to)
            }
            fn narrow(from: &[$wide], to: &mut [$type]) {
                $narrow(from, to)
            }
            fn add(a: $wide, b: $wide) -> $wide {
                $add(a, b)
            }
            fn larger(a: $wide, b: $wide) -> $wide {
                $larger(a, b)
            }
        }
    };
    (float $type:ident, $dtype:ident) => {
        element!($type, $dtype, $type, copy, copy, |a, b| a + b, |a: $type, b: $type| {
            // A NaN wins; and 0 over -0, so that the result does not depend on who has which.
            if a.is_nan() || b.is_nan() { $type::NAN } else { a.max(b) + 0.0 }
        });
    };
    (integer $type:ident, $dtype:ident) => {
        element!($type, $dtype, $type, copy, copy, $type::wrapping_add, $type::max);
    };
    (half $type:ident, $dtype:ident) => {
        element!(
            $type,
            $dtype,
            f32,
            |from: &[$type], to: &mut [f32]| from.convert_to_f32_slice(to),
            |from: &[f32], to: &mut [$type]| to.convert_from_f32_slice(from),
            |a, b| a + b,
            f32::larger
        );
    };
}

fn copy<T: Copy>(from: &[T], to: &mut [T]) {
    to.copy_from_slice(from);
}

element!(float f32, F32);
element!(float f64, F64);
element!(half bf16, BF16);
element!(half f16, F16);
element!(integer i64, I64);
element!(integer i32, I32);
element!(integer i16, I16);
element!(integer i8, I8);
element!(integer u32, U32);
element!(integer u16, U16);
element!(integer u8, U8);

/// Whether values of a type can be reduced: all but truth values.
pub(crate) fn can_reduce(dtype: DType) -> bool {
    dtype != DType::Bool
}

/// Values at the same places of several ranks as one, in the order of ranks: `part(0)`, `part(1)`, … to `out`.
///
/// # Safety
/// `out` and every `part` are `len` values of the type, aligned for it. A part is `out`, or overlaps it nowhere.
pub(crate) unsafe fn combine(
    dtype: DType,
    reduce: Reduce,
    ranks: usize,
    part: &dyn Fn(usize) -> *const u8,
    out: *mut u8,
    len: usize,
) {
    // SAFETY: passed on.
    unsafe {
        match dtype {
            DType::F32 => of::<f32>(reduce, ranks, part, out, len),
            DType::F64 => of::<f64>(reduce, ranks, part, out, len),
            DType::BF16 => of::<bf16>(reduce, ranks, part, out, len),
            DType::F16 => of::<f16>(reduce, ranks, part, out, len),
            DType::I64 => of::<i64>(reduce, ranks, part, out, len),
            DType::I32 => of::<i32>(reduce, ranks, part, out, len),
            DType::I16 => of::<i16>(reduce, ranks, part, out, len),
            DType::I8 => of::<i8>(reduce, ranks, part, out, len),
            DType::U32 => of::<u32>(reduce, ranks, part, out, len),
            DType::U16 => of::<u16>(reduce, ranks, part, out, len),
            DType::U8 => of::<u8>(reduce, ranks, part, out, len),
            DType::Bool => {}
        }
    }
}

/// Values that are summed at a time: they and their sums stay in the nearest cache.
const BLOCK: usize = 512;

unsafe fn of<T: Number>(
    reduce: Reduce,
    ranks: usize,
    part: &dyn Fn(usize) -> *const u8,
    out: *mut u8,
    len: usize,
) {
    let mut sums = [T::Wide::zeroed(); BLOCK];
    let mut next = sums;
    for start in (0..len).step_by(BLOCK) {
        let n = BLOCK.min(len - start);
        for rank in 0..ranks {
            // SAFETY: the caller promises `len` values there; the slice is gone before anything is written to `out`.
            let values = unsafe { std::slice::from_raw_parts(part(rank).cast::<T>().add(start), n) };
            if rank == 0 {
                T::widen(values, &mut sums[..n]);
                continue;
            }
            T::widen(values, &mut next[..n]);
            let both = sums[..n].iter_mut().zip(&next[..n]);
            match reduce {
                Reduce::Sum => both.for_each(|(sum, value)| *sum = T::add(*sum, *value)),
                Reduce::Max => both.for_each(|(most, value)| *most = T::larger(*most, *value)),
            }
        }
        // SAFETY: as above, and nobody else holds these values now.
        let to = unsafe { std::slice::from_raw_parts_mut(out.cast::<T>().add(start), n) };
        T::narrow(&sums[..n], to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced<T: Element>(reduce: Reduce, parts: &[Vec<T>]) -> Vec<T> {
        let mut out = vec![T::zeroed(); parts[0].len()];
        let part = |rank: usize| parts[rank].as_ptr().cast();
        // SAFETY: vectors of that type and length.
        unsafe {
            combine(T::DTYPE, reduce, parts.len(), &part, out.as_mut_ptr().cast(), out.len());
        }
        out
    }

    #[test]
    fn sixteen_bits_are_added_in_thirty_two_and_rounded_once() {
        // In bf16, 256 + 1 is 256: added one by one nothing would be left of the ones.
        let parts: Vec<Vec<bf16>> = [256.0, 1.0, 1.0, 1.0, 1.0].map(|x| vec![bf16::from_f32(x); 700]).into();
        assert_eq!(reduced(Reduce::Sum, &parts), vec![bf16::from_f32(260.0); 700]);
    }

    #[test]
    fn sums_go_in_the_order_of_ranks_and_integers_wrap_around() {
        let parts = [vec![1e30f32], vec![-1e30], vec![1.0]];
        assert_eq!(reduced(Reduce::Sum, &parts), [1.0]);
        assert_eq!(reduced(Reduce::Sum, &[vec![200u8], vec![100]]), [44]);
        assert_eq!(reduced(Reduce::Max, &[vec![-2i64], vec![i64::MIN], vec![-1]]), [-1]);
    }

    #[test]
    fn a_nan_of_any_rank_is_the_largest_and_zero_is_larger_than_minus_zero() {
        for parts in [[vec![f32::NAN], vec![1.0]], [vec![1.0], vec![f32::NAN]]] {
            assert!(reduced(Reduce::Max, &parts)[0].is_nan());
        }
        for parts in [[vec![0.0f64], vec![-0.0]], [vec![-0.0], vec![0.0]]] {
            assert!(reduced(Reduce::Max, &parts)[0].is_sign_positive());
        }
        let half = [vec![f16::NAN, f16::from_f32(2.0)], vec![f16::ONE, f16::ONE]];
        let most = reduced(Reduce::Max, &half);
        assert!(most[0].is_nan() && most[1] == f16::from_f32(2.0));
    }
}
