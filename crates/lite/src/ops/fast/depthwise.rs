//! Depthwise convolutions by AVX-512, sixteen channels at once, with weights where they lie.

use core::arch::x86_64::*;

use super::super::conv::{Bytes, Floats, Numbers};
use super::super::store::Store;
use super::tiles::{mask, scale};
use super::{LANES, Level, TAPS, Tap};
use crate::schema::Type;

/// Computes a depthwise convolution with a result for every channel of the operand; answers whether it could. `locate` says where the
/// taps of a pixel begin.
pub fn run_depthwise(
    store: &Store,
    numbers: &Numbers,
    [taps, channels]: [usize; 2],
    out: &mut [u8],
    [x, weights]: [&[u8]; 2],
    bias: Option<&[u8]>,
    locate: impl Fn(usize, &mut [Tap]),
) -> bool {
    let plain_floats = match numbers {
        Numbers::Floats(floats) => floats.weights == Type::F32 && floats.bias == Type::F32,
        Numbers::Bytes(_) => true,
    };
    if taps > TAPS || !plain_floats || Level::detect() != Level::Vnni {
        return false;
    }
    let width = if matches!(numbers, Numbers::Floats(_)) { 4 } else { 1 };
    let mut places = [None; TAPS];
    let mut rows = [(core::ptr::null(), core::ptr::null()); TAPS];
    for (pixel, out) in out.chunks_exact_mut(channels * width).enumerate() {
        locate(pixel, &mut places[..taps]);
        let mut count = 0;
        for (tap, from) in places[..taps].iter().enumerate().filter_map(|(tap, from)| Some((tap, (*from)?))) {
            // Both slices are as long as what is read through the pointers.
            let of_x = &x[from * width..(from + channels) * width];
            let of_weights = &weights[tap * channels * width..(tap + 1) * channels * width];
            rows[count] = (of_x.as_ptr(), of_weights.as_ptr());
            count += 1;
        }
        let bias = bias.map(|bias| &bias[..4 * channels]);
        // SAFETY: the processor has the instructions; rows, bias and result have `channels` numbers each.
        unsafe {
            match numbers {
                Numbers::Floats(floats) => depthwise_floats(floats, &rows[..count], bias, channels, out),
                Numbers::Bytes(bytes) => depthwise_bytes(store, bytes, &rows[..count], bias, channels, out),
            }
        }
    }
    true
}

/// # Safety
/// The processor has AVX-512; both pointers of each row, the bias and the result have `channels` floats.
#[target_feature(enable = "avx512f")]
unsafe fn depthwise_floats(
    floats: &Floats,
    rows: &[(*const u8, *const u8)],
    bias: Option<&[u8]>,
    channels: usize,
    out: &mut [u8],
) {
    let (low, high) = (_mm512_set1_ps(floats.low), _mm512_set1_ps(floats.high));
    for first in (0..channels).step_by(LANES) {
        let lanes = mask(channels - first);
        // SAFETY: lanes beyond the channels are neither read nor written.
        unsafe {
            let load = |from: *const u8| _mm512_maskz_loadu_ps(lanes, from.cast::<f32>().add(first));
            let mut sum = bias.map_or(_mm512_setzero_ps(), |bias| load(bias.as_ptr()));
            for (x, weights) in rows {
                sum = _mm512_fmadd_ps(load(*x), load(*weights), sum);
            }
            let sum = _mm512_min_ps(_mm512_max_ps(sum, low), high);
            _mm512_mask_storeu_ps(out.as_mut_ptr().cast::<f32>().add(first), lanes, sum);
        }
    }
}

/// # Safety
/// The processor has AVX-512 with its instructions for bytes; both pointers of each row and the result have `channels` bytes, the bias
/// as many numbers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn depthwise_bytes(
    store: &Store,
    bytes: &Bytes,
    rows: &[(*const u8, *const u8)],
    bias: Option<&[u8]>,
    channels: usize,
    out: &mut [u8],
) {
    let zero = _mm512_set1_epi32(bytes.in_zero);
    let low_half = _mm512_set1_epi32(0xffff);
    let scales = &store.scales[bytes.scales..bytes.scales + channels];
    for first in (0..channels).step_by(LANES) {
        let lanes = mask(channels - first);
        let mut parts = [[0i32; LANES]; 2];
        for (lane, scale) in scales[first..].iter().take(LANES).enumerate() {
            (parts[0][lane], parts[1][lane]) = (scale.multiplier, scale.shift);
        }
        // SAFETY: lanes beyond the channels are neither read nor written.
        unsafe {
            let load = |from: *const u8| {
                _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, from.cast::<i8>().add(first)))
            };
            let mut sum = bias.map_or(_mm512_setzero_si512(), |bias| {
                _mm512_maskz_loadu_epi32(lanes, bias.as_ptr().cast::<i32>().add(first))
            });
            for (x, weights) in rows {
                let x = _mm512_sub_epi32(load(*x), zero);
                // With an upper half of zeros, the product of the lower halves is what is left of a pair.
                let weights = _mm512_and_si512(load(*weights), low_half);
                sum = _mm512_add_epi32(sum, _mm512_madd_epi16(x, weights));
            }
            let multiplier = _mm512_loadu_si512(parts[0].as_ptr().cast());
            let value = scale(sum, multiplier, _mm512_loadu_si512(parts[1].as_ptr().cast()));
            let value = _mm512_add_epi32(value, _mm512_set1_epi32(bytes.out_zero));
            let value = _mm512_max_epi32(value, _mm512_set1_epi32(bytes.low));
            let value = _mm512_min_epi32(value, _mm512_set1_epi32(bytes.high));
            _mm512_mask_cvtepi32_storeu_epi8(out.as_mut_ptr().add(first).cast(), lanes, value);
        }
    }
}
