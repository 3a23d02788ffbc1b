//! Depthwise convolutions with square windows of three or five: what a column of the operand holds is read once, and serves all pixels of a strip
//! whose windows it lies in.

use super::cpu::Level;
use super::lanes::{LANES, Lanes, Wide};
use super::narrow::Narrow;
use super::tiles::SIGNS;
use crate::error::{Error, Result};
use crate::ops::conv::Numbers;
use crate::ops::layer::{Layer, Window};
use crate::quant::Rounding;

/// Columns that a strip reads, at most, and lines of them.
const MOST: usize = 19;
const LINES: usize = 5;

/// What is computed of some neighbours of a line.
struct Strip {
    /// Where the columns are, line by line.
    columns: [[*const u8; MOST]; LINES],
    /// How many lines there are: told, so that a compiler does not write each of them out.
    lines: usize,
    /// Panels, and how many bytes each has.
    panels: *const u8,
    panel_bytes: usize,
    channels: usize,
    /// How many numbers lie between results.
    pixel: usize,
    out: *mut u8,
    low: f32,
    high: f32,
    rounding: Rounding,
}

/// Computes a strip of so many pixels as it is made for.
///
/// # Safety
/// The processor has the instructions it is made for. All columns that its pixels read have `channels` numbers, and where it is made for more
/// than one pixel, so many that they fill whole panels may be read. Results have `channels` numbers, and the panels of all of them have been packed.
type Kernel = unsafe fn(&Strip);

/// A kernel and how many pixels it computes, most first.
type Kernels = &'static [(usize, Kernel)];

/// Whether windows are such that columns are read once.
pub fn fits(window: &Window) -> bool {
    let Window { y, x, .. } = window;
    // With a step of one, pixels that are as far apart as elements of a window read the same columns.
    let shared = x.step == 1 && x.dilation <= x.places || x.step == 2 && x.dilation == 1;
    y.size == x.size && matches!(x.size, 3 | 5) && shared
}

/// Computes a depthwise convolution whose window fits.
pub fn run(layer: &Layer<'_>, numbers: &Numbers, out: &mut [u8]) -> Result<()> {
    let Layer { packed, store, window: Window { y, x, channels }, x: operand } = layer;
    let width = numbers.width();
    let reach = channels.next_multiple_of(LANES) * width;
    let (row, line) = (channels * width, x.length * channels * width);
    let results = x.places * row;
    let pictures = out.len() / (y.places * results).max(1);
    if operand.len() < pictures * y.length * line || *channels != packed.channels {
        return Err(Error::Bug("an operand is shorter than its shape says"));
    }
    let kernels = kernels(numbers, packed.level, x.size, x.step);
    // How far pixels of a strip are apart, and how many there are at least; as few of them twice as can be: the last strip of a line ends with it,
    // wherever it begins.
    let (apart, places) = (x.dilation, x.places / x.dilation);
    let Some(&(1, single)) = kernels.last() else { return Err(Error::Bug("a kernel is missing")) };
    let fitting = kernels.iter().filter(|(pixels, _)| *pixels <= places);
    let Some(&(pixels, kernel)) =
        fitting.min_by_key(|(pixels, _)| places.div_ceil(*pixels) * (pixels + STRIP_COST))
    else {
        return Err(Error::Bug("a kernel is missing"));
    };
    let zeros: *const u8 = packed.zeros(store).as_ptr().cast();
    let (low, high, rounding) = match numbers {
        Numbers::Floats(floats) => (floats.low, floats.high, Rounding { low: 0.0, high: 0.0, zero: 0 }),
        Numbers::Bytes(bytes) => (0.0, 0.0, bytes.rounding()),
    };
    let mut strip = Strip {
        columns: [[zeros; MOST]; LINES],
        lines: y.size,
        panels: packed.from(store, 0).as_ptr().cast(),
        panel_bytes: packed.panel * 64,
        channels: *channels,
        pixel: apart * channels,
        out: out.as_mut_ptr(),
        low,
        high,
        rounding,
    };
    let reads = (pixels - 1) * x.step + x.size;
    for (number, out) in out.chunks_exact_mut(results).enumerate() {
        let (picture, place_y) = (number / y.places, number % y.places);
        let firsts = (0..apart).flat_map(|among| {
            let places = (x.places - among).div_ceil(apart);
            (0..places).step_by(pixels).map(move |first| among + first.min(places - pixels) * apart)
        });
        for first in firsts {
            let left = (first * x.step).wrapping_sub(x.before);
            // Columns before the first are very large numbers.
            let inside = |column: usize| left.wrapping_add(column * apart) < x.length;
            let is_inside = left < x.length && inside(reads - 1);
            for (down, columns) in strip.columns[..y.size].iter_mut().enumerate() {
                let Some(from) = y.at(place_y, down) else {
                    columns[..reads].fill(zeros);
                    continue;
                };
                // Within the operand, which has been measured above, or not read.
                let start = operand.as_ptr().wrapping_add((picture * y.length + from) * line);
                let start = start.wrapping_add(left.wrapping_mul(row));
                for (column, to) in columns.iter_mut().enumerate() {
                    *to = start.wrapping_add(column * apart * row);
                }
                if !is_inside {
                    let outside =
                        columns[..reads].iter_mut().enumerate().filter(|(column, _)| !inside(*column));
                    outside.for_each(|(_, to)| *to = zeros);
                }
            }
            let out = out[first * row..(first + (pixels - 1) * apart + 1) * row].as_mut_ptr();
            // The last of what is read, which ends where the operand does in the last strip: then pixels are computed one by one.
            let bottom =
                (place_y * y.step + (y.size - 1) * y.dilation).saturating_sub(y.before).min(y.length - 1);
            let last = left.wrapping_add((reads - 1) * apart).min(x.length - 1);
            let ends = (picture * y.length + bottom) * line + last * row + reach;
            // SAFETY: the processor has the level's instructions; columns are rows of the operand or of zeros, which may be read as far as the
            // kernel does, results are as many as it is made for, and all panels were packed.
            unsafe {
                if ends <= operand.len() {
                    strip.out = out;
                    kernel(&strip);
                    continue;
                }
                for pixel in 0..pixels {
                    strip.out = out.add(pixel * apart * row);
                    single(&strip);
                    strip.columns[..y.size].iter_mut().for_each(|columns| columns.rotate_left(x.step));
                }
            }
        }
    }
    Ok(())
}

