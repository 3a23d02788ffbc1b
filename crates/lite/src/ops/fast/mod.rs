//! Convolutions and fully connected layers with packed weights, by the vector instructions of x86-64 that the processor is asked for when a
//! model is loaded: AMX, AVX-512 with VNNI, AVX2 with VNNI, AVX2.
//!
//! Weights lie in panels of 16 channels. A tile of pixels is computed at once: for each tap of the window a row of each pixel (or a row of
//! zeros, where the window reaches over the border) is multiplied with the rows of some panels, and sums stay in registers until they are
//! results. Kernels are written once over sixteen lanes (`lanes.rs`). Whole numbers are the same in all of them.

mod amx;
mod byte_pairs;
mod columns;
mod cpu;
mod depthwise;
mod lanes;
mod lookup;
mod narrow;
mod pairs;
mod panels;
mod rows;
#[cfg(all(test, feature = "std"))]
mod tests;
mod tiles;

pub use cpu::widest;
pub use depthwise::run_depthwise;
pub use lookup::lookup;
pub use pairs::run_pair;
pub use panels::{Packed, pack, pack_depthwise, pack_taps, pack_window};

use cpu::Level;
use lanes::LANES;
use panels::TAPS;
use rows::{Copies, TILE, Walk, next_tile};
use tiles::{Kernels, Tile};

use super::conv::Numbers;
use super::layer::{Layer, Spread};
use crate::error::{Error, Result};
use crate::quant::Rounding;

/// So many bytes of panels are used for all pixels before the next ones are: they stay in the second cache.
const NEAR: usize = 512 << 10;

/// Computes all pixels.
pub fn run(layer: &Layer<'_>, numbers: &Numbers, out: &mut [u8]) -> Result<()> {
    if let (Numbers::Bytes(bytes), true) = (numbers, layer.packed.tiles) {
        return amx::run(layer, bytes, out);
    }
    let channels = layer.packed.channels;
    let pixels = out.len() / (channels * numbers.width());
    run_spread(layer, numbers, &Spread::dense(pixels, channels), pixels, out)
}

/// Computes so many pixels that need not lie one after the other, but in whole lines. Weights are not packed for tiles.
pub fn run_spread(
    layer: &Layer<'_>,
    numbers: &Numbers,
    spread: &Spread,
    pixels: usize,
    out: &mut [u8],
) -> Result<()> {
    let Layer { packed, store, window, x } = layer;
    let (width, kernels, (low, high), rounding) = match numbers {
        Numbers::Floats(floats) => {
            let kernels =
                if packed.level >= Level::Avx512 { tiles::FLOATS_WIDE } else { tiles::FLOATS_NARROW };
            (4, kernels, (floats.low, floats.high), Rounding { low: 0.0, high: 0.0, zero: 0 })
        }
        Numbers::Bytes(bytes) => {
            let kernels = match packed.level {
                Level::Avx512 | Level::Amx => tiles::BYTES_WIDE,
                Level::AvxVnni => tiles::BYTES_NARROW_VNNI,
                _ => tiles::BYTES_NARROW,
            };
            (1, kernels, (0.0, 0.0), bytes.rounding())
        }
    };
    let whole = pixels.is_multiple_of(spread.across);
    if !whole || spread.end(pixels, packed.channels) * width > out.len() {
        return Err(Error::Bug("a result is shorter than its shape says"));
    }
    let zeros: *const u8 = packed.zeros(store).as_ptr().cast();
    let mut rows = [[zeros; TILE]; TAPS];
    let mut copies = Copies::uninit();
    let panel_bytes = packed.panel * 64;
    let step = (NEAR / panel_bytes).max(1).next_multiple_of(4);
    // Of floats few pixels times four panels take less reading than many times two, where hardly a panel is left over.
    let by_fours = width == 4 && (packed.panels().is_multiple_of(4) || packed.panels() >= 16);
    let most = if by_fours && !kernels.four.is_empty() { kernels.four.len() } else { kernels.one.len() };
    let blocks = packed.panels().div_ceil(step);
    for block in 0..blocks {
        let first = if packed.back { blocks - 1 - block } else { block } * step;
        let panels = first..(first + step).min(packed.panels());
        let mut walk = Walk::new(window, x, width, zeros, pixels, packed.taps, &mut copies)
            .ok_or(Error::Bug("an operand is shorter than its shape says"))?;
        let (mut pixel, mut place, mut line) = (0, 0, 0);
        while pixel < pixels {
            let count = next_tile(spread.across - place, most);
            let beyond = walk.locate(count, (packed.deep * width).next_multiple_of(4), &mut rows);
            let first = spread.first
                + place * spread.pixel
                + line % spread.down * spread.line
                + line / spread.down * spread.picture;
            // Within the results, whose last one has been looked at above.
            let out = out.as_mut_ptr().wrapping_add(first * width);
            let mut tile = Tile {
                rows: rows.as_ptr(),
                taps: packed.taps,
                deep: packed.deep,
                panel: zeros,
                head: zeros,
                panel_bytes,
                out,
                pixel: spread.pixel,
                left: 0,
                low,
                high,
                rounding,
                signs: tiles::SIGNS,
                beyond,
            };
            // SAFETY: the processor has the level's instructions. The walk gives pointers to `deep` numbers for each of `count` pixels,
            // all panels have been packed, and at `out` is room for `count` rows of `channels`, of which a kernel writes those that are left.
            unsafe {
                let mut left = panels.len();
                while left > 0 {
                    let (kernel, taken) = choose(&kernels, count, left);
                    let panel = if packed.back { panels.start + left - taken } else { panels.end - left };
                    let at = panel * LANES * width;
                    tile.panel = packed.from(store, panel).as_ptr().cast();
                    if width == 1 {
                        tile.head = packed.heads(store, panel).as_ptr().cast();
                    }
                    tile.out = out.add(at);
                    tile.left = packed.channels - panel * LANES;
                    kernel(&tile);
                    left -= taken;
                }
            }
            pixel += count;
            place += count;
            if place == spread.across {
                (place, line) = (0, line + 1);
            }
        }
    }
    Ok(())
}

/// The kernel for so many pixels and at most so many panels, and how many panels it takes.
fn choose(kernels: &Kernels, pixels: usize, panels: usize) -> (tiles::Kernel, usize) {
    match (kernels.four.get(pixels - 1), kernels.two.get(pixels - 1)) {
        (Some(kernel), _) if panels >= 4 => (*kernel, 4),
        (_, Some(kernel)) if panels >= 2 => (*kernel, 2),
        _ => (kernels.one[pixels - 1], 1),
    }
}
