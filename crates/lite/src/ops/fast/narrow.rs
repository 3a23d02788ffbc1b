//! Sixteen lanes in two registers of AVX2.

use core::arch::x86_64::*;

use super::lanes::{LANES, Lanes};
use crate::quant::Rounding;

/// AVX2, with sums of four products of bytes or without.
#[derive(Clone, Copy)]
pub struct Narrow<const VNNI: bool>;

impl<const VNNI: bool> Narrow<VNNI> {
    #[inline(always)]
    unsafe fn both<T: Copy>(a: [T; 2], b: [T; 2], f: impl Fn(T, T) -> T) -> [T; 2] {
        [f(a[0], b[0]), f(a[1], b[1])]
    }
}

// SAFETY of all blocks below: the trait asks for the instructions and for pointers to as many numbers as are read or written.
impl<const VNNI: bool> Lanes for Narrow<VNNI> {
    type Floats = [__m256; 2];
    type Whole = [__m256i; 2];

    #[inline(always)]
    unsafe fn floats(from: *const f32) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn some_floats(from: *const f32, count: usize) -> [__m256; 2] {
        let mut all = [0.0f32; LANES];
        // SAFETY: see above; what is copied is within both.
        unsafe {
            if count >= LANES {
                return Self::floats(from);
            }
            core::ptr::copy_nonoverlapping(from.cast::<u8>(), all.as_mut_ptr().cast(), 4 * count);
            Self::floats(all.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn all_floats(value: f32) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_set1_ps(value); 2] }
    }

    #[inline(always)]
    unsafe fn plus_product(sum: [__m256; 2], a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], sum[0]), _mm256_fmadd_ps(a[1], b[1], sum[1])] }
    }

    #[inline(always)]
    unsafe fn clamp(value: [__m256; 2], low: f32, high: f32) -> [__m256; 2] {
        // SAFETY: see above.
        unsafe {
            value.map(|value| _mm256_min_ps(_mm256_max_ps(value, _mm256_set1_ps(low)), _mm256_set1_ps(high)))
        }
    }

    #[inline(always)]
    unsafe fn put_floats(to: *mut f32, value: [__m256; 2], count: usize) {
        // SAFETY: see above; what is copied is within both.
        unsafe {
            let mut all = [0.0f32; LANES];
            let at = if count >= LANES { to } else { all.as_mut_ptr() };
            _mm256_storeu_ps(at, value[0]);
            _mm256_storeu_ps(at.add(8), value[1]);
            if count < LANES {
                core::ptr::copy_nonoverlapping(all.as_ptr().cast::<u8>(), to.cast(), 4 * count);
            }
        }
    }

    #[inline(always)]
    unsafe fn whole(from: *const u8) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
    }

    #[inline(always)]
    unsafe fn all_whole(value: i32) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { [_mm256_set1_epi32(value); 2] }
    }

    #[inline(always)]
    unsafe fn plus(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { Self::both(a, b, |a, b| _mm256_add_epi32(a, b)) }
    }

    #[inline(always)]
    unsafe fn xor(a: [__m256i; 2], b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { Self::both(a, b, |a, b| _mm256_xor_si256(a, b)) }
    }

    #[inline(always)]
    unsafe fn plus_four(sum: [__m256i; 2], unsigned: [__m256i; 2], signed: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe {
            if VNNI {
                return [
                    _mm256_dpbusd_avx_epi32(sum[0], unsigned[0], signed[0]),
                    _mm256_dpbusd_avx_epi32(sum[1], unsigned[1], signed[1]),
                ];
            }
            let low = _mm256_set1_epi16(0xff);
            // Two products of sixteen bits are added exactly; of bytes they would be cut off.
            let products = Self::both(unsigned, signed, |u, s| {
                let even = _mm256_madd_epi16(
                    _mm256_and_si256(u, low),
                    _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(s)),
                );
                let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(u), _mm256_srai_epi16::<8>(s));
                _mm256_add_epi32(even, odd)
            });
            Self::plus(sum, products)
        }
    }

    #[inline(always)]
    unsafe fn interleave<const ROWS: usize>(rows: [*const u8; ROWS], count: usize) -> [__m256i; 2] {
        // SAFETY: see above; bytes beyond the count are not read.
        unsafe {
            let load = |row: *const u8| {
                if count >= LANES {
                    return _mm_loadu_si128(row.cast());
                }
                let mut all = [0u8; LANES];
                core::ptr::copy_nonoverlapping(row, all.as_mut_ptr(), count);
                _mm_loadu_si128(all.as_ptr().cast())
            };
            let a = load(rows[0]);
            if ROWS == 1 {
                return [_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(a, a))];
            }
            let (b, c) = (load(rows[1]), load(rows[2]));
            let d = if ROWS == 4 { load(rows[3]) } else { c };
            let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
            let first = _mm256_set_m128i(_mm_unpackhi_epi16(ab, cd), _mm_unpacklo_epi16(ab, cd));
            let (ab, cd) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
            [first, _mm256_set_m128i(_mm_unpackhi_epi16(ab, cd), _mm_unpacklo_epi16(ab, cd))]
        }
    }

    #[inline(always)]
    unsafe fn put_whole(to: *mut i32, value: [__m256i; 2]) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_si256(to.cast(), value[0]);
            _mm256_storeu_si256(to.add(8).cast(), value[1]);
        }
    }

    #[inline(always)]
    unsafe fn turn(rows: [*const u8; LANES], to: *mut u8) {
        // SAFETY: see above.
        unsafe {
            // Four rows by four words at once.
            for row in (0..LANES).step_by(4) {
                for word in (0..LANES).step_by(4) {
                    let load = |row: *const u8| _mm_loadu_si128(row.add(4 * word).cast());
                    let [a, b, c, d] = [rows[row], rows[row + 1], rows[row + 2], rows[row + 3]].map(load);
                    let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
                    let (ab_high, cd_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
                    let lines = [
                        _mm_unpacklo_epi64(ab, cd),
                        _mm_unpackhi_epi64(ab, cd),
                        _mm_unpacklo_epi64(ab_high, cd_high),
                        _mm_unpackhi_epi64(ab_high, cd_high),
                    ];
                    for (line, value) in lines.into_iter().enumerate() {
                        _mm_storeu_si128(to.add(64 * (word + line) + 4 * row).cast(), value);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn put_bytes(to: *mut u8, sums: [__m256i; 2], scales: [__m256; 2], by: Rounding, count: usize) {
        // SAFETY: see above; what is copied is within both.
        unsafe {
            let finish = |sums: __m256i, scales: __m256| {
                let value = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scales);
                let value = _mm256_max_ps(value, _mm256_set1_ps(by.low));
                let value = _mm256_min_ps(value, _mm256_set1_ps(by.high));
                _mm256_add_epi32(_mm256_cvtps_epi32(value), _mm256_set1_epi32(by.zero))
            };
            let words = _mm256_packs_epi32(finish(sums[0], scales[0]), finish(sums[1], scales[1]));
            // Of both halves of each register, one after the other.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            if count >= LANES {
                _mm_storeu_si128(to.cast(), bytes);
            } else {
                let mut all = [0u8; LANES];
                _mm_storeu_si128(all.as_mut_ptr().cast(), bytes);
                core::ptr::copy_nonoverlapping(all.as_ptr(), to, count);
            }
        }
    }
}
