//! Where the rows of an operand are that a tile of results is made of: for each tap of the window and each pixel, a pointer.

use core::ops::Range;

use super::panels::TAPS;
use crate::ops::layer::Window;
use crate::ops::window::Span;

/// Pixels of a tile, at most.
pub const TILE: usize = 16;

/// Pointers to the rows of a tile, by tap and pixel.
pub type Rows = [[*const u8; TILE]; TAPS];

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
    /// From the first pixel on, over numbers of so many bytes; none if the operand is too short for so many pixels. What is outside the
    /// picture is read at `zeros`.
    pub fn new(
        window: &'w Window,
        operand: &'w [u8],
        width: usize,
        zeros: *const u8,
        pixels: usize,
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
        // Where windows begin, as if all of them were inside; and which are not, by the line and column that they begin at.
        let mut corners = [start; TILE];
        let mut over = [None; TILE];
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
                    over[lane] = Some((top, left));
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
        let taps = (0..y.size).flat_map(|down| (0..x.size).map(move |right| (down, right)));
        let taps = taps.map(|(down, right)| (down * y.dilation, right * x.dilation));
        for (to, (down, right)) in rows.iter_mut().zip(taps.clone()) {
            // All lanes of a tile, whether they are asked for or not, so that vectors are added.
            let offset = down.wrapping_mul(line).wrapping_add(right.wrapping_mul(row));
            for (to, corner) in to.iter_mut().zip(&corners) {
                *to = corner.wrapping_add(offset);
            }
        }
        for (lane, over) in over.iter().enumerate() {
            let Some((top, left)) = over else { continue };
            for (to, (down, right)) in rows.iter_mut().zip(taps.clone()) {
                // Before the first is a very large number.
                if top.wrapping_add(down) >= y.length || left.wrapping_add(right) >= x.length {
                    to[lane] = self.zeros;
                }
            }
        }
        end - row + reach <= self.operand.len()
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
