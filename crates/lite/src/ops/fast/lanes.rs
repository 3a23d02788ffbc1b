//! Sixteen lanes of floats or whole numbers in one register or two: what kernels are written over.

use core::arch::x86_64::*;

use crate::quant::Rounding;

/// How many lanes there are.
pub const LANES: usize = 16;

/// Sixteen lanes. Every function asks that the processor has the instructions of the type, and that pointers are those of as many numbers
/// as are read or written. All of them are inlined into a function that enables the instructions.
pub trait Lanes: Copy {
    type Floats: Copy;
    type Whole: Copy;

    unsafe fn floats(from: *const f32) -> Self::Floats;
    unsafe fn some_floats(from: *const f32, count: usize) -> Self::Floats;
    unsafe fn all_floats(value: f32) -> Self::Floats;
    unsafe fn plus_product(sum: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn clamp(value: Self::Floats, low: f32, high: f32) -> Self::Floats;
    /// Writes the first `count` floats.
    unsafe fn put_floats(to: *mut f32, value: Self::Floats, count: usize);

    unsafe fn whole(from: *const u8) -> Self::Whole;
    unsafe fn all_whole(value: i32) -> Self::Whole;
    unsafe fn plus(a: Self::Whole, b: Self::Whole) -> Self::Whole;
    unsafe fn flip(a: Self::Whole) -> Self::Whole;
    /// Adds to each lane four products of an unsigned byte and a signed one.
    unsafe fn plus_four(sum: Self::Whole, unsigned: Self::Whole, signed: Self::Whole) -> Self::Whole;
    /// Four rows of sixteen bytes, of which `count` are there, as sixteen lanes of four bytes.
    unsafe fn interleave(rows: [*const u8; 4], count: usize) -> Self::Whole;
    /// Writes the first `count` sums as bytes: scaled, rounded to the nearest, halves to even.
    unsafe fn put_bytes(to: *mut u8, sums: Self::Whole, scales: Self::Floats, by: Rounding, count: usize);
    /// The sum of so many signed bytes.
    unsafe fn sum(bytes: *const u8, count: usize) -> i32;
}

/// Asks for a line that will be read soon; any address may be asked for.
#[inline(always)]
pub fn soon(from: *const u8) {
    // SAFETY: nothing is read.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast()) }
}

/// How many bytes ahead of what is read weights are asked for.
const AHEAD: usize = 1024;

/// AVX-512 with VNNI.
#[derive(Clone, Copy)]
pub struct Wide;

fn mask(count: usize) -> u16 {
    if count >= LANES { u16::MAX } else { (1 << count) - 1 }
}

// SAFETY of all blocks below: the trait asks for the instructions and for pointers to as many numbers as are read or written.
impl Lanes for Wide {
    type Floats = __m512;
    type Whole = __m512i;

    #[inline(always)]
    unsafe fn floats(from: *const f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn some_floats(from: *const f32, count: usize) -> __m512 {
        // SAFETY: see above; lanes beyond the count are not read.
        unsafe { _mm512_maskz_loadu_ps(mask(count), from) }
    }

    #[inline(always)]
    unsafe fn all_floats(value: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn plus_product(sum: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, sum) }
    }

    #[inline(always)]
    unsafe fn clamp(value: __m512, low: f32, high: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_min_ps(_mm512_max_ps(value, _mm512_set1_ps(low)), _mm512_set1_ps(high)) }
    }

    #[inline(always)]
    unsafe fn put_floats(to: *mut f32, value: __m512, count: usize) {
        // SAFETY: see above; lanes beyond the count are not written.
        unsafe {
            match count {
                LANES.. => _mm512_storeu_ps(to, value),
                _ => _mm512_mask_storeu_ps(to, mask(count), value),
            }
        }
    }

