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
    unsafe fn xor(a: Self::Whole, b: Self::Whole) -> Self::Whole;
    /// Adds to each lane four products of an unsigned byte and a signed one.
    unsafe fn plus_four(sum: Self::Whole, unsigned: Self::Whole, signed: Self::Whole) -> Self::Whole;
    /// One, three or four rows of sixteen bytes, of which `count` are there, as sixteen lanes of so many bytes; the others of a lane are any.
    unsafe fn interleave<const ROWS: usize>(rows: [*const u8; ROWS], count: usize) -> Self::Whole;
    unsafe fn put_whole(to: *mut i32, value: Self::Whole);
    /// Sixteen rows of sixteen times four bytes as sixteen lines with four bytes of each row.
    unsafe fn turn(rows: [*const u8; LANES], to: *mut u8);
    /// Writes the first `count` sums as bytes: scaled, rounded to the nearest, halves to even.
    unsafe fn put_bytes(to: *mut u8, sums: Self::Whole, scales: Self::Floats, by: Rounding, count: usize);
}

/// Asks for the line that will be read soon behind one that is read now; any address may be asked for.
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
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn plus_four(sum: __m512i, unsigned: __m512i, signed: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_dpbusd_epi32(sum, unsigned, signed) }
    }

    #[inline(always)]
    unsafe fn interleave<const ROWS: usize>(rows: [*const u8; ROWS], count: usize) -> __m512i {
        // SAFETY: see above; lanes beyond the count are not read.
        unsafe {
            let load = |row: *const u8| match count {
                LANES.. => _mm_loadu_si128(row.cast()),
                _ => _mm_maskz_loadu_epi8(mask(count), row.cast()),
            };
            let first = load(rows[0]);
            if ROWS == 1 {
                return _mm512_cvtepu8_epi32(first);
            }
            let mut all = _mm512_castsi128_si512(first);
            all = _mm512_inserti32x4::<1>(all, load(rows[1]));
            all = _mm512_inserti32x4::<2>(all, load(rows[2]));
            if ROWS == 4 {
                all = _mm512_inserti32x4::<3>(all, load(rows[3]));
            }
            let by_lane = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let turn =
                _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
            _mm512_shuffle_epi8(_mm512_permutexvar_epi32(by_lane, all), turn)
        }
    }

    #[inline(always)]
    unsafe fn put_whole(to: *mut i32, value: __m512i) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(to.cast(), value) }
    }

    #[inline(always)]
    unsafe fn turn(rows: [*const u8; LANES], to: *mut u8) {
        // SAFETY: see above.
        unsafe {
            let mut now = rows.map(|row| _mm512_loadu_si512(row.cast()));
            // Words of neighbours, then pairs of words: four rows of four words each within every quarter of a register.
            for at in (0..LANES).step_by(2) {
                let (a, b) = (now[at], now[at + 1]);
                (now[at], now[at + 1]) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            }
            for at in (0..LANES).step_by(4) {
                let [a, b, c, d] = [now[at], now[at + 1], now[at + 2], now[at + 3]];
                now[at] = _mm512_unpacklo_epi64(a, c);
                now[at + 1] = _mm512_unpackhi_epi64(a, c);
                now[at + 2] = _mm512_unpacklo_epi64(b, d);
                now[at + 3] = _mm512_unpackhi_epi64(b, d);
            }
            // Quarters of four registers, which hold the same words of four rows each, change their places.
            for at in 0..4 {
                let [a, b, c, d] = [now[at], now[at + 4], now[at + 8], now[at + 12]];
                let (ab_even, ab_odd) =
                    (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
                let (cd_even, cd_odd) =
                    (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
                let lines = [
                    _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even),
                    _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd),
                    _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even),
                    _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd),
                ];
                for (quarter, line) in lines.into_iter().enumerate() {
                    _mm512_storeu_si512(to.add(64 * (4 * quarter + at)).cast(), line);
                }
            }
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
}
