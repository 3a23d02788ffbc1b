//! Convolutions and fully connected layers with packed weights, by the vector instructions of x86-64: AVX-512 or AVX2 for floats, VNNI for bytes.
//!
//! Weights lie in panels of 16 channels. A tile of pixels is computed at once: for each tap of the window a row of each pixel (or a row of
//! zeros, where the window reaches over the border) is multiplied with the panel's rows, and sums stay in registers until they are results.

mod depthwise;
mod tiles;

pub use depthwise::run_depthwise;

use tiles::{bytes_vnni, floats_avx2, floats_wide};

use super::conv::Numbers;
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

impl Packed {
    /// The panels, in order, of so many numbers each.
    fn panels<'s, T>(&self, store: &'s [T], length: usize) -> impl Iterator<Item = (usize, &'s [T])> {
        store[self.start..].chunks_exact(length).take(self.channels.div_ceil(LANES)).enumerate()
    }
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

#[cfg(test)]
mod tests {
    use super::super::conv::Floats;
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
