//! Where the rows of an operand are that a tile of results is made of: for each tap of the window and each pixel, a pointer.

use core::mem::MaybeUninit;
use core::ops::Range;

use super::panels::TAPS;
use crate::ops::layer::Window;
use crate::ops::window::Span;

/// Pixels of a tile, at most.
pub const TILE: usize = 16;

/// Pointers to the rows of a tile, by tap and pixel.
pub type Rows = [[*const u8; TILE]; TAPS];

/// Bytes for lines of windows that reach over a border, so that what is outside lies beside what is inside.
pub type Copies = MaybeUninit<[u8; COPIES]>;

/// How many they are.
const COPIES: usize = 12 << 10;

/// Whether the lines of a window are taken as one row each: elements of a line lie side by side, and with few channels it is rows that take time.
pub fn by_lines(window: &Window, width: usize) -> bool {
    let Window { y, x, channels } = window;
    let few = channels * width <= FEW && x.size > 1 && x.dilation == 1;
    few && TILE * y.size * copy(x.size * channels * width) <= COPIES
}

/// Bytes of a pixel, at most, for lines to be taken as rows.
const FEW: usize = 64;

/// The room of a line: kernels read four bytes at once.
fn copy(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

impl Window {
    /// How many numbers of an operand a batch of one has.
    fn numbers(&self) -> usize {
        self.y.length * self.x.length * self.channels
    }

    /// Whether each pixel of the result is made of the one at its place.
    fn is_flat(&self) -> bool {
        [self.y, self.x].into_iter().all(|span| span.size == 1 && span.step == 1 && span.before == 0)
    }
}

/// Goes through the pixels of a result.
pub struct Walk<'w> {
    window: &'w Window,
    operand: &'w [u8],
    zeros: *const u8,
    width: usize,
    flat: bool,
    /// Whether a row is a whole line of the window, and lines that are partly outside.
    lines: bool,
    copies: &'w mut Copies,
    /// Which pixels of a tile have windows that are not inside, in which picture those are, and the line and column that they begin at.
    over: [(usize, usize, usize, usize); TILE],
    pixel: usize,
    /// Where the current picture begins, in numbers.
    picture: usize,
    place_y: usize,
    place_x: usize,
    /// The lines, and the places along a line, whose windows are inside.
    inside_y: Range<usize>,
    inside_x: Range<usize>,
}

impl<'w> Walk<'w> {
    /// From the first pixel on, over numbers of so many bytes, with so many rows of weights: one for each element of a window, or for each of its
    /// lines where [`by_lines`] allows that. None if the operand is too short for so many pixels. What is outside the
    /// picture is read at `zeros`.
    pub fn new(
        window: &'w Window,
        operand: &'w [u8],
        width: usize,
        zeros: *const u8,
        pixels: usize,
        taps: usize,
        copies: &'w mut Copies,
    ) -> Option<Self> {
        let pictures = pixels.checked_div(window.y.places * window.x.places)?;
        let whole = pictures * window.y.places * window.x.places == pixels;
        let enough = operand.len() >= pictures * window.numbers() * width;
        let flat = window.is_flat();
        (whole && enough).then_some(Self {
            window,
            operand,
            zeros,
            width,
            flat,
            lines: taps != window.y.size * window.x.size,
            copies,
            over: [(0, 0, 0, 0); TILE],
            pixel: 0,
            picture: 0,
            place_y: 0,
            place_x: 0,
            inside_y: inside(&window.y),
            inside_x: inside(&window.x),
        })
    }

