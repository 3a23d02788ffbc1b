//! Convolutions and fully connected layers with packed weights, by the vector instructions of x86-64: AVX-512 or AVX2 for floats, VNNI for bytes.
//!
//! Weights lie in panels of 16 channels. A tile of pixels is computed at once: for each tap of the window a row of each pixel (or a row of
//! zeros, where the window reaches over the border) is multiplied with the panel's rows, and sums stay in registers until they are results.

use core::arch::x86_64::*;

use super::conv::{Bytes, Floats, Numbers};
use super::store::Store;
use crate::bytes::{chunks, f, half, i, s};
use crate::schema::Type;
use crate::tensor::Tensor;

/// Channels of a panel.
const LANES: usize = 16;
/// Pixels of a tile.
const TILE: usize = 8;
/// Taps of a window, at most.
const TAPS: usize = 64;

/// What the processor can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing that is used here.
    Plain,
    /// AVX2 and fused multiplication: floats.
    Avx2,
    /// AVX-512 with VNNI: floats and bytes.
    Vnni,
}

impl Level {
    /// Asks the processor.
    pub fn detect() -> Self {
        let wide = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        if wide {
            Self::Vnni
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            Self::Avx2
        } else {
            Self::Plain
        }
    }
}

/// Where packed weights lie in the store.
#[derive(Clone, Copy, Debug)]
pub struct Packed {
    taps: usize,
    deep: usize,
    channels: usize,
    /// The first panel, in floats or bytes; a row of zeros lies before it.
    start: usize,
    /// The first of what is added to sums of bytes.
    sums: usize,
    level: Level,
}

/// Packs weights that lie as channels of taps of rows, if that is asked for, possible and within the store's bounds.
pub fn pack(
    store: &mut Store,
    numbers: &Numbers,
    weights: &Tensor<'_>,
    bias: Option<&Tensor<'_>>,
    [taps, deep, channels]: [usize; 3],
) -> Option<Packed> {
    let level = if store.pack { Level::detect() } else { return None };
    let data = weights.constant()?;
    let bias = match bias {
        Some(bias) => Some(bias.constant()?),
        None => None,
    };
    let panels = channels.div_ceil(LANES);
    if taps > TAPS || level == Level::Plain {
        return None;
    }
    match numbers {
        Numbers::Floats(floats) => {
            let count = (panels * LANES).checked_mul(taps * deep + 1)?.checked_add(deep)?;
            if !store.may_pack(count.checked_mul(4)?) {
                return None;
            }
            let weight = |channel: usize, at: usize| {
                let at = channel * taps * deep + at;
                match floats.weights {
                    Type::F32 => f(chunks::<4>(data)[at]),
                    Type::F16 => half(chunks::<2>(data)[at]),
                    _ => s(data[at]) as f32,
                }
            };
            let start = store.floats.len() + deep;
            store.floats.reserve_exact(count);
            store.floats.resize(start, 0.0);
            for panel in 0..panels {
                let of = |lane: usize| Some(panel * LANES + lane).filter(|channel| *channel < channels);
                for lane in 0..LANES {
                    store.floats.push(of(lane).map_or(0.0, |channel| floats.bias(bias, channel)));
                }
                for at in 0..taps * deep {
                    for lane in 0..LANES {
                        let value = of(lane).map_or(0.0, |channel| {
                            let scale = if floats.weights == Type::I8 {
                                store.reals[floats.scales + channel]
                            } else {
                                1.0
                            };
                            weight(channel, at) * scale
                        });
                        store.floats.push(value);
                    }
                }
            }
            Some(Packed { taps, deep, channels, start, sums: 0, level })
        }
        Numbers::Bytes(bytes) => {
            let count = (panels * LANES).checked_mul(taps * deep.next_multiple_of(4))?.checked_add(deep)?;
            if level != Level::Vnni || !store.may_pack(count.checked_add(panels * LANES * 4)?) {
                return None;
            }
            let start = store.bytes.len() + deep;
            store.bytes.reserve_exact(count);
            // What is outside the picture is the byte of zero.
            store.bytes.resize(start, bytes.in_zero as i8);
            let sums = store.sums.len();
            store.sums.reserve_exact(panels * LANES);
            for panel in 0..panels {
                let row = |lane: usize| {
                    let channel = panel * LANES + lane;
                    data.get(channel * taps * deep..(channel + 1) * taps * deep)
                        .filter(|_| channel < channels)
                };
                for lane in 0..LANES {
                    let all =
                        row(lane).map_or(0, |row| row.iter().fold(0i32, |sum, w| sum.wrapping_add(s(*w))));
                    let bias = match (bias, row(lane)) {
                        (Some(bias), Some(_)) => i(chunks::<4>(bias)[panel * LANES + lane]),
                        _ => 0,
                    };
                    // Bytes are multiplied as unsigned ones, 128 more than they are.
                    store.sums.push(bias.wrapping_sub(all.wrapping_mul(128 + bytes.in_zero)));
                }
                for tap in 0..taps {
                    for four in 0..deep.div_ceil(4) {
                        for lane in 0..LANES {
                            for k in 4 * four..4 * four + 4 {
                                let weight =
                                    row(lane).filter(|_| k < deep).map_or(0, |row| row[tap * deep + k]);
                                store.bytes.push(weight as i8);
                            }
                        }
                    }
                }
            }
            Some(Packed { taps, deep, channels, start, sums, level })
        }
    }
}

