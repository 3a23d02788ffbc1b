//! Turns two matrices that are both computed into their product: columns of the second are brought into lines of sixteen, as packed weights lie,
//! and stay there for all rows of the first.

use core::array::from_fn;

use super::byte_pairs;
use super::cpu::Level;
use super::lanes::{LANES, Lanes, Wide};
use super::narrow::Narrow;
use crate::ops::matmul::{BytePairs, Pair};

/// Rows of a tile, at most.
pub const ROWS: usize = 12;

/// Panels of sixteen columns of bytes that are multiplied at once, at most.
pub const PANELS: usize = 2;

/// Panels of floats, of which four are multiplied with six rows: less is read than of two with twelve.
const FOUR: usize = 4;
const SIX: usize = 6;

/// How many lines of sixteen columns are brought together: as many bytes as stay in the first cache beside what is multiplied with them.
pub const LINES: usize = 512;

/// With fewer rows it takes longer to bring columns together than to multiply them where they lie.
const LEAST: usize = 4;

#[repr(C, align(64))]
pub struct Columns(pub [u8; 64 * LINES]);

/// Some rows times some panels.
pub struct Tile {
    pub rows: [*const u8; ROWS],
    /// How many of the rows there are: the others are read and not written.
    pub count: usize,
    /// Lines of a panel.
    pub lines: usize,
    pub columns: *const u8,
    pub out: *mut u8,
    /// How many numbers lie between rows of the result.
    pub row: usize,
    /// How many columns are left.
    pub left: usize,
    /// Whether results are added to what is there.
    pub more: bool,
    /// Numbers of a row of bytes that are no whole line.
    pub rest: usize,
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
    let is_near = pair.step_x == 1 && (pair.across == 1 || pair.step_y == 1);
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
    ($lanes:ty, $features:literal, $panels:expr, $floats:ident, $bytes:ident) => {
        /// # Safety
        /// The processor has the instructions, and the matrices are there.
        #[target_feature(enable = $features)]
        unsafe fn $floats(pair: &Pair<'_>, out: &mut [u8]) {
            // SAFETY: as the caller promises.
            unsafe { floats::<$lanes, { $panels[0] }>(pair, out) }
        }

        /// # Safety
        /// The processor has the instructions, and the matrices are there.
        #[target_feature(enable = $features)]
        unsafe fn $bytes(pair: &Pair<'_>, bytes: &BytePairs, out: &mut [u8]) {
            // SAFETY: as the caller promises.
            unsafe { byte_pairs::product::<$lanes, { $panels[1] }>(pair, bytes, out) }
        }
    };
}

kernels!(
    Wide,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,avx2",
    [FOUR, PANELS],
    floats_wide,
    bytes_wide
);
kernels!(Narrow<true>, "avx2,fma,avxvnni", [1, 1], _floats_narrow_vnni, bytes_narrow_vnni);
kernels!(Narrow<false>, "avx2,fma", [1, 1], floats_narrow, bytes_narrow);

/// The rows of a tile from one on; the last one again where there are no more.
pub fn rows(pair: &Pair<'_>, row: usize, width: usize, skip: usize) -> [*const u8; ROWS] {
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
            // As many as registers hold sums of, beside what is multiplied.
            let rows_at_once = match (N, panels) {
                (FOUR, FOUR) => SIX,
                (FOUR, _) => ROWS,
                _ => LEAST,
            };
            let mut row = 0;
            while row < pair.rows {
                let count = rows_at_once.min(pair.rows - row);
                let mut tile = Tile {
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
                let mut panel = 0;
                while panel < panels {
                    // SAFETY: as the caller promises; lines of so many panels lie in `columns`.
                    let taken = unsafe {
                        match (N, panels - panel, count) {
                            (FOUR, FOUR, 5..) => product::<V, SIX, FOUR>(&tile),
                            (FOUR, FOUR, _) => product::<V, LEAST, FOUR>(&tile),
                            (FOUR, 2.., 5..) => product::<V, ROWS, 2>(&tile),
                            (FOUR, 2.., _) => product::<V, LEAST, 2>(&tile),
                            (FOUR, _, 5..) => product::<V, ROWS, 1>(&tile),
                            _ => product::<V, LEAST, 1>(&tile),
                        }
                    };
                    panel += taken;
                    tile.columns = tile.columns.wrapping_add(taken * lines * 64);
                    tile.out = tile.out.wrapping_add(4 * taken * LANES);
                    tile.left = tile.left.saturating_sub(taken * LANES);
                }
                row += count;
            }
        }
    }
}

/// Computes a tile of floats; answers how many panels it took.
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
    N
}

/// Sixteen columns, of which `left` are there and each lies for itself, `across` bytes from the last, as lines of four bytes of each.
///
/// # Safety
/// The processor has the instructions, so many bytes of each column are there, and there is room for the lines.
#[inline(always)]
pub unsafe fn turn<V: Lanes>(from: *const u8, across: usize, left: usize, bytes: usize, to: *mut u8) {
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
