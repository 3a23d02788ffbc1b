//! The micro-kernel in AVX-512: up to 14 rows by 32 columns in 28 of the 32 registers.

use super::finish::{finish_tile, kernels};
use super::scalar::{Kind, Scalar};
use super::tile::{Simd, Tile, TileFn};
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ, VL.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

#[inline(always)]
unsafe fn load_masked(from: *const f32, mask: __mmask16) -> __m512 {
    // SAFETY: the caller gives readable memory wherever the mask is set, on a processor with AVX-512.
    unsafe { _mm512_maskz_loadu_ps(mask, from) }
}

#[inline(always)]
unsafe fn store_masked(to: *mut f32, mask: __mmask16, value: __m512) {
    // SAFETY: the caller gives writable memory wherever the mask is set, on a processor with AVX-512.
    unsafe { _mm512_mask_storeu_ps(to, mask, value) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tile<const H: usize, const V: usize, const BY_ROW: bool>(t: &Tile) {
    let mut acc = [[_mm512_setzero_ps(); V]; H];
    let mut b = t.b;
    let mut ahead = t.ahead;
    let last_ahead = t.ahead.wrapping_add(t.n_ahead);
    // SAFETY: the driver gives segments of `k` columns in all and a panel of `k` rows of V vectors; C has `cols`
    // columns in each of the H rows, and the mask keeps to them.
    unsafe {
        for segment in std::slice::from_raw_parts(t.segments, t.n_segments) {
            // Three rows share a pointer, so that fourteen rows need five registers: the stride is the index of
            // the second and, doubled, of the third.
            let stride = t.a_stride;
            let row = |i: usize| segment.a.wrapping_add(i * stride);
            let (mut a_0, mut a_3, mut a_6, mut a_9, mut a_12) = (segment.a, row(3), row(6), row(9), row(12));
            for _ in 0..segment.len {
                if ahead < last_ahead {
                    _mm_prefetch::<_MM_HINT_T0>((*ahead).cast());
                    ahead = ahead.add(1);
                }
                let mut b_row = [_mm512_setzero_ps(); V];
                for v in 0..V {
                    b_row[v] = _mm512_loadu_ps(b.add(16 * v));
                    // The panel comes from the second-level cache; ask for it early enough.
                    _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(t.b_ahead + 16 * v).cast());
                }
                // Written out row by row: the compiler does not unroll a loop with the choice of pointers in it.
                macro_rules! rows {
                    ($($i:literal $a:ident $second:literal),*) => {$(
                        if $i < H {
                            let x = if BY_ROW { *$a.add($second * stride) } else { *a_0.add($i) };
                            let x = _mm512_set1_ps(x);
                            for v in 0..V {
                                acc[$i % H][v] = _mm512_fmadd_ps(x, b_row[v], acc[$i % H][v]);
                            }
                        }
                    )*};
                }
                rows!(
                    0 a_0 0, 1 a_0 1, 2 a_0 2, 3 a_3 0, 4 a_3 1, 5 a_3 2, 6 a_6 0, 7 a_6 1, 8 a_6 2, 9 a_9 0,
                    10 a_9 1, 11 a_9 2, 12 a_12 0, 13 a_12 1
                );
                if BY_ROW {
                    (a_0, a_3, a_6) = (a_0.add(1), a_3.wrapping_add(1), a_6.wrapping_add(1));
                    (a_9, a_12) = (a_9.wrapping_add(1), a_12.wrapping_add(1));
                    // Keeps the compiler from making one pointer a row of them, for which there are too few
                    // registers.
                    std::arch::asm!(
                        "/* {0} {1} {2} {3} {4} */",
                        inout(reg) a_0,
                        inout(reg) a_3,
                        inout(reg) a_6,
                        inout(reg) a_9,
                        inout(reg) a_12,
                        options(pure, readonly, nostack, preserves_flags)
                    );
                } else {
                    a_0 = a_0.wrapping_add(stride);
                }
                b = b.add(t.b_stride);
            }
        }
        let mut masks = [0xffff as __mmask16; V];
        masks[V - 1] = (0xffff_u32 >> (16 * V - t.cols)) as __mmask16;
        finish_tile!(
            t,
            acc,
            masks,
            16,
            H,
            V,
            _mm512_setzero_ps,
            _mm512_add_ps,
            _mm512_max_ps,
            load_masked,
            store_masked,
            _mm512_storeu_ps
        );
    }
}

static KERNELS: [[[TileFn; 2]; 14]; 2] =
    [kernels!(false: 1 2 3 4 5 6 7 8 9 10 11 12 13 14), kernels!(true: 1 2 3 4 5 6 7 8 9 10 11 12 13 14)];

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    (0xffff_u32 >> (16 - n)) as __mmask16
}

/// Up to 16 numbers as floats, zero beyond the mask.
#[inline(always)]
unsafe fn load<T: Scalar>(src: *const T, m: __mmask16) -> __m512 {
    // SAFETY: the caller gives readable memory wherever the mask is set, on a processor with AVX-512.
    unsafe {
        match T::KIND {
            Kind::F32 => _mm512_maskz_loadu_ps(m, src.cast()),
            Kind::Bf16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, src.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            Kind::F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, src.cast())),
        }
    }
}

