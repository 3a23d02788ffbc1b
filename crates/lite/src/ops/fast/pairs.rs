//! Turns two matrices that are both computed into their product: columns of the second are brought into lines of sixteen, as packed weights lie,
//! and stay there for all rows of the first.

use core::array::from_fn;

use super::cpu::Level;
use super::lanes::{LANES, Lanes, Wide};
use super::narrow::Narrow;
use crate::bytes::{b, s};
use crate::ops::matmul::{BytePairs, Pair};

/// Rows of a tile, at most.
const ROWS: usize = 12;

/// Panels of sixteen columns that are multiplied at once, at most.
const PANELS: usize = 2;

/// How many lines of sixteen columns are brought together: as many bytes as stay in the first cache beside what is multiplied with them.
const LINES: usize = 512;

/// With fewer rows it takes longer to bring columns together than to multiply them where they lie.
const LEAST: usize = 4;

#[repr(C, align(64))]
struct Columns([u8; 64 * LINES]);

/// Some rows times some panels.
struct Tile {
    rows: [*const u8; ROWS],
    /// How many of the rows there are: the others are read and not written.
    count: usize,
    /// Lines of a panel.
    lines: usize,
    columns: *const u8,
    out: *mut u8,
    /// How many numbers lie between rows of the result.
    row: usize,
    /// How many columns are left.
    left: usize,
    /// Whether results are added to what is there.
    more: bool,
    /// Numbers of a row of bytes that are no whole line.
    rest: usize,
}

/// Computes the product, if the matrices lie in a way that there are kernels for; answers whether it did.
pub fn run_pair(pair: &Pair<'_>, out: &mut [u8]) -> bool {
    run_pair_with(Level::detect(), pair, out)
}

/// The same with a level that the processor has.
pub fn run_pair_with(level: Level, pair: &Pair<'_>, out: &mut [u8]) -> bool {
    let width = if pair.bytes.is_some() { 1 } else { 4 };
    let end_x = (pair.rows.max(1) - 1) * pair.row_x + pair.deep;
    let end_y = (pair.deep.max(1) - 1) * pair.step_y + (pair.columns.max(1) - 1) * pair.across + 1;
    let enough = pair.x.len() >= end_x * width
        && pair.y.len() >= end_y * width
        && out.len() >= pair.rows * pair.columns * width;
    let is_near = pair.across == 1 || pair.step_y == 1;
    // Sums of bytes cannot wait in the result for the rest of a row.
    let fits = width == 4 || pair.deep.div_ceil(4) <= LINES;
    if !(enough && is_near && fits) || pair.rows < LEAST || pair.deep == 0 {
        return false;
    }
    // SAFETY: the processor has the level's instructions, and the operands and the result are as long as their strides ask for.
    unsafe {
        match (pair.bytes, level) {
            (_, Level::Plain) => return false,
            (None, Level::Avx512 | Level::Amx) => floats_wide(pair, out),
            (None, _) => floats_narrow(pair, out),
            (Some(bytes), Level::Avx512 | Level::Amx) => bytes_wide(pair, bytes, out),
            (Some(bytes), Level::AvxVnni) => bytes_narrow_vnni(pair, bytes, out),
            (Some(bytes), _) => bytes_narrow(pair, bytes, out),
        }
    }
    true
}

macro_rules! kernels {
    ($lanes:ty, $features:literal, $panels:literal, $floats:ident, $bytes:ident) => {
        /// # Safety
        /// The processor has the instructions, and the matrices are there.
        #[target_feature(enable = $features)]
        unsafe fn $floats(pair: &Pair<'_>, out: &mut [u8]) {
            // SAFETY: as the caller promises.
            unsafe { floats::<$lanes, $panels>(pair, out) }
        }

        /// # Safety
        /// The processor has the instructions, and the matrices are there.
        #[target_feature(enable = $features)]
        unsafe fn $bytes(pair: &Pair<'_>, bytes: &BytePairs, out: &mut [u8]) {
            // SAFETY: as the caller promises.
            unsafe { whole::<$lanes, $panels>(pair, bytes, out) }
        }
    };
}