/// Where a tap of a window begins in the operand; none outside the picture.
pub type Tap = Option<usize>;

/// Computes all pixels. `locate` says where the taps of a pixel begin.
pub fn run(
    packed: &Packed,
    store: &Store,
    numbers: &Numbers,
    out: &mut [u8],
    x: &[u8],
    locate: impl Fn(usize, &mut [Tap]),
) {
    let width = if matches!(numbers, Numbers::Floats(_)) { 4 } else { 1 };
    let row = packed.channels * width;
    let zeros: *const u8 = match numbers {
        Numbers::Floats(_) => store.floats[packed.start - packed.deep..].as_ptr().cast(),
        Numbers::Bytes(_) => store.bytes[packed.start - packed.deep..].as_ptr().cast(),
    };
    let mut rows = [[zeros; TILE]; TAPS];
    let mut taps = [None; TAPS];
    let pixels = out.len() / row;
    let mut pixel = 0;
    while pixel < pixels {
        let tile = match pixels - pixel {
            left if left >= TILE => TILE,
            left if left >= 4 => 4,
            _ => 1,
        };
        for lane in 0..tile {
            locate(pixel + lane, &mut taps[..packed.taps]);
            for (rows, tap) in rows.iter_mut().zip(&taps[..packed.taps]) {
                rows[lane] = match tap {
                    // The slice is as long as what is read through the pointer.
                    Some(from) => x[from * width..(from + packed.deep) * width].as_ptr(),
                    None => zeros,
                };
            }
        }
        let out = &mut out[pixel * row..(pixel + tile) * row];
        let rows = &rows[..packed.taps];
        // SAFETY: the processor has the instructions of the level; every row has `deep` numbers, each panel as many as `pack` wrote.
        unsafe {
            match (numbers, packed.level, tile) {
                (Numbers::Floats(floats), Level::Vnni, TILE) => {
                    floats_wide::<TILE>(packed, store, floats, rows, out)
                }
                (Numbers::Floats(floats), Level::Vnni, 4) => {
                    floats_wide::<4>(packed, store, floats, rows, out)
                }
                (Numbers::Floats(floats), Level::Vnni, _) => {
                    floats_wide::<1>(packed, store, floats, rows, out)
                }
                (Numbers::Floats(floats), _, TILE) => {
                    floats_avx2::<4>(packed, store, floats, rows, 0, out);
                    floats_avx2::<4>(packed, store, floats, rows, 4, &mut out[4 * row..]);
                }
                (Numbers::Floats(floats), _, 4) => floats_avx2::<4>(packed, store, floats, rows, 0, out),
                (Numbers::Floats(floats), _, _) => floats_avx2::<1>(packed, store, floats, rows, 0, out),
                (Numbers::Bytes(bytes), _, TILE) => bytes_vnni::<TILE>(packed, store, bytes, rows, out),
                (Numbers::Bytes(bytes), _, 4) => bytes_vnni::<4>(packed, store, bytes, rows, out),
                (Numbers::Bytes(bytes), _, _) => bytes_vnni::<1>(packed, store, bytes, rows, out),
            }
        }
        pixel += tile;
    }
}

