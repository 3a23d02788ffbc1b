//! Where the rows of an operand are that a tile of results is made of: for each tap of the window and each pixel, a pointer.

use core::ops::Range;

use super::panels::TAPS;
use crate::ops::layer::Window;

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
    /// The places along a line whose windows are inside.
    inside: Range<usize>,
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
        let across = &window.x;
        let reach = (across.size - 1) * across.dilation;
        let end =
            (across.length + across.before).checked_sub(reach + 1).map_or(0, |last| last / across.step + 1);
        let inside = across.before.div_ceil(across.step)..end.min(across.places);
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
            inside,
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
        let mut last = 0;
        let mut lane = 0;
        while lane < tile {
            let top = (self.place_y * y.step).wrapping_sub(y.before);
            let left = (self.place_x * x.step).wrapping_sub(x.before);
            // Neighbours whose windows are inside are found at once.
            let run = match self.inside.contains(&self.place_x) {
                true => (self.inside.end - self.place_x).min(tile - lane),
                false => 1,
            };
            for (element, rows) in rows[..y.size * x.size].chunks_exact_mut(x.size).enumerate() {
                let at_y = top.wrapping_add(element * y.dilation);
                let line = self.picture.wrapping_add(at_y.wrapping_mul(x.length * channels));
                for (element, to) in rows.iter_mut().enumerate() {
                    let at_x = left.wrapping_add(element * x.dilation);
                    let to = &mut to[lane..lane + run];
                    // Before the first is a very large number.
                    if at_y < y.length && at_x < x.length {
                        let (from, step) = ((line + at_x * channels) * self.width, x.step * row);
                        last = last.max(from + (run - 1) * step);
                        for (at, to) in to.iter_mut().enumerate() {
                            *to = start.wrapping_add(from + at * step);
                        }
                    } else {
                        to.fill(self.zeros);
                    }
                }
            }
            lane += run;
            self.place_x += run;
            if self.place_x == x.places {
                (self.place_x, self.place_y) = (0, self.place_y + 1);
            }
            if self.place_y == y.places {
                (self.place_y, self.picture) = (0, self.picture + self.window.numbers());
            }
        }
        last + reach <= self.operand.len()
    }
}

/// How many pixels the next tile has, of so many that are left: all of them at once, or tiles of like sizes.
pub fn next_tile(left: usize, most: usize) -> usize {
    match left {
        left if left <= most => left,
        left if left < 2 * most => left.div_ceil(2),
        _ => most,
    }
}
