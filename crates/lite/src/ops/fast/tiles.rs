//! Tiles of results: rows of some pixels times some panels of weights, with all sums in registers.

use super::lanes::{LANES, Lanes, Wide, soon};
use super::narrow::Narrow;
use super::panels::HEAD;
use super::rows::TILE;
use crate::quant::Rounding;

/// The highest bits of all bytes.
pub const SIGNS: [u8; 64] = [0x80; 64];

/// A tile to compute.
#[derive(Clone, Copy)]
pub struct Tile {
    /// Pointers to rows, for every tap one for each pixel.
    pub rows: *const [*const u8; TILE],
    pub taps: usize,
    /// Numbers of a row.
    pub deep: usize,
    /// The first panel, and how many bytes lie between panels.
    pub panel: *const u8,
    pub panel_bytes: usize,
    /// The first head of bytes.
    pub head: *const u8,
    /// The first result, and how many numbers lie between pixels.
    pub out: *mut u8,
    pub pixel: usize,
    /// How many channels are left from the first panel on.
    pub left: usize,
    /// The range of floats.
    pub low: f32,
    pub high: f32,
    /// How bytes are made.
    pub rounding: Rounding,
    /// What turns signed bytes to unsigned ones, [`SIGNS`]. Told, because a compiler that knows it makes three instructions of one.
    pub signs: [u8; 64],
    /// Whether rows may be read up to the next multiple of four bytes.
    pub beyond: bool,
}

/// Computes a tile of so many pixels and panels as it is made for.
///
/// # Safety
/// The processor has the instructions it is made for. Each of the tile's rows points to `deep` numbers, as many panels as it is made for
/// lie at `panel`, and as many heads at `head` if it is made for bytes, and `out` has room for its pixels.
pub type Kernel = unsafe fn(&Tile);

/// # Safety
/// As [`Kernel`] asks.
#[inline(always)]
unsafe fn floats<V: Lanes, const P: usize, const N: usize>(tile: &Tile) {
    // SAFETY: as the caller promises; a panel has a line, and one more for each number of all rows.
    unsafe {
        let start = tile.panel.cast::<f32>();
        let stride = tile.panel_bytes / 4;
        let bias: [V::Floats; N] = core::array::from_fn(|n| V::floats(start.add(n * stride)));
        let mut sums = [bias; P];
        let mut at = start.add(LANES);
        for tap in 0..tile.taps {
            let row = &*tile.rows.add(tap);
            let rows: [*const f32; P] = core::array::from_fn(|p| row[p].cast());
            let mut k = 0;
            macro_rules! step {
                () => {
                    let weights: [V::Floats; N] = core::array::from_fn(|n| {
                        // With one pixel lines are read as fast as they come anyway.
                        if P > 1 {
                            soon(at.add(n * stride).cast());
                        }
                        V::floats(at.add(n * stride))
                    });
                    for p in 0..P {
                        let x = V::all_floats(rows[p].add(k).read_unaligned());
                        for n in 0..N {
                            sums[p][n] = V::plus_product(sums[p][n], x, weights[n]);
                        }
                    }
                    at = at.add(LANES);
                    k += 1;
                };
            }
            while k + 4 <= tile.deep {
                step!();
                step!();
                step!();
                step!();
            }
            while k < tile.deep {
                step!();
            }
        }
        // Written to memory here, so that sums are in registers until here.
        let mut done = [bias; P];
        for p in 0..P {
            for n in 0..N {
                done[p][n] = V::clamp(sums[p][n], tile.low, tile.high);
            }
        }
        for p in 0..P {
            for n in 0..N {
                let to = tile.out.cast::<f32>().add(p * tile.pixel + n * LANES);
                V::put_floats(to, done[p][n], tile.left - n * LANES);
            }
        }
    }
}

