//! Turns a matrix into its transpose.
//!
//! A product packs a transposed B anew at every call. Where the same B is used many times with few rows (the
//! recurrent weights of an LSTM), it is cheaper to transpose it once.

use super::kernel_portable::Portable;
use super::product::Shared;
use super::scalar::Scalar;
use super::tile::Simd;
#[cfg(target_arch = "x86_64")]
use super::{kernel_avx2::Avx2Fma, kernel_avx512::Avx512};
use crate::isa::Isa;
use crate::pool::Pool;

/// Columns of the source that one task handles.
const COLUMNS: usize = 128;

/// `dst[j, i] = src[i, j]` in f32, where `src` has `rows` rows of `cols` numbers. Needs no scratch.
///
/// # Panics
/// When a slice is shorter than `rows * cols`.
pub fn transpose<T: Scalar>(pool: &Pool, isa: Isa, rows: usize, cols: usize, src: &[T], dst: &mut [f32]) {
    assert!(src.len() >= rows * cols && dst.len() >= rows * cols, "a matrix is shorter than its shape");
    assert!(isa.is_available(), "this processor does not have {isa}");
    let dst = Shared(dst.as_mut_ptr());
    pool.run(cols.div_ceil(COLUMNS), |task| {
        let (col, n_cols) = (task * COLUMNS, (cols - task * COLUMNS).min(COLUMNS));
        // SAFETY: the slices have the size of the shape, and every task has its own rows of the destination.
        unsafe {
            let (src, dst) = (src.as_ptr().add(col), dst.get().add(col * rows));
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => on_avx512(src, cols, n_cols, rows, dst),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2Fma => on_avx2(src, cols, n_cols, rows, dst),
                _ => run::<Portable, T>(src, cols, n_cols, rows, dst),
            }
        }
    });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn on_avx512<T: Scalar>(src: *const T, ld: usize, n_cols: usize, rows: usize, dst: *mut f32) {
    // SAFETY: the caller's promises are passed on.
    unsafe { run::<Avx512, T>(src, ld, n_cols, rows, dst) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn on_avx2<T: Scalar>(src: *const T, ld: usize, n_cols: usize, rows: usize, dst: *mut f32) {
    // SAFETY: the caller's promises are passed on.
    unsafe { run::<Avx2Fma, T>(src, ld, n_cols, rows, dst) }
}

#[inline(always)]
unsafe fn run<S: Simd, T: Scalar>(src: *const T, ld: usize, n_cols: usize, rows: usize, dst: *mut f32) {
    let whole = rows / S::LANES * S::LANES;
    // SAFETY: the source has `rows` rows of `n_cols` numbers, the destination `n_cols` rows of `rows` floats; the
    // vector function writes whole vectors, so the last rows go one by one.
    unsafe {
        for i in (0..whole).step_by(S::LANES) {
            S::transpose((src.add(i * ld), ld), n_cols, S::LANES, (dst.add(i), rows));
        }
        for i in whole..rows {
            for j in 0..n_cols {
                *dst.add(j * rows + i) = (*src.add(i * ld + j)).to_f32();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_finds_its_place() {
        for (rows, cols) in [(1, 1), (3, 200), (16, 16), (33, 17), (40, 300)] {
            let src: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
            for isa in Isa::available() {
                let mut dst = vec![-1.0; rows * cols];
                transpose(&Pool::new(2), isa, rows, cols, &src, &mut dst);
                for i in 0..rows {
                    for j in 0..cols {
                        assert_eq!(dst[j * rows + i], src[i * cols + j], "{isa} {rows}x{cols}");
                    }
                }
            }
        }
    }
}
