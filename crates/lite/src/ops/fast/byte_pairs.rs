//! Turns two matrices of bytes that are both computed into their product, with the columns of the second brought together by fours.

use core::array::from_fn;

use super::lanes::{LANES, Lanes};
use super::pairs::{Columns, LINES, PANELS, ROWS, Tile, rows, turn};
use super::tiles::{SIGNS, last};
use crate::bytes::{b, s};
use crate::ops::matmul::{BytePairs, Pair};

/// # Safety
/// The processor has the instructions, and the matrices are there.
#[inline(always)]
pub unsafe fn product<V: Lanes, const N: usize>(pair: &Pair<'_>, bytes: &BytePairs, out: &mut [u8]) {
    let mut columns = Columns([0; 64 * LINES]);
    let to = columns.0.as_mut_ptr();
    let (lines, rest) = (pair.deep.div_ceil(4), pair.deep % 4);
    let [zero_x, zero_y, _] = bytes.zeros;
    // Panels of more lines are taken one by one.
    let most = N.min(LINES / lines);
    for column in (0..pair.columns).step_by(most * LANES) {
        let left = pair.columns - column;
        let panels = left.div_ceil(LANES).min(most);
        let mut starts = [0i32; PANELS * LANES];
        for panel in 0..panels {
            let at = column + panel * LANES;
            let from = pair.y.as_ptr().wrapping_add(at * pair.across);
            // SAFETY: as the caller promises; so many lines are within `columns`.
            unsafe {
                let to = to.add(panel * lines * 64);
                if pair.across == 1 {
                    interleave::<V>(pair, from, left - panel * LANES, to);
                } else {
                    turn::<V>(from, pair.across, left - panel * LANES, pair.deep, to);
                }
                let mut sums = V::all_whole(0);
                for line in 0..lines {
                    sums = V::plus_four(sums, V::all_whole(0x0101_0101), V::whole(to.add(64 * line)));
                }
                V::put_whole(starts.as_mut_ptr().add(panel * LANES), sums);
            }
        }
        // Rows are made unsigned, 128 more than they are; a product of bytes less zero points is that of the bytes and these.
        let all = (zero_x * zero_y).wrapping_mul(pair.deep as i32);
        for start in &mut starts {
            *start = all.wrapping_sub(start.wrapping_mul(128 + zero_x));
        }
        let mut row = 0;
        while row < pair.rows {
            let count = ROWS.min(pair.rows - row);
            let tile = Tile {
                rows: rows(pair, row, 1, 0),
                count,
                lines,
                columns: to,
                out: out.as_mut_ptr().wrapping_add(row * pair.columns + column),
                row: pair.columns,
                left,
                more: false,
                rest,
            };
            // SAFETY: as the caller promises; lines of so many panels lie in `columns`.
            row += unsafe {
                match (N == 2 && panels == 2, N == 2 && count > 4) {
                    (true, true) => tile_product::<V, ROWS, 2>(&tile, bytes, zero_y, &starts),
                    (true, false) => tile_product::<V, 4, 2>(&tile, bytes, zero_y, &starts),
                    (false, true) => tile_product::<V, ROWS, 1>(&tile, bytes, zero_y, &starts),
                    (false, false) => tile_product::<V, 4, 1>(&tile, bytes, zero_y, &starts),
                }
            };
        }
    }
}

/// Sixteen neighbouring columns, of which `left` are there, as lines of four bytes of each.
///
/// # Safety
/// The processor has the instructions, the columns are there, and there is room for the lines.
#[inline(always)]
unsafe fn interleave<V: Lanes>(pair: &Pair<'_>, from: *const u8, left: usize, to: *mut u8) {
    let nothing = [0u8; LANES];
    for line in 0..pair.deep.div_ceil(4) {
        let rows: [_; 4] = from_fn(|k| match 4 * line + k {
            k if k < pair.deep => from.wrapping_add(k * pair.step_y),
            _ => nothing.as_ptr(),
        });
        // SAFETY: as the caller promises.
        unsafe { V::put_whole(to.add(64 * line).cast(), V::interleave(rows, left)) };
    }
}

/// Computes a tile of bytes; answers how many rows it took.
///
/// # Safety
/// The processor has the instructions, the rows have as many bytes as the panels have lines of four, and the result has room.
#[inline(always)]
unsafe fn tile_product<V: Lanes, const P: usize, const N: usize>(
    tile: &Tile,
    bytes: &BytePairs,
    zero_y: i32,
    starts: &[i32; PANELS * LANES],
) -> usize {
    let mut done = [[0i32; PANELS * LANES]; P];
    let mut ends = [0i32; P];
    // SAFETY: as the caller promises.
    unsafe {
        let start: [V::Whole; N] = from_fn(|n| V::whole(starts.as_ptr().add(n * LANES).cast()));
        let mut sums = [start; P];
        let rows: [*const u8; P] = from_fn(|p| tile.rows[p]);
        let signs = V::whole(SIGNS.as_ptr());
        macro_rules! step {
            ($k:ident, |$p:ident| $four:expr) => {
                let y: [V::Whole; N] = from_fn(|n| V::whole(tile.columns.add(64 * (n * tile.lines + $k))));
                for $p in 0..P {
                    let x = V::xor(V::all_whole($four), signs);
                    for n in 0..N {
                        sums[$p][n] = V::plus_four(sums[$p][n], x, y[n]);
                    }
                }
            };
        }
        let whole = tile.lines - usize::from(tile.rest > 0);
        for k in 0..whole {
            step!(k, |p| rows[p].cast::<i32>().add(k).read_unaligned());
        }
        if tile.rest > 0 {
            step!(whole, |p| last(rows[p].add(4 * whole), tile.rest));
        }
        for p in 0..P {
            for n in 0..N {
                V::put_whole(done[p].as_mut_ptr().add(n * LANES), sums[p][n]);
            }
        }
        if zero_y != 0 {
            for p in 0..P {
                let row = core::slice::from_raw_parts(rows[p], 4 * whole + tile.rest);
                ends[p] = row.iter().fold(0i32, |sum, x| sum.wrapping_add(s(*x))).wrapping_mul(zero_y);
            }
        }
        for p in 0..P.min(tile.count) {
            let to = tile.out.add(p * tile.row);
            let out = core::slice::from_raw_parts_mut(to, tile.left.min(N * LANES));
            let mut made = [0u8; PANELS * LANES];
            match bytes.floats {
                Some((scale, rounding)) => {
                    for (made, sum) in made[..N * LANES].iter_mut().zip(&done[p]) {
                        *made = rounding.byte(sum.wrapping_sub(ends[p]) as f32 * scale);
                    }
                }
                None => {
                    for (made, sum) in made[..N * LANES].iter_mut().zip(&done[p]) {
                        let sum = bytes.scale.apply(sum.wrapping_sub(ends[p]));
                        *made = b(sum.saturating_add(bytes.zeros[2]).clamp(-128, 127));
                    }
                }
            }
            out.copy_from_slice(&made[..out.len()]);
        }
    }
    P
}