/// # Safety
/// As [`Kernel`] asks.
#[inline(always)]
unsafe fn bytes<V: Lanes, const P: usize, const N: usize>(tile: &Tile) {
    // SAFETY: as the caller promises; a panel has a line for every four numbers of a row.
    unsafe {
        let (stride, head) = (tile.panel_bytes, |n: usize| tile.head.add(n * 64 * HEAD));
        let first: [V::Whole; N] = core::array::from_fn(|n| V::whole(head(n)));
        let mut sums = [first; P];
        let signs = V::whole(tile.signs.as_ptr());
        let mut at = tile.panel;
        let (whole, rest) = (tile.deep / 4, tile.deep % 4);
        for tap in 0..tile.taps {
            let row = &*tile.rows.add(tap);
            let rows: [*const u8; P] = core::array::from_fn(|p| row[p]);
            macro_rules! step {
                (|$p:ident| $four:expr) => {
                    let weights: [V::Whole; N] = core::array::from_fn(|n| {
                        if P > 1 {
                            soon(at.add(n * stride));
                        }
                        V::whole(at.add(n * stride))
                    });
                    for $p in 0..P {
                        // Unsigned, 128 more than they are; a panel's first line makes up for that.
                        let x = V::xor(V::all_whole($four), signs);
                        for n in 0..N {
                            sums[$p][n] = V::plus_four(sums[$p][n], x, weights[n]);
                        }
                    }
                    at = at.add(64);
                };
            }
            let mut k = 0;
            while k + 2 <= whole {
                step!(|p| rows[p].cast::<i32>().add(k).read_unaligned());
                step!(|p| rows[p].cast::<i32>().add(k + 1).read_unaligned());
                k += 2;
            }
            if k < whole {
                step!(|p| rows[p].cast::<i32>().add(k).read_unaligned());
            }
            if rest > 0 && tile.beyond {
                step!(|p| rows[p].cast::<i32>().add(whole).read_unaligned());
            } else if rest > 0 {
                step!(|p| last(rows[p].add(4 * whole), rest));
            }
        }
        // Written to memory here, so that sums are in registers until here.
        let mut done = [first; P];
        for p in 0..P {
            for n in 0..N {
                done[p][n] = sums[p][n];
            }
        }
        for n in 0..N {
            let scales = V::floats(head(n).add(64).cast());
            for p in 0..P {
                let to = tile.out.add(p * tile.pixel + n * LANES);
                V::put_bytes(to, done[p][n], scales, tile.rounding, tile.left - n * LANES);
            }
        }
    }
}

/// One to three bytes, and zeros.
///
/// # Safety
/// So many bytes are there.
#[inline(always)]
pub unsafe fn last(from: *const u8, count: usize) -> i32 {
    // SAFETY: as the caller promises.
    let byte = |at: usize| if at < count { i32::from(unsafe { from.add(at).read() }) << (8 * at) } else { 0 };
    byte(0) | byte(1) | byte(2)
}

macro_rules! kernels {
    ($lanes:ty, $features:literal, $floats:ident, $bytes:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $floats<const P: usize, const N: usize>(tile: &Tile) {
            // SAFETY: as the caller promises.
            unsafe { floats::<$lanes, P, N>(tile) }
        }

        #[target_feature(enable = $features)]
        unsafe fn $bytes<const P: usize, const N: usize>(tile: &Tile) {
            // SAFETY: as the caller promises.
            unsafe { bytes::<$lanes, P, N>(tile) }
        }
    };
}

kernels!(Wide, "avx512f,avx512bw,avx512vl,avx512vnni,fma,avx2", floats_wide, bytes_wide);
kernels!(Narrow<true>, "avx2,fma,avxvnni", _floats_narrow_vnni, bytes_narrow_vnni);
kernels!(Narrow<false>, "avx2,fma", floats_narrow, bytes_narrow);

/// Kernels for so many pixels each.
macro_rules! of_pixels {
    ($kernel:ident, $panels:literal: $($pixels:literal)+) => {
        &[$($kernel::<$pixels, $panels>),+]
    };
}

/// The kernels of one set of instructions: for one panel, for two and for four, by pixels less one.
pub struct Kernels {
    pub one: &'static [Kernel],
    pub two: &'static [Kernel],
    pub four: &'static [Kernel],
}

pub const FLOATS_WIDE: Kernels = Kernels {
    one: of_pixels!(floats_wide, 1: 1 2 3 4 5 6 7 8 9 10 11 12),
    two: of_pixels!(floats_wide, 2: 1 2 3 4 5 6 7 8 9 10 11 12),
    four: of_pixels!(floats_wide, 4: 1 2 3 4 5 6),
};
pub const BYTES_WIDE: Kernels = Kernels {
    one: of_pixels!(bytes_wide, 1: 1 2 3 4 5 6 7 8 9 10 11 12),
    two: of_pixels!(bytes_wide, 2: 1 2 3 4 5 6 7 8 9 10 11 12),
    four: of_pixels!(bytes_wide, 4: 1 2 3 4 5 6),
};
/// Of AVX2, whose registers are half as many and half as wide. AVX-VNNI has no other for floats.
pub const FLOATS_NARROW: Kernels =
    Kernels { one: of_pixels!(floats_narrow, 1: 1 2 3 4 5 6), two: &[], four: &[] };
pub const BYTES_NARROW: Kernels =
    Kernels { one: of_pixels!(bytes_narrow, 1: 1 2 3 4 5 6), two: &[], four: &[] };
pub const BYTES_NARROW_VNNI: Kernels =
    Kernels { one: of_pixels!(bytes_narrow_vnni, 1: 1 2 3 4 5 6), two: &[], four: &[] };
