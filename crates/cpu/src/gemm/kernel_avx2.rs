//! The micro-kernel in AVX2 with fused multiply-add: up to 6 rows by 16 columns in 12 of the 16 registers.

use super::finish::{finish_tile, kernels};
use super::scalar::{Kind, Scalar};
use super::tile::{Simd, Tile, TileFn};
use std::arch::x86_64::*;

/// AVX2, FMA, F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Fma;

/// Eight set lanes followed by eight clear ones: a load at `8 - n` gives the mask for `n` lanes.
static LANE_MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn mask(n: usize) -> __m256i {
    // SAFETY: `n <= 8`, so eight values follow; the processor has AVX2.
    unsafe { _mm256_loadu_si256(LANE_MASKS.as_ptr().add(8 - n).cast()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<const H: usize, const V: usize, const BY_ROW: bool>(t: &Tile) {
    let mut acc = [[_mm256_setzero_ps(); V]; H];
    let mut b = t.b;
    // SAFETY: the driver gives segments of `k` columns in all and a panel of `k` rows of V vectors; C has `cols`
    // columns in each of the H rows, and the mask keeps to them.
    unsafe {
        for segment in std::slice::from_raw_parts(t.segments, t.n_segments) {
            let mut a = segment.a;
            for _ in 0..segment.len {
                let mut b_row = [_mm256_setzero_ps(); V];
                for v in 0..V {
                    b_row[v] = _mm256_loadu_ps(b.add(8 * v));
                }
                for i in 0..H {
                    let x = _mm256_set1_ps(*a.add(if BY_ROW { i * t.a_stride } else { i }));
                    for v in 0..V {
                        acc[i][v] = _mm256_fmadd_ps(x, b_row[v], acc[i][v]);
                    }
                }
                a = a.add(if BY_ROW { 1 } else { t.a_stride });
                b = b.add(t.b_stride);
            }
        }
        let mut masks = [mask(8); V];
        masks[V - 1] = mask(t.cols - 8 * (V - 1));
        finish_tile!(
            t,
            acc,
            masks,
            8,
            H,
            V,
            _mm256_setzero_ps,
            _mm256_add_ps,
            _mm256_max_ps,
            _mm256_maskload_ps,
            _mm256_maskstore_ps,
            _mm256_storeu_ps
        );
    }
}

static KERNELS: [[[TileFn; 2]; 6]; 2] = [kernels!(false: 1 2 3 4 5 6), kernels!(true: 1 2 3 4 5 6)];

/// Eight numbers as floats.
#[inline(always)]
unsafe fn load<T: Scalar>(src: *const T) -> __m256 {
    // SAFETY: the caller gives eight readable numbers, on a processor with AVX2 and F16C.
    unsafe {
        match T::KIND {
            Kind::F32 => _mm256_loadu_ps(src.cast()),
            Kind::Bf16 => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(src.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
            Kind::F16 => _mm256_cvtph_ps(_mm_loadu_si128(src.cast())),
        }
    }
}

// SAFETY: (of the functions below) the bounds are those of the trait; tails go one by one or under a mask.
impl Simd for Avx2Fma {
    const LANES: usize = 8;
    const KERNELS: [&'static [[TileFn; 2]]; 2] = [&KERNELS[0], &KERNELS[1]];

    #[inline(always)]
    unsafe fn widen_vector<T: Scalar>(src: *const T, dst: *mut f32) {
        // SAFETY: the caller gives eight readable and writable numbers.
        unsafe { _mm256_storeu_ps(dst, load(src)) }
    }

    #[inline(always)]
    unsafe fn widen_group<T: Scalar>(src: *const T, dst: *mut f32, n: usize) {
        // SAFETY: the caller gives `n <= 8` readable and writable numbers.
        unsafe {
            if T::KIND == Kind::F32 {
                let m = mask(n);
                _mm256_maskstore_ps(dst, m, _mm256_maskload_ps(src.cast(), m));
            } else {
                (0..n).for_each(|i| *dst.add(i) = (*src.add(i)).to_f32());
            }
        }
    }

    #[inline(always)]
    unsafe fn narrow<T: Scalar>(src: *const f32, dst: *mut T, n: usize) {
        // SAFETY: the caller gives `n` readable and writable numbers.
        unsafe {
            let mut i = 0;
            if T::KIND == Kind::F16 {
                while i + 8 <= n {
                    let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(src.add(i)));
                    _mm_storeu_si128(dst.add(i).cast(), half);
                    i += 8;
                }
            }
            while i < n {
                *dst.add(i) = T::from_f32(*src.add(i));
                i += 1;
            }
        }
    }

    #[inline(always)]
    unsafe fn transpose<T: Scalar>(src: (*const T, usize), n_k: usize, n_j: usize, dst: (*mut f32, usize)) {
        let ((src, ld), (dst, stride)) = (src, dst);
        // SAFETY: the caller gives `n_j` rows of `n_k` numbers and `n_k` rows of 8 floats.
        unsafe {
            let mut k = 0;
            while n_j == 8 && k + 8 <= n_k {
                let mut r = [_mm256_setzero_ps(); 8];
                for j in 0..8 {
                    r[j] = load(src.add(j * ld + k));
                }
                let mut t = r;
                for i in 0..4 {
                    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
                }
                for i in 0..2 {
                    for half in 0..2 {
                        let (lo, hi) = (t[4 * i + half], t[4 * i + 2 + half]);
                        r[4 * i + 2 * half] = _mm256_shuffle_ps::<0x44>(lo, hi);
                        r[4 * i + 2 * half + 1] = _mm256_shuffle_ps::<0xee>(lo, hi);
                    }
                }
                for i in 0..4 {
                    let row = dst.add((k + i) * stride);
                    _mm256_storeu_ps(row, _mm256_permute2f128_ps::<0x20>(r[i], r[4 + i]));
                    _mm256_storeu_ps(row.add(4 * stride), _mm256_permute2f128_ps::<0x31>(r[i], r[4 + i]));
                }
                k += 8;
            }
            while k < n_k {
                for j in 0..8 {
                    *dst.add(k * stride + j) = if j < n_j { (*src.add(j * ld + k)).to_f32() } else { 0.0 };
                }
                k += 1;
            }
        }
    }
}
