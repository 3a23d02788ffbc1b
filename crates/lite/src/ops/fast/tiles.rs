//! A tile of pixels times all panels of weights: floats by AVX-512 and AVX2, bytes by VNNI.

use core::arch::x86_64::*;

use super::super::conv::{Bytes, Floats};
use super::super::store::Store;
use super::{LANES, Packed, TILE};

/// The bits of the first `count` lanes.
pub fn mask(count: usize) -> u16 {
    if count >= LANES { u16::MAX } else { (1 << count) - 1 }
}

/// # Safety
/// The processor has AVX-512; each of `rows` points to `deep` floats; `out` has `P` rows of `channels`.
#[target_feature(enable = "avx512f")]
pub unsafe fn floats_wide<const P: usize>(
    packed: &Packed,
    store: &Store,
    floats: &Floats,
    rows: &[[*const u8; TILE]],
    out: &mut [u8],
) {
    let panel_floats = LANES * (packed.taps * packed.deep + 1);
    for (panel, weights) in packed.panels(&store.floats, panel_floats) {
        // SAFETY: a panel is `panel_floats` long, and rows are as the caller promises.
        unsafe {
            let mut at = weights.as_ptr();
            let mut sums = [_mm512_loadu_ps(at); P];
            at = at.add(LANES);
            for row in rows {
                for k in 0..packed.deep {
                    let weights = _mm512_loadu_ps(at);
                    at = at.add(LANES);
                    for p in 0..P {
                        let x = _mm512_set1_ps(row[p].cast::<f32>().add(k).read_unaligned());
                        sums[p] = _mm512_fmadd_ps(x, weights, sums[p]);
                    }
                }
            }
            let (low, high) = (_mm512_set1_ps(floats.low), _mm512_set1_ps(floats.high));
            let lanes = mask(packed.channels - panel * LANES);
            for (p, sum) in sums.into_iter().enumerate() {
                let sum = _mm512_min_ps(_mm512_max_ps(sum, low), high);
                let to = out.as_mut_ptr().cast::<f32>().add(p * packed.channels + panel * LANES);
                _mm512_mask_storeu_ps(to, lanes, sum);
            }
        }
    }
}