    #[inline(always)]
    unsafe fn whole(from: *const u8) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn all_whole(value: i32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn plus(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn flip(a: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(a, _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn plus_four(sum: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_dpbusd_epi32(sum, unsigned, signed) }
    }

    #[inline(always)]
    unsafe fn interleave(rows: [*const u8; 4], count: usize) -> __m512i {
        // SAFETY: see above; lanes beyond the count are not read.
        unsafe {
            let load = |row: *const u8| match count {
                LANES.. => _mm_loadu_si128(row.cast()),
                _ => _mm_maskz_loadu_epi8(mask(count), row.cast()),
            };
            let [a, b, c, d] = rows.map(load);
            let all = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
            let all = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(all, c), d);
            let by_lane = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let turn =
                _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
            _mm512_shuffle_epi8(_mm512_permutexvar_epi32(by_lane, all), turn)
        }
    }

    #[inline(always)]
    unsafe fn put_bytes(to: *mut u8, sums: __m512i, scales: __m512, by: Rounding, count: usize) {
        // SAFETY: see above; lanes beyond the count are not written.
        unsafe {
            let value = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scales);
            let value = _mm512_min_ps(_mm512_max_ps(value, _mm512_set1_ps(by.low)), _mm512_set1_ps(by.high));
            let value = _mm512_add_epi32(_mm512_cvtps_epi32(value), _mm512_set1_epi32(by.zero));
            let value = _mm512_cvtepi32_epi8(value);
            match count {
                LANES.. => _mm_storeu_si128(to.cast(), value),
                _ => _mm_mask_storeu_epi8(to.cast(), mask(count), value),
            }
        }
    }

    #[inline(always)]
    unsafe fn sum(bytes: *const u8, count: usize) -> i32 {
        // SAFETY: see above; bytes beyond the count are not read.
        unsafe {
            let ones = _mm512_set1_epi8(1);
            let mut sum = _mm512_setzero_si512();
            let mut at = 0;
            while at + 64 <= count {
                sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(bytes.add(at).cast()));
                at += 64;
            }
            if at < count {
                let last = _mm512_maskz_loadu_epi8((1u64 << (count - at)) - 1, bytes.add(at).cast());
                sum = _mm512_dpbusd_epi32(sum, ones, last);
            }
            _mm512_reduce_add_epi32(sum)
        }
    }
}

/// AVX2, with sums of four products of bytes or without.
#[derive(Clone, Copy)]
pub struct Narrow<const VNNI: bool>;

impl<const VNNI: bool> Narrow<VNNI> {
    #[inline(always)]
    unsafe fn both<T: Copy>(a: [T; 2], b: [T; 2], f: impl Fn(T, T) -> T) -> [T; 2] {
        [f(a[0], b[0]), f(a[1], b[1])]
    }
}

// SAFETY of all blocks below: as above.
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
    unsafe fn flip(a: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: see above.
        unsafe { a.map(|a| _mm256_xor_si256(a, _mm256_set1_epi8(-128))) }
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
    unsafe fn interleave(rows: [*const u8; 4], count: usize) -> [__m256i; 2] {
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
            let [a, b, c, d] = rows.map(load);
            let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
            let first = _mm256_set_m128i(_mm_unpackhi_epi16(ab, cd), _mm_unpacklo_epi16(ab, cd));
            let (ab, cd) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
            [first, _mm256_set_m128i(_mm_unpackhi_epi16(ab, cd), _mm_unpacklo_epi16(ab, cd))]
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

    #[inline(always)]
    unsafe fn sum(bytes: *const u8, count: usize) -> i32 {
        // SAFETY: see above; bytes beyond the count are not read.
        unsafe {
            let mut sums = _mm256_setzero_si256();
            let mut at = 0;
            while at + 32 <= count {
                let unsigned =
                    _mm256_xor_si256(_mm256_loadu_si256(bytes.add(at).cast()), _mm256_set1_epi8(-128));
                sums = _mm256_add_epi64(sums, _mm256_sad_epu8(unsigned, _mm256_setzero_si256()));
                at += 32;
            }
            let mut all = [0i64; 4];
            _mm256_storeu_si256(all.as_mut_ptr().cast(), sums);
            let sum = all.iter().sum::<i64>() - 128 * at as i64;
            let rest = (at..count).map(|at| i64::from(bytes.add(at).cast::<i8>().read())).sum::<i64>();
            (sum + rest) as i32
        }
    }
}