    /// Locates the next pixels. Answers whether so many bytes may be read from each of the pointers as the last row needs, `reach` of them.
    pub fn locate(&mut self, tile: usize, reach: usize, rows: &mut Rows) -> bool {
        let (start, row) = (self.operand.as_ptr(), self.window.channels * self.width);
        if self.flat {
            for (lane, to) in rows[0][..tile].iter_mut().enumerate() {
                // Within the operand, which `new` has measured; so are the others below.
                *to = start.wrapping_add((self.pixel + lane) * row);
            }
            self.pixel += tile;
            return (self.pixel - 1) * row + reach <= self.operand.len();
        }
        let Window { y, x, channels } = *self.window;
        let line = x.length * row;
        // Where windows begin, as if all of them were inside; and how many are not.
        let mut corners = [start; TILE];
        let mut over = 0;
        let (mut lane, mut end) = (0, 0);
        while lane < tile {
            let run = (x.places - self.place_x).min(tile - lane);
            let top = (self.place_y * y.step).wrapping_sub(y.before);
            let first = (self.picture * self.width).wrapping_add(top.wrapping_mul(line));
            let is_inside = self.inside_y.contains(&self.place_y);
            for place in self.place_x..self.place_x + run {
                let left = (place * x.step).wrapping_sub(x.before);
                corners[lane] = start.wrapping_add(first.wrapping_add(left.wrapping_mul(row)));
                if !(is_inside && self.inside_x.contains(&place)) {
                    self.over[over] = (lane, self.picture, top, left);
                    over += 1;
                }
                lane += 1;
            }
            // None of these reads beyond the end of the last line of its window.
            let bottom = (self.place_y * y.step + (y.size - 1) * y.dilation).saturating_sub(y.before);
            end = (self.picture + (bottom.min(y.length - 1) + 1) * x.length * channels) * self.width;
            self.place_x += run;
            if self.place_x == x.places {
                (self.place_x, self.place_y) = (0, self.place_y + 1);
            }
            if self.place_y == y.places {
                (self.place_y, self.picture) = (0, self.picture + self.window.numbers());
            }
        }
        let across = if self.lines { 1 } else { x.size };
        let taps = (0..y.size).flat_map(|down| (0..across).map(move |right| (down, right)));
        let taps = taps.map(|(down, right)| (down * y.dilation, right * x.dilation));
        for (to, (down, right)) in rows.iter_mut().zip(taps.clone()) {
            // All lanes of a tile, whether they are asked for or not, so that vectors are added.
            let offset = down.wrapping_mul(line).wrapping_add(right.wrapping_mul(row));
            for (to, corner) in to.iter_mut().zip(&corners) {
                *to = corner.wrapping_add(offset);
            }
        }
        for number in 0..over {
            let (lane, picture, top, left) = self.over[number];
            if self.lines {
                self.copy_lines(lane, picture, top, left, rows);
                continue;
            }
            for (to, (down, right)) in rows.iter_mut().zip(taps.clone()) {
                // Before the first is a very large number.
                if top.wrapping_add(down) >= y.length || left.wrapping_add(right) >= x.length {
                    to[lane] = self.zeros;
                }
            }
        }
        let last = if self.lines { x.size * row } else { row };
        end - last + reach <= self.operand.len()
    }

    /// Gives a pixel, whose window begins there, lines with what is outside of the picture beside what is inside.
    fn copy_lines(&mut self, lane: usize, picture: usize, top: usize, left: usize, rows: &mut Rows) {
        let Window { y, x, channels } = *self.window;
        let row = channels * self.width;
        let bytes = x.size * row;
        // Columns before the first are very large numbers.
        let outside = if left < x.length { 0 } else { left.wrapping_neg().min(x.size) };
        let first = left.wrapping_add(outside);
        let inside = x.length.saturating_sub(first).min(x.size - outside);
        for (down, to) in rows[..y.size].iter_mut().enumerate() {
            let line = top.wrapping_add(down * y.dilation);
            if line >= y.length || inside == 0 {
                to[lane] = self.zeros;
                continue;
            }
            if inside == x.size {
                continue;
            }
            let from = picture * self.width + (line * x.length + first) * row;
            let room = copy(bytes);
            let at = (lane * y.size + down) * room;
            // SAFETY: there is room for the lines of all pixels of a tile, which `by_lines` has seen; zeros are whole lines of 64 bytes, as
            // many as a row of weights fills, and the part of a line that is inside is within the operand.
            unsafe {
                let copy = self.copies.as_mut_ptr().cast::<u8>().add(at);
                copy.copy_from_nonoverlapping(self.zeros, room);
                let part = self.operand[from..from + inside * row].as_ptr();
                copy.add(outside * row).copy_from_nonoverlapping(part, inside * row);
                to[lane] = copy;
            }
        }
    }
}

/// The places whose windows are inside.
fn inside(span: &Span) -> Range<usize> {
    let reach = (span.size - 1) * span.dilation;
    let end = (span.length + span.before).checked_sub(reach + 1).map_or(0, |last| last / span.step + 1);
    span.before.div_ceil(span.step)..end.min(span.places)
}

/// How many pixels the next tile has, of so many that are left: all of them at once, or tiles of like sizes.
pub fn next_tile(left: usize, most: usize) -> usize {
    match left {
        left if left <= most => left,
        left if left < 2 * most => left.div_ceil(2),
        _ => most,
    }
}