/// # Safety
/// The processor has AVX2 and FMA; each of `rows`, from `first` on, points to `deep` floats; `out` has `P` rows of `channels`.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn floats_avx2<const P: usize>(
    packed: &Packed,
    store: &Store,
    floats: &Floats,
    rows: &[[*const u8; TILE]],
    first: usize,
    out: &mut [u8],
) {
    let panel_floats = LANES * (packed.taps * packed.deep + 1);
    for (panel, weights) in packed.panels(&store.floats, panel_floats) {
        // SAFETY: a panel is `panel_floats` long, and rows are as the caller promises.
        unsafe {
            let mut at = weights.as_ptr();
            let mut sums = [[_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))]; P];
            at = at.add(LANES);
            for row in rows {
                for k in 0..packed.deep {
                    let weights = [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))];
                    at = at.add(LANES);
                    for p in 0..P {
                        let x = _mm256_set1_ps(row[first + p].cast::<f32>().add(k).read_unaligned());
                        sums[p][0] = _mm256_fmadd_ps(x, weights[0], sums[p][0]);
                        sums[p][1] = _mm256_fmadd_ps(x, weights[1], sums[p][1]);
                    }
                }
            }
            let (low, high) = (_mm256_set1_ps(floats.low), _mm256_set1_ps(floats.high));
            let left = (packed.channels - panel * LANES).min(LANES);
            for (p, sums) in sums.into_iter().enumerate() {
                let mut values = [0.0f32; LANES];
                for (part, sum) in sums.into_iter().enumerate() {
                    let sum = _mm256_min_ps(_mm256_max_ps(sum, low), high);
                    _mm256_storeu_ps(values.as_mut_ptr().add(8 * part), sum);
                }
                let to = (p * packed.channels + panel * LANES) * 4;
                for (to, value) in out[to..to + 4 * left].chunks_exact_mut(4).zip(values) {
                    to.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
}

/// # Safety
/// The processor has AVX-512 with VNNI; each of `rows` points to `deep` bytes; `out` has `P` rows of `channels`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub unsafe fn bytes_vnni<const P: usize>(
    packed: &Packed,
    store: &Store,
    bytes: &Bytes,
    rows: &[[*const u8; TILE]],
    out: &mut [u8],
) {
    let fours = packed.deep.div_ceil(4);
    let panel_bytes = LANES * 4 * fours * packed.taps;
    let flip = _mm512_set1_epi8(-128);
    let (whole, rest) = (packed.deep / 4, packed.deep % 4);
    for (panel, weights) in packed.panels(&store.bytes, panel_bytes) {
        let left = (packed.channels - panel * LANES).min(LANES);
        let starts = &store.sums[packed.sums + panel * LANES..][..LANES];
        // SAFETY: a panel is `panel_bytes` long, rows are as the caller promises, and only bytes of a row are read.
        unsafe {
            let mut at = weights.as_ptr();
            let mut sums = [_mm512_loadu_si512(starts.as_ptr().cast()); P];
            for row in rows {
                for four in 0..whole {
                    let weights = _mm512_loadu_si512(at.cast());
                    at = at.add(64);
                    for p in 0..P {
                        let x = _mm512_set1_epi32(row[p].cast::<i32>().add(four).read_unaligned());
                        sums[p] = _mm512_dpbusd_epi32(sums[p], _mm512_xor_si512(x, flip), weights);
                    }
                }
                if rest > 0 {
                    let weights = _mm512_loadu_si512(at.cast());
                    at = at.add(64);
                    for p in 0..P {
                        let mut last = [0u8; 4];
                        core::ptr::copy_nonoverlapping(row[p].add(4 * whole), last.as_mut_ptr(), rest);
                        let x = _mm512_set1_epi32(i32::from_le_bytes(last));
                        sums[p] = _mm512_dpbusd_epi32(sums[p], _mm512_xor_si512(x, flip), weights);
                    }
                }
            }
            let mut scales = [[0i32; LANES]; 2];
            for (lane, scale) in store.scales[bytes.scales + panel * LANES..][..left].iter().enumerate() {
                (scales[0][lane], scales[1][lane]) = (scale.multiplier, scale.shift);
            }
            let multiplier = _mm512_loadu_si512(scales[0].as_ptr().cast());
            let shift = _mm512_loadu_si512(scales[1].as_ptr().cast());
            for (p, sum) in sums.into_iter().enumerate() {
                let value = scale(sum, multiplier, shift);
                let value = _mm512_add_epi32(value, _mm512_set1_epi32(bytes.out_zero));
                let value = _mm512_max_epi32(value, _mm512_set1_epi32(bytes.low));
                let value = _mm512_min_epi32(value, _mm512_set1_epi32(bytes.high));
                let to = out.as_mut_ptr().add(p * packed.channels + panel * LANES);
                _mm512_mask_cvtepi32_storeu_epi8(to.cast(), mask(left), value);
            }
        }
    }
}

/// `Scale::apply` of sixteen sums.
#[target_feature(enable = "avx512f")]
pub fn scale(sums: __m512i, multiplier: __m512i, shift: __m512i) -> __m512i {
    let zero = _mm512_setzero_si512();
    let left = _mm512_max_epi32(shift, zero);
    let right = _mm512_max_epi32(_mm512_sub_epi32(zero, shift), zero);
    let sums = _mm512_sllv_epi32(sums, left);
    let half = _mm512_set1_epi64(1 << 30);
    let even = _mm512_add_epi64(_mm512_mul_epi32(sums, multiplier), half);
    let odd = _mm512_mul_epi32(_mm512_srli_epi64::<32>(sums), _mm512_srli_epi64::<32>(multiplier));
    let odd = _mm512_add_epi64(odd, half);
    // The bits from 31 on: of even lanes moved down, of odd ones up into the upper half.
    let high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64::<31>(even), _mm512_slli_epi64::<1>(odd));
    let ones = _mm512_set1_epi32(1);
    let mask = _mm512_sub_epi32(_mm512_sllv_epi32(ones, right), ones);
    let negative = _mm512_srli_epi32::<31>(high);
    let threshold = _mm512_add_epi32(_mm512_srli_epi32::<1>(mask), negative);
    let up = _mm512_cmpgt_epi32_mask(_mm512_and_si512(high, mask), threshold);
    let shifted = _mm512_srav_epi32(high, right);
    _mm512_mask_add_epi32(shifted, up, shifted, ones)
}
