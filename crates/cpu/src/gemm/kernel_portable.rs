//! The micro-kernel in plain Rust, for processors without AVX2.

use super::scalar::Scalar;
use super::tile::{Simd, Tile, TileFn};

/// Plain Rust; the compiler's default vectors.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const LANES: usize = 8;

unsafe fn tile<const H: usize, const V: usize, const BY_ROW: bool>(t: &Tile) {
    let mut acc = [[[0f32; LANES]; V]; H];
    let mut b = t.b;
    // SAFETY: the driver gives segments of `k` columns in all and a panel of `k` rows of V vectors; C has `cols`
    // columns in each of the H rows.
    unsafe {
        for segment in std::slice::from_raw_parts(t.segments, t.n_segments) {
            let mut a = segment.a;
            for _ in 0..segment.len {
                let b_row: [[f32; LANES]; V] = b.cast::<[[f32; LANES]; V]>().read_unaligned();
                for i in 0..H {
                    let x = *a.add(if BY_ROW { i * t.a_stride } else { i });
                    for v in 0..V {
                        for l in 0..LANES {
                            acc[i][v][l] += x * b_row[v][l];
                        }
                    }
                }
                a = a.add(if BY_ROW { 1 } else { t.a_stride });
                b = b.add(t.b_stride);
            }
        }
        for i in 0..H {
            let c = t.c.add(*t.rows.add(i));
            for j in 0..t.cols {
                let mut value = acc[i][j / LANES][j % LANES];
                if t.accumulate {
                    value += *c.add(j);
                }
                if !t.bias.is_null() {
                    value += *t.bias.add(j);
                }
                if t.relu && value < 0.0 {
                    value = 0.0;
                }
                *c.add(j) = value;
            }
        }
    }
}

static KERNELS: [[[TileFn; 2]; 4]; 2] = [
    [
        [tile::<1, 1, false>, tile::<1, 2, false>],
        [tile::<2, 1, false>, tile::<2, 2, false>],
        [tile::<3, 1, false>, tile::<3, 2, false>],
        [tile::<4, 1, false>, tile::<4, 2, false>],
    ],
    [
        [tile::<1, 1, true>, tile::<1, 2, true>],
        [tile::<2, 1, true>, tile::<2, 2, true>],
        [tile::<3, 1, true>, tile::<3, 2, true>],
        [tile::<4, 1, true>, tile::<4, 2, true>],
    ],
];

// SAFETY: (of the functions below) the bounds are those of the trait; no instruction set is needed.
impl Simd for Portable {
    const LANES: usize = LANES;
    const GROUP: usize = 4;
    const KERNELS: [&'static [[TileFn; 2]]; 2] = [&KERNELS[0], &KERNELS[1]];

    #[inline(always)]
    unsafe fn widen_vector<T: Scalar>(src: *const T, dst: *mut f32) {
        // SAFETY: the caller gives `LANES` readable and writable numbers.
        unsafe { (0..LANES).for_each(|i| *dst.add(i) = (*src.add(i)).to_f32()) }
    }

    #[inline(always)]
    unsafe fn widen_group<T: Scalar>(src: *const T, dst: *mut f32, n: usize) {
        // SAFETY: the caller gives `n` readable and writable numbers.
        unsafe { (0..n).for_each(|i| *dst.add(i) = (*src.add(i)).to_f32()) }
    }

    #[inline(always)]
    unsafe fn narrow<T: Scalar>(src: *const f32, dst: *mut T, n: usize) {
        // SAFETY: the caller gives `n` readable and writable numbers.
        unsafe { (0..n).for_each(|i| *dst.add(i) = T::from_f32(*src.add(i))) }
    }

    #[inline(always)]
    unsafe fn transpose<T: Scalar>(src: (*const T, usize), n_k: usize, n_j: usize, dst: (*mut f32, usize)) {
        let ((src, ld), (dst, stride)) = (src, dst);
        // SAFETY: the caller gives `n_j` rows of `n_k` numbers and `n_k` rows of `LANES` floats.
        unsafe {
            for k in 0..n_k {
                for j in 0..LANES {
                    *dst.add(k * stride + j) = if j < n_j { (*src.add(j * ld + k)).to_f32() } else { 0.0 };
                }
            }
        }
    }
}