/// What a strip takes beside its pixels, in pixels.
const STRIP_COST: usize = 1;

/// Which of some pixels, a step apart, has the column as that element of its window's lines.
#[inline(always)]
const fn pixel(column: usize, element: usize, step: usize, pixels: usize) -> Option<usize> {
    if column < element || !(column - element).is_multiple_of(step) || (column - element) / step >= pixels {
        return None;
    }
    Some((column - element) / step)
}

/// Writes out what is done with each column: a loop over them the compiler leaves one, and keeps sums in memory.
macro_rules! each_column {
    ($column:ident) => {
        each_column!($column: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18)
    };
    ($column:ident: $($number:literal)+) => {
        $($column!($number);)+
    };
}

/// # Safety
/// As [`Kernel`] asks, for windows of `K` floats that are `S` apart and `P` pixels.
#[inline(always)]
unsafe fn floats<V: Lanes, const K: usize, const S: usize, const P: usize>(strip: &Strip) {
    // SAFETY: as the caller promises; a panel has a line, and one more for each number of the window.
    unsafe {
        let out = strip.out.cast::<f32>();
        for (panel, first) in (0..strip.channels).step_by(LANES).enumerate() {
            let left = strip.channels - first;
            let weights = strip.panels.add(panel * strip.panel_bytes).cast::<f32>();
            let mut sums = [V::floats(weights); P];
            for line in 0..strip.lines {
                let weights = weights.add((1 + line * K) * LANES);
                let weights: [V::Floats; K] = core::array::from_fn(|k| V::floats(weights.add(k * LANES)));
                let columns = strip.columns.get_unchecked(line);
                macro_rules! column {
                    ($column:literal) => {
                        if $column < (P - 1) * S + K {
                            let from = columns[$column].cast::<f32>().add(first);
                            let x = if P == 1 { V::some_floats(from, left) } else { V::floats(from) };
                            for k in 0..K {
                                if let Some(p) = pixel($column, k, S, P) {
                                    sums[p] = V::plus_product(sums[p], x, weights[k]);
                                }
                            }
                        }
                    };
                }
                each_column!(column);
            }
            for p in 0..P {
                let value = V::clamp(sums[p], strip.low, strip.high);
                V::put_floats(out.add(p * strip.pixel + first), value, left);
            }
        }
    }
}

