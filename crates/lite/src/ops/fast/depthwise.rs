//! Depthwise convolutions, sixteen channels of some pixels at once: those whose windows are not of a kind that `columns` is for.

use super::columns;
use super::cpu::Level;
use super::lanes::{LANES, Lanes, Wide};
use super::narrow::Narrow;
use super::panels::TAPS;
use super::rows::{Copies, Rows, TILE, Walk, next_tile};
use super::tiles::SIGNS;
use crate::error::{Error, Result};
use crate::ops::conv::Numbers;
use crate::ops::layer::Layer;
use crate::quant::Rounding;

/// What is computed of some pixels.
struct Strip<'r> {
    rows: &'r Rows,
    taps: usize,
    /// Panels, and how many bytes each has.
    panels: *const u8,
    panel_bytes: usize,
    channels: usize,
    out: *mut u8,
    low: f32,
    high: f32,
    rounding: Rounding,
}

/// Pixels of a strip, at most.
const STRIP: usize = 4;

type Kernel = unsafe fn(&Strip<'_>);

/// Computes a depthwise convolution with a result for every channel of the operand.
pub fn run_depthwise(layer: &Layer<'_>, numbers: &Numbers, out: &mut [u8]) -> Result<()> {
    if layer.packed.columns {
        return columns::run(layer, numbers, out);
    }
    let Layer { packed, store, window, x } = layer;
    let (width, (low, high), rounding, kernels) = match numbers {
        Numbers::Floats(floats) => {
            let kernels = if packed.level >= Level::Avx512 { FLOATS_WIDE } else { FLOATS_NARROW };
            (4, (floats.low, floats.high), Rounding { low: 0.0, high: 0.0, zero: 0 }, kernels)
        }
        Numbers::Bytes(bytes) => {
            let kernels = match packed.level {
                Level::Avx512 | Level::Amx => BYTES_WIDE,
                Level::AvxVnni => BYTES_NARROW_VNNI,
                _ => BYTES_NARROW,
            };
            (1, (0.0, 0.0), bytes.rounding(), kernels)
        }
    };
    let (row, pixels) = (packed.channels * width, out.len() / (packed.channels * width));
    let zeros: *const u8 = packed.zeros(store).as_ptr().cast();
    let mut rows = [[zeros; TILE]; TAPS];
    let mut copies = Copies::uninit();
    let mut walk = Walk::new(window, x, width, zeros, pixels, packed.taps, &mut copies)
        .ok_or(Error::Bug("an operand is shorter than its shape says"))?;
    let mut pixel = 0;
    while pixel < pixels {
        let count = next_tile(pixels - pixel, STRIP);
        walk.locate(count, 0, &mut rows);
        let out = &mut out[pixel * row..(pixel + count) * row];
        let strip = Strip {
            rows: &rows,
            taps: packed.taps,
            panels: packed.from(store, 0).as_ptr().cast(),
            panel_bytes: packed.panel * 64,
            channels: packed.channels,
            out: out.as_mut_ptr(),
            low,
            high,
            rounding,
        };
        // SAFETY: the processor has the level's instructions; rows and results have `channels` numbers each, and all panels were packed.
        unsafe { kernels[count - 1](&strip) };
        pixel += count;
    }
    Ok(())
}

/// # Safety
/// The processor has the instructions of the lanes; each row of the first `P` pixels and their results have `channels` floats.
#[inline(always)]
unsafe fn floats<V: Lanes, const P: usize>(strip: &Strip<'_>) {
    // SAFETY: as the caller promises; a panel has a line, and one more for each tap.
    unsafe {
        let out = strip.out.cast::<f32>();
        for (panel, first) in (0..strip.channels).step_by(LANES).enumerate() {
            let left = strip.channels - first;
            let weights = strip.panels.add(panel * strip.panel_bytes).cast::<f32>();
            let bias = V::floats(weights);
            let mut sums = [bias; P];
            macro_rules! taps {
                ($load:expr) => {
                    for tap in 0..strip.taps {
                        let rows = strip.rows.get_unchecked(tap);
                        let weights = V::floats(weights.add((tap + 1) * LANES));
                        for p in 0..P {
                            let x = $load(rows[p].cast::<f32>().add(first));
                            sums[p] = V::plus_product(sums[p], x, weights);
                        }
                    }
                };
            }
            if left >= LANES {
                taps!(|x| V::floats(x));
            } else {
                taps!(|x| V::some_floats(x, left));
            }
            for p in 0..P {
                let value = V::clamp(sums[p], strip.low, strip.high);
                V::put_floats(out.add(p * strip.channels + first), value, left);
            }
        }
    }
}

/// # Safety
/// As of floats, for bytes.
#[inline(always)]
unsafe fn bytes<V: Lanes, const P: usize>(strip: &Strip<'_>) {
    // SAFETY: as the caller promises; a panel has two lines, and one more for every four taps. Rows beyond the taps are any that are there:
    // their weights are zero.
    unsafe {
        let signs = V::whole(SIGNS.as_ptr());
        for (panel, first) in (0..strip.channels).step_by(LANES).enumerate() {
            let left = strip.channels - first;
            let panel = strip.panels.add(panel * strip.panel_bytes);
            let start = V::whole(panel);
            let mut sums = [start; P];
            macro_rules! taps {
                ($count:expr) => {
                    for four in 0..strip.taps.div_ceil(4) {
                        let weights = V::whole(panel.add((four + 2) * 64));
                        let rows: [&[*const u8; TILE]; 4] = core::array::from_fn(|k| {
                            strip.rows.get_unchecked((4 * four + k).min(strip.taps - 1))
                        });
                        for p in 0..P {
                            let x = V::interleave(rows.map(|row| row[p].add(first)), $count);
                            sums[p] = V::plus_four(sums[p], V::xor(x, signs), weights);
                        }
                    }
                };
            }
            if left >= LANES {
                taps!(LANES);
            } else {
                taps!(left);
            }
            let scales = V::floats(panel.add(64).cast());
            for p in 0..P {
                let to = strip.out.add(p * strip.channels + first);
                V::put_bytes(to, sums[p], scales, strip.rounding, left);
            }
        }
    }
}

macro_rules! kernels {
    ($lanes:ty, $features:literal, $floats:ident, $bytes:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $floats<const P: usize>(strip: &Strip<'_>) {
            // SAFETY: as the caller promises.
            unsafe { floats::<$lanes, P>(strip) }
        }

        #[target_feature(enable = $features)]
        unsafe fn $bytes<const P: usize>(strip: &Strip<'_>) {
            // SAFETY: as the caller promises.
            unsafe { bytes::<$lanes, P>(strip) }
        }
    };
}

kernels!(Wide, "avx512f,avx512bw,avx512vl,avx512vnni,fma,avx2", floats_wide, bytes_wide);
kernels!(Narrow<true>, "avx2,fma,avxvnni", _floats_narrow_vnni, bytes_narrow_vnni);
kernels!(Narrow<false>, "avx2,fma", floats_narrow, bytes_narrow);

/// Kernels for so many pixels each.
macro_rules! of_pixels {
    ($kernel:ident: $($pixels:literal)+) => {
        [$($kernel::<$pixels>),+]
    };
}

const FLOATS_WIDE: [Kernel; STRIP] = of_pixels!(floats_wide: 1 2 3 4);
const BYTES_WIDE: [Kernel; STRIP] = of_pixels!(bytes_wide: 1 2 3 4);
const FLOATS_NARROW: [Kernel; STRIP] = of_pixels!(floats_narrow: 1 2 3 4);
const BYTES_NARROW: [Kernel; STRIP] = of_pixels!(bytes_narrow: 1 2 3 4);
const BYTES_NARROW_VNNI: [Kernel; STRIP] = of_pixels!(bytes_narrow_vnni: 1 2 3 4);