/// The bits of the first `count` lanes.
fn mask(count: usize) -> u16 {
    if count >= LANES { u16::MAX } else { (1 << count) - 1 }
}

/// # Safety
/// The processor has AVX-512; each of `rows` points to `deep` floats; `out` has `P` rows of `channels`.
#[target_feature(enable = "avx512f")]
unsafe fn floats_wide<const P: usize>(
    packed: &Packed,
    store: &Store,
    floats: &Floats,
    rows: &[[*const u8; TILE]],
    out: &mut [u8],
) {
    let panel_floats = LANES * (packed.taps * packed.deep + 1);
    for (panel, weights) in store.floats[packed.start..]
        .chunks_exact(panel_floats)
        .take(packed.channels.div_ceil(LANES))
        .enumerate()
    {
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
unsafe fn floats_avx2<const P: usize>(
    packed: &Packed,
    store: &Store,
    floats: &Floats,
    rows: &[[*const u8; TILE]],
    first: usize,
    out: &mut [u8],
) {
    let panel_floats = LANES * (packed.taps * packed.deep + 1);
    for (panel, weights) in store.floats[packed.start..]
        .chunks_exact(panel_floats)
        .take(packed.channels.div_ceil(LANES))
        .enumerate()
    {
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
unsafe fn bytes_vnni<const P: usize>(
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
    for (panel, weights) in store.bytes[packed.start..]
        .chunks_exact(panel_bytes)
        .take(packed.channels.div_ceil(LANES))
        .enumerate()
    {
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
fn scale(sums: __m512i, multiplier: __m512i, shift: __m512i) -> __m512i {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Options;
    use crate::tensor::{Place, Shape};

    /// Both levels of floats, and sums by hand, for sizes around those of tiles and panels.
    #[test]
    fn levels_agree() {
        let numbers = Numbers::Floats(Floats {
            weights: Type::F32,
            bias: Type::F32,
            scales: 0,
            low: -3.0,
            high: f32::INFINITY,
        });
        let as_bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
        let values = |count: usize| -> Vec<f32> {
            (0..count).map(|k| ((k * 37 % 101) as f32 - 50.0) / 50.0).collect()
        };
        for (pixels, deep, channels) in [(1, 5, 3), (13, 7, 16), (9, 3, 17), (20, 16, 40)] {
            let (x, w, bias) = (values(pixels * deep), values(channels * deep), values(channels));
            let (x_bytes, w_bytes, bias_bytes) = (as_bytes(&x), as_bytes(&w), as_bytes(&bias));
            let tensor = |dims: &[usize], data| Tensor {
                shape: Shape::new(dims.iter().copied()).unwrap(),
                kind: Type::F32,
                bytes: 0,
                place: Place::File(data),
                name: "",
                scales: &[],
                zeros: &[],
                axis: 0,
            };
            let mut store = Store::new(1 << 16, Options { pack_weights: true });
            let weights = tensor(&[channels, deep], &w_bytes);
            let bias_tensor = tensor(&[channels], &bias_bytes);
            let packed = pack(&mut store, &numbers, &weights, Some(&bias_tensor), [1, deep, channels]);
            let Some(packed) = packed else {
                assert_eq!(Level::detect(), Level::Plain);
                continue;
            };
            for level in [Level::Avx2, Level::Vnni].into_iter().filter(|level| *level <= Level::detect()) {
                let mut out = alloc::vec![0; pixels * channels * 4];
                let packed = Packed { level, ..packed };
                run(&packed, &store, &numbers, &mut out, &x_bytes, |row, taps| taps[0] = Some(row * deep));
                for (at, out) in chunks::<4>(&out).iter().enumerate() {
                    let (row, channel) = (at / channels, at % channels);
                    let sum: f32 = (0..deep).map(|k| x[row * deep + k] * w[channel * deep + k]).sum();
                    let expected = (sum + bias[channel]).max(-3.0);
                    assert!((f(*out) - expected).abs() < 1e-5, "{level:?} {pixels} {deep} {channels}: {at}");
                }
            }
        }
    }
}