/// # Safety
/// As of floats, for bytes.
#[inline(always)]
unsafe fn bytes<V: Lanes, const K: usize, const S: usize, const P: usize>(strip: &Strip) {
    // SAFETY: as the caller promises; a panel has two lines, and one more for every four lines of the window and each of its columns.
    unsafe {
        let signs = V::whole(SIGNS.as_ptr());
        for (panel, first) in (0..strip.channels).step_by(LANES).enumerate() {
            let left = strip.channels - first;
            let panel = strip.panels.add(panel * strip.panel_bytes);
            let mut sums = [V::whole(panel); P];
            macro_rules! lines {
                ($from:literal, $lines:literal) => {
                    let weights = panel.add((2 + $from / 4 * K) * 64);
                    let weights: [V::Whole; K] = core::array::from_fn(|k| V::whole(weights.add(k * 64)));
                    macro_rules! column {
                        ($column:literal) => {
                            if $column < (P - 1) * S + K {
                                let lines: [*const u8; $lines] = core::array::from_fn(|line| {
                                    strip.columns[$from + line][$column].add(first)
                                });
                                let count = if P == 1 { left } else { LANES };
                                let x = V::xor(V::interleave(lines, count), signs);
                                for k in 0..K {
                                    if let Some(p) = pixel($column, k, S, P) {
                                        sums[p] = V::plus_four(sums[p], x, weights[k]);
                                    }
                                }
                            }
                        };
                    }
                    each_column!(column);
                };
            }
            if K == 3 {
                lines!(0, 3);
            } else {
                lines!(0, 4);
                lines!(4, 1);
            }
            let scales = V::floats(panel.add(64).cast());
            for p in 0..P {
                let to = strip.out.add(p * strip.pixel + first);
                V::put_bytes(to, sums[p], scales, strip.rounding, left);
            }
        }
    }
}

macro_rules! instructions {
    ($lanes:ty, $features:literal, $floats:ident, $bytes:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $floats<const K: usize, const S: usize, const P: usize>(strip: &Strip) {
            // SAFETY: as the caller promises.
            unsafe { floats::<$lanes, K, S, P>(strip) }
        }

        #[target_feature(enable = $features)]
        unsafe fn $bytes<const K: usize, const S: usize, const P: usize>(strip: &Strip) {
            // SAFETY: as the caller promises.
            unsafe { bytes::<$lanes, K, S, P>(strip) }
        }
    };
}

instructions!(Wide, "avx512f,avx512bw,avx512vl,avx512vnni,fma,avx2", floats_wide, bytes_wide);
instructions!(Narrow<true>, "avx2,fma,avxvnni", _floats_narrow_vnni, bytes_narrow_vnni);
instructions!(Narrow<false>, "avx2,fma", floats_narrow, bytes_narrow);

/// The kernels of one set of instructions for windows of that size and step.
macro_rules! choose {
    ($size:expr, $step:expr, $kernel:ident: $($pixels:literal)+) => {
        match ($size, $step) {
            (3, 1) => &[$(($pixels, $kernel::<3, 1, $pixels>)),+],
            (3, _) => &[$(($pixels, $kernel::<3, 2, $pixels>)),+],
            (_, 1) => &[$(($pixels, $kernel::<5, 1, $pixels>)),+],
            _ => &[$(($pixels, $kernel::<5, 2, $pixels>)),+],
        }
    };
}

/// Registers of AVX2 are half as many and half as wide: sums of four pixels leave room for weights.
fn kernels(numbers: &Numbers, level: Level, size: usize, step: usize) -> Kernels {
    match (numbers, level) {
        (Numbers::Floats(_), Level::Avx512 | Level::Amx) => choose!(size, step, floats_wide: 8 7 4 1),
        (Numbers::Floats(_), _) => choose!(size, step, floats_narrow: 4 1),
        (Numbers::Bytes(_), Level::Avx512 | Level::Amx) => choose!(size, step, bytes_wide: 8 7 4 1),
        (Numbers::Bytes(_), Level::AvxVnni) => choose!(size, step, bytes_narrow_vnni: 4 1),
        (Numbers::Bytes(_), _) => choose!(size, step, bytes_narrow: 4 1),
    }
}