#[inline(always)]
unsafe fn store<T: Scalar>(dst: *mut T, m: __mmask16, value: __m512) {
    // SAFETY: the caller gives writable memory wherever the mask is set, on a processor with AVX-512.
    unsafe {
        match T::KIND {
            Kind::F32 => _mm512_mask_storeu_ps(dst.cast(), m, value),
            Kind::Bf16 => {
                // Round to nearest even by adding half of the lost part; a NaN keeps its sign and gets a quiet bit.
                let bits = _mm512_castps_si512(value);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let round = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
                let nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
                let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
                let top = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(is_nan, round, nan));
                _mm256_mask_storeu_epi16(dst.cast(), m, _mm512_cvtepi32_epi16(top));
            }
            Kind::F16 => {
                let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value);
                _mm256_mask_storeu_epi16(dst.cast(), m, half);
            }
        }
    }
}

/// The transpose of a 16 by 16 block held in registers.
#[inline(always)]
unsafe fn transpose_16(r: &mut [__m512; 16]) {
    // SAFETY: only register operations, on a processor with AVX-512.
    unsafe {
        let mut t = *r;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..4 {
            let (a, b) = (4 * i, 4 * i + 2);
            for half in 0..2 {
                let (lo, hi) = (_mm512_castps_pd(t[a + half]), _mm512_castps_pd(t[b + half]));
                r[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
                r[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
            }
        }
        // Now r[4i + j] holds column j of every lane for rows 4i..4i+4; gather the lanes.
        for j in 0..4 {
            let a = _mm512_shuffle_f32x4::<0x88>(r[j], r[4 + j]);
            let b = _mm512_shuffle_f32x4::<0xdd>(r[j], r[4 + j]);
            let c = _mm512_shuffle_f32x4::<0x88>(r[8 + j], r[12 + j]);
            let d = _mm512_shuffle_f32x4::<0xdd>(r[8 + j], r[12 + j]);
            t[j] = _mm512_shuffle_f32x4::<0x88>(a, c);
            t[4 + j] = _mm512_shuffle_f32x4::<0x88>(b, d);
            t[8 + j] = _mm512_shuffle_f32x4::<0xdd>(a, c);
            t[12 + j] = _mm512_shuffle_f32x4::<0xdd>(b, d);
        }
        *r = t;
    }
}

// SAFETY: (of the functions below) the bounds are those of the trait; masks keep the tails inside them.
impl Simd for Avx512 {
    const LANES: usize = 16;
    const KERNELS: [&'static [[TileFn; 2]]; 2] = [&KERNELS[0], &KERNELS[1]];

    #[inline(always)]
    unsafe fn widen_vector<T: Scalar>(src: *const T, dst: *mut f32) {
        // SAFETY: the caller gives sixteen readable and writable numbers.
        unsafe { _mm512_storeu_ps(dst, load(src, 0xffff)) }
    }

    #[inline(always)]
    unsafe fn widen_group<T: Scalar>(src: *const T, dst: *mut f32, n: usize) {
        // SAFETY: the caller gives `n <= 16` readable and writable numbers.
        unsafe {
            let m = mask(n);
            _mm512_mask_storeu_ps(dst, m, load(src, m));
        }
    }

    #[inline(always)]
    unsafe fn narrow<T: Scalar>(src: *const f32, dst: *mut T, n: usize) {
        // SAFETY: the caller gives `n` readable and writable numbers.
        unsafe {
            for i in (0..n).step_by(16) {
                let m = mask((n - i).min(16));
                store(dst.add(i), m, _mm512_maskz_loadu_ps(m, src.add(i)));
            }
        }
    }

    #[inline(always)]
    unsafe fn transpose<T: Scalar>(src: (*const T, usize), n_k: usize, n_j: usize, dst: (*mut f32, usize)) {
        let ((src, ld), (dst, stride)) = (src, dst);
        // SAFETY: the caller gives `n_j` rows of `n_k` numbers and `n_k` rows of 16 floats.
        unsafe {
            for k in (0..n_k).step_by(16) {
                let (left, m) = ((n_k - k).min(16), mask((n_k - k).min(16)));
                let mut r = [_mm512_setzero_ps(); 16];
                if n_j == 16 {
                    for j in 0..16 {
                        r[j] = load(src.add(j * ld + k), m);
                    }
                } else {
                    for j in 0..n_j {
                        r[j] = load(src.add(j * ld + k), m);
                    }
                }
                transpose_16(&mut r);
                if left == 16 {
                    for i in 0..16 {
                        _mm512_storeu_ps(dst.add((k + i) * stride), r[i]);
                    }
                } else {
                    for i in 0..left {
                        _mm512_storeu_ps(dst.add((k + i) * stride), r[i]);
                    }
                }
            }
        }
    }
}