kernels!(Wide, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,avx2", 2, floats_wide, bytes_wide);
kernels!(Narrow<true>, "avx2,fma,avxvnni", 1, _floats_narrow_vnni, bytes_narrow_vnni);
kernels!(Narrow<false>, "avx2,fma", 1, floats_narrow, bytes_narrow);

/// The rows of a tile from one on; the last one again where there are no more.
fn rows(pair: &Pair<'_>, row: usize, width: usize, skip: usize) -> [*const u8; ROWS] {
    from_fn(|p| pair.x.as_ptr().wrapping_add(((row + p).min(pair.rows - 1) * pair.row_x + skip) * width))
}

/// # Safety
/// The processor has the instructions, and the matrices are there.
#[inline(always)]
unsafe fn floats<V: Lanes, const N: usize>(pair: &Pair<'_>, out: &mut [u8]) {
    let mut columns = Columns([0; 64 * LINES]);
    let to = columns.0.as_mut_ptr();
    for column in (0..pair.columns).step_by(N * LANES) {
        let left = pair.columns - column;
        let panels = left.div_ceil(LANES).min(N);
        let most = LINES / panels;
        for first in (0..pair.deep).step_by(most) {
            let lines = most.min(pair.deep - first);
            for panel in 0..panels {
                let at = column + panel * LANES;
                let from = pair.y.as_ptr().wrapping_add((first * pair.step_y + at * pair.across) * 4);
                // SAFETY: as the caller promises; so many lines are within `columns`.
                unsafe {
                    let to = to.add(panel * lines * 64);
                    if pair.across == 1 {
                        for k in 0..lines {
                            let from = from.add(4 * k * pair.step_y).cast();
                            V::put_floats(
                                to.add(64 * k).cast(),
                                V::some_floats(from, left - panel * LANES),
                                LANES,
                            );
                        }
                    } else {
                        turn::<V>(from, 4 * pair.across, left - panel * LANES, 4 * lines, to);
                    }
                }
            }
            let mut row = 0;
            while row < pair.rows {
                let count = ROWS.min(pair.rows - row);
                let tile = Tile {
                    rows: rows(pair, row, 4, first),
                    count,
                    lines,
                    columns: to,
                    out: out.as_mut_ptr().wrapping_add(4 * (row * pair.columns + column)),
                    row: pair.columns,
                    left,
                    more: first > 0,
                    rest: 0,
                };
                // SAFETY: as the caller promises; lines of so many panels lie in `columns`.
                let taken = unsafe {
                    match (N == 2 && panels == 2, N == 2 && count > 4) {
                        (true, true) => product::<V, ROWS, 2>(&tile),
                        (true, false) => product::<V, 4, 2>(&tile),
                        (false, true) => product::<V, ROWS, 1>(&tile),
                        (false, false) => product::<V, 4, 1>(&tile),
                    }
                };
                row += taken;
            }
        }
    }
}

/// Computes a tile of floats; answers how many rows it took.
///
/// # Safety
/// The processor has the instructions, the rows have as many numbers as the panels have lines, and the result has room.
#[inline(always)]
unsafe fn product<V: Lanes, const P: usize, const N: usize>(tile: &Tile) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        let mut sums = [[V::all_floats(0.0); N]; P];
        let rows: [*const f32; P] = from_fn(|p| tile.rows[p].cast());
        let mut at = tile.columns.cast::<f32>();
        for k in 0..tile.lines {
            let y: [V::Floats; N] = from_fn(|n| V::floats(at.add(n * tile.lines * LANES)));
            for p in 0..P {
                let x = V::all_floats(rows[p].add(k).read_unaligned());
                for n in 0..N {
                    sums[p][n] = V::plus_product(sums[p][n], x, y[n]);
                }
            }
            at = at.add(LANES);
        }
        // Written to memory here, so that sums are in registers until here.
        let mut done = [[V::all_floats(0.0); N]; P];
        for p in 0..P {
            for n in 0..N {
                done[p][n] = sums[p][n];
            }
        }
        for p in 0..P.min(tile.count) {
            for n in 0..N {
                let (to, left) =
                    (tile.out.cast::<f32>().add(p * tile.row + n * LANES), tile.left - n * LANES);
                let mut value = done[p][n];
                if tile.more {
                    value = V::plus_product(V::some_floats(to, left), value, V::all_floats(1.0));
                }
                V::put_floats(to, value, left);
            }
        }
    }
    P
}

/// Sixteen columns, of which `left` are there and each lies for itself, `across` bytes from the last, as lines of four bytes of each.
///
/// # Safety
/// The processor has the instructions, so many bytes of each column are there, and there is room for the lines.
#[inline(always)]
unsafe fn turn<V: Lanes>(from: *const u8, across: usize, left: usize, bytes: usize, to: *mut u8) {
    // SAFETY: as the caller promises; the last column is read again where there are no more.
    unsafe {
        let columns: [*const u8; LANES] = from_fn(|lane| from.add(lane.min(left - 1) * across));
        let mut done = 0;
        while done + 64 <= bytes {
            V::turn(columns.map(|column| column.add(done)), to.add(16 * done));
            done += 64;
        }
        for at in (done..bytes).step_by(4) {
            for (lane, column) in columns.iter().enumerate() {
                for byte in 0..4 {
                    // What is beyond a column is multiplied by what is beyond a row, which is zero.
                    let value = if at + byte < bytes { column.add(at + byte).read() } else { 0 };
                    to.add(16 * at + 4 * lane + byte).write(value);
                }
            }
        }
    }
}

/// # Safety
/// The processor has the instructions, and the matrices are there.
#[inline(always)]
unsafe fn whole<V: Lanes, const N: usize>(pair: &Pair<'_>, bytes: &BytePairs, out: &mut [u8]) {
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
                    (true, true) => product_of_bytes::<V, ROWS, 2>(&tile, bytes, zero_y, &starts),
                    (true, false) => product_of_bytes::<V, 4, 2>(&tile, bytes, zero_y, &starts),
                    (false, true) => product_of_bytes::<V, ROWS, 1>(&tile, bytes, zero_y, &starts),
                    (false, false) => product_of_bytes::<V, 4, 1>(&tile, bytes, zero_y, &starts),
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
        let rows = from_fn(|k| match 4 * line + k {
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
unsafe fn product_of_bytes<V: Lanes, const P: usize, const N: usize>(
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
        let signs = V::whole(super::tiles::SIGNS.as_ptr());
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
            step!(whole, |p| super::tiles::last(rows[p].add(4 * whole), tile.rest));
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
